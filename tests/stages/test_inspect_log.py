"""The log that inspect_ai shows, of a language model's episodes; its own reader opens it, where it is installed."""

import json
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from bkrl.agents.play import Episode
from bkrl.core.config import EvaluateConfig
from bkrl.core.reporter import Reporter
from bkrl.methods import TrainRsConfig
from bkrl.methods.glam import LMConfig
from bkrl.stages import evaluate, train_rs
from bkrl.stages.evaluate.inspect_log import inspect_log

HEADER = {"env_id": "Toy-Grid", "alg": "glam", "model": "tiny-t5", "mode": "sampled", "seed": 7}
SCORES = {
    "success_rate": {"mean": 0.5, "low": 0.1, "high": 0.9},
    "return": {"mean": 0.25, "low": None, "high": float("nan"), "std": None},
    "episodes": [],
}


@pytest.fixture
def said() -> Callable[[], bytes]:
    episodes = [
        Episode(
            seed=7 + number,
            mission="go to the | ball" * number,
            length=2,
            success=bool(number),
            terminated=True,
            observations=np.arange(3, dtype=np.uint8)[:, None],
            actions=np.array([1, 0]),
        )
        for number in (0, 1)
    ]
    words = ["left", "right"]
    return lambda: inspect_log(HEADER, SCORES, episodes, lambda seen: [f"you see {one[0]}" for one in seen], words)


@pytest.fixture
def log(tmp_path: Path, said: Callable[[], bytes]) -> Path:
    (tmp_path / "sampled.eval").write_bytes(said())
    return tmp_path / "sampled.eval"


def test_the_same_episodes_are_the_same_bytes_at_any_time(said: Callable[[], bytes]) -> None:
    before = said()
    time.sleep(1.1)
    assert said() == before


def test_a_sample_is_an_episode_in_words(log: Path) -> None:
    with zipfile.ZipFile(log) as file:
        assert set(file.namelist()) == {
            "samples/1_epoch_1.json", "samples/2_epoch_1.json", "summaries.json", "header.json"
        }  # fmt: skip
        second = json.loads(file.read("samples/2_epoch_1.json"))
    assert [(one["role"], one["content"]) for one in second["messages"]] == [
        ("user", "go to the | ball\n\nyou see 0"),
        ("assistant", "right"),
        ("user", "you see 1"),
        ("assistant", "left"),
        ("user", "you see 2"),
    ]
    assert second["scores"]["success_rate"]["value"] == 1.0


def test_a_mission_that_changes_is_told_where_it_does() -> None:
    """The log of an episode with sub-goals, as `@subgoals=shown` has them, said the first one alone."""
    one = Episode(
        seed=1, mission="collect wood", missions=["collect wood", "collect wood", "place table", "place table"],
        length=3, observations=np.arange(4, dtype=np.uint8)[:, None], actions=np.zeros(3, np.int64),
    )  # fmt: skip
    written = inspect_log(HEADER, SCORES, [one], lambda seen: [f"you see {it[0]}" for it in seen], ["go"])
    with zipfile.ZipFile(BytesIO(written)) as file:
        messages = json.loads(file.read("samples/1_epoch_1.json"))["messages"]
    assert [it["content"] for it in messages[::2]] == [
        "collect wood\n\nyou see 0", "you see 1", "place table\n\nyou see 2", "you see 3"
    ]  # fmt: skip


def test_inspects_own_reader_opens_it(log: Path) -> None:
    reader = pytest.importorskip("inspect_ai.log")
    read = reader.read_eval_log(str(log))
    assert (read.status, read.eval.model, read.eval.dataset.samples) == ("success", "tiny-t5", 2)
    assert [one.name for one in read.results.scores] == ["success_rate", "return"]
    assert {name: one.value for name, one in read.results.scores[0].metrics.items()} == SCORES["success_rate"]
    assert [one.scores["success_rate"].value for one in read.samples] == [0.0, 1.0]
    assert read.samples[0].messages[0].content == "you see 0"
    assert [one.id for one in reader.read_eval_log_sample_summaries(str(log))] == [1, 2]


def test_evaluate_writes_one_for_each_mode_of_a_language_model(tmp_path: Path) -> None:
    settings = TrainRsConfig(
        alg="zero-shot", env="BabyAI-GoToLocal-v0@max_steps=3", lm=LMConfig("tiny-t5", window=2, head_size=16),
        steps=10, eval_every=10, eval_episodes=1, out=tmp_path / "policy",
    )  # fmt: skip
    policy = train_rs.run(settings, Reporter()).path
    run = evaluate.run(EvaluateConfig(policy=policy, out=tmp_path / "eval", episodes=2, gifs=0), Reporter())
    assert {"sampled.eval", "greedy.eval"} <= set(run.manifest["outputs"])
    with zipfile.ZipFile(run.file("greedy.eval")) as file:
        header = json.loads(file.read("header.json"))
        sample = json.loads(file.read("samples/1_epoch_1.json"))
    assert header["eval"]["model"] == "tiny-t5"
    assert len(sample["messages"]) == 2 * sample["scores"]["length"]["value"] + 1
