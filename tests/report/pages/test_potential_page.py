"""The page of a potential report in a real browser: the frame of every page, at every size, in both themes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter, Update
from bkrl.inspect import summary, worth
from bkrl.report.pages.potential import HTML
from bkrl.stages import inspect
from tests import browser

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.MISSING)


class Watched(Reporter):
    """Remembers how far a progress came, of how much."""

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "steps") -> Iterator[Update]:
        def update(completed: float, note: str = "") -> None:
            self.came = (completed, total)

        yield update


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    watched = Watched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worth, "PAPER", ())
        result = inspect.run(
            Path("sample:bk-code-minigrid"),
            watched,
            out=tmp_path_factory.mktemp("potential") / "report",
            against=[Path("sample:bk-goal-minigrid")],
            layouts=1,
        )
    assert watched.came == (4, 4)
    return result.file(HTML)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_potentials_of_two_families_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    crafter = Path("sample:bk-code-crafter")
    with pytest.raises(InputError, match="of one family of envs"):
        inspect.run(Path("sample:bk-code-minigrid"), Reporter(), out=tmp_path / "report", against=[crafter])
    assert not (tmp_path / "report").exists()


def test_a_mean_over_some_tasks_says_over_which() -> None:
    def part(*rhos: float | None) -> dict[str, object]:
        return {"tasks": [{"play_rho": None if rho is None else {"rho": rho, "constant": False}} for rho in rhos]}

    assert summary._tasks(part(0.5, 0.1)) == "tasks"
    assert summary._tasks(part(0.5, None)) == "the 1 of 2 tasks where it has one in play"
    assert summary._tasks(part(None, None)) == "tasks"  # then the mean is over all states


def test_the_tasks_in_which_it_is_constant_count_and_are_counted() -> None:
    known, flat, unknown = ({"rho": rho, "constant": one} for rho, one in ((0.5, False), (None, True), (None, False)))

    def part(*figures: dict[str, object]) -> dict[str, object]:
        return {"tasks": [{"play_rho": figure} for figure in figures]}

    assert summary._tasks(part(known, flat)) == ("tasks, 1 of 2 counted as 0: Φ is constant there and ranks nothing")
    assert summary._tasks(part(known, flat, unknown)).startswith("the 2 of 3 tasks where it has one in play, 1 of 3")


def test_it_says_where_each_figure_was_measured(html: Path) -> None:
    text = " ".join(html.read_text().split())
    built = "BabyAI-Text-GoToLocal-Pretraining-S20"
    assert (
        f"Measured in BabyAI-GoToLocalS5N2-v0, rooms of 5×5 with two objects, wherever Φ was built (here {built})"
        in text
    )
    assert "In BabyAI-GoToLocalS5N2-v0, rooms of 5×5 with two objects, Φ orders states" in text


def test_two_shares_of_the_dataset_are_told_apart() -> None:
    """67 % of one thing stood above a table that had 20.1 % of another under nearly the same name."""
    segments = {"above": 0.67, "low": 0.6, "high": 0.7, "solved": 20, "failed": 20}
    report = {"ordering": 0.201, "segments": segments, "coverage": 0.5, "env_id": "MiniGrid-DoorKey-5x5-v0"}
    nothing = {"small": None, "paper": None, "note": ""}, {"found": {}, "plan": None}
    told = summary.summary(report, *nothing, "MiniGrid-DoorKey-6x6-v0")
    assert "On the dataset (MiniGrid-DoorKey-6x6-v0), the end of a solved episode lies above other windows 20 %" in told
    assert "The last 10 moments before success lie above 10 moments of failed episodes 67 % of the time" in told


@pytest.mark.parametrize("width", [pytest.param(320, marks=pytest.mark.slow), 390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_screen_in_both_themes(page: browser.Page, html: Path, width: int, dark: bool) -> None:
    page.open(html, width, 800, dark)
    assert page.run("document.scrollingElement.scrollWidth") <= width
    first = "[...document.querySelectorAll('.scroll tbody tr:first-child td:nth-child(3)')]"
    assert all(
        right <= width for right in page.run(f"{first}.map((cell) => cell.getBoundingClientRect().right)")
    )  # the figures, not only the names before them
    assert page.run("[...document.querySelectorAll('.scroll:not([tabindex])')].length") == 0
    assert page.run(browser.CONTRAST) == []
    assert page.run(browser.NAMELESS) == []
    levels = page.run("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map((h) => +h.tagName[1])")
    assert all(b - a <= 1 for a, b in pairwise(levels)), levels
    assert page.problems == []


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_a_figure_beside_a_long_term_has_room(page: browser.Page, html: Path, width: int) -> None:
    """At 1400 px the terms took the whole column, and the figures stood one character a line down the page."""
    page.open(html, width, 800)
    found = "[...document.querySelectorAll('.facts dd')].map((d) => d.getBoundingClientRect().width)"
    widths = page.run(found)
    assert len(widths) > 8
    assert min(widths) > 120


def test_its_theme_changes_and_its_links_lead_somewhere(page: browser.Page, html: Path) -> None:
    page.open(html, dark=False)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.run("document.getElementById('theme').click()")
    assert page.run(ground) != light
    targets = page.run("[...document.querySelectorAll('nav a, a.skip')].map((a) => a.getAttribute('href').slice(1))")
    assert len(targets) == 4
    assert page.run(f"{targets}.every((id) => document.getElementById(id))")
