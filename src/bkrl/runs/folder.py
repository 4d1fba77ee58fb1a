"""The folder of a run: where it is, what may be written over there, and that one process at a time works in it."""

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import lock, locked, make_folder, read_json
from bkrl.core.registry import did_you_mean
from bkrl.runs.samples import PREFIX, SAMPLES, samples

CONFIG = "config.json"
MANIFEST = "manifest.json"
LOCK = ".lock"
_HALF_CONFIG = re.compile(r"\.config\.json\..*\.tmp")
_OWN = re.compile(r"\.$|cells(/|$)|data/round-\d+$")  # a run, and the runs that it makes below


def locate(path: Path, stages: Sequence[str] = ()) -> Path:
    """The folder of a run: that of a sample for `sample:NAME`, any other path as it is. `stages`: see `find`.

    Raises:
        InputError: there is no sample of that name.
    """
    text = Path(path).as_posix()
    if not text.startswith(PREFIX):
        return Path(path)
    if text not in samples():
        names = samples(stages)
        # compared without the prefix, which makes any two alike
        near = did_you_mean(text.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in names])
        near = near.replace("'", f"'{PREFIX}", 1)
        raise InputError(f"There is no sample '{text}'.{near} There are {', '.join(names)}.")
    return SAMPLES / text.removeprefix(PREFIX)


def find(path: Path, stages: Sequence[str]) -> Path:
    """The folder of a run that is there; InputError where none is. `stages`: of which it may be, for the error."""
    path = locate(path, stages)
    if path.is_file():
        raise InputError(f"{path} is a file, and a run is a folder; name the folder.")
    if not path.is_dir():
        raise no_run(path, stages)
    if not (path / CONFIG).exists():
        raise InputError(f"{path} is not a bkrl run: it has no config.json; name the folder of one, given as --out.")
    return path


def no_run(path: Path, stages: Sequence[str] = (), what: str = "run") -> InputError:
    """The error for a path where nothing is. It names the nearest folder there, else the command that makes such a run.

    Args:
        path: what was named.
        stages: the stages of which the run may be; none: any.
        what: what was expected there.
    """
    near = sorted(p.name for p in path.parent.glob("*") if p.is_dir()) if path.parent.is_dir() else []
    commands = " or ".join(f"`bkrl {stage.replace('potential-report', 'potential report')}`" for stage in stages)
    help = f" {commands} makes one." if commands else " Name the folder that a command was given as --out, or chose."
    return InputError(f"There is no {what} at {path}.{did_you_mean(path.name, near) or help}")


def claim(path: Path, stage: str, inputs: Iterable[Path], fresh: bool) -> IO[bytes] | None:
    """Make and lock a folder for a run; None where a complete run stays.

    Args:
        path: the folder.
        stage: of the run; one of another stage is left alone.
        inputs: what the run reads, which is not to be written over.
        fresh: remove what an earlier run of this stage left there.

    Raises:
        UsageError: it cannot be made, another process is at work there, or what is there stays.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; name a folder with --out.")
    place = path.resolve()
    for source in (locate(source).resolve() for source in inputs):
        if place == source or (fresh and place in source.parents):
            raise UsageError(f"{path} holds what this command reads; choose another --out.")
    make_folder(path)  # nothing below refuses a folder that was not there
    there, found = (path / CONFIG).exists(), None
    if there:
        with suppress(InputError):  # a run whose config is damaged is of no known stage, and may be removed
            found = read_json(path / CONFIG).get("stage")
    if found not in (stage, None) and (fresh or not only_config(path)):
        raise UsageError(f"{path} holds a run of another stage, {found}, which stays; choose another --out.")
    if fresh and there:
        with acquire(path):
            remove_contents(path)
    elif not there and not only_config(path):
        raise UsageError(f"{path} is not empty and is not a bkrl run; choose another --out.")
    if (path / MANIFEST).exists():
        return None
    held = acquire(path)
    if (path / MANIFEST).exists():  # the process at work here may have finished a moment ago
        held.close()
        return None
    for half in path.rglob(".*.tmp"):  # what a kill left; no other process writes here while we have the lock
        if half.is_file():
            half.unlink()
    return held


def complete_below(folder: Path) -> list[Path]:
    """The complete runs in a folder, itself included, in order; a checkpoint, which has a manifest too, is none."""
    return [file.parent for file in sorted(folder.rglob(MANIFEST)) if (file.parent / CONFIG).exists()]


def only_config(path: Path) -> bool:
    """Whether a run has written nothing but its config: its command was refused, or killed at the very beginning."""
    return all(file.name in (CONFIG, LOCK) or _HALF_CONFIG.fullmatch(file.name) for file in path.iterdir())


def acquire(path: Path) -> IO[bytes]:
    """Lock a folder until the returned file is closed.

    Raises:
        UsageError: another process has locked it.
        InputError: a link in it leads elsewhere, and so would what is written there.
    """
    for folder, folders, files in os.walk(path):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry.is_symlink() and leaves(path, entry):
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
        file.close()  # a process that finished removed the file after we opened it; the next one would make another


def busy(path: Path) -> bool:
    """Whether a process works in a run directory; the right to read there is enough to ask."""
    return locked(path / LOCK)


def leaves(folder: Path, path: Path) -> bool:
    """Whether a path below a folder is, links followed, somewhere else."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (ValueError, RuntimeError, OSError):  # a name that no file can have, a link to itself
        return True


def remove_contents(path: Path) -> None:
    """Remove a run except its lock. The config goes last: after a kill on the way it is still known to be a run.

    Raises:
        UsageError: another run lies in it, which is no training of a tournament and no round of DAgger.
    """
    if others := [one for one in complete_below(path) if not _OWN.match(one.relative_to(path).as_posix())]:
        raise UsageError(f"{path} has another run in it, {others[0]}, which would be removed too; move it elsewhere.")
    for file in sorted(path.iterdir(), key=lambda file: {MANIFEST: 0, CONFIG: 2}.get(file.name, 1)):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        elif file.name != LOCK:
            file.unlink()
