"""One `[[world]]` of a study: its datasets, labels, potentials and tasks as cells."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bkrl.core import config as settings
from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of
from bkrl.core.settings import build, values_of
from bkrl.envs import env_spec, sets
from bkrl.llm import CONTROLS
from bkrl.methods import method_of, methods, settings_from
from bkrl.methods.goals import GoalSettings
from bkrl.studies.entries import VARIANTS, Entry, entries_of
from bkrl.studies.tables import check_choice, check_keys, name_of_folder, on_top, seed_list, tables_of
from bkrl.verbs import VERBS

_CONFIGS = {verb.replace("-", "_"): kind for verb, kind in VERBS.items() if verb not in ("report", "reproduce")}
_CONFIGS["lm_make"] = settings.LmMakeConfig
_SECTION_KEYS = {
    *("name", "variants", "algs", "seeds", "collect_seeds", "label_seeds", "task"),
    *("methods", "demonstrations", "models"),
    *_CONFIGS,
}
_TASK_KEYS = {"name", "algs", "seeds", "train_rs", "evaluate"}


class _Draw(NamedTuple):
    """One dataset and one labelling of it, by their seeds; None where the study does not vary them."""

    dataset: int | None
    labels: int | None

    @property
    def collected(self) -> str:
        """Suffix of its dataset folders."""
        return "" if self.dataset is None else f"-d{self.dataset}"

    @property
    def suffix(self) -> str:
        """Suffix of the folders of its labels, potentials and policies."""
        return self.collected + ("" if self.labels is None else f"-l{self.labels}")


class Cell(NamedTuple):
    """One stage with its settings; `run_dir` is where its run lives. `recorded`: the stage that its run records, where
    that is another.
    """

    stage: str
    config: Any
    recorded: str = ""

    @property
    def made(self) -> tuple[str, Any]:
        """The stage and the settings that its run records."""
        return self.recorded or self.stage.replace("_", "-"), self.config

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return Path(self.config.run_dir)

    @property
    def steps(self) -> int:
        """Environment steps that it trains for; 0 for stages that train no policy."""
        chosen = vars(self.config)
        return int(chosen.get("steps", 0)) if "env" in chosen and chosen.get("explorer", "rnd") == "rnd" else 0


class StudySection:
    """The cells of one `[[world]]`: one dataset, labels and potentials shared by all its tasks."""

    def __init__(self, table: Mapping[str, Any], out: Path) -> None:
        for gone in table.keys() & {"label_shards", "collect_shards"}:
            raise UsageError(f"A dataset is collected by one cell, and labelled by one; leave {gone} out.")
        check_keys(table, _SECTION_KEYS, "A study's section")
        self.table = table
        self.root = out / name_of_folder(table, "world")
        self.preparation: list[Cell] = []
        self.training: list[Cell] = []
        self.evaluation: list[Cell] = []
        self._made: dict[str, Path] = {}
        self.begun: set[Path] = set()  # what `after` and `guide` name
        self._models: list[str] = []
        self._methods = on_top({}, table.get("methods", {}))
        check_keys(self._methods, [one.name for one in methods()], f"methods of {self.root.name}")
        self._check_tables()
        tasks = tables_of(table, "task", "A study's section") or [{}]
        entries = [entries_of(task.get("algs", table.get("algs")), self.root.name) for task in tasks]
        together = [entry for listed in entries for entry in listed]
        variants = self._variants(together)
        collected, labelled = (_seeds(table, key) for key in ("collect_seeds", "label_seeds"))
        draws = [_Draw(dataset, labels) for dataset in collected for labels in labelled]
        if variants or "collect" in table:
            for draw in (_Draw(dataset, None) for dataset in collected):
                seed: dict[str, Any] = _drawn(draw.dataset)
                made = self._cell("collect", out=self._data(draw), **seed)
                self.preparation.append(_in_own_language(made))
        if "demonstrations" in table:
            shown = self._cell("collect", {"collect": table["demonstrations"]}, out=self._shown)
            self.preparation.append(_in_own_language(shown))
        self._language_models(draws[0])
        for draw in draws:
            for variant in variants:
                if "variants" in table:
                    self._potential(Entry(variant, "", variant), draw)
                for entry in together:
                    if entry.variant == variant:
                        self._potential(entry, draw)
        self.titles = [(entry.name, entry.title.strip()) for entry in together]
        for task, listed in zip(tasks, entries, strict=True):
            self._task(task, listed, draws)

    def _check_tables(self) -> None:
        """UsageError for a wrong setting, also in a table that no entry uses."""
        for stage in ("label", "train_rm", "lm_make"):
            given = on_top({}, self.table.get(stage, {}))
            for part in (*_taken(given).values(), given):
                values_of(_CONFIGS[stage], part, {})
        for name, own in self._methods.items():
            settings_from(on_top({}, own), alg=name)

    def _variants(self, entries: Sequence[Entry]) -> list[str]:
        """The kinds of labels that are made: those that the section lists, or that its entries need."""
        variants = self.table.get("variants")
        if variants is None:
            return [one for one in VARIANTS if any(entry.variant == one for entry in entries)]
        if not isinstance(variants, list):
            raise UsageError(f'The variants of {self.root.name} are a list, such as ["pref"], not {variants!r}.')
        for variant in variants:
            check_choice(variant, VARIANTS, "variant")
        for entry in entries:
            if entry.variant is not None and entry.variant not in variants:
                raise UsageError(
                    f"'{entry.name}' needs labels: add \"{entry.variant}\" to the variants of {self.root.name}."
                )
        return variants

    def _language_models(self, draw: _Draw) -> None:
        """Language models for the section's entries: they read what was recorded, and may clone the demonstrations."""
        recorded = {"collect": self._data(draw), "demonstrations": self._shown}
        read = tuple(path for key, path in recorded.items() if key in self.table)
        for given in tables_of(self.table, "models", f"The section {self.root.name}"):
            own = {key: value for key, value in given.items() if key not in ("name", "clone")}
            out = self.root / f"lm-{name_of_folder(given, 'model')}"
            clone = self._shown if given.get("clone") else None
            made = self._cell("lm_make", {"lm_make": own}, from_=read, clone=clone, out=out)
            self.preparation.append(made._replace(recorded="lm"))
            self._models.append(given["name"])

    def _given(self, entry: Entry, seed: int, runs: Mapping[str, Path]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What one of the `runs` of a seed and draw, by entry, begins with: what the plan fixes, and a table on top."""
        fixed: dict[str, Any] = {"alg": entry.alg, "seed": seed}
        for setting, other in (("init_from", entry.after), ("guide", entry.guide)):
            if other:  # "NAME" of the same task, or "SECTION/NAME"
                fixed[setting] = runs[other] if other in runs else self.root.parent / f"{other}-s{seed}"
                self.begun.add(fixed[setting])
        if "demonstrations" in self.table and entry.clones:
            fixed["data"] = self._shown
        if entry.lm:
            check_choice(entry.lm, self._models, f"lm of '{entry.name}'")
        lm = {"train_rs": {"lm": {"lm": (self.root / f"lm-{entry.lm}").as_posix()}}} if entry.lm else {}
        return fixed, lm

    def _task(self, task: Mapping[str, Any], entries: Sequence[Entry], draws: Sequence[_Draw]) -> None:
        """Training and evaluation of one task; what needs no labels is not repeated for each draw of them."""
        check_keys(task, _TASK_KEYS, "A task")
        folder = self.root / name_of_folder(task, "task") if task else self.root
        seeds = seed_list(task.get("seeds", self.table.get("seeds")), f"the seeds of {folder.name}")
        for draw in draws:
            ends = {one.name: draw.suffix if one.variant else "" for one in entries}
            for seed in seeds:
                runs = {name: folder / f"{name}{end}-s{seed}" for name, end in ends.items()}
                for entry in entries:
                    if entry.variant is None and draw != draws[0]:
                        continue
                    potential, name = self._potential(entry, draw), runs[entry.name].name
                    given, lm = self._given(entry, seed, runs)
                    given |= {"potential": potential} if potential else {}
                    above = (task, {"train_rs": self._methods.get(entry.alg, {})}, vars(entry), lm)
                    trained = self._cell("train_rs", *above, out=folder / name, **given)
                    self.training.append(trained)
                    # One agent of a method is enough to look at: drawing takes longer than playing.
                    seen = {} if (draw, seed) == (draws[0], seeds[0]) else {"evaluate": {"gifs": 0}}
                    self.evaluation.append(
                        self._cell("evaluate", task, seen, policy=folder / name, out=folder / f"eval-{name}")
                    )

    def check_set(self, name: str) -> None:
        """UsageError unless all tasks and seeds are of this set, and experience is of no task of the second one."""
        drawn = [("label", seed) for seed in _seeds(self.table, "label_seeds") if seed is not None]
        for cell in self.preparation:
            if cell.stage == "collect":
                sets.check_experience(cell.config.env, cell.run_dir.as_posix())
                sets.check_seed(name, cell.config.seed, f"collect of {self.root.name}", "collect_seeds")
            elif cell.stage in ("label", "train_rm") and cell.config.seed != type(cell.config).seed:
                drawn.append((cell.stage, cell.config.seed))
        for stage, seed in drawn:
            sets.check_seed(name, seed, f"{stage} of {self.root.name}", "label_seeds")
        for cell in self.training:
            sets.check_task(name, cell.config.env, cell.run_dir.as_posix())
            sets.check_seed(name, cell.config.seed, cell.run_dir.as_posix(), "seeds")
            own = cell.config
            asks = isinstance(own, settings.AskConfig)
            if isinstance(own, GoalSettings):  # controls know nothing
                asks = own.asks and own.suggested_by.partition(":")[0] not in CONTROLS
            if name == sets.SECOND.name and asks:
                raise UsageError(
                    f"{cell.run_dir} asks an annotator about a task of the second set while it learns, and none may "
                    "see one; take the first set, or a method whose knowledge comes from elsewhere."
                )
        for trained, cell in zip(self.training, self.evaluation, strict=True):
            for env in _played(cell.config, trained.config.env):
                sets.check_task(name, env, cell.run_dir.as_posix())

    def _data(self, draw: _Draw) -> Path:
        return self.root / f"data{draw.collected}"

    @property
    def _shown(self) -> Path:
        return self.root / "demonstrations"

    def _potential(self, entry: Entry, draw: _Draw) -> Path | None:
        """The potential of an entry, made once for all that ask for the same one."""
        if entry.variant is None:
            return None
        labels = self._labels(entry, draw)
        key = json.dumps(["rm", labels.name, entry.control, entry.train_rm], sort_keys=True, default=str)
        if key not in self._made:
            control = "" if entry.control == "none" else f"-{entry.control}"
            own = entry.label or entry.train_rm
            out = self.root / f"rm-{entry.name if own else entry.variant + control}{draw.suffix}"
            read = {"labels": labels, "dataset": self._data(draw)}
            fixed: dict[str, Any] = {**read, "control": entry.control, "out": out, **_drawn(draw.labels)}
            self._made[key] = out
            self.preparation.append(self._cell("train_rm", vars(entry), variant=entry.variant, **fixed))
        return self._made[key]

    def _labels(self, entry: Entry, draw: _Draw) -> Path:
        """The labels that an entry's potential is made from."""
        key = json.dumps(["label", entry.variant, draw, entry.label], sort_keys=True, default=str)
        if key not in self._made:
            out = self.root / f"label-{entry.name if entry.label else entry.variant}{draw.suffix}"
            self._made[key] = out
            fixed: dict[str, Any] = {"dataset": self._data(draw), **_drawn(draw.labels)}
            self.preparation.append(self._cell("label", vars(entry), variant=entry.variant, out=out, **fixed))
        return self._made[key]

    def _cell(self, stage: str, *above: Mapping[str, Any], variant: str | None = None, **fixed: Any) -> Cell:
        """The section's table for this stage, on it the variant's own, then those `above`; what the plan fixes."""
        table = on_top({}, self.table.get(stage, {}))
        if variant is not None:
            table = on_top(table, _taken(table).get(variant, {}))
        for upper in above:
            table = on_top(table, upper.get(stage, {}))
        kind = _CONFIGS[stage] if stage != "train_rs" else method_of(fixed["alg"]).settings
        for key in [one.name for one in flags_of(kind) if one.flag.planned and one.name in table]:
            raise UsageError(f"'{key}' of {stage} is decided by the study's plan; leave it out.")
        if stage == "label":
            fixed["variant"] = variant
        return Cell(stage, settings_from(table, **fixed) if stage == "train_rs" else build(kind, table, **fixed))


def _taken(table: dict[str, Any]) -> dict[str, Any]:
    """The tables of variants, taken out of a stage's."""
    return {key: table.pop(key) for key in VARIANTS if isinstance(table.get(key), dict)}


def _played(config: settings.EvaluateConfig, trained_in: str) -> list[str]:
    """The envs that a policy is evaluated in."""
    if config.conditions is None:
        return [config.env or trained_in]
    from bkrl.stages.evaluate.conditions import env_of, read_conditions

    return [env_of(one, trained_in) for one in read_conditions(config.conditions).conditions]


def _in_own_language(cell: Cell) -> Cell:
    """A collect cell as its run records it: with the language of its env, where none was named."""
    with suppress(UsageError):  # an env that is not there is refused when its cell begins
        return cell._replace(config=cell.config.in_language_of(env_spec(cell.config.env).language))
    return cell


def _seeds(table: Mapping[str, Any], key: str) -> list[int | None]:
    """The seeds that a section lists under `key`; [None] where it lists none."""
    return [*seed_list(table[key], key)] if key in table else [None]


def _drawn(seed: int | None) -> dict[str, int]:
    return {} if seed is None else {"seed": seed}
