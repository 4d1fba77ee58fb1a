"""Whether this installation works. Each finding is (what, ok, detail); keys are looked for and never shown."""

import os
import platform
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from bkrl.runs.software import PACKAGES

Finding = tuple[str, bool, str]


def examine() -> list[Finding]:
    """Run all checks; one that raises is a finding, not a crash."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", lambda: f"{platform.python_version()} on {platform.platform()}"),
        ("packages", lambda: ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)),
        ("BabyAI env", lambda: _env("BabyAI-Text-GoToLocal-RedBall-S20")),
        ("Crafter env", lambda: _env("Crafter-Text-Reward")),
        ("sandbox", _sandbox),
        ("torch", _torch),
        ("folders", _folders),
        ("LLM keys", _keys),
    ]
    findings = []
    for name, check in checks:
        try:
            findings.append((name, True, check()))
        except Exception as problem:  # noqa: BLE001 - whatever is wrong is a finding
            findings.append((name, False, f"{type(problem).__name__}: {problem}"))
    return findings


def _env(env_id: str) -> str:
    from bkrl.envs import make_vec

    envs = make_vec(env_id, 2)
    envs.reset(seed=0)
    for _ in range(10):
        envs.step(envs.action_space.sample())
    envs.close()
    return f"{env_id} steps ({type(envs).__name__})"


def _sandbox() -> str:
    from bkrl.sandbox.level import describe_layers, self_test

    tested = self_test()
    return f"level {tested.level}: {describe_layers(tested.layers)}"


def _torch() -> str:
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    return f"{torch.__version__} on {device}, {torch.get_num_threads()} threads by default"


def _folders() -> str:
    for name in ("data", "cache", "logs"):
        folder = Path(name) if Path(name).is_dir() else Path.cwd()
        tempfile.TemporaryFile(dir=folder).close()
    return f"data/, cache/ and logs/ can be written under {Path.cwd()}"


def _keys() -> str:
    names = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY")
    found = [name for name in names if os.environ.get(name)]
    base = " with OPENAI_BASE_URL" if os.environ.get("OPENAI_BASE_URL") else ""
    return f"{', '.join(found)} set{base}" if found else "none set (only openai: needs one)"
