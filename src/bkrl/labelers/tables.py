"""Reading a label run back: its tables as rows, and the dataset it speaks of."""

from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError
from bkrl.core.files import read_table
from bkrl.data.dataset import Dataset
from bkrl.data.schema import CHOICES, GOALS, PREFERENCES, PROGRAMS, RESPONSES
from bkrl.envs import memory_of
from bkrl.labelers.material import EnvCard, env_card
from bkrl.runs.record import Run
from bkrl.text.mission_words import MissionWords

TABLES = {
    "pref": ("preferences.parquet", PREFERENCES),
    "goal": ("goals.parquet", GOALS),
    "code": ("programs.parquet", PROGRAMS),
}


def variant_of(run: Run) -> str:
    """pref, goal or code. InputError for a run of a kind that this bkrl does not know."""
    variant = str(run.facts.get("variant"))
    if variant not in TABLES:
        raise InputError(f"{run.path} holds labels of unknown variant '{variant}'; it was made by a newer bkrl.")
    return variant


def labels_of(run: Run) -> list[dict[str, Any]]:
    """The rows of a label run's own table."""
    name, schema = TABLES[variant_of(run)]
    rows: list[dict[str, Any]] = read_table(run.file(name), schema).to_pylist()
    return rows


def responses_of(run: Run) -> list[dict[str, Any]]:
    """The rows of responses.parquet; none for a control, which asks no annotator."""
    if "responses.parquet" not in run.manifest["outputs"]:
        return []
    rows: list[dict[str, Any]] = read_table(run.file("responses.parquet"), RESPONSES).to_pylist()
    return rows


def choices_of(run: Run) -> list[dict[str, Any]]:
    """The rows of choices.parquet; none where questions were open."""
    if "choices.parquet" not in run.manifest["outputs"]:
        return []
    rows: list[dict[str, Any]] = read_table(run.file("choices.parquet"), CHOICES).to_pylist()
    return rows


def dataset_of(run: Run, path: Path) -> Dataset:
    """The dataset a label run was made from, which lies at `path`; `dataset_at` says where that is.

    Raises:
        InputError: it is not there, or it is another one.
    """
    dataset = Dataset.open(path)
    recorded = run.config["inputs"].get("dataset", {}).get("manifest_sha256")
    if recorded is not None and recorded != dataset.manifest_sha256:
        raise InputError(
            f"{run.path} was made from another dataset than {dataset.path} (or it was collected again since); pass the "
            "right one with --dataset, or label again."
        )
    return dataset


def mission_words(run: Run, dataset: Dataset) -> MissionWords | None:
    """The words of the dataset's missions, where a label run was made with missions (`--with-mission`)."""
    return MissionWords.of(dataset.text("mission")[1]) if "mission" in run.facts.get("reads", ()) else None


def names_of(env_id: str) -> tuple[str, ...]:
    """The fields of the memory of episodes in an env; none where nothing is remembered."""
    memory = memory_of(env_id)
    return () if memory is None else memory.names


def memory_names(run: Run, dataset: Dataset) -> tuple[str, ...]:
    """The fields of the memory, where a label run was made with it (`--with-memory`)."""
    return names_of(dataset.env_id) if "memory" in run.facts.get("reads", ()) else ()


def card_of(run: Run, dataset: Dataset) -> EnvCard:
    """The env as the prompts of a label run showed it: with missions or what was done, where these did."""
    return env_card(dataset.env_id, words=mission_words(run, dataset), memory=memory_names(run, dataset))
