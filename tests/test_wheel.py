"""What is installed is whole: the wheel holds every file of the package, and the main job runs from it alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_reproduces_from_it(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "."], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if name.startswith(("src/", "pyproject.toml", "README.md", "LICENSE")) and (ROOT / name).exists():
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tree" / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, "."]
    subprocess.run(pip, cwd=tmp_path / "tree", check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    package = {name.removeprefix("src/") for name in listed.stdout.splitlines() if name.startswith("src/")}
    assert {name for name in package if (ROOT / "src" / name).exists()} <= held
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    command = [sys.executable, "-m", "bkrl", "reproduce", "--preset", "smoke"]
    where = subprocess.run(
        [sys.executable, "-c", "import bkrl; print(bkrl.__file__)"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(tmp_path))
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("logs/*/report/report.html"))
