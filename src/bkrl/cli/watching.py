"""Curves of runs in the terminal: what is read from their metrics.jsonl, and the picture made of characters.

A picture is rows of (text, number of the run that gives it its colour, or None); the console colours and prints them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from bkrl.core.config import WatchConfig
from bkrl.core.errors import BkrlError, InputError, UsageError
from bkrl.core.files import read_json
from bkrl.core.registry import did_you_mean
from bkrl.runs.record import busy, no_run

Row = list[tuple[str, int | None]]
_KEYS = {"success": ("eval/success_rate", "rollout/success_rate"), "return": ("eval/return", "rollout/return")}
_BLOCKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille character: column, row → bit
_MARGIN = 9
_SPARK = 20


class Curve(NamedTuple):
    """One run as far as it has come.

    Attributes:
        name: shown in the legend.
        points: (step, value), steps rising.
        step: the newest step logged.
        total: steps in all; 0 when the run does not say.
        rate: steps a second, as the run measured it.
        complete: whether the run is over.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    step: int
    total: int
    rate: float
    complete: bool


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories among `paths` and below them that have metrics; InputError when there is none."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise no_run(path, ("collect", "train-rs"))
        logs = [path / "metrics.jsonl"] if (path / "config.json").exists() else sorted(path.rglob("metrics.jsonl"))
        found += [log.parent for log in logs if (log.parent / "config.json").exists()]
    if not found and not any(busy(path / "sweep") for path in paths):
        raise InputError(f"No run with metrics is below {', '.join(map(str, paths))}; has anything been trained yet?")
    return list(dict.fromkeys(found))


def over(config: WatchConfig, curves: Sequence[Curve]) -> bool:
    """Whether nothing more will come: all runs are complete, and no sweep is at work in the folders."""
    return all(curve.complete for curve in curves) and not any(busy(path / "sweep") for path in config.runs)


def read_curves(config: WatchConfig) -> list[Curve]:
    """Every run's curve of the metric, as of now. UsageError when all runs are complete and none has logged it."""
    runs = find_runs(config.runs)
    together = len({run.name for run in runs}) == len(runs)
    curves = [_curve(run, run.name if together else run.as_posix(), config.metric) for run in runs]
    if runs and all(curve.complete and not curve.points for curve in curves):
        keys = {key for run in runs for row in _rows(run / "metrics.jsonl") for key in row} - {"step"}
        known = [*_KEYS, *sorted(keys)]
        raise UsageError(
            f"None of these runs has logged '{config.metric}'.{did_you_mean(config.metric, known)} "
            f"They have logged {', '.join(sorted(keys)) or 'nothing'}."
        )
    return curves


def _curve(run: Path, name: str, metric: str) -> Curve:
    rows = _rows(run / "metrics.jsonl")
    points: list[tuple[float, float]] = []
    for key in _KEYS.get(metric, (metric,)):
        found = {row["step"]: float(row[key]) for row in rows if _is_number(row.get(key))}
        points = points or sorted(found.items())
    rates = [row["time/sps"] for row in rows if _is_number(row.get("time/sps"))]
    try:
        settings = read_json(run / "config.json").get("config")
    except BkrlError:
        settings = None
    steps = settings.get("steps") if isinstance(settings, dict) else None
    total = int(steps) if _is_number(steps) else 0
    step = max((row["step"] for row in rows), default=0)
    return Curve(name, tuple(points), step, total, rates[-1] if rates else 0.0, (run / "manifest.json").exists())


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it can be drawn: a file may hold anything."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False


def _rows(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a file that may be written at this moment; what is half there is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int) and _is_number(row["step"]):
            rows.append(row)
    return rows


def frame(curves: Sequence[Curve], metric: str, width: int, height: int) -> list[Row]:
    """The picture: all curves in one chart, then a row for each run, in at most `height` rows of `width` columns."""
    listed = min(len(curves), max(height // 2, 1))
    rows = _chart(curves, metric, max(width - _MARGIN, 1), max(height - listed - 4, 3))
    longest = max((len(curve.name) for curve in curves[:listed]), default=0)
    for number, curve in enumerate(curves[:listed]):
        rows.append(_legend(number, curve, min(longest, max(width - 60, 12)), width))
    if len(curves) > listed:
        rows.append([(f"… and {len(curves) - listed} more runs", None)])
    return rows


def _legend(number: int, curve: Curve, longest: int, width: int) -> Row:
    values = [value for _, value in curve.points]
    figures = f"{values[-1]:8.3f}, best {max(values):.3f}" if values else "       – not logged yet"
    steps = f"{curve.step:,}" + (f"/{curve.total:,}" if curve.total and not curve.complete else "")
    state = "complete" if curve.complete else f"{curve.rate:,.0f} steps/s" if curve.rate else "starting"
    name = curve.name if len(curve.name) <= longest else "…" + curve.name[-longest + 1 :]
    told = figures
    for more in (f"  at {steps}", f"  {state}"):  # what does not fit is left out whole
        told += more if longest + len(told) + len(more) + 4 <= width else ""
    room = min(width - longest - len(told) - 4, _SPARK)
    course = sparkline(values, room) if room >= _SPARK // 3 else ""
    return [("━━ ", number), (f"{name:<{longest}} ", None), (course, number), (told, None)]


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of some values in one row of blocks, `width` characters long."""
    if not values:
        return " " * width
    low, high = min(values), max(values)
    shown = [values[i * len(values) // width] for i in range(width)] if len(values) > width else values
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in shown).ljust(width)


def _chart(curves: Sequence[Curve], metric: str, width: int, height: int) -> list[Row]:
    """Lines of braille dots, two across and four down in a character, in a frame with the limits written on it."""
    values = [value for curve in curves for _, value in curve.points]
    low, high = (0.0, 1.0) if metric == "success" else (min(values, default=0.0), max(values, default=1.0))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    last = max((max(curve.step, curve.total) for curve in curves), default=1) or 1
    bits = [[0] * width for _ in range(height)]
    owner: list[list[int | None]] = [[None] * width for _ in range(height)]
    for number, curve in enumerate(curves):
        places = [(step / last * (2 * width - 1), (high - value) / (high - low) * (4 * height - 1))
                  for step, value in curve.points]  # fmt: skip
        for x, y in _dots(places):
            if 0 <= x < 2 * width and 0 <= y < 4 * height:
                bits[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
                owner[y // 4][x // 2] = number
    marks = {0: f"{high:.3g}", height - 1: f"{low:.3g}"}
    rows: list[Row] = [[(f"{'':>{_MARGIN - 2}} {metric}", None)]]
    for line in range(height):
        cells = [(chr(0x2800 + bit) if bit else " ", owner[line][i]) for i, bit in enumerate(bits[line])]
        rows.append([(f"{marks.get(line, ''):>{_MARGIN - 2}} │", None), *cells])
    rows.append([(f"{'':>{_MARGIN - 2}} └{'─' * (width - 1)}", None)])
    rows.append([(f"{'':>{_MARGIN - 1}}0{f'{last:,} steps':>{width - 1}}", None)])
    return rows


def _dots(places: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """The dots of a line through places."""
    dots = [(round(x), round(y)) for x, y in places[:1]]
    for (x0, y0), (x1, y1) in pairwise(places):
        steps = max(math.ceil(max(abs(x1 - x0), abs(y1 - y0))), 1)
        dots += [(round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps)) for i in range(steps + 1)]
    return dots
