"""Tournaments of programs: what is asked and trained, that it stays the same through kills, and what the winner is."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.derive import subset
from bkrl.labelers.config import EvolveConfig
from bkrl.labelers.growing import Grower, questions_of
from bkrl.labelers.tables import labels_of, responses_of
from bkrl.llm import BACKENDS, serve
from bkrl.llm.protocol import Reply, Request
from bkrl.llm.rules.proposals import FACTORS, proposed, varied
from bkrl.llm.session import AskSession
from bkrl.methods import TrainRsConfig
from bkrl.potentials import advice
from bkrl.potentials.config import TrainRmConfig
from bkrl.report.costs import costs
from bkrl.report.runs import training_runs
from bkrl.runs.provenance import follow, named
from bkrl.runs.record import Run
from bkrl.stages import train_rm, train_rs
from bkrl.studies import evolve
from tests.goals.test_closed import Scripted

ENV, OTHER = "BabyAI-GoToRedBall-v0", "BabyAI-GoToObj-v0"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., EvolveConfig]:
    """Tournaments on a few episodes."""
    data = tmp_path_factory.mktemp("data") / "few"
    subset(Path("sample:data-minigrid"), data, 6)

    def made(out: Path, **changes: object) -> EvolveConfig:
        base = EvolveConfig(
            data, f"{ENV} {OTHER}", out=out, rounds=2, proposals=2, trained=1, steps=2_048, train_seeds=1,
            eval_episodes=2, train_shaping="pbrs", cache=out.parent / "cache",
        )  # fmt: skip
        return replace(base, **changes)  # type: ignore[arg-type]

    return made


def said(run: Run) -> list[list[str]]:
    """The turns of each request."""
    return [[turn["content"] for turn in json.loads(row["prompt"])] for row in responses_of(run)]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, settings: Callable[..., EvolveConfig]) -> Run:
    return evolve.run(settings(tmp_path_factory.mktemp("evolve") / "run"), Reporter())


def test_a_tournament_asks_trains_and_chooses(held):
    facts, rows = held.facts, labels_of(held)
    assert facts["usage"]["requests"] == len(rows) == 4
    # without a program, and one of two programs in each round, on two tasks
    assert facts["tournament"]["trainings"] == len(list(held.path.glob("cells/*/task*/manifest.json"))) == 6
    assert facts["steps"] == 6 * 2_048
    assert facts["chosen_on"] == [{"env": ENV, "seeds": [101]}, {"env": OTHER, "seeds": [101]}]
    scores = {row["candidate_id"]: row["score"] for row in rows if row["score"] is not None}
    (chosen,) = [row["candidate_id"] for row in rows if row["chosen"]]
    assert len(scores) == 2
    assert scores[chosen] == max(scores.values()) == facts["tournament"]["score"]
    entrants = json.loads((held.path / "tournament.json").read_text())["entrants"]
    best = {0: [], 1: []}
    for row, entrant in zip(rows, entrants, strict=True):
        best[row["round"]].append((entrant["quality"], entrant["course"] is not None))
    for found in best.values():
        assert next(trained for quality, trained in found if quality == max(found)[0])


def test_writers_learn_how_agents_fared_and_never_the_task(held):
    first, second = said(held)[:2], said(held)[2:]
    for place, turns in enumerate(first):
        assert len(turns) == 2
        assert f"This is proposal {place + 1} of 2." in turns[-1]
        assert "Agents were trained" not in turns[-1]
    tournament = json.loads((held.path / "tournament.json").read_text())
    program = next(row["program"] for row in labels_of(held) if row["round"] == 0 and row["score"] is not None)
    course = next(one["course"] for one in tournament["entrants"] if one["course"])
    for turns in second:
        assert len(turns) == 4
        assert program.strip() in turns[2]
        assert "its values lie between" in turns[3]
        assert "Agents were trained on 2 tasks" in turns[3]
        for shares in (course["shares"], tournament["without"]["shares"]):
            assert f": {100 * shares[ENV][0]:.0f} %" in turns[3]
    asked = "\n".join(text for turns in [*first, *second] for text in turns)
    assert not {ENV, OTHER, "GoToObj", "GoToRedBall"} & set(asked.replace('"', " ").split())


def test_the_winner_is_an_ordinary_potential_and_says_where_it_was_chosen(held, tmp_path):
    phi = train_rm.run(TrainRmConfig(held.path, out=tmp_path / "phi"), Reporter())
    assert phi.facts["chosen_on"][0]["env"] == ENV
    small = PPOConfig(num_envs=8, num_steps=16)
    common = {"alg": "bk-evolve", "potential": phi.path, "steps": 128, "eval_episodes": 2, "ppo": small}
    here, elsewhere = (
        train_rs.run(TrainRsConfig(**common, env=env, out=tmp_path / env), Reporter())
        for env in (ENV, "BabyAI-GoToLocal-v0")
    )
    assert any("was chosen by training in" in one for one in here.facts["warnings"])
    assert not any("was chosen by training in" in one for one in elsewhere.facts.get("warnings", []))
    with pytest.raises(UsageError, match="won a tournament; use --alg bk-evolve"):
        train_rs.run(TrainRsConfig(**{**common, "alg": "bk-code"}, env=ENV, out=tmp_path / "other"), Reporter())
    chain = follow([elsewhere.path])
    label = next(row for row in costs(chain) if row.stage == "label")
    assert (label.runs, label.steps, label.requests) == (1, 6 * 2_048, 4)
    (trained,) = training_runs(chain, chain.of("train-rs"))[0]
    collected = sum(int(node.facts.get("steps", 0)) for node in chain.of("collect"))
    assert trained.collect_steps == collected + 6 * 2_048


def test_what_a_run_keeps_below_itself_is_no_run_of_a_folder(held):
    with pytest.raises(Exception, match="there is no train-rs run in it"):
        named([held.path.parent], ["train-rs"])


class Counting(serve.Server):
    """The rules annotator behind an endpoint; counts how often each prompt came."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.answer = serve.completion

    def counted(self, document: object) -> object:
        """An answer, counted."""
        self.seen[json.dumps(document, sort_keys=True)] += 1
        return self.answer(document)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    server = Counting()
    monkeypatch.setattr(serve, "completion", server.counted)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def contents(run: Path) -> dict[str, bytes]:
    """What does not name the folder that it lies in."""
    return {name: (run / name).read_bytes() for name in ("programs.parquet", "responses.parquet", "tournament.json")}


@pytest.mark.slow
def test_a_killed_tournament_goes_on_to_the_same_bytes_and_asks_nothing_twice(
    endpoint, tmp_path, monkeypatch, settings
):
    config = settings(tmp_path / "stopped", llm="openai:m", tasks=ENV)
    real = {"train_rm": train_rm.run, "train_rs": train_rs.run}
    for stage, survive in (("train_rs", 1), ("train_rm", 1), ("train_rs", 2), ("train_rm", 3)):
        left = iter([True] * survive)

        def dies(*arguments, stage=stage, left=left):
            if not next(left, False):
                raise RuntimeError("killed")
            return real[stage](*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(f"bkrl.stages.{stage}.run", dies)
            with pytest.raises(RuntimeError, match="killed"):
                evolve.run(config, Reporter())
    stopped = evolve.run(config, Reporter())
    assert endpoint.seen.total() == len(endpoint.seen) == 4
    whole = evolve.run(replace(config, out=tmp_path / "whole"), Reporter())
    assert endpoint.seen.total() == 4
    assert contents(stopped.path) == contents(whole.path)
    assert stopped.facts["usage"]["prompt_tokens"] == whole.facts["usage"]["prompt_tokens"] > 4_000
    free = evolve.run(replace(config, out=tmp_path / "free", llm="rules"), Reporter())
    assert [row["program"] for row in labels_of(stopped)] == [row["program"] for row in labels_of(free)]


def test_limits_hold_and_the_same_command_goes_on(endpoint, tmp_path, settings):
    """The limit comes in the second round, and at once where the same command is given again."""
    config = settings(tmp_path / "run", llm="openai:m", max_requests=1, tasks=ENV, proposals=1)
    for _ in range(2):
        with pytest.raises(RunFailed, match="limit of 1 request"):
            evolve.run(config, Reporter())
        assert endpoint.seen.total() == 1
    assert evolve.run(replace(config, max_requests=0), Reporter()).complete
    assert endpoint.seen.total() == 2


def test_a_program_without_advice_is_not_trained_with(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(advice, "LEAST_SHARE", 2.0)
    config = settings(tmp_path / "run", train_shaping="advice", rounds=1, tasks=ENV, proposals=1)
    with pytest.raises(RunFailed, match=r"could be trained with \(its advice is empty"):
        evolve.run(config, Reporter())
    (entrant,) = json.loads((tmp_path / "run/tournament.json").read_text())["entrants"]
    assert entrant["error"].startswith("its advice is empty")
    assert [path.parent.name for path in tmp_path.glob("run/cells/*/task*")] == ["without"] * 2  # the run and its log


def test_a_round_after_one_that_trained_nothing_asks_anew(tmp_path, settings, monkeypatch):
    """Its prompts are the same, so the store gave the replies of the round before, and all rounds were one."""
    samples = []
    flat = "def potential(observations, actions, valid):\n    return np.zeros(len(observations)) + 0.001 * %d\n"

    class Writer:
        name, identity = "writer", {"kind": "writer", "version": "1"}

        async def complete(self, request: Request) -> Reply:
            samples.append(request.sample)
            return Reply(f"```python\n{flat % len(samples)}```", model="writer")

        def facts(self) -> dict[str, str]:
            return self.identity

        async def close(self) -> None: ...

    monkeypatch.setattr("bkrl.llm.BACKENDS._targets", BACKENDS._targets | {"writer": lambda name, config: Writer()})
    with pytest.raises(RunFailed, match="Not one of 6 programs could be trained with"):
        evolve.run(settings(tmp_path / "run", llm="writer", rounds=3, tasks=ENV), Reporter())
    assert sorted(samples) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_programs_without_advice_are_not_trained_with(tmp_path, settings):
    changes = {"dataset": Path("sample:data-minigrid"), "rounds": 1, "tasks": ENV, "proposals": 3, "trained": 3}
    run = evolve.run(settings(tmp_path / "run", train_shaping="advice", **changes), Reporter())
    entrants = json.loads((run.path / "tournament.json").read_text())["entrants"]
    empty = [one for one in entrants if one["error"].startswith("its advice is empty")]
    assert len(empty) == 2
    assert not any(one["course"] or list(run.path.glob(f"cells/{one['name']}/task*")) for one in empty)
    assert [row["status"] for row in labels_of(run)].count("failed") == 2


def parts_of(program: str) -> list[str]:
    return re.findall(r"# (\w+)(?=: )", program)


def test_programs_grow_by_one_subgoal_in_the_order_of_the_answers(tmp_path, settings):
    config = settings(tmp_path / "run", llm="random:3", with_memory=True, tasks=ENV, train_shaping="progress")
    run = evolve.run(config, Reporter())
    rows, choices = labels_of(run), pq.read_table(run.file("choices.parquet")).to_pylist()
    asked = responses_of(run)
    names = [row["about"] for row in choices if " for " not in row["about"]]
    assert run.facts["usage"]["requests"] == len(asked) == len(choices) == len(names) ** 2
    assert len({row["prompt"] for row in asked}) == len(asked)
    ratings = {row["about"]: np.exp(row["logprobs"]) @ np.arange(10) for row in choices[: len(names)]}
    order = sorted(names, key=lambda name: -ratings[name])
    first, second = ([row for row in rows if row["round"] == number] for number in (0, 1))
    assert [parts_of(row["program"]) for row in first] == [[name] for name in order[:2]]
    asked_of = {row["about"]: row["request_ids"] for row in choices}
    assert all(asked_of[parts_of(row["program"])[-1].partition("_after_")[0]] == [row["request_id"]] for row in rows)
    trained = [row for row in first if row["score"] is not None]
    (best,) = parts_of(max(trained, key=lambda row: row["score"])["program"])
    assert [parts_of(row["program"])[0] for row in second] == [best] * 2
    needs = {}
    for row in choices[len(names) :]:
        goal, _, other = row["about"].partition(" for ")
        needs.setdefault(other, []).append((row["logprobs"][0], goal))
    for row, name in zip(second, [name for name in order if name != best], strict=False):
        behind = f"_after_{best}" if max(needs[name])[1] == best else ""
        assert parts_of(row["program"])[1] == f"{name}{behind}"


def test_each_question_is_asked_once_however_many_programs_are_proposed(settings, tmp_path):
    plan = evolve._plan(settings(tmp_path / "run", llm="openai:m", ask="closed", with_memory=True, proposals=4))
    backend = Scripted(lambda request: "Yes" if request.choices == ("Yes", "No") else "5")  # without log-probabilities
    with AskSession(backend) as session:
        assert len(Grower(plan, session).propose(0, None, ())) == 4
    assert len(backend.asked) == len(questions_of(plan))


class Told(Grower):
    """A grower whose answers are given."""

    def __init__(self, ratings: list[float], first: list[str]) -> None:
        self.named = {name: (f"go to {name}", f"now[:, {i}]") for i, name in enumerate("abc")}
        self._told = np.array(ratings), first, []  # type: ignore[misc]

    def changes(self, *parts: tuple[str, str]) -> list[tuple[tuple[str, str], ...]]:
        return [changed for _, changed in self._changes(parts)]


def test_a_program_takes_on_what_matters_behind_what_it_needs_and_gives_up_what_matters_least(monkeypatch):
    told = Told([1.0, 3.0, 2.0], ["c", "a", "b"])
    assert told.changes() == [((name, ""),) for name in "bcabca"]
    assert told.changes(("b", "")) == [
        (("b", ""), ("c", "b")), (("b", ""), ("a", "")), (("b", ""), ("c", "")), (("b", ""), ("a", "")),
    ]  # fmt: skip
    assert told.changes(("b", ""), ("c", "b"), ("a", "c")) == [
        (("b", ""), ("c", "b")), (("b", ""), ("a", "c")), (("c", "b"), ("a", "c")),
    ]  # fmt: skip
    told.plan = SimpleNamespace(card=SimpleNamespace(memory=()))  # type: ignore[assignment]
    program = told.program((("b", ""), ("c", "b")))
    assert 'parts["b"] = 0.50000 * (now[:, 1])' in program
    assert 'parts["c_after_b"] = 0.50000 * (now[:, 2] * (now[:, 1] >= 1))' in program


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tasks": ""}, "A tournament needs tasks to train in"),
        ({"tasks": "MiniGrid-UnlockPickup-v0"}, "is a task of the second set, on which claims are made"),
        ({"tasks": "Crafter-Text-EatCow"}, "has other observations or actions than the dataset"),
        ({"tasks": f"{ENV} {ENV}"}, "names a task twice"),
        ({"tasks": "BabyAI-GoToRedBal-v0"}, "Did you mean"),
        ({"llm": "openia:m"}, "There is no annotator 'openia:m'"),
        ({"llm": "openai:unknown-model", "max_cost": 1.0}, "prices"),
        ({"llm": "rules", "ask": "closed"}, "answers open questions only; leave --ask closed out"),
        ({"llm": "equal", "ask": "open"}, "answers closed questions only; pass --ask closed"),
        ({"llm": "votes"}, "The votes annotator knows envs of housekeep"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(tmp_path, monkeypatch, changes, sentence, settings):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with pytest.raises(UsageError, match=sentence):
        evolve.run(settings(tmp_path / "run", **changes), Reporter())
    assert not (tmp_path / "run").exists()


def test_effort_and_seed_reach_the_session(tmp_path, monkeypatch, settings):
    """What one effort's run learnt of an endpoint was used for every other; `random` drew alike for every seed."""
    told = []

    def opened(*given, **named):
        told.append(named)
        raise UsageError("enough")

    monkeypatch.setattr(evolve, "open_session", opened)
    for begin in (evolve.run, evolve.outlook):
        with pytest.raises(UsageError, match="enough"):
            begin(settings(tmp_path / "run", llm="openai:m", effort="low", seed=7), Reporter())
    assert told == [{"effort": "low", "seed": 7}] * 2


def test_prompts_that_cannot_be_filled_in_are_refused_before_anything_is_trained(tmp_path, monkeypatch, settings):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (tmp_path / "own").mkdir()
    for name, text in (
        ("code_error", "{{ error }} {{ 1 // 0 }}"),
        ("code_evolve", "{{ number }}{{ count }}{{ steps.x.y }}"),
    ):
        own = tmp_path / "own" / f"{name}.md"
        own.write_text(f"<<<user>>>\n{text}\n")
        with pytest.raises(InputError, match=f"The prompt {name}.md .* cannot be filled in"):
            evolve.run(settings(tmp_path / "run", llm="openai:m", prompt=str(tmp_path / "own")), Reporter())
        own.unlink()
    assert not (tmp_path / "run").exists()


def test_a_forecast_says_requests_and_steps(tmp_path, settings):
    found = evolve.outlook(settings(tmp_path / "run", dry_run=True), Reporter())
    assert (found.requests, found.at_most) == (4, 4), "three more where a program fails its check"
    assert "At most 6 trainings of 2,048 steps, 12,288 env steps in all." in found.notes
    grown = evolve.outlook(settings(tmp_path / "run", dry_run=True, llm="equal", with_memory=True), Reporter())
    assert (grown.requests, grown.at_most) == (17**2, 1)
    assert grown.tokens_out == grown.requests, "each answer is one word"
    assert not list(tmp_path.iterdir())


def test_the_rules_annotator_changes_one_weight_at_a_time():
    program = 'def f():\n    parts = {"a": 0.7 * x, "b": -0.2 * y, "c": 0.1 * z}\n    return sum(parts.values()), parts'
    weights = []
    for number in range(3):
        other = varied(program, number)
        changed = [
            (old, new)
            for old, new in zip(program.replace("{", " ").split(), other.replace("{", " ").split(), strict=True)
            if old != new
        ]
        ((old, new),) = changed
        assert float(new) == pytest.approx(FACTORS[number] * float(old))
        weights.append(old)
    assert len(set(weights)) == 3
    worth = (
        "FIELD = {'a': 3, 'b': 4}\nWORTH = {'a': (0.05, 6), 'b': (0.1, 2)}\ndef f():\n    return sum(parts.values())"
    )
    assert {varied(worth, number).split("\n")[1] for number in (0, 1)} <= {
        f"WORTH = {{'a': ({a}, 6), 'b': ({b}, 2)}}" for a, b in ((0.1, 0.1), (0.025, 0.1), (0.05, 0.2), (0.05, 0.05))
    }
    assert varied("def potential(): ...", 0) == "def potential(): ..."
    assert proposed(["simple", "rich"], "", 0) == "rich"
    assert proposed(["simple", "rich"], "", 1) == "simple"
