"""The label browser: what it holds, that nothing a model wrote becomes markup, and that it works in a browser."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from bkrl.cli.main import run_command
from bkrl.core.errors import InputError, UsageError
from bkrl.data.dataset import Dataset
from bkrl.labelers import closed, code
from bkrl.labelers.audit import conduct
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.plan import Plan
from bkrl.llm.protocol import chances
from bkrl.report.pages import html, labels_data
from bkrl.report.pages import labels as labels_page
from bkrl.report.plots import pictures
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run
from tests import browser
from tests.labelers import runs
from tests.labelers.scripted import asker

HOSTILE = '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=1"><!-- \u2028 "\'& {{ 7*7 }}'
driven = pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.MISSING)


def judge(request: Any) -> str:
    """A, B, tie or something hostile, as the prompt's hash will have it; sometimes it only sees the position."""
    number = hashlib.sha256(request.messages[1].text.encode()).digest()[0] + request.sample
    choice = ["A", "B", "A", "tie", "B"][number % 5]
    thoughts = f"{HOSTILE} needle-{number}" if number % 3 == 0 else "because"
    return HOSTILE if number % 11 == 0 else json.dumps({"thoughts": thoughts, "choice": choice})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return runs.babyai(tmp_path_factory.mktemp("data") / "d", episodes=12, length=60)


def judged(path: Path, dataset: Dataset, number: int) -> Path:
    """A run of so many pairs, with its page."""
    run = runs.pref_run(path, dataset, judge, number)
    labels_page.write(run)
    return run


@pytest.fixture(scope="module")
def pref(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judged(tmp_path_factory.mktemp("pref") / "run", dataset, 210)


@pytest.fixture(scope="module")
def swapped(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = runs.pref_run(tmp_path_factory.mktemp("swap") / "run", dataset, judge, 60, swap="both", votes=2)
    conduct(path, lambda text: "1", n=30)
    return path


@pytest.fixture(scope="module")
def goal(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def suggest(request: Any) -> str:
        odd = len(request.messages[1].text) % 2
        return json.dumps({"goals": ["Go to the ball", "open box"] if odd else ["go to a ball"]})

    return runs.goal_run(tmp_path_factory.mktemp("goal") / "run", dataset, suggest, 40)


@pytest.fixture(scope="module")
def program(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def write(request: Any) -> str:
        body = f"def potential(observations, actions, valid):\n    # {HOSTILE}\n    return {len(request.messages)}\n"
        return "nothing yet" if len(request.messages) == 2 else f"```python\n{body}```"

    def check(source: str, windows: Any) -> code.Checked:
        values = np.arange(len(windows)) * 1.0
        return code.Checked(values, {HOSTILE[:9]: values})

    return runs.code_run(tmp_path_factory.mktemp("code") / "run", dataset, write, check, 3)


class Structure(HTMLParser):
    """Elements, scripts and their texts, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: dict[str, str] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = dict(attrs).get("id") or "code" if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.scripts[self._open] = self.scripts.get(self._open, "") + data


@pytest.mark.parametrize("name", ["pref", "swapped", "goal", "program"])
def test_a_page_is_one_file_whose_only_markup_and_script_are_ours(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(name)
    if name == "pref":
        text = (run / labels_page.PAGE).read_text()
    else:
        text = labels_page.write(run, tmp_path / "page.html").read_text()
        assert labels_page.write(run, tmp_path / "again.html").read_text() == text, "the same labels, the same bytes"
    found = Structure(text)
    data = [tag for tag in found.scripts if tag != "code"]
    assert found.tags.count("script") == 1 + len(data)
    assert not {"img", "iframe", "object", "form action"} & set(found.tags)
    assert not [key for key, _ in found.attributes if key.startswith("on") or key in ("src", "action")]
    links = [value for key, value in found.attributes if key == "href" and value]
    assert all(value.startswith(("#", "data:")) for value in links)
    assert not re.search(r"url\(|@import|https?://", text.replace("http-equiv", ""))
    for tag in data:
        json.loads(found.scripts[tag])
    assert "default-src 'none'" in text


def test_the_data_says_what_the_tables_say(swapped: Path, dataset: Dataset) -> None:
    page = labels_page.build(Run.open(swapped), dataset)
    head, chunks = json.loads(page["data"][0][1]), [json.loads(text) for _, text in page["data"][1:]]
    rows = labels_page.labels_of(Run.open(swapped))
    responses = {row["request_id"]: row for row in labels_page.responses_of(Run.open(swapped))}
    records = [record for chunk in chunks for record in chunk]
    lines, fields = head["book"]["lines"], head["fields"]
    assert len(records) == len(rows) == 60
    for row, record, label in zip(rows, records, head["index"]["label"]):
        assert label == row["label"]
        for side, segment in zip("ab", record["segments"]):
            start = dataset.first_row[row[f"{side}_episode_id"]] + row[f"{side}_start"]
            assert [lines[step[1]] for step in segment] == [dataset.caption(start + i) for i in range(4)]
        exchanges = [dict(zip(fields, packed)) for vote in record["votes"] for packed in vote[4]]
        assert [one["id"] for one in exchanges] == row["request_ids"]
        for one in exchanges:
            prompt = [
                {"role": lines[role], "content": "\n".join(lines[i] for i in head["book"]["texts"][text])}
                for role, text in head["book"]["prompts"][one["prompt"]]
            ]
            assert prompt == json.loads(responses[one["id"]]["prompt"])
            assert one["reply"] == responses[one["id"]]["reply"]
        assert sum(vote[2] == "A" for vote in record["votes"]) == row["votes_a"]


@pytest.mark.parametrize("words", [False, True], ids=["log-probabilities", "words"])
@pytest.mark.parametrize("settings", [{}, {"criteria": "overall,safety"}, {"compare": "points"}])
def test_votes_of_closed_questions_are_those_that_made_the_label(
    dataset: Dataset, tmp_path: Path, settings: dict[str, str], words: bool
) -> None:
    """The page read a second criterion's answers as those of the other order, and points as unread."""

    def say(request: Any) -> str:
        odds = hashlib.sha256(request.messages[1].text.encode()).digest()[0] - 128
        if words:
            return request.choices[odds < 0]
        return chances(dict(zip(request.choices, (0.0, -odds / 50.0), strict=True)))

    config = LabelConfig(dataset.path, "pref", llm="openai:x", ask="closed", num=20, length=3, **settings)  # type: ignore[arg-type]
    plan = Plan.of(config, dataset)
    with asker(say) as session:
        done = closed.CLOSED["pref"].label(plan, session)
    assert done.responses is not None
    choices = done.more["choices.parquet"].to_pylist()
    head, chunks = labels_data.of_pairs(
        dataset, plan.card, done.table, done.responses, {}, by_rules=False, choices=choices
    )
    records = [record for chunk in chunks for record in chunk]
    odds = {(row["about"], row["request_ids"][0]): row["logprobs"] for row in choices}
    for row, record, agreement in zip(done.table, records, head["index"]["agreement"], strict=True):
        votes = record["votes"]
        assert [packed[0] for vote in votes for packed in vote[4]] == row["request_ids"]
        if settings.get("compare") != "points":
            shown = [sum(vote[2] == one for vote in votes) for one in ("A", "B", "tie")]
            assert shown == [row["votes_a"], row["votes_b"], row["votes_tie"]]
            assert [vote[0] for vote in votes] == [False, True] * (len(votes) // 2)
            continue
        assert agreement is None
        for vote, segment in zip(votes, "AABB"):
            yes, no = odds[str(row["pair_id"]), vote[4][0][0]]
            assert vote[:4] == [None, 0, None, f"{segment} alone: {'yes' if yes > no else 'no' if yes < no else 'tie'}"]


def test_every_picture_and_tile_is_there_once(dataset: Dataset) -> None:
    views = dataset.observations[:50].repeat(2, axis=0)
    packed = pictures.pack("babyai", views)
    assert packed is not None
    assert len(set(packed.views)) == len(packed.views) == len(np.unique(views.reshape(100, -1), axis=0))
    assert packed.number[0::2].tolist() == packed.number[1::2].tolist()
    assert all(len(view) == 49 for view in packed.views)
    unseen = packed.views[packed.number[0]][6::7]
    assert len(set(unseen[:6])) == 1, "the column that is never seen looks the same everywhere"
    assert pictures.pack("other", views) is None


def test_pictures_hold_the_env_the_right_way_up() -> None:
    from bkrl.envs.babyai.constants import BALL, EMPTY, RED
    from bkrl.envs.babyai.pictures import tile_maps

    view = np.zeros((1, 7, 7, 3), np.uint8)
    view[..., 0] = EMPTY
    view[0, 5, 1] = (BALL, RED, 0)  # two columns right of the agent, five rows ahead of it
    maps, tiles = tile_maps(view)
    assert np.argwhere(maps[0] == maps[0, 1, 5]).tolist() == [[1, 5]]
    assert np.argwhere(maps[0] == maps[0, 6, 3]).tolist() == [[6, 3]], "the agent"
    ball = tiles[maps[0, 1, 5]]
    assert ball[8, 8].tolist() == [255, 0, 0, 255]


def test_crafter_is_drawn_too() -> None:
    from bkrl.envs.crafter import layout

    row = np.zeros((1, layout.SIZE), np.uint8)
    row[:, layout.VIEW] = layout.CELL["grass"]
    row[:, layout.PLAYER_CELL] = layout.CELL["player"]
    row[:, 8] = layout.CELL["zombie"]
    left, right = row.copy(), row.copy()
    right[:, layout.FACING] = 1
    packed = pictures.pack("crafter", np.concatenate([left, right, left]))
    assert packed is not None
    assert (packed.rows, packed.columns) == (7, 9)
    assert packed.number.tolist() == [0, 1, 0], "facing shows"
    assert len(set(packed.views[0])) == 3


def test_no_text_ends_the_data_it_stands_in() -> None:
    @hypothesis.given(st.text() | st.text("<>/!-&'\"\\scriptSCRIPT\u2028\u2029\0"))
    def check(text: str) -> None:
        packed = html.embed([text])
        assert json.loads(packed) == [text]
        assert not {"<", ">", "&"} & set(packed)

    check()


def test_quality_for_other_pages(pref: Path, program: Path, swapped: Path) -> None:
    section = labels_page.quality_section(Run.open(pref))
    assert "agreement with the rules annotator" in section
    assert 'class="forest"' in section
    assert "Cohen" in labels_page.quality_section(Run.open(swapped))
    why = labels_page.quality_section(Run.open(program))
    assert "chosen: the best score" in why
    assert "no ```python block" in why


@pytest.mark.parametrize(
    "content",
    [
        "<script>\n{}\n",
        pytest.param('{"pair_id": 0, "choice": "A", "swapped": false, "labels": "x"}\n', marks=pytest.mark.slow),
    ],
)
def test_an_audit_that_cannot_be_used_hides_no_figures(swapped: Path, tmp_path: Path, content: str) -> None:
    run = shutil.copytree(swapped, tmp_path / "run")
    whole = labels_page.quality_section(Run.open(run))
    (run / "audit").mkdir(exist_ok=True)
    (run / "audit" / "she.jsonl").write_text(content)
    shown = labels_page.quality_section(Run.open(run))
    assert shown.startswith(whole.rstrip())
    assert "she.jsonl" in shown
    assert labels_page.write(run, tmp_path / "l.html").is_file()


def test_a_page_never_overwrites_the_run_it_shows(swapped: Path, tmp_path: Path) -> None:
    for name in ("preferences.parquet", "manifest.json"):
        with pytest.raises(UsageError, match="part of the run"):
            labels_page.write(swapped, swapped / name)
    with pytest.raises(UsageError, match="folder"):
        labels_page.write(swapped, tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        labels_page.write(swapped, tmp_path / "none" / "x.html")
    labels_page.write(swapped)
    Run.open(swapped)


def test_links_lead_to_the_page_of_episodes_whatever_the_run_is_called(swapped: Path, tmp_path: Path) -> None:
    run = shutil.copytree(swapped, tmp_path / "run #1, 50% of φ?")
    page = labels_page.write(run, tmp_path / "page.html", dataset_at(Run.open(swapped))).read_text()
    (linked,) = re.findall(r'"episodes":{"page":"([^"]+)"', page)
    assert not re.search(r"[#?%](?![0-9A-F]{2})", linked)
    assert (tmp_path / unquote(linked)).is_file()


def test_another_dataset_is_refused(swapped: Path, tmp_path: Path) -> None:
    runs.babyai(tmp_path / "other", episodes=2, length=9)
    with pytest.raises(InputError, match="another dataset"):
        labels_page.write(swapped, tmp_path / "x.html", tmp_path / "other")


def test_the_commands(swapped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str, code: int = 0) -> str:
        assert run_command(list(words)) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    out = tmp_path / "page.html"
    assert said("label", "view", str(swapped), "--out", str(out)).strip() == str(out)
    assert json.loads(said("label", "view", str(swapped), "--out", str(out), "--json")) == {"path": str(out)}
    assert out.stat().st_size > 100_000
    shown = said("show", str(swapped))
    assert "answer follows the position" in shown
    assert "quality:" not in shown, "the table says it once"
    assert "There is no run" in said("label", "view", str(tmp_path / "none"), code=3)
    assert "--auditor" in said("label", "audit", str(swapped), "--auditor", "../x", code=2)
    assert "collect" in said("label", "view", str(Run.open(swapped).config["inputs"]["dataset"]["path"]), code=3)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


ARTICLES = "document.querySelectorAll('#browse article').length"
TOLD = "document.getElementById('told').textContent"


def choose(page: browser.Page, name: str, value: str) -> str:
    page.run(
        f"(() => {{ const field = document.forms.filters.elements[{name!r}]; field.value = {value!r}; "
        "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    return str(page.run(TOLD))


@driven
@pytest.mark.parametrize("number", [210, pytest.param(2100, marks=pytest.mark.slow)])
def test_many_pairs_can_be_paged_filtered_and_walked_through(
    page: browser.Page, pref: Path, dataset: Dataset, tmp_path: Path, number: int
) -> None:
    pref = pref if number == 210 else judged(tmp_path / "run", dataset, number)
    page.open(pref / labels_page.PAGE)
    assert page.run(TOLD) == f"1 to 20 of {number:,} pairs"
    assert page.run(ARTICLES) == 20
    page.press("n")
    assert page.run(TOLD) == f"21 to 40 of {number:,} pairs"
    page.press("p")
    page.press("j")
    page.press("j")
    assert page.run("document.activeElement.getAttribute('aria-labelledby')") == "item-1"
    page.press("k")
    page.press("o")
    page.wait("document.querySelectorAll('#browse article')[0].querySelector('pre.reply') !== null")
    rows = labels_page.labels_of(Run.open(pref))
    ties = sum(row["label"] == 0.5 for row in rows)
    assert choose(page, "label", "tie").endswith(f"of {ties:,} pairs, {number:,} in all")
    none = sum(row["label"] is None for row in rows)
    assert choose(page, "label", "none").endswith(f"of {none:,} pairs, {number:,} in all")
    assert choose(page, "status", "labelled") == f"None of {number:,} pairs is like that."
    page.run("document.forms.filters.reset()")
    page.wait(f"{TOLD} === '1 to 20 of {number:,} pairs'")
    replies = {row["request_id"]: row["reply"] for row in labels_page.responses_of(Run.open(pref))}
    needle = re.search(r"needle-\d+", " ".join(replies.values()))
    assert needle is not None
    page.run(f"document.forms.filters.elements.text.value = '{needle[0].upper()}'; undefined")
    found = choose(page, "order", "agreement")
    wanted = sum(any(needle[0] in replies[i] for i in row["request_ids"]) for row in rows)
    assert found.endswith(f"of {wanted:,} pairs, {number:,} in all")
    colours = (
        "(() => { const c = document.querySelector('canvas'); "
        "return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size; })()"
    )
    page.wait(f"{colours} > 3")
    unharmed(page)


@driven
def test_disagreement_votes_and_people_are_shown(page: browser.Page, swapped: Path) -> None:
    page.open(labels_page.write(swapped), width=400, dark=True)
    options = page.run("[...document.forms.filters.elements.disagreement.options].map((one) => one.value)")
    assert options == ["", "differs", "biased", "rules", "gain", "person"]
    facts = Run.open(swapped).facts["quality"]
    told = choose(page, "disagreement", "biased")
    assert "in all" in told
    assert facts["position_bias"]["rate"] > 0
    page.press("j")
    page.press("o")
    page.wait("document.querySelector('#browse article .exchange pre') !== null")
    text = page.run("document.querySelector('#browse article').textContent")
    assert "B shown first, time 2" in text
    assert "people: " in page.run("document.getElementById('list').textContent")
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out on a phone"
    assert page.run("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    unharmed(page)


@driven
def test_a_segment_opens_in_its_episode_step_by_step(page: browser.Page, goal: Path) -> None:
    page.open(labels_page.write(goal))
    page.wait("document.querySelector('#browse article a') !== null")
    words = page.run("document.querySelector('#browse article a').textContent")
    [episode, first, _] = map(int, re.findall(r"\d+", words))
    caption = page.run("document.querySelector('#browse article').textContent")
    page.run("document.querySelector('#browse article a').click()")
    page.wait("document.getElementById('place')?.textContent.startsWith('step ')")
    assert page.run("document.getElementById('place').textContent").startswith(f"step {first} of ")
    assert page.run("document.getElementById('episode').value") == str(episode)
    assert page.run("document.getElementById('caption').textContent") in caption
    unharmed(page)


@driven
def test_goals_lead_to_their_moments(page: browser.Page, goal: Path) -> None:
    page.open(labels_page.write(goal))
    library = page.run("[...document.querySelectorAll('button.goal')].map((one) => one.textContent)")
    assert sorted(library) == ["go to the ball", "open box"] or sorted(library) == ["go to a ball", "open box"]
    page.run("document.querySelectorAll('button.goal')[1].click()")
    boxes = sum(row["goal"] == "open box" for row in labels_page.labels_of(Run.open(goal)))
    assert f"of {boxes} moments with the goal “open box”, 40 in all" in page.run(TOLD)
    unharmed(page)


@driven
def test_programs_are_shown_with_what_was_said_about_them(page: browser.Page, program: Path) -> None:
    page.open(labels_page.write(program))
    assert page.run(ARTICLES) == 3
    page.press("j")
    page.press("o")
    text = page.run("document.querySelector('#browse article').textContent")
    assert "no ```python block" in text
    assert HOSTILE.split("\u2028")[0].strip() in page.run("document.querySelectorAll('#browse article')[1].textContent")
    unharmed(page)


def unharmed(page: browser.Page) -> None:
    assert page.run("window.pwned === undefined")
    assert page.problems == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests), page.requests
