"""Learning curves: from metrics to one grid, summarised over seeds, drawn as inline SVG or PNG.

Every interval is pointwise over whole runs: the resampling unit is a seed, never an evaluation. Nothing is
extrapolated: the grid ends where the shortest run ends.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bkrl.report import statistics
from bkrl.run import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = tuple[np.ndarray, np.ndarray]
"""``steps`` (E,) increasing env steps and ``values`` (E,) of one metric of one run."""

# Okabe and Ito's colour-blind-safe set; the first is for the baseline. The page overrides them by CSS variables (dark
# mode).
COLOURS = ("#5f6670", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07c00", "#56b4e9", "#7a4fbf")
DARK_COLOURS = ("#a5adb8", "#4fb0ea", "#ff8f52", "#38cf9f", "#eba3cb", "#ecc04e", "#a0d8ff", "#b79af0")
DASHES: tuple[Any, ...] = ((0, (5, 2)), "-", "-", "-", (0, (1, 1)), (0, (6, 1, 1, 1)), (0, (3, 1)), "-")
_INK, _RULE = "#010203", "#040506"  # stand-ins that become CSS colours
_KNOWN = {"ppo": 0, "bk-code": 1, "bk-pref": 2, "bk-goal": 3, "rnd": 4}


@dataclass(frozen=True)
class Curve:
    """One metric of one run: ``steps`` (E,), ``values`` (E,)."""

    seed: int
    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Band:
    """One line of a figure: ``centre``, ``low``, ``high`` (G,) over ``steps`` (G,); the interval is NaN for one run."""

    label: str
    steps: np.ndarray
    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int
    method: str


def colour_slots(labels: Sequence[str]) -> dict[str, int]:
    """A fixed colour slot for each known algorithm, the free slots in order for the others, so that figures agree."""
    slots = {label: _KNOWN[label] for label in labels if label in _KNOWN}
    free = [i for i in (5, 6, 7, 4, 3, 2, 1, 0) if i not in slots.values()] or list(range(len(COLOURS)))
    for i, label in enumerate(x for x in labels if x not in slots):
        slots[label] = free[i % len(free)]
    return slots


def series_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """All metrics of a run from the lines of its ``metrics.jsonl`` (`Run.metrics()`), each sorted by step.

    Null values are left out. Where a step was logged twice (a run that went on from a checkpoint) the later line holds.
    """
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(key, {})[float(row["step"])] = float(value)
    return {
        key: (np.array(sorted(points)), np.array([points[s] for s in sorted(points)]))
        for key, points in sorted(found.items())
    }


def on_grid(curves: Sequence[Curve], points: int = 200) -> Series:
    """``steps`` (G,) and ``values`` (n, G) of several runs on a common grid.

    Runs evaluated at the same steps are taken as they are. Otherwise they are interpolated linearly on at most
    ``points`` equal steps between the latest first and the earliest last evaluation. Evaluations that are not finite
    are dropped.
    """
    if not curves:
        raise ValueError("a grid needs at least one curve")
    finite = [(c.steps[np.isfinite(c.values)], c.values[np.isfinite(c.values)]) for c in curves]
    if any(s.size == 0 for s, _ in finite):
        raise ValueError("a curve without any finite value cannot be put on a grid")
    start, end = max(float(s[0]) for s, _ in finite), min(float(s[-1]) for s, _ in finite)
    if end < start:
        raise ValueError("the runs share no range of steps")
    cut = [(s[(s >= start) & (s <= end)], v[(s >= start) & (s <= end)]) for s, v in finite]
    if all(np.array_equal(s, cut[0][0]) for s, _ in cut) and len(cut[0][0]) <= points:
        return cut[0][0], np.stack([v for _, v in cut])
    longest = min(points, max(2, max(len(s) for s, _ in cut)))
    grid = np.linspace(start, end, longest) if end > start else np.array([start])
    return grid, np.stack([np.interp(grid, s, v) for s, v in finite])


def band(label: str, curves: Sequence[Curve], rng: np.random.Generator, *, repetitions: int = 1000) -> Band:
    """Interquartile mean with a 95 % bootstrap band from 5 seeds on; mean with Student's t below; the line alone for
    one seed.
    """
    grid, values = on_grid(curves)
    n = len(values)
    if n >= statistics.FEW_SEEDS:
        draws = values[rng.integers(0, n, size=(repetitions, n))]
        low, high = np.quantile(statistics.interquartile_mean(draws, axis=1), [0.025, 0.975], axis=0)
        return Band(label, grid, statistics.interquartile_mean(values, axis=0), low, high, n, "bootstrap")
    centre = values.mean(axis=0)
    if n == 1:
        unknown = np.full_like(centre, math.nan)
        return Band(label, grid, centre, unknown, unknown, 1, "none")
    half = statistics.student_quantile(0.975, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return Band(label, grid, centre, centre - half, centre + half, n, "t")


@dataclass(frozen=True)
class Drawing:
    """A figure for the page. ``frame``: left, top, right, bottom of the axes as fractions of the picture."""

    svg: str
    frame: tuple[float, float, float, float]
    xlim: tuple[float, float]
    ylim: tuple[float, float]


# --- drawing --------------------------------------------------------------------------------------


def step_label(steps: float) -> str:
    """Env steps for people: 950, 20k, 1.25M."""
    if math.isinf(steps):
        return "∞"
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(steps) >= size:
            return f"{steps / size:.3g}{suffix}"
    return f"{steps:.0f}"


def _figure(
    bands: Sequence[Band],
    slots: dict[str, int],
    colours: Sequence[str],
    *,
    ylabel: str,
    limits: tuple[float, float] | None,
    threshold: float | None,
    legend: bool,
    title: str,
    name: str,
    ink: str,
    rule: str,
    size: tuple[float, float],
) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    for i, b in enumerate(bands):
        slot = slots[b.label]
        low, high = (np.clip(x, *limits) if limits else x for x in (b.low, b.high))
        if not np.isnan(low).all():
            shade = axes.fill_between(b.steps, low, high, color=colours[slot], alpha=0.16, linewidth=0)
            shade.set_gid(f"{name}-band-{i}")
        marker = "o" if len(b.steps) < 3 else None
        (line,) = axes.plot(
            b.steps,
            b.centre,
            color=colours[slot],
            linestyle=DASHES[slot],
            linewidth=1.9,
            marker=marker,
            markersize=4,
            label=f"{b.label} (n = {b.n})",
            solid_capstyle="round",
            clip_on=False,
        )
        line.set_gid(f"{name}-line-{i}")
    if threshold is not None:
        axes.axhline(threshold, color=ink, linewidth=0.8, linestyle=(0, (1, 3)), alpha=0.7)
    if limits:
        pad = 0.02 * (limits[1] - limits[0])
        axes.set_ylim(limits[0] - pad, limits[1] + pad)
    axes.set_xlim(0, max([float(b.steps[-1]) for b in bands], default=1.0) or 1.0)
    axes.set_xlabel("environment steps", color=ink)
    axes.set_ylabel(ylabel, color=ink)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: step_label(x)))
    axes.tick_params(colors=ink, length=0, labelsize=9)
    axes.grid(color=rule, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    if title:
        axes.set_title(title, color=ink, fontsize=11, loc="left")
    if legend:
        axes.legend(frameon=False, labelcolor=ink, fontsize=9, loc="best")
    return figure


def draw_svg(
    bands: Sequence[Band],
    *,
    name: str,
    ylabel: str,
    description: str,
    limits: tuple[float, float] | None = None,
    threshold: float | None = None,
    size: tuple[float, float] = (7.2, 3.9),
) -> Drawing:
    """An ``<svg>`` element to stand inside a page: same bands, same bytes.

    Colours are the CSS variables ``--s0`` … ``--s7`` and ``--rule``, text is ``currentColor``, so the page's light
    and dark themes apply. ``name`` must be unique in the page and of letters, digits and hyphens: it prefixes every
    id. Each line and its band carry the ids ``NAME-line-I`` and ``NAME-band-I``. The legend is the page's business.
    """
    import matplotlib as mpl

    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
        raise ValueError("the name of a figure is made of letters, digits and hyphens")
    stand_ins = [f"#0a0b{i:02x}" for i in range(len(COLOURS))]
    slots = colour_slots([b.label for b in bands])
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10}):
        figure = _figure(
            bands,
            slots,
            stand_ins,
            ylabel=ylabel,
            limits=limits,
            threshold=threshold,
            legend=False,
            title="",
            name=name,
            ink=_INK,
            rule=_RULE,
            size=size,
        )
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    axes = figure.axes[0]
    place = axes.get_position()
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # matplotlib numbers its groups from 1 in every figure, and styles every element of the page.
    text = re.sub(rf' id="(?!{name}-(?:line|band)-\d|[mp][0-9a-f]{{10}}")[^"]*"', "", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.S)
    text = text.replace("; font-family: 'DejaVu Sans'", "")
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    for i, colour in enumerate(stand_ins):
        text = text.replace(colour, f"var(--s{i})")
    text = text.replace(_INK, "currentColor").replace(_RULE, "var(--rule)")
    style = 'style="stroke-linejoin:round;stroke-linecap:butt"'
    head = f'<svg role="img" aria-label="{escape(description)}" xmlns="http://www.w3.org/2000/svg" {style}'
    box = re.search(r'viewBox="[^"]*"', text)
    if box is None:
        raise ValueError("matplotlib wrote an SVG without a viewBox")
    text = text.replace("xlink:href", "href")
    svg = f"{head} {box.group(0)}>" + re.sub(r"\n\s*", "\n", text[text.index(">") + 1 :]).strip()
    left, top, right, bottom = (float(x) for x in (place.x0, 1 - place.y1, place.x1, 1 - place.y0))
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    return Drawing(svg, (left, top, right, bottom), (float(x0), float(x1)), (float(y0), float(y1)))


def write_png(
    path: Path,
    bands: Sequence[Band],
    *,
    ylabel: str,
    title: str = "",
    limits: tuple[float, float] | None = None,
    threshold: float | None = None,
    dark: bool = False,
    size: tuple[float, float] = (7.2, 3.9),
    dpi: int = 160,
) -> None:
    """The same figure as a PNG with its legend inside, for pages that cannot hold SVG; ``dark`` draws it for a dark
    background.
    """
    import matplotlib as mpl

    ink, rule, ground = ("#e6e8eb", "#33383f", "#14171a") if dark else ("#1d2126", "#e3e6ea", "#ffffff")
    out = io.BytesIO()
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 10}):
        figure = _figure(
            bands,
            colour_slots([b.label for b in bands]),
            DARK_COLOURS if dark else COLOURS,
            ylabel=ylabel,
            limits=limits,
            threshold=threshold,
            legend=True,
            title=title,
            name="png",
            ink=ink,
            rule=rule,
            size=size,
        )
        figure.savefig(out, format="png", dpi=dpi, facecolor=ground, metadata={"Software": None})
    atomic_write(path, out.getvalue())
