"""What asking a language model on this machine costs, and what its answers are worth.

    python benchmarks/judges.py [--model local:NAME|gguf:PATH|hf:FOLDER] [--threads 2] [--only PART,PART] [--json]

The questions are those of `bkrl label --ask closed`. Seconds are processor time divided by the threads, which is what a
quiet machine takes; loading the model is not in them. --quick asks a tiny model with random weights.

Costs, of questions about random play in BabyAI-GoToRedBall:

* `closed_ratio`: seconds of an open answer (the same question about a goal, with a sentence or two of reasons, at most
  80 tokens) divided by those of a closed one.
* `prefix_ratio`: seconds of a closed question asked by itself, without kept prefixes, divided by those of one among
  the others.
* `pairs_per_hour`: pairs of segments in both orders; `points_per_hour`: pairs by `--compare points`, in which a
  question is about a single segment, and each segment stands in two pairs.
* `goals_per_hour`: questions about a goal.
* `load_seconds`, `peak_gib`: until the first answer; the most memory of the process.

Worth, in Crafter:

* `goal_auc`: how well the log-odds of "can it be done now, and is it sensible?" tell the sensible deeds (ELLM's oracle)
  from others in situations of typed Crafter; with a bootstrap interval over situations. `goal_auc_examples`: with five
  known answers, about situations of another episode, before each question.
* `subgoal_rho`: Spearman correlation of the ratings of the 22 achievements ("how important is it on the way to the
  tasks of this env?") with how many other achievements need each by the rules; `subgoal_rho_depth`: with the number
  of achievements that it takes one after the other. `need_rho`, `need_rho_depth`: of the ratings that `--rate need`
  makes, of 462 questions.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from command_line import parser_of, show

REASONS = " Give your reasons in a sentence or two, then the answer."
OPEN_TOKENS = 80
TYPED = "Crafter-Typed-Harder"
PARTS = ("costs", "goals", "subgoals")


def questions(folder: Path, variant: str, count: int, compare: str = "pairs") -> list[Any]:
    """The closed requests of a label run."""
    from bkrl.data.dataset import Dataset
    from bkrl.labelers.config import LabelConfig
    from bkrl.labelers.plan import Plan
    from bkrl.labelers.variants import variant_of_plan

    llm = "local:qwen2.5-coder-1.5b"
    config = LabelConfig(dataset=folder, variant=variant, llm=llm, num=count, compare=compare)  # type: ignore[arg-type]
    plan = Plan.of(config, Dataset.open(folder))
    return list(variant_of_plan(plan).requests(plan) or ())


def seconds_each(model: Any, requests: Sequence[Any]) -> float:
    """Seconds of a question, all asked together, in batches as a session gathers them."""
    import torch

    from bkrl.llm.local import BATCH, CLOSED_BATCH

    started, size = time.process_time(), CLOSED_BATCH if requests[0].choices else BATCH
    for first in range(0, len(requests), size):
        for answer in model.answer(requests[first : first + size]):
            if isinstance(answer, Exception):
                raise answer
    return (time.process_time() - started) / len(requests) / torch.get_num_threads()


def one_by_one(scorer: Any, asked: Sequence[Any]) -> list[Any]:
    """The scores of questions each of which is computed by itself, from its first token on."""
    from bkrl.llm.scoring import OptionScorer

    return [score for one in asked for score in OptionScorer(scorer.model).score([one])]


def costs(backend: Any, goals: int, pairs: int) -> dict[str, float]:
    """What questions cost. The model computes in this process, whose time is taken."""
    import torch

    from bkrl.core.config import CollectConfig
    from bkrl.core.reporter import Reporter
    from bkrl.llm.causal import CausalModel
    from bkrl.stages import collect

    model = CausalModel(backend._path, backend.identity)
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        collect.run(CollectConfig(env="BabyAI-GoToRedBall-v0", explorer="random", episodes=20, out=data), Reporter())
        about_goals = questions(data, "goal", goals)[:goals]
        about_pairs = questions(data, "pref", pairs)[: 2 * pairs]
        about_points = questions(data, "pref", pairs, "points")
    torch.set_num_threads(int(os.environ["BKRL_LLM_THREADS"]))  # collect sets its own
    started = time.process_time()
    seconds_each(model, about_goals[:1])
    load = time.process_time() - started
    closed = seconds_each(model, about_goals)
    both = seconds_each(model, about_pairs)
    points = seconds_each(model, about_points) * len(about_points)
    few = about_goals[: max(2, goals // 4)]
    last = [replace(one.messages[-1], text=one.messages[-1].text + REASONS) for one in few]
    worded = [
        replace(one, messages=(*one.messages[:-1], turn), choices=(), max_tokens=OPEN_TOKENS)
        for one, turn in zip(few, last, strict=True)
    ]
    opened = seconds_each(model, worded)
    model._scorer.score = partial(one_by_one, model._scorer)
    bare = seconds_each(model, few)
    return {
        "closed_ratio": opened / closed,
        "prefix_ratio": bare / closed,
        "pairs_per_hour": 3600 / (2 * both),
        "points_per_hour": 3600 * pairs / points,
        "goals_per_hour": 3600 / closed,
        "closed_seconds": closed,
        "open_seconds": opened,
        "pair_seconds": 2 * both,
        "load_seconds": load,
    }


def scores_of(backend: Any, questions: Sequence[Any]) -> Any:
    """(N, V, K) log-probabilities of the outcomes by each phrasing."""
    import numpy as np

    from bkrl.llm.choose import Chooser
    from bkrl.llm.policy import AskPolicy
    from bkrl.llm.session import AskSession

    with AskSession(backend, None, AskPolicy.of(backend.identity, 64)) as session:
        answers = Chooser(session).ask(questions)
    return np.stack([one.scores for one in answers if one is not None])


def chosen(backend: Any, questions: Sequence[Any]) -> Any:
    """(N, K) log-probabilities of the outcomes, all phrasings together."""
    from bkrl.llm.choose import settled

    return settled(scores_of(backend, questions))[0]


def situations_of(count: int, seed: int) -> list[tuple[tuple[str, ...], frozenset[str]]]:
    """Sentences of situations of typed Crafter, no two with the same sensible deeds, and these deeds.

    The play takes a sensible action half of the time, so that it comes to have things. Of 40 times as many situations
    every 40th.
    """
    import numpy as np

    from bkrl.envs import env_spec, make_vec, situations

    known, rng, names = situations(TYPED), np.random.default_rng(seed), env_spec(TYPED).action_names
    moves = [number for number, name in enumerate(names) if name.startswith("move")]
    envs = make_vec(TYPED, 8)
    seen, _ = envs.reset(seed=seed)
    found: dict[frozenset[str], tuple[str, ...]] = {}
    while len(found) < 40 * count:
        keys = [int(key) for key in known.keys(seen)]
        for key in keys:
            found.setdefault(frozenset(known.sensible(key)), known.text(key))
        deeds = [[names.index(deed) for deed in known.sensible(key) if deed in names] for key in keys]
        actions = [int(rng.choice(own if own and rng.random() < 0.5 else moves)) for own in deeds]
        seen = envs.step(np.array(actions))[0]
    envs.close()
    return [(text, deeds) for deeds, text in list(found.items())[39::40][:count]]


def auc(scores: Any, truth: Any) -> float:
    """The chance that a true one scores above a false one; ties count half."""
    above = scores[truth][:, None] - scores[~truth][None]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def goals_worth(backend: Any, situations: int, goals: int) -> dict[str, float]:
    """`goal_auc`: of `goals` deeds in each situation, all sensible ones among them as far as they fit."""
    import numpy as np

    from bkrl.envs import situations as situations_in
    from bkrl.labelers.closed import goal_question
    from bkrl.labelers.material import env_card
    from bkrl.llm.choose import ClosedQuestion
    from bkrl.llm.protocol import Message

    rng, card, possible = np.random.default_rng(0), env_card(TYPED), situations_in(TYPED).possible
    asked, truth, where = [], [], []
    for number, (text, sensible) in enumerate(situations_of(situations, seed=1)):
        own, others = [d for d in possible if d in sensible], [d for d in possible if d not in sensible]
        drawn = [*rng.permutation(own)[: goals // 2], *rng.permutation(others)][:goals]
        asked += [goal_question(card, " ".join(text), str(deed)) for deed in drawn]
        truth += [deed in sensible for deed in drawn]
        where += [number] * len(drawn)
    examples = []
    for place, (text, sensible) in enumerate(situations_of(5, seed=2)):
        deed = rng.choice([d for d in possible if (d in sensible) == (place % 2 == 0)])
        turn = goal_question(card, " ".join(text), str(deed)).phrasings[place % 2].messages[-1]
        examples += [turn, Message("assistant", "Yes" if place % 2 == 0 else "No")]
    with_examples = [
        ClosedQuestion(
            tuple(replace(way, messages=(way.messages[0], *examples, *way.messages[1:])) for way in one.phrasings)
        )
        for one in asked
    ]
    right, places = np.array(truth), np.array(where)
    found: dict[str, float] = {"goal_questions": len(asked)}
    for name, questions in (("goal_auc", asked), ("goal_auc_examples", with_examples)):
        told = chosen(backend, questions)
        odds = told[:, 0] - told[:, 1]
        draws = []
        for _ in range(500):
            some = np.concatenate([np.flatnonzero(places == one) for one in rng.integers(situations, size=situations)])
            draws += [auc(odds[some], right[some])] if 0 < right[some].sum() < len(some) else []
        low, high = np.percentile(draws, [2.5, 97.5])
        found |= {name: auc(odds, right), f"{name}_low": float(low), f"{name}_high": float(high)}
    return found


def needs() -> dict[str, set[str]]:
    """What each of Crafter's achievements needs at once, by the rules."""
    from bkrl.envs.crafter.rules import ACHIEVEMENTS, COLLECT, MAKE, PLACE

    found: dict[str, set[str]] = {name: set() for name in ACHIEVEMENTS}
    for tool, item, _ in COLLECT.values():
        found[f"collect_{item}"] |= {f"make_{tool}"} if tool else set()
    for made, (uses, near) in MAKE.items():
        found[f"make_{made}"] |= {f"collect_{item}" for item in uses} | {f"place_{one}" for one in near}
    for placed, (uses, _) in PLACE.items():
        found[f"place_{placed}"] |= {f"collect_{item}" for item in uses}
    return found | {"eat_plant": {"place_plant"}}


def subgoals_worth(backend: Any) -> dict[str, float]:
    """`subgoal_rho` and its like."""
    from scipy.stats import spearmanr

    from bkrl.envs import memory_of
    from bkrl.labelers.closed import questions_of_subgoals, ratings_of
    from bkrl.labelers.material import env_card

    tree, memory = needs(), memory_of("Crafter-Text-Reward")
    assert memory is not None

    def above(name: str) -> set[str]:
        return tree[name].union(*map(above, tree[name]))

    def depth(name: str) -> int:
        return 1 + max(map(depth, tree[name]), default=0)

    said = {name: goal for name, goal in zip(memory.names, memory.goals, strict=True) if name in tree}
    needed = [sum(name in above(other) for other in tree) for name in said]
    depths, found = [depth(name) for name in said], dict[str, float]()
    for rate, key in (("alone", "subgoal_rho"), ("need", "need_rho")):
        asked = questions_of_subgoals(env_card("Crafter-Text-Reward"), list(said.values()), rate)
        rated = ratings_of(scores_of(backend, asked), rate)
        found |= {key: float(spearmanr(rated, needed).statistic)}
        found |= {f"{key}_depth": float(spearmanr(rated, depths).statistic)}
    return found


def measure(model: str, threads: int, only: Sequence[str], quick: bool) -> dict[str, float]:
    """The figures of the parts that are named."""
    from bkrl.llm import open_backend

    os.environ["BKRL_LLM_THREADS"] = str(threads)
    backend, found = open_backend(model), dict[str, float]()
    if "costs" in only:
        found |= costs(backend, *((8, 2) if quick else (24, 12)))
    if "goals" in only:
        found |= goals_worth(backend, *((2, 4) if quick else (8, 12)))
    if "subgoals" in only:
        found |= subgoals_worth(backend)
    # The model is in this process where its time is taken, else in one of its own.
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {**found, "peak_gib": peak / 2**20}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="local:qwen2.5-coder-1.5b", help="as --llm takes it")
    parser.add_argument("--threads", type=int, default=2, help="threads of the model")
    parser.add_argument("--only", default=",".join(PARTS), help="costs, goals, subgoals")
    options = parser.parse_args()
    only = [part for part in options.only.split(",") if part]
    if set(only) - set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}.")
    if not options.quick:
        show(measure(options.model, options.threads, only, False), options.json)
        return
    from bkrl.agents.language.catalogue import open_language_model

    with tempfile.TemporaryDirectory() as folder:
        open_language_model("tiny-causal").save(Path(folder) / "tiny")
        show(measure(f"hf:{folder}/tiny", 1, only, True), options.json)


if __name__ == "__main__":
    main()
