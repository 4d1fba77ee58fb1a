"""Action advice: learnt from a potential or from a program, stored, and followed for a while."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from bkrl.agents import load_agent
from bkrl.agents.advised import Advice, AdvisedAgent
from bkrl.agents.build import new_agent
from bkrl.agents.networks import build_network
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError
from bkrl.data.views import Views
from bkrl.data.windows import gather
from bkrl.envs import make_vec
from bkrl.learn.ppo import PPO
from bkrl.potentials import advice
from bkrl.potentials.code import CodeRaw
from bkrl.rewards.streams import EnvReward
from bkrl.sandbox.process import ProgramFailed
from tests.learn.agents import agent_of

STATES, ACTIONS, HORIZON = 5, 3, 2
Q = np.random.default_rng(0).normal(size=(STATES, ACTIONS))
V = np.random.default_rng(1).normal(size=STATES)


def network(seed: int = 0):
    from bkrl.envs.symbols import Symbols

    symbols = Symbols.of_sizes([STATES])
    return build_network("compact", obs_shape=(1,), num_actions=ACTIONS, num_values=1, symbols=symbols, seed=seed)


def record(rows: int = 8000, episode: int = 13) -> advice.Record:
    rng = np.random.default_rng(2)
    return advice.Record(
        rng.integers(0, STATES, (rows, 1)).astype(np.uint8),
        rng.integers(0, ACTIONS, rows),
        (np.arange(rows) % episode).astype(np.int32),
    )


def raw_of(rows: advice.Record) -> np.ndarray:
    """V(s_t) + Σ q over the actions remembered, as the decomposition says; short where an episode is young."""
    windows = gather(rows.observations, rows.actions, rows.ages, np.arange(len(rows.actions)), HORIZON)
    states = windows.observations[:, :, 0]
    remembered = (Q[states[:, :-1], windows.actions] * windows.valid[:, :-1]).sum(1)
    return V[states[:, -1]] + remembered


def every_state() -> torch.Tensor:
    return torch.arange(STATES, dtype=torch.uint8)[:, None]


def expected(q: np.ndarray, observations: np.ndarray) -> np.ndarray:
    behind = q.max(1, keepdims=True) - q
    scale = np.percentile(behind[observations[:, 0]].ravel(), 99, method="closest_observation")
    return np.clip(-behind / scale, -1, 0)


def test_a_potential_is_split_into_states_and_actions():
    rows = record()
    psi, fit = advice.decompose(network(), rows, raw_of(rows), HORIZON, seed=1, epochs=12)
    assert fit.explained > 0.99
    assert 0.2 < fit.actions_share < 1.0
    np.testing.assert_allclose(psi(every_state()).numpy(), expected(Q, rows.observations), atol=0.08)


def test_a_potential_of_states_alone_gives_no_advice():
    rows = record()
    psi, fit = advice.decompose(network(), rows, V[rows.observations[:, 0]], HORIZON, seed=1)
    assert fit.actions_share < advice.LEAST_SHARE
    assert (psi(every_state()) == 0).all()
    assert fit.facts()["scale"] is None


def test_fitting_is_the_same_each_time():
    rows = record(2000)
    psis = [advice.decompose(network(), rows, raw_of(rows), HORIZON, seed=1, epochs=2)[0] for _ in range(2)]
    assert torch.equal(psis[0](every_state()), psis[1](every_state()))


def test_advice_of_a_program_is_imitated_up_to_a_constant_for_each_state():
    rows = record()
    wanted = Q[rows.observations[:, 0]] + 10 * V[rows.observations[:, 0]][:, None]
    psi, fit = advice.imitate(network(), rows, wanted, seed=1, epochs=12)
    assert fit.source == "program"
    assert fit.explained > 0.99
    np.testing.assert_allclose(psi(every_state()).numpy(), expected(Q, rows.observations), atol=0.08)


def test_advice_of_a_single_row_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="it takes two to learn from"):
        advice.imitate(network(), record(1), np.zeros((1, ACTIONS)), seed=1)


PROGRAM = """
WORTH = 3


def doubled(x):
    return 2.0 * x


def potential(observations, actions, valid):
    return observations[:, -1, 0] * 1.0


def advice(observations, actions, valid):
    now = observations[:, -1, 0]
    return np.stack([doubled(now), -1.0 * now, now * 0.0 + WORTH], axis=1)
"""


def test_a_programs_advice_runs_in_the_sandbox():
    program = CodeRaw(PROGRAM, (1,), HORIZON)
    assert CodeRaw(PROGRAM.replace("def advice", "def advises"), (1,), HORIZON).advises(3) is None
    rows = record(64)
    windows = gather(rows.observations, rows.actions, rows.ages, np.arange(64), HORIZON).numbered()
    now = rows.observations[:, 0].astype(float)
    table = program.advises(3)
    np.testing.assert_array_equal(table(windows), np.stack([2 * now, -now, np.full(64, 3.0)], 1))
    table.close()


def test_a_programs_advice_may_ask_its_potential():
    source = """
def potential(observations, actions, valid):
    return observations[:, -1, 0] * 1.0


def twice(potential):
    return 2 * potential


def advice(observations, actions, valid):
    potential_of_states = twice(potential=potential(observations, actions, valid))
    return np.stack([potential_of_states, -potential_of_states], axis=1)
"""
    rows = record(40)
    windows = gather(rows.observations, rows.actions, rows.ages, np.arange(40), HORIZON)
    table = CodeRaw(source, (1,), HORIZON).advises(2)
    now = rows.observations[:, :1].astype(float)
    np.testing.assert_array_equal(table(windows.numbered()), now * [2, -2])
    table.close()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("np.zeros((len(actions), 3))", r"failed: its advice: AssertionError: advice must be of shape \(B, 2\)"),
        ("np.zeros(len(actions))", r"advice must be of shape \(B, 2\)"),
        ("np.zeros((len(actions), 2)) + [0, np.nan]", "its advice holds values that are not finite"),
        ("np.zeros((len(actions), 2))[:, 6]", "failed: its advice: IndexError"),
    ],
)
def test_advice_of_another_shape_is_refused_in_a_sentence(told: str, said: str):
    """Columns beyond the actions were cut off without a word."""
    rows = record(40)
    windows = gather(rows.observations, rows.actions, rows.ages, np.arange(40), HORIZON).numbered()
    source = PROGRAM[: PROGRAM.index("def advice")] + f"def advice(observations, actions, valid):\n    return {told}\n"
    table: Any = CodeRaw(source, (1,), HORIZON).advises(2)
    with closing(table), pytest.raises(ProgramFailed, match=said):
        table(windows)


MANY = "return np.repeat(observations[:, -1] * 1.0, 260, axis=1)"


def test_a_long_program_may_advise_on_many_actions():
    """Each action took ten nodes of the 4,000 that a program may have: a long one was refused in Crafter-Typed-Full."""
    long = "".join(f"    now = now + {number} * observations[:, -1, 0]\n" for number in range(120))
    source = f"{PROGRAM}\n\ndef unused(observations, now):\n{long}    return now\n"
    source = source.replace("return np.stack([doubled(now), -1.0 * now, now * 0.0 + WORTH], axis=1)", MANY)
    rows = record(8)
    windows = gather(rows.observations, rows.actions, rows.ages, np.arange(8), HORIZON).numbered()
    table: Any = CodeRaw(source, (1,), HORIZON).advises(260)
    with closing(table):
        np.testing.assert_array_equal(table(windows), np.repeat(rows.observations * 1.0, 260, axis=1))


def test_stored_advice_comes_back_as_it_was(tmp_path: Path):
    psi = Advice(advice.rounded(network(3)), 0.7)
    files, settings = advice.save(psi, tmp_path)
    again = advice.load(tmp_path, settings)
    assert files == [advice.ADVICE]
    assert torch.equal(psi(every_state()), again(every_state()))
    with pytest.raises(InputError, match="run train-rm again"):
        advice.load(tmp_path, {})
    (tmp_path / advice.ADVICE).write_bytes((tmp_path / advice.ADVICE).read_bytes()[:50])
    with pytest.raises(InputError, match="damaged"):
        advice.load(tmp_path, settings)


def test_empty_advice_needs_no_file_and_comes_back_as_none(tmp_path: Path):
    psi, fit = advice.no_advice(network())
    assert (psi.empty, fit.empty) == (True, True)
    assert advice.save(psi, tmp_path) == ([], {"advice": None})
    assert not any(tmp_path.iterdir())
    assert advice.load(tmp_path, {"advice": None}) is None
    # as potentials of before stored it: a whole network, with an infinite scale
    full = Advice(advice.rounded(network(3)), 0.7)
    _, settings = advice.save(full, tmp_path)
    full.scale.fill_(float("inf"))
    tensors = {key: value.contiguous() for key, value in full.state_dict().items()}
    (tmp_path / advice.ADVICE).write_bytes(safetensors.torch.save(tensors))
    old = advice.load(tmp_path, settings)
    assert old.empty
    assert not old(every_state()).any()


def test_constant_advice_is_the_mean_over_the_states_of_the_dataset(tmp_path: Path):
    rows = record()
    psi, fit = advice.decompose(network(), rows, raw_of(rows), HORIZON, seed=1, epochs=3)
    same, found, of_each = advice.constant(psi, fit, rows)
    assert found == fit
    mean = psi(torch.from_numpy(rows.observations)).mean(0).numpy()
    assert max(of_each) == 0.0
    for state in same(every_state()).numpy():
        np.testing.assert_allclose(state, mean - mean.max(), atol=1e-3)
        np.testing.assert_allclose(state, of_each, atol=1e-6)
    _, settings = advice.save(same, tmp_path)
    assert torch.equal(advice.load(tmp_path, settings)(every_state()), same(every_state()))


def test_advice_that_cancels_out_over_the_dataset_is_empty():
    psi, fit = advice.no_advice(network())
    same, found, of_each = advice.constant(psi, replace(fit, scale=1.0), record(64))
    assert same.empty
    assert found.empty
    assert of_each == [0.0] * ACTIONS


def test_fitted_advice_is_in_half_precision_and_loses_nothing_when_stored(tmp_path: Path):
    rows = record()
    psi, _ = advice.decompose(network(), rows, raw_of(rows), 1, seed=0)
    _, settings = advice.save(psi, tmp_path)
    again = advice.load(tmp_path, settings)
    assert torch.equal(psi(every_state()), again(every_state()))
    assert again(every_state()).dtype == torch.float32
    weights = sum(value.numel() for value in psi.network.parameters())
    assert (tmp_path / advice.ADVICE).stat().st_size < 2.2 * weights + 2000


def test_advice_follows_the_mission_where_the_potential_reads_it(tmp_path: Path):
    rows = record(4000)
    missions = np.array(["go to the key", "go to the ball"], object)[np.random.default_rng(4).integers(0, 2, 4000)]
    wanted = np.eye(ACTIONS)[np.where(missions == "go to the key", 0, 1)]
    told = build_network("compact", obs_shape=(1,), num_actions=ACTIONS, num_values=1, missions=True)
    told.mission.vocabulary.add(missions)
    psi, fit = advice.imitate(told, replace(rows, missions=missions), wanted, seed=1)
    assert fit.explained > 0.9
    blind = advice.imitate(network(), rows, wanted, seed=1)[1].explained
    assert blind < 0.3, "a quarter: that the third action is never wanted"
    _, settings = advice.save(psi, tmp_path)
    again = advice.load(tmp_path, settings)
    advised = AdvisedAgent(agent_of(network(1), "Toy-Chain"), again, weight=100.0, until=10)
    assert advised.wants == ("symbols", "mission")
    for mission, best in (("go to the key", 0), ("go to the ball", 1)):
        views = Views(every_state().numpy(), mission=np.full(STATES, mission, object))
        assert (advised.forward(advised.inputs(views), {}, None)[0].argmax(1) == best).all()


def test_an_advised_policy_falls_back_to_its_base(monkeypatch: pytest.MonkeyPatch):
    """Schedules are the base's, too: a language model's read texts stayed, which a run that goes on has not read."""
    base, psi = agent_of(network(1), "Toy-Chain"), Advice(network(2), 0.5)
    steps: list[int] = []
    monkeypatch.setattr(base, "schedule", steps.append)
    advised = AdvisedAgent(base, psi, weight=4.0, until=100)
    logits, values = base.module(every_state())
    views = Views(every_state().numpy())
    for step, beta in ((0, 4.0), (25, 3.0), (100, 0.0), (500, 0.0)):
        advised.schedule(step)
        shifted, same, _ = advised.forward(advised.inputs(views), {}, None)
        torch.testing.assert_close(shifted, logits + beta * psi(every_state()))
        assert torch.equal(same, values)
    assert steps == [0, 25, 100, 500]
    assert all(p is q for p, q in zip(advised.groups()["policy"], base.module.parameters(), strict=True))


def test_an_advised_policy_is_saved_with_the_advice_it_has_left(tmp_path: Path):
    envs = make_vec("Toy-Grid", 1)
    base, told = (new_agent("compact", envs, "symbolic", 1, seed) for seed in (1, 2))
    advised = AdvisedAgent(base, Advice(told.module, 0.25), weight=4.0, until=100)
    advised.schedule(50)
    advised.save(tmp_path)
    places, no = Views(np.arange(25, dtype=np.uint8)[:, None]), np.zeros(25, bool)
    here, again, plain = (a.act(places, {}, no, None).logits for a in (advised, load_agent(tmp_path), base))
    assert np.array_equal(here, again)
    assert not np.array_equal(here, plain)


class Wrong(torch.nn.Module):
    """Advice against working, where only work is paid."""

    vocabulary = None

    def forward(self, observations, words):
        return torch.tensor([0.0, -1.0]).expand(len(observations), 2)


def test_wrong_advice_delays_but_does_not_hide_the_optimum():
    config = PPOConfig(num_envs=16, num_steps=32, num_minibatches=2, learning_rate=3e-3, gamma=0.95)

    def work(steps: int) -> float:
        envs = make_vec("Toy-Endless", 16)
        advised = AdvisedAgent(new_agent("compact", envs, "symbolic", 1, 1), Wrong(), weight=3.0, until=8_192)
        ppo = PPO(envs, advised, [EnvReward(gamma=0.95)], config, total_steps=steps, seed=1)
        while not ppo.done:
            ppo.iterate()
        places = Views(ppo.collector.rollout.views.symbols[-32:, :].reshape(-1, 1))
        logits = advised.act(places, {}, np.zeros(len(places), bool), None).logits
        return float(torch.from_numpy(logits).softmax(-1)[:, 1].mean())

    assert work(512) < 0.4
    assert work(16_384) > 0.9
