"""Each layer of the sandbox alone: what holds when the others are switched off, and what is claimed then."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import BkrlError
from bkrl.sandbox.level import level_of, self_test
from bkrl.sandbox.pool import Sandbox
from tests.commands import runs
from tests.potentials.corpus import FINE, body
from tests.sandbox.test_pool import LIMITS, outcome, windows


def test_self_test_claims_only_what_it_demonstrates():
    tested = self_test()
    assert set(tested.attempts) == {"open", "write", "socket", "memory", "fork"}
    if tested.level != "basic":
        held = {name for name, attempt in tested.attempts.items() if attempt.startswith("refused")}
        assert {"open", "write", "socket", "fork"} <= held


def test_without_seccomp_the_level_is_basic():
    tested = self_test(skip=frozenset({"seccomp"}))
    assert tested.level == "basic"
    assert tested.layers["seccomp"] == "switched off"


def test_without_any_kernel_layer_the_self_test_sees_the_holes():
    everything = frozenset({"limits", "identity", "namespaces", "landlock", "seccomp"})
    tested = self_test(skip=everything)
    assert {"open", "socket", "fork"} <= {name for name, attempt in tested.attempts.items() if attempt == "allowed"}
    Path("/tmp/bkrl-sandbox-probe").unlink(missing_ok=True)


def test_levels():
    on = dict.fromkeys(("limits", "namespaces", "landlock", "seccomp"), "on")
    assert level_of(on) == "strong"
    assert level_of({**on, "landlock": "off"}) == "good"
    assert level_of({**on, "seccomp": "off"}) == "basic"


def test_a_required_level_that_is_not_reached_is_an_error():
    with pytest.raises(BkrlError, match="reaches level 'basic'"):
        Sandbox(FINE, (4,), 2, require="strong", skip=frozenset({"seccomp"}))(windows())


NATIVE = [
    ("read a file", "open('/etc/hostname').read()", "E"),
    ("write a file", "open('/tmp/bkrl-leak', 'w').write('x')", "E"),
    ("a socket", "__import__('_socket').socket()", "E"),
    ("list a folder", "__import__('posix').listdir('/')", "E"),
    ("fork", "__import__('posix').fork()", "EK"),
    ("run a command", "__import__('posix').system('id > /tmp/bkrl-leak')", "EK"),
    ("kill everyone", "__import__('posix').kill(-1, 9)", "K"),
    ("another program", "__import__('posix').execv('/bin/true', ['true'])", "EK"),
    ("write to stdout", "__import__('posix').write(1, b'x')", "K"),
    ("forge a reply", "__import__('posix').write(4, b'\\0' * 64)", "EK"),
    ("leave", "__import__('posix')._exit(0)", "K"),
    ("exit quietly", "exit()", "E"),
    ("fromfile", "np.fromfile('/etc/hostname', np.uint8)", "E"),
    ("memory", "bytearray(10 ** 12)", "E"),
]


@pytest.mark.parametrize(("name", "code", "expected"), NATIVE, ids=[name for name, _, _ in NATIVE])
def test_the_kernel_layers_hold_without_the_static_check(name: str, code: str, expected: str):
    if self_test_level() != "strong":
        pytest.skip("the kernel layers are not all available here")
    Path("/tmp/bkrl-leak").unlink(missing_ok=True)
    got, error = outcome(body(f"{code}\nreturn actions[:, 0]"), static_check=False)
    assert got in expected, str(error)
    assert not Path("/tmp/bkrl-leak").exists()


FORGED = [
    (0, '{"components": 5}'),
    (0, '{"components": [5]}'),
    (0, '{"components": ["\\u001b[2J"]}'),
    (0, "[" * 8000),
    (1, '{"problems": 3}'),
    (1, '{"problems": [["x", 1]]}'),
    (2, '{"line": "x"}'),
    (2, '{"reason": null}'),
]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        pytest.param(*one, marks=pytest.mark.slow) if number in (1, 2, 4, 6) else one
        for number, one in enumerate(FORGED)
    ],
    ids=range(len(FORGED)),
)
def test_a_forged_reply_with_the_right_nonce_is_no_reply(status: int, text: str):
    """Native code can find the nonce in its own process: what it says then is still looked at as an enemy's."""
    source = body(
        f"""
        frame = __import__('sys')._getframe()
        while 'nonce' not in frame.f_locals:
            frame = frame.f_back
        head = __import__('_struct').pack('<QII', frame.f_locals['nonce'], {status}, {len(text)})
        __import__('posix').write(frame.f_locals['self'].reply_fd, head + {text.encode()!r})
        return actions[:, 0]
        """
    )
    got, error = outcome(source, static_check=False)
    assert got == "K"
    assert "damaged reply" in str(error)


def test_native_code_cannot_change_the_observations():
    if self_test_level() != "strong":
        pytest.skip("the kernel layers are not all available here")
    given = windows()
    source = body("observations.flags.writeable = True\nobservations[:] = 0\nreturn actions[:, 0]")
    before = given.observations.copy()
    with Sandbox(source, (4,), 2, limits=LIMITS, static_check=False) as program:
        program(given)  # it can spoil its own copy, and nothing else
    np.testing.assert_array_equal(given.observations, before)


_level: list[str] = []


def self_test_level() -> str:
    if not _level:
        _level.append(self_test().level)
    return _level[0]


def test_a_worker_dies_with_its_parent():
    code = (
        "import sys, time\nfrom bkrl.sandbox.pool import Sandbox\nfrom tests.potentials.corpus import FINE\n"
        "with Sandbox(FINE, (4,), 2) as program:\n    print(program._worker._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and runs(worker):
        time.sleep(0.02)
    assert not runs(worker)


@pytest.mark.parametrize("layer", ["namespaces", "landlock", "limits", "seccomp"])
def test_a_layer_taken_away_lowers_the_level_or_is_seen(layer: str):
    if self_test_level() != "strong":
        pytest.skip("the kernel layers are not all available here")
    tested = self_test(skip=frozenset({layer}))
    assert tested.layers[layer] == "switched off"
    assert tested.level != "strong"
