"""A captioner that is learnt: a small network says which deed a transition was (`goals.captions.Captioner`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bkrl.agents.networks.adam import Adam
from bkrl.agents.networks.layers import Linear
from bkrl.agents.networks.symbols import SymbolLayer
from bkrl.agents.viewer import symbols_after
from bkrl.core.seeds import derive_seed
from bkrl.envs import env_spec, family, make_vec, situations
from bkrl.envs.family import GoalSpace
from bkrl.envs.symbols import Symbols
from bkrl.goals.captions import NOTHING, Captioner, first_alike

TRAIN_STEPS, TEST_STEPS, NUM_ENVS, EPOCHS, BATCH = 40_000, 10_000, 40, 4, 256


def caption_network(symbols: Symbols, num_deeds: int, hidden: int, seed: int) -> nn.Sequential:
    """(B, 3J) uint8 → (B, A + 1): what was seen before and after, and which entries rose or fell; last: nothing."""
    J = len(symbols.sizes)
    gates = [*symbols.gate, *(gate + J if gate >= 0 else -1 for gate in symbols.gate), *(-1,) * J]
    joined = replace(
        symbols,
        sizes=(*symbols.sizes, *symbols.sizes, *(3,) * J),
        reference=(*symbols.reference, *symbols.reference, *(1,) * J),
        gate=tuple(gates),
    )
    first, last, rng = SymbolLayer(joined, hidden), Linear(hidden, num_deeds + 1), torch.Generator()
    first.initialise(rng.manual_seed(seed))
    nn.init.orthogonal_(last.weight, 0.01, generator=rng)
    nn.init.zeros_(last.bias)
    return nn.Sequential(first, nn.ReLU(), last)


class LearntCaptioner(Captioner):
    """A small network that has seen transitions of random play, and what the game did in them.

    It stands in for the paper's captioner, which is a language model on pictures. It is trained when a run begins, from
    the run's seed, and tested in episodes of other seeds.

    Args:
        env_id: where it looks on.
        seed: of weights, episodes and order.

    Attributes:
        figures: share of right captions, mean share over the deeds that were met, and how many were met in training
            (all three of held-out episodes but the last).
    """

    def __init__(self, env_id: str, seed: int) -> None:
        facts, known = env_spec(env_id), situations(env_id)
        self._group = first_alike(known)
        symbols = family(facts.family).symbols(facts.obs_shape)
        self.network = caption_network(symbols, len(known.deeds), 128, derive_seed(seed, "captioner"))
        rows, deeds = self._play(env_id, known, derive_seed(seed, "captioner", "train"), TRAIN_STEPS)
        self._train(rows, deeds, derive_seed(seed, "captioner", "order"))
        tested, true = self._play(env_id, known, derive_seed(seed, "captioner", "test"), TEST_STEPS)
        right = self._said(tested) == true
        met = np.unique(true[true != NOTHING])
        self.figures = {
            "accuracy": float(right.mean()),
            "balanced_accuracy": float(np.mean([right[true == deed].mean() for deed in met] or [0.0])),
            "deeds_met": len(np.unique(deeds)) - (NOTHING in deeds),
        }

    def __call__(
        self, before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8], infos: Mapping[str, Any]
    ) -> NDArray[np.int64]:
        return self._said(_rows(before, after))

    @torch.no_grad()
    def _said(self, rows: NDArray[np.uint8]) -> NDArray[np.int64]:
        found = torch.cat(
            [self.network(torch.from_numpy(part)).argmax(1) for part in np.array_split(rows, -(-len(rows) // 4096))]
        )
        said = found.numpy()
        return np.where(said == len(self._group), NOTHING, said)

    def _play(
        self, env_id: str, known: GoalSpace, seed: int, steps: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Rows and deeds of random play with the deeds that are possible somewhere."""
        possible = np.array([number for number, deed in enumerate(known.deeds) if deed in known.possible])
        rng, envs = np.random.default_rng(seed), make_vec(env_id, NUM_ENVS)
        before, _ = envs.reset(seed=seed)
        rows, deeds = [], []
        for _ in range(steps // NUM_ENVS):
            actions = rng.choice(possible, NUM_ENVS)
            following, _, _, _, infos = envs.step(actions)
            rows.append(_rows(before, symbols_after(following, infos)))
            # To do nothing is no deed that could be seen, and other names of a deed look alike
            done = infos["eval_success"] & (np.array(known.deeds)[actions] != "do nothing")
            deeds.append(np.where(done, self._group[actions], NOTHING))
            before = following.copy()
        envs.close()
        return np.concatenate(rows), np.concatenate(deeds)

    def _train(self, rows: NDArray[np.uint8], deeds: NDArray[np.int64], seed: int) -> None:
        labels = torch.from_numpy(np.where(deeds == NOTHING, len(self._group), deeds))
        counts = torch.bincount(labels, minlength=len(self._group) + 1).clamp_min(1)
        loss_of = nn.CrossEntropyLoss(weight=1 / counts.sqrt())  # what is rare must not be forgotten
        optimizer = Adam(self.network.parameters(), lr=2e-3, fused=True)
        order, inputs = torch.Generator().manual_seed(seed), torch.from_numpy(rows)
        for _ in range(EPOCHS):
            for mb in torch.randperm(len(rows), generator=order).split(BATCH):
                optimizer.zero_grad()
                loss_of(self.network(inputs[mb]), labels[mb]).backward()
                optimizer.step()


def _rows(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> NDArray[np.uint8]:
    one, two = before.reshape(len(before), -1), after.reshape(len(after), -1)
    change = 1 + (two > one).astype(np.uint8) - (two < one).astype(np.uint8)
    return np.concatenate([one, two, change], 1)
