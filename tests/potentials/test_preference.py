"""The preference network: learns labels it can know, splits by episode, gives the same bits for any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bkrl.core.errors import InputError
from bkrl.data.partition import TEST, TRAIN, VALIDATION, partition
from bkrl.data.windows import Windows
from bkrl.potentials.preference import WEIGHTS, PreferenceRaw, load
from bkrl.potentials.preference.encoders import CellEncoder
from bkrl.potentials.preference.fit import (
    Pairs,
    _accuracy,
    bradley_terry,
    calibration_error,
    fit,
    fit_temperature,
    split_pairs,
)
from bkrl.potentials.preference.net import NetConfig, PreferenceNet
from bkrl.potentials.protocol import Artefact, Scale
from bkrl.stats.intervals import wilson_interval

H = 5


def segments(count: int, rng: np.random.Generator) -> tuple[Windows, np.ndarray]:
    """BabyAI-like views with one thing in them, and how good each segment is: nearness gained, actions not wasted."""
    observations = np.zeros((count, H + 1, 7, 7, 3), np.uint8)
    observations[..., 0] = 1
    x, y = rng.integers(0, 7, (count, H + 1)), rng.integers(0, 6, (count, H + 1))
    row, step = np.arange(count)[:, None], np.arange(H + 1)[None]
    observations[row, step, x, y, 0] = rng.integers(5, 8, (count, 1))
    observations[row, step, x, y, 1] = rng.integers(0, 6, (count, 1))
    actions = rng.integers(0, 7, (count, H))
    distance = np.abs(x - 3) + 6 - y
    value = -distance[:, -1] - 0.7 * (actions == 6).sum(1)
    return Windows.of(observations, actions, np.ones((count, H + 1), bool)), value


def pairs(count: int, seed: int = 0, episodes: int = 60) -> Pairs:
    rng = np.random.default_rng(seed)
    (a, value_a), (b, value_b) = segments(count, rng), segments(count, rng)
    labels = np.where(np.abs(value_a - value_b) < 0.5, 0.5, (value_a > value_b).astype(float))
    return Pairs(a, b, labels, rng.integers(0, episodes, (count, 2)))


CONFIG = NetConfig((7, 7, 3), 7, H, width=32, hidden=64)


@pytest.fixture(scope="module")
def trained():
    torch.set_num_threads(1)
    return fit(pairs(2500), CONFIG, seed=1, epochs=6)


def test_it_learns_synthetic_labels_and_says_how_well(trained):
    _, found = trained
    assert found.accuracy >= 0.9
    assert found.accuracy_low < found.accuracy < found.accuracy_high
    assert found.calibration_error < 0.15
    assert found.pairs_train + found.pairs_validation + found.pairs_test <= 2500
    assert found.ties > 0


def test_it_sees_the_present_observation(trained):
    raw, _ = trained
    windows, _ = segments(100, np.random.default_rng(5))
    other = windows.observations.copy()
    other[:, -1] = windows.observations[::-1, -1]
    assert (raw(windows.numbered()) != raw(Windows.of(other, windows.actions, windows.valid).numbered())).mean() > 0.9


def test_what_is_masked_does_not_matter(trained):
    raw, _ = trained
    windows, _ = segments(50, np.random.default_rng(6))
    valid = windows.valid.copy()
    valid[:, :3] = False
    noise = windows.observations.copy()
    noise[:, :3] = 9
    cut = Windows.of(windows.observations, windows.actions, valid)
    hidden = np.where(valid[:, :-1], windows.actions, (windows.actions + 1) % 7)
    other = raw(Windows.of(noise, hidden, valid).numbered())
    # the third transition starts in a masked view, so only what follows it may count
    np.testing.assert_allclose(raw(cut.numbered()), other, atol=1e-5)
    assert np.isfinite(raw(cut.numbered())).all()


def test_scores_are_the_same_for_any_batch_bit_for_bit(trained):
    raw, _ = trained
    windows, _ = segments(700, np.random.default_rng(7))
    whole = raw(windows.numbered())
    order = np.random.default_rng(8).permutation(700)
    np.testing.assert_array_equal(raw(windows[order].numbered()), whole[order])
    np.testing.assert_array_equal(
        np.concatenate([raw(windows[i : i + 1].numbered()) for i in range(0, 700, 61)]), whole[::61]
    )


def test_scores_are_the_same_for_any_number_of_threads_bit_for_bit(trained):
    raw, _ = trained
    windows, _ = segments(700, np.random.default_rng(3))
    alone = PreferenceRaw(*raw.nets)(windows.numbered())
    try:
        for threads in (2, 3, 4):
            torch.set_num_threads(threads)
            np.testing.assert_array_equal(PreferenceRaw(*raw.nets)(windows.numbered()), alone)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("threads", [1, 2])
def test_training_is_repeatable(threads):
    """With two threads the weights had other last digits, though `--threads` makes no other run."""
    small = pairs(400, episodes=30)
    first, _ = fit(small, CONFIG, seed=3, epochs=2)
    torch.set_num_threads(threads)
    try:
        second, _ = fit(small, CONFIG, seed=3, epochs=2)
    finally:
        torch.set_num_threads(1)
    for one, other in zip(first.nets[0].parameters(), second.nets[0].parameters(), strict=True):
        assert torch.equal(one, other)
    windows, _ = segments(20, np.random.default_rng(0))
    np.testing.assert_array_equal(first(windows.numbered()), second(windows.numbered()))


def test_scores_that_are_equal_are_half_right():
    """They counted as right wherever the label said the first segment lost."""
    assert [_accuracy(np.zeros(4), np.full(4, label)) for label in (0.0, 1.0)] == [(0.5, 4), (0.5, 4)]
    assert _accuracy(np.array([1.0, -1, 0, 2]), np.array([1.0, 1, 0, 0.5])) == (0.5, 3)


def test_no_training_pair_shares_an_episode_with_a_test_pair():
    data = pairs(3000, episodes=100)
    train, validation, test = split_pairs(data)
    assert not set(data.episodes[train].ravel()) & set(data.episodes[test].ravel())
    assert not (set(train) & set(validation)) | (set(train) & set(test)) | (set(validation) & set(test))
    assert len(train) > 1500
    assert len(test) > 40


def test_pairs_drawn_within_partitions_are_all_used():
    rng = np.random.default_rng(0)
    parts = partition(np.arange(200))
    chosen = np.array([rng.choice(np.flatnonzero(parts == part), 2) for part in rng.choice(3, 600)])
    data = pairs(600)
    train, validation, test = split_pairs(Pairs(data.a, data.b, data.labels, chosen))
    assert len(train) + len(validation) + len(test) == 600
    assert (partition(chosen[test]) == TEST).all()
    assert (partition(chosen[train]) == TRAIN).all()


def test_a_few_strangers_among_the_pairs_do_not_take_the_place_of_all_others():
    rng = np.random.default_rng(0)
    parts = partition(np.arange(200))
    chosen = np.array([rng.choice(np.flatnonzero(parts == part), 2) for part in rng.choice(3, 600)])
    one = {part: int(np.flatnonzero(parts == part)[0]) for part in (TRAIN, VALIDATION, TEST)}
    strangers = [(TRAIN, VALIDATION), (VALIDATION, TEST), (TEST, VALIDATION), (TEST, TRAIN)]
    chosen[:4] = [(one[a], one[b]) for a, b in strangers]
    data = pairs(600)
    train, validation, test = split_pairs(Pairs(data.a, data.b, data.labels, chosen))
    assert len(train) + len(validation) + len(test) == 596
    assert (partition(chosen[validation]) == VALIDATION).all()
    assert (partition(chosen[test]) == TEST).all()


def test_too_few_pairs_are_an_input_error():
    with pytest.raises(InputError, match="label more pairs"):
        fit(pairs(12, episodes=3), CONFIG, seed=0)


def test_ties_alone_do_not_break_training():
    data = pairs(200, episodes=30)
    raw, found = fit(Pairs(data.a, data.b, np.full(200, 0.5), data.episodes), CONFIG, seed=0, epochs=1)
    assert np.isfinite(raw(data.a.numbered())).all()
    assert np.isnan(found.accuracy)


@pytest.mark.parametrize(("shape", "grid"), [((82,), (9, 7)), ((5,), (0, 0)), ((4, 4, 3), (0, 0)), ((4, 4, 6), (0, 0))])
def test_observations_of_every_family_can_be_scored(shape, grid):
    torch.manual_seed(0)
    raw = PreferenceRaw(PreferenceNet(NetConfig(shape, 6, 3, grid=grid)))
    rng = np.random.default_rng(0)
    windows = Windows.of(
        rng.integers(0, 256, (20, 4, *shape)).astype(np.uint8), rng.integers(0, 6, (20, 3)), np.ones((20, 4), bool)
    )
    assert len(np.unique(raw(windows.numbered()))) == 20


def test_the_loss_of_ties_and_soft_labels_by_hand():
    # σ(ln 3) = 3/4
    margin = torch.tensor([math.log(3.0)])
    for label, expected in ((1.0, -math.log(0.75)), (0.0, -math.log(0.25))):
        assert bradley_terry(margin, torch.tensor([label])).item() == pytest.approx(expected, abs=1e-6)
    tie = -0.5 * math.log(0.75) - 0.5 * math.log(0.25)
    assert bradley_terry(margin, torch.tensor([0.5])).item() == pytest.approx(tie, abs=1e-6)
    soft = -0.7 * math.log(0.75) - 0.3 * math.log(0.25)
    assert bradley_terry(margin, torch.tensor([0.7])).item() == pytest.approx(soft, abs=1e-6)
    both = bradley_terry(margin.repeat(2), torch.tensor([0.5, 0.7])).item()
    assert both == pytest.approx((tie + soft) / 2, abs=1e-6)
    # a label of 3/4 is met exactly by the margin ln 3, and a tie pulls the margin to 0
    for label, slope in ((0.75, 0.0), (0.5, 0.25)):
        leaf = margin.clone().requires_grad_()
        bradley_terry(leaf, torch.tensor([label])).backward()
        assert leaf.grad.item() == pytest.approx(slope, abs=1e-6)


def test_the_temperature_makes_probabilities_mean_what_they_say():
    rng = np.random.default_rng(0)
    honest = rng.normal(0, 1.5, 20_000)
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-honest))).astype(float)
    boastful = 3.0 * honest
    assert fit_temperature(boastful, labels) == pytest.approx(3.0, rel=0.05)
    assert fit_temperature(honest / 4, labels) == pytest.approx(0.25, rel=0.05)
    before, after = (calibration_error(boastful / t, labels) for t in (1.0, fit_temperature(boastful, labels)))
    assert after < 0.02 < before


def test_an_ensemble_is_the_mean_of_networks_that_differ(tmp_path):
    data = pairs(500, episodes=30)
    raw, found = fit(data, CONFIG, seed=3, epochs=2, ensemble=3)
    windows, _ = segments(40, np.random.default_rng(0))
    members = raw.members(windows.numbered())
    assert members.shape == (3, 40)
    np.testing.assert_array_equal(raw(windows.numbered()), members.mean(axis=0))
    assert found.ensemble == len(found.accuracy_members) == 3
    assert found.spread > 0
    assert 0 < found.disagreement < 1
    # the first network is the one that is trained alone
    alone, single = fit(data, CONFIG, seed=3, epochs=2)
    assert (single.ensemble, single.spread, single.disagreement) == (1, None, None)
    np.testing.assert_allclose(alone(windows.numbered()) * alone.temperature, members[0] * raw.temperature, rtol=1e-5)
    _, settings = raw.save(tmp_path)
    artefact = Artefact(
        "preference", H, "Toy", "toy", (7, 7, 3), tuple("abcdefg"), Scale(0, 1), {WEIGHTS: ""}, settings
    )
    artefact.write(tmp_path)
    np.testing.assert_array_equal(load(Artefact.read(tmp_path))(windows.numbered()), raw(windows.numbered()))


def test_what_is_faced_is_seen():
    torch.manual_seed(0)
    raw = PreferenceRaw(PreferenceNet(NetConfig((82,), 6, 0, grid=(9, 7), faced=(63, 30, 32, 22, 40))))
    views = np.zeros((8, 1, 82), np.uint8)
    views[4:, 0, 40] = 3  # below, which only facing 3 looks at
    views[:, 0, 63] = [0, 1, 2, 3] * 2
    windows = Windows.of(views, np.zeros((8, 0), np.int64), np.ones((8, 1), bool))
    flat = raw.nets[0].view(torch.from_numpy(views[:, 0]))[:, -64:]
    assert torch.equal(flat[:3], flat[4:7])
    assert not torch.equal(flat[3], flat[7])
    assert len(np.unique(raw(windows.numbered()))) == 8


@pytest.mark.parametrize("shape", [(7, 7, 3), (9, 7, 1), (4, 4, 2), (4, 3, 1)])
def test_cells_are_pooled_in_blocks_of_sixteen(shape):
    torch.manual_seed(0)
    encoder = CellEncoder(shape, 8).eval().requires_grad_(False)
    views = np.random.default_rng(0).integers(0, 3, (12, *shape)).astype(np.uint8)
    views[0, 0, 0] = 200  # shares the last category
    encoder(torch.from_numpy(views[:5]))  # what is known already must not matter
    values = torch.from_numpy(views).reshape(12, -1, shape[2])
    highest, total = encoder._pool_frozen(values)
    codes = values.clamp(max=31).long() @ torch.tensor([32**i for i in range(shape[2])][::-1])
    cells = torch.stack(
        [torch.stack([encoder._vectors(code[None])[0, p] for p, code in enumerate(row)]) for row in codes]
    )
    expected = np.zeros((12, 32), np.float32)
    for start in range(0, cells.shape[1], 16):
        block = np.zeros((12, 32), np.float32)
        for p in range(start, min(start + 16, cells.shape[1])):
            block += cells[:, p].numpy()
        expected += block
    np.testing.assert_array_equal(total.numpy(), expected)
    np.testing.assert_array_equal(highest.numpy(), cells.amax(1).numpy())
    np.testing.assert_allclose(total.numpy(), cells.sum(1).numpy(), rtol=1e-6)
    learning = encoder.train()._pool_training(values)
    np.testing.assert_allclose(learning[0], highest, rtol=1e-5)
    np.testing.assert_allclose(learning[1], total, rtol=1e-5)


CRAFTER = NetConfig((82,), 6, 1, grid=(9, 7), faced=(63, 30, 32, 22, 40))


@pytest.mark.parametrize("config", [CRAFTER, NetConfig((7, 7, 3), 6, 1)])
def test_scores_are_the_networks_own_bit_for_bit(config):
    torch.manual_seed(0)
    raw = PreferenceRaw(PreferenceNet(config))
    rng = np.random.default_rng(0)
    views = rng.integers(0, 4, (256, *config.obs_shape)).astype(np.uint8)  # as many of all as a chunk has rows
    index = np.stack([np.arange(256), rng.permutation(256)], 1)
    actions, valid = rng.integers(0, 6, (256, 1)), np.stack([rng.random(256) < 0.7, np.ones(256, bool)], 1)
    with torch.no_grad():
        own = raw.nets[0](*map(torch.from_numpy, (views, index, actions, valid)))
    np.testing.assert_array_equal(raw(Windows(views, index, actions, valid)), own.numpy().astype(np.float64))


def test_views_that_look_alike_are_embedded_once_but_a_change_between_them_counts(monkeypatch):
    torch.manual_seed(0)
    raw = PreferenceRaw(PreferenceNet(CRAFTER))
    net = raw.nets[0]
    views = np.random.default_rng(0).integers(0, 19, (60, 82)).astype(np.uint8)
    views[:, 81] = np.arange(60)  # daylight: twenty of their own, then two bins
    views[20:, :81] = views[20, :81]
    seen = net.view.alike(views)
    embedded = net.embed(torch.from_numpy(views))
    assert len(np.unique(seen, axis=0)) == len(np.unique(embedded.numpy(), axis=0)) == 22
    rows: list[np.ndarray] = []
    embed = net.embed
    monkeypatch.setattr(net, "embed", lambda part: rows.append(part.numpy()) or embed(part))
    index = np.array([[30, 31], [31, 31], [30, 30], [25, 45], [45, 45]])
    scores = raw(Windows(views, index, np.zeros((5, 1), np.int64), np.ones((5, 2), bool)))
    assert len(np.unique(np.concatenate(rows), axis=0)) == 22
    assert scores[1] == scores[2]
    assert len(np.unique(scores)) == 4
    other = NetConfig((7, 7, 3), 6, 0)
    looks = np.zeros((3, 7, 7, 3), np.uint8)
    looks[1:, 0, 0, 0] = 31, 77
    assert len(np.unique(PreferenceNet(other).view.alike(looks), axis=0)) == 2


def test_statistics_by_hand():
    low, high = wilson_interval(50, 100)
    assert low == pytest.approx(0.4038, abs=1e-3)
    assert high == pytest.approx(0.5962, abs=1e-3)
    certain = np.array([50.0, 50.0, -50.0, -50.0])
    assert calibration_error(certain, np.array([1.0, 1.0, 0.0, 0.0])) == pytest.approx(0.0, abs=1e-6)
    assert calibration_error(certain, np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(1.0, abs=1e-6)
