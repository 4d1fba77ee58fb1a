"""Novelty: falls on what was seen, rises on what was not, and is scored as it is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bkrl.data.windows import Rollout
from bkrl.rewards.icm import ICM
from bkrl.rewards.novelty import RunningMoments
from bkrl.rewards.rnd import RND
from tests.potentials.rollouts import rollout_of


def rollout(observations: np.ndarray, final: dict[int, np.ndarray] | None = None) -> Rollout:
    """A rollout of (T+1, N, *shape) observations without history; `final` maps flat steps to true last observations."""
    T, N = observations.shape[0] - 1, observations.shape[1]
    final = final or {}
    ended = np.zeros((T, N), bool)
    ended.reshape(-1)[list(final)] = True
    shape = observations.shape[2:]
    return rollout_of(
        horizon=0,
        observations=observations,
        actions=np.zeros((T, N), np.int64),
        ages=np.zeros((T + 1, N), np.int32),
        rewards=np.zeros((T, N), np.float32),
        terminated=ended,
        truncated=np.zeros_like(ended),
        final_index=np.array(sorted(final), np.int64),
        final_observations=np.array([final[i] for i in sorted(final)], np.uint8).reshape(-1, *shape),
    )


def views(rng: np.random.Generator, T: int, N: int, low: int = 0, high: int = 6) -> np.ndarray:
    return rng.integers(low, high, (T + 1, N, 7, 7, 3)).astype(np.uint8)


def learn(stream: RND, record: Rollout, epochs: int) -> None:
    optimizer = torch.optim.Adam(stream.parameters(), lr=1e-3)
    stream.rewards(record)
    steps = record.rewards.size
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in torch.randperm(steps, generator=generator).split(64):
            optimizer.zero_grad()
            stream.loss(batch.to(stream.device)).backward()
            optimizer.step()


def test_novelty_falls_on_the_seen_and_not_on_the_unseen(device: torch.device) -> None:
    rng = np.random.default_rng(0)
    seen = rollout(np.repeat(views(rng, 0, 8), 33, axis=0))
    stream = RND((7, 7, 3), 8, seed=1, update_proportion=1.0, device=device)
    stream.rewards(seen)
    before = stream.metrics()["rnd/novelty"]
    learn(stream, seen, 30)
    stream.rewards(seen)
    after = stream.metrics()["rnd/novelty"]
    stream.rewards(rollout(np.repeat(views(rng, 0, 8), 33, axis=0)))
    unseen = stream.metrics()["rnd/novelty"]
    assert after < 0.05 * before
    assert unseen > 10 * after


def test_training_lowers_the_very_number_that_is_scored(device: torch.device) -> None:
    """The loss over all steps is the mean novelty: same observations, same normalisation, same clipping (B31)."""
    record = rollout(views(np.random.default_rng(0), 16, 4))
    stream = RND((7, 7, 3), 4, seed=1, update_proportion=1.0, device=device)
    stream.rewards(record)
    loss = float(stream.loss(torch.arange(64, device=device)).detach())
    assert loss == pytest.approx(stream.metrics()["rnd/novelty"], rel=1e-5)


def test_repeats_weigh_as_often_as_they_came(device: torch.device) -> None:
    """Loss and gradients are those of going through every step of the part, one by one."""
    rng = np.random.default_rng(0)
    few = rng.integers(0, 6, (5, 7, 7, 3)).astype(np.uint8)
    record = rollout(few[rng.integers(0, 5, (17, 4))])
    stream = RND((7, 7, 3), 4, seed=1, update_proportion=0.5, device=device)
    stream.rewards(record)
    index = torch.from_numpy(rng.permutation(64)[:40]).to(device)
    stream.loss(index).backward()
    found = [parameter.grad.clone() for parameter in stream.parameters()]
    stream.predictor.zero_grad()
    steps = record.following().reshape(64, 7, 7, 3)[index[:20].cpu().numpy()]
    inputs = stream.normalised(steps)
    naive = torch.stack([(stream.predictor(x[None]) - stream.target(x[None])).square().mean() for x in inputs]).mean()
    naive.backward()
    assert float(stream.loss(index).detach()) == pytest.approx(float(naive.detach()), rel=1e-5)
    for one, parameter in zip(found, stream.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-4, atol=1e-6)
    assert len(stream._inputs) == len(np.unique(steps.reshape(20, -1), axis=0)) == 5


def test_a_gpu_is_not_asked_which_observations_are_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """To answer it would have to be waited for in each minibatch; it sums up the same errors."""
    rng = np.random.default_rng(0)
    few = rng.integers(0, 6, (5, 7, 7, 3)).astype(np.uint8)
    stream = RND((7, 7, 3), 4, seed=1, update_proportion=0.5)
    stream.rewards(rollout(few[rng.integers(0, 5, (17, 4))]))
    index = torch.from_numpy(rng.permutation(64)[:40])
    once = float(stream.loss(index).detach())
    stream.device = torch.device("cuda")  # its tensors stay where they are
    monkeypatch.delattr(torch.Tensor, "unique")
    assert float(stream.loss(index).detach()) == pytest.approx(once, rel=1e-5)


def test_scores_the_next_observation_and_the_true_last_one() -> None:
    rng = np.random.default_rng(0)
    observations = np.repeat(views(rng, 0, 2), 5, axis=0)
    strange = rng.integers(0, 6, (7, 7, 3)).astype(np.uint8)
    record = rollout(observations, {3: strange})
    following = record.following()
    assert np.array_equal(following[1, 1], strange)
    assert np.array_equal(following[0], observations[1])
    stream = RND((7, 7, 3), 2, seed=1, update_proportion=1.0)
    learn(stream, rollout(np.repeat(observations[:1], 65, axis=0)), 40)
    rewards = stream.rewards(record)
    assert rewards.argmax() == 3
    assert rewards[1, 1] > 5 * np.delete(rewards.reshape(-1), 3).max()


def test_near_constant_entries_do_not_blow_up() -> None:
    """An entry that never changed and then does is clipped; without that it would be a million standard deviations."""
    quiet = np.zeros((3, 2, 7, 7, 3), np.uint8)
    stream = RND((7, 7, 3), 2, seed=1)
    stream.rewards(rollout(quiet))
    loud = quiet.copy()
    loud[2, 0, 3, 3, 0] = 200
    inputs = stream.normalised(loud[2])
    assert inputs.abs().max() <= 5.0
    assert np.isfinite(stream.rewards(rollout(loud))).all()


def test_rewards_are_in_units_of_their_discounted_sums() -> None:
    """After a while the discounted sum of the rewards along time has a standard deviation near 1, across episodes."""
    rng = np.random.default_rng(0)
    stream = RND((7, 7, 3), 4, gamma=0.9, seed=1)
    rewards = np.concatenate([stream.rewards(rollout(views(rng, 64, 4))) for _ in range(8)])
    running, sums = np.zeros(4), []
    for row in rewards:
        running = 0.9 * running + row
        sums.append(running)
    assert np.std(sums[200:]) == pytest.approx(1.0, abs=0.6)
    assert not stream.episodic


@pytest.mark.parametrize("envs", [1, 4])
@pytest.mark.parametrize("made", [RND, lambda *a, **k: ICM(*a, num_actions=4, **k)])
def test_nothing_is_paid_before_its_discounted_sums_differ(made, envs: int) -> None:
    """After one step of one env, or of envs that saw the same, the spread is 0 but for rounding: 5e7 was paid."""
    seen = np.repeat(views(np.random.default_rng(0), 3, 1), envs, axis=1)
    stream = made((7, 7, 3), envs, seed=1)
    paid = [stream.rewards(rollout(seen[t : t + 2])) for t in range(3)]
    assert not paid[0].any()
    assert all(one.min() > 0 and one.max() < 10 for one in paid[1:])


def test_moments_are_those_of_all_that_was_seen() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(3, 2, (n, 5)) for n in (1, 7, 100)]
    moments = RunningMoments((5,))
    for batch in batches:
        moments.update(batch)
    assert np.allclose(moments.mean, np.concatenate(batches).mean(0))
    assert np.allclose(moments.std, np.concatenate(batches).std(0))


def test_state_goes_back(device: torch.device) -> None:
    rng = np.random.default_rng(0)
    one, two = (RND((7, 7, 3), 4, seed=seed, device=device) for seed in (1, 2))
    learn(one, rollout(views(rng, 16, 4)), 2)
    two.restore({key: np.asarray(torch.as_tensor(value).cpu()) for key, value in one.state().items()})
    record = rollout(views(rng, 16, 4))
    assert np.array_equal(one.rewards(record), two.rewards(record))
