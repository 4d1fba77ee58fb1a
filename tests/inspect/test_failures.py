"""The failures that a potential report names before anything is trained, of potentials known to be bad or good."""

from pathlib import Path

import numpy as np
import pytest

from bkrl.core.config import CollectConfig
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads, Windows
from bkrl.inspect.failures import Failures, failures
from bkrl.inspect.quality import segments
from bkrl.potentials import load_potential
from bkrl.potentials.protocol import Potential
from bkrl.stages.collect import run as collect
from bkrl.stats.ranks import area_under_curve

DOORKEY, PICK_UP = "MiniGrid-DoorKey-6x6-v0", "BabyAI-Text-PickUp-RedBall-S20"
NEEDED = {"keys_picked_up", "doors_unlocked"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """What an agent met that acts at random."""
    root = tmp_path_factory.mktemp("played")
    for env in (DOORKEY, PICK_UP):
        collect(CollectConfig(env=env, explorer="random", episodes=150, out=root / env), Reporter())
    return {env: Dataset.open(root / env) for env in (DOORKEY, PICK_UP)}


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
    report = {"coverage": coverage, "ordering": ordering, "segments": segments(potential, data)}
    return failures(potential, data, report)  # type: ignore[arg-type]


def test_the_known_bad_ones_are_named(played: dict[str, Dataset]) -> None:
    """BK-Pref with exact shaping ends at 0 % on DoorKey-6x6, and far below plain PPO in picking up (results)."""
    potential = load_potential(Path("sample:bk-pref-minigrid"))
    found = {env: looked_for(potential, data)["found"] for env, data in played.items()}
    potential.close()
    print(found)
    assert all(found.values())


def test_a_program_of_what_the_task_needs_has_no_failure(played: dict[str, Dataset]) -> None:
    data = played[DOORKEY]
    good = looked_for(Counts(data, -1.0, keys_picked_up=0.4, doors_unlocked=0.6), data)
    assert good["found"] == {}
    assert good["plan"] is not None
    assert set(good["plan"]["needed"]) >= NEEDED
    assert set(good["plan"]["covered"]) >= NEEDED
    assert good["plan"]["superfluous"] == []


def test_each_failure_by_itself(played: dict[str, Dataset]) -> None:
    data = played[DOORKEY]
    assert "flooding" in looked_for(Counts(data, -1.0, cells_visited=0.01), data)["found"]
    against = looked_for(Counts(data, 0.0, keys_picked_up=-0.4, doors_unlocked=-0.5), data)
    assert "'pick up a key' is reached, which the task needs" in against["found"]["misread"]
    assert against["plan"] is not None
    assert against["plan"]["covered"] == []
    nothing = looked_for(Counts(data), data)
    assert nothing == {"found": {}, "plan": None}
