"""The report in a real browser: quiet, closed to the network, readable at every size, usable without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from bkrl.core.config import ReportConfig
from bkrl.core.reporter import Reporter
from bkrl.stages import report
from tests import browser
from tests.report.synthetic import KEY, study, train_rs

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.MISSING)

SECTIONS = ("summary", "results", "agents", "labels", "potentials", "costs", "provenance", "method")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    runs = study(root, range(1, 6))
    forms = {"advice": "the optimal policy stays within reach", "additive": "none: another task is learnt"}
    for form, guarantee in forms.items():
        for seed in range(1, 6):
            facts = {"form": form, "guarantee": guarantee}
            name = f"{form}-s{seed}"
            runs.append(
                train_rs(root, "bk-pref", seed, 3e5, potential=root / "rm-pref", name=name, shaping=form, facts=facts)
            )
    runs += [train_rs(root, alg, seed, 4e5, KEY) for alg in ("ppo", "rnd") for seed in (1, 2)]
    return report.run(ReportConfig(runs=tuple(runs), out=root / "report"), Reporter()).file("report.html")


@pytest.fixture(scope="module")
def page(html: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_it_is_quiet_and_asks_for_nothing(page: browser.Page, html: Path):
    page.open(html)
    page.run("document.querySelectorAll('details').forEach((d) => d.open = true)")
    page.wait("[...document.images].every((i) => (i.loading = 'eager', i.complete))")
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(("data:", "about:"))] == [html.resolve().as_uri()]


def test_every_section_shows_its_content(page: browser.Page, html: Path):
    page.open(html)
    for name in SECTIONS:
        height, text = page.run(
            f"(() => {{ const s = document.getElementById('{name}'); return [s.offsetHeight, s.innerText.length]; }})()"
        )
        assert height > 80, name
        assert text > 60, name
    drawn = page.run(
        "[...document.querySelectorAll('[id*=line] path')].filter((p) => p.getClientRects().length)"
        ".map((p) => p.getTotalLength())"
    )
    assert len(drawn) > 10
    assert min(drawn) > 100
    assert page.run("[...document.images].filter((i) => !i.naturalWidth && i.loading !== 'lazy').length") == 0
    text = page.run("document.body.innerText")
    assert "bk-pref (additive) · no guarantee" in text
    assert "none: another task is learnt" in text
    assert "bk-pref (advice)" in text


@pytest.mark.parametrize("width", [390, 1280, *(pytest.param(one, marks=pytest.mark.slow) for one in (320, 768))])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_screen_in_both_themes(page: browser.Page, html: Path, width: int, dark: bool):
    page.open(html, width, 800, dark)
    page.run("document.querySelectorAll('details').forEach((d) => d.open = true)")
    assert page.run("document.scrollingElement.scrollWidth") <= width
    assert page.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)"
    )
    if width in (390, 1280):
        assert page.run(browser.CONTRAST) == []
        small = page.run(
            "[...document.querySelectorAll('.plot span')].filter((e) => e.checkVisibility()"
            " && parseFloat(getComputedStyle(e).fontSize) < 11).length"
        )
        assert small == 0


def test_every_control_has_a_name_and_headings_are_in_order(page: browser.Page, html: Path):
    page.open(html)
    assert page.run(browser.NAMELESS) == []
    levels = page.run("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map((h) => +h.tagName[1])")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels)), levels


def test_curves_are_read_by_keyboard_and_pointer(page: browser.Page, html: Path):
    page.open(html)
    page.run("document.querySelector('figure.curves .area').focus()")
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))")
    assert page.run("document.querySelector('figure.curves .at').textContent") == "at 1M steps"
    values = page.run("[...document.querySelectorAll('figure.curves')][0].querySelectorAll('output')[0].value")
    assert values.startswith("100 % (")
    page.run(
        "(() => { const a = document.querySelector('figure.curves .area'), b = a.getBoundingClientRect();"
        " const there = {clientX: b.left + b.width / 2, clientY: b.top + 5, bubbles: true};"
        " a.dispatchEvent(new PointerEvent('pointermove', there)); })()"
    )
    assert page.run("document.querySelector('figure.curves .at').textContent") == "at 500k steps"
    page.run("document.querySelector('figure.curves .area').dispatchEvent(new PointerEvent('pointerleave'))")
    assert page.run("document.querySelector('figure.curves .at').textContent") == ""


def test_lines_go_and_come(page: browser.Page, html: Path):
    page.open(html)
    line = "document.getElementById('w1-p0-line-1')"
    button = f"{line}.closest('figure').querySelectorAll('.legend button')[1]"
    assert page.run(f"{line}.getClientRects().length")
    page.run(f"{button}.click()")
    assert not page.run(f"{line}.getClientRects().length")
    assert page.run(f"{button}.getAttribute('aria-pressed')") == "false"
    page.run(f"{button}.click()")
    assert page.run(f"{line}.getClientRects().length")


def test_long_names_leave_the_line_of_a_legend_to_be_seen(page: browser.Page, html: Path):
    page.open(html, 390, 800)
    button = "document.querySelectorAll('figure.curves .legend button')[0]"
    page.run(f"{button}.childNodes[1].textContent = 'bk-pref (label.model=' + 'very-long-name-'.repeat(20) + ')'")
    wide, high = page.run(
        f"[{button}.querySelector('svg').getBoundingClientRect().width,"
        f" {button}.querySelector('.soft').getBoundingClientRect().height]"
    )
    assert wide > 20
    assert high < 30  # "n = 5" on one line
    assert page.run("document.scrollingElement.scrollWidth") <= 390


def test_long_names_of_envs_in_a_sentence_fit_a_phone(page: browser.Page, html: Path):
    page.open(html, 390, 800)
    page.run("document.querySelector('.findings li span + span').textContent = 'Local_v0@' + 'room_size=5,'.repeat(9)")
    assert page.run("document.scrollingElement.scrollWidth") <= 390


def test_axes_have_names_and_numbers_sort_as_numbers(page: browser.Page, html: Path):
    page.open(html)
    names = page.run(
        "[...document.querySelectorAll('figure.curves')].map((f) => f.querySelector('.ylabel').textContent)"
    )
    assert set(names) >= {"success rate", "share of runs above τ", "episode return", "episode length (steps)"}
    column = "[...document.querySelectorAll('#agents table.sortable')][1]"
    page.run(f"{column}.tBodies[0].append({column}.tBodies[0].rows[0].cloneNode(true))")
    page.run(f"[...{column}.tBodies[0].rows].forEach((r, i) => {{ r.cells[4].textContent = ['1,000', '200'][i] }})")
    page.run(f"{column}.tHead.rows[0].cells[4].querySelector('button').click()")
    assert page.run(f"[...{column}.tBodies[0].rows].map((r) => r.cells[4].textContent)") == ["200", "1,000"]


def test_tables_sort_and_links_open_what_they_lead_to(page: browser.Page, html: Path):
    page.open(html)
    column = "[...document.querySelectorAll('#env-1 ~ * table.sortable')][0]"
    page.run(f"{column}.tHead.rows[0].cells[2].querySelector('button').click()")
    found = page.run(f"[...{column}.tBodies[0].rows].map((r) => parseFloat(r.cells[2].dataset.value))")
    assert found == sorted(found)
    page.run("location.hash = document.querySelector('#potentials h3 a').getAttribute('href')")
    page.wait("document.querySelector(location.hash).open")


def test_curve_and_table_come_first_and_details_are_folded(page: browser.Page, html: Path):
    page.open(html, 1280, 900)
    top = "Math.round(document.querySelector('{}').getBoundingClientRect().top + scrollY)"
    assert page.run(top.format("figure.curves")) < 900
    assert page.run(top.format("table.results")) < 1800
    assert page.run("document.querySelectorAll('#summary > .findings > li').length") == 3
    shown = page.run("[...document.querySelectorAll('#provenance .node')].filter((e) => e.checkVisibility()).length")
    assert shown == 0
    assert page.run("document.querySelectorAll('#provenance .node').length") > 40
    assert "no difference shown" in page.run("document.querySelector('table.results').innerText")


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_navigation_is_whole_and_a_table_that_goes_on_has_a_shadow(page: browser.Page, html: Path, width: int):
    page.open(html, width, 800)
    edges = page.run("[...document.querySelectorAll('nav a, nav button')].map((e) => e.getBoundingClientRect().right)")
    assert len(edges) >= 8
    assert max(edges) <= width
    assert page.run("getComputedStyle(document.querySelector('.scroll')).backgroundAttachment") == (
        "local, local, scroll, scroll"
    )


def test_a_line_under_another_is_named(page: browser.Page, html: Path):
    """The shuffled control of this study learns exactly as plain PPO does."""
    page.open(html)
    told = page.run("[...document.querySelectorAll('.legend .same')].map((e) => e.textContent)")
    assert "same line as ppo" in told
