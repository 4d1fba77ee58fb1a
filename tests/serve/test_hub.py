"""Runs pushed to a stand-in of the Hugging Face hub and pulled from it, and what a hostile repository can do."""

import json
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bkrl.agents.random import RandomAgent
from bkrl.cli.main import run_command
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import sha256, to_json
from bkrl.data.dataset import Dataset
from bkrl.runs.record import Run, sealed
from bkrl.serve.hub import OWN_README, pull, push
from tests import hub as stand_in
from tests.commands import bkrl
from tests.experience import Config, write_dataset

DATA, POLICY = "datasets/me/data", "models/me/policy"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", stand_in.TOKEN)
    with stand_in.serving() as serving:
        monkeypatch.setenv("HF_ENDPOINT", serving.url)
        yield serving


@pytest.fixture
def data(tmp_path):
    write_dataset(tmp_path / "data")
    return tmp_path / "data"


def write_policy(path, name="evaluation", steps=0):
    """A policy, and what an evaluation of it says."""
    run = Run.create(path, stage="train-rs", config=Config())
    run.finish(
        RandomAgent("Toy-Chain", "toy", ("left", "right")).save(path), env_id="Toy-Chain", alg="random", steps=steps
    )
    rate = {"mean": 0.25, "low": 0.1, "high": 0.5}
    evaluation = Run.create(path.parent / name, stage="evaluate", config=Config(seed=7), inputs={"policy": path})
    evaluation.finish([], env_id="Toy-Chain", episodes=20, modes={"sampled": {"success_rate": rate}})
    return path, evaluation.path


def contents(folder):
    return {path.relative_to(folder).as_posix(): sha256(path) for path in folder.rglob("*") if path.is_file()}


def test_what_is_to_be_private_is_not_pushed_where_all_can_see_it(hub, data):
    push(data, "me/data", private=True)
    push(data, "me/data", private=True)
    hub.private.clear()
    before = dict(hub.repos[DATA])
    with pytest.raises(UsageError, match="me/data is there already and is public"):
        push(data, "me/data", license="mit", private=True)
    assert hub.repos[DATA] == before


def test_a_dataset_comes_back_as_it_was(hub, data, tmp_path):
    said = push(data, "me/data", license="mit")
    assert said["repository"] == f"{hub.url}/datasets/me/data"
    assert contents(pull("me/data", tmp_path / "new" / "copy").path) == contents(data)
    card = hub.repos[DATA]["README.md"].decode()
    assert hub.repos[DATA][OWN_README] == (data / "README.md").read_bytes()
    for part in ("license: mit", "config_name: steps", "of shape [2, 3] |", sha256(data / "steps/part-00000.parquet")):
        assert part in card


@pytest.mark.parametrize(
    "sample",
    [pytest.param("bk-pref-minigrid", marks=pytest.mark.slow), "bk-code-crafter", "labels-qwen1.5b-crafter", "lm-t5"],
)
def test_other_runs_come_back(hub, sample, tmp_path):
    push(Path(f"sample:{sample}"), "me/sample")
    pulled = pull("me/sample", tmp_path / "copy")
    assert pulled.manifest == Run.open(Path(f"sample:{sample}")).manifest


def test_the_card_of_a_policy_has_its_results_in_the_hubs_schema(hub, tmp_path):
    from huggingface_hub import ModelCard

    policy, evaluation = write_policy(tmp_path / "policy")
    push(policy, "me/policy", [evaluation], license="mit")
    card = ModelCard(hub.repos[POLICY]["README.md"].decode())
    [result] = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("success_rate", 0.25, "Toy-Chain")
    assert result.metric_args == {"low": 0.1, "high": 0.5, "interval": 0.95}
    assert result.dataset_args == {"seed": 7, "episodes": 20}
    assert "| Toy-Chain | sampled | success_rate | 0.250 | 0.100 to 0.500 | 20 | 7 |" in card.text
    other, _ = write_policy(tmp_path / "other", "again", steps=5)
    with pytest.raises(UsageError, match="an evaluation of another run"):
        push(other, "me/other", [evaluation])
    with pytest.raises(UsageError, match="with --evaluation"):
        push(evaluation, "me/other")
    assert "models/me/other" not in hub.repos


def test_what_readers_of_others_go_by_leads_to_the_files(hub, data):
    """The configs of a card, and the folder of a model in transformers' form."""
    from huggingface_hub import DatasetCard

    push(data, "me/data")
    push(Path("sample:lm-t5"), "me/t5")
    rows = {}
    for config in DatasetCard(hub.repos[DATA]["README.md"].decode()).data.configs:
        files = [name for name in hub.repos[DATA] if fnmatch(name, config["data_files"])]
        rows[config["config_name"]] = sum(pq.read_metadata(BytesIO(hub.repos[DATA][name])).num_rows for name in files)
    assert rows == {"steps": len(Dataset.open(data).actions), "episodes": 3}
    model = hub.repos["models/me/t5"]
    assert json.loads(model["model/config.json"])["model_type"] == "t5"
    assert "model/model.safetensors" in model


@pytest.mark.slow
def test_readers_of_others_open_it(hub, data, tmp_path):
    """A process of its own: these libraries read HF_ENDPOINT when they are imported, and no fork has done so yet."""
    pytest.importorskip("datasets")
    push(data, "me/data")
    push(Path("sample:lm-t5"), "me/t5")
    code = (
        "from datasets import load_dataset\nfrom transformers import AutoModel\n"
        "print(load_dataset('me/data', split='train').num_rows)\n"
        "print(load_dataset('me/data', 'episodes')['train'].num_rows)\n"
        "print(type(AutoModel.from_pretrained('me/t5', subfolder='model')).__name__)"
    )
    (tmp_path / "read.py").write_text(code)
    places = {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    said = bkrl(tmp_path / "read.py", **places).stdout
    assert said.split() == [str(len(Dataset.open(data).actions)), "3", "T5Model"]


def test_a_second_push_replaces_the_first(hub, data, tmp_path):
    push(data, "me/data")
    hub.repos[DATA]["LICENSE"] = b"mine"
    hub.repos[DATA]["steps/part-00001.parquet"] = b"of before"
    push(data, "me/data")
    assert "steps/part-00001.parquet" not in hub.repos[DATA]
    assert hub.repos[DATA]["LICENSE"] == b"mine"
    hub.repos["datasets/me/photos"] = {"cat.jpg": b"meow"}
    with pytest.raises(UsageError, match=r"me/photos holds other files, such as cat.jpg"):
        push(data, "me/photos")
    assert hub.repos["datasets/me/photos"] == {"cat.jpg": b"meow"}


def manifest(files):
    return json.loads(files["manifest.json"])


def renamed(name):
    """The manifest and the repository agree on a name that leads elsewhere."""

    def change(files):
        document = manifest(files)
        document["outputs"][name] = document["outputs"].pop("info.json")
        files[name] = files.pop("info.json")
        files["manifest.json"] = to_json(sealed(document)).encode()

    return change


def altered(files):
    files["episodes.parquet"] = files["episodes.parquet"][:-9] + b"123456789"


def resealed(files):
    """Hashes that fit, and a table that is none."""
    import hashlib

    files["episodes.parquet"] = b"no table"
    document = manifest(files)
    document["outputs"]["episodes.parquet"] = {"bytes": 8, "sha256": hashlib.sha256(b"no table").hexdigest()}
    files["manifest.json"] = to_json(sealed(document)).encode()


def of_stage(stage):
    def change(files):
        config = json.loads(files["config.json"])
        files["config.json"] = to_json({**config, "stage": stage}).encode()
        files["manifest.json"] = to_json(sealed({**manifest(files), "stage": stage})).encode()

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (renamed("../../evil"), "its manifest names '../../evil'"),
        (renamed("/etc/evil"), "its manifest names '/etc/evil'"),
        (renamed(".git/hooks/post-checkout"), "its manifest names '.git"),
        (renamed("a/../../evil"), "its manifest names 'a/"),
        (renamed("c:\\evil"), "its manifest names 'c:"),
        (lambda files: files.update({"steps/evil.py": b"1"}), "'steps/evil.py', which its manifest does not name"),
        (lambda files: files.pop("episodes.parquet"), "no bytes of episodes.parquet"),
        (lambda files: files.update({"episodes.parquet": b"short"}), "5 bytes of episodes.parquet"),
        (lambda files: files.pop("manifest.json"), "it has no manifest.json"),
        (lambda files: files.update({"manifest.json": b"[" * 9999}), "cannot be read as JSON"),
        (lambda files: files.update({"manifest.json": b"{}"}), "is damaged"),
        (lambda files: files.update({"config.json": b"{}"}), "is damaged"),
        (altered, "episodes.parquet was changed"),
        (resealed, "episodes.parquet is damaged"),
        (of_stage("train-rs"), "holds a run of train-rs"),
        (of_stage("evaluate"), "holds a run of evaluate"),
    ],
)
def test_a_damaged_or_hostile_repository_leaves_nothing(hub, data, tmp_path, capsys, change, why):
    push(data, "me/data")
    change(hub.repos[DATA])
    place = tmp_path / "place"
    assert run_command(["pull", "me/data", str(place / "copy")]) == 3
    *progress, said = capsys.readouterr().err.splitlines()
    assert why in said
    assert [line.partition(" ")[0] for line in progress] in ([], ["pull:"])
    assert not place.exists()
    assert not (tmp_path / "evil").exists()


def test_a_hub_that_lies_about_sizes_is_not_asked_for_more(hub, data, tmp_path):
    push(data, "me/data")
    hub.sizes["manifest.json"] = 2**40
    hub.seen.clear()
    with pytest.raises(InputError, match=r"its manifest.json has 1,099,511,627,776 bytes"):
        pull("me/data", tmp_path / "copy")
    assert not any("resolve" in one for one in hub.seen)


def test_what_cannot_work_is_one_sentence(hub, data, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="shows no repository me/none"):
        pull("me/none", tmp_path / "copy")
    push(data, "me/data")
    with pytest.raises(InputError, match="no such revision"):
        pull("me/data", tmp_path / "copy", "v9")
    with pytest.raises(UsageError, match="exists already"):
        pull("me/data", data)
    for name in ("data", "a/b/c", "../x", "me/" + "x" * 200):
        with pytest.raises(UsageError, match="names no repository"):
            pull(name, tmp_path / "deep" / "er" / "copy")
    hub.seen.clear()
    with pytest.raises(UsageError, match="is a file; choose another"):
        pull("me/data", data / "manifest.json" / "copy")
    assert not hub.seen
    assert not (tmp_path / "deep").exists()  # folders were made before anything was asked
    assert pull("me/data", tmp_path / "deep" / "er" / "copy").complete
    with pytest.raises(UsageError, match="such as cc-by-4.0, and perhaps 'mine' is none"):
        push(data, "me/data", license="mine")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises((RunFailed, InputError), match="hf auth login") as refused:
        push(data, "me/second")
    assert "hf_wrong" not in str(refused.value)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunFailed, match="does not answer"):
        pull("me/data", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_token_is_nowhere(hub, data, tmp_path, capsys):
    assert run_command(["push", str(data), "me/data"]) == 0
    assert run_command(["pull", "me/data", str(tmp_path / "copy"), "--json"]) == 0
    said = capsys.readouterr()
    assert "the licence is unknown" in said.err
    assert stand_in.TOKEN not in said.out + said.err
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(stand_in.TOKEN.encode() in one for one in (*written, *hub.repos[DATA].values()))
