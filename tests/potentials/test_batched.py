"""Every kind of potential, over random episode structures: a whole rollout at once gives the same bits as one window
after the other, each put together by hand, and the shaping made of them telescopes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkrl.agents.build import advice_network
from bkrl.data.windows import Rollout, Windows
from bkrl.envs import make_vec
from bkrl.potentials.asked import present
from bkrl.potentials.code import CodeRaw
from bkrl.potentials.goal import GoalIndex, GoalRaw
from bkrl.potentials.goal.texts import on_grid
from bkrl.potentials.parts import StateRaw
from bkrl.potentials.preference import PreferenceRaw
from bkrl.potentials.preference.net import NetConfig, PreferenceNet
from bkrl.potentials.protocol import Artefact, Raw, Scale, Scaled
from bkrl.rewards.shaped import PotentialOfRollout
from bkrl.rewards.shaping import shaping_rewards
from bkrl.text.encoders import HashEncoder
from tests.potentials.rollouts import history, random_rollouts

H, SHAPE, ACTIONS = 2, (3, 3, 2), ("left", "right", "up", "down")
PROGRAM = """
import numpy as np
def potential(observations, actions, valid):
    seen = observations.astype(float).sum(axis=(2, 3, 4)) * valid
    done = (actions * valid[:, :-1]).sum(axis=1)
    return np.sin(seen[:, -1] / 7.0) + 0.3 * seen[:, :-1].mean(axis=1) ** 0.5 - 0.1 * done
"""


def describe(views: np.ndarray) -> list[str]:
    return [f"You see {view[0, 0, 0]} balls and a {'red' if view[1, 1, 1] > 3 else 'blue'} key." for view in views]


def code() -> CodeRaw:
    return CodeRaw(PROGRAM, SHAPE, H)


def preference(members: int = 1) -> PreferenceRaw:
    torch.manual_seed(0)
    config = NetConfig(SHAPE, len(ACTIONS), H, width=16, hidden=16)
    return PreferenceRaw(*(PreferenceNet(config) for _ in range(members)), temperature=1.7)


def goal() -> GoalRaw:
    encoder = HashEncoder()
    goals = ["go to the red key", "fetch 3 balls", "you left"]
    rng = np.random.default_rng(0)
    keys = on_grid(rng.normal(size=(6, encoder.size)))
    index = GoalIndex(keys, goals, on_grid(encoder(goals)), rng.random((6, 3)) < 0.6)
    return GoalRaw(index, encoder, describe, ACTIONS, 0.1, horizon=H)


def scaled(raw: Raw) -> Scaled:
    return Scaled(raw, Artefact("code", H, "Toy-Grid", "toy", SHAPE, ACTIONS, Scale(-1.0, 2.0)))


def one_window(potential: Scaled, rollout: Rollout, t: int, n: int, final: np.ndarray | None = None) -> np.float32:
    """Φ of a single window, put together by hand from the definition; with `final` the one after action t."""
    known = min(int(rollout.ages[t, n]), H)
    rows = [len(rollout.past) + t - back for back in range(known, -1, -1)]
    shown, acted = history(rollout)
    views = [shown[row, n] for row in rows]
    done = [int(acted[row, n]) for row in rows[:-1]]
    if final is not None:
        views.append(final)
        done.append(int(acted[rows[-1], n]))
    views, done = views[-(H + 1) :], done[-H:]
    missing = H + 1 - len(views)
    window = Windows.of(
        np.stack([np.zeros(SHAPE, np.uint8)] * missing + views)[None],
        np.array([[0] * missing + done], np.int64),
        np.array([[False] * missing + [True] * len(views)]),
    )
    return potential(window)[0]


@pytest.fixture(
    scope="module",
    params=[code, preference, pytest.param(lambda: preference(3), marks=pytest.mark.slow), goal],
    ids=["code", "pref", "ensemble", "goal"],
)
def potential(request) -> Iterator[Scaled]:
    made = scaled(request.param())
    yield made
    made.close()


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**31), steps=st.integers(1, 6), num_envs=st.integers(1, 3), end_rate=st.floats(0, 0.9),
)  # fmt: skip
def test_a_rollout_at_once_is_one_window_after_the_other_bit_for_bit(potential, seed, steps, num_envs, end_rate):
    rollouts = random_rollouts(seed, H, steps, num_envs, end_rate, count=3, shape=SHAPE)
    values = PotentialOfRollout(potential)
    total, discount = np.zeros(num_envs), np.ones(num_envs)
    start: np.ndarray | None = None
    for rollout in rollouts:
        phi, phi_final = values(rollout)
        assert phi.dtype == phi_final.dtype == np.float32
        one_by_one = [[one_window(potential, rollout, t, n) for n in range(num_envs)] for t in range(steps + 1)]
        np.testing.assert_array_equal(phi, np.array(one_by_one, np.float32))
        finals = [
            one_window(potential, rollout, *divmod(int(index), num_envs), final)
            for index, final in zip(rollout.final_index, rollout.final_views.symbols, strict=True)
        ]
        np.testing.assert_array_equal(phi_final, np.array(finals, np.float32))
        start = phi[0].astype(np.float64) if start is None else start
        shaping = shaping_rewards(rollout, phi, phi_final, 0.99).astype(np.float64)
        ends = dict(zip(rollout.final_index.tolist(), phi_final.astype(np.float64), strict=True))
        for t in range(steps):
            total += discount * shaping[t]
            discount *= 0.99
            for n in np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]):
                end = 0.0 if rollout.terminated[t, n] else ends[t * num_envs + int(n)]
                assert total[n] == pytest.approx(discount[n] * end - start[n], abs=1e-5)
                total[n], discount[n], start[n] = 0.0, 1.0, phi[t + 1, n]


def test_the_part_of_the_view_says_the_same_of_missions_in_any_batch() -> None:
    """Products of one or two missions have other last digits than those of many."""
    envs = make_vec("BabyAI-GoToLocal-v0", 80)
    seen, missions = envs.reset(seed=0)[0].copy(), envs.missions().copy()
    assert len(set(missions)) > 10
    raw = StateRaw(advice_network(envs.env_spec, 3, missions), -0.5, 0.3)
    windows = present(seen, 0, missions, None)
    together = raw(windows)
    assert len(set(together.tolist())) > 10
    for count in (1, 2, 3, 17):
        assert raw(windows[np.arange(count)]).tolist() == together[:count].tolist()
    whole = [raw.network(*(torch.from_numpy(one) for one in (seen, raw.network.mission.vocabulary.tokens(missions))))]
    np.testing.assert_allclose(together, np.clip(-0.5 + 0.3 * whole[0][1][:, 0].numpy(), -1, 0), atol=1e-5)
