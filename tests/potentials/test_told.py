"""Advice from closed questions about actions: each caption once, kept, and what the answers say is what Ψ says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bkrl.core.config import CollectConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.llm.opening import open_session
from bkrl.llm.protocol import chances
from bkrl.methods import TrainRsConfig
from bkrl.potentials import advice, load_potential
from bkrl.potentials.config import TrainRmConfig
from bkrl.potentials.told import told_by
from bkrl.report.runs import annotator_of, answered
from bkrl.runs.provenance import follow
from bkrl.runs.samples import SAMPLES
from bkrl.stages import collect, train_rm, train_rs
from tests.labelers.scripted import asker
from tests.llm import tiny_gguf

ENV = "MiniGrid-DoorKey-5x5-v0"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    config = CollectConfig(
        env=ENV, explorer="bot", epsilon=0.5, episodes=30, out=tmp_path_factory.mktemp("told") / "data"
    )
    return Dataset.open(collect.run(config, Reporter()).path)


def forward_unless_a_wall(request) -> str:
    """What the scripted annotator likes; it is fond of what is listed first."""
    text = request.messages[-1].text
    seen, listed = text.split("Which action")
    best = "left" if "wall" in seen else "forward"
    odds = {word: 4.0 * (word == best) + (word == listed.split(": ")[1].split(",")[0]) for word in request.choices}
    total = math.log(sum(math.exp(one) for one in odds.values()))
    return chances({word: one - total for word, one in odds.items()})


def test_each_caption_is_asked_in_both_orders_and_its_rows_learn_it(data):
    with asker(forward_unless_a_wall) as session:
        record, wanted, facts = told_by(session, data, 40)
    asked = [request.messages[-1].text for request in session.backend.requests]
    assert len(asked) == len(set(asked)) == 2 * facts["captions"] == 80
    assert len(record.actions) == len(wanted) == facts["rows"] < facts["rows_of"]
    frequent = np.sort(np.unique(data.caption_ids, return_counts=True)[1])[::-1]
    assert facts["rows"] == frequent[:40].sum()
    liked = {request.choices[int(np.argmax(row))] for row in wanted for request in session.backend.requests[:1]}
    assert liked <= {"left", "forward"}
    assert np.allclose(np.exp(wanted).sum(1), 1.0)


def test_a_collect_run_becomes_advice_that_a_policy_takes(data, tmp_path):
    settings = {"advice": "random", "advice_captions": 60, "cache": tmp_path / "cache"}
    made = train_rm.run(TrainRmConfig(data.path, out=tmp_path / "rm", **settings), Reporter())
    again = train_rm.run(TrainRmConfig(data.path, out=tmp_path / "rm2", **settings), Reporter())
    assert (made.path / advice.ADVICE).read_bytes() == (again.path / advice.ADVICE).read_bytes()
    assert (made.facts["advice"], made.facts["kind"], made.facts["llm"]) == ("model", "zero", "random")
    assert "warnings" not in made.facts
    assert made.facts["training"]["advice"]["asked"]["captions"] == 60
    potential = load_potential(made.path)
    psi = advice.load(potential.artefact.folder, potential.artefact.settings)
    assert psi is not None
    assert float(psi(torch.from_numpy(data.observations[:64])).amax(1).abs().max()) == 0.0
    potential.close()
    run = TrainRsConfig("bk-code", env=ENV, potential=made.path, shaping="advice", steps=2_048, eval_episodes=2)
    assert train_rs.run(replace(run, out=tmp_path / "run"), Reporter()).facts["form"] == "advice"
    chain = follow([tmp_path / "run"])
    assert [annotator_of(one) for one in chain.nodes.values() if answered(one)] == ["random"]
    with pytest.raises(UsageError, match="has advice alone"):
        train_rs.run(replace(run, out=tmp_path / "no", shaping="pbrs"), Reporter())


def test_what_was_asked_is_counted_in_the_run_and_asked_once(data, tmp_path):
    model = tiny_gguf.build(tmp_path / "models" / "tiny", "llama", positions=8192)
    settings = {"advice": f"hf:{model}", "advice_captions": 3, "cache": tmp_path / "cache"}
    runs = [train_rm.run(TrainRmConfig(data.path, out=tmp_path / name, **settings), Reporter()) for name in "ab"]
    usages = [run.facts["training"]["advice"]["asked"]["usage"] for run in runs]
    assert [(usage["requests"], usage["sent"]) for usage in usages] == [(6, 6), (6, 0)]
    with pytest.raises(RunFailed, match="--max-requests"):
        train_rm.run(
            TrainRmConfig(data.path, out=tmp_path / "c", **settings | {"cache": tmp_path}, max_requests=4), Reporter()
        )


def test_advice_is_bought_at_ones_own_prices_by_either_api(data, tmp_path, monkeypatch):
    """--max-cost was refused where the shipped list has no price, and train-rm had no --prices to give one."""
    opened = []

    def stop(name, settings, stack, **more):
        opened.append(open_session(name, settings, stack, **more))
        raise RunFailed("enough")

    monkeypatch.setattr(train_rm, "open_session", stop)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (prices := tmp_path / "prices.toml").write_text('[[price]]\nmodel = "own"\ninput = 3\noutput = 4\n')
    config = TrainRmConfig(data.path, out=tmp_path / "rm", advice="openai:own", max_cost=1.0, cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="pass it with --prices FILE"):
        train_rm.run(config, Reporter())
    with pytest.raises(RunFailed, match="enough"):
        train_rm.run(replace(config, prices=prices, api="responses"), Reporter())
    (session,) = opened
    assert (session.price.input, session.price.output) == (3, 4)
    assert session.backend.identity["api"] == "responses"


@pytest.mark.parametrize("control", ["zero", "random"])
def test_a_control_without_labels_holds_no_advice_of_a_model(tmp_path, control):
    """Such a control counted as one without labels, and held what the model said of actions."""
    labels, out = SAMPLES / "labels-qwen1.5b-minigrid", tmp_path / "rm"
    with pytest.raises(UsageError, match=f"--control {control} holds nothing of an annotator; leave --advice out"):
        train_rm.run(TrainRmConfig(labels, control=control, advice="random", out=out), Reporter())
    assert not out.exists()


def test_what_cannot_answer_is_refused_in_one_sentence(data, tmp_path):
    def made(llm: str, **settings):
        config = TrainRmConfig(data.path, out=tmp_path / "rm", advice=llm, cache=tmp_path / "cache", **settings)
        return train_rm.run(config, Reporter())

    with pytest.raises(UsageError, match="which rules does not answer"):
        made("rules")
    with pytest.raises(UsageError, match="There is no annotator"):
        made("nobody")
    with pytest.raises(UsageError, match="leave out --control"):
        made("random", control="zero")
    with pytest.raises(InputError, match="'label' run is needed"):
        train_rm.run(TrainRmConfig(data.path, out=tmp_path / "rm"), Reporter())
    assert not (tmp_path / "rm").exists()
    with (
        asker(lambda request: "I cannot say") as session,
        pytest.raises(RunFailed, match="Not one of 3 captions has a clear answer"),
    ):
        told_by(session, data, 3)


def test_random_advice_is_drawn_by_the_seed(data, tmp_path, monkeypatch):
    """Every seed had the same answers, so the spread of a control's draws was 0."""
    told = []
    monkeypatch.setattr(train_rm, "told_by", lambda *how: told.append(told_by(*how)) or told[-1])
    for number, (seed, name) in enumerate([(1, "random"), (2, "random"), (3, "random:1")]):
        config = TrainRmConfig(data.path, out=tmp_path / f"{number}", advice=name, seed=seed, advice_captions=20)
        train_rm.run(replace(config, cache=tmp_path / "cache"), Reporter())
    first, second, again = (wanted for _, wanted, _ in told)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)
