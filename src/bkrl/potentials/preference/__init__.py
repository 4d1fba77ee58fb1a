"""Preference potentials: networks trained on which of two segments is better, read as Φ of a history.

What is stored is one network, or an ensemble whose scores are averaged, and one temperature that makes the difference
of two scores the logit of "A is better" (`fit` trains and calibrates them).
"""

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.functional import embedding

from bkrl.agents.networks import fitted
from bkrl.agents.networks.layers import one_thread
from bkrl.agents.networks.missions import MissionLayer
from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write
from bkrl.core.flags import Flag
from bkrl.data.distinct import distinct_rows, numbered
from bkrl.data.windows import Reads, Windows
from bkrl.potentials.preference.net import NetConfig, PreferenceNet
from bkrl.potentials.protocol import Artefact, Raw

WEIGHTS = "model.safetensors"
_CHUNK = 256  # rows in every forward pass: always the same, so a score cannot depend on the batch it came in


class PreferenceRaw(Raw):
    """The calibrated score of windows: the mean over the networks, divided by the temperature.

    Evaluated in fixed-size padded chunks without gradients.
    """

    def __init__(self, *nets: PreferenceNet, temperature: float = 1.0, memory: tuple[str, ...] = ()) -> None:
        self.nets = [net.eval().requires_grad_(False) for net in nets]
        self.temperature = temperature
        self.config = nets[0].config
        self.memory = memory
        self.reads = Reads.of(self.config.horizon, nets[0].mission is not None, nets[0].memory is not None)

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        members = self.members(windows)
        return members[0] if len(members) == 1 else members.mean(axis=0)

    def members(self, windows: Windows) -> NDArray[np.float64]:
        """(K, B) the score of each network apart."""
        with one_thread():
            return np.stack([_scores(net, windows) for net in self.nets]) / self.temperature

    def save(self, folder: Path) -> tuple[list[str], dict[str, Any]]:
        # The first network's weights have their own names, as they have where there is only one.
        tensors = {
            f"member{member}.{key}" if member else key: tensor.contiguous()
            for member, net in enumerate(self.nets)
            for key, tensor in net.state_dict().items()
        }
        atomic_write(folder / WEIGHTS, save(tensors))
        net = asdict(self.config)
        settings = {"net": net, "ensemble": len(self.nets), "temperature": self.temperature}
        if self.memory:
            return [WEIGHTS], {**settings, "memory": list(self.memory)}
        net.pop("memory")  # as earlier versions wrote it
        return [WEIGHTS], settings


@torch.no_grad()
def _scores(net: PreferenceNet, windows: Windows) -> NDArray[np.float64]:
    """(B,) scores of one network: what is distinct is worked out once."""
    index = windows.index
    first, kind = distinct_rows(net.view.alike(windows.symbols))  # equal rows embed equally
    embedded = in_chunks(net.embed, torch.from_numpy(windows.symbols[first]))
    present = in_chunks(net.present, embedded)
    tokens, rows = present, kind[index[:, -1:]]
    if net.config.horizon:
        # a transition as one number, which is found again faster than three
        steps = (windows.actions * len(windows.symbols) + index[:, :-1]) * len(windows.symbols) + index[:, 1:]
        once, inverse = distinct_rows(steps.ravel())
        before, action, after = (part.ravel()[once] for part in (index[:, :-1], windows.actions, index[:, 1:]))
        arrays = (kind[before], action, kind[after], before != after)
        past = in_chunks(partial(net.transitions, embedded), *map(torch.from_numpy, arrays))
        tokens = torch.cat([past, present])
        rows = np.concatenate([inverse.reshape(len(index), -1), len(past) + rows], axis=1)
    places = net.places()
    valid = torch.from_numpy(windows.valid.astype(np.float32))  # a mask of numbers is quicker to multiply by
    memory = np.zeros((len(index), 0), np.uint8) if net.memory is None else windows.memory
    if memory is None:
        raise InputError("The potential reads the memory of episodes, and these windows come without one.")
    asked = () if net.mission is None else (asked_of(net.mission, windows),)
    scores = in_chunks(
        lambda part, *told: net.score(embedding(part, tokens).add_(places), *told),
        torch.from_numpy(rows),
        valid,
        torch.from_numpy(memory),
        *asked,
    )
    return scores.numpy().astype(np.float64)


def asked_of(layer: MissionLayer, windows: Windows) -> torch.Tensor:
    """(B, H+1, width) what the missions make of the views of windows: of a mission and a view once."""
    if windows.missions is None:
        raise InputError("The potential reads the mission, and these windows come without one.")
    numbers, texts = numbered(windows.missions)
    tokens = torch.from_numpy(layer.vocabulary.tokens(texts)).long()
    context, questions = (in_chunks(lambda part, which=which: layer.read(part)[which], tokens) for which in (0, 1))
    pairs = windows.index * len(texts) + numbers[:, None]
    once, inverse = distinct_rows(pairs.ravel())
    views, which = np.divmod(pairs.ravel()[once], len(texts))
    seen = in_chunks(
        lambda views, which: layer.see(context, questions, views, which),
        torch.from_numpy(windows.symbols[views]),
        torch.from_numpy(which),
    )
    return seen[torch.from_numpy(inverse)].view(*pairs.shape, -1)


def in_chunks(function: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> torch.Tensor:
    """`function` over rows in chunks of exactly _CHUNK, the last one filled up with copies of its first row."""
    count = len(arrays[0])
    results = []
    for start in range(0, count, _CHUNK):
        parts = [array[start : start + _CHUNK] for array in arrays]
        missing = _CHUNK - len(parts[0])
        if missing:
            parts = [torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in parts]
        result = function(*parts)
        results.append(result[: _CHUNK - missing] if missing else result)
    return torch.cat(results)


class _Settings(TypedDict):
    """What `PreferenceRaw.save` returns."""

    net: NetConfig
    ensemble: NotRequired[int]
    temperature: NotRequired[Annotated[float, Flag("", least=1e-9)]]
    memory: NotRequired[tuple[str, ...]]


def load(artefact: Artefact) -> PreferenceRaw:
    """The networks of a "preference" artefact; InputError when its weights do not fit."""
    path = artefact.part(WEIGHTS)
    settings: _Settings = artefact.read_settings(_Settings)
    config = settings["net"]
    if (config.obs_shape, config.num_actions, config.horizon) != (
        artefact.obs_shape,
        len(artefact.action_names),
        artefact.horizon,
    ):
        raise InputError(f"{artefact.folder} holds a network for other windows than its own; run train-rm again.")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); run train-rm again.") from None
    members: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        member = _MEMBER.fullmatch(name)
        members.setdefault(int(member[1]) if member else 0, {})[member[2] if member else name] = tensor
    if len(members) != settings.get("ensemble", 1) or sorted(members) != list(range(len(members))):
        raise InputError(f"{path} holds the weights of {len(members)} networks; run train-rm again.")
    if (config.vocabulary > 0) != ("mission" in artefact.reads):
        raise InputError(f"{artefact.folder} says of missions what its network does not; run train-rm again.")
    memory = settings.get("memory", ())
    if config.memory != len(memory) or (config.memory > 0) != ("memory" in artefact.reads):
        raise InputError(f"{artefact.folder} says of the memory what its network does not; run train-rm again.")
    artefact.check_memory(memory)
    nets = [fitted(lambda: PreferenceNet(config), members[number], str(path)) for number in sorted(members)]
    return PreferenceRaw(*nets, temperature=settings.get("temperature", 1.0), memory=memory)


_MEMBER = re.compile(r"member(\d{1,4})\.(.*)")
