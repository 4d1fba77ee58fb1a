"""Curves as PNG files, for READMEs and slides: small multiples with their legends, the same bytes each time.

Each file carries the identity of the report that made it, so that `bkrl trace` finds its way back from a picture.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write
from bkrl.report.model import Estimate
from bkrl.report.plots.svg import COLOURS, DARK_COLOURS, Style
from bkrl.stats.curves import Band, step_label

IDENTITY = "bkrl:report"
_FONT = {"font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False}
_MARKERS, _ACROSS = "osD^vPX*", ("--", ":", "-.")
_HALF_A_PANEL = 34  # letters of a legend that fit into half of a panel's width


@dataclass(frozen=True)
class Panel:
    """One set of axes: bands with their looks."""

    title: str
    bands: Sequence[Band]
    styles: Sequence[Style]


@dataclass(frozen=True)
class Point:
    """One method as a point with its intervals; without an x, as a line across."""

    label: str
    n: int
    x: Estimate | None
    y: Estimate


def write_png(
    path: Path,
    panels: Sequence[Panel],
    *,
    ylabel: str,
    title: str = "",
    limits: tuple[float, float] | None = None,
    threshold: float | None = None,
    dark: bool = False,
    identity: str = "",
    columns: int = 2,
    dpi: int = 110,
) -> None:
    """Draw `panels` as small multiples; `dark` for a dark background, `identity` into the file's metadata."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink, rule, _ = _grounds(dark)
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(_FONT):
        lines = max(_legend_columns_and_lines(panel)[1] for panel in panels)
        size = (7.4 if columns == 1 else 5.2 * columns, (3.4 + 0.17 * lines) * rows)
        figure = Figure(figsize=size, layout="constrained")
        for i, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, i + 1)
            _draw(axes, panel, DARK_COLOURS if dark else COLOURS, ink, rule, limits, threshold)
            axes.set_ylabel(ylabel if i % columns == 0 else "", color=ink)
        _save(figure, path, title, dark, identity, dpi)


def write_points(
    path: Path,
    points: Sequence[Point],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    dark: bool = False,
    identity: str = "",
    dpi: int = 110,
) -> None:
    """Draw points with their intervals; those without an x are lines across. The x are shares."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink, rule, _ = _grounds(dark)
    colours, places = (DARK_COLOURS if dark else COLOURS), [one for one in points if one.x is not None]
    with mpl.rc_context(_FONT):
        figure = Figure(figsize=(7.4, 3.4 + 0.17 * len(points)), layout="constrained")
        axes = figure.add_subplot()
        for i, one in enumerate(points):
            look: dict[str, Any] = {"color": colours[i % len(colours)], "label": f"{one.label} (n = {one.n})"}
            if one.x is None:
                axes.axhline(one.y.estimate, linewidth=1.4, linestyle=_ACROSS[i % len(_ACROSS)], **look)
                continue
            marker = _MARKERS[places.index(one) % len(_MARKERS)]
            spread: dict[str, Any] = {"xerr": _errors(one.x), "yerr": _errors(one.y)}
            axes.errorbar(one.x.estimate, one.y.estimate, **spread, marker=marker, linewidth=1.2, linestyle="", **look)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(xlabel, color=ink)
        axes.set_ylabel(ylabel, color=ink)
        _dress(axes, ink, rule)
        axes.legend(frameon=False, labelcolor=ink, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.16))
        _save(figure, path, title, dark, identity, dpi)


def _errors(found: Estimate) -> list[list[float]] | None:
    if found.low is None or found.high is None:
        return None
    return [[found.estimate - found.low], [found.high - found.estimate]]


def _grounds(dark: bool) -> tuple[str, str, str]:
    """The colours of ink, rules and ground."""
    return ("#e6e8eb", "#33383f", "#14171a") if dark else ("#1d2126", "#e3e6ea", "#ffffff")


def _save(figure: Any, path: Path, title: str, dark: bool, identity: str, dpi: int) -> None:
    ink, _, ground = _grounds(dark)
    if title:
        figure.suptitle(title, color=ink, fontsize=11, x=0.01, ha="left")
    out = io.BytesIO()
    metadata = {"Software": None} | ({IDENTITY: identity} if identity else {})
    figure.savefig(out, format="png", dpi=dpi, facecolor=ground, metadata=metadata)
    atomic_write(path, _few_colours(out.getvalue(), identity))


def _few_colours(raw: bytes, identity: str) -> bytes:
    """The same picture with a palette of 256 colours, a third of the size; with fewer, thin lines lose theirs."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    with Image.open(io.BytesIO(raw)) as image:
        small = image.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    info = PngInfo()
    if identity:
        info.add_text(IDENTITY, identity)
    out = io.BytesIO()
    small.save(out, format="PNG", optimize=True, pnginfo=info)
    return out.getvalue()


def _draw(
    axes: Any,
    panel: Panel,
    colours: Sequence[str],
    ink: str,
    rule: str,
    limits: tuple[float, float] | None,
    threshold: float | None,
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for b, style in zip(panel.bands, panel.styles, strict=True):
        low, high = (np.clip(x, *limits) if limits else x for x in (b.low, b.high))
        if not np.isnan(low).all():
            axes.fill_between(b.steps, low, high, color=colours[style.slot], alpha=0.14, linewidth=0)
        dashes = [float(x) for x in style.dash.split()]
        axes.plot(
            b.steps,
            b.centre,
            color=colours[style.slot],
            linestyle=(0, [x / 1.9 for x in dashes]) if dashes else "-",
            linewidth=1.8,
            marker="o" if len(b.steps) < 3 else None,
            markersize=4,
            label=_named(b),
            clip_on=False,
        )
    if threshold is not None:
        axes.axhline(threshold, color=ink, linewidth=0.8, linestyle=(0, (1, 3)), alpha=0.7)
    if limits:
        pad = 0.02 * (limits[1] - limits[0])
        axes.set_ylim(limits[0] - pad, limits[1] + pad)
    axes.set_xlim(0, max([float(b.steps[-1]) for b in panel.bands], default=1.0) or 1.0)
    axes.set_xlabel("environment steps", color=ink)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: step_label(x)))
    _dress(axes, ink, rule)
    if panel.title:
        axes.set_title(panel.title, color=ink, fontsize=9.5, loc="left")
    # Beside the axes, where it hides no line.
    axes.legend(
        frameon=False,
        labelcolor=ink,
        fontsize=8,
        loc="upper left",
        bbox_to_anchor=(0, -0.16),
        ncols=_legend_columns_and_lines(panel)[0],
        borderaxespad=0,
    )


def _dress(axes: Any, ink: str, rule: str) -> None:
    axes.tick_params(colors=ink, length=0, labelsize=8.5)
    axes.set_facecolor("none")  # as the ground around
    axes.grid(color=rule, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _named(band: Band) -> str:
    return textwrap.fill(f"{band.label} (n = {band.n})", 2 * _HALF_A_PANEL)


def _legend_columns_and_lines(panel: Panel) -> tuple[int, int]:
    """Two columns where the names are short enough to stand beside each other, else one; and the lines it takes."""
    names = [_named(band) for band in panel.bands]
    columns = 2 if all(len(name) <= _HALF_A_PANEL for name in names) else 1
    return columns, math.ceil(sum(name.count("\n") + 1 for name in names) / columns)


def identity_of(path: Path) -> str:
    """The identity a PNG of `write_png` carries; InputError when the file is no PNG or carries none."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=["PNG"]) as image:
            found = image.info.get(IDENTITY)
    except (UnidentifiedImageError, ValueError, Image.DecompressionBombError):
        raise InputError(f"{path} is not a PNG.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    if found is None:
        raise InputError(f"{path} was not made by bkrl report: it names none.")
    return str(found)
