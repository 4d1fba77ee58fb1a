"""Run directories: config first, metrics as they come, manifest last. Its presence means the run is complete.

Nothing is inferred from a folder's name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from io import FileIO
from pathlib import Path
from typing import IO, Any, NotRequired, TypedDict

from bkrl import __version__
from bkrl.core.documents import Mismatch, parse_json, typed
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import CONTINUE, atomic_write, lock, locked, make_folder, plain, read_json, sha256, to_json

FORMAT = 1
LOCK = ".lock"
SAMPLE = "sample:"
SAMPLES = Path(__file__).parent / "samples"
_HALF_CONFIG = re.compile(r"\.config\.json\..*\.tmp")
_CONFIG_KEYS = ("format", "stage", "argv", "config", "inputs")
_PACKAGES = ("bkrl", "numpy", "torch", "gymnasium", "minigrid", "crafter", "pyarrow", "numba", "openai", "transformers")
# Settings of a connection, a screen or a place: they change nothing in the result, so a run may continue under others.
_NOT_IDENTITY = (
    *("out", "fresh", "cache", "threads", "track", "dry_run", "allow_empty_advice"),
    *("concurrency", "rpm", "tpm", "max_requests", "max_cost", "prices", "tier", "batch", "header"),
)


class Input(TypedDict):
    """What a run says of an input: a run with its manifest's hash, or a file with its own."""

    path: str
    stage: NotRequired[str]
    sha256: NotRequired[str]
    manifest_sha256: NotRequired[str]


class Output(TypedDict):
    """What a manifest says of a file; `rows` of a table."""

    bytes: int
    sha256: str
    rows: NotRequired[int]


class Config(TypedDict):
    """config.json."""

    format: int
    stage: str
    argv: list[str]
    config: dict[str, Any]
    inputs: dict[str, Input]


class Manifest(Config):
    """manifest.json."""

    outputs: dict[str, Output]
    facts: dict[str, Any]


def located(path: Path) -> Path:
    """Where a run is: `sample:NAME` is one that ships with the package, any other path is itself.

    Raises:
        InputError: there is no sample of that name.
    """
    text = Path(path).as_posix()
    if not text.startswith(SAMPLE):
        return Path(path)
    names = samples()
    if text not in names:
        from bkrl.core.registry import did_you_mean

        raise InputError(f"There is no sample '{text}'.{did_you_mean(text, names)} There are {', '.join(names)}.")
    return SAMPLES / text.removeprefix(SAMPLE)


def samples() -> list[str]:
    """The runs that ship with the package, as `sample:NAME`."""
    return sorted(SAMPLE + manifest.parent.name for manifest in SAMPLES.glob("*/manifest.json"))


def _command() -> list[str]:
    """The command line of this process; a notebook's holds nothing but paths of its machine."""
    name = Path(sys.argv[0]).name
    if name == "ipykernel_launcher.py":
        return ["a notebook"]
    return ["bkrl", *sys.argv[1:]] if name == "bkrl" else list(sys.argv)


class Run:
    """A stage's own folder. `create` it to work, `open` it to read what another stage finished."""

    def __init__(self, path: Path, config: dict[str, Any], manifest: dict[str, Any] | None) -> None:
        self.path = path
        self.config = config
        self._manifest = manifest
        self._metrics: FileIO | None = None
        self._logged = (0, hashlib.sha256())
        self._lock: IO[bytes] | None = None
        self.on_log: Callable[[], None] | None = None

    @classmethod
    def create(
        cls, path: Path, *, stage: str, config: object, inputs: Mapping[str, Path] | None = None, fresh: bool = False
    ) -> Run:
        """Start a run, or go on with the one that the same command left there.

        A complete run with the same config comes back with `complete` True and is not touched.

        Args:
            path: the run directory; made with its parents.
            stage: the verb, e.g. `"train-rs"`.
            config: the stage's frozen dataclass; everything in it is recorded.
            inputs: name → run directory of an earlier stage (its manifest's hash is recorded) or file (its own is).
            fresh: remove what an earlier run of this stage left there.

        Raises:
            UsageError: the folder holds a run of another config or stage, an input, or files that are no run, or
                another process is at work in it, or it cannot be made. A run that wrote nothing but its config is
                replaced.
        """
        path = Path(path)
        document = {
            "format": FORMAT,
            "stage": stage,
            "argv": _command(),
            "config": plain(config),
            "inputs": {name: _input(Path(source)) for name, source in (inputs or {}).items()},
        }
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; name a folder with --out.")
        config_file, manifest_file = path / "config.json", path / "manifest.json"
        _spare(path, stage, [located(Path(source)) for source in (inputs or {}).values()], fresh)
        if fresh and config_file.exists():
            with hold(path):
                _empty(path)
        if not config_file.exists() and path.exists() and not _not_begun(path):
            raise UsageError(f"{path} is not empty and is not a bkrl run; choose another --out.")
        if not manifest_file.exists():
            make_folder(path)
            with ExitStack() as stack:
                lock = stack.enter_context(hold(path))
                if not manifest_file.exists():  # whoever was at work here may have finished a moment ago
                    run = cls._continue(path, document) or cls._begin(path, document)
                    run._lock = lock
                    stack.pop_all()
                    return run
        found = read_json(config_file, Config)
        _refuse(path, _differences(found, document))
        return cls(path, found, read_json(manifest_file, Manifest))

    @classmethod
    def renew(cls, path: Path, *, stage: str, config: object, inputs: Mapping[str, Path] | None = None) -> Run:
        """Start a run whose result is made anew each time: an earlier one of its stage is replaced, no other is.

        Raises:
            UsageError: the folder holds anything else, or what `create` refuses.
            InputError: what is there cannot be read, so that nobody knows what it is.
        """
        earlier = path / "config.json"
        replace = earlier.exists() and read_json(earlier).get("stage") == stage
        if earlier.exists() and not replace:
            raise UsageError(f"{path} holds another run; choose another --out.")
        return cls.create(path, stage=stage, config=config, inputs=inputs, fresh=replace)

    @classmethod
    def _continue(cls, path: Path, document: Mapping[str, Any]) -> Run | None:
        """The unfinished run in a folder that we hold; None when nothing there is worth keeping."""
        for half in path.rglob(".*.tmp"):  # what a kill left; nobody else writes here while we hold the folder
            if half.is_file():
                half.unlink()
        if not (path / "config.json").exists():
            return None
        found = read_json(path / "config.json", Config)
        different = _differences(found, document)
        if different and _not_begun(path):  # what a command that was refused left there: nothing is lost
            return None
        _refuse(path, different)
        return cls(path, found, None)

    @classmethod
    def _begin(cls, path: Path, document: dict[str, Any]) -> Run:
        atomic_write(path / "config.json", to_json(document))
        return cls(path, plain(document), None)

    @classmethod
    def open(cls, path: Path, stage: str | Sequence[str] | None = None, verify: bool = True) -> Run:
        """Open a complete run, checking every output against its recorded size and hash.

        Raises:
            InputError: no run is there, it is unfinished, of another stage, or a file was changed or truncated.
        """
        path = located(path)
        if path.is_file():
            raise InputError(f"{path} is a file, and a run is a folder; name the folder.")
        if not path.is_dir():
            raise no_run(path, [stage] if isinstance(stage, str) else stage or ())
        if not (path / "config.json").exists():
            raise InputError(f"{path} is not a bkrl run: it has no config.json.")
        config = read_json(path / "config.json", Config)
        wanted = [stage] if isinstance(stage, str) else list(stage or [])
        if wanted and config["stage"] not in wanted:
            raise InputError(f"{path} is a '{config['stage']}' run; a '{' or '.join(wanted)}' run is needed here.")
        if not (path / "manifest.json").exists():
            raise InputError(f"{path} is unfinished (no manifest.json); run its command again and it will continue.")
        run = cls(path, config, read_json(path / "manifest.json", Manifest))
        if verify:
            run.verify()
        return run

    @property
    def stage(self) -> str:
        """The verb that made this run."""
        return str(self.config["stage"])

    @property
    def complete(self) -> bool:
        """Whether the manifest has been written."""
        return self._manifest is not None

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of a complete run; InputError before that."""
        if self._manifest is None:
            raise InputError(f"{self.path} is unfinished (no manifest.json).")
        return self._manifest

    @property
    def facts(self) -> dict[str, Any]:
        """What the stage recorded about its result."""
        return dict(self.manifest["facts"])

    def file(self, name: str) -> Path:
        """The path of a file inside the run; InputError for a name or a link that would leave the folder."""
        if _leaves(self.path, self.path / name):
            raise InputError(f"{self.path} is no run to be trusted: its {name!r} would leave it; make the run again.")
        return self.path / name

    def log(self, step: int, **metrics: float) -> None:
        """Append one line to metrics.jsonl. Keys look like `eval/success_rate`; non-finite values become null.

        Raises:
            RunFailed: the disk is full or the folder has vanished; the lines before this one stay whole.
        """
        values = {key: plain(value) for key, value in metrics.items()}
        line = (json.dumps({"step": int(step), **values}, allow_nan=False) + "\n").encode()
        path = self.file("metrics.jsonl")
        try:
            if self._metrics is None:
                self._metrics, self._logged = path.open("ab", buffering=0), _read(path)
            written = self._metrics.write(line)
            if written != len(line):  # the last bytes of a full disk: half a line is no line
                os.ftruncate(self._metrics.fileno(), os.fstat(self._metrics.fileno()).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RunFailed(f"{path} cannot be written ({error.strerror}); {CONTINUE}") from None
        self._logged[1].update(line)
        self._logged = (self._logged[0] + len(line), self._logged[1])
        if os.fstat(self._metrics.fileno()).st_nlink == 0:
            raise RunFailed(f"{path} was removed while it was written; has somebody deleted the run?")
        if self.on_log is not None:
            self.on_log()

    def sync(self) -> tuple[int, str]:
        """Have on the disk what was logged: a power cut must not take what a checkpoint or a manifest counts.

        Returns:
            The number of bytes logged and their SHA-256: kept while they were written, so that a byte of the file that
            changes afterwards is noticed.

        Raises:
            RunFailed: the disk is full or broken.
        """
        if self._metrics is not None:
            try:
                os.fsync(self._metrics.fileno())
            except OSError as error:
                raise RunFailed(f"{self.file('metrics.jsonl')} cannot be written ({error.strerror}).") from None
        size, running = self._logged if self._metrics is not None else _read(self.file("metrics.jsonl"))
        return size, running.hexdigest()

    def close(self) -> None:
        """Release metrics.jsonl (a run that goes on after this opens it again)."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl; a last line torn by a crash is left out."""
        path = self.file("metrics.jsonl")
        if not path.exists():
            return []
        lines = path.read_bytes().split(b"\n")
        rows = []
        for number, line in enumerate(lines):
            if not line:
                continue
            try:
                rows.append(typed(dict[str, Any], parse_json(line)))
            except Mismatch:
                if number < len(lines) - 1:
                    raise InputError(f"{path} is damaged at line {number + 1}; restore it or run again.") from None
        return rows

    def finish(self, outputs: Sequence[str], **facts: object) -> None:
        """Write the manifest: outputs with rows, bytes and hash; inputs; versions; `facts`. The run is complete."""
        self.sync()
        self.close()
        names = [*outputs, *(["metrics.jsonl"] if self.file("metrics.jsonl").exists() else [])]
        manifest = {
            "format": FORMAT,
            "stage": self.stage,
            "argv": self.config["argv"],
            "config": self.config["config"],
            "inputs": self.config["inputs"],
            "outputs": {name: self._describe(name) for name in dict.fromkeys(names)},
            "facts": facts,
            "code": _code(),
            "packages": {name: _version(name) for name in _PACKAGES},
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        manifest = plain(manifest) | {"seal": _seal(manifest)}
        atomic_write(self.file("manifest.json"), to_json(manifest))
        self._manifest = manifest
        if self._lock is not None:
            self.release()
            self.file(LOCK).unlink(missing_ok=True)

    def release(self) -> None:
        """Let another process work in this folder; `finish` does so by itself."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def verify(self) -> None:
        """Compare the manifest with its seal, config.json and every output with the manifest.

        Raises:
            InputError: names the first file that differs.
        """
        self._verify_record()
        for name, recorded in self.manifest["outputs"].items():
            path = self.file(name)
            if not path.exists():
                raise InputError(f"{path} is missing although the manifest names it; restore it or run again.")
            if path.stat().st_size != recorded["bytes"]:
                raise InputError(
                    f"{path} has {path.stat().st_size} bytes, the manifest says {recorded['bytes']}; restore it or "
                    "run its command again with --fresh."
                )
            if sha256(path) != recorded["sha256"]:
                raise InputError(f"{path} was changed after it was written; restore it or run again with --fresh.")

    def _verify_record(self) -> None:
        """The run's own record: any byte changed in manifest.json or config.json is noticed."""
        record = {key: value for key, value in self.manifest.items() if key != "seal"}
        sealed = self.manifest.get("seal")
        path = self.file("manifest.json")
        if sealed != _seal(record) or path.read_text(encoding="utf-8") != to_json(record | {"seal": sealed}):
            raise InputError(f"{path} was changed after it was written; restore it or run again with --fresh.")
        path = self.file("config.json")
        if path.read_text(encoding="utf-8") != to_json({key: record.get(key) for key in _CONFIG_KEYS}):
            raise InputError(f"{path} was changed after it was written; restore it or run again with --fresh.")

    def _describe(self, name: str) -> dict[str, Any]:
        path = self.file(name)
        described: dict[str, Any] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            described["rows"] = pq.read_metadata(path).num_rows
        return described


def _read(path: Path) -> tuple[int, hashlib._Hash]:
    """The size of a file and a hash that more bytes can be added to; of none where there is no file."""
    raw = path.read_bytes() if path.exists() else b""
    return len(raw), hashlib.sha256(raw)


def _seal(record: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest's own text, so that a change in a run that nothing else names is noticed too."""
    return hashlib.sha256(to_json(record).encode()).hexdigest()


def no_run(path: Path, stages: Sequence[str] = (), what: str = "run") -> InputError:
    """What to raise where nothing is at a path: the nearest name there or, failing that, what makes a run like it.

    Args:
        path: what was named.
        stages: those of the run that is wanted; none: any.
        what: the path should have been.
    """
    from bkrl.core.registry import did_you_mean

    near = sorted(p.name for p in path.parent.glob("*") if p.is_dir()) if path.parent.is_dir() else []
    commands = " or ".join(f"`bkrl {stage.replace('potential-report', 'potential report')}`" for stage in stages)
    help = f" {commands} makes one." if commands else " Name the folder that a command was given as --out, or chose."
    return InputError(f"There is no {what} at {path}.{did_you_mean(path.name, near) or help}")


def hold(path: Path) -> IO[bytes]:
    """Hold the folder for as long as the file is open: two processes in one run would write over each other.

    Raises:
        UsageError: another process holds it.
        InputError: a link in it leads elsewhere, and so would what is written there.
    """
    for folder, folders, files in os.walk(path):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry.is_symlink() and _leaves(path, entry):
                raise InputError(f"{entry} is a link that leads out of {path}; put what it leads to in its place.")
    while True:
        file = (path / LOCK).open("ab")
        if not lock(file):
            file.close()
            raise UsageError(f"Another process is at work in {path}; wait for it or stop it.")
        try:
            if os.path.samestat(os.fstat(file.fileno()), (path / LOCK).stat()):
                return file
        except FileNotFoundError:
            pass
        file.close()  # whoever finished here removed the file after we opened it: the next process would make another


def _leaves(folder: Path, path: Path) -> bool:
    """Whether a path below a folder is, links followed, somewhere else."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (ValueError, RuntimeError, OSError):  # a name that no file can have, a link to itself
        return True


def busy(path: Path) -> bool:
    """Whether another process is at work in a run directory; who may only read there may ask, too."""
    return locked(path / LOCK)


def changed(path: Path, stage: str, config: object) -> list[str]:
    """Names of the settings in which the run at `path` differs from `config`; what changes no result is left out.

    An input that lies elsewhere by now, or is named by another path, is the same one. A run that wrote nothing but its
    config differs in nothing: it is replaced.
    """
    if _not_begun(path):
        return []
    found, wanted = read_json(path / "config.json", Config), plain(config)
    same = {name: known for name, known in found["inputs"].items() if _is(known, wanted.get(name))}
    return _differences({**found, "inputs": same}, {"stage": stage, "config": wanted, "inputs": same})


def input_hash(recorded: Mapping[str, Any]) -> str:
    """The hash of an input as it was recorded: of a run's manifest, or of a file."""
    return str(recorded.get("sha256", recorded.get("manifest_sha256")))


def hash_at(path: Path, recorded: Mapping[str, Any]) -> str | None:
    """The hash of what lies at a path now, to be held against `input_hash(recorded)`; None when nothing is there."""
    folder = located(path) if path.as_posix() in samples() else path
    file = folder if "sha256" in recorded else folder / "manifest.json"
    return sha256(file) if file.is_file() else None


def _is(recorded: Mapping[str, str], path: object) -> bool:
    """Whether the run (or file) at a path is the one that was recorded as an input."""
    return isinstance(path, str) and hash_at(Path(path), recorded) == input_hash(recorded)


def _input(path: Path) -> dict[str, str]:
    if path.is_file():
        return {"path": path.as_posix(), "sha256": sha256(path)}
    run = Run.open(path, verify=False)
    return {"path": path.as_posix(), "stage": run.stage, "manifest_sha256": sha256(run.path / "manifest.json")}


def input_at(run: Run, name: str) -> Path | None:
    """Where an input of a run is now: the place that holds what was recorded, else the first that holds anything.

    It is looked for where it was, where its path leads from each folder above the run (the run was made elsewhere, with
    relative paths), and beside the run (a study was moved as a whole). None: nothing is at any of these.
    """
    recorded = run.config["inputs"][name]
    path = Path(recorded["path"])
    places = (path, *(folder / path for folder in run.path.absolute().parents), run.path.parent / path.name)
    there = {}
    for place in dict.fromkeys(places):  # an absolute path is the same from every folder
        there[place] = hash_at(place, recorded)
        if there[place] == input_hash(recorded):
            return place
    return next((place for place, found in there.items() if found is not None), None)


def dataset_at(run: Run, named: Path | None = None) -> Path:
    """Where the dataset of a run is: at the place that was named, else where `input_at` finds it.

    Raises:
        InputError: no place was named, and it is at none that is known.
    """
    if named is not None:
        return named
    recorded = run.config["inputs"].get("dataset")
    if recorded is None:
        raise InputError(f"{run.path} does not say which dataset it was made from; name it with --dataset.")
    found = input_at(run, "dataset")
    if found is None:
        raise InputError(
            f"{run.path} was made from {recorded['path']}, which is not there; say where it is with --dataset."
        )
    return found


def check_inputs(run: Run, places: Mapping[str, Path] | None = None) -> list[str]:
    """Sentences about inputs of a complete run that are gone or have changed since; empty when all is well.

    Args:
        run: a complete run.
        places: where inputs lie now, by their names; others are looked for as `input_at` does.
    """
    problems = []
    for name, recorded in run.manifest["inputs"].items():
        place = (places or {}).get(name) or input_at(run, name) or Path(recorded["path"])
        here = hash_at(place, recorded)
        if here is None:
            problems.append(f"{run.path}: its {name} {place} is no longer there.")
        elif here != input_hash(recorded):
            problems.append(f"{run.path}: its {name} {place} was made again since.")
    return problems


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What sets two configs apart, leaving out what changes no result."""
    if found["stage"] != wanted["stage"]:
        return ["stage"]
    old, new = found["config"], plain(wanted["config"])
    inputs_old = {k: input_hash(v) for k, v in found["inputs"].items()}
    inputs_new = {k: input_hash(v) for k, v in wanted["inputs"].items()}
    same = {k for k, found_there in inputs_old.items() if found_there == inputs_new.get(k)}  # wherever they lie
    ignored = {*_NOT_IDENTITY, *same}
    keys = [name for k in {**old, **new} if k not in ignored for name in _differing(k, old.get(k), new.get(k))]
    keys += [f"input '{k}'" for k in {**inputs_old, **inputs_new} if inputs_old.get(k) != inputs_new.get(k)]
    return keys


def _differing(name: str, old: object, new: object) -> list[str]:
    """The setting, if its values differ; of a group of settings, such as those of PPO, the ones that do."""
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [name]


def _spare(path: Path, stage: str, inputs: Sequence[Path], fresh: bool) -> None:
    """UsageError when the work would go into a run of another stage or, with `fresh`, remove one or an input."""
    place = path.resolve()
    for source in (source.resolve() for source in inputs):
        if place == source or (fresh and place in source.parents):
            raise UsageError(f"{path} holds what this command reads; choose another --out.")
    try:
        found = read_json(path / "config.json").get("stage")
    except InputError:
        return  # none, or a damaged one, which may be removed
    if found not in (stage, None) and (fresh or not _not_begun(path)):
        raise UsageError(f"{path} holds a run of another stage, {found}, which stays; choose another --out.")


def _refuse(path: Path, different: Sequence[str]) -> None:
    """UsageError when the run there differs in something from the one that is wanted."""
    if different:
        raise UsageError(
            f"{path} holds a run that differs in {_some(different)}; choose another --out, or pass --fresh to "
            "remove it first."
        )


def _not_begun(path: Path) -> bool:
    """Whether nothing is there but what a command leaves that was refused, or killed at its very beginning."""
    return all(file.name in ("config.json", LOCK) or _HALF_CONFIG.fullmatch(file.name) for file in path.iterdir())


def _empty(path: Path) -> None:
    """Remove a run but for its lock. The config goes last: killed on the way, it is still known for a run."""
    order = {"manifest.json": 0, "config.json": 2}
    for file in sorted(path.iterdir(), key=lambda file: order.get(file.name, 1)):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        elif file.name != LOCK:
            file.unlink()


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _version(package: str) -> str | None:
    if package == "bkrl":
        return __version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _code() -> dict[str, Any]:
    """The commit of the source tree, when bkrl runs from one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(status) if status is not None else None}
