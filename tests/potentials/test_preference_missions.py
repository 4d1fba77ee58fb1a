"""The preference network where missions change: it learns which thing is meant, bit for bit alike in any batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bkrl.core.errors import InputError
from bkrl.data.windows import Windows
from bkrl.envs.babyai.constants import COLOR_NAMES
from bkrl.potentials.preference import PreferenceRaw
from bkrl.potentials.preference.fit import Pairs, fit
from bkrl.potentials.preference.net import NetConfig, PreferenceNet
from bkrl.text.mission_words import FIRST, MissionWords

H, THINGS = 1, 3
KINDS = ("key", "ball", "box")
PLAIN = NetConfig((7, 7, 3), 7, H)
WORDS = MissionWords.of([f"go to the {color} {kind}" for color in COLOR_NAMES for kind in KINDS])
CONFIG = replace(PLAIN, vocabulary=FIRST + len(WORDS.words), things=True)


def segments(count: int, rng: np.random.Generator) -> tuple[Windows, np.ndarray]:
    """Views with three different things, one of which the mission names, and how near that one is."""
    observations = np.zeros((count, H + 1, 7, 7, 3), np.uint8)
    observations[..., 0] = 1
    row, step = np.arange(count)[:, None], np.arange(H + 1)[None]
    pairs = np.argsort(rng.random((count, 18)), axis=1)[:, :THINGS]
    cells = np.argsort(rng.random((count, H + 1, 42)), axis=2)[..., :THINGS]  # the agent's own row stays empty
    x, y = cells % 7, cells // 7
    for thing in range(THINGS):
        observations[row, step, x[..., thing], y[..., thing], 0] = 5 + pairs[:, thing, None] % 3
        observations[row, step, x[..., thing], y[..., thing], 1] = pairs[:, thing, None] // 3
    missions = [f"go to the {COLOR_NAMES[pair // 3]} {KINDS[pair % 3]}" for pair in pairs[:, 0]]
    near = -(abs(x - 3) + 6 - y)[:, -1, 0]
    actions = rng.integers(0, 7, (count, H))
    return Windows.of(observations, actions, np.ones((count, H + 1), bool), np.array(missions, object)), near


def pairs(count: int) -> Pairs:
    rng = np.random.default_rng(0)
    (a, near_a), (b, near_b) = segments(count, rng), segments(count, rng)
    return Pairs(a, b, 0.5 + 0.5 * np.sign(near_a - near_b), rng.integers(0, 60, (count, 2)))


@pytest.fixture(scope="module")
def trained():
    torch.set_num_threads(1)
    return fit(pairs(3000), CONFIG, seed=1, epochs=10, words=WORDS)


@pytest.mark.slow
def test_it_learns_which_thing_is_meant(trained):
    aware, blind = trained[1], fit(pairs(1500), PLAIN, seed=1, epochs=3)[1]
    assert aware.accuracy > 0.85
    assert blind.accuracy < 0.7


@pytest.mark.slow
def test_the_same_view_is_worth_something_else_under_another_mission(trained):
    windows, _ = segments(300, np.random.default_rng(3))
    other = replace(windows, missions=np.roll(windows.missions, 1))
    raw = trained[0]
    assert (raw(windows.numbered()) != raw(other.numbered())).mean() > 0.9
    with pytest.raises(InputError, match="without one"):
        raw(replace(windows, missions=None).numbered())


@pytest.mark.slow
def test_scores_are_the_same_for_any_batch_and_those_of_training(trained):
    raw = trained[0]
    windows, _ = segments(700, np.random.default_rng(7))
    whole, order = raw(windows.numbered()), np.random.default_rng(8).permutation(700)
    assert np.array_equal(raw(windows[order].numbered()), whole[order])
    alone = np.concatenate([raw(windows[i : i + 1].numbered()) for i in range(0, 700, 61)])
    assert np.array_equal(alone, whole[::61])
    numbered, tokens = windows.numbered(), torch.from_numpy(WORDS.tokens(windows.missions))
    arrays = (numbered.symbols, numbered.index, numbered.actions, numbered.valid)
    with torch.no_grad():
        trained_as = raw.nets[0](*map(torch.from_numpy, arrays), tokens) / raw.temperature
    np.testing.assert_allclose(trained_as.numpy(), whole, rtol=1e-4, atol=1e-4)


def test_words_that_were_not_in_the_dataset_count_as_one():
    torch.manual_seed(0)
    raw = PreferenceRaw(PreferenceNet(CONFIG, WORDS.words))
    windows, _ = segments(5, np.random.default_rng(1))
    scores = [
        raw(replace(windows, missions=np.full(5, f"go to the {word}", object)).numbered())
        for word in ("dax", "wug", "key")
    ]
    assert np.array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0], scores[2])
