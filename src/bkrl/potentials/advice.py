"""Action advice Ψ(s, a): what a potential, or its program, says about actions rather than about states.

A potential over short histories mixes two kinds of knowledge: how promising the present situation is, and how sensible
what was just done was. Fitted on a dataset,

    Φ_raw(h_t) ≈ V(s_t) + Σ_{k=1..H} q(s_{t-k}, a_{t-k}),

V takes what the situation explains, q what only the remembered actions explain. As a reward for single actions q is
useless (a potential takes back what it pays once the action leaves its memory); as advice it is just what is wanted:

    Ψ(s, a) = clip((q(s, a) - max_b q(s, b)) / scale, -1, 0),

where scale is fixed on the dataset: the 99th percentile of max_b q(s, b) - q(s, a). A program may also give its advice
itself, by a function `advice`; then q is fitted to what it returns. Either way Ψ is stored as one small network over
the current observation, and over the mission where the potential reads that, so that it costs next to nothing while a
policy acts.
Its weights are rounded to half precision once they are fitted, and measured, stored and used as that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import Module

from bkrl.agents.advised import Advice
from bkrl.agents.networks import ActorCritic, rebuild_network
from bkrl.agents.networks.adam import Adam
from bkrl.agents.networks.layers import one_thread
from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write
from bkrl.core.prefixes import under
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset

ADVICE = "advice.safetensors"
LEAST_SHARE = 0.01
"""Advice must explain at least this share of the variance of Φ; below, it would be noise made large."""
BLOCK = 32
"""Consecutive rows that are fitted together."""
_BLOCKS_IN_BATCH = 16
ROWS_IN_BATCH = BLOCK * _BLOCKS_IN_BATCH
_HELD_OUT = 0.1
SHARPNESS = 8.0
"""The weight β at which the policy of imitated advice is to be that of the program."""
_IMITATING = 2e-3  # the first step size, which falls to 0


@dataclass(frozen=True)
class Record:
    """R consecutive rows of a dataset, and what is to be explained at each.

    Attributes:
        observations: (R, *obs_shape) uint8.
        actions: (R,) int64, the action taken at each row; anything where the episode ends.
        ages: (R,) actions taken before in the same episode.
        missions: (R,) objects, what each episode asks for, where advice may read it.
    """

    observations: NDArray[np.uint8]
    actions: NDArray[np.int64]
    ages: NDArray[np.int32]
    missions: NDArray[np.object_] | None = None

    @classmethod
    def of(cls, dataset: Dataset, rows: NDArray[np.int64], missions: bool) -> Record:
        """Some rows of a dataset, with or without missions."""
        told = dataset.windows(rows, 0).missions if missions else None
        return cls(dataset.observations[rows], dataset.actions[rows], dataset.ages[rows], told)

    def joined(self, other: Record) -> Record:
        """The rows of both, one after the other."""
        missions = None
        if self.missions is not None and other.missions is not None:
            missions = np.concatenate([self.missions, other.missions])
        return Record(
            np.concatenate([self.observations, other.observations]),
            np.concatenate([self.actions, other.actions]),
            np.concatenate([self.ages, other.ages]),
            missions,
        )

    def seen_by(self, network: Any) -> Callable[[Any], tuple[Tensor, ...]]:
        """What a network is given of some rows: their observations and, if it reads them, the words of missions."""
        seen = [torch.from_numpy(self.observations)]
        if self.missions is not None:
            seen.append(torch.from_numpy(network.mission.vocabulary.tokens(self.missions)))
        return lambda rows: tuple(part[rows] for part in seen)


@dataclass(frozen=True)
class AdviceFit:
    """What fitting found.

    Attributes:
        source: "potential" (the decomposition), "program" (its own `advice`) or "model" (closed questions).
        explained: share of variance explained on rows held out.
        actions_share: share of variance explained by q there; with too little of it Ψ = 0.
        scale: what is mapped to -1.
        epochs: passes over the record until the best one.
    """

    source: str
    explained: float
    actions_share: float
    scale: float
    epochs: int

    @property
    def empty(self) -> bool:
        """Whether there is no advice to take: Ψ = 0."""
        return self.scale == float("inf")

    def facts(self) -> dict[str, Any]:
        """Plain values for manifests and reports."""
        return {key: value if value != float("inf") else None for key, value in asdict(self).items()}


def decompose(
    network: ActorCritic, record: Record, raw: NDArray[np.float64], horizon: int, *, seed: int, epochs: int = 6
) -> tuple[Advice, AdviceFit]:
    """Split a raw potential into V(s) and q(s, a); q becomes the advice.

    Args:
        network: a fresh one with a single value head; its logits become q.
        record: rows of the dataset.
        raw: (R,) the raw potential of the window that ends at each row.
        horizon: H, the actions it remembers.
        seed: of the order of batches.
        epochs: most passes over the record.
    """
    spread = float(raw.std()) or 1.0
    wanted = torch.from_numpy(((raw - raw.mean()) / spread).astype(np.float32))
    seen, actions = record.seen_by(network), torch.from_numpy(np.maximum(record.actions, 0))
    ages = torch.from_numpy(record.ages.astype(np.int64))

    def forward(starts: Tensor, q_of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Predictions and targets (blocks, BLOCK) of the blocks that begin at `starts`; H rows before are read too."""
        rows = starts[:, None] + torch.arange(-horizon, BLOCK)
        inside = rows.clamp(min=0)
        logits, values = network(*seen(inside.flatten()))
        q = q_of(logits, actions[inside.flatten()]).view(rows.shape)
        predicted = values.view(rows.shape)[:, horizon:]
        age = ages[inside[:, horizon:]]
        for k in range(1, horizon + 1):
            predicted = predicted + q[:, horizon - k : horizon - k + BLOCK] * (age >= k)
        return predicted, wanted[inside[:, horizon:]]

    explained, without, best_epoch = least_squares(network, len(raw), forward, seed, epochs)
    return _finish(network, record, "potential", explained, explained - without, best_epoch)


@one_thread()
def imitate(
    network: ActorCritic,
    record: Record,
    wanted: NDArray[np.float64],
    *,
    seed: int,
    epochs: int = 14,
    source: str = "program",
    reporter: Reporter | None = None,
) -> tuple[Advice, AdviceFit]:
    """Fit the network's logits to advice (R, A) that a program or a model gave; only differences between actions count.

    What falls is the squared error, and the divergence between the policies of both at the weight `SHARPNESS`: among
    the best actions small differences decide, and the squared error alone hardly sees them.
    """
    if len(wanted) < 2:
        raise InputError("One row alone has advice, and it takes two to learn from; ask about more, or collect more.")
    told = torch.from_numpy(in_place(wanted)[0].astype(np.float32))
    told -= told.mean(1, keepdim=True)
    seen = record.seen_by(network)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(wanted), generator=generator)
    held = max(1, int(len(order) * _HELD_OUT))
    test, train = order[:held], order[held:]
    updates = epochs * -(-len(train) // ROWS_IN_BATCH)
    optimizer = Adam(network.parameters(), lr=_IMITATING)

    def said(rows: Tensor) -> Tensor:
        logits = network(*seen(rows))[0]
        return logits - logits.mean(1, keepdim=True)

    done = 0
    with (reporter or Reporter()).progress("learn what was advised", updates, "updates") as update:
        for _ in range(epochs):
            for rows in train[torch.randperm(len(train), generator=generator)].split(ROWS_IN_BATCH):
                optimizer.param_groups[0]["lr"] = _IMITATING * (1.0 - done / updates)
                right, found = told[rows], said(rows)
                aim = (SHARPNESS * right).softmax(1)
                divergence = torch.nn.functional.kl_div((SHARPNESS * found).log_softmax(1), aim, reduction="batchmean")
                optimizer.zero_grad()
                (divergence + (found - right).square().mean()).backward()
                optimizer.step()
                done += 1
                update(done)
    with torch.no_grad():
        wrong = torch.cat([(said(rows) - told[rows]).square() for rows in test.split(ROWS_IN_BATCH)]).mean()
    explained = 1.0 - float(wrong / told[test].var().clamp(min=1e-12))
    return _finish(network, record, source, explained, explained, epochs)


def followed(network: ActorCritic) -> Callable[[Record, NDArray[np.float64]], NDArray[np.float32]]:
    """The policy of a network that has learnt advice, at the weight that it was learnt for; see `asked.played`."""

    @one_thread()
    @torch.no_grad()
    def logits(record: Record, told: NDArray[np.float64]) -> NDArray[np.float32]:
        del told
        said: NDArray[np.float32] = SHARPNESS * network(*record.seen_by(network)(slice(None)))[0].numpy()
        return said

    return logits


def in_place(wanted: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Advice (R, A) as Ψ, in [-1, 0] with 0 for the best action of a row, and what was mapped to -1."""
    behind = wanted.max(1, keepdims=True) - wanted
    spread = float(np.percentile(behind, 99, method="closest_observation")) or 1.0
    return (-behind / spread).clip(-1.0, 0.0), spread


@torch.no_grad()
def rounded(network: ActorCritic) -> ActorCritic:
    """The network with its weights rounded to half precision, in place."""
    for weights in network.parameters():
        weights.copy_(weights.half())
    return network


def no_advice(network: ActorCritic) -> tuple[Advice, AdviceFit]:
    """Ψ = 0 everywhere."""
    return Advice(rounded(network), float("inf")), AdviceFit("none", 0.0, 0.0, float("inf"), 0)


@one_thread()
@torch.no_grad()
def constant(psi: Advice, fit: AdviceFit, record: Record) -> tuple[Advice, AdviceFit, list[float]]:
    """The same advice in every state: Ψ(a), the mean of Ψ(s, a) over a record, shifted so that its best action has 0;
    with how it was found, and Ψ of each action.
    """
    network = copy.deepcopy(psi.network)  # all of its weights become 0 but the logits' biases
    total = torch.zeros(network.spec["num_actions"], dtype=torch.float64)
    seen = record.seen_by(network)
    for part in torch.arange(len(record.actions)).split(8192):
        total += psi(*seen(part)).double().sum(0)
    for weights in network.parameters():
        weights.zero_()
    bias = network.get_parameter("head.bias")
    bias[: len(total)] = (total - total.max()) / len(record.actions)
    same = Advice(rounded(network), 1.0 if bias.any() else float("inf"))
    return same, fit if not same.empty else replace(fit, scale=float("inf")), bias[: len(total)].tolist()


def save(psi: Advice, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Write `advice.safetensors` into `folder`: the files written, and the settings that `load` needs.

    Weights in float16, which loses nothing of a network that is `rounded`. Empty advice needs no file.
    """
    if psi.empty:
        return [], {"advice": None}
    write_halves(folder / ADVICE, psi)
    return [ADVICE], {"advice": psi.network.spec}


def write_halves(path: Path, module: Module) -> None:
    """The weights of what is `rounded`, in float16; a scale as it is."""
    tensors = {
        key: (value.half() if key != "scale" and value.is_floating_point() else value).contiguous()
        for key, value in module.state_dict().items()
    }
    atomic_write(path, safetensors.torch.save(tensors))


def read_halves(path: Path) -> dict[str, Tensor]:
    """The weights that `write_halves` wrote, in float32; InputError where the file is damaged."""
    try:
        tensors = safetensors.torch.load(path.read_bytes())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); run train-rm again.") from None
    return {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}


def load(folder: Path, settings: Mapping[str, Any]) -> Advice | None:
    """Read advice back: None where it is empty and was stored as that (earlier potentials hold a network even then).

    Raises:
        InputError: the potential was built before there was advice, or it is damaged.
    """
    if "advice" not in settings:
        raise InputError(f"{folder} holds no action advice (it was built by an earlier bkrl); run train-rm again.")
    if settings["advice"] is None:
        return None
    tensors = read_halves(folder / ADVICE)
    if "scale" not in tensors:
        raise InputError(f"{folder / ADVICE} is damaged ('scale'); run train-rm again.")
    scale = float(tensors.pop("scale"))
    return Advice(rebuild_network(settings["advice"], under(tensors, "network.")), scale)


def _chosen(logits: Tensor, actions: Tensor) -> Tensor:
    """q of the action that was taken."""
    return logits.gather(1, actions[:, None]).squeeze(1)


_Forward = Callable[[Tensor, Callable[[Tensor, Tensor], Tensor]], tuple[Tensor, Tensor]]


def enough(rows: int) -> None:
    """InputError where a dataset has too few rows for blocks to learn from and one to hold out."""
    if rows < 2 * BLOCK:
        raise InputError(f"The dataset has only {rows} rows, too few to learn advice from; collect more episodes.")


@one_thread()
def least_squares(
    network: ActorCritic, rows: int, forward: _Forward, seed: int, epochs: int
) -> tuple[float, float, int]:
    """Least squares on blocks of rows; explained variance held out, the same with actions forgotten, best epoch."""
    enough(rows)
    starts = torch.arange(0, rows - BLOCK + 1, BLOCK)
    generator = torch.Generator().manual_seed(seed)
    shuffled = starts[torch.randperm(len(starts), generator=generator)]
    held = max(1, int(len(shuffled) * _HELD_OUT))
    test, train = shuffled[:held], shuffled[held:]
    # Weight decay: rare situations must not get advice of their own from a handful of rows.
    optimizer = Adam(network.parameters(), lr=1e-3, weight_decay=1e-2, decoupled_weight_decay=True)

    @torch.no_grad()
    def score(q_of: Callable[[Tensor, Tensor], Tensor]) -> float:
        parts = [forward(part, q_of) for part in test.split(_BLOCKS_IN_BATCH)]
        predicted, wanted = torch.cat([p for p, _ in parts]), torch.cat([w for _, w in parts])
        return 1.0 - float((predicted - wanted).square().mean() / wanted.var().clamp(min=1e-12))

    best, kept, best_epoch = -float("inf"), network.state_dict(), 0
    for epoch in range(1, epochs + 1):
        for part in train[torch.randperm(len(train), generator=generator)].split(_BLOCKS_IN_BATCH):
            predicted, wanted = forward(part, _chosen)
            optimizer.zero_grad()
            (predicted - wanted).square().mean().backward()
            optimizer.step()
        explained = score(_chosen)
        if explained > best:
            best, best_epoch = explained, epoch
            kept = {key: value.clone() for key, value in network.state_dict().items()}
    network.load_state_dict(kept)
    return best, score(lambda q, actions: q.mean(1)), best_epoch  # where it is not known which action was taken


def _finish(
    network: ActorCritic, record: Record, source: str, explained: float, share: float, epochs: int
) -> tuple[Advice, AdviceFit]:
    with torch.no_grad():
        every = slice(None, None, max(1, len(record.actions) // 20_000))
        logits = rounded(network)(*record.seen_by(network)(every))[0]
        behind = (logits.amax(1, keepdim=True) - logits).flatten().numpy()
    scale = float(np.percentile(behind, 99, method="closest_observation"))
    if not (share >= LEAST_SHARE and scale > 0):
        scale = float("inf")
    return Advice(network, scale), AdviceFit(source, explained, share, scale, epochs)
