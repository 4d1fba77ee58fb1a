"""Exact answers to what labels ask of small levels, as an annotator (`exact`) and as what other answers are scored by.

Each recorded episode is played again on the native engine, from its seed; its level is solved (`optimal`), and every
moment of it gets

* its value: V* with every action allowed and the whole time left, as in `potential report`; after a success 1. At the
  episode's own clock, which nobody is shown, the earlier of two moments would be worth more in 96 % of pairs;
* the goals that are sensible now: those that lie on a shortest way to success, before or at its first change of a thing
  (a key picked up, a door opened), so that walking alone stands between;

and every goal its importance: in which share of best play (in each state all best actions alike) it is reached at all.
Exact values know everything from the start, so they say nothing of exploring: such goals are left out.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bkrl import envs
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_table
from bkrl.core.reporter import Reporter
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.partition import TEST, partition
from bkrl.data.schema import TRUTH
from bkrl.envs import options
from bkrl.envs.babyai import RELATIONS, glam
from bkrl.envs.babyai.constants import AVOID
from bkrl.envs.babyai.minigrid.levels import MINIGRID_LEVELS
from bkrl.envs.memory import fold
from bkrl.inspect.optimal import Explorer, States, distances, optimal_values
from bkrl.labelers import closed
from bkrl.labelers.agreement import mean_share, share
from bkrl.labelers.goals import normal_form, plain_form
from bkrl.labelers.plan import LabelResult, Plan, Variant
from bkrl.labelers.quality import segments_of
from bkrl.llm.choose import ClosedQuestion
from bkrl.llm.controls import ExactBackend
from bkrl.llm.protocol import Message
from bkrl.llm.session import AskSession
from bkrl.potentials.protocol import Potential, Raw
from bkrl.runs.record import Run
from bkrl.stats.ranks import area_with_interval, rank_correlation_with_interval

GAMMA: Final = 0.99
MOST: Final = 60_000
"""States of a level that is solved."""
CRITERIA: Final = ("overall", "progress", "mission")
"""Criteria of a pair that exact values answer."""
TRUTH_FILE: Final = "truth.parquet"
_EXPLORING: Final = ("explore the room", "look around")
_LAYOUTS: Final = 50  # episodes whose levels tell how important a goal is
_BINS: Final = (0.5, 0.6, 0.75, 0.9, 1.0)
_SURE: Final = 1e-9


@dataclass(frozen=True)
class Truth:
    """What is exactly so at the R rows of a dataset; NaN and False in episodes that were not asked about.

    Attributes:
        values: (R,) V*.
        goals: G goals, in words.
        sensible: (R, G) bool.
        importance: (G,) within 0 and 1.
    """

    values: NDArray[np.float64]
    goals: tuple[str, ...]
    sensible: NDArray[np.bool_]
    importance: NDArray[np.float64]


def check(env_id: str, criteria: Sequence[str] = ()) -> None:
    """UsageError where a level cannot be solved exactly, or its values say nothing of what is asked: one sentence."""
    if unknown := set(criteria) - set(CRITERIA):
        raise UsageError(f"Exact values answer the criteria {', '.join(CRITERIA)}, not {', '.join(sorted(unknown))}.")
    facts, (bare, chosen) = envs.env_spec(env_id), options.split(env_id)
    family = envs.family(facts.family)
    why = ""
    if family.exact != "rooms":
        why = family.inexact
    elif bare in glam.LEVELS or set(chosen) - {"actions"}:
        why = "only levels without options other than actions are solved, and not those of GLAM"
    elif bare in MINIGRID_LEVELS and MINIGRID_LEVELS[bare].task == AVOID:
        why = "what moves by itself there cannot be foreseen"
    if why:
        raise UsageError(
            f"Exact values of {env_id} are not to be had: {why}; take a small level such as MiniGrid-DoorKey-5x5-v0, "
            "or leave `exact` out."
        )


def solve(dataset: Dataset, episodes: Sequence[int], reporter: Reporter) -> Truth:
    """What is exactly so in the episodes of a dataset.

    Raises:
        UsageError: the level cannot be solved, for its kind or its size.
        InputError: an episode does not follow from its seed and actions.
    """
    check(dataset.env_id)
    explorer = Explorer(options.split(dataset.env_id)[0])
    seeds, actions = dataset.episodes.column("seed").to_numpy(), range(len(dataset.action_names))
    alike: dict[bytes, list[int]] = {}
    for episode in sorted(set(episodes)):
        moment = explorer.draw(int(seeds[episode]))
        if not np.array_equal(moment.observation, dataset.observations[dataset.first_row[episode]].reshape(-1)):
            raise _foreign(dataset, episode)
        alike.setdefault(moment.key, []).append(episode)
    rows = len(dataset.ages)
    goals, values = tuple(_goals()), np.full(rows, np.nan)
    sensible, importance, played = np.zeros((rows, len(goals)), np.bool_), np.zeros(len(goals)), 0
    with reporter.progress("solve levels", len(alike), "levels") as update:
        for done, (_, same) in enumerate(sorted(alike.items(), key=lambda one: one[1])):
            states = explorer.explore(explorer.draw(int(seeds[same[0]])), list(actions), limit=MOST)
            if states is None:
                raise UsageError(
                    f"{dataset.env_id} cannot be solved exactly: episode {same[0]} has more than {MOST:,} states; "
                    "take a smaller level, or leave `exact` out."
                )
            here, places = _replayed(dataset, states, same)
            values[here] = optimal_values(states, GAMMA)[places]
            now, share_ = _sensible(states, goals)
            sensible[here] = now[places]
            importance, played = importance + len(same) * share_, played + len(same)
            for episode in same:
                last = dataset.first_row[episode] + dataset.lengths[episode]
                if dataset.terminated[episode]:
                    values[last], sensible[last] = float(dataset.rewards[last - 1] > 0), False
            update(done + 1)
    return Truth(values, goals, sensible, importance / max(1, played))


def _replayed(dataset: Dataset, states: States, episodes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of episodes of one layout, and the state at each; the last row of one that ended has the state before
    it. InputError where a view is another one than was recorded.
    """
    rows, places = [], []
    for episode in episodes:
        first, length = int(dataset.first_row[episode]), int(dataset.lengths[episode])
        place = 0
        for row in range(first, first + length + 1):
            ended = row == first + length and bool(dataset.terminated[episode])
            if not ended and not np.array_equal(states.observations[place], dataset.observations[row]):
                raise _foreign(dataset, episode)
            rows.append(row)
            places.append(place)
            if row < first + length:
                place = int(states.next_state[place, int(dataset.actions[row])])
    return np.array(rows, np.int64), np.array(places, np.int64)


def _foreign(dataset: Dataset, episode: int) -> InputError:
    return InputError(
        f"Episode {episode} of {dataset.path} does not follow from its seed and actions (it was recorded by other "
        "rules, or with options); exact values are for episodes that do."
    )


def _goals() -> list[str]:
    """The goals that exact values know."""
    memory = envs.family("babyai").memory(envs.env_spec("MiniGrid-Empty-5x5-v0"))
    assert memory is not None
    said = [*memory.goals, *(goal for goal, _, _ in RELATIONS.values())]
    return [goal for goal in dict.fromkeys(said) if goal not in _EXPLORING]


def _reached(
    before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8], goals: Sequence[str]
) -> NDArray[np.bool_]:
    """(E, *obs_shape), (E,), (E, *obs_shape) → (E, G), whether a step reached each goal."""
    memory = envs.family("babyai").memory(envs.env_spec("MiniGrid-Empty-5x5-v0"))
    assert memory is not None
    both = np.stack([before, after], 1).reshape(-1, *before.shape[1:])
    deeds = np.stack([actions, actions], 1).reshape(-1)
    counted = fold(memory, both, deeds, np.arange(0, len(both), 2))[1::2] > 0
    found = {goal: counted[:, k] for k, goal in enumerate(memory.goals)}
    for goal, (x, y), kind in RELATIONS.values():
        found[goal] = (after[:, x, y, 0] == kind) & (before[:, x, y, 0] != kind)
    return np.stack([found[goal] for goal in goals], 1)


def _sensible(states: States, goals: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """(S, G) whether each goal is sensible in each state; (G,) in which share of best play from the first one it is
    reached, in each state all best actions alike.
    """
    away = distances(states)
    after = np.where(states.success, 0.0, np.where(states.over, np.inf, away[states.next_state]))
    best = np.isfinite(away)[:, None] & (after + 1 == away[:, None])
    start, column = np.nonzero(best)
    to, success = states.next_state[start, column], states.success[start, column]
    views = states.observations[to]
    number = np.cumsum(states.success.reshape(-1)) - 1
    views[success] = states.last_views[number.reshape(states.success.shape)[start, column][success]]
    reached = _reached(states.observations[start], states.actions[column], views, goals)
    scenes = np.frombuffer(b"".join(states.things), np.int64).reshape(len(states), -1)[:, 2:]
    moved = success | (scenes[to] != scenes[start]).any(1)
    now, play = np.zeros((len(states), len(goals)), np.bool_), np.zeros((len(states), len(goals)))
    for distance in np.unique(away[np.isfinite(away)]):
        edges = np.flatnonzero(away[start] == distance)
        one, other, there = start[edges], to[edges], reached[edges]
        np.logical_or.at(now, one, there | (now[other] & ~moved[edges, None]))
        onward = np.where(success[edges, None], 0.0, play[other])
        np.add.at(play, one, np.where(there, 1.0, onward) / best[one].sum(1, keepdims=True))
    return now, play[0]


def annotator(plan: Plan, truth: Truth) -> ExactBackend:
    """Who answers the questions of a plan by the truth: to what reads the same there is one answer, the mean chance."""
    said: dict[tuple[Message, ...], list[dict[str, float]]] = {}
    for question, chance in _answers(plan, truth):
        for phrasing in question.phrasings:
            one = {phrasing.options[place]: float(chance[k]) for k, place in enumerate(phrasing.outcomes)}
            said.setdefault(phrasing.messages, []).append(one)
    known = {
        asked: {word: float(np.log(np.maximum(np.mean([one[word] for one in each]), _SURE))) for word in each[0]}
        for asked, each in said.items()
    }
    return ExactBackend.of(known)


def _answers(plan: Plan, truth: Truth) -> Iterator[tuple[ClosedQuestion, NDArray[np.float64]]]:
    """The questions of a plan with the chance of each outcome."""
    if plan.variant == "pref":
        for _, pair in closed.pairs_of(plan):
            a, b = (float(truth.values[plan.dataset.rows(one)[-1]]) for one in (pair.a, pair.b))
            better = 0.5 if abs(a - b) < _SURE else float(a > b)
            texts = closed.texts_of(plan, pair)
            if texts[0] == texts[1]:
                continue  # a tie without asking
            questions = closed.questions_of_pair(plan, texts)
            each = [better] * len(questions)
            if plan.compare == "points":
                each = [a] * len(plan.criteria) + [b] * len(plan.criteria)
            for question, yes in zip(questions, each, strict=True):
                yield question, np.array([yes, 1.0 - yes])
    elif plan.variant == "code":
        for said, _ in closed.subgoals(plan).values():
            worth = 9 * float(truth.importance[truth.goals.index(said)]) if said in truth.goals else 0.0
            chance = np.clip(1.0 - np.abs(np.arange(10) - worth), 0.0, 1.0)
            yield closed.subgoal_question(plan.card, said), chance
    else:
        moments: dict[str, list[int]] = {}
        queries = closed.queries_of(plan)
        for (_, query), caption in zip(queries, closed.captions_of(plan.dataset, queries), strict=True):
            moments.setdefault(caption, []).append(int(plan.dataset.rows(query)[-1]))
        for caption, rows in moments.items():
            for goal in closed.vocabulary(plan.dataset.env_id):
                yes = float(truth.sensible[rows, truth.goals.index(goal)].mean()) if goal in truth.goals else 0.0
                yield closed.goal_question(plan.card, caption, goal), np.array([yes, 1.0 - yes])


def truth_of(plan: Plan, reporter: Reporter) -> Truth:
    """The truth of what a plan asks about."""
    check(plan.dataset.env_id)
    if plan.variant == "pref":
        episodes = [one.episode_id for _, pair in closed.pairs_of(plan) for one in (pair.a, pair.b)]
    elif plan.variant == "goal":
        episodes = [query.episode_id for _, query in closed.queries_of(plan)]
    else:
        episodes = end_to_end(plan.dataset.num_episodes, _LAYOUTS).tolist()
    return solve(plan.dataset, episodes, reporter)


def scored(variant: Variant, truth: Truth) -> Variant:
    """The same labelling, whose answers are scored by the truth: figures that begin with `exact`, and the table of
    values by which train-rm scores what is learnt from them.
    """

    def label(plan: Plan, session: AskSession) -> LabelResult:
        since = time.monotonic()
        done = variant.label(plan, session)
        seconds = time.monotonic() - since
        found, rows = {"pref": _of_pairs, "goal": _of_goals, "code": _of_program}[plan.variant](plan, truth, done)
        dollars = session.usage.cost_usd if session.price is not None else 0.0
        facts = {**done.quality, **found, "exact_seconds": seconds, "exact_cost": f"{dollars:.4f}"}
        values = truth.values[rows]
        table = {"episode_id": plan.dataset.episode_of_row[rows], "step": plan.dataset.ages[rows], "value": values}
        more = {**done.more, TRUTH_FILE: pa.table(table, schema=TRUTH)}
        return replace(done, quality=facts, more=more)

    return replace(variant, label=label)


_Scored = tuple[dict[str, Any], NDArray[np.int64]]
"""Figures, and the rows whose values they speak of."""


def _of_pairs(plan: Plan, truth: Truth, done: LabelResult) -> _Scored:
    """How often the better segment is preferred, of the pairs that both sides decide."""
    ends = np.array([[plan.dataset.rows(one)[-1] for one in segments_of(row)] for row in done.table], np.int64)
    ends = ends.reshape(-1, 2)
    gain = truth.values[ends[:, 0]] - truth.values[ends[:, 1]]
    label = np.array([np.nan if row["label"] is None else row["label"] for row in done.table])
    judged = (np.abs(gain) > _SURE) & (label != 0.5) & ~np.isnan(label)
    right, apart = ((label > 0.5) == (gain > 0))[judged], np.abs(gain)[judged]
    clear = apart >= (np.median(apart) if len(apart) else 0.0)
    facts = {
        "exact_accuracy": share(int(right.sum()), len(right)),
        "exact_accuracy_clear": share(int(right[clear].sum()), int(clear.sum())),
        "exact_equal": int((np.abs(gain) <= _SURE).sum()),
        "exact_bins": _bins(np.maximum(label, 1 - label)[judged], right),
    }
    return facts, np.unique(ends)


def _of_goals(plan: Plan, truth: Truth, done: LabelResult) -> _Scored:
    """How goals are told apart that are sensible from those that are not, and how often the labels say so."""
    moments = {row["query_id"]: row for row in done.table}
    rows = np.array(
        [plan.dataset.rows(Segment(row["episode_id"], row["start"], row["length"]))[-1] for row in moments.values()],
        np.int64,
    )
    right = truth.sensible[rows]
    forms = [normal_form(goal) for goal in truth.goals]
    said = {(row["query_id"], plain_form(row["goal"])) for row in done.table if row["goal"] is not None}
    yes = np.array([[(query, form) in said for form in forms] for query in moments], np.bool_)
    facts: dict[str, Any] = {
        "exact_goals": mean_share(right.mean(1).tolist()),
        "exact_agreement": mean_share((yes == right).mean(1).tolist()),
        "exact_precision": share(int((yes & right).sum()), int(yes.sum())),
        "exact_recall": share(int((yes & right).sum()), int(right.sum())),
    }
    if "choices.parquet" in done.more:
        odds = closed.odds_of(done.more["choices.parquet"])
        each = [[odds.get(f"{goal} | {row['caption']}", np.nan) for goal in truth.goals] for row in moments.values()]
        told = np.array(each)
        sure = 1 / (1 + np.exp(-np.abs(told)))
        known = ~np.isnan(told)
        facts["exact_auc"] = area_with_interval(told, right)
        facts["exact_bins"] = _bins(sure[known], ((told > 0) == right)[known])
    return facts, np.unique(rows)


def _of_program(plan: Plan, truth: Truth, done: LabelResult) -> _Scored:
    """Spearman's correlation of the ratings of sub-goals with how important they are."""
    said = {name: goal for name, (goal, _) in closed.subgoals(plan).items()}
    ratings = done.quality["ratings"]
    known = [name for name in ratings if ratings[name] is not None and said[name] in truth.goals]
    worth = {name: float(truth.importance[truth.goals.index(said[name])]) for name in known}
    rows = np.flatnonzero(~np.isnan(truth.values))
    facts = {
        "subgoal_rho": rank_correlation_with_interval(
            np.array([ratings[name] for name in known]), np.array([*worth.values()])
        ),
        "exact_importance": {name: round(one, 4) for name, one in worth.items()},
    }
    return facts, rows[end_to_end(len(rows), 2000)]


def learnt(potential: Potential | Raw, labels: Run, dataset: Dataset) -> dict[str, Any] | None:
    """How often Φ orders two moments as exact values do, ties counted half, with an interval of as many trials as there
    are moments; of preferences those of episodes that nothing was fitted on. None where the labels carry no values.
    """
    if TRUTH_FILE not in labels.manifest["outputs"]:
        return None
    table = read_table(labels.file(TRUTH_FILE), TRUTH)
    episodes, steps, values = (table.column(name).to_numpy() for name in ("episode_id", "step", "value"))
    kept = partition(episodes) == TEST if labels.facts["variant"] == "pref" else np.ones(len(values), np.bool_)
    if not kept.any():
        return share(0, 0)
    rows = (dataset.first_row[episodes] + steps)[kept]
    phi = potential(dataset.windows(rows, potential.reads.horizon).numbered()).astype(np.float64)
    apart = np.subtract.outer(values[kept], values[kept])
    right = 0.5 + 0.5 * np.sign(np.subtract.outer(phi, phi)) * np.sign(apart)
    decided = np.abs(apart) > _SURE
    return mean_share([float(one[some].mean()) for one, some in zip(right, decided, strict=True) if some.any()])


def _bins(sure: NDArray[np.float64], right: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """A calibration curve: how sure the answers are, and how often they are right."""
    found = []
    for low, high in pairwise(_BINS):
        inside = (sure >= low) & ((sure < high) | (high == 1.0))
        if inside.any():
            found.append({"from": low, "to": high, **share(int(right[inside].sum()), int(inside.sum()))})
    return found
