"""Strips: Φ over an episode as a line, and under it what the agent saw at a few moments, as pictures with captions.

A strip is one SVG that needs nothing beside it; its text takes the colour of the page it stands in.
"""

import base64
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.data.dataset import Dataset
from bkrl.envs import env_spec
from bkrl.envs import family as family_named
from bkrl.inspect.quality import courses, in_words
from bkrl.potentials.protocol import Scaled
from bkrl.report.plots.draw import COLOURS, INK, RC, embedded
from bkrl.report.plots.pictures import png_uri, stitched

_WIDTH, _LEFT, _TOP, _PLOT = 1000, 34, 18, 110
_MOMENTS = 8
_PICTURE_TOP = _TOP + _PLOT + 30
_COLUMN = (_WIDTH - _LEFT) / _MOMENTS
_PICTURE = 100  # its longer side
_LINES, _LINE, _CHARACTERS = 9, 13.0, 21


@dataclass(frozen=True)
class Strip:
    """One episode's course of Φ.

    Attributes:
        title: what episode it is.
        first_step: the step of the first value.
        phi: (n,) Φ in [-1, 0].
        captions: n texts; actions: n - 1 names; pictures: n data URIs of PNGs, "" where there is none.
    """

    title: str
    first_step: int
    phi: Sequence[float]
    captions: Sequence[str]
    actions: Sequence[str]
    pictures: Sequence[str]

    def svg(self) -> str:
        """The strip as an SVG document; texts of others are escaped."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        chosen, last = moments(self.phi), max(1, len(self.phi) - 1)
        below = {i: self._below(i) for i in chosen}
        pictured = _PICTURE + 8 if any(self.pictures[i] for i in chosen) else 2
        bottom = _PICTURE_TOP + pictured + _LINE * max(text.count("\n") + 1 for text, _ in below.values()) + 6
        x, y = _LEFT + 6 + (_WIDTH - _LEFT - 12) * np.arange(len(self.phi)) / last, -_PLOT * np.clip(self.phi, -1, 0)
        with mpl.rc_context({**RC, "svg.fonttype": "none", "font.size": 7.2}):
            axes = Figure(figsize=(_WIDTH / 100, bottom / 100)).add_axes((0, 0, 1, 1), xlim=(0, _WIDTH))
            axes.set_axis_off()
            axes.hlines([_TOP, _TOP + _PLOT], _LEFT, _WIDTH, colors=INK, linewidth=0.7, alpha=0.25)
            axes.plot(x, _TOP + y, color=COLOURS[1], linewidth=1.3)
            axes.text(0, 11, self.title, size=8.6, weight="bold", color=INK)
            for text, place in (("0", 0.0), ("Φ", 0.5), ("−1", 1.0)):
                axes.text(_LEFT - 6, _TOP + _PLOT * place, text, ha="right", va="center", color=INK)
            for column, i in enumerate(chosen):
                left = _LEFT + column * _COLUMN
                middle = left + _COLUMN / 2 - 3
                to = [_TOP + y[i], _TOP + _PLOT + 4, _PICTURE_TOP - 16]
                axes.plot([x[i], x[i], middle], to, color=INK, linewidth=0.7, alpha=0.3)
                at = x[i].repeat(2), (_TOP + y[i]).repeat(2)
                axes.plot(*at, color=COLOURS[1], linewidth=5, solid_capstyle="round")
                head = f"step {self.first_step + i}, Φ {self.phi[i]:.2f}"
                axes.text(middle, _PICTURE_TOP - 4, head, ha="center", weight="bold", color=INK)
                if self.pictures[i]:
                    _show(axes, self.pictures[i], middle)
                text, acted = below[i]
                axes.text(left, _PICTURE_TOP + pictured, text, va="top", linespacing=1.25, color=INK)
                axes.text(left, _PICTURE_TOP + pictured, acted, va="top", linespacing=1.25, color=INK, weight="bold")
            axes.set(xlim=(0, _WIDTH), ylim=(bottom, 0), aspect="auto")
            return embedded(axes.figure, self.title, 'style="width:100%;height:auto" fill="currentColor"')

    def _below(self, i: int) -> tuple[str, str]:
        """Caption and action of one moment in lines, the action below as many empty ones as the caption has."""
        lines = textwrap.wrap(str(self.captions[i]), _CHARACTERS)
        if len(lines) > _LINES:
            lines = [*lines[: _LINES - 1], lines[_LINES - 1][: _CHARACTERS - 2] + " …"]
        acted = textwrap.wrap(f"→ {self.actions[i]}", _CHARACTERS) if i < len(self.actions) else []
        return "\n".join([*lines, *[""] * len(acted)]), "\n".join([""] * len(lines) + acted)


def _show(axes: Any, uri: str, middle: float) -> None:
    """A picture below the line, its longer side `_PICTURE` long."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
    high, wide = (_PICTURE * side / max(pixels.shape[:2]) for side in pixels.shape[:2])
    place = (middle - wide / 2, middle + wide / 2, _PICTURE_TOP + high, _PICTURE_TOP)
    axes.imshow(pixels, extent=place, interpolation="none", zorder=2)


def moments(phi: Sequence[float], count: int = _MOMENTS) -> list[int]:
    """At most `count` places of a course: first, last, the greatest changes (both sides' later end), evenly else."""
    last = len(phi) - 1
    chosen = {0, last}
    changes = np.argsort(-np.abs(np.diff(np.asarray(phi))), kind="stable") + 1
    for place in changes[: count // 2 - 1]:
        chosen.add(int(place))
    for place in np.linspace(0, last, 4 * count).round().astype(int):
        far = min(abs(int(place) - one) for one in chosen)
        if len(chosen) < count and far >= max(1, last // (count + 2)):
            chosen.add(int(place))
    return sorted(chosen)[:count]


def pictures(family: str, observations: NDArray[np.uint8]) -> list[str]:
    """(n, *obs_shape) observations as data URIs of PNGs; "" for a family of envs that there is no way to draw."""
    drawn = family_named(family).tile_maps(observations) if len(observations) else None
    if drawn is None:
        return [""] * len(observations)
    return [png_uri(picture) for picture in stitched(*drawn)]


def strips(potential: Scaled, dataset: Dataset) -> list[Strip]:
    """Φ over one solved and one failed episode of a dataset (best and worst return where there is only one kind)."""
    found = []
    for course in courses(potential, dataset):
        phi = [round(float(value), 4) for value in course.phi]
        shown = moments(phi)
        drawn = pictures(env_spec(dataset.env_id).family, dataset.observations[course.rows[shown]])
        captions, actions = in_words(dataset, course.rows)
        gained = float(dataset.returns[course.episode])
        found.append(
            Strip(
                title=f"Φ over episode {course.episode} ({course.kind}, return {gained:.3g})",
                first_step=int(dataset.ages[course.rows[0]]),
                phi=phi,
                captions=captions,
                actions=actions,
                pictures=[drawn[shown.index(i)] if i in shown else "" for i in range(len(phi))],
            )
        )
    return found
