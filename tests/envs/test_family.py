"""A family of envs is one module and its name in `FAMILIES`; the rest of bkrl asks the family."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from bkrl import envs
from bkrl.agents.build import observation_options
from bkrl.core.errors import UsageError
from bkrl.envs.family import EnvSpec, Family
from bkrl.envs.symbols import Symbols
from bkrl.labelers.material import env_card
from bkrl.report.plots.pictures import pack
from tests.sources import parsed

SOURCE = Path(envs.__file__).parents[1]
LENGTH = 6


class Walk(gymnasium.Env[Any, Any]):
    """Walk right to the end; a second entry counts the steps."""

    observation_space = spaces.Box(np.array([0, 0], np.uint8), np.array([LENGTH, 255], np.uint8), dtype=np.uint8)
    action_space = spaces.Discrete(2)
    mission = "walk to the end"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = np.array([int(self.np_random.integers(3)), 0], np.uint8)
        return self.seen.copy(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.seen = self.seen + np.array([action, 1], np.uint8)
        there = bool(self.seen[0] == LENGTH)
        return self.seen.copy(), float(there), there, False, {"success": there}


class Walks(Family):
    """The whole of a new family."""

    def specs(self) -> list[EnvSpec]:
        return [EnvSpec("Walk-v0", self.name, (2,), ("wait", "walk"), 50, "Its own.", "The end was reached.")]

    def make_reference(self, env_spec: EnvSpec, **options: Any) -> gymnasium.Env[Any, Any]:
        return Walk()

    def caption(self, observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
        return [f"You are at {place}. You took {steps} steps." for place, steps in observations.tolist()]

    def tile_maps(self, observations: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        places = np.arange(LENGTH + 1) == observations[:, :1]
        return places[:, None].astype(np.int64), np.arange(2 * 4, dtype=np.uint8).reshape(2, 1, 1, 4)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The family is there."""
    module = ModuleType("bkrl.envs.walks")
    module.FAMILY = Walks("walks")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bkrl.envs.walks", module)
    monkeypatch.setattr(envs, "FAMILIES", (*envs.FAMILIES, "walks"))
    caches = (envs._specs, envs.env_spec, envs.mission_is_hidden)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


@pytest.mark.usefixtures("walks")
def test_a_new_family_is_one_module_and_its_name() -> None:
    assert "Walk-v0" in envs.env_ids()
    assert envs.family_of("Walk-v0").name == "walks"
    vector = envs.make_vec("Walk-v0", 3)
    views, _ = vector.reset(seed=1)
    assert vector.missions().tolist() == ["walk to the end"] * 3
    for _ in range(LENGTH):
        views, _, terminated, _, infos = vector.step(np.ones(3, int))
        assert infos["success"].tolist() == terminated.tolist()
    assert envs.captioner("Walk-v0")(np.array([[2, 5]], np.uint8)) == ["You are at 2. You took 5 steps."]
    assert envs.sentences("Walk-v0")(np.array([[2, 5]], np.uint8))[0] == ("You are at 2.", "You took 5 steps.")
    known = envs.family("walks")
    assert known.symbols((2,), Walk.observation_space.high) == Symbols.of_sizes([LENGTH + 1, 0])
    drawn = pack("walks", views)
    assert drawn is not None
    assert (drawn.rows, drawn.columns) == (1, LENGTH + 1)
    assert env_card("Walk-v0").family == "other"
    assert not envs.mission_is_hidden("Walk-v0")
    with pytest.raises(UsageError, match="Walk-v0 does not come as pictures"):
        observation_options(envs.env_spec("Walk-v0"), "compact", "image")
    with pytest.raises(UsageError, match="Captions of Walk-v0 are in English only"):
        envs.captioner("Walk-v0", "fr")
    with pytest.raises(UsageError, match="no upstream caption mode"):
        envs.captioner("Walk-v0", compat=True)


def test_of_a_family_that_is_not_known_there_is_nothing_but_the_name() -> None:
    unknown = envs.family("gone")
    assert (unknown.name, unknown.specs(), unknown.exact) == ("gone", [], "")
    assert pack("gone", np.zeros((2, 3), np.uint8)) is None


def test_nobody_outside_asks_which_family_an_env_belongs_to() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "envs"):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Compare):
                compared = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                assert not {*envs.FAMILIES} & {*map(str, compared)}, f"{path.relative_to(SOURCE)}:{node.lineno}"
