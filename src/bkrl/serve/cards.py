"""The card of a run on the Hugging Face hub: what it is, how it was made, what was measured, and every file's hash."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bkrl.core.errors import UsageError
from bkrl.core.files import sha256
from bkrl.data.schema import ABOUT
from bkrl.runs.folder import MANIFEST
from bkrl.runs.record import Run

TITLES = {
    "collect": "Recorded experience",
    "label": "Labels by an annotator",
    "train-rm": "A potential for reward shaping",
    "train-rs": "A policy",
    "lm": "A language model that acts",
}
MEASURES = {"success_rate": "success_rate", "return": "mean_reward", "length": "mean_length", "score": "score"}
"""What `evaluate` measures, and what the hub calls it."""
_TEMPLATE = Path(__file__).with_name("card.md")
_FIRST = ("steps", "preferences", "goals", "programs")
"""Tables that matter most."""


class CardResult(NamedTuple):
    """One figure of an evaluation, with its 95 % interval, where it has one."""

    env: str
    mode: str
    measure: str
    mean: float
    low: float | None
    high: float | None
    episodes: int
    seed: int

    @property
    def interval(self) -> str:
        """In words."""
        return "–" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


def card(run: Run, repo: str, kind: str, evaluations: Sequence[Run], license: str) -> str:
    """README.md of a "dataset" or "model" at OWNER/NAME: the hub's own metadata in YAML, and words.

    Raises:
        UsageError: an evaluation is of another run.
    """
    from jinja2 import Environment

    own, env = sha256(run.path / MANIFEST), run.facts.get("env_id")
    for one in evaluations:
        if one.config["inputs"]["policy"].get("manifest_sha256") != own:
            raise UsageError(f"{one.path} is an evaluation of another run than {run.path}; evaluate this one.")
    results = [result for one in evaluations for result in _results(one)]
    title, outputs = f"{TITLES[run.stage]}{f' for {env}' if env else ''}", run.manifest["outputs"]
    tables = list(_tables(run))
    metadata = {"license": license, "tags": ["reinforcement-learning", "bkrl", run.stage, *([env] if env else [])]}
    about = _dataset(run, title, metadata, tables) if kind == "dataset" else _model(repo, metadata, results)
    versions = {"Python": run.manifest.get("python"), **run.manifest.get("packages", {})}
    page = Environment(trim_blocks=True, keep_trailing_newline=True)
    page.filters["cell"] = lambda value: " ".join(str(value).split()).replace("|", "\\|")  # nothing in it ends the cell
    return page.from_string(_TEMPLATE.read_text("utf-8")).render(
        yaml=about.to_yaml().strip(),
        title=title, repo=repo, kind=kind, tables=tables, results=results, outputs=outputs, own=own,
        folder=next((name.rpartition("/")[0] for name in outputs if name.endswith("/config.json")), ""),
        weights=next((name for name in outputs if name.endswith(".safetensors")), ""),
        facts={name: one for name, one in run.facts.items() if isinstance(one, (str, int, float)) and one != ""},
        command=shlex.join(map(str, run.config["argv"])),
        software=", ".join(f"{name} {version}" for name, version in versions.items() if version),
        inputs=run.config["inputs"],
    )  # fmt: skip


def _dataset(run: Run, title: str, metadata: Any, tables: list[Any]) -> Any:
    from huggingface_hub import DatasetCardData

    configs: list[dict[str, Any]] = [{"config_name": one["name"], "data_files": one["files"]} for one in tables]
    configs[0]["default"] = True
    language = str(run.config["config"].get("language") or "en")
    return DatasetCardData(language=language, pretty_name=title, **metadata, configs=configs)


def _model(repo: str, metadata: Any, results: list[CardResult]) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    figures = [
        EvalResult(
            task_type="reinforcement-learning", task_name="reinforcement learning", dataset_type=one.env,
            dataset_name=one.env, dataset_args={"seed": one.seed, "episodes": one.episodes},
            metric_type=MEASURES.get(one.measure, one.measure), metric_name=f"{one.measure} ({one.mode})",
            metric_value=one.mean, metric_args={"low": one.low, "high": one.high, "interval": 0.95},
        )
        for one in results
    ]  # fmt: skip
    name = repo.partition("/")[2]
    return ModelCardData(library_name="bkrl", model_name=name, eval_results=figures or None, **metadata)


def _results(evaluation: Run) -> Iterator[CardResult]:
    """The figures of an `evaluate` run: of each mode, or of each condition."""
    seed, facts = evaluation.config["config"]["seed"], evaluation.facts
    for mode, scores in facts.get("modes", {}).items():
        for measure in filter(scores.__contains__, MEASURES):
            one = scores[measure]
            figures = one["mean"], one["low"], one["high"]
            yield CardResult(facts["env_id"], mode, measure, *figures, facts["episodes"], seed)
    for row in facts.get("conditions", ()):
        if row["success"] is not None:
            figures = row["success"], row["low"], row["high"]
            yield CardResult(row["env"], row["mode"], row["condition"], *figures, row["episodes"], seed)


def _tables(run: Run) -> Iterator[dict[str, Any]]:
    """The Parquet tables of a run, the one that matters most first, with their columns."""
    import pyarrow.parquet as pq

    found: dict[str, str] = {}
    for path in map(PurePosixPath, run.manifest["outputs"]):
        if path.suffix == ".parquet" and len(path.parts) < 3:
            folder = path.parts[0] if len(path.parts) == 2 else ""
            found[folder or path.stem] = f"{folder}/*.parquet" if folder else path.name
    for name in sorted(found, key=lambda name: (name not in _FIRST, name)):
        columns = []
        for field in pq.read_schema(min(run.path.absolute().glob(found[name]))):
            shape = (field.metadata or {}).get(b"shape", b"").decode()
            columns.append({"name": field.name, "type": f"{field.type}{', of shape ' if shape else ''}{shape}"})
        yield {"name": name, "files": found[name], "about": ABOUT.get(name, ""), "columns": columns}
