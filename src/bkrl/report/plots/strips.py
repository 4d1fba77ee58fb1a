"""Strips: Φ over an episode as a line, and under it what the agent saw at a few moments, as pictures with captions.

A strip is one SVG that needs nothing beside it; its text takes the colour of the page it stands in.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from bkrl.data.dataset import Dataset
from bkrl.envs import family as family_named
from bkrl.envs import world
from bkrl.inspect.quality import courses, in_words
from bkrl.potentials.protocol import Scaled
from bkrl.report.plots.pictures import png_uri

_WIDTH, _LEFT, _TOP, _PLOT = 1000, 34, 18, 110
_MOMENTS = 8
_PICTURE_TOP = _TOP + _PLOT + 30
_COLUMN = (_WIDTH - _LEFT) / _MOMENTS
_PICTURE = 100  # its longer side
_LINES, _LINE, _CHARACTERS = 9, 11.5, 21


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

    @property
    def moments(self) -> list[int]:
        """At most 8 places: the first and the last, the greatest changes of Φ, and others evenly between."""
        return moments(self.phi)

    def svg(self) -> str:
        """The strip as an SVG document; texts of others are escaped."""
        chosen = self.moments
        last = max(1, len(self.phi) - 1)

        def x(i: float) -> float:
            return _LEFT + 6 + (_WIDTH - _LEFT - 12) * i / last

        def y(value: float) -> float:
            return _TOP - _PLOT * min(0.0, max(-1.0, value))

        line = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(self.phi))
        parts = [
            f'<text x="0" y="12" font-size="12" font-weight="600">{escape(self.title)}</text>',
            f'<path d="M{_LEFT} {y(0):.1f}H{_WIDTH}M{_LEFT} {y(-1):.1f}H{_WIDTH}" stroke="currentColor" '
            'opacity=".25"/>',
            f'<text x="{_LEFT - 6}" y="{y(0) + 4:.1f}" text-anchor="end">0</text>',
            f'<text x="{_LEFT - 6}" y="{y(-1) + 4:.1f}" text-anchor="end">−1</text>',
            f'<text x="0" y="{y(-0.5) + 4:.1f}" font-size="13">Φ</text>',
            f'<polyline points="{line}" fill="none" stroke="#0072b2" stroke-width="1.8" stroke-linejoin="round"/>',
        ]
        bottom: float = _PICTURE_TOP
        for column, i in enumerate(chosen):
            left = _LEFT + column * _COLUMN
            middle = left + _COLUMN / 2 - 3
            parts.append(
                f'<path d="M{x(i):.1f} {y(self.phi[i]):.1f}V{y(-1) + 4:.1f}L{middle:.1f} {_PICTURE_TOP - 16}" '
                'fill="none" stroke="currentColor" opacity=".3"/>'
                f'<circle cx="{x(i):.1f}" cy="{y(self.phi[i]):.1f}" r="3.4" fill="#0072b2"/>'
            )
            text, end = self._below(i, left, middle)
            parts.append(text)
            bottom = max(bottom, end)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 6:.0f}" role="img" '
            f'aria-label="{escape(self.title)}" font-family="system-ui,sans-serif" font-size="10" fill="currentColor" '
            f'style="width:100%;height:auto">{"".join(parts)}</svg>'
        )

    def _below(self, i: int, left: float, middle: float) -> tuple[str, float]:
        """Step, picture, caption and action of one moment, and where they end."""
        caption = str(self.captions[i])
        parts = [
            f"<g><title>{escape(caption)}</title>",
            f'<text x="{middle:.1f}" y="{_PICTURE_TOP - 4}" text-anchor="middle" font-weight="600">'
            f"step {self.first_step + i}, Φ {self.phi[i]:.2f}</text>",
        ]
        down: float = _PICTURE_TOP
        if self.pictures[i]:
            parts.append(
                f'<image x="{middle - _PICTURE / 2:.1f}" y="{down:.1f}" width="{_PICTURE}" height="{_PICTURE}" '
                f'preserveAspectRatio="xMidYMin" style="image-rendering:pixelated" href="{self.pictures[i]}"/>'
            )
            down += _PICTURE + 6
        lines = textwrap.wrap(caption, _CHARACTERS)
        if len(lines) > _LINES:
            lines = [*lines[: _LINES - 1], lines[_LINES - 1][: _CHARACTERS - 2] + " …"]
        acted = textwrap.wrap(f"→ {self.actions[i]}", _CHARACTERS) if i < len(self.actions) else []
        for number, text in enumerate([*lines, *acted]):
            down += _LINE
            strong = ' font-weight="600"' if number >= len(lines) else ""
            parts.append(f'<text x="{left:.1f}" y="{down:.1f}"{strong}>{escape(text)}</text>')
        return "".join(parts) + "</g>", down


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


def pictures(family: str, observations: NDArray[np.uint8], scale: int = 1) -> list[str]:
    """(n, *obs_shape) observations as data URIs of PNGs; "" for a family of worlds that there is no way to draw."""
    drawn = family_named(family).tile_maps(observations) if len(observations) else None
    if drawn is None:
        return [""] * len(observations)
    maps, tiles = drawn
    rows, columns = maps.shape[1:]
    side = tiles.shape[1]
    cells = tiles[maps]  # (n, rows, columns, side, side, channels)
    whole = cells.transpose(0, 1, 3, 2, 4, 5).reshape(len(maps), rows * side, columns * side, -1)
    return [png_uri(picture.repeat(scale, 0).repeat(scale, 1)) for picture in whole]


def strips(potential: Scaled, dataset: Dataset) -> list[Strip]:
    """Φ over one solved and one failed episode of a dataset (best and worst return where there is only one kind)."""
    found = []
    for course in courses(potential, dataset):
        phi = [round(float(value), 4) for value in course.phi]
        shown = moments(phi)
        drawn = pictures(world(dataset.env_id).family, dataset.observations[course.rows[shown]])
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
