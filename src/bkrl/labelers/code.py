"""BK-Code: a program that says how promising a situation is, written in conversation.

Each round asks for a program and checks it. A failing one is answered with the error, a working one with its values on
situations from the dataset and a request to improve it. Every candidate is kept and measured on the same situations, of
episodes that no feedback speaks of; the best is chosen, not the last. `votes` conversations run independently.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.activity import doing
from bkrl.core.errors import BkrlError
from bkrl.core.seeds import generator
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Windows
from bkrl.labelers.answers import Unparsed, parse_program
from bkrl.labelers.asking import Responses, Sampling, turns
from bkrl.labelers.material import A_SEGMENT, EnvCard, SegmentText, draw_segments, layout_text, rows_text
from bkrl.labelers.plan import LENGTH, LabelResult, Plan, Variant
from bkrl.labelers.quality import of_programs
from bkrl.llm.protocol import NOT_ASKED, Exchange, Message, Request
from bkrl.llm.session import AskSession
from bkrl.sandbox.advice import CodeTable
from bkrl.sandbox.pool import Sandbox, probation
from bkrl.text.mission_words import MissionWords

SITUATIONS = 600
EXTRA = 200
SHOWN = 4
FAILURES = 4
"""A conversation ends after this many failing programs in a row."""
LONGEST_REPEATED = 20_000
"""A reply without a program is shown to its writer again up to so many characters."""
LEAST_SUCCESSES = 5
"""Fewer successes than this say nothing about order."""


@dataclass(frozen=True)
class Checked:
    """What came of running a program on windows: values (B,) and components (each (B,)), or an error in words."""

    values: NDArray[np.float64] | None
    components: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    error: str = ""


Checker = Callable[[str, Windows], Checked]
"""Runs a program's source on windows in a sandbox; never raises for anything the program does."""


@dataclass(frozen=True)
class Validation:
    """The fixed situations on which every candidate is run.

    rows: (B,) the current row of each; windows: the histories that end there; successes: (B,) moments just after a
    success; shown: (B,) situations that feedback may speak of; measured: (B,) those that candidates are compared on.
    """

    rows: NDArray[np.int64]
    windows: Windows
    successes: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    measured: NDArray[np.bool_]


@dataclass(frozen=True)
class Candidate:
    """One program that was written, with what its check said."""

    conversation: int
    round: int
    program: str | None
    checked: Checked
    exchange: Exchange
    repeated: bool = False

    @property
    def status(self) -> str:
        """ok, failed (the program), repeated (word for word), unparsed (the reply), or why there was no reply."""
        if self.repeated:
            return "repeated"
        if self.program is not None:
            return "failed" if self.checked.error else "ok"
        return "unparsed" if self.exchange.status == "ok" else self.exchange.status


@dataclass(frozen=True)
class Example(SegmentText):
    """A situation as it stands in a prompt: what led there, and what a program made of it."""

    value: float = 0.0
    components: tuple[tuple[str, float], ...] = ()


def validation_set(dataset: Dataset, horizon: int, seed: int) -> Validation:
    """Situations spread evenly over checkpoints and episodes, ends of episodes, and moments just after a success.

    A success is a reward of at least half the dataset's largest: the end of a solved BabyAI episode, an achievement in
    Crafter. It is used to compare programs, never shown as such. Half of the episodes are for feedback, the others
    for measuring; where successes are too few for that, all situations serve both.
    """
    rng = generator(seed, "label", "validation")
    segments = draw_segments(dataset, SITUATIONS, min(horizon, int(dataset.lengths.max())), rng)
    spread = np.array([dataset.rows(segment)[-1] for segment in segments])
    ends = dataset.first_row + dataset.lengths
    largest = float(dataset.rewards.max())
    after = np.flatnonzero(dataset.rewards >= 0.5 * largest) + 1 if largest > 0 else np.zeros(0, np.int64)
    some = [rng.permutation(rows)[:EXTRA] for rows in (ends, after)]
    rows = np.unique(np.concatenate([spread, *some]))
    successes = np.isin(rows, after)
    half = rng.permutation(dataset.num_episodes) < dataset.num_episodes // 2
    shown = half[dataset.episode_of_row[rows]]
    if (successes & ~shown).sum() < LEAST_SUCCESSES or not shown.any():
        shown = np.ones(len(rows), bool)
        return Validation(rows, dataset.windows(rows, horizon), successes, shown, shown)
    return Validation(rows, dataset.windows(rows, horizon), successes, shown, ~shown)


def code_prompt(
    card: EnvCard, layout: str, horizon: int, examples: list[SegmentText] | list[Example]
) -> list[tuple[str, str]]:
    """The turns that open a conversation. `layout`: what the integers of an observation mean, in words."""
    return card.prompts.render("code", world=card, layout=layout.strip(), horizon=horizon, examples=examples)


class Writer:
    """Asks for programs and runs each on the same windows, one at a time, because a program's time is limited."""

    def __init__(self, session: AskSession, sampling: Sampling, windows: Windows, check: Checker) -> None:
        self.session, self.sampling, self.windows, self.check = session, sampling, windows, check
        self._checking = asyncio.Lock()

    async def ask(
        self, messages: tuple[Message, ...], number: int, round_number: int, known: Collection[str] = (), drawn: int = 0
    ) -> tuple[Candidate, str]:
        """Ask once, as conversation `number`: the candidate, and the reply as it may be shown to its writer again. A
        program of `known` is not run again. `drawn`: how many samples of the answer earlier rounds have had.
        """
        exchange = await self.session.answer(self.sampling.request(messages, None, drawn + number))
        program = Unparsed(exchange.status) if exchange.answer is None else parse_program(exchange.answer)
        if isinstance(program, Unparsed):
            checked = Checked(None, error=program.reason)
            return Candidate(number, round_number, None, checked, exchange), (exchange.answer or "")[:LONGEST_REPEATED]
        said = f"```python\n{program.strip()}\n```"
        if program in known:
            return Candidate(number, round_number, program, Checked(None), exchange, repeated=True), said
        async with self._checking:  # beside the event loop, where replies of other conversations arrive
            checked = await asyncio.to_thread(self.check, program, self.windows)
        return Candidate(number, round_number, program, checked, exchange), said


def opening_of(plan: Plan, validation: Validation) -> tuple[Message, ...]:
    """The turns that open a conversation, with some of the situations that may be shown."""
    shown = [_situation(plan.dataset, plan.card, validation, i) for i in _some(np.flatnonzero(validation.shown))]
    return turns(code_prompt(plan.card, layout_text(plan.card), validation.windows.horizon, shown))


def write_programs(session: AskSession, plan: Plan, validation: Validation, check: Checker) -> list[Candidate]:
    """Hold `plan.votes` conversations, at most `plan.num` rounds each; returns all candidates in order."""
    opening, card = opening_of(plan, validation), plan.card
    writer = Writer(session, plan.sampling, validation.windows, check)
    asked = 0

    async def converse(number: int) -> list[Candidate]:
        nonlocal asked
        messages, failures = opening, 0
        candidates: list[Candidate] = []
        working: set[str] = set()
        for round_number in range(plan.num):
            candidate, said = await writer.ask(messages, number, round_number, working)
            asked += 1
            done(asked)
            if candidate.exchange.reason == NOT_ASKED and candidates:
                break
            candidates.append(candidate)
            if candidate.repeated or candidate.exchange.answer is None:
                break
            checked = candidate.checked
            failures = failures + 1 if checked.error else 0
            if failures >= FAILURES:
                break
            if checked.values is None:
                feedback = card.prompts.render("code_error", error=checked.error)
            else:
                working.add(str(candidate.program))
                feedback = feedback_on(card, plan.dataset, validation, checked)
            # Only the last program and what came of it go on: the conversation's length stays bounded.
            messages = (*opening, Message("assistant", said), *turns(feedback))
        return candidates

    jobs: list[Callable[[], Awaitable[list[Candidate]]]] = [partial(converse, n) for n in range(plan.votes)]
    with doing("writing programs", plan.num * len(jobs), "rounds at most") as done:
        held = session.run(jobs, "write programs")
    return [candidate for conversation in held for candidate in conversation]


def measure(validation: Validation, values: NDArray[np.float64], on: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """How good values (B,) are, before any training.

    on: (B,) the situations that count, by default those meant for measuring; coverage: share of them whose value is
    not the most frequent one; levels: number of distinct values; ordering: how often the moment after a success is
    valued above another situation (ties count half), None with too few of them; score: what candidates are compared
    by: ordering (0.5 if unknown) + 0.2 coverage, and -1 for a constant.
    """
    on = validation.measured if on is None else on
    counted, successes = values[on], validation.successes[on]
    distinct, counts = np.unique(np.round(counted, 9), return_counts=True)
    coverage = 1.0 - counts.max() / len(counted)
    ordering = _ordering(counted[successes], counted[~successes])
    constant = len(distinct) == 1
    score = -1.0 if constant else (0.5 if ordering is None else ordering) + 0.2 * coverage
    return {
        "score": float(score),
        "ordering": ordering,
        "coverage": float(coverage),
        "levels": len(distinct),
        "lowest": float(counted.min()),
        "highest": float(counted.max()),
        "constant": constant,
        "situations": len(counted),
        "successes": int(successes.sum()),
    }


def rows(validation: Validation, candidates: list[Candidate], responses: Responses) -> list[dict[str, Any]]:
    """The rows of programs.parquet. At most one is chosen: the best score among working, non-constant ones, the
    earliest of equals.
    """
    table: list[dict[str, Any]] = []
    for number, candidate in enumerate(candidates):
        values = candidate.checked.values
        details = None if values is None else measure(validation, values)
        table.append(row_of(number, candidate, details, responses.add([candidate.exchange])[0]))
    usable = [row for row in table if row["score"] is not None and row["score"] >= 0]
    if usable:
        max(usable, key=lambda row: (row["score"], -row["candidate_id"]))["chosen"] = True
    return table


def row_of(number: int, candidate: Candidate, details: dict[str, Any] | None, request_id: int) -> dict[str, Any]:
    """A row of programs.parquet that is not chosen; `details`: its score and other figures, None for no values."""
    return {
        "candidate_id": number,
        "conversation": candidate.conversation,
        "round": candidate.round,
        "program": candidate.program,
        "status": candidate.status,
        "error": candidate.checked.error or None,
        "score": None if details is None else details["score"],
        "score_details": None if details is None else json.dumps(details, sort_keys=True),
        "chosen": False,
        "request_id": request_id,
    }


def _ordering(successes: NDArray[np.float64], others: NDArray[np.float64]) -> float | None:
    if len(successes) < LEAST_SUCCESSES or len(others) == 0:
        return None
    above = (successes[:, None] > others).mean()
    equal = (successes[:, None] == others).mean()
    return float(above + 0.5 * equal)


def _situation(
    dataset: Dataset, card: EnvCard, validation: Validation, index: int, checked: Checked | None = None
) -> Example:
    row, horizon = int(validation.rows[index]), validation.windows.horizon
    steps = min(horizon, int(dataset.ages[row]))
    text = rows_text(dataset, np.arange(row - steps, row + 1), card)
    if checked is None or checked.values is None:
        return Example(text.captions, text.actions, text.mission)
    components = tuple((name, float(column[index])) for name, column in checked.components.items())
    value = float(checked.values[index])
    return Example(text.captions, text.actions, text.mission, value=value, components=components)


def _some(places: NDArray[np.int64]) -> list[int]:
    """SHOWN of the places, evenly spaced."""
    return [int(places[i]) for i in end_to_end(len(places), SHOWN)]


def feedback_on(card: EnvCard, dataset: Dataset, validation: Validation, checked: Checked) -> list[tuple[str, str]]:
    """The turn that shows a working program's values and asks to improve it."""
    assert checked.values is not None
    shown = np.flatnonzero(validation.shown)
    values = checked.values[shown]
    components = [(name, column[shown]) for name, column in checked.components.items()]
    return card.prompts.render(
        "code_improve",
        count=len(values),
        lowest=float(values.min()),
        mean=float(values.mean()),
        highest=float(values.max()),
        components=[(name, float(c.min()), float(c.mean()), float(c.max())) for name, c in components],
        ordering=measure(validation, checked.values, validation.shown)["ordering"],
        examples=[
            _situation(dataset, card, validation, index, checked)
            for index in _some(shown[np.argsort(values, kind="stable")])
        ],
    )


def checker(dataset: Dataset, words: MissionWords | None = None, memory: int = 0) -> Checker:
    """Runs programs in the sandbox, with the behaviour checks every potential has to pass, and their own advice."""

    def check(program: str, windows: Windows) -> Checked:
        try:
            with Sandbox(program, dataset.obs_shape, windows.horizon, words=words, memory=memory) as sandbox:
                values, components = sandbox.evaluate(windows)
                probation(sandbox, windows)
                if (advice := CodeTable.of(sandbox, len(dataset.action_names))) is not None:
                    with closing(advice):
                        advice(windows)
        except BkrlError as error:
            return Checked(None, error=str(error))
        return Checked(values, components)

    return check


def _requests(plan: Plan) -> list[Request]:
    opening = opening_of(plan, validation_set(plan.dataset, LENGTH["code"], plan.seed))
    return plan.sampling.conversations([opening] * plan.votes, plan.num)


def _label(plan: Plan, session: AskSession) -> LabelResult:
    validation, responses = validation_set(plan.dataset, LENGTH["code"], plan.seed), Responses()
    check = checker(plan.dataset, plan.card.mission_words, len(plan.card.memory))
    candidates = write_programs(session, plan, validation, check)
    table = rows(validation, candidates, responses)
    return LabelResult(table, responses.rows, of_programs(table), any(row["chosen"] for row in table))


def _try_prompts(card: EnvCard) -> None:
    code_prompt(card, layout_text(card), LENGTH["code"], [A_SEGMENT])
    card.prompts.render("code_error", error="An error.")
    values = {"count": 1, "lowest": 0.0, "mean": 0.0, "highest": 0.0, "ordering": 0.5}
    example = Example(A_SEGMENT.captions, A_SEGMENT.actions, value=0.0, components=(("part", 0.0),))
    card.prompts.render("code_improve", **values, components=[("part", 0.0, 0.0, 0.0)], examples=[example])


CODE = Variant(("code", "code_form", "code_error", "code_improve"), 1200, _requests, _label, _try_prompts)
