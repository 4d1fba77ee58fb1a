"""Every check of the certificate passes on the real thing and fails on the published defect it is there for."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.data.dataset import Dataset
from bkrl.data.windows import Windows
from bkrl.envs import toy
from bkrl.inspect import certificate
from bkrl.inspect.certificate import GAMMA, certify, replay
from bkrl.rewards.shaping import next_potentials, shaping_rewards
from tests.experience import write_dataset
from tests.potentials.rollouts import HashPotential, rollout_of


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "run"
    write_dataset(path, lengths=[5, 3, 9, 4, 12, 7], shape=(4, 4, 3))
    return Dataset.open(path)


@pytest.fixture(scope="module")
def rollouts(dataset):
    return replay(dataset, 3, num_envs=4, steps=40, seed=0)


@pytest.fixture(scope="module")
def sample(dataset):
    return dataset.windows(np.arange(40), 3)


class Faulty(HashPotential):
    """The good potential, spoilt by a function of its windows and values."""

    def __init__(self, spoil) -> None:
        super().__init__(3)
        self.spoil = spoil

    def __call__(self, windows: Windows) -> np.ndarray:
        return self.spoil(windows, super().__call__(windows))


def shifted_by_one(rollout, phi, phi_final, gamma):
    """B2: γΦ(h_t) - Φ(h_{t-1}) is paid for action t."""
    before = np.vstack([phi[:1], phi[:-2]])
    return gamma * phi[:-1].astype(np.float64) - before


def across_episodes(rollout, phi, phi_final, gamma):
    """B3: no reset at an episode's end; the next episode's first state counts as the successor."""
    return gamma * phi[1:].astype(np.float64) - phi[:-1]


def truncation_as_termination(rollout, phi, phi_final, gamma):
    """B10 on shaping: Φ = 0 at a time limit as well."""
    return shaping_rewards(rollout, phi, np.zeros_like(phi_final), gamma)


def carried_row_divided_twice(rollout, phi, phi_final, gamma):
    """B6: the row carried from the last rollout is divided by the running spread once more."""
    spoilt = phi.copy()
    spoilt[0] /= 7.0
    return shaping_rewards(rollout, spoilt, phi_final, gamma)


def rescaled_as_it_goes(rollout, phi, phi_final, gamma):
    """B7: the scale is a running one, so Φ of the same state changes with time."""
    scale = np.linspace(1.0, 0.4, len(phi))[:, None]
    return gamma * next_potentials(rollout, phi * scale, phi_final) - phi[:-1] * scale[:-1]


def terminal_potential(rollout, phi, phi_final, gamma):
    """Φ(terminal) is not 0 but the last window's."""
    after = phi[1:].astype(np.float64)
    after.reshape(-1)[rollout.final_index] = phi_final
    return gamma * after - phi[:-1]


def test_the_certificate_of_a_sound_potential_holds(dataset):
    found = certify(HashPotential(3), dataset, num_envs=4, steps=40)
    assert found.passed, found.summary()
    assert {check.name for check in found.checks} == {
        "telescoping", "policies", "constant", "worlds", "finite", "batches", "present", "units",
    }  # fmt: skip
    assert found.summary() == "8 of 8 checks of form hold"
    assert found.to_json()["passed"] is True


def test_replayed_rollouts_hold_every_kind_of_end(rollouts):
    assert any(rollout.terminated.any() for rollout in rollouts)
    assert any(rollout.truncated.any() for rollout in rollouts)
    for rollout in rollouts:
        ended = (rollout.terminated | rollout.truncated).ravel()
        np.testing.assert_array_equal(np.flatnonzero(ended), rollout.final_index)
        assert (rollout.ages[1:][rollout.terminated | rollout.truncated] == 0).all()
    np.testing.assert_array_equal(rollouts[0].views.symbols[-1], rollouts[1].views.symbols[0])


@pytest.mark.parametrize(
    "shaping", [shifted_by_one, across_episodes, truncation_as_termination, rescaled_as_it_goes, terminal_potential]
)
def test_telescoping_fails_on_published_defects(rollouts, shaping):
    assert certificate.telescoping(HashPotential(3), rollouts, shaping_rewards).passed
    assert not certificate.telescoping(HashPotential(3), rollouts, shaping).passed


@pytest.mark.parametrize("shaping", [across_episodes, terminal_potential])
def test_policies_fail_on_published_defects(shaping):
    assert certificate.policies(shaping_rewards).passed
    assert not certificate.policies(shaping).passed


def test_the_two_exit_chain_is_flipped_by_a_potential_that_outlives_the_episode():
    table = toy.table("Toy-TwoExits")
    plain = toy.optimal_values(table, GAMMA)
    phi = np.zeros(table.num_states)
    phi[table.next_state[0, 0]] = 5.0  # the near exit's end looks splendid
    right = toy.optimal_values(table, GAMMA, certificate._tabular(table, phi, shaping_rewards))
    flipped = toy.optimal_values(table, GAMMA, certificate._tabular(table, phi, terminal_potential))
    assert plain[0].argmax() == 1
    assert right[0].argmax() == 1
    assert flipped[0].argmax() == 0


def test_tabular_shaping_is_the_closed_form():
    table = toy.table("Toy-Grid")
    phi = np.random.default_rng(0).uniform(-1, 0, table.num_states)
    extra = certificate._tabular(table, phi, shaping_rewards)
    expected = GAMMA * np.where(table.terminated, 0.0, phi[table.next_state]) - phi[:, None]
    np.testing.assert_allclose(extra, expected, atol=1e-6)


@pytest.mark.parametrize("shaping", [carried_row_divided_twice, rescaled_as_it_goes])
def test_the_constant_probe_fails_on_published_defects(rollouts, shaping):
    assert certificate.constant_potential(rollouts, shaping_rewards).passed
    assert not certificate.constant_potential(rollouts, shaping).passed


def test_a_clock_shared_by_all_envs_is_a_leak(rollouts):
    def last_envs_clock(windows: Windows, phi: np.ndarray) -> np.ndarray:  # B5
        clock = windows.valid.sum(1).reshape(-1, 4)[:, -1:]
        return (phi * 0.5 - 0.1 * np.broadcast_to(clock, (len(clock), 4)).ravel()).astype(np.float32)

    class Shared(Faulty):
        def __call__(self, windows: Windows) -> np.ndarray:
            return super().__call__(windows) if len(windows) % 4 == 0 else HashPotential.__call__(self, windows)

    assert certificate.no_leak(HashPotential(3), rollouts[0], 0).passed
    assert not certificate.no_leak(Shared(last_envs_clock), rollouts[0], 0).passed


def test_a_potential_blind_to_the_present_is_found(sample):
    def blind(windows: Windows, phi: np.ndarray) -> np.ndarray:  # B4
        older = Windows.of(windows.observations[:, :-1], windows.actions[:, :-1], windows.valid[:, :-1])
        return HashPotential(2)(older)

    assert certificate.present(HashPotential(3), sample, 0).passed
    assert not certificate.present(Faulty(blind), sample, 0).passed


def test_a_program_that_expects_other_units_is_found(sample):
    def compares_normalised_values(windows: Windows, phi: np.ndarray) -> np.ndarray:  # B1
        return -((windows.observations[:, -1, ..., 0] / 10 == 0.6).any(axis=(1, 2)) * 0.0).astype(np.float32)

    def insensitive(windows: Windows, phi: np.ndarray) -> np.ndarray:
        return -(windows.actions[:, -1] / 7.0).astype(np.float32)

    assert certificate.units(HashPotential(3), sample).passed
    assert not certificate.units(Faulty(compares_normalised_values), sample).passed
    assert not certificate.units(Faulty(insensitive), sample).passed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda windows, phi: np.where(np.arange(len(phi)) == 3, np.nan, phi).astype(np.float32),
        lambda windows, phi: phi + np.float32(0.5),
        lambda windows, phi: phi.astype(np.float64),
        lambda windows, phi: phi[:-1],
    ],
)
def test_values_that_cannot_be_used_are_found(sample, spoil):
    assert certificate.finite(HashPotential(3), sample).passed
    assert not certificate.finite(Faulty(spoil), sample).passed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda windows, phi: (phi - phi.mean()).astype(np.float32),
        lambda windows, phi: (phi - np.arange(len(phi)) / 1e3).astype(np.float32),
    ],
)
def test_batch_dependence_is_found(sample, spoil):
    assert certificate.batches(HashPotential(3), sample, 0).passed
    assert not certificate.batches(Faulty(spoil), sample, 0).passed


def test_a_failing_check_is_named(dataset):
    found = certify(Faulty(lambda windows, phi: phi + np.float32(0.5)), dataset, num_envs=4, steps=20)
    assert not found.passed
    assert "finite" in found.summary()


def test_what_is_not_a_number_passes_no_sum(rollouts):
    def spoilt(rollout, phi, phi_final, gamma):
        rewards = shaping_rewards(rollout, phi, phi_final, gamma).copy()
        rewards[1] = np.nan
        return rewards

    assert not certificate.telescoping(HashPotential(3), rollouts, spoilt).passed
    assert not certificate.constant_potential(rollouts, spoilt).passed


def test_checks_that_a_flat_potential_cannot_be_put_to_are_named(dataset):
    found = certify(Faulty(lambda windows, phi: np.zeros_like(phi)), dataset, num_envs=4, steps=20)
    assert found.passed
    assert found.summary() == "6 of 6 checks of form hold (not applicable: present, units)"
    assert "one value" in found.to_json()["not_applicable"]["units"]


def test_windows_of_a_rollout_without_ends_certify_trivially():
    rollout = rollout_of(
        0,
        np.zeros((3, 1, 1), np.uint8),
        np.zeros((2, 1), np.int64),
        np.arange(3, dtype=np.int32)[:, None],
        np.zeros((2, 1), np.float32),
        np.zeros((2, 1), bool),
        np.zeros((2, 1), bool),
        np.zeros(0, np.int64),
        np.zeros((0, 1), np.uint8),
    )
    assert "nothing to compare" in certificate.telescoping(HashPotential(0), [rollout], shaping_rewards).detail
