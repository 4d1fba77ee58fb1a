"""What a manifest says of the software that made a run: command line, commit, versions."""

import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from bkrl import __version__

PACKAGES = ("numpy", "torch", "gymnasium", "minigrid", "crafter", "pyarrow", "numba", "openai", "transformers")


def command_line() -> list[str]:
    """The command line of this process; a notebook's holds only paths of its machine."""
    name = Path(sys.argv[0]).name
    if name == "ipykernel_launcher.py":
        return ["a notebook"]
    return ["bkrl", *sys.argv[1:]] if name == "bkrl" else list(sys.argv)


def software() -> dict[str, Any]:
    """Commit, versions of packages and of Python, and the platform."""
    return {
        "code": _code(),
        "packages": {"bkrl": __version__, **{name: _version(name) for name in PACKAGES}},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
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
