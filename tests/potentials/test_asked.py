"""Where a program is asked for its advice: rows of the dataset, the same varied, and where its advice leads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bkrl
from bkrl.agents.build import advice_network
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed, generator
from bkrl.data.dataset import Dataset
from bkrl.envs import env_spec, family, make_vec, memory_of
from bkrl.envs.crafter.layout import CELL, INDEX
from bkrl.envs.crafter.rules import ACHIEVEMENTS
from bkrl.labelers.config import LabelConfig
from bkrl.potentials.advice import SHARPNESS, Record, followed
from bkrl.potentials.asked import asked, played, present, varied
from bkrl.potentials.code import CodeRaw
from bkrl.potentials.config import TrainRmConfig
from bkrl.runs.record import Run
from bkrl.runs.samples import SAMPLES
from bkrl.stages import label, train_rm

DATA = SAMPLES / "data-crafter"
ALONE = (
    "--play-steps has no effect here, only with a program that has advice of its own, and without --advice; "
    "leave it out."
)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("asked") / "labels"
    return label.run(LabelConfig(DATA, "code", with_memory=True, out=out), Reporter())


@pytest.fixture(scope="module")
def made(labels: Run) -> Run:
    out = labels.path.parent / "phi"
    return train_rm.run(TrainRmConfig(labels.path, play_steps=640, out=out), Reporter())


def program(made: Run) -> CodeRaw:
    data = Dataset.open(DATA)
    names = memory_of(data.env_id)
    assert names is not None
    return CodeRaw((made.path / "program.py").read_text(), data.obs_shape, 5, memory=names.names)


def test_varied_rows_have_other_things_and_numbers_and_nothing_impossible_to_read() -> None:
    data = Dataset.open(DATA)
    rows = np.array(data.observations[:2000])
    symbols = family(env_spec(data.env_id).family).symbols(data.obs_shape, None)
    other = varied(rows, symbols, np.random.default_rng(0))
    sizes = np.array(symbols.sizes)
    counted = sizes > 0
    assert (other[:, counted] < sizes[counted]).all()
    assert np.array_equal(other[:, ~counted], rows[:, ~counted])
    assert 0.02 < (other[:, :63] != rows[:, :63]).mean() < 0.9
    iron = INDEX["iron_pickaxe"]
    assert (rows[:, iron].max(), 0.1 < (other[:, iron] > 0).mean() < 0.4) == (0, True)
    assert (other[:, :63] == CELL["diamond"]).any(1).mean() > 2 * (rows[:, :63] == CELL["diamond"]).any(1).mean()
    again = varied(rows, symbols, np.random.default_rng(0))
    assert np.array_equal(other, again)
    assert not np.shares_memory(other, rows)


def test_a_program_is_asked_at_its_rows_at_the_same_varied_and_where_it_leads(made: Run) -> None:
    data, raw = Dataset.open(DATA), program(made)
    actions = len(data.action_names)
    table: Any = raw.advises(actions)
    parts = [asked(table, raw, data, steps, 3, Reporter()) for steps in (0, 640, 640)]
    table.close()
    (record, said), (longer, more), (_, same) = parts
    rows = len(record.observations) // 3
    assert said.shape == (3 * rows, actions)
    assert len(more) == 3 * rows + 640
    assert np.array_equal(more, same)
    assert np.array_equal(more[: 3 * rows], said)
    # the first of what is played are the first views of 64 episodes, empty-handed and well
    first = longer.observations[3 * rows : 3 * rows + 64]
    assert (first[:, INDEX["health"]] == 9).all()
    assert not first[:, INDEX["wood"] : INDEX["iron_sword"] + 1].any()


class Warned(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, text: str) -> None:
        self.lines.append(text)


def test_what_was_played_is_counted_and_is_for_programs_alone(labels: Run, made: Run, tmp_path: Path) -> None:
    assert made.facts["steps"] == 640
    assert made.facts["advice"] == "program"
    with pytest.raises(UsageError, match="play_steps has no effect here"):
        bkrl.train_rm(TrainRmConfig(labels.path, play_steps=640, control="zero", out=tmp_path / "z"))
    told = TrainRmConfig(labels.path, play_steps=640, advice="random", cache=tmp_path / "cache", out=tmp_path / "told")
    with pytest.raises(UsageError, match="play_steps has no effect here, only with a program's own advice, without"):
        bkrl.train_rm(told)
    said = Warned()
    assert "steps" not in train_rm.run(told, said).facts
    assert [line for line in said.lines if "play-steps" in line] == [ALONE]


def test_in_rounds_the_network_plays_and_the_program_says_what_it_would_do_there(labels: Run, made: Run) -> None:
    data, raw = Dataset.open(DATA), program(made)
    table: Any = raw.advises(len(data.action_names))
    network = advice_network(env_spec(data.env_id), 1)
    follow, given = followed(network), []

    def policy(record: Record, told: np.ndarray) -> np.ndarray:
        logits = follow(record, told)
        given.append((record, told, logits))
        return logits

    record, said = played(table, raw, data, 320, 7, policy, Reporter())
    table.close()
    assert len(given) == 5
    assert np.array_equal(record.observations, np.concatenate([one.observations for one, _, _ in given]))
    assert np.array_equal(said, np.concatenate([told for _, told, _ in given]))
    with torch.no_grad():
        wanted = SHARPNESS * network(torch.from_numpy(record.observations))[0]
    assert np.allclose(np.concatenate([logits for _, _, logits in given]), wanted, atol=1e-5)
    envs = make_vec(data.env_id, 64)  # the actions drawn are the policy's
    seen, rng = envs.reset(seed=derive_seed(7, "played"))[0], generator(7, "played")
    for one, _, logits in given:
        assert np.array_equal(one.observations, seen)
        seen = envs.step((rng.gumbel(size=logits.shape) + logits).argmax(1))[0]
    envs.close()
    both = record.joined(record)
    assert np.array_equal(both.observations[len(said) :], record.observations)
    assert len(both.actions) == len(both.ages) == 2 * len(said)


def test_rounds_are_counted_and_change_what_is_learnt(labels: Run, made: Run, tmp_path: Path) -> None:
    told = [
        train_rm.run(
            TrainRmConfig(labels.path, play_steps=600, play_rounds=2, threads=threads, out=tmp_path / str(threads)),
            Reporter(),
        )
        for threads in (2, 1)  # fresh weights, and what was played, had other last digits
    ]
    assert told[0].facts["steps"] == 3 * 640  # 64 envs take whole steps: 600 were counted, and 640 taken
    first, again, before = ((run.path / "advice.safetensors").read_bytes() for run in (*told, made))
    assert first == again
    assert first != before
    with pytest.raises(UsageError, match="play_rounds has no effect here, only with --play-steps"):
        bkrl.train_rm(TrainRmConfig(labels.path, play_rounds=2, out=tmp_path / "alone"))


def test_steps_that_a_program_without_advice_does_not_play_are_warned_of(tmp_path: Path) -> None:
    """They were taken, nothing was played, and nobody said so."""
    silent = label.run(LabelConfig(DATA, "code", llm="equal", with_memory=True, out=tmp_path / "labels"), Reporter())
    said = Warned()
    made = train_rm.run(TrainRmConfig(silent.path, play_steps=640, out=tmp_path / "phi"), said)
    assert made.facts["advice"] != "program"
    assert [line for line in said.lines if "play-steps" in line] == [ALONE]


def test_the_rules_programs_say_what_is_sensible_in_crafter(made: Run) -> None:
    """Empty-handed before a tree: collect. With wood and no table near: place one. Beside it: make a pickaxe."""
    data, raw = Dataset.open(DATA), program(made)
    names = data.action_names
    table: Any = raw.advises(len(names))
    views = np.zeros((4, 82), np.uint8)
    views[:, :63], views[:, INDEX["daylight"]] = CELL["grass"], 255
    for vital in ("health", "food", "drink", "energy"):
        views[:, INDEX[vital]] = 9
    views[:, 31], views[:, INDEX["facing"]] = CELL["player"], 1  # to the right: cell 32
    views[0, 32] = CELL["tree"]
    views[1:, INDEX["wood"]] = 5
    views[2:, 22] = CELL["table"]
    views[3, INDEX["wood_pickaxe"]], views[3, INDEX["wood_sword"]], views[3, 32] = 1, 1, CELL["stone"]
    fields = np.zeros((4, len(ACHIEVEMENTS) + 1), np.uint8)
    said = table(present(views, 5, None, fields))
    table.close()
    assert [names[best] for best in said.argmax(1)] == ["collect", "place_table", "make_wood_pickaxe", "collect"]
