"""Run directories: config.json first, metrics while it works, manifest.json last. A manifest means a complete run.

Nothing is inferred from a folder's name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, NotRequired, TypedDict

from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import CONTINUE, atomic_write, plain, read_json, sha256, to_json, unshare
from bkrl.core.lines import LineFile, read_rows
from bkrl.core.reporter import Reporter
from bkrl.runs.folder import CONFIG, LOCK, MANIFEST, claim, find, leaves, only_config, remove_contents
from bkrl.runs.identity import Config, differences
from bkrl.runs.inputs import files_of_envs
from bkrl.runs.software import command_line, software

FORMAT = 1
_ENDS: ContextVar[ExitStack] = ContextVar("ends")
_NAMED = 3  # differences from a run that is there, at most, in an error


class Output(TypedDict):
    """What a manifest says of a file; `rows` of a table."""

    bytes: int
    sha256: str
    rows: NotRequired[int]


class Manifest(Config):
    """manifest.json."""

    outputs: dict[str, Output]
    facts: dict[str, Any]


class Run:
    """A stage's own folder. `create` it to work, `open` it to read what another stage finished."""

    def __init__(self, path: Path, config: dict[str, Any], manifest: dict[str, Any] | None) -> None:
        self.path = path
        self.config = config
        self._manifest = manifest
        self._log: LineFile | None = None
        self._lock: IO[bytes] | None = None
        self.on_log: Callable[[dict[str, Any]], None] | None = None
        """Called with each row after it was written to metrics.jsonl."""

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self.stage}, {'complete' if self.complete else 'unfinished'}>"

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
                another process is at work in it, or it cannot be made. A run that wrote only its config is replaced.
        """
        path, places = Path(path), {name: Path(source) for name, source in (inputs or {}).items()}
        settings = plain(config)
        places |= files_of_envs(str(settings.get("env")))
        read = {name: _input(source) for name, source in places.items()}
        wanted = {"format": FORMAT, "stage": stage, "argv": command_line(), "config": settings, "inputs": read}
        with ExitStack() as stack:
            lock = claim(path, stage, places.values(), fresh)
            if lock is not None:
                stack.enter_context(lock)
                software()  # it is kept: what is checked out when `finish` writes it may be other code than what ran
            found = read_json(path / CONFIG, Config) if (path / CONFIG).exists() else None
            different = [] if found is None else differences(found, wanted, type(config))
            if different and (lock is None or not only_config(path)):
                more = f" and {len(different) - _NAMED} more" if len(different) > _NAMED else ""
                way = ", or pass --fresh to remove it first" if hasattr(config, "fresh") else ""
                named = ", ".join(different[:_NAMED]) + more
                raise UsageError(f"{path} holds a run that differs in {named}; choose another --out{way}.")
            if found is None or different:
                atomic_write(path / CONFIG, to_json(wanted))
                found = plain(wanted)
            run = cls(path, found, read_json(path / MANIFEST, Manifest) if lock is None else None)
            run._lock = lock
            stack.pop_all()
            if (ends := _ENDS.get(None)) is not None:
                ends.callback(run.release)
            return run

    @classmethod
    def begin(cls, config: Any, stage: str, inputs: Mapping[str, Path], reporter: Reporter) -> Run:
        """The run of a verb's config, made or gone on with as `create` does; says so where it is complete."""
        run = cls.create(config.run_dir, stage=stage, config=config, inputs=inputs, fresh=config.fresh)
        if run.complete:
            reporter.say(f"{run.path} is already complete.")
        return run

    @classmethod
    def renew(cls, path: Path, *, stage: str, config: object, inputs: Mapping[str, Path] | None = None) -> Run:
        """Start a run whose result is made anew each time: an earlier one of its stage is replaced, no other is.

        Raises:
            UsageError: the folder holds anything else, or what `create` refuses.
            InputError: what is there cannot be read, so that its stage is not known.
        """
        earlier = path / CONFIG
        replace = earlier.exists() and read_json(earlier).get("stage") == stage
        if earlier.exists() and not replace:
            raise UsageError(f"{path} holds another run; choose another --out.")
        return cls.create(path, stage=stage, config=config, inputs=inputs, fresh=replace)

    @classmethod
    def open(cls, path: Path, stage: str | Sequence[str] | None = None, verify: bool = True) -> Run:
        """Open a complete run, checking every output against its recorded size and hash.

        Raises:
            InputError: no run is there, it is unfinished, of another stage, or a file was changed or truncated.
        """
        wanted = [stage] if isinstance(stage, str) else list(stage or [])
        path = find(path, wanted)
        config = read_json(path / CONFIG, Config)
        if wanted and config["stage"] not in wanted:
            raise InputError(f"{path} is a '{config['stage']}' run; a '{' or '.join(wanted)}' run is needed here.")
        if not (path / MANIFEST).exists():
            raise InputError(f"{path} is unfinished (no manifest.json); run its command again and it will continue.")
        run = cls(path, config, read_json(path / MANIFEST, Manifest))
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
        if leaves(self.path, self.path / name):
            raise InputError(f"{self.path} cannot be trusted: its {name!r} would leave it; make the run again.")
        return self.path / name

    def write_json(self, name: str, document: object) -> None:
        """Write a file inside the run as JSON."""
        atomic_write(self.file(name), to_json(document))

    def log(self, step: int, **metrics: float) -> None:
        """Append one line to metrics.jsonl. Keys look like `eval/success_rate`; non-finite values become null.

        Raises:
            RunFailed: the disk is full or the folder has vanished; the lines before this one stay whole.
        """
        row = {"step": int(step), **{key: plain(value) for key, value in metrics.items()}}
        path = self.file("metrics.jsonl")
        try:
            if self._log is None:
                self._log = LineFile(path)
            self._log.append(json.dumps(row, allow_nan=False))
        except OSError as error:
            raise RunFailed(f"{path} cannot be written ({error.strerror}); {CONTINUE}") from None
        if self._log.removed:
            raise RunFailed(f"{path} was removed while it was written; start the run again.")
        if self.on_log is not None:
            self.on_log(row)

    def sync(self) -> tuple[int, str]:
        """Wait until the disk has what was logged: a power cut must not take what a checkpoint or a manifest counts.

        Returns:
            The number of bytes logged and their SHA-256, as they were written: a later change of the file is noticed.

        Raises:
            RunFailed: the disk is full or broken.
        """
        path = self.file("metrics.jsonl")
        if self._log is None:
            raw = path.read_bytes() if path.exists() else b""
            return len(raw), hashlib.sha256(raw).hexdigest()
        try:
            self._log.sync()
        except OSError as error:
            raise RunFailed(f"{path} cannot be written ({error.strerror}).") from None
        return self._log.content

    def close(self) -> None:
        """Release metrics.jsonl (a run that goes on after this opens it again)."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def rewind(self, size: int, digest: str | None = None) -> None:
        """Keep the first `size` bytes of metrics.jsonl, whose SHA-256 is `digest`; what follows is logged again.

        Raises:
            InputError: the file is shorter, or those bytes are others.
        """
        self.close()
        path = self.file("metrics.jsonl")
        raw = path.read_bytes() if path.exists() else b""
        if len(raw) < size:
            raise InputError(
                f"{path} has {len(raw)} bytes and had {size} at the newest checkpoint; restore it, or pass --fresh."
            )
        if digest is not None and hashlib.sha256(raw[:size]).hexdigest() != digest:
            raise InputError(f"{path} was changed after it was written; restore it, or pass --fresh.")
        if raw:
            unshare(path)
            os.truncate(path, size)

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl; a last line torn by a crash is left out."""
        return read_rows(self.file("metrics.jsonl"), mend="restore it or run again")

    def finish(self, outputs: Sequence[str], **facts: object) -> None:
        """Write the manifest: outputs with rows, bytes and hash; inputs; versions; `facts`. The run is complete."""
        self.sync()
        self.close()
        names = [*outputs, *(["metrics.jsonl"] if self.file("metrics.jsonl").exists() else [])]
        self._manifest = sealed(
            {
                "format": FORMAT,
                **{key: self.config[key] for key in ("stage", "argv", "config", "inputs")},
                "outputs": {name: self._describe(name) for name in dict.fromkeys(names)},
                "facts": facts,
                **software(),
            }
        )
        atomic_write(self.file(MANIFEST), to_json(self._manifest))
        if self._lock is not None:
            self.release()
            self.file(LOCK).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove an unfinished run, its folder included."""
        self.close()
        remove_contents(self.path)
        self.release()
        self.file(LOCK).unlink(missing_ok=True)
        self.path.rmdir()

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
        config = {key: self.manifest.get(key) for key in ("format", "stage", "argv", "config", "inputs")}
        for name, document in ((MANIFEST, sealed(self.manifest)), (CONFIG, config)):
            path = self.file(name)
            if path.read_text(encoding="utf-8") != to_json(document):
                raise InputError(f"{path} was changed after it was written; restore it or run again with --fresh.")

    def _describe(self, name: str) -> dict[str, Any]:
        path = self.file(name)
        described: dict[str, Any] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            described["rows"] = pq.read_metadata(path.absolute()).num_rows
        return described


@contextmanager
def releasing() -> Iterator[None]:
    """The runs that begin in the block let go of their folders at its end, whoever keeps an error and so its frames."""
    with ExitStack() as ends:
        ends.callback(_ENDS.reset, _ENDS.set(ends))
        yield


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with the SHA-256 of its own text: a change in a run that no other run names is noticed, too."""
    content = {key: value for key, value in plain(record).items() if key != "seal"}
    return {**content, "seal": hashlib.sha256(to_json(content).encode()).hexdigest()}


def _input(path: Path) -> dict[str, str]:
    run = None if path.is_file() else Run.open(path, verify=False)
    content = sha256(path if run is None else run.path / MANIFEST)
    what = {"sha256": content} if run is None else {"stage": run.stage, "manifest_sha256": content}
    return {"path": path.as_posix(), **what}
