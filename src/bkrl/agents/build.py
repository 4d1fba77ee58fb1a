"""Agents that fit an env: what they see of it, and the first or other weights of their networks."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from gymnasium import spaces
from safetensors import SafetensorError
from torch import nn

from bkrl.agents.network import NetworkAgent
from bkrl.agents.networks import ActorCritic, build_network, misfit
from bkrl.agents.networks.layers import is_image, one_thread
from bkrl.agents.protocol import Agent
from bkrl.agents.weights import finite
from bkrl.core.config import CONVOLUTIONAL
from bkrl.core.errors import InputError, UsageError
from bkrl.core.seeds import derive_seed
from bkrl.envs import EnvSpec, family, later_missions, memory_of
from bkrl.envs.symbols import Symbols
from bkrl.envs.vector import BaseVectorEnv
from bkrl.runs.record import Run
from bkrl.text.mission_words import words_of


def take_weights(network: nn.Module, source: Path) -> None:
    """Start from the weights of another policy: only those; optimiser, counters and random streams begin anew.

    Args:
        network: takes the weights.
        source: a complete train-rs run, or a `.safetensors` file of a policy.

    Raises:
        InputError: there is no such run or file, it is damaged, or its weights are those of another network.
    """
    there = ""
    if source.is_dir():
        run = Run.open(source, "train-rs")
        there = str(run.config["config"].get("network", ""))
        source = run.file("policy.safetensors")
    if not source.is_file():
        raise InputError(f"--init-from: there is no run and no file at {source}.")
    try:
        tensors = safetensors.torch.load(source.read_bytes())
    except SafetensorError as error:
        raise InputError(f"--init-from: {source} holds no whole safetensors file ({error}).") from None
    if problem := misfit(network, tensors):
        raise InputError(
            f"--init-from: the weights in {source} are those of another network: {problem}; choose the same --network"
            f"{there and f' ({there} there)'}, --view, env family and reward streams."
        )
    if not finite(network, tensors):
        raise InputError(f"--init-from: {source} holds weights that are not finite; start from another policy.")
    network.load_state_dict(tensors)


def observation_options(env_spec: EnvSpec, network: str, view: str | None = None) -> tuple[dict[str, Any], str]:
    """What to ask of `make_vec` so that this network can see, and the key of its view.

    Args:
        env_spec: the facts of its env.
        network: its name.
        view: `symbolic`, `image` or, for what the network was made for, None. Whatever the policy sees, potentials,
            novelty and captions read the symbols.

    Raises:
        UsageError: the env has no pictures, or the network cannot read its symbols.
    """
    drawn = family(env_spec.family).images
    if view is None:
        view = "image" if network in CONVOLUTIONAL and drawn else "symbolic"
    if view == "image" and not drawn:
        raise UsageError(f"--view image: {env_spec.env_id} does not come as pictures; leave --view out.")
    if view == "symbolic" and network in CONVOLUTIONAL and drawn:
        raise UsageError(
            f"--view symbolic: the {network} network reads views and pictures, and {env_spec.env_id} shows neither; "
            "use --network compact, or leave --view out."
        )
    return {"observation": "both"} if view == "image" else {}, view


def check_acts_in(agent: Agent, env_spec: EnvSpec, source: object) -> None:
    """InputError where an agent, read from `source`, cannot act in an env."""
    if env_spec.family != agent.family or env_spec.action_names != agent.action_names:
        raise InputError(
            f"{source} acts in {agent.family} envs with the actions of {agent.env_id}; "
            f"{env_spec.env_id} is another kind of env; choose one like it."
        )


def options_of(agent: Agent) -> dict[str, Any]:
    """What to ask of `make_vec` so that an agent can see and everything else has the symbols."""
    return {"observation": "both"} if "image" in agent.wants else {}


def new_agent(
    name: str, envs: BaseVectorEnv, view: str, num_values: int, seed: int, missions: bool = False, memory: bool = False
) -> NetworkAgent:
    """An agent with a fresh network that fits the observations and actions of `envs`.

    Args:
        name: of the network: `compact`, `paper`, `residual`, `recurrent` or `film`.
        envs: made with the options of `observation_options`.
        view: `symbolic` or `image`.
        num_values: K, the reward streams.
        seed: of the weights.
        missions: whether it reads missions; `film` always does. `teach` gives it the words.
        memory: whether it reads what happened in the episode so far.

    Raises:
        UsageError: the network cannot read that, or nothing is remembered of episodes in this env.
    """
    remembered = memory_of(envs.env_spec.env_id) if memory else None
    if memory and remembered is None:
        raise UsageError(f"Nothing is remembered of episodes in {envs.env_spec.env_id}: leave --see-memory out.")
    env_spec, space = envs.env_spec, envs.single_observation_space
    if isinstance(space, spaces.Dict):
        space = space[view]
    shape: Sequence[int] = space.shape or ()
    network = build_network(
        name,
        obs_shape=shape,
        num_actions=len(env_spec.action_names),
        num_values=num_values,
        symbols=_symbols(env_spec, shape, space.high if isinstance(space, spaces.Box) else None),
        missions=missions,
        fields=0 if remembered is None else len(remembered.names),
        seed=seed,
    )
    return NetworkAgent.of(network, env_spec.env_id, env_spec.family, env_spec.action_names, view)


def teach(agent: NetworkAgent, envs: BaseVectorEnv) -> None:
    """Give an agent that reads missions numbers for the words of the missions in these envs, where it has room.

    The envs are reset with fixed seeds until four resets have brought no new word; reset them before they are used.
    Beside these it knows the words of `later_missions`. What it knows does not depend on its training.
    """
    if agent.vocabulary is None:
        return
    missions = set(later_missions(envs.env_spec.env_id))
    words: set[str] = set()
    number = last_new = 0
    while number - last_new < 4:
        envs.reset(seed=derive_seed(0, "words", number))
        number += 1
        found = set(envs.missions().tolist()) - missions
        missions |= found
        if new := {word for mission in found for word in words_of(mission)} - words:
            words, last_new = words | new, number
    agent.vocabulary.add(missions)


@one_thread()  # orthogonal weights have other last digits on several threads
def advice_network(facts: EnvSpec, seed: int, missions: Iterable[str] = (), hidden: int = 64) -> ActorCritic:
    """A fresh, small network that can hold advice on the symbols of this env's family; it reads missions if any are
    given, whose words it then knows. With `hidden` = `POLICY_HIDDEN` a policy can begin with its weights."""
    given = set(missions)
    network: Any = build_network(
        "compact",
        obs_shape=facts.obs_shape,
        num_actions=len(facts.action_names),
        num_values=1,
        symbols=_symbols(facts, facts.obs_shape, None),
        hidden=hidden,
        missions=bool(given),
        seed=seed,
    )
    if given:
        network.mission.vocabulary.add(given)
    return network


def _symbols(env_spec: EnvSpec, shape: Sequence[int], high: Any) -> Symbols | None:
    return None if is_image(shape) else family(env_spec.family).symbols(shape, high)
