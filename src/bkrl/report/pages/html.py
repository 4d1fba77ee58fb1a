"""One self-contained HTML file from plain values: Jinja2 with escaping on, style and script inlined, no network.

Every page stands in the frame `base.html`. Its content policy forbids every request and every script but ours, so that
a caption or a reply that slips through escaping still could not do anything.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from bkrl.core.files import plain
from bkrl.core.reporter import duration, percent, percents
from bkrl.methods import find_method
from bkrl.report.groups import short_env
from bkrl.report.plots.draw import COLOURS, DARK_COLOURS
from bkrl.stats.crossings import StepsRatio, bounded
from bkrl.stats.intervals import on_grid, step_label

RATIO_RANGE = (0.25, 4.0)
_TEMPLATES = resources.files("bkrl.report.pages").joinpath("templates")


def render(name: str, page: Mapping[str, Any]) -> str:
    """The whole document of template NAME.html from its values. NAME's own style and script, if any, follow those of
    every page. Same values, same bytes.
    """
    css, js = ("\n".join(_source(part) for part in _parts(name, kind)) for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()
    template = _environment().get_template(f"{name}.html")
    return template.render(page, css=Markup(_palette() + css), js=Markup(js), script_hash=digest)


def fragment(name: str, values: Mapping[str, Any]) -> Markup:
    """A piece of a page from template NAME.html."""
    return Markup(_environment().get_template(f"{name}.html").render(values))


def embed(value: Any) -> Markup:
    """JSON for a script element of type application/json: nothing in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _parts(name: str, kind: str) -> list[str]:
    return [part for part in (f"base.{kind}", f"{name}.{kind}") if _TEMPLATES.joinpath(part).is_file()]


def _source(name: str) -> str:
    return _TEMPLATES.joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        steps=steps,
        percent=lambda *share: tight(percent(*share)),
        tight=tight,
        figure=figure,
        duration=duration,
        # but for names of methods
        capitalize_first=lambda text: text if find_method(text.partition(" ")[0]) else text[:1].upper() + text[1:],
        short=lambda digest: str(digest)[:12],
        compact=compact_json,
        short_env=short_env,
        facts_of=facts_of,
        anchor=anchor,
        pretty=lambda value: json.dumps(value, indent=1, ensure_ascii=False),
    )
    environment.globals.update(
        bounded=bounded, on_grid=on_grid, percents=lambda *shares: tight(percents(*shares)), forest=forest
    )
    return environment


def anchor(key: str) -> str:
    """An id for a run inside the page."""
    digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:8]  # two keys may have the same letters
    return f"run-{re.sub(r'[^A-Za-z0-9]+', '-', key).strip('-')}-{digest}"


def steps(value: float | None) -> str:
    """Environment steps: 450k; an en dash for nothing."""
    return "–" if value is None or math.isnan(value) else step_label(value)


def tight(text: str) -> str:
    """Text in which no line ends between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def figure(value: Any) -> str:
    """Any plain value, short: numbers to four figures, yes and no, an en dash for nothing."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if math.isnan(value):
            return "–"
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


def cut(text: str, limit: int) -> str:
    """A text of at most `limit` characters, and how many more there are."""
    return text if len(text) <= limit else text[:limit] + f" … ({len(text) - limit:,} more characters)"


def facts_of(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested record as one level of "a: b" names with plain values; long lists are counted instead of shown."""
    if not isinstance(value, dict):
        return {prefix: value} if prefix else {}
    if set(value) == {"rate", "low", "high", "n"}:
        return {prefix: _share_text(value)}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        name = (f"{prefix}: {key}" if prefix else str(key)).replace("_", " ")
        if isinstance(inner, list):
            plain = all(isinstance(x, str | int | float) for x in inner) and len(inner) <= 12
            flat[name] = ", ".join(str(x) for x in inner) if plain else f"{len(inner)} entries"
        else:
            flat |= facts_of(inner, name)
    return flat


def _share_text(value: Mapping[str, Any]) -> str:
    if value["rate"] is None:
        return "nothing to compare"
    ends = percents(value["low"], value["high"], 1)
    return f"{percent(value['rate'], 1)} (95 % interval {ends}, n = {value['n']:,})"


def compact_json(value: Any) -> str:
    """JSON for an attribute, where the template's escaping makes it safe; non-finite numbers become null."""
    return json.dumps(_short(plain(value)), separators=(",", ":"), allow_nan=False)


def _short(value: Any) -> Any:
    """The same with four significant figures and no ".0": what a pointer can show."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, float):
        rounded = float(f"{value:.4g}")
        return int(rounded) if rounded.is_integer() else rounded
    return value


def forest(ratio: StepsRatio) -> Markup:
    """A ratio with its interval on a logarithmic axis around 1; an arrow where censoring leaves a side open. What lies
    beyond the axis stands at its end.
    """
    a, b = (math.log(x) for x in RATIO_RANGE)

    def place(x: float) -> float:
        return 6 + 108 * (math.log(min(max(x, RATIO_RANGE[0]), RATIO_RANGE[1])) - a) / (b - a)

    parts = [f'<path class="rule" d="M{place(1):.1f} 0V16"/>']
    if ratio.known:
        parts.append(f'<path class="bar" d="M{place(ratio.low):.1f} 8H{place(ratio.high):.1f}"/>')
    at, bound = place(ratio.estimate), ratio.bound
    if bound == "at least":
        parts.append(f'<path class="bar" d="M{at:.1f} 8H118m-4 -4l4 4l-4 4"/>')
    elif bound == "at most":
        parts.append(f'<path class="bar" d="M{at:.1f} 8H2m4 -4l-4 4l4 4"/>')
    parts.append(f'<circle class="{"open" if bound == "unknown" else "dot"}" cx="{at:.1f}" cy="8" r="3.5"/>')
    return Markup(f'<svg class="forest" aria-hidden="true" viewBox="0 0 120 16">{"".join(parts)}</svg>')


def _palette() -> str:
    """The figures' colours as CSS variables, in both themes."""

    def variables(colours: Sequence[str]) -> str:
        return "".join(f"--s{i}:{colour};" for i, colour in enumerate(colours))

    light, dark = variables(COLOURS), variables(DARK_COLOURS)
    return (
        f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
    )
