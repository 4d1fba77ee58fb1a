"""What asking a language model on this machine costs: closed and open questions, shared prefixes or none.

    python benchmarks/judges.py [--model local:NAME|gguf:PATH|hf:FOLDER] [--threads 2] [--json] [--quick]

The questions are those of `bkrl label --ask closed` about random play in BabyAI-GoToRedBall: goals of captions, and
pairs of segments in both orders. Seconds are processor time divided by the threads, which is what a quiet machine
takes; loading the model is not in them. --quick asks a tiny model with random weights.

* `closed_ratio`: seconds of an open answer (the same question about a goal, with a sentence or two of reasons, at most
  80 tokens) divided by those of a closed one.
* `prefix_ratio`: seconds of a closed question asked by itself, without kept prefixes, divided by those of one among the
  others.
* `pairs_per_hour`: pairs of segments in both orders.
* `goals_per_hour`: questions about a goal.
* `load_seconds`, `peak_gib`: until the first answer; the most memory of the process.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from command_line import parser_of, show

REASONS = " Give your reasons in a sentence or two, then the answer."
OPEN_TOKENS = 80


def questions(folder: Path, variant: str, count: int) -> list[Any]:
    """The closed requests of a label run."""
    from bkrl.data.dataset import Dataset
    from bkrl.labelers.config import LabelConfig
    from bkrl.labelers.plan import Plan
    from bkrl.labelers.variants import variant_of_plan

    config = LabelConfig(dataset=folder, variant=variant, llm="local:qwen2.5-coder-1.5b", num=count)  # type: ignore[arg-type]
    plan = Plan.of(config, Dataset.open(folder))
    return list(variant_of_plan(plan).requests(plan) or ())


def seconds_each(backend: Any, requests: Sequence[Any]) -> float:
    """Seconds of a question, all asked together."""
    from bkrl.llm.policy import AskPolicy
    from bkrl.llm.session import AskSession

    with AskSession(backend, None, AskPolicy.of(backend.identity, 64)) as session:
        started = time.process_time()
        session.ask(requests)
        return (time.process_time() - started) / len(requests) / int(os.environ["BKRL_LLM_THREADS"])


def measure(model: str, threads: int, goals: int, pairs: int) -> dict[str, float]:
    """All figures."""
    from bkrl.core.config import CollectConfig
    from bkrl.core.reporter import Reporter
    from bkrl.llm import open_backend
    from bkrl.stages import collect

    os.environ["BKRL_LLM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        collect.run(CollectConfig(env="BabyAI-GoToRedBall-v0", explorer="random", episodes=20, out=data), Reporter())
        about_goals = questions(data, "goal", goals)[:goals]
        about_pairs = questions(data, "pref", pairs)[: 2 * pairs]
    backend = open_backend(model)
    started = time.process_time()
    seconds_each(backend, about_goals[:1])
    load = time.process_time() - started
    closed = seconds_each(backend, about_goals)
    both = seconds_each(backend, about_pairs)
    few = about_goals[: max(2, goals // 4)]
    last = [replace(one.messages[-1], text=one.messages[-1].text + REASONS) for one in few]
    worded = [
        replace(one, messages=(*one.messages[:-1], turn), choices=(), max_tokens=OPEN_TOKENS)
        for one, turn in zip(few, last, strict=True)
    ]
    opened = seconds_each(backend, worded)
    backend._scorer.keep_prefixes = False  # type: ignore[attr-defined]
    bare = seconds_each(backend, few)
    return {
        "closed_ratio": opened / closed,
        "prefix_ratio": bare / closed,
        "pairs_per_hour": 3600 / (2 * both),
        "goals_per_hour": 3600 / closed,
        "closed_seconds": closed,
        "open_seconds": opened,
        "pair_seconds": 2 * both,
        "load_seconds": load,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="local:qwen2.5-coder-1.5b", help="as --llm takes it")
    parser.add_argument("--threads", type=int, default=2, help="threads of the model")
    options = parser.parse_args()
    if not options.quick:
        show(measure(options.model, options.threads, goals=48, pairs=8), options.json)
        return
    from bkrl.agents.language.catalogue import open_language_model

    with tempfile.TemporaryDirectory() as folder:
        open_language_model("tiny-causal").save(Path(folder) / "tiny")
        show(measure(f"hf:{folder}/tiny", 1, goals=8, pairs=2), options.json)


if __name__ == "__main__":
    main()
