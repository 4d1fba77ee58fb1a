"""What a study cost: nothing is counted twice, and nothing is left out."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bkrl.core.config import CollectConfig, ReportConfig
from bkrl.core.reporter import Reporter
from bkrl.data.derive import subset
from bkrl.report.costs import costs
from bkrl.report.model import Cost
from bkrl.report.runs import training_runs
from bkrl.runs.provenance import Chain, Link, Node, follow
from bkrl.runs.record import Run
from bkrl.stages import collect, report
from tests.report import synthetic
from tests.report.synthetic import collect as collected
from tests.report.synthetic import train_rs


def label(key: str, cost: float, inputs: list[str | None] = (), **facts: Any) -> Node:  # type: ignore[assignment]
    usage = {"requests": 30, "prompt_tokens": 900, "completion_tokens": 100, "cost_usd": cost}
    run = cast(Run, SimpleNamespace(facts={"usage": usage, **facts}))
    links = [Link(name=f"shard-{i}", recorded="", sha256="", found=found, problem="") for i, found in enumerate(inputs)]
    return Node(key, "label", run, "", links=links)


def test_answers_that_are_joined_cost_once() -> None:
    parts = [label("a", 0.5), label("b", 0.25)]
    whole = label("whole", 0.75, ["a", "b"], merged=["a", "b"])
    (row,) = costs(Chain({node.key: node for node in [*parts, whole]}))
    assert row == Cost(stage="label", runs=2, steps=None, requests=60, tokens=2000, money=0.75)


def test_a_joined_labelling_counts_where_a_part_is_gone() -> None:
    whole = label("whole", 0.75, [None, None], merged=["a", "b"])
    (row,) = costs(Chain({"whole": whole}))
    assert (row.runs, row.money) == (1, 0.75)


def test_what_is_asked_and_played_for_a_potential_and_in_training_is_counted() -> None:
    usage = label("x", 0.5).facts["usage"]
    advice = {"scale": 1.0, "source": "told", "asked": {"llm": "openai:m", "usage": usage}}
    made = cast(Run, SimpleNamespace(facts={"training": {"advice": advice}, "steps": 4096}))
    plain = cast(Run, SimpleNamespace(facts={"training": {"advice": None}}))
    nodes = [Node(str(i), "train-rm", run, "") for i, run in enumerate((made, plain))]
    (row,) = costs(Chain({node.key: node for node in nodes}))
    assert row == Cost(stage="train-rm", runs=2, steps=4096, requests=30, tokens=1000, money=0.5)
    unasked = Node("p", "train-rs", cast(Run, SimpleNamespace(facts={"steps": 8})), "")
    (row,) = costs(Chain({"p": unasked}))
    assert row == Cost(stage="train-rs", runs=1, steps=8, requests=None, tokens=None, money=None)
    trained = Node("t", "train-rs", cast(Run, SimpleNamespace(facts={"usage": usage, "steps": 8})), "")
    (row,) = costs(Chain({"t": trained}))
    assert row == Cost(stage="train-rs", runs=1, steps=8, requests=30, tokens=1000, money=0.5)


def test_a_copy_of_a_run_costs_nothing(tmp_path: Path) -> None:
    """A study in two folders, its dataset copied: labels name one place, the potential made from them the other."""
    copy = shutil.copytree(collected(tmp_path), tmp_path / "copy")
    synthetic.label(tmp_path, "code")
    potential = synthetic.train_rm(tmp_path, "code", dataset=copy)
    chain = follow([train_rs(tmp_path, "bk-code", 1, potential=potential)])
    assert len(chain.of("collect")) == 2
    (row,) = [row for row in costs(chain) if row.stage == "collect"]
    assert (row.runs, row.steps) == (1, 200_000)
    (trained,) = training_runs(chain, chain.of("train-rs"))[0]
    assert trained.collect_steps == 200_000


def test_what_an_explorer_played_that_does_not_learn_is_counted_once_however_it_was_copied(tmp_path: Path) -> None:
    config = CollectConfig(env="Toy-Chain", explorer="random", episodes=3, out=tmp_path / "data")
    played = collect.run(config, Reporter()).facts["recorded_steps"]
    subset(tmp_path / "data", tmp_path / "some", 2)
    chain = follow([tmp_path / "some"])
    assert sum(node.steps for node in chain.nodes.values()) == played > 0
    assert [row.steps for row in costs(chain)] == [played]


def test_policies_that_explored_or_are_begun_with_are_charged_and_clones_by_their_dataset(tmp_path: Path) -> None:
    data = collected(tmp_path)
    clone = train_rs(tmp_path, "bc", 1, data=data, name="clone")
    begun = train_rs(tmp_path, "ppo", 1, init_from=clone, name="begun")
    finetuned = train_rs(tmp_path, "ppo", 1, init_from=begun, name="finetuned")
    idle = train_rs(tmp_path, "random", 1, name="idle", facts={"learns": False})
    chain = follow([finetuned, idle])
    runs, _ = training_runs(chain, chain.of("train-rs"))
    charged = {run.key: run.collect_steps for run in runs}
    explored = 200_000
    assert charged == {
        clone.as_posix(): explored,
        begun.as_posix(): explored,
        finetuned.as_posix(): explored + 1_000_000,
        idle.as_posix(): 0,
    }
    assert [row.steps for row in costs(chain)] == [explored, 2 * 1_000_000]


def test_a_policys_file_and_a_dataset_that_came_back_are_charged_as_their_runs_are(tmp_path: Path) -> None:
    """A policy's file was followed nowhere, and nobody paid for a dataset that had been to Minari and back."""
    before = train_rs(tmp_path, "ppo", 1, name="before")
    stray = tmp_path / "stray" / "policy.json"
    stray.parent.mkdir()
    shutil.copy(before / "policy.json", stray)
    (stray.parent / "manifest.json").write_text('{"outputs": ["policy.json"]}')  # of another program
    begun = [
        train_rs(tmp_path, "ppo", 1, init_from=file, name=f"begun-{i}")
        for i, file in enumerate((before, before / "policy.json", stray))
    ]
    chain = follow(begun)
    runs, _ = training_runs(chain, [chain.nodes[run.as_posix()] for run in begun])
    assert [run.collect_steps for run in runs] == [1_000_000, 1_000_000, 0]
    assert chain.problems == []
    facts = [{"imported": "minari:x", "recorded_steps": 40, **known} for known in ({}, {"explorer_steps": 900})]
    back = [Node("a", "collect", cast(Run, SimpleNamespace(facts=one)), "") for one in facts]
    assert [node.steps for node in back] == [40, 900]


def test_a_page_has_the_money_of_training_too(tmp_path: Path) -> None:
    usage = {"requests": 30, "prompt_tokens": 900, "completion_tokens": 100, "cost_usd": 12.34}
    run = train_rs(tmp_path, "ppo", 1, 4e5, facts={"usage": usage})
    made = report.run(ReportConfig(runs=(run,), out=tmp_path / "report"), Reporter())
    page = made.file("report.html").read_text()
    costs = page[page.index('id="costs"') : page.index('id="provenance"')]
    assert '<td class="number">12.34</td>' in costs
