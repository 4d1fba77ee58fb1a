"""BK where missions change: labels with missions, potentials that read them, and training shaped by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bkrl.core.config import CollectConfig, PPOConfig
from bkrl.core.errors import InputError
from bkrl.core.files import read_json
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs.babyai import runs_natively
from bkrl.envs.babyai.constants import COLOR_NAMES
from bkrl.envs.babyai.grammar import read_mission
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.tables import responses_of
from bkrl.methods import TrainRsConfig
from bkrl.potentials import load_potential
from bkrl.potentials.config import TrainRmConfig
from bkrl.potentials.protocol import Scaled
from bkrl.stages import collect, label, train_rm, train_rs
from tests.potentials.rollouts import rollout_of

ENV = "BabyAI-GoToLocal-v0@max_steps=40"
NUM = {"code": 3, "goal": 100, "pref": 200}
ALG = {"code": "bk-code", "goal": "bk-goal", "pref": "bk-pref"}
KINDS = {"key": 5, "ball": 6, "box": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of a bot that errs, in `data`."""
    out = tmp_path_factory.mktemp("missions")
    collect.run(CollectConfig(env=ENV, explorer="bot", epsilon=0.6, episodes=100, out=out / "data"), Reporter())
    return out


def potential(folder: Path, variant: Any, with_mission: bool = True, **changes: Any) -> Path:
    """A train-rm run, made once."""
    name = f"{variant}-{with_mission}"
    labels = LabelConfig(
        folder / "data", variant, num=NUM[variant], with_mission=with_mission, out=folder / f"labels-{name}"
    )
    label.run(labels, Reporter())
    out = folder / f"phi-{name}{changes.get('control', '')}"
    return train_rm.run(TrainRmConfig(folder / f"labels-{name}", out=out, **changes), Reporter()).path


def faced(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The rows at which an object is faced, and whether it is the one that the mission names."""
    front = data.observations[:, 3, 5]
    rows = np.flatnonzero(np.isin(front[:, 0], list(KINDS.values())))
    meant = [read_mission(data.missions[episode]).tasks[0].thing for episode in data.episode_of_row[rows]]
    right = [
        front[row, 0] == KINDS[thing.noun] and COLOR_NAMES[front[row, 1]] == thing.color
        for row, thing in zip(rows, meant, strict=True)
    ]
    return rows, np.array(right)


def ordering(phi: Scaled, data: Dataset) -> float:
    """How often Φ is higher where the right object is faced than where a wrong one is; ties count half."""
    rows, right = faced(data)
    values = phi(data.windows(rows, phi.reads.horizon))
    ours, others = values[right][:, None], values[~right][None]
    return float(((ours > others) + 0.5 * (ours == others)).mean())


@pytest.mark.parametrize("variant", ["code", pytest.param("goal", marks=pytest.mark.slow)])
def test_with_the_mission_the_right_object_is_told_from_a_wrong_one(folder: Path, variant: str) -> None:
    data = Dataset.open(folder / "data")
    aware, blind = (load_potential(potential(folder, variant, with_mission)) for with_mission in (True, False))
    rows, _ = faced(data)
    windows = data.windows(rows, aware.reads.horizon)
    assert ordering(aware, data) > 0.9
    assert ordering(blind, data) < 0.7
    # The same moment under two missions: Φ without the mission cannot tell them apart, whatever it was made from.
    other = replace(windows, missions=np.roll(windows.missions, 1))  # type: ignore[arg-type]
    assert (aware(windows) != aware(other)).mean() > 0.2
    short = data.windows(rows, blind.reads.horizon)
    assert np.array_equal(blind(short), blind(replace(short, missions=other.missions)))
    assert np.array_equal(blind(short), blind(replace(short, missions=None)))
    for phi in (aware, blind):
        phi.close()


@pytest.mark.parametrize("variant", ["code", "goal", pytest.param("pref", marks=pytest.mark.slow)])
def test_the_whole_chain_runs_and_says_what_it_reads(folder: Path, tmp_path: Path, variant: str) -> None:
    path = potential(folder, variant)
    assert read_json(path / "potential.json")["reads"] == ["mission"]
    assert read_json(path / "certificate.json")["passed"]
    config = TrainRsConfig(
        alg=ALG[variant],
        env=ENV,
        potential=path,
        steps=512,
        eval_episodes=2,
        ppo=PPOConfig(num_envs=8, num_steps=32),
        out=tmp_path / "run",
    )
    run = train_rs.run(config, Reporter())
    assert run.facts["potential_reads"] == ["mission"]
    blind = potential(folder, variant, with_mission=False)
    assert "reads" not in read_json(blind / "potential.json")


@pytest.mark.parametrize(
    "control", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("random", "shuffled")), "zero"]
)
def test_controls_of_labels_with_missions_read_them_too(folder: Path, control: Any) -> None:
    phi = load_potential(potential(folder, "pref", control=control))
    assert phi.reads.mission == (control != "zero")
    data = Dataset.open(folder / "data")
    windows = data.windows(faced(data)[0], phi.reads.horizon)
    other = phi(replace(windows, missions=np.roll(windows.missions, 1)))  # type: ignore[arg-type]
    assert (phi(windows) != other).any() == (control != "zero")


@pytest.mark.parametrize("variant", ["code", "goal", pytest.param("pref", marks=pytest.mark.slow)])
def test_phi_of_a_rollout_is_that_of_its_windows_with_their_missions(folder: Path, variant: str) -> None:
    data = Dataset.open(folder / "data")
    phi = load_potential(potential(folder, variant))
    T, N, H = 6, 4, phi.reads.horizon
    first = data.first_row[:N]
    rows = first + np.arange(H + T + 1)[:, None]
    rollout = rollout_of(
        horizon=H,
        observations=data.observations[rows],
        actions=np.maximum(data.actions[rows[:-1]], 0),
        ages=np.repeat(np.arange(H, H + T + 1, dtype=np.int32)[:, None], N, 1),
        rewards=np.zeros((T, N), np.float32),
        terminated=np.zeros((T, N), bool),
        truncated=np.eye(T, N, dtype=bool),
        final_index=np.flatnonzero(np.eye(T, N, dtype=bool)),
        final_observations=data.observations[rows[-1]],
        missions=np.array([[f"go to the {color} ball" for color in COLOR_NAMES[:N]]] * (T + 1), object),
    )
    values = phi.of_rollout(rollout)
    apart = [phi(rollout.windows(H)), phi(rollout.final_windows(H))]
    assert np.array_equal(values, np.concatenate(apart))
    with pytest.raises(InputError, match="reads the mission"):
        phi.of_rollout(replace(rollout, views=replace(rollout.views, mission=None)))
    phi.close()


def test_prompts_show_missions_only_when_they_are_asked_to(folder: Path) -> None:
    asked, plain = (
        {str(row["prompt"]) for row in responses_of(label.run(replace_labels(folder, flag), Reporter()))}
        for flag in (True, False)
    )
    assert all('\\nmission \\"go to' in prompt and "You are not told" not in prompt for prompt in asked)
    assert not any("mission" in prompt for prompt in plain)
    assert all("You are not told which task" in prompt for prompt in plain)


def replace_labels(folder: Path, with_mission: bool) -> LabelConfig:
    out = folder / f"labels-pref-{with_mission}"
    return LabelConfig(folder / "data", "pref", num=NUM["pref"], with_mission=with_mission, out=out)


def test_a_dataset_without_missions_has_none_to_show(tmp_path: Path) -> None:
    config = CollectConfig(env="CrafterReward-v1@length=30", explorer="random", episodes=4, out=tmp_path / "d")
    collect.run(config, Reporter())
    with pytest.raises(InputError, match="leave --with-mission out"):
        label.run(LabelConfig(tmp_path / "d", num=20, with_mission=True, out=tmp_path / "l"), Reporter())
    assert not (tmp_path / "l").exists()


@pytest.mark.parametrize(
    "name",
    [
        "BabyAI-PutNextLocalS6N4",
        "MiniGrid-DoorKey-5x5",
        "MiniGrid-UnlockPickup",
        "MiniGrid-MemoryS7",
        pytest.param("BabyAI-PickupLoc", marks=pytest.mark.slow),
        pytest.param("BabyAI-GoToSeqS5R2", marks=pytest.mark.slow),
        pytest.param("MiniGrid-KeyCorridorS3R1", marks=pytest.mark.slow),
        pytest.param("MiniGrid-MultiRoom-N2-S4", marks=pytest.mark.slow),
        pytest.param("MiniGrid-ObstructedMaze-1Dl", marks=pytest.mark.slow),
    ],
)
def test_levels_of_several_kinds_are_trained_in_natively(tmp_path: Path, name: str) -> None:
    assert runs_natively(f"{name}-v0")
    ppo = PPOConfig(num_envs=8, num_steps=16)
    config = TrainRsConfig(alg="ppo", env=f"{name}-v0", steps=256, eval_episodes=2, ppo=ppo, out=tmp_path / "run")
    run = train_rs.run(config, Reporter())
    assert run.facts["steps"] == 256
    assert run.facts["mission"] == name.startswith(("BabyAI", "MiniGrid-Unlock", "MiniGrid-KeyC"))
