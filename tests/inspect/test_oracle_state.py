"""The full-state oracle: the right distance at every row, exact shaping, and a certificate that can fail."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.agents.policy import network_for
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.seeds import derive_seed
from bkrl.data.windows import Rollout, Windows
from bkrl.envs import make_vec, world
from bkrl.inspect.oracle_state import StateOracle, certify, check_task, measured_scale, play
from bkrl.learn.ppo import PPO
from bkrl.potentials import oracle_state, read_potential
from bkrl.potentials.protocol import Artefact, Scale
from bkrl.rewards.shaped import PotentialOfRollout, ShapedReward
from bkrl.rewards.shaping import shaping_rewards

TASK = "BabyAI-Text-GoToLocal-RedBall-S20"
GAMMA = 0.99


def oracle() -> StateOracle:
    facts, scale = world(TASK), Scale(-26.0, -1.0)
    return StateOracle(
        Artefact("state", 0, TASK, facts.family, facts.obs_shape, facts.action_names, scale, control="oracle-state")
    )


@pytest.fixture(scope="module")
def played() -> list[Rollout]:
    return play(TASK, 1)


def test_ppo_stores_the_distance_of_every_row_and_of_every_end():
    """T = 150 over several rollouts, against worlds that are stepped a second time with the same actions."""
    stream = ShapedReward(oracle(), GAMMA)
    envs = make_vec(TASK, 4, distances=True)
    network = network_for("compact", envs, "symbolic", 1, 0)
    config = PPOConfig(num_envs=4, num_steps=150, num_minibatches=4, update_epochs=1)
    ppo = PPO(envs, network, [stream], config, total_steps=10_000, seed=5)
    again = make_vec(TASK, 4, distances=True)
    again.reset(seed=derive_seed(5, "worlds"))
    ends = 0
    for _ in range(3):
        ppo.iterate()
        rollout = ppo.rollout_
        rows, finals = [again.distances()], []
        for actions in rollout.actions:
            infos = again.step(actions)[-1]
            rows.append(again.distances())
            if "_final_obs" in infos:
                finals.append(infos["final_distance"][infos["_final_obs"]])
        np.testing.assert_array_equal(rollout.distances, rows)
        np.testing.assert_array_equal(rollout.final_distances, np.concatenate([np.zeros(0), *finals]))
        assert len(rollout.final_distances) == len(rollout.final_index)
        ends += len(rollout.final_index)
    assert ends >= 4


def test_worlds_that_were_not_asked_store_nothing():
    envs = make_vec(TASK, 2)
    network = network_for("compact", envs, "symbolic", 1, 0)
    config = PPOConfig(num_envs=2, num_steps=8, num_minibatches=2)
    ppo = PPO(envs, network, [ShapedReward(oracle(), GAMMA)], config, total_steps=100)
    assert ppo.rollout_.distances is None
    with pytest.raises(InputError, match="distances=True"):
        ppo.iterate()


def test_phi_is_minus_the_steps_left_on_its_scale(played):
    phi, phi_final = PotentialOfRollout(oracle())(played[0])
    expected = np.clip((1.0 - played[0].distances.astype(float)) / 25.0, -1, 0)
    np.testing.assert_allclose(phi, expected, atol=1e-7)
    np.testing.assert_allclose(phi_final, np.clip((1.0 - played[0].final_distances) / 25.0, -1, 0), atol=1e-7)
    assert phi.dtype == np.float32
    unreachable = Rollout(**{**vars(played[0]), "distances": np.full_like(played[0].distances, np.inf)})
    assert (PotentialOfRollout(oracle())(unreachable)[0] == -1).all()


def test_shaping_telescopes_over_episodes_that_succeed_and_that_run_out_of_time(played):
    """Σ γ^t F_t = -Φ(s_0) where it succeeds, γ^T Φ(s_T) - Φ(s_0) at the time limit, across the two rollouts."""
    values = PotentialOfRollout(oracle())
    total, discount, first = np.zeros(32), np.ones(32), None
    kinds = {"terminated": 0, "truncated": 0}
    for rollout in played:
        phi, phi_final = values(rollout)
        paid = ShapedReward(oracle(), GAMMA).rewards(rollout) - rollout.rewards
        np.testing.assert_allclose(paid, shaping_rewards(rollout, phi, phi_final, GAMMA), atol=1e-6)
        first = phi[0].copy() if first is None else first
        finals = dict(zip(rollout.final_index.tolist(), phi_final.tolist(), strict=True))
        for t in range(rollout.num_steps):
            total += discount * paid[t]
            discount *= GAMMA
            for n in np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]):
                over = rollout.terminated[t, n]
                kinds["terminated" if over else "truncated"] += 1
                end = 0.0 if over else finals[t * 32 + n]
                assert total[n] == pytest.approx(discount[n] * end - first[n], abs=1e-5)
                total[n], discount[n], first[n] = 0.0, 1.0, phi[t + 1, n]
    assert min(kinds.values()) >= 5


def test_rows_that_look_alike_are_not_taken_for_the_same_state(played):
    """The first row is not taken over from the last rollout for its looks: views do not tell states apart."""
    values = PotentialOfRollout(oracle())
    values(played[0])
    elsewhere = Rollout(**{**vars(played[1]), "distances": played[1].distances + 3})
    assert elsewhere.observations[0].tobytes() == played[0].observations[-1].tobytes()
    np.testing.assert_array_equal(values(elsewhere)[0][0], PotentialOfRollout(oracle())(elsewhere)[0][0])


def test_play_is_its_seed_and_its_worlds_do_not_know_each_other(played):
    for one, other in zip(played, play(TASK, 1), strict=True):
        for name, array in vars(one).items():
            np.testing.assert_array_equal(array, getattr(other, name))
    order = np.random.default_rng(3).permutation(32)
    moved = play(TASK, 1, order)
    np.testing.assert_array_equal(moved[1].distances, played[1].distances[:, order])
    np.testing.assert_array_equal(played[0].observations[-1], played[1].observations[0])
    np.testing.assert_array_equal(played[0].distances[-1], played[1].distances[0])


def test_the_certificate_holds_and_says_what_it_could_not_check():
    found = certify(oracle(), seed=2)
    assert found.passed
    assert {check.name for check in found.checks} == {"telescoping", "policies", "constant", "worlds", "finite"}
    assert found.summary() == "5 of 5 checks of form hold (not applicable: batches, present, units)"
    assert "no windows" in found.to_json()["not_applicable"]["present"]


def test_the_certificate_fails_on_an_oracle_that_mixes_worlds_or_leaves_its_range():
    class Mixing(StateOracle):
        def of_rollout(self, rollout: Rollout, first: int = 0) -> np.ndarray:
            phi = super().of_rollout(rollout, first).copy()
            phi[:-1] = np.minimum(phi[:-1], phi[1:])  # the next world's clock
            return phi

    class TooLarge(StateOracle):
        def of_rollout(self, rollout: Rollout, first: int = 0) -> np.ndarray:
            return super().of_rollout(rollout, first) + np.float32(0.5)

    failed = {
        kind: [check.name for check in certify(kind(oracle().artefact)).checks if not check.passed]
        for kind in (Mixing, TooLarge)
    }
    assert failed == {Mixing: ["telescoping", "worlds"], TooLarge: ["finite"]}


def test_the_scale_reaches_from_far_away_to_the_last_action(played):
    scale = measured_scale(played)
    steps = np.concatenate([rollout.distances[:-1].ravel() for rollout in played])
    assert scale.hi == -1
    assert (steps > -scale.lo).mean() <= 0.011
    assert scale.lo < -15
    with pytest.raises(InputError, match="no scale"):
        measured_scale([Rollout(**{**vars(played[0]), "distances": np.full_like(played[0].distances, np.inf)})])


def test_recorded_windows_are_refused_and_so_are_other_tasks():
    views = np.zeros((2, 1, 7, 7, 3), np.uint8)
    with pytest.raises(InputError, match="cannot judge what was recorded"):
        oracle()(Windows(views, np.zeros((2, 0), np.int64), np.ones((2, 1), bool)))
    check_task(TASK)
    for wrong in ("BabyAI-Text-GoToLocal-RedBal-S20", "Crafter-Text-CollectDrink", "Toy-Grid", ""):
        with pytest.raises(UsageError, match="No full-state oracle"):
            check_task(wrong)


def test_it_is_stored_and_read_back(tmp_path):
    oracle().artefact.write(tmp_path)
    found = read_potential(tmp_path)
    assert isinstance(found, StateOracle)
    assert found.artefact.scale == Scale(-26.0, -1.0)
    assert found.artefact.kind == oracle_state.KIND
