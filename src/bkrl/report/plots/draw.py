"""Curves and points as pictures: SVG inside a page, PNG files for READMEs and slides; the same bytes each time.

A page's SVG is stretched to its place (lines keep their width); tick labels are text of the page around it, so that
they stay legible on a phone, and colours are the CSS variables ``--s0`` … ``--s7``, so that themes apply. A PNG carries
the identity of the report that made it, so that `bkrl trace` finds its way back from a picture.
"""

import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write
from bkrl.core.reporter import percent
from bkrl.stats.curves import Band
from bkrl.stats.intervals import Interval, step_label

# The first is for the baseline, four are Okabe and Ito's. All are told apart with each kind of colour blindness, which
# a test reckons. Pages use them as CSS variables.
COLOURS = ("#5f6670", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#784020", "#a860ff", "#5200d6")
DARK_COLOURS = ("#c4cad2", "#4fb0ea", "#ff8f52", "#38cf9f", "#e020a0", "#a06a42", "#9a5cff", "#ffe14d")
_VARIABLES, _NUMBER = (*(f"--s{slot}" for slot in range(len(COLOURS))), "--rule"), re.compile(r"\d+\.\d+")
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""What may stand in no SVG, escaped or not; captions of an env of one's own may hold it."""
IDENTITY = "bkrl:report"
INK, RULE = "#1d2126", "#e3e6ea"
"""Of a light page; its SVG have the text's own colour and a CSS variable in their place."""
# svg.hashsalt: without one the ids of an SVG are drawn anew each time
RC = {"font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False, "lines.scale_dashes": False,
       "path.simplify": False, "svg.hashsalt": "bkrl"}  # fmt: skip
_MARKERS, _ACROSS = "osD^vPX*", ("--", ":", "-.")
_HALF_A_PANEL = 34  # letters of a legend that fit into half of a panel's width


@dataclass(frozen=True)
class Style:
    """How a line looks: a colour slot and its dashes in points ("" for a solid line)."""

    slot: int
    dash: str = ""


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
    x: Interval | None
    y: Interval


@dataclass(frozen=True)
class Drawing:
    """A figure for the page: the picture, and ticks as (place in percent, label)."""

    svg: Markup
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    xlim: tuple[float, float]


def draw(
    bands: Sequence[Band],
    styles: Sequence[Style],
    *,
    name: str,
    description: str,
    share: bool,
    threshold: float | None = None,
    steps: bool = True,
) -> Drawing:
    """An ``<svg>`` element to stand inside a page.

    Each line and its band carry the ids ``NAME-line-I`` and ``NAME-band-I``; ``name`` must be unique in the page and
    of letters, digits and hyphens. ``share``: values lie in [0, 1]. ``steps``: x is environment steps.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if not name.replace("-", "").isalnum() or not name.isascii():
        raise ValueError("the name of a figure is made of letters, digits and hyphens")
    with mpl.rc_context(RC):
        axes = Figure(figsize=(10, 5)).add_axes((0, 0, 1, 1), frame_on=False)
        _lines(axes, Panel("", bands, styles), COLOURS, (0.0, 1.0) if share else None, name)
        x1 = _last(bands)
        axes.set_xlim(0, x1)
        axes.margins(y=0)
        low, high = (0.0, 1.0) if share else map(float, _ticks(5).tick_values(*axes.get_ylim())[[0, -1]])
        axes.set_ylim(low, high)
        y_ticks, x_ticks = (
            [float(t) for t in _ticks(count).tick_values(a, b) if a - 1e-9 <= t <= b + 1e-9]
            for a, b, count in ((low, high, 5), (0.0, x1, 6))
        )
        axes.hlines(y_ticks, 0, x1, colors=RULE, linewidth=1, zorder=0, clip_on=False)
        if threshold is not None:
            axes.hlines(threshold, 0, x1, colors=COLOURS[0], linewidth=1, linestyles=(0, (1, 4)), clip_on=False)
        axes.set_axis_off()
        svg = embedded(axes.figure, description, 'preserveAspectRatio="none"', name)
    return Drawing(
        Markup(svg),  # the only text of others in it is escaped
        tuple((100 * (high - t) / (high - low), percent(t) if share else f"{t:.4g}") for t in y_ticks),
        tuple((100 * t / x1, step_label(t) if steps else f"{t:.4g}") for t in x_ticks),
        (0.0, x1),
    )


def embedded(figure: Any, description: str, attributes: str, name: str = "") -> str:
    """A figure as an ``<svg>`` element of a page, in the theme's colours, with no ids but those of lines and bands."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    head, _, inner = out.getvalue().partition("</metadata>")
    size = re.findall(r'viewBox="[^"]+"', head)[0]
    inner = re.sub(r"<defs>.*?</defs>", "", inner.rpartition("</svg>")[0], flags=re.DOTALL)
    inner = re.sub(r' id="(?!line-|band-)[^"]*"', "", inner).replace(' id="', f' id="{name}-')
    inner = re.sub(r' clip-path="[^"]*"', "", inner).replace(INK, "currentColor")
    for colour, variable in zip((*COLOURS, RULE), _VARIABLES, strict=True):
        inner = inner.replace(colour, f"var({variable},{colour})")
    inner = re.sub(r' (?:d|transform|x|y)="[^"]*"', lambda found: _NUMBER.sub(_short, found[0]), inner)
    inner = re.sub(r"\s*\n\s*", " ", inner).strip().replace("xlink:href", "href")
    inner = inner.replace("'DejaVu Sans'", "system-ui,sans-serif")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(description)}" {size} {attributes}>'
    return _NO_XML.sub("", f"{head}{inner}</svg>")


def _short(found: re.Match[str]) -> str:
    return f"{float(found[0]):.4g}"


def _ticks(count: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count, steps=[1, 2, 2.5, 5, 10])


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
) -> None:
    """Draw `panels` as small multiples; `dark` for a dark background, `identity` into the file's metadata."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    ink, _, _ = _grounds(dark)
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(RC):
        lines = max(_legend_columns_and_lines(panel)[1] for panel in panels)
        size = (7.4 if columns == 1 else 5.2 * columns, (3.4 + 0.17 * lines) * rows)
        figure = Figure(figsize=size, layout="constrained")
        for i, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, i + 1)
            _lines(axes, panel, DARK_COLOURS if dark else COLOURS, limits)
            if threshold is not None:
                axes.axhline(threshold, color=ink, linewidth=0.8, linestyle=(0, (0.8, 2.4)), alpha=0.7)
            if limits:
                pad = 0.02 * (limits[1] - limits[0])
                axes.set_ylim(limits[0] - pad, limits[1] + pad)
            axes.set_xlim(0, _last(panel.bands))
            axes.xaxis.set_major_locator(_ticks(6))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: step_label(x)))
            _dress(axes, dark, "environment steps", ylabel if i % columns == 0 else "")
            if panel.title:
                axes.set_title(panel.title, color=ink, fontsize=9.5, loc="left")
            _legend(axes, ink, ncols=_legend_columns_and_lines(panel)[0], borderaxespad=0)
        _save(figure, path, title, dark, identity)


def write_points(
    path: Path, points: Sequence[Point], *, title: str, xlabel: str, ylabel: str, dark: bool = False, identity: str = ""
) -> None:
    """Draw points with their intervals; those without an x are lines across. The x are shares."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    colours, places = (DARK_COLOURS if dark else COLOURS), [one for one in points if one.x is not None]
    with mpl.rc_context(RC):
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
        _dress(axes, dark, xlabel, ylabel)
        _legend(axes, _grounds(dark)[0])
        _save(figure, path, title, dark, identity)


def identity_of(path: Path) -> str:
    """The identity a PNG of `write_png` carries; InputError when the file is no PNG or carries none."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=["PNG"]) as image:
            found = image.info.get(IDENTITY)
    except (UnidentifiedImageError, ValueError, Image.DecompressionBombError):
        raise InputError(f"{path} is not a PNG; name a run, or a PNG or HTML file of a report.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    if found is None:
        raise InputError(f"{path} was not made by bkrl report: it names none.")
    return str(found)


def _lines(axes: Any, panel: Panel, colours: Sequence[str], limits: tuple[float, float] | None, name: str = "") -> None:
    """All bands under all lines. `name`: they are given ids."""
    for i, (b, style) in enumerate(zip(panel.bands, panel.styles, strict=True)):
        low, high, centre = (np.clip(x, *limits) if limits else x for x in (b.low, b.high, b.centre))
        if (known := np.isfinite(low) & np.isfinite(high)).any():
            x, edge = b.steps[known], np.concatenate([low[known], high[known][::-1]])
            (shade,) = axes.fill(np.concatenate([x, x[::-1]]), edge, color=colours[style.slot], alpha=0.14, linewidth=0)
            shade.set_gid(f"band-{i}" if name else None)
        dashes = [float(x) for x in style.dash.split()]
        alone = {} if name else {"marker": "o" if len(b.steps) < 3 else None, "markersize": 4}
        times = 2 if name and len(b.steps) == 1 else 1  # a round cap makes a lone point of a page's line a dot
        (line,) = axes.plot(
            b.steps.repeat(times),
            centre.repeat(times),
            color=colours[style.slot],
            linestyle=(0, dashes) if dashes else "-",
            linewidth=1.8,
            solid_capstyle="round",
            label=_named(b),
            clip_on=False,
            **alone,
        )
        line.set_gid(f"line-{i}" if name else None)


def _last(bands: Sequence[Band]) -> float:
    return max([float(b.steps[-1]) for b in bands if b.steps.size], default=1.0) or 1.0


def _errors(found: Interval) -> list[list[float]] | None:
    return [[found.estimate - found.low], [found.high - found.estimate]] if found.known else None


def _grounds(dark: bool) -> tuple[str, str, str]:
    """The colours of ink, rules and ground."""
    return ("#e6e8eb", "#33383f", "#14171a") if dark else (INK, RULE, "#ffffff")


def _dress(axes: Any, dark: bool, xlabel: str, ylabel: str) -> None:
    ink, rule, _ = _grounds(dark)
    axes.set_xlabel(xlabel, color=ink)
    axes.set_ylabel(ylabel, color=ink)
    axes.tick_params(colors=ink, length=0, labelsize=8.5)
    axes.set_facecolor("none")  # as the ground around
    axes.grid(color=rule, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _legend(axes: Any, ink: str, **how: Any) -> None:
    """Below the axes, where it hides no line."""
    axes.legend(frameon=False, labelcolor=ink, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.16), **how)


def _named(band: Band) -> str:
    return textwrap.fill(f"{band.label} (n = {band.n})", 2 * _HALF_A_PANEL)


def _legend_columns_and_lines(panel: Panel) -> tuple[int, int]:
    """Two columns where the names are short enough to stand beside each other, else one; and the lines it takes."""
    names = [_named(band) for band in panel.bands]
    columns = 2 if all(len(name) <= _HALF_A_PANEL for name in names) else 1
    return columns, math.ceil(sum(name.count("\n") + 1 for name in names) / columns)


def _save(figure: Any, path: Path, title: str, dark: bool, identity: str) -> None:
    """A PNG with a palette of 256 colours, a third of the size; with fewer, thin lines lose theirs."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    ink, _, ground = _grounds(dark)
    if title:
        figure.suptitle(title, color=ink, fontsize=11, x=0.01, ha="left")
    raw, info, out = io.BytesIO(), PngInfo(), io.BytesIO()
    figure.savefig(raw, format="png", dpi=110, facecolor=ground)
    with Image.open(raw) as image:
        small = image.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    if identity:
        info.add_text(IDENTITY, identity)
    small.save(out, format="PNG", optimize=True, pnginfo=info)
    atomic_write(path, out.getvalue())
