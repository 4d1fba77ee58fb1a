"""Policies on disk: `policy.safetensors` holds the weights, `policy.json` what they are the weights of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import safetensors.torch
from gymnasium import spaces
from safetensors import SafetensorError
from torch import Tensor

from bkrl.agents.networks import ActorCritic, build_network, is_image, misfit, rebuild_network
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, read_json, sha256, to_json
from bkrl.envs import World, family
from bkrl.envs.family import Symbols
from bkrl.envs.vector import WorldVectorEnv
from bkrl.runs.record import Run

FORMAT = 1


class _Document(TypedDict):
    """policy.json."""

    network: dict[str, Any]
    env_id: str
    family: str
    action_names: list[str]
    view: Literal["symbolic", "image"]
    sha256: str


@dataclass(frozen=True)
class Policy:
    """A network with the worlds it can act in.

    Attributes:
        network: the actor-critic.
        env_id, family: where it was trained.
        action_names: in the order of its logits.
        view: the part of the observation it sees, where observations are dicts.
    """

    network: ActorCritic
    env_id: str
    family: str
    action_names: tuple[str, ...]
    view: str = "symbolic"

    def save(self, folder: Path, name: str = "policy") -> list[str]:
        """Write `NAME.safetensors` and `NAME.json`; their names."""
        tensors = {key: value.detach().cpu().contiguous() for key, value in self.network.state_dict().items()}
        atomic_write(folder / f"{name}.safetensors", safetensors.torch.save(tensors))
        document = {
            "format": FORMAT,
            "network": self.network.spec,
            "env_id": self.env_id,
            "family": self.family,
            "action_names": self.action_names,
            "view": self.view,
            "sha256": sha256(folder / f"{name}.safetensors"),
        }
        atomic_write(folder / f"{name}.json", to_json(document))
        return [f"{name}.safetensors", f"{name}.json"]

    @classmethod
    def load(cls, folder: Path, name: str = "policy") -> Policy:
        """Read a policy back; InputError when it is missing, damaged or of another format."""
        path = folder / f"{name}.json"
        if read_json(path).get("format") != FORMAT:
            raise InputError(f"{path} has another format than this bkrl reads ({FORMAT}); train the policy again.")
        document: _Document = read_json(path, _Document)
        weights = folder / f"{name}.safetensors"
        if not weights.is_file():
            raise InputError(f"{weights} is missing; train the policy again.")
        if sha256(weights) != document["sha256"]:
            raise InputError(f"{weights} was changed after it was written; train the policy again.")
        try:
            tensors = safetensors.torch.load(weights.read_bytes())
        except SafetensorError as error:
            raise InputError(f"{weights} is damaged ({error}); train the policy again.") from None
        network = rebuild_network(document["network"], tensors)
        if network.learnt.spec["num_actions"] != len(document["action_names"]):
            raise InputError(f"{path} names other actions than its network has; train the policy again.")
        if not _finite(network, tensors):
            raise InputError(
                f"{weights} holds weights that are not finite; train the policy again with a smaller --learning-rate."
            )
        return cls(
            network=network,
            env_id=document["env_id"],
            family=document["family"],
            action_names=tuple(document["action_names"]),
            view=document["view"],
        )


def take_weights(network: ActorCritic, source: Path) -> None:
    """Start from the weights of another policy: only those; optimiser, counters and random streams begin anew.

    Args:
        network: takes the weights.
        source: a complete train-rs run, or a `.safetensors` file that `Policy.save` wrote.

    Raises:
        InputError: there is no such run or file, it is damaged, or its weights are those of another network.
    """
    if source.is_dir():
        source = Run.open(source, "train-rs").file("policy.safetensors")
    if not source.is_file():
        raise InputError(f"--init-from: there is no run and no file at {source}.")
    try:
        tensors = safetensors.torch.load(source.read_bytes())
    except SafetensorError as error:
        raise InputError(f"--init-from: {source} holds no whole safetensors file ({error}).") from None
    if problem := misfit(network, tensors):
        raise InputError(
            f"--init-from: the weights in {source} are those of another network: {problem}; choose the same --network, "
            "--view, world family and reward streams."
        )
    if not _finite(network, tensors):
        raise InputError(f"--init-from: {source} holds weights that are not finite; start from another policy.")
    network.load_state_dict(tensors)


def _finite(network: ActorCritic, tensors: Mapping[str, Tensor]) -> bool:
    """Whether all parameters are; buffers need not be (advice that says nothing has an infinite scale)."""
    return all(bool(tensors[name].isfinite().all()) for name, _ in network.named_parameters())


def observation_options(world: World, network: str, view: str | None = None) -> tuple[dict[str, Any], str]:
    """What to ask of `make_vec` so that this network can see, and the key of its view.

    Args:
        world: where it acts.
        network: its name.
        view: `symbolic`, `image` or, for what the network was made for, None. Whatever the policy sees, potentials,
            novelty and captions read the symbols.

    Raises:
        UsageError: the world is not drawn, or the network cannot read its symbols.
    """
    drawn = family(world.family).images
    if view is None:
        view = "image" if network == "paper" and drawn else "symbolic"
    if view == "image" and not drawn:
        raise UsageError(f"--view image: {world.env_id} does not come as pictures; leave --view out.")
    if view == "symbolic" and network == "paper" and drawn:
        raise UsageError(
            f"--view symbolic: the paper network reads views and pictures, and {world.env_id} shows neither; use "
            "--network compact, or leave --view out."
        )
    return options_of_view(view), view


def options_of_view(view: str) -> dict[str, Any]:
    """What to ask of `make_vec` so that a policy with this view can see and everything else has the symbols."""
    return {"observation": "both"} if view == "image" else {}


def network_for(name: str, envs: WorldVectorEnv, view: str, num_values: int, seed: int) -> ActorCritic:
    """A fresh network that fits the worlds' observations and actions."""
    space = envs.single_observation_space
    if isinstance(space, spaces.Dict):
        space = space[view]
    shape: Sequence[int] = space.shape or ()
    return build_network(
        name,
        obs_shape=shape,
        num_actions=int(envs.single_action_space.n),  # type: ignore[attr-defined]
        num_values=num_values,
        symbols=_symbols(envs.world, shape, getattr(space, "high", None)),
        seed=seed,
    )


def advice_network(facts: World, seed: int) -> ActorCritic:
    """A fresh, small network that can hold advice on the symbols of this world's family."""
    return build_network(
        "compact",
        obs_shape=facts.obs_shape,
        num_actions=len(facts.action_names),
        num_values=1,
        symbols=_symbols(facts, facts.obs_shape, None),
        hidden=64,
        seed=seed,
    )


def _symbols(world: World, shape: Sequence[int], high: Any) -> Symbols | None:
    return None if is_image(shape) else family(world.family).symbols(shape, high)
