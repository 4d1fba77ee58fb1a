"""Labels by closed questions (`--ask closed`): one word each, whose log-probabilities count (`llm.choose`).

pref: which of two segments is better, in both orders, or whether each is good by itself; the log-odds become soft
labels. code: how important is each sub-goal of the env; the ratings become the weights of a program. goal: can each
goal of the env be pursued now, and is it sensible? All questions stand in choices.parquet.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bkrl import envs
from bkrl.core.errors import UsageError
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.partition import partition
from bkrl.data.schema import CHOICES, LIBRARY
from bkrl.labelers import code, goals, preferences
from bkrl.labelers.agreement import share
from bkrl.labelers.answers import Unparsed, parse_goals
from bkrl.labelers.asking import Responses, turns
from bkrl.labelers.material import A_SEGMENT, EnvCard, SegmentText, segment_text
from bkrl.labelers.plan import LENGTH, LabelResult, Plan, Variant
from bkrl.labelers.quality import closed_choice, of_goals, of_pairs, of_programs, rules_choice
from bkrl.llm.choose import (
    FLOOR,
    MOST_KNOWN,
    Chooser,
    ClosedAnswer,
    ClosedQuestion,
    Phrasing,
    calibration,
    request_of,
    settled,
)
from bkrl.llm.protocol import Exchange, Fault, Request
from bkrl.llm.rules import answer
from bkrl.llm.session import AskSession
from bkrl.text import prompts
from bkrl.text.prompts import SHIPPED

CRITERIA: Final = {
    "overall": "In which segment does the agent do better, whatever its task may be",
    "progress": "At the end of which segment has the agent come further with what tasks in such worlds need",
    "effect": "In which segment do more of the actions have an effect and a purpose",
    "discovery": "In which segment does the agent find out more that it did not see before",
    "safety": "In which segment is the agent safer and better off at the end",
    "mission": "At the end of which segment is the agent nearer to what its mission asks for",
}
"""What is asked of a pair, each in a question of its own; the label is their mean log-odds. Of "mission" ends are shown
alone.
"""
POINTS: Final = {
    "overall": "Does the agent do well here, whatever its task may be",
    "progress": "Does the agent come further here with what tasks in such worlds need",
    "effect": "Do the actions here have an effect and a purpose",
    "discovery": "Does the agent find out here what it did not see before",
    "safety": "Is the agent safe and well off at the end",
    "mission": "Is the agent near to what its mission asks for at the end",
}
"""The same of a single segment."""
HELD_OUT: Final = 5
"""Of goals every so many-th moment serves to calibrate."""
_VIEW: Final = "You see "
"""With this begin sentences of captions that tell where things are."""
_STEPS = 95  # percentile of a memory's field in the dataset: so many steps of it count


def _phrasings(
    card: EnvCard, name: str, options: Sequence[str], ways: Sequence[Mapping[str, Any]], turned: bool
) -> ClosedQuestion:
    """A question whose second phrasing has the options' meanings turned round, or only their order in the words."""
    straight = tuple(range(len(options)))
    orders = (straight, straight[::-1] if turned else straight)[: len(ways)]
    return ClosedQuestion(
        tuple(
            Phrasing(turns(card.prompts.render(name, world=card, **way)), tuple(options), order)
            for way, order in zip(ways, orders, strict=True)
        )
    )


def _yes_or_no(card: EnvCard, name: str, **values: Any) -> ClosedQuestion:
    ways = [{**values, "first": one, "second": other} for one, other in (("Yes", "No"), ("No", "Yes"))]
    return _phrasings(card, name, ("Yes", "No"), ways, turned=False)


def brief(segment: SegmentText) -> SegmentText:
    """A segment in few words: at first only what changed of the agent itself, at last all; no "You see" twice."""
    first, last = (re.split(r"(?<=\.) +", caption) for caption in (segment.captions[0], segment.captions[-1]))
    changed = [one for one in first if one not in last and not one.startswith(_VIEW)]
    seen = [one.removeprefix(_VIEW).rstrip(".") for one in last if one.startswith(_VIEW)]
    told = [one for one in last if not one.startswith(_VIEW)]
    told += [f"{_VIEW}{', '.join(seen)}."] if seen else []
    return replace(segment, captions=(" ".join(changed), " ".join(told)))


def pair_question(card: EnvCard, a: SegmentText, b: SegmentText, criterion: str) -> ClosedQuestion:
    """Outcome 0: A is better, 1: B."""
    asked, a, b = f"{CRITERIA[criterion]}?", brief(a), brief(b)
    if criterion == "mission":
        a, b = (replace(one, captions=("", one.captions[-1]), actions=()) for one in (a, b))
    ways = [{"a": a, "b": b, "criterion": asked}, {"a": b, "b": a, "criterion": asked}]
    return _phrasings(card, "choose_pref", ("1", "2"), ways, turned=True)


def subgoal_question(card: EnvCard, goal: str) -> ClosedQuestion:
    """Outcome k: importance k of 9.

    The scale is not turned round in a second phrasing: a model of 0.5B parameters does not notice (ratings correlated
    at -.99), so that the mean of both phrasings holds nothing of what it says.
    """
    return _phrasings(card, "choose_subgoal", list("0123456789"), [{"goal": goal}], turned=False)


def goal_question(card: EnvCard, caption: str, goal: str) -> ClosedQuestion:
    """Outcome 0: yes."""
    return _yes_or_no(card, "choose_goal", situation=(caption,), goal=goal)


def action_question(card: EnvCard, caption: str) -> ClosedQuestion:
    """Outcome k: the k-th action; they are listed in either order."""
    names = [prompts.name(one) for one in card.action_names]
    ways = [{"caption": caption, "actions": listed} for listed in (names, names[::-1])]
    return _phrasings(card, "choose_action", names, ways, turned=False)


class AnswerRecord:
    """The answers to questions as rows: of responses.parquet, and of choices.parquet."""

    def __init__(self) -> None:
        self.responses, self.rows = Responses(), list[dict[str, Any]]()
        self._known: dict[int, int] = {}

    def add(self, about: str, outcomes: Sequence[str], answer: ClosedAnswer) -> list[int]:
        """Append an answer; the ids of its requests, phrasing by phrasing. What was asked before stands once."""
        number, found = self.rows[-1]["question_id"] + 1 if self.rows else 0, list[int]()
        for phrasing, (scores, exchanges) in enumerate(zip(answer.scores, answer.exchanges, strict=True)):
            ids = [self.request_id(one) for one in exchanges]
            found += ids
            self.rows.append(
                {
                    "question_id": number,
                    "about": about,
                    "phrasing": phrasing,
                    "outcomes": list(outcomes),
                    "logprobs": [None if np.isnan(one) else max(float(one), -1e9) for one in scores],
                    "exact": answer.exact,
                    "request_ids": ids,
                }
            )
        return found

    def request_id(self, exchange: Exchange) -> int:
        """Of an exchange, which becomes a row of responses.parquet once."""
        if id(exchange) not in self._known:
            self._known[id(exchange)] = self.responses.add([exchange])[0]
        return self._known[id(exchange)]

    @property
    def table(self) -> dict[str, pa.Table]:
        """choices.parquet."""
        return {"choices.parquet": pa.Table.from_pylist(self.rows, schema=CHOICES)}


def odds_of(choices: pa.Table) -> dict[str, float]:
    """The mean log-odds of the first outcome over the phrasings of each question, by what it is about; NaN: unclear."""
    found: dict[str, list[float]] = {}
    for row in choices.to_pylist():
        yes, no = (np.nan if one is None else max(one, FLOOR) for one in row["logprobs"][:2])
        found.setdefault(row["about"], []).append(yes - no)
    return {about: float(np.mean(odds)) for about, odds in found.items()}


def _asked(plan: Plan, session: AskSession, questions: Sequence[ClosedQuestion], title: str) -> list[ClosedAnswer]:
    chooser = Chooser(session, votes=plan.votes, max_tokens=plan.sampling.max_tokens, effort=plan.sampling.effort)
    return [one for one in chooser.ask(questions, title) if one is not None]


def _requests(make: Callable[[Plan], list[ClosedQuestion]]) -> Callable[[Plan], list[Request]]:
    def requests(plan: Plan) -> list[Request]:
        asked = dict.fromkeys(phrasing.line for question in make(plan) for phrasing in question.phrasings)
        return [request_of(line, plan.sampling.max_tokens, plan.sampling.effort) for line in asked]

    return requests


def pairs_of(plan: Plan) -> list[tuple[int, preferences.Pair]]:
    """The pairs of a plan with their numbers."""
    if plan.compare == "pairs":
        return [*enumerate(preferences.draw_pairs(plan.dataset, plan.num, plan.length, plan.seed))]
    # Points are asked about singly: each segment stands in two pairs, at no further cost. More are drawn where a part
    # of the dataset got one pair only, which has no other to be crossed with.
    found: list[preferences.Pair] = []
    count = -(-plan.num // 2)
    while len(found) < plan.num:
        found = _crossed(preferences.draw_pairs(plan.dataset, count, plan.length, plan.seed))
        count += 1
    return [*enumerate(found[: plan.num])]


def _crossed(pairs: Sequence[preferences.Pair]) -> list[preferences.Pair]:
    """The pairs, and as many others of the same segments: A of each with B of the next one in the same part of the
    dataset, the last one of a part with B of the first.
    """
    parts = partition(np.array([pair.a.episode_id for pair in pairs], np.int64))
    found = list(pairs)
    for part in np.unique(parts):
        own = [pair for pair, at in zip(pairs, parts, strict=True) if at == part]
        found += [replace(one, b=other.b) for one, other in zip(own, own[1:] + own[:1], strict=True) if other != one]
    return found


def texts_of(plan: Plan, pair: preferences.Pair) -> tuple[SegmentText, SegmentText]:
    """Both segments of a pair as they are shown."""
    a, b = (segment_text(plan.dataset, one, plan.card) for one in (pair.a, pair.b))
    return a, b


def _criteria(plan: Plan) -> tuple[str, ...]:
    unknown = [one for one in plan.criteria if one not in CRITERIA]
    if unknown or not plan.criteria:
        raise UsageError(f"--criteria are of {', '.join(CRITERIA)}, not '{', '.join(unknown)}'.")
    if "mission" in plan.criteria and plan.card.mission_words is None:
        raise UsageError("The criterion mission is about missions; pass --with-mission, or another one.")
    return plan.criteria


def questions_of_pair(plan: Plan, texts: tuple[SegmentText, SegmentText]) -> list[ClosedQuestion]:
    """C questions of a pair; of points 2 C, those of A first."""
    if plan.compare == "pairs":
        return [pair_question(plan.card, *texts, criterion) for criterion in _criteria(plan)]
    asked = [{"segment": one, "criterion": f"{POINTS[criterion]}?"} for one in texts for criterion in _criteria(plan)]
    return [_yes_or_no(plan.card, "choose_point", **one) for one in asked]


def _pref_questions(plan: Plan) -> list[ClosedQuestion]:
    both = [texts_of(plan, pair) for _, pair in pairs_of(plan)]
    return [question for a, b in both if a != b for question in questions_of_pair(plan, (a, b))]


def _label_pairs(plan: Plan, session: AskSession) -> LabelResult:
    pairs, criteria = pairs_of(plan), _criteria(plan)
    texts = [texts_of(plan, pair) for _, pair in pairs]
    asked = [n for n, (a, b) in enumerate(texts) if a != b]
    each = [questions_of_pair(plan, texts[n]) for n in asked]
    answers = _asked(plan, session, [question for some in each for question in some], "label pairs")
    record, points = AnswerRecord(), plan.compare == "points"
    outcomes, per = ("yes", "no") if points else ("A", "B"), len(criteria) * (2 if points else 1)
    ids = [record.add(str(pairs[asked[i // per]][0]), outcomes, one) for i, one in enumerate(answers)]
    scores = np.stack([one.scores for one in answers]) if answers else np.zeros((0, 2, 2))
    odds, agree = _log_odds(scores.reshape(len(asked), per, 2, 2))
    if points:
        odds = odds[:, : len(criteria)] - odds[:, len(criteria) :]
        agree = agree[:, : len(criteria)] & agree[:, len(criteria) :]
    weight = agree / np.maximum(1, agree.sum(1, keepdims=True))
    mean = (np.where(agree, odds, 0.0) * weight).sum(1)
    sides, place = np.full((len(pairs), 2), np.nan), {n: i for i, n in enumerate(asked)}
    table: list[dict[str, Any]] = []
    for n, (number, pair) in enumerate(pairs):
        if n not in place:
            table.append(preferences.row_of(number, pair, 0.5, "identical", (0, 0, 0, 0)))
            continue
        i = place[n]
        own = answers[i * per : (i + 1) * per]
        votes = _votes(own) if not points else (0, 0, 0, 0)
        status = "labelled" if agree[i].any() else _why(own)
        label = float(1 / (1 + np.exp(-mean[i]))) if agree[i].any() else None
        sides[n] = (-np.logaddexp(0, -mean[i]), -np.logaddexp(0, mean[i])) if agree[i].any() else np.nan
        used = [one for some in ids[i * per : (i + 1) * per] for one in some]
        table.append(preferences.row_of(number, pair, label, status, votes, used))
    more = _calibrate_pairs(plan, table, sides)
    # Order and place are measured on the requests of the first criterion alone.
    first = [ids[place[n] * per] if n in place and not points else [] for n in range(len(table))]
    shown = [{**row, "request_ids": asked} for row, asked in zip(table, first, strict=True)]
    facts = of_pairs(plan.dataset, plan.card, shown, record.responses.rows, by_rules=False, read=closed_choice)
    spread = float(np.std(odds[agree])) if agree.any() else 0.0
    facts |= {"log_odds_spread": spread, "inconsistent": sum(row["status"] == "inconsistent" for row in table), **more}
    usable = any(row["label"] is not None for row in table)
    return LabelResult(table, record.responses.rows, facts, usable, record.table)


def _log_odds(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(N, Q, V, 2) → (N, Q) log-odds of the first outcome, and whether the phrasings agree, each of the Q by itself."""
    odds, agree = np.zeros(scores.shape[:2]), np.zeros(scores.shape[:2], bool)
    for q in range(scores.shape[1]):
        together, agree[:, q] = settled(scores[:, q])
        odds[:, q] = together[:, 0] - together[:, 1]
    return odds, agree


def _votes(answers: Sequence[ClosedAnswer]) -> tuple[int, int, int, int]:
    """How many phrasings name A, B, neither, and how many are unclear."""
    scores = np.concatenate([one.scores for one in answers])
    clear = scores[~np.isnan(scores).any(1)]
    a, b = int((clear[:, 0] > clear[:, 1]).sum()), int((clear[:, 0] < clear[:, 1]).sum())
    return a, b, len(clear) - a - b, len(scores) - len(clear)


def _why(answers: Sequence[ClosedAnswer]) -> str:
    """Why answers give no label: they disagree, or are not there."""
    bad = [one[-1].status for answer in answers for one in answer.exchanges if one[-1].status != "ok"]
    if bad:
        return bad[-1]
    return "unparsed" if any(np.isnan(answer.scores).any() for answer in answers) else "inconsistent"


def _calibrate_pairs(plan: Plan, table: list[dict[str, Any]], sides: NDArray[np.float64]) -> dict[str, Any]:
    """Fit a temperature on what the rules annotator says of the first pairs, and apply it to all labels in place."""
    if plan.calibrate == "none":
        return {}
    known: list[tuple[int, int]] = []
    for n, row in enumerate(table):
        if row["status"] == "labelled" and len(known) < MOST_KNOWN:
            choice = rules_choice(plan.dataset, plan.card, row)
            known += [(n, "AB".index(choice))] if choice in ("A", "B") else []
    places, truth = np.array([n for n, _ in known], int), np.array([k for _, k in known], int)
    found = calibration(sides[places], truth, "rules", biased=False)
    for row, moved in zip(table, found(sides), strict=True):
        if row["status"] == "labelled":
            row["label"] = float(np.exp(moved[0]))
    return {"calibration": found.facts()}


def subgoals(plan: Plan) -> dict[str, tuple[str, str]]:
    """The sub-goals of the env by name: said as a goal, and as NumPy of `now` and `memory`; at most 1 each.

    What memory counts is worth as much as explorers did of it (the 95th percentile), at least once.
    """
    card = envs.env_spec(plan.dataset.env_id)
    found = {
        name: (said, f"({how}).astype(float)") for name, (said, how) in envs.family(card.family).relations(card).items()
    }
    memory = envs.memory_of(plan.dataset.env_id)
    if memory is not None and plan.card.memory and plan.dataset.memory is not None:
        most = np.percentile(plan.dataset.memory, _STEPS, axis=0, method="closest_observation")
        for column, (name, said) in enumerate(zip(memory.names, memory.goals, strict=True)):
            steps = max(1, int(most[column]))
            found[name] = (said, f"np.minimum(memory[:, {column}], {steps}) / {steps}")
    if not found:
        there = "" if memory is None else "--with-memory, or "
        raise UsageError(f"No sub-goals are named for {plan.dataset.env_id}; pass {there}--ask open, to a model.")
    return found


def weights_of(ratings: NDArray[np.float64]) -> NDArray[np.float64]:
    """(S,) ratings → weights that come to 1: 0 for the lowest rating, in proportion above it; equal ratings weigh
    alike, and what was not rated weighs nothing.
    """
    low, high = np.nanmin(ratings), np.nanmax(ratings)
    raised = np.nan_to_num(
        (ratings - low) / (high - low) if high - low > 1e-9 else np.where(np.isnan(ratings), 0.0, 1.0)
    )
    return np.asarray(raised / raised.sum())


def program_of(named: Mapping[str, tuple[str, str]], ratings: NDArray[np.float64], who: str, memory: bool) -> str:
    """A program that adds up the sub-goals that are reached, each with its weight."""
    weights = weights_of(ratings)
    order = sorted(range(len(named)), key=lambda i: (-weights[i], i))
    rows = [
        (name, weights[i], ratings[i], named[name][1]) for i in order for name in [list(named)[i]] if weights[i] > 0
    ]
    parts = [(name, weight, how, f"rated {rating:.2f}") for name, weight, rating, how in rows]
    who = re.sub(r"[^\w.:/ -]", "", who)
    return sum_of(parts, f"Sub-goals, weighted by answers of {who} to closed questions.", memory)


def sum_of(parts: Sequence[tuple[str, float, str, str]], title: str, memory: bool) -> str:
    """A program that adds up parts: name, weight, NumPy of `now` and `memory`, and a note on each."""
    shown = 8 if len(parts) <= 8 else 7
    lines = [f'"""{title}"""', "", f"\ndef potential(observations, actions, valid{', memory' if memory else ''}):"]
    lines += ["    now = observations[:, -1]", "    parts = {}"]
    lines += ["    rest = np.zeros(len(now))"] if len(parts) > shown else []
    for place, (name, weight, how, note) in enumerate(parts):
        kept = f'parts["{name}"] =' if place < shown else "rest = rest +"
        lines.append(f"    {kept} {weight:.5f} * ({how})  # {name}: {note}")
    lines += ['    parts["rest"] = rest'] if len(parts) > shown else []
    return "\n".join([*lines, "    return sum(parts.values()), parts", ""])


def questions_of_subgoals(card: EnvCard, said: Sequence[str], rate: str) -> list[ClosedQuestion]:
    """Of S sub-goals: S questions, or S (S - 1) where it is asked what needs what, those about the first one first."""
    if rate == "alone":
        return [subgoal_question(card, one) for one in said]
    # Has one to do `goal` in order to do `other`? What the words add is the same for all sub-goals.
    asked = [{"goal": one, "other": other} for one, other in permutations(said, 2)]
    return [_phrasings(card, "choose_need", ("Yes", "No"), [one], turned=False) for one in asked]


def ratings_of(scores: NDArray[np.float64], rate: str) -> NDArray[np.float64]:
    """(Q, V, K) answers to `questions_of_subgoals` → (S,) ratings from 0 to 9: the digit to expect, or nine times the
    share of the other sub-goals that need each one, to expect too, of those whose answers are clear.
    """
    chances = np.exp(settled(scores)[0])
    if rate == "alone":
        return np.asarray(chances @ np.arange(10.0))
    count = round(0.5 + np.sqrt(0.25 + len(scores)))
    needed = chances[:, 0].reshape(count, count - 1)
    with np.errstate(invalid="ignore"):  # NaN where no answer is clear
        return np.asarray(9 * (np.nansum(needed, 1) / (~np.isnan(needed)).sum(1)))


def _subgoal_questions(plan: Plan) -> list[ClosedQuestion]:
    return questions_of_subgoals(plan.card, [said for said, _ in subgoals(plan).values()], plan.rate)


def ask_of_subgoals(
    plan: Plan, named: Mapping[str, tuple[str, str]], session: AskSession, record: AnswerRecord
) -> list[ClosedAnswer]:
    """Ask `questions_of_subgoals` of all, and record the answers. `named`: as `subgoals` of the plan."""
    alone = plan.rate == "alone"
    questions = questions_of_subgoals(plan.card, [said for said, _ in named.values()], plan.rate)
    answers = _asked(plan, session, questions, "rate sub-goals")
    about = [*named] if alone else [f"{name} for {other}" for name, other in permutations(named, 2)]
    for name, one in zip(about, answers, strict=True):
        record.add(name, list("0123456789") if alone else ("yes", "no"), one)
    return answers


def _label_program(plan: Plan, session: AskSession) -> LabelResult:
    named, record = subgoals(plan), AnswerRecord()
    answers = ask_of_subgoals(plan, named, session, record)
    ratings = ratings_of(np.stack([one.scores for one in answers]), plan.rate)
    validation = code.validation_set(plan.dataset, LENGTH["code"], plan.seed)
    exchange = answers[-1].exchanges[-1][-1]
    if np.isnan(ratings).all():
        checked = code.Checked(None, error="no sub-goal was rated")
        candidate = code.Candidate(0, 0, None, checked, exchange)
    else:
        program = program_of(named, ratings, session.backend.name, bool(plan.card.memory))
        check = code.checker(plan.dataset, plan.card.mission_words, len(plan.card.memory))
        candidate = code.Candidate(0, 0, program, check(program, validation.windows), exchange)
    table = code.rows(validation, [candidate], record.responses)
    rated = {name: None if np.isnan(one) else round(float(one), 4) for name, one in zip(named, ratings, strict=True)}
    facts = {**of_programs(table), "ratings": rated}
    return LabelResult(table, record.responses.rows, facts, any(row["chosen"] for row in table), record.table)


def vocabulary(env_id: str) -> list[str]:
    """The goals of an env: what its memory counts and what its views tell, said as goals, each once."""
    card, memory = envs.env_spec(env_id), envs.memory_of(env_id)
    said = [] if memory is None else list(memory.goals)
    said += [goal for goal, _ in envs.family(card.family).relations(card).values()]
    found = {goals.normal_form(goal): goal for goal in reversed(said)}
    if not found:
        raise UsageError(f"No goals are named for {env_id}; pass --ask open, to a model.")
    return list(found.values())[::-1]


def captions_of(dataset: Dataset, queries: Sequence[tuple[int, Segment]]) -> list[str]:
    """What is seen at the end of each segment."""
    return [segment_text(dataset, query).captions[-1] for _, query in queries]


def queries_of(plan: Plan) -> list[tuple[int, Segment]]:
    """The segments whose ends are asked about, with their numbers."""
    return [*enumerate(goals.draw_queries(plan.dataset, plan.num, plan.length, plan.seed))]


def _goal_questions(plan: Plan) -> list[ClosedQuestion]:
    captions = dict.fromkeys(captions_of(plan.dataset, queries_of(plan)))
    return [goal_question(plan.card, caption, goal) for caption in captions for goal in vocabulary(plan.dataset.env_id)]


def _label_goals(plan: Plan, session: AskSession) -> LabelResult:
    queries, named, record = queries_of(plan), vocabulary(plan.dataset.env_id), AnswerRecord()
    captions = captions_of(plan.dataset, queries)
    distinct = list(dict.fromkeys(captions))
    answers = _asked(plan, session, _goal_questions(plan), "judge goals")
    ids = [
        record.add(f"{named[i % len(named)]} | {distinct[i // len(named)]}", ("yes", "no"), one)
        for i, one in enumerate(answers)
    ]
    together, agree = settled(np.stack([one.scores for one in answers]))
    odds = (together[:, 0] - together[:, 1]).reshape(len(distinct), len(named))
    facts: dict[str, Any] = {}
    if plan.calibrate == "rules":
        known, held = _known_goals(plan, queries, captions, distinct, named)
        found = calibration(together[held], known[held], "rules")
        moved = found(together)
        odds, threshold = (moved[:, 0] - moved[:, 1]).reshape(odds.shape), 0.0
        facts["calibration"] = found.facts() | {"held_out": 1 / HELD_OUT}
    else:
        # `exact` is no small model: its chances mean what they say
        threshold = 0.0 if session.backend.name == "exact" or not agree.any() else float(np.nanmean(odds))
    facts["threshold"] = threshold
    yes = (odds >= threshold - 1e-9) & agree.reshape(odds.shape)
    table: list[dict[str, Any]] = []
    for (number, segment), caption in zip(queries, captions, strict=True):
        row = distinct.index(caption)
        chosen: Sequence[int | None] = sorted(np.flatnonzero(yes[row]).tolist(), key=lambda k: (-odds[row, k], k))
        unclear = not chosen and np.isnan(odds[row]).any()
        status = _why(answers[row * len(named) : (row + 1) * len(named)]) if unclear else "labelled"
        common = {"query_id": number, **segment._asdict(), "caption": caption, "status": status}
        for k in chosen or [None]:
            asked, said = ids[row * len(named) + (k or 0)], [] if k is None else [named[k]]
            used = {"request_id": asked[-1], "request_ids": asked if said else asked[-1:]}
            table.append({**common, "goal": said[0] if said else None, "goal_id": k, "said": said, **used})
    entries = pa.Table.from_pylist(goals.library(table), schema=LIBRARY)
    invalid = share(int(np.isnan(together).any(1).sum()), len(together))
    facts = of_goals(table, record.responses.rows) | {"invalid": invalid} | facts
    usable = any(row["goal"] is not None for row in table)
    return LabelResult(table, record.responses.rows, facts, usable, {"library.parquet": entries, **record.table})


def _known_goals(
    plan: Plan, queries: Sequence[tuple[int, Segment]], captions: list[str], distinct: list[str], named: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(D G,) outcome of each question by the rules annotator, and the places of those on the held-out moments. It says
    more than the env's goals ("collect wood from a tree"), and means the one that it begins with.
    """
    known = np.ones((len(distinct), len(named)), np.int64)
    held = np.zeros(known.shape, bool)
    forms = [goals.plain_form(goal) for goal in named]
    for number in range(0, len(distinct), HELD_OUT):
        _, segment = queries[captions.index(distinct[number])]
        text = segment_text(plan.dataset, segment, plan.card)
        try:
            said = parse_goals(answer([one for _, one in SHIPPED.render("goal", world=plan.card, segment=text)]))
        except Fault:
            continue
        meant = [] if isinstance(said, Unparsed) else [goals.plain_form(goal) for goal in said]
        known[number] = [0 if any(one.startswith(form) for one in meant) else 1 for form in forms]
        held[number] = True
    places = np.flatnonzero(held.reshape(-1))
    return known.reshape(-1), np.random.default_rng(plan.seed).permutation(places)[:MOST_KNOWN]


_EXAMPLES: dict[str, dict[str, Any]] = {
    "choose_pref": {"a": A_SEGMENT, "b": A_SEGMENT, "criterion": "Which?"},
    "choose_point": {"segment": A_SEGMENT, "criterion": "Is it?", "first": "Yes", "second": "No"},
    "choose_subgoal": {"goal": "go"},
    "choose_need": {"goal": "go", "other": "come"},
    "choose_goal": {"situation": ("A.",), "goal": "go", "first": "Yes", "second": "No"},
}


def _most_questions(plan: Plan) -> int:
    """See `Variant`: each question in two phrasings, by all votes; points come in pairs, about half as many."""
    if plan.variant == "pref":
        num, each = plan.num + plan.num % 2 + 6 * (plan.compare == "points"), len(_criteria(plan))
    elif plan.variant == "goal":
        num, each = min(plan.num, len(plan.dataset.caption_texts)), len(vocabulary(plan.dataset.env_id))
    else:
        num = each = len(subgoals(plan))
    return 2 * plan.votes * num * each


def _variant(
    make: Callable[[Plan], list[ClosedQuestion]], label: Callable[[Plan, AskSession], LabelResult], *names: str
) -> Variant:
    def fill(card: EnvCard) -> None:
        for name in names:
            card.prompts.render(name, world=card, **_EXAMPLES[name])

    return Variant(names, 1, _requests(make), label, fill, _most_questions)


CLOSED: dict[str, Variant] = {
    "pref": _variant(_pref_questions, _label_pairs, "choose_pref", "choose_point"),
    "code": _variant(_subgoal_questions, _label_program, "choose_subgoal", "choose_need"),
    "goal": _variant(_goal_questions, _label_goals, "choose_goal"),
}
