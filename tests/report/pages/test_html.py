"""Small pieces of the page: pictures are well-formed, numbers read well."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import bkrl
from bkrl.core.reporter import percent, percents
from bkrl.report.pages import html
from bkrl.stats.crossings import StepsRatio
from bkrl.stats.intervals import interval


@pytest.mark.parametrize("bound", ["", "at least", "at most", "unknown"])
def test_forest_stays_inside_its_box(bound: str):
    def forest(*ends: float) -> str:
        return str(html.forest(StepsRatio.of(interval(*ends, 8, "bootstrap"), bound, (0, 0))))

    root = ElementTree.fromstring(forest(0.01, 0.001, 100.0))
    circle = next(element for element in root.iter() if element.tag == "circle")
    assert 0 <= float(circle.attrib["cx"]) <= 120
    assert circle.attrib["class"] == ("open" if bound == "unknown" else "dot")
    assert float(circle.attrib["cx"]) >= float(circle.attrib["r"])  # not cut in half at the end of the axis
    assert ("bar" in forest(0.5, math.nan, math.nan)) == bound.startswith("at")  # of an interval or of an arrow
    assert ("m4 -4" in forest(0.5, math.nan, math.nan)) == (bound == "at most")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), ("", "–"), (True, "yes"), (1234567, "1,234,567"), (0.123456, "0.1235"), (123456.7, "123,457")],
)
def test_figures(value: object, text: str):
    assert html.figure(value) == text


def test_json_for_attributes_has_no_nan():
    assert html.compact_json({"a": [math.nan, 1 / 3], "b": (1, math.inf)}) == '{"a":[null,0.3333],"b":[1,null]}'


def test_percentages_have_one_form() -> None:
    assert [percent(0.847), percent(0.847, 1), percent(0), percent(None), percent(math.nan)] == [
        *("85 %", "84.7 %", "0 %", "–", "–")
    ]
    assert percents(0.714, 0.92) == "71 to 92 %"
    assert percents(math.nan, math.nan) == percents(None, None) == "–"
    for folder in ("report", "labelers", "stages", "rl"):
        for path in (Path(bkrl.__file__).parent / folder).rglob("*.py"):
            assert not re.search(r"\.\d%}", path.read_text()), f"{path.name} writes percentages in a form of its own"


def test_no_line_ends_before_a_percent_sign():
    assert html.tight("80 % of 5, 71 to 92 %") == "80\u00a0% of 5, 71 to 92\u00a0%"
