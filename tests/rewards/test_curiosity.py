"""NovelD, DEIR, ICM and APT against references written from the papers' definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bkrl.rewards.apt import APT, LearntAPT, Particles, nearest
from bkrl.rewards.deir import DEIR
from bkrl.rewards.icm import ICM
from bkrl.rewards.rnd import RND, NovelD
from tests.rewards.test_rnd import rollout

SHAPE = (5,)


def walk(seed: int, T: int = 12, N: int = 3, high: int = 3):
    """Random views, some of them repeated, with two episodes' ends."""
    rng = np.random.default_rng(seed)
    record = rollout(
        rng.integers(0, high, (T + 1, N, *SHAPE)).astype(np.uint8),
        {4: rng.integers(0, high, SHAPE).astype(np.uint8), 16: rng.integers(0, high, SHAPE).astype(np.uint8)},
    )
    record.actions[:] = rng.integers(0, 4, record.actions.shape)
    for t in range(T):
        record.ages[t + 1] = np.where(record.terminated[t], 0, record.ages[t] + 1)
    return record


def later(record, seed: int):
    """A rollout that goes on where the last one stopped."""
    following = walk(seed)
    following.views.symbols[0], following.ages[0] = record.views.symbols[-1], record.ages[-1]
    for t in range(len(following.rewards)):
        following.ages[t + 1] = np.where(following.terminated[t], 0, following.ages[t] + 1)
    return following


def test_noveld_is_the_published_difference_where_the_episode_is_new() -> None:
    stream, plain = NovelD(SHAPE, 3, seed=1, alpha=0.5), RND(SHAPE, 3, seed=1)
    visited: list[list[bytes]] = [[] for _ in range(3)]
    record = walk(0)
    for number in (1, 2):
        found, after = stream.raw(record), plain.raw(record)
        for t, n in np.ndindex(12, 3):
            seen, following = record.views.symbols[t, n], record.following()[t, n]
            if record.ages[t, n] == 0:
                visited[n] = [seen.tobytes()]
            first = following.tobytes() not in visited[n]
            visited[n].append(following.tobytes())
            x = plain.normalised(seen[None])
            error = float((plain.predictor(x) - plain.target(x)).square().mean().detach())
            assert found[t, n] == pytest.approx(max(after[t, n] - 0.5 * error, 0) * first, rel=1e-4, abs=1e-6)
        assert (found > 0).any()
        record = later(record, number)


def test_without_the_first_visit_returns_pay_as_well() -> None:
    record = rollout(np.array([[[0] * 5], [[3] * 5], [[0] * 5], [[3] * 5], [[0] * 5]], np.uint8))
    record.ages[:] = np.arange(5)[:, None]
    gated, bare = (NovelD(SHAPE, 1, seed=1, alpha=0.0, first_visit=gate).raw(record)[:, 0] for gate in (True, False))
    np.testing.assert_array_equal(gated > 0, [True, False, False, False])
    assert (bare > 0).all()
    np.testing.assert_array_equal(bare[gated > 0], gated[gated > 0])


def test_deir_is_the_published_least_ratio_over_the_episode() -> None:
    """Against lists of embeddings and one call of the model at a time; episodes run on over rollouts."""
    stream, record = DEIR(SHAPE, 3, num_actions=4, seed=1), walk(0)
    encoder, gru = stream.model.encoder, stream.model.gru
    past: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[], [], []]
    way = [torch.zeros(1, 64)] * 3
    for number in (1, 2):
        found = stream.raw(record)
        with torch.no_grad():
            for t, n in np.ndindex(12, 3):
                seen, following = record.views.symbols[t, n], record.following()[t, n]
                here, there = (encoder(stream.normalised(one[None])) for one in (seen, following))
                if record.ages[t, n] == 0:
                    past[n], way[n] = [(here, torch.zeros(1, 64))], torch.zeros(1, 64)
                way[n] = gru(here, way[n])
                ratios = [(e - there).square().sum() / ((w - way[n]).norm() + 1e-6) for e, w in past[n]]
                assert found[t, n] == pytest.approx(float(min(ratios)), rel=1e-3, abs=1e-5)
                past[n].append((there, way[n]))
        assert (found > 0).any()
        record = later(record, number)


def test_deir_pays_nothing_for_what_the_episode_has_seen() -> None:
    record = rollout(np.array([[[0] * 5], [[3] * 5], [[0] * 5], [[3] * 5], [[1] * 5]], np.uint8))
    record.ages[:] = np.arange(5)[:, None]
    found = DEIR(SHAPE, 1, num_actions=4, seed=1).raw(record)[:, 0]
    np.testing.assert_array_equal(found > 0, [True, False, False, True])


def test_deir_learns_which_observation_follows_an_action() -> None:
    stream = DEIR((1,), 1, num_actions=2, seed=1)
    actions = np.random.default_rng(0).integers(0, 2, 256)
    seen = np.zeros(257, np.uint8)
    for t, action in enumerate(actions):
        seen[t + 1] = (seen[t] + (1 if action else 5)) % 6
    record = rollout(seen.reshape(257, 1, 1))
    record.actions[:], record.ages[:] = actions[:, None], np.arange(257)[:, None]
    stream.raw(record)
    optimiser = torch.optim.Adam(stream.parameters(), 1e-2)
    losses = []
    for _ in range(150):
        loss = stream.loss(torch.randperm(256, generator=torch.Generator().manual_seed(len(losses))))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(np.log(2), abs=0.2)
    assert np.mean(losses[-10:]) < 0.1


def test_deirs_wrong_observations_are_no_true_ones() -> None:
    stream, record = DEIR(SHAPE, 3, num_actions=4, seed=1), walk(0)
    record.views.symbols[1:] = 1
    record.final_views.symbols[:] = 1
    stream.raw(record)
    stream.queue[:] = 1  # nothing else can be drawn
    seen, following = stream.normalised(stream._seen), stream.normalised(stream._following)
    logits = stream.model(stream._ways, seen, stream._actions, [following])[0]
    right = torch.nn.functional.softplus(-logits).mean()
    assert float(stream.loss(torch.arange(36)).detach()) == pytest.approx(float(0.5 * right.detach()), rel=1e-5)


def test_surprise_is_half_the_squared_error_of_the_forward_model() -> None:
    stream, record = ICM(SHAPE, 3, num_actions=4, seed=1), walk(0)
    found = stream.raw(record)
    model = stream.model
    for t, n in np.ndindex(12, 3):
        before = model.encoder(stream.normalised(record.views.symbols[t, n][None]))
        after = model.encoder(stream.normalised(record.following()[t, n][None]))
        action = torch.zeros(1, 4)
        action[0, record.actions[t, n]] = 1
        predicted = model.ahead(torch.cat([before, action], 1))
        assert found[t, n] == pytest.approx(float(0.5 * (predicted - after).square().sum().detach()), rel=1e-4)


def test_the_encoder_learns_from_the_inverse_model_alone() -> None:
    stream = ICM(SHAPE, 3, num_actions=4, seed=1)
    stream.raw(walk(0))
    inverse, forward = stream.model.losses(stream._before, stream._actions, stream._after)
    forward.backward(retain_graph=True)
    assert all(p.grad is None for p in stream.model.encoder.parameters())
    assert all(p.grad is not None for p in stream.model.ahead.parameters())
    inverse.backward()
    assert all(p.grad is not None for p in stream.model.encoder.parameters())
    torch.testing.assert_close(stream.loss(torch.arange(36)), 0.8 * inverse + 0.2 * forward)


def learn(stream, record, times: int) -> None:
    optimizer = torch.optim.Adam(stream.parameters(), lr=1e-2)
    for _ in range(times):
        stream.raw(record)
        optimizer.zero_grad()
        stream.loss(torch.arange(record.rewards.size)).backward()
        optimizer.step()


def test_surprise_falls_where_actions_decide_what_comes_and_stays_where_they_do_not() -> None:
    """Entry 0 follows the action, the others are noise: the inverse model has no use for noise."""
    stream, record = ICM(SHAPE, 3, num_actions=4, seed=1), walk(0, T=200)
    record.terminated[:] = False
    record = rollout(record.views.symbols)
    record.actions[:] = np.random.default_rng(1).integers(0, 4, record.actions.shape)
    record.views.symbols[1:, :, 0] = record.actions
    before = stream.raw(record).mean() / stream.model.encoder(stream._after).var(0).sum().item()
    learn(stream, record, 150)
    after = stream.raw(record).mean() / stream.model.encoder(stream._after).var(0).sum().item()
    assert after < 0.5 * before
    inverse, _ = stream.model.losses(stream._before, stream._actions, stream._after)
    assert inverse.item() < 0.2


def test_nearest_is_brute_force_and_leaves_out_the_state_itself() -> None:
    rng = np.random.default_rng(0)
    features, others = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    pool, own = np.concatenate([others, features[2:5]]), np.array([-1, -1, -1, -1, 2, 3, 4])
    found = nearest(*map(torch.from_numpy, (features, pool, own)), 3)
    for i in range(7):
        distances = sorted(
            float(np.linalg.norm(features[i] - pool[j])) for j in range(7) if own[j] != i
        )  # with itself, the smallest of rows 2 to 4 would be 0
        np.testing.assert_allclose(found[i], distances[:3], rtol=1e-6)


def test_particles_pay_by_the_definition_and_are_the_newest_at_even_distances() -> None:
    rng = np.random.default_rng(0)
    particles, total, count = Particles((2,), 8, 3), 0.0, 0
    older = np.zeros((0, 2), np.uint8)
    for size in (6, 9):
        rows = rng.integers(0, 99, (size, 2)).astype(np.uint8)
        own = particles.add(rows)
        joined = np.concatenate([older, rows])
        chosen = [round(i * (len(joined) - 1) / (min(8, len(joined)) - 1)) for i in range(min(8, len(joined)))]
        np.testing.assert_array_equal(particles.rows, joined[chosen])
        encode = [torch.from_numpy(one.astype(np.float64)) for one in (rows, particles.rows)]
        found = particles.novelty(*encode, own)
        means = []
        for i in range(size):
            far = [np.linalg.norm(rows[i] - joined[c].astype(float)) for c in chosen if c - len(older) != i]
            means.append(np.mean(sorted(far)[:3]))
        total, count = total + sum(means), count + size
        np.testing.assert_allclose(found, np.log1p(np.array(means) / (total / count)), rtol=1e-6)
        older = joined[chosen]


def test_what_lies_apart_is_newer_in_both_kinds_of_features() -> None:
    views = np.random.default_rng(0).integers(0, 2, (41, 3, *SHAPE)).astype(np.uint8)
    views[20, 1] = 250
    for stream in (APT(SHAPE, 3, seed=1), LearntAPT(SHAPE, 3, num_actions=4, seed=1)):
        found = stream.raw(rollout(views))
        assert np.unravel_index(found.argmax(), found.shape) == (19, 1)
    assert not list(APT(SHAPE, 3).parameters())
    assert list(LearntAPT(SHAPE, 3, num_actions=4).parameters())


@pytest.mark.parametrize(
    "kind",
    [
        NovelD,
        lambda *a, **k: DEIR(*a, num_actions=4, **k),
        lambda *a, **k: ICM(*a, num_actions=4, **k),
        APT,
        lambda *a, **k: LearntAPT(*a, num_actions=4, **k),
    ],
)
def test_it_goes_on_from_its_state_with_the_same_rewards(kind) -> None:
    whole, other = kind(SHAPE, 3, seed=1), kind(SHAPE, 3, seed=2)
    record = walk(0)
    whole.rewards(record)
    other.restore({name: np.asarray(one).copy() for name, one in whole.state().items()})
    following = later(record, 1)
    np.testing.assert_array_equal(whole.rewards(following), other.rewards(following))
