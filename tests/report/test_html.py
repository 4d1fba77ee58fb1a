"""Small pieces of the page: highlighting loses no character, pictures are well-formed, numbers read well."""

from __future__ import annotations

import html as stdlib_html
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

import bkrl
from bkrl.core.reporter import percent, percents
from bkrl.report.model import Ratio
from bkrl.report.pages import html

PIECES = some.sampled_from(
    [
        "def f(x):\n",
        "    return ",
        "'text'",
        '"""',
        "# note\n",
        "1.5e3",
        "<b>",
        "&",
        "\t",
        "\n",
        "if",
        "é",
        "\\",
        "(",
        "'",
        "\x0c",
        "\u2028",
        "\r",
    ]
)


def plain(markup: str) -> str:
    """The text a browser would show: our spans removed, entities decoded."""
    return stdlib_html.unescape(re.sub(r'<span class="[csnk]">|</span>', "", markup))


@given(some.lists(PIECES, max_size=12).map("".join))
def test_highlighting_loses_nothing_and_escapes_all(source: str):
    marked = str(html.python(source))
    assert plain(marked) == source
    assert not re.search(r"<(?!span class=\"[csnk]\">|/span>)", marked)


def test_highlighting_marks_what_it_should():
    marked = str(html.python('def f(x):  # why\n    return 2 if x == "a" else None\n'))
    for kind, text in (("k", "def"), ("c", "# why"), ("k", "return"), ("n", "2"), ("s", "&#34;a&#34;"), ("k", "None")):
        assert f'<span class="{kind}">{text}</span>' in marked


@pytest.mark.parametrize("bound", ["", "at least", "at most", "unknown"])
def test_forest_stays_inside_its_box(bound: str):
    def forest(*ends: float | None) -> str:
        return str(html.forest(Ratio(*ends, ends[1] is not None, "bootstrap", 8, bound, "", (0, 0))))

    root = ElementTree.fromstring(forest(0.01, 0.001, 100.0))
    circle = next(element for element in root.iter() if element.tag == "circle")
    assert 0 <= float(circle.attrib["cx"]) <= 120
    assert circle.attrib["class"] == ("open" if bound == "unknown" else "dot")
    assert float(circle.attrib["cx"]) >= float(circle.attrib["r"])  # not cut in half at the end of the axis
    assert ("bar" in forest(0.5, None, None)) == bound.startswith("at")  # of an interval or of an arrow
    assert ("m4 -4" in forest(0.5, None, None)) == (bound == "at most")


def test_course_runs_from_top_at_0_to_bottom_at_minus_1():
    root = ElementTree.fromstring(str(html.course([0.0, -0.5, -1.0], 'Φ of "<x>"')))
    line = next(element for element in root.iter() if element.tag == "polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights == [4, 32, 60]
    assert root.attrib["aria-label"] == 'Φ of "<x>"'


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
    for folder in ("report", "labelers", "stages", "rl"):
        for path in (Path(bkrl.__file__).parent / folder).rglob("*.py"):
            assert not re.search(r"\.\d%}", path.read_text()), f"{path.name} writes percentages in a form of its own"


def test_no_line_ends_before_a_percent_sign():
    assert html.tight("80 % of 5, 71 to 92 %") == "80\u00a0% of 5, 71 to 92\u00a0%"
