"""Datasets to Minari and back: its tools list and read them, and nothing of them is lost."""

import errno
import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from bkrl.cli.main import run_command
from bkrl.core.config import CollectConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import to_json
from bkrl.core.reporter import Reporter
from bkrl.data.check import validate
from bkrl.data.dataset import Dataset
from bkrl.data.minari import from_minari, to_minari
from bkrl.data.writer import DatasetWriter
from bkrl.envs import captioner, env_spec, spec_with
from bkrl.report.tracing import lines, trace
from bkrl.runs.provenance import follow
from bkrl.runs.record import Run
from bkrl.stages import collect
from tests.experience import Config, views, write_dataset, write_env
from tests.report.synthetic import train_rs

minari = pytest.importorskip("minari")
ENV = "BabyAI-Text-GoToLocal-Pretraining-S20"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Where Minari keeps its datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


def test_what_is_exported_and_imported_is_the_same_dataset(tmp_path, root, capsys):
    data = write_env(tmp_path / "d", ENV)
    out = root / "babyai" / "explore-v3"
    assert run_command(["data", "export", str(data), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "babyai/explore-v3"
    assert run_command(["data", "import", "minari:babyai/explore-v3", "--out", str(tmp_path / "back")]) == 0
    for name in ("steps/part-00000.parquet", "episodes.parquet", "info.json", "README.md"):
        assert (data / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    assert Run.open(tmp_path / "back").facts["imported"] == "minari:babyai/explore-v3"
    assert "✓" in "\n".join(lines(trace(tmp_path / "back")))
    assert from_minari("minari:babyai/explore-v3", tmp_path / "back").complete
    elsewhere = tmp_path / "elsewhere-v0"
    to_minari(data, elsewhere)
    again = from_minari(f"minari:{elsewhere}", tmp_path / "again")
    assert again.file("steps/part-00000.parquet").read_bytes() == (data / "steps/part-00000.parquet").read_bytes()


def test_what_is_known_of_the_explorer_goes_with_it_and_so_do_envs_that_are_not_known(tmp_path, root):
    write_dataset(
        tmp_path / "d", shape=(40, 33, 3), texts=["goal"]
    )  # as large as pictures, of which Minari would lose some
    run = Run(tmp_path / "d", json.loads((tmp_path / "d" / "config.json").read_text()), None)
    outputs = list(json.loads((tmp_path / "d" / "manifest.json").read_text())["outputs"])
    run.finish(outputs, steps=100, reward_free=True, explorer="bot")
    to_minari(tmp_path / "d", root / "toy-v0")
    assert json.loads((root / "toy-v0" / "data" / "metadata.json").read_text())["algorithm_name"] == "bot"
    back = from_minari("minari:toy-v0", tmp_path / "back")
    assert back.file("steps/part-00000.parquet").read_bytes() == run.file("steps/part-00000.parquet").read_bytes()
    assert (back.facts["explorer_steps"], back.facts["reward_free"], back.facts["env_id"]) == (100, True, "Toy")
    assert set(Dataset.open(back.path).explorers) == {"bot"}


def test_a_policy_that_explored_is_paid_for_after_the_way_there_and_back_too(tmp_path: Path, root: Path) -> None:
    policy, path = train_rs(tmp_path, "ppo", 1), tmp_path / "d"  # a million steps
    write_dataset(path)
    config = json.loads((path / "config.json").read_text())
    config["config"]["explorer"] = str(policy)
    behind = Run.create(tmp_path / "other", stage="collect", config={}, inputs={"explorer": policy})
    outputs = list(json.loads((path / "manifest.json").read_text())["outputs"])
    config["inputs"] = behind.config["inputs"]
    (path / "config.json").write_text(to_json(config))
    Run(path, config, None).finish(outputs, recorded_steps=9)
    to_minari(path, root / "toy-v0")
    back = from_minari("minari:toy-v0", tmp_path / "back").path
    steps = [sum(node.steps for node in follow([one]).nodes.values()) for one in (path, back)]
    assert steps == [1_000_009] * 2  # it was 9 after


@pytest.mark.parametrize(
    "env_id",
    [
        "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=0,actions=restricted",
        "MiniGrid-DoorKey-5x5-v0",
        "Crafter-Text-Reward",
        "Crafter-Typed-Harder",
        "Housekeep-Symbolic-Task1@control=high",
        "Toy-Chain",
    ],
)
def test_a_dataset_of_every_family_comes_back_the_same(tmp_path, root, env_id):
    """Episodes of BabyAI's mixed levels have texts of their own (`task_kind`), which an export left out."""
    config = CollectConfig(env=env_id, explorer="random", episodes=2, out=tmp_path / "d")
    data = collect.run(config, Reporter()).path
    to_minari(data, root / "one-v0")
    back = from_minari("minari:one-v0", tmp_path / "back").path
    for name in ("steps/part-00000.parquet", "episodes.parquet", "info.json"):
        assert (data / name).read_bytes() == (back / name).read_bytes()
    assert Dataset.open(back).task_kinds == Dataset.open(data).task_kinds


def test_an_import_that_fails_midway_leaves_nothing(tmp_path, root):
    write_dataset(tmp_path / "d")
    to_minari(tmp_path / "d", root / "toy-v0")
    episode = root / "toy-v0" / "data" / "1"
    for damage in (lambda: (episode / "part-0.arrow").write_bytes(b"nothing"), lambda: shutil.rmtree(episode)):
        damage()
        with pytest.raises(InputError, match="cannot be read"):
            from_minari("minari:toy-v0", tmp_path / "made")
        assert not (tmp_path / "made").exists()


def test_minari_lists_an_export_and_makes_its_env(tmp_path, root):
    data = Dataset.open(write_env(tmp_path / "d", ENV))
    to_minari(data.path, root / "bkrl" / "explore-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns of folders that are not where their id says
        listed = minari.list_local_datasets()
    assert list(listed) == ["bkrl/explore-v0"]
    made = minari.load_dataset("bkrl/explore-v0")
    first = made[0]
    assert list(first.infos["caption"]) == [data.caption(row) for row in range(16)]
    assert set(first.infos["mission"]) == {"go to the red ball"}
    env = made.recover_environment()
    assert env.spec.id == f"bkrl/{ENV}"
    assert env.spec.max_episode_steps > 0
    assert env.observation_space == made.observation_space
    assert env.action_space.n == made.action_space.n
    env.reset(seed=1)
    env.step(0)
    env.close()


def test_options_of_an_env_go_with_an_export(tmp_path, root):
    """The env of an id with options was not named, so that `recover_environment()` failed."""
    env_id = "BabyAI-MixedTrainLocal-v0@max_steps=300,actions=restricted"
    to_minari(write_env(tmp_path / "d", env_id), root / "short-v0")
    env = minari.load_dataset("short-v0").recover_environment()
    assert env.unwrapped.env_spec == env_spec(env_id)
    assert env.spec.max_episode_steps == 300
    assert gym.spec("bkrl/BabyAI-MixedTrainLocal-v0").kwargs == {"env_id": "BabyAI-MixedTrainLocal-v0"}
    env.close()


@pytest.mark.parametrize(
    ("env_id", "options", "language"),
    [
        ("BabyAI-GoToLocal-v0", {"max_steps": 9}, "en"),
        ("BabyAI-MixedTrainLocal-v0", {"actions": "restricted", "max_steps": 12}, "en"),
        ("BabyAI-MixedTrainLocal-v0", {"task_kinds": ["goto", "pickup"]}, "en"),
        ("BabyAI-GoToFrench-v0", {"max_steps": 9}, "fr"),
    ],
)
def test_a_dataset_that_was_recorded_with_options_is_one_of_an_env_with_them(tmp_path, root, env_id, options, language):
    """The options were dropped: it became one of the plain env, or was refused for having other actions."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    env = gym.make(f"bkrl.envs:bkrl/{env_id}", **options)
    seen = [env.reset(seed=3)[0], env.step(0)[0]]
    one = EpisodeBuffer(
        observations=seen, actions=[0], rewards=[0.0], terminations=[False], truncations=[True], infos={}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "own-v0", [one], env=env.spec, observation_space=env.observation_space, data_format="arrow"
        )
    env.close()
    validate(from_minari("minari:own-v0", tmp_path / "made").path)
    data = Dataset.open(tmp_path / "made")
    assert data.env_id == spec_with(env_id, options).env_id != env_id
    assert (data.language, data.info["language"]) == (language, language)
    assert data.caption(0) == captioner(data.env_id, language)(data.observations[:1])[0]


def test_minari_reads_an_export(tmp_path, root, monkeypatch):
    episodes = write_dataset(tmp_path / "d")
    before = dict(os.environ)
    to_minari(tmp_path / "d", root / "toy-v0")
    assert dict(os.environ) == before
    read = list(minari.load_dataset("toy-v0").iterate_episodes())
    assert len(read) == 3
    for got, want in zip(read, episodes, strict=True):
        np.testing.assert_array_equal(got.observations, want["observations"])
        np.testing.assert_array_equal(got.actions, want["actions"])
        np.testing.assert_allclose(got.rewards, want["rewards"], rtol=1e-6)
    assert [bool(e.terminations[-1]) for e in read] == Dataset.open(tmp_path / "d").terminated.tolist()
    assert [bool(e.truncations[-1]) for e in read] == [False, True, False]
    with pytest.raises(UsageError, match="exists"):
        to_minari(tmp_path / "d", root / "toy-v0")
    monkeypatch.chdir(tmp_path)
    to_minari(Path("d"), Path("new/relative-v1"))
    assert (tmp_path / "new" / "relative-v1" / "data").is_dir()
    for name in ("exported", "a b-v0", "v0"):
        with pytest.raises(UsageError, match="that end in a version"):
            to_minari(tmp_path / "d", tmp_path / name)
    with pytest.raises(UsageError, match=r"for example --out .*/a-b-v0\.$"):
        to_minari(tmp_path / "d", tmp_path / "a b")
    with pytest.raises(UsageError, match=r"two characters or more, and not 't/d-v0'; use .* --out \S+root/d-v0\.$"):
        to_minari(tmp_path / "d", root / "t" / "d-v0")  # it was told d-v0-v0, and to call that d-v0-v0-v0


def test_an_episode_that_succeeded_in_its_last_step_is_exported_as_both(tmp_path, root):
    run = Run.create(tmp_path / "d", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(1,), action_names=("a",))
    for both in (True, False):
        writer.add_episode(
            np.zeros((2, 1), np.uint8), np.zeros(1, int), np.ones(1), ["", ""],
            mission=["first", "then"], terminated=True, truncated=both, success=True, seed=0, checkpoint_step=0,
        )  # fmt: skip
    writer.close()
    run.finish(writer.outputs)
    to_minari(tmp_path / "d", root / "both-v0")
    read = list(minari.load_dataset("both-v0").iterate_episodes())
    assert [bool(e.terminations[-1]) for e in read] == [True, True]
    assert [bool(e.truncations[-1]) for e in read] == [True, False]
    assert list(read[0].infos["mission"]) == ["first", "then"]
    back = Dataset.open(from_minari("minari:both-v0", tmp_path / "back").path)
    assert back.row_missions.tolist() == ["first", "then"] * 2


def theirs(root, name, env_id="BabyAI-GoToLocal-v0", view=(7, 7, 3), actions=7, spec=True):
    """A dataset as Minari has them of Minigrid: three episodes, the second of which is cut short without a word."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    rng = np.random.default_rng(3)
    seen = [views(rng, "babyai", 5) for _ in range(3)]
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, view, np.uint8),
            "direction": spaces.Discrete(4),
            "mission": spaces.Text(99, charset="abcdefghijklmnopqrstuvwxyz "),
        }
    )
    buffers = [
        EpisodeBuffer(
            seed=[None, 4, None][number],
            observations={
                "image": list(np.resize(seen[number], (5, *view))),
                "direction": [0] * 5,
                "mission": [f"go to the {'abc'[number]} ball"] * 5,
            },
            actions=[0, 1, 2, 6],
            rewards=[0.0, 0.0, 0.0, [0.7, 0.0, 0.0][number]],
            terminations=[False] * 3 + [number != 1],
            truncations=[False] * 4,
            infos={},
        )
        for number in range(3)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = minari.create_dataset_from_buffers(
            name, buffers, observation_space=space, action_space=spaces.Discrete(actions), data_format="arrow"
        )
    if spec:
        entry = EnvSpec(id=env_id, entry_point="minigrid.envs.babyai:GoToLocal").to_json()
        made.storage.update_metadata({"env_spec": entry})
    return seen


def test_a_dataset_of_minigrid_is_imported_with_captions_of_ours(tmp_path, root):
    seen = theirs(root, "minigrid/go-v0")
    validate(from_minari("minari:minigrid/go-v0", tmp_path / "made").path)
    data = Dataset.open(tmp_path / "made")
    np.testing.assert_array_equal(data.observations, np.concatenate(seen))
    assert [data.caption(row) for row in range(5)] == captioner("BabyAI-GoToLocal-v0")(seen[0])
    assert data.missions == ["go to the a ball", "go to the b ball", "go to the c ball"]
    assert (data.env_id, data.info["family"], data.language) == ("BabyAI-GoToLocal-v0", "babyai", "en")
    rows = data.episodes.to_pylist()
    assert [row["truncated"] for row in rows] == [False, True, False]
    assert [row["success"] for row in rows] == [True, False, False]
    assert [row["seed"] for row in rows] == [-1, 4, -1]
    assert "explorer_steps" not in data.run.facts


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"view": (22, 22, 3)}, "recorded without wrappers"),
        ({"actions": 6}, "recorded without wrappers"),
        ({"spec": False}, "does not say which environment"),
    ],
)
def test_what_bkrl_cannot_hold_is_refused_before_there_is_a_folder(tmp_path, root, other, sentence):
    theirs(root, "odd-v0", **other)
    with pytest.raises(InputError, match=sentence):
        from_minari("minari:odd-v0", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_an_unknown_env_a_missing_and_a_damaged_dataset_are_named(tmp_path, root, capsys):
    theirs(root, "odd-v0", env_id="CartPole-v1")
    write_dataset(tmp_path / "d")
    to_minari(tmp_path / "d", root / "toy-v0")
    (root / "toy-v0" / "data" / "1" / "part-0.arrow").write_bytes(b"nothing")
    for source, code, sentence in (
        ("minari:odd-v0", 2, "There is no env 'CartPole-v1'"),
        ("minari:none-v0", 3, "minari list local"),
        ("toy-v0", 2, "minari:ID"),
        ("minari:toy-v0", 3, "cannot be read"),
    ):
        assert run_command(["data", "import", source, "--out", str(tmp_path / "made")]) == code
        assert sentence in capsys.readouterr().err
    (root / "toy-v0" / "data" / "metadata.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        from_minari("minari:toy-v0", tmp_path / "made")


def test_a_place_where_nothing_can_be_made_is_named_as_it_was_given(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    write_dataset(tmp_path / "d")

    def refused(suffix, prefix, folder):
        raise PermissionError(errno.EACCES, "Permission denied", f"{folder}/{prefix}abcdef")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(UsageError, match=r"exported-v0 cannot be made \(Permission denied\); choose another --out\.$"):
        to_minari(tmp_path / "d", tmp_path / "exported-v0")
