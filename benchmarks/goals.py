"""How fast goals are: each ratio measured side by side in one run, on one thread.

    python benchmarks/goals.py [--json] [--quick] [--only envs|learners|asking|local]

* `typed_ratio`: steps of typed Crafter a second with text keys, goals of the oracle, matching and payment, resets
  included, over the same on PyPI crafter as `pip install crafter` leaves it, with caption strings, an encoder with its
  cache and cosines (`plain_ellm.py`, which leaves out the published 512×512 pictures). `typed_ratio_numba`: where numba
  happens to compile the noise that crafter's terrain is made of. `typed_steps_per_s`: ours. Random actions.
* `dqn_ratio`: whole training of `ellm-dqn` (symbols; 16 samples a step, as published) over the published loop with
  pictures of 84×84, text features that cost nothing, and three-step double dueling DQN. `dqn_symbols_ratio`: over the
  same plain loop with our symbols and our network by matrix products, both on PyPI crafter with compiled noise.
  `dqn_observation_share`: of the logarithm of `dqn_ratio`, what symbols in place of pictures explain.
* `pqn_ratio`: whole training of `ellm` over `ellm-dqn`, default settings of both. `dqn_large_ratio`: `ellm-dqn` with
  one update of 1,024 for each 64 steps over its default, at the same number of samples a step.
* `warm_captions_per_s`: situations of random play answered by an `openai:` suggester whose replies are all kept, new
  situations and the reading of the store included.
* `cold_slowdown`: how many percent longer an iteration of `ellm` takes while a loopback server answers each question
  after 500 ms, 16 at a time, than with the same replies kept. The thread that asks is included.
* `cold_local_slowdown`: how many percent longer by the clock an iteration of `ellm` takes while SmolLM2-135M answers
  closed questions that nobody waits for, than while its process is halted: five iterations each, in turns.
  `cold_local_held`: the same without the time that training waited for a core, so that it holds beside other work, too.
  `_error` of each: the standard error of the mean over turns. `cold_local_answers`: answers a second.
  `cold_local_load`: the largest load average. Left out where the model is not on this machine.

Rounds alternate between the sides, so that other work on the machine hits all; the middle ratio counts. All other times
are processor time.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from bkrl.core.config import HardwareConfig
from bkrl.core.models import find
from bkrl.data.views import Views
from bkrl.envs import make_vec, situations
from bkrl.goals.asked import AskedSuggester
from bkrl.goals.book import GoalBook
from bkrl.goals.match import Matcher
from bkrl.goals.suggesters import Oracle
from bkrl.goals.tracker import GoalTracker
from bkrl.learn.settings import DQNConfig
from bkrl.llm import open_backend
from bkrl.llm.policy import AskPolicy
from bkrl.llm.protocol import Connection
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from bkrl.methods import TrainRsConfig, find_method
from bkrl.text.prompts import SHIPPED
from command_line import parser_of, show
from plain_ellm import TYPED, PlainDQN, PlainEnv
from plain_ppo import crafter_noise

ENVS = 1024
LOCAL = "smollm2-135m"
POLICY = AskPolicy(concurrency=16, max_concurrency=16)


def spent(work: Callable[[], object]) -> float:
    """Seconds of processor time."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Ours:
    """Typed envs with goals, random actions."""

    def __init__(self, num_envs: int) -> None:
        known = situations(TYPED)
        self.tracker = GoalTracker(GoalBook(known, Oracle(known), Matcher(known)), num_envs)
        self.envs = make_vec(TYPED, num_envs)
        self.seen, _ = self.envs.reset(seed=0)
        self.started = np.ones(num_envs, bool)
        self.actions = np.random.default_rng(0).integers(0, 139, (256, num_envs))
        self.count = 0

    def steps(self, count: int) -> int:
        """So many steps of all; how many that were."""
        for _ in range(count):
            actions = self.actions[self.count % 256]
            self.tracker(Views(self.seen), self.started)
            self.seen, _, terminated, truncated, infos = self.envs.step(actions)
            self.tracker.happened(actions, infos)
            self.started = terminated | truncated
            self.count += 1
        return count * self.envs.num_envs


def envs(rounds: int, quick: bool) -> dict[str, float]:
    """Typed Crafter with goals."""
    ours, rng = Ours(32 if quick else ENVS), np.random.default_rng(0)
    ours.steps(4 if quick else 200)  # compile, and let episodes spread out
    count = 1 if quick else 60
    before, ended = ours.count, 0
    for _ in range(2 * count):
        ours.steps(1)
        ended += int(ours.started.sum())
    length = (ours.count - before) * len(ours.started) / max(1, ended)
    few = 5 if quick else 40  # steps of the plain side: too few for an episode to end
    rates: dict[str, list[float]] = {"typed": [], "plain": [], "numba": []}
    with crafter_noise(numba=True):
        plain = PlainEnv()
    for _ in range(rounds):
        start = time.process_time()
        taken = ours.steps(count)
        rates["typed"].append(taken / (time.process_time() - start))
        with crafter_noise(numba=True):
            plain.begin()
            step = spent(lambda: [plain.step(int(rng.integers(6))) for _ in range(few)]) / few
            resets = {True: spent(plain.begin)}
        with crafter_noise(numba=False):
            resets[False] = resets[True] if quick else spent(plain.begin)
        rates["numba"].append(1 / (step + resets[True] / length))
        rates["plain"].append(1 / (step + resets[False] / length))

    def ratio(slow: str) -> float:
        return statistics.median(f / s for f, s in zip(rates["typed"], rates[slow], strict=True))

    return {
        "typed_ratio": ratio("plain"),
        "typed_ratio_numba": ratio("numba"),
        "typed_steps_per_s": statistics.median(rates["typed"]),
        "typed_plain_steps_per_s": statistics.median(rates["plain"]),
        "typed_episode_length": length,
    }


def learner(alg: str, **settings: Any) -> Any:
    """What `bkrl train-rs` builds."""
    config = TrainRsConfig(alg=alg, steps=10**9, hardware=HardwareConfig(device="cpu"), **settings)
    return find_method(alg).build(config).learner  # type: ignore[union-attr]


def rate(one: Any, steps: int) -> float:
    """Steps a second over whole iterations."""
    first, start = one.step, time.process_time()
    while one.step < first + steps:
        one.iterate()
    return float(one.step - first) / (time.process_time() - start)


def learners(rounds: int, quick: bool) -> dict[str, float]:
    """Training, ours and plain."""
    begun = 200 if quick else 2_000
    default = replace(DQNConfig(), learning_starts=begun)
    large = replace(default, num_envs=64, num_steps=16, batch_size=1_024, update_every=64, learning_starts=begun)
    sides = {"dqn": learner("ellm-dqn", dqn=default), "large": learner("ellm-dqn", dqn=large), "pqn": learner("ellm")}
    for one in sides.values():  # compile, and fill the memory
        while one.step < (256 if quick else 4_096):
            one.iterate()
    rates: dict[str, list[float]] = {name: [] for name in (*sides, "pixels", "symbols")}
    with crafter_noise(numba=True):
        plain = {"pixels": PlainDQN(True), "symbols": PlainDQN(False)}
        for one in plain.values():
            for _ in range(140):
                one.act()
        for _ in range(rounds):
            for name, one in sides.items():
                rates[name].append(rate(one, 64 if quick else 16_384 if name == "pqn" else 2_048))
            for name, loop in plain.items():
                count = 4 if quick else 40 if name == "pixels" else 400
                rates[name].append(count / spent(lambda loop=loop, count=count: [loop.act() for _ in range(count)]))

    def ratio(fast: str, slow: str) -> float:
        return statistics.median(f / s for f, s in zip(rates[fast], rates[slow], strict=True))

    found = {
        "dqn_ratio": ratio("dqn", "pixels"),
        "dqn_symbols_ratio": ratio("dqn", "symbols"),
        "dqn_observation_share": math.log(ratio("symbols", "pixels")) / math.log(ratio("dqn", "pixels")),
        "dqn_large_ratio": ratio("large", "dqn"),
        "pqn_ratio": ratio("pqn", "dqn"),
    }
    return found | {f"{name}_train_steps_per_s": statistics.median(values) for name, values in rates.items()}


@contextmanager
def served(latency: float) -> Iterator[None]:
    """The rules annotator in a process of its own, and the environment pointing at it."""
    command = [sys.executable, "-m", "bkrl.llm.serve", "--port", "0", "--latency", str(latency)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    os.environ |= {"OPENAI_BASE_URL": process.stdout.readline().strip(), "OPENAI_API_KEY": "none"}
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def asking(rounds: int, quick: bool) -> dict[str, float]:
    """Suggestions of an endpoint, kept and not."""
    known, ours = situations(TYPED), Ours(32 if quick else 256)
    seen = []
    for _ in range(4 if quick else 400):
        ours.steps(1)
        seen.append(known.keys(ours.seen))
    rates, slower = [], []
    with tempfile.TemporaryDirectory() as name, served(0.0 if quick else 0.5):
        cache = Path(name)

        def suggester(session: AskSession, wait: bool = False) -> AskedSuggester:
            return AskedSuggester("openai:rules", session, known, SHIPPED, "crafter", wait=wait)

        def session(store: Store, policy: AskPolicy = POLICY) -> AskSession:
            return AskSession(open_backend("openai:rules", Connection(cache)), store, policy)

        fast = AskPolicy(concurrency=256, max_concurrency=256)
        with Store(cache) as store, session(store, fast) as asked:  # every reply is kept after this
            distinct = np.unique(np.concatenate(seen)).tolist()
            suggester(asked, wait=True).suggest(distinct)
        for _ in range(rounds):
            with Store(cache) as store, session(store) as asked:
                book = GoalBook(known, suggester(asked), Matcher(known))
                took = spent(lambda book=book: [book.rows(keys) for keys in seen])
                assert asked.budget.sent == 0
                rates.append(sum(map(len, seen)) / took)
        for number in range(rounds):
            slower.append(_slowdown(Path(name) / f"round{number}", 1 if quick else 60, number))
    return {
        "warm_captions_per_s": statistics.median(rates),
        "warm_situations": float(len(distinct)),
        "cold_slowdown": 100 * statistics.median(slower),
    }


def _slowdown(cache: Path, iterations: int, seed: int) -> float:
    """Iterations of `ellm` that ask, over the same ones with what came kept, less 1."""
    times = []
    for _ in range(2):  # the second finds the replies of the first
        one = learner("ellm", suggester="openai:rules", cache=cache, seed=seed, concurrency=16)
        one.iterate()
        times.append(spent(lambda one=one: [one.iterate() for _ in range(iterations)]))
        one.collector.view.goals.book.suggester.session.close()
    return times[0] / times[1] - 1


def local(rounds: int, quick: bool) -> dict[str, float]:
    """Training beside a model on this machine."""
    if not find(LOCAL).here:
        print(f"cold_local_slowdown is left out; `bkrl lm fetch {LOCAL}` brings its model.", file=sys.stderr)
        return {}
    with tempfile.TemporaryDirectory() as cache:
        one = learner("ellm", suggester=f"local:{LOCAL}", goal_wait=False, cache=Path(cache))
        session = one.collector.view.goals.book.suggester.session
        one.iterate()
        while not session.usage.asked:  # until the model is loaded
            one.iterate()
        model, rows = session.backend._process.pid, []
        for number in range(2 if quick else 15 * rounds):
            took = {}
            for asks in (number % 2 == 0, number % 2 == 1):
                os.kill(model, signal.SIGCONT if asks else signal.SIGSTOP)
                took[asks] = _beside(one, session)
            slower = [100 * (took[True][k] / took[False][k] - 1) for k in (0, 1)]
            rows.append((*slower, took[True][2], os.getloadavg()[0]))
        assert len(session._submitted) > len(session._came), "the model had answered everything"
        session.close()
    columns = dict(zip(("slowdown", "held", "answers", "load"), zip(*rows, strict=True), strict=True))
    found = {f"cold_local_{name}": statistics.median(columns[name]) for name in ("slowdown", "held", "answers")}
    for name in ("slowdown", "held"):
        found[f"cold_local_{name}_error"] = statistics.stdev(columns[name]) / math.sqrt(len(rows))
    return found | {"cold_local_load": max(columns["load"])}


def _beside(one: Any, session: AskSession) -> tuple[float, float, float]:
    """Seconds of five iterations by the clock, less waiting for a core, and answers a second meanwhile."""
    time.sleep(0.05)  # what was on its way arrives
    answered, start, waited = session.usage.asked, time.perf_counter(), _waited()
    for _ in range(5):
        one.iterate()
    took, waited = time.perf_counter() - start, _waited() - waited
    return took, took - waited, (session.usage.asked - answered) / took


def _waited() -> float:
    """Seconds that this thread was ready and had no core, ever; 0 where the system does not say."""
    told = Path("/proc/thread-self/schedstat")
    return int(told.read_text().split()[1]) / 1e9 if told.exists() else 0.0


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parts = {"envs": envs, "learners": learners, "asking": asking, "local": local}
    parser.add_argument("--only", choices=list(parts), help="one part only")
    args = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    torch.set_num_threads(1)
    results: dict[str, float] = {}
    for name, measure in parts.items():
        if args.only in (None, name):
            results |= measure(1 if args.quick else 5, args.quick)
    show(results, args.json)


if __name__ == "__main__":
    main()
