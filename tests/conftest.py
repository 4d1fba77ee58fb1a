"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from bkrl.cli.main import run_command
from tests.models import compute_here

if TYPE_CHECKING:
    import torch

# A test asks what a function gives, not how long it takes on a busy machine. `fast` tries the same few examples each
# time; `slow` many others each time, and prints how to see again what it found. --hypothesis-profile names another.
settings.register_profile(
    "fast", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("slow", settings.get_profile("fast"), max_examples=500, derandomize=False, print_blob=True)
settings.load_profile("fast")
compute_here()

# What a test writes need not outlive a power cut, and waiting for the disk was a tenth of the time. Whether bkrl waits
# is tested with an fsync that takes notes; commands in processes of their own wait as ever.
os.fsync = lambda descriptor: None

# A job that a script starts in the background ignores Ctrl-C, and one of nohup's a terminal that is closed; so would
# every process that a test wants to stop.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than cores: tests wait for other processes, and leave theirs to the others meanwhile."""
    return len(os.sched_getaffinity(0)) + 2 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 2


def pytest_collection_finish() -> None:
    """What is imported stays to the end, so the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device that networks may live on; what takes it is tested on a GPU too, where there is one."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(request.param)


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str], int], str]:
    """Give a command line that is refused, with an exit code, in a folder where it leaves nothing; its one sentence."""

    def give(arguments: Sequence[str], code: int) -> str:
        monkeypatch.chdir(tmp_path)
        assert run_command(list(arguments)) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("bkrl: ")
        assert "Traceback" not in captured.err
        assert captured.err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
        return captured.err

    return give
