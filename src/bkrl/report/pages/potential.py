"""The page of a potential report: what a potential is worth before any reinforcement learning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bkrl.core.files import read_json
from bkrl.report.pages import html
from bkrl.report.plots.strips import Strip
from bkrl.runs.record import Run

STAGE = "potential-report"
HTML, QUALITY = "potential.html", "quality.json"


def page(qualities: Mapping[str, Mapping[str, Any]], drawn: Mapping[str, Sequence[Strip]], meta: str) -> str:
    """The whole page, one part a potential.

    Args:
        qualities: by name, what was measured of each potential; `disagreement` of all stands with the last.
        drawn: the strips of each.
        meta: what they were measured on.
    """
    level = 2 if len(qualities) == 1 else 3
    parts = [{"name": name, "body": _part(quality, drawn[name], level)} for name, quality in qualities.items()]
    title = " and ".join(qualities) if len(qualities) < 3 else f"{len(qualities)} potentials"
    return html.render("potential", {"title": title, "meta": meta, "parts": parts})


def section(path: Path) -> Markup:
    """The body of a finished potential report, one part a potential, for another page that has bkrl's style.

    Raises:
        InputError: no complete potential report is there, or one of its files was changed.
    """
    document = read_json(Run.open(path, STAGE).file(QUALITY))
    body = Markup("")
    for name, quality in document["potentials"].items():
        drawn = [Strip(**one) for one in quality["strips"]]
        body += Markup("<h4>{}</h4>").format(name) + _part(quality, drawn, level=4)
    return body


def _part(quality: Mapping[str, Any], drawn: Sequence[Strip], level: int) -> Markup:
    svgs = [Markup(strip.svg()) for strip in drawn]  # ours; the texts of others in them are escaped
    return html.fragment("quality", {"quality": quality, "strips": svgs, "level": level})
