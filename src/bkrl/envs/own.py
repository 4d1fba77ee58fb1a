"""Environments of one's own: any `gymnasium.Env` with small integers to see and a caption for what it shows."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bkrl import envs
from bkrl.core.errors import UsageError
from bkrl.envs.family import EnvSpec, Family
from bkrl.envs.reference import Make
from bkrl.envs.symbols import Symbols
from bkrl.envs.vector import checked_steps

Caption = Callable[[NDArray[np.uint8]], list[str]]
_EPISODES = 16  # of two missions that are equally likely, one is missing in one case of 32,768


def register_env(
    env_id: str,
    make: Make,
    caption: Caption,
    *,
    max_steps: int,
    action_names: Sequence[str] | None = None,
    family: str | None = None,
    rules: str = "An environment from outside bkrl.",
    solved: str = "The episode terminated with a positive reward.",
) -> None:
    """Make an environment known to every verb under `env_id`.

    Potentials and policies carry over between the environments of a family, which therefore have the same observation
    space and the same actions.

    Args:
        env_id: its name, as `--env` takes it.
        make: makes one, with a `Box` of uint8 as observation space and a `Discrete` action space. The bounds say what
            is seen: up to 31 categories, above a quantity; a view (W, H, 3) whose bounds are 255 is MiniGrid's: kind,
            colour, state. Its infos may have "success"; without that, termination with a positive reward counts as one.
            `env.unwrapped.mission`, if there is one, is recorded.
        caption: (B, *shape) uint8 observations → B captions, sentences divided by ", " or ". ".
        max_steps: an episode is truncated after so many actions.
        action_names: in the order of the action's numbers  [default: "action 0", "action 1", …].
        family: of environments that share captions and potentials  [default: `env_id` itself].
        rules: one sentence: whose rules it follows.
        solved: one sentence: what counts as success.

    Raises:
        UsageError: the spaces are of another kind, the names do not fit them, the steps are no whole number, or bkrl
            has the id or family. An id that Gymnasium alone has stays its own there; `bkrl/ID` is this one.
    """
    if not re.fullmatch(r"[\w:.-]+", env_id):  # as Gymnasium takes them, less its namespaces, which would be folders
        raise UsageError(f"'{env_id}' can be no env's id: it has other characters than letters, digits, - . : and _.")
    made = make()
    seen, acts = made.observation_space, made.action_space
    made.close()
    if not isinstance(seen, spaces.Box) or seen.dtype != np.uint8 or not seen.shape:
        raise UsageError(f"{env_id} must show a Box of uint8, not {seen}; wrap it so that it does.")
    if not isinstance(acts, spaces.Discrete) or acts.start != 0:
        raise UsageError(f"{env_id} must have Discrete actions that begin at 0, not {acts}; wrap it so that it does.")
    if isinstance(action_names, str):
        raise UsageError(f"The action_names of {env_id} are a list of names, not the text '{action_names}'.")
    names = tuple(action_names or (f"action {number}" for number in range(acts.n)))
    if len(names) != acts.n:
        raise UsageError(f"{env_id} has {acts.n} actions, and {len(names)} action_names were given.")
    if not all(isinstance(name, str) and name.strip() for name in names) or len(set(names)) < len(names):
        raise UsageError(f"The action_names of {env_id} must be different texts, none of them empty, not {names}.")
    max_steps = checked_steps(f"max_steps of {env_id}", max_steps)
    card = EnvSpec(env_id, family or env_id, tuple(seen.shape), names, max_steps, rules, solved)
    envs.register_family(OwnFamily(card.family), env_id).add(card, make, caption, seen.high)
    envs.enter([env_id])


class OwnFamily(Family):
    """Registered environments that share a family."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._made: dict[str, tuple[EnvSpec, Make, NDArray[np.uint8]]] = {}
        self._caption: Caption | None = None

    def add(self, card: EnvSpec, make: Make, caption: Caption, high: NDArray[np.uint8]) -> None:
        """One more environment, or one of before that is another now."""
        for other, _, bounds in self._made.values():
            same = (other.obs_shape, other.action_names) == (card.obs_shape, card.action_names)
            if other.env_id != card.env_id and not (same and np.array_equal(bounds, high)):
                what = f"{'bounds' if same else 'observations or actions'} than {other.env_id}"
                raise UsageError(f"{card.env_id} has other {what}; give it the same ones, or another family.")
        self._made[card.env_id], self._caption = (card, make, high), caption

    def symbols(self, obs_shape: Sequence[int], high: NDArray[Any] | None = None) -> Symbols:
        return super().symbols(obs_shape, np.max([one[2] for one in self._made.values()], 0) if high is None else high)

    def specs(self) -> list[EnvSpec]:
        return [card for card, *_ in self._made.values()]

    def make_reference(self, env_spec: EnvSpec, **options: Any) -> gymnasium.Env[Any, Any]:
        for name in options:
            raise UsageError(f"'{env_spec.env_id}' has no option '{name}': the function that makes it takes none.")
        return _Success(gymnasium.wrappers.TimeLimit(self._made[env_spec.env_id][1](), env_spec.max_steps))

    def mission_is_hidden(self, env_spec: EnvSpec, options: Mapping[str, Any]) -> bool:
        """Whether a few episodes have different missions; nothing says whether observations show them, too."""
        made, missions = envs.make_vec(env_spec.env_id, 1), set[str]()
        for seed in range(_EPISODES):
            made.reset(seed=seed)
            missions.update(made.missions())
        made.close()
        return len(missions) > 1

    def caption(self, observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
        assert self._caption is not None
        captions = list(self._caption(observations))
        if len(captions) != len(observations):
            what = f"{len(captions)} captions for {len(observations)} observations"
            raise UsageError(f"The caption function of {self.name} returned {what}; make it return one for each.")
        return captions


class _Success(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says in each info whether the step was a success; UsageError for an observation that its space does not have."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(**kwargs)
        return self._checked(seen), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        reached = info.get("success", terminated and float(reward) > 0)
        return self._checked(seen), reward, terminated, truncated, {**info, "success": bool(reached)}

    def _checked(self, seen: Any) -> Any:
        found, space = np.asarray(seen), cast(spaces.Box, self.observation_space)
        if found.dtype == np.uint8 and space.contains(found):
            return found
        what = f"of {found.dtype} and shape {found.shape}"
        if found.dtype == np.uint8 and found.shape == space.shape:
            what = f"with the value {found[(found < space.low) | (found > space.high)][0]}"
        what = f"{type(self.unwrapped).__name__} returned an observation {what}"
        raise UsageError(f"{what}, and its space is {space}; make it return what its space says.")
