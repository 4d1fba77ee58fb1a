"""Curves as inline SVG: small, the same bytes each time, and readable at any width.

The picture itself is stretched to its place (lines keep their width); tick labels are text of the page around it, so
that they stay legible on a phone. Colours are the CSS variables ``--s0`` … ``--s7``, so themes apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from markupsafe import Markup

from bkrl.core.reporter import percent
from bkrl.stats.curves import Band, step_label

# The first is for the baseline, four are Okabe and Ito's. All are told apart with each kind of colour blindness, which
# a test reckons. Pages use them as CSS variables.
COLOURS = ("#5f6670", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#784020", "#a860ff", "#5200d6")
DARK_COLOURS = ("#c4cad2", "#4fb0ea", "#ff8f52", "#38cf9f", "#e020a0", "#a06a42", "#9a5cff", "#ffe14d")
SIZE = 1000  # the picture's own units, both ways
Scale = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Style:
    """How a line looks: a colour slot and an SVG dash pattern ("" for a solid line)."""

    slot: int
    dash: str = ""


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
    if not name.replace("-", "").isalnum() or not name.isascii():
        raise ValueError("the name of a figure is made of letters, digits and hyphens")
    x1 = max((float(b.steps[-1]) for b in bands), default=1.0) or 1.0
    low, high = (0.0, 1.0) if share else _range(bands)
    y_ticks = _nice(low, high, 5)
    low, high = (low, high) if share else (min(low, y_ticks[0]), max(high, y_ticks[-1]))

    def y(values: np.ndarray) -> np.ndarray:
        return SIZE * (1 - (np.clip(values, low, high) - low) / (high - low))

    x_ticks = _nice(0.0, x1, 6)
    parts = ['<g class="grid">']
    parts += [f'<path d="M0 {float(y(np.array(t))):.0f}H{SIZE}"/>' for t in y_ticks]
    parts.append("</g>")
    if threshold is not None:
        parts.append(f'<path class="threshold" d="M0 {float(y(np.array(threshold))):.0f}H{SIZE}"/>')
    parts.append(_lines(bands, styles, lambda s: SIZE * s / x1, y, name))
    svg = (
        f'<svg role="img" aria-label="{escape(description)}" viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none">'
        + "".join(parts)
        + "</svg>"
    )
    return Drawing(
        Markup(svg),  # the only text of others in it is escaped
        tuple((100 * float(y(np.array(t))) / SIZE, percent(t) if share else f"{t:.4g}") for t in y_ticks),
        tuple((100 * t / x1, step_label(t) if steps else f"{t:.4g}") for t in x_ticks),
        (0.0, x1),
    )


def _lines(bands: Sequence[Band], styles: Sequence[Style], x: Scale, y: Scale, name: str) -> str:
    """All bands under all lines, in the page's order."""
    shades, lines = [], []
    for i, (b, style) in enumerate(zip(bands, styles, strict=True)):
        if b.steps.size == 0:
            continue
        place = x(b.steps)
        known = np.isfinite(b.low) & np.isfinite(b.high)
        mark = f' id="{name}-{{}}-{i}"'
        if known.any():
            edge = [*_points(place[known], y(b.high[known])), *_points(place[known][::-1], y(b.low[known][::-1]))]
            look = f'class="shade" data-i="{i}"{mark.format("band")} fill="var(--s{style.slot})"'
            shades.append(f'<path {look} d="M{"L".join(edge)}Z"/>')
        points = _points(place, y(b.centre))
        points = points if len(points) > 1 else points * 2  # a round cap makes a lone point a dot
        dash = f' stroke-dasharray="{style.dash}"' if style.dash else ""
        lines.append(
            f'<path class="line" data-i="{i}"{mark.format("line")} stroke="var(--s{style.slot})"{dash} '
            f'd="M{"L".join(points)}"/>'
        )
    return f"<g>{''.join(shades)}{''.join(lines)}</g>"


def _points(x: np.ndarray, y: np.ndarray) -> list[str]:
    return [f"{a:.0f} {b:.0f}" for a, b in zip(x, y, strict=True)]


def _range(bands: Sequence[Band]) -> tuple[float, float]:
    every = np.concatenate([np.concatenate([b.centre, b.low, b.high]) for b in bands] or [np.zeros(1)])
    every = every[np.isfinite(every)]
    if every.size == 0:
        return 0.0, 1.0
    low, high = float(every.min()), float(every.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _nice(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers inside [low, high]; the ends of a range that is no share are rounded outwards."""
    step = 10.0 ** math.floor(math.log10((high - low) / count))
    step *= min((m for m in (1, 2, 2.5, 5, 10) if (high - low) / (m * step) <= count + 0.01), default=10)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]
