"""kill -9 while goals are asked for: the same bytes in the end, and no question twice."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkrl.llm.serve import Server
from bkrl.llm.store import Store
from tests.commands import Started
from tests.learn.kill_training import CONTINUED, differences
from tests.llm.looking import stored

RUN = (
    "train-rs --alg ellm --env Crafter-Typed-Easier@length=60 --suggester openai:rules --goal-wait --steps 1536 "
    "--eval-every 768 --eval-episodes 2 --checkpoint-every 256 --num-envs 8 --num-steps 16 --num-minibatches 2"
)


class Counting(Server):
    """The rules annotator, which keeps what it was asked, one question at a time.

    Attributes:
        asked: the bodies of all questions, in the order in which they were answered.
        gate: while it is held, nothing is read and nothing answered.
        era: a question that came before the present one is of a process that is dead, and is not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []
        self.gate, self.era = threading.Lock(), 0
        outer = self

        class Handler(self.RequestHandlerClass):  # type: ignore[name-defined, misc]
            def do_POST(self) -> None:
                era = outer.era
                with outer.gate:
                    if era != outer.era:
                        self.close_connection = True
                        return
                    connection, body = self.rfile, self.rfile.read(int(self.headers["Content-Length"]))
                    self.rfile = io.BytesIO(body)
                    super().do_POST()
                    self.rfile = connection
                    outer.asked.append(body)

        self.RequestHandlerClass = Handler


@pytest.fixture
def server() -> Iterator[Counting]:
    counting = Counting()
    threading.Thread(target=counting.serve_forever, daemon=True).start()
    yield counting
    counting.shutdown()
    counting.server_close()


def begun(server: Counting, out: Path, cache: Path) -> Started:
    """The command in a process of its own."""
    words = [*RUN.split(), "--out", out, "--cache", cache]
    return Started(words, OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none")


def killed(process: Started, server: Counting, out: Path, cache: Path, asked: int, saved: int) -> str:
    """SIGKILL once so much was asked and saved, when every answer has reached the store; what was said until then."""
    while len(server.asked) < asked or len(list(out.glob("checkpoints/step-*"))) < saved:
        assert process.poll() is None, process.said()[1]
        time.sleep(0.005)
    with server.gate:
        with Store(cache) as store:
            while stored(store) < len(server.asked):
                assert process.poll() is None, process.said()[1]
                time.sleep(0.005)
        server.era += 1
        process.kill()
        return process.said()[1]


@pytest.mark.slow
def test_kill_9_asks_nothing_twice_and_leaves_the_same_bytes(server, tmp_path: Path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert begun(server, whole, tmp_path / "own cache").done().returncode == 0
    distinct = set(server.asked)
    assert len(server.asked) == len(distinct) > 20
    server.asked.clear()

    cache = tmp_path / "cache"
    last = killed(begun(server, stopped, cache), server, stopped, cache, asked=len(distinct) // 2, saved=1)
    again = begun(server, stopped, cache).done()
    assert again.returncode == 0
    assert CONTINUED in again.stderr, last
    assert not differences(whole, stopped)
    assert len(server.asked) == len(set(server.asked))
    assert set(server.asked) == distinct
