"""The failures that a potential report names before anything is trained, of potentials known to be bad or good."""

from pathlib import Path

import numpy as np
import pytest

from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads, Windows
from bkrl.inspect.failures import Failures, failures
from bkrl.potentials import load_potential
from bkrl.potentials.protocol import Potential
from bkrl.stages.collect import run as collect
from bkrl.stats.ranks import area_under_curve

NEEDED = {"doors_opened", "doors_unlocked"}
"""Keys are picked up in 97 % of the failed episodes, too."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """What an agent met in DoorKey-6x6 that acts at random; it is solved now and then."""
    out = tmp_path_factory.mktemp("played") / "data"
    collect(CollectConfig(env="MiniGrid-DoorKey-6x6-v0", explorer="random", episodes=150, out=out), Reporter())
    return Dataset.open(out)


class Counts(Potential):
    """Φ from the memory's fields; `weights`: field → what its first time adds."""

    def __init__(self, dataset: Dataset, base: float = 0.0, **weights: float) -> None:
        from bkrl.envs import memory_of

        self.reads, self.base = Reads.of(0, False, True), base
        names = memory_of(dataset.env_id).names  # type: ignore[union-attr]
        self.weights = np.array([weights.get(name, 0.0) for name in names])

    def __call__(self, windows: Windows) -> np.ndarray:
        assert windows.memory is not None
        return (self.base + (windows.memory > 0) @ self.weights).astype(np.float32)


def looked_for(potential: Potential, data: Dataset) -> Failures:
    rows = np.arange(0, len(data.actions), 7)
    phi = potential(data.windows(rows, potential.reads.horizon))
    ends = data.first_row[data.success] + data.lengths[data.success]
    ordering = area_under_curve(potential(data.windows(ends, potential.reads.horizon)), phi)
    coverage = float(np.ptp(phi) > 0)
    report = {"coverage": coverage, "ordering": ordering}
    return failures(potential, data, report)  # type: ignore[arg-type]


def test_a_potential_that_is_known_to_be_bad_is_named(data: Dataset) -> None:
    """BK-Pref with exact shaping ends at 0 % on DoorKey-6x6, where plain PPO ends at 50 % (results/forms.md)."""
    potential = load_potential(Path("sample:bk-pref-minigrid"))
    found = looked_for(potential, data)["found"]
    potential.close()
    assert set(found) == {"misread", "weak"}


def test_a_program_of_what_the_task_needs_has_no_failure(data: Dataset) -> None:
    good = looked_for(Counts(data, -1.0, keys_picked_up=0.2, doors_unlocked=0.7), data)
    assert good["found"] == {}
    assert good["plan"] is not None
    assert set(good["plan"]["needed"]) >= NEEDED
    assert set(good["plan"]["covered"]) >= NEEDED
    assert good["plan"]["superfluous"] == []


def test_a_subgoal_that_ends_the_episode_is_part_of_the_plan(tmp_path: Path) -> None:
    """It is first counted in the last row, which was left out: Φ rose at it in no report, whatever Φ was."""
    env = "MiniGrid-KeyCorridorS3R1-v0"
    collect(CollectConfig(env=env, explorer="random", episodes=150, out=tmp_path / "data"), Reporter())
    data = Dataset.open(tmp_path / "data")
    plan = looked_for(Counts(data, -1.0, balls_picked_up=1.0), data)["plan"]
    assert plan is not None
    assert "balls_picked_up" in plan["needed"]
    assert plan["covered"] == ["balls_picked_up"]
    down = looked_for(Counts(data, 0.0, balls_picked_up=-1.0), data)["found"]
    assert "'pick up a ball' is reached, which the task needs" in down["misread"]


def test_no_subgoal_is_needed_where_no_episode_failed(tmp_path: Path) -> None:
    """All that a bot does stood in the plan as needed: there was nothing to tell it from."""
    collect(
        CollectConfig(env="MiniGrid-DoorKey-5x5-v0", explorer="bot", episodes=12, out=tmp_path / "data"), Reporter()
    )
    data = Dataset.open(tmp_path / "data")
    found = looked_for(Counts(data, 0.0, cells_visited=-0.1), data)
    assert found["plan"] is None
    assert "which the task needs" not in found["found"].get("misread", "")


def test_each_failure_by_itself(data: Dataset) -> None:
    full = looked_for(Counts(data, -1.0, cells_visited=0.95), data)["found"]
    assert full["flooding"].startswith("Φ lies above -0.1 in 9")
    assert "flooding" not in looked_for(Counts(data, -1.0, cells_visited=0.5), data)["found"]
    against = looked_for(Counts(data, 0.0, keys_picked_up=-0.4, doors_unlocked=-0.5), data)
    assert "'unlock a door' is reached, which the task needs" in against["found"]["misread"]
    assert "weak" in against["found"]
    assert against["plan"] is not None
    assert against["plan"]["covered"] == []
    nothing = looked_for(Counts(data), data)
    assert nothing == {"found": {}, "plan": None}
