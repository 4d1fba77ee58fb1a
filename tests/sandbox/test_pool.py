"""The sandbox against a corpus of hostile and broken programs, and its own layers one by one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import BkrlError, RunFailed
from bkrl.data.windows import Windows
from bkrl.sandbox.pool import Sandbox, probation
from bkrl.sandbox.process import CHUNK, Limits, ProgramFailed, ProgramRejected, Worker
from tests.potentials.corpus import CORPUS, FINE, Program, body

LIMITS = Limits(call=0.25, load=0.5, memory_mb=256)
UNHURRIED = replace(LIMITS, call=120.0, load=120.0)  # for programs that end by themselves, however busy the machine is
STATIC = [program for program in CORPUS if program.outcome == "S"]
DYNAMIC = [program for program in CORPUS if program.outcome != "S"]
KINDS = {"raised": "E", "timeout": "T", "killed": "K", "returned": "R", "probation": "P"}


def windows(count: int = 40, seed: int = 0) -> Windows:
    rng = np.random.default_rng(seed)
    return Windows.of(
        rng.integers(0, 11, (count, 3, 4)).astype(np.uint8), rng.integers(0, 7, (count, 2)), np.ones((count, 3), bool)
    )


def outcome(source: str, limits: Limits = LIMITS, **options: bool) -> tuple[str, BkrlError | None]:
    try:
        with Sandbox(source, (4,), 2, limits=limits, **options) as program:  # type: ignore[arg-type]
            program(windows())
            probation(program, windows(300))
    except ProgramRejected as error:
        return "S", error
    except ProgramFailed as error:
        return KINDS[error.kind], error
    return "OK", None


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A locked process that outlives the programs it refuses."""
    kept = Worker((4,), 2, LIMITS, static_check=True, skip=frozenset(), probe=False)
    yield kept
    kept.close()


def problems(worker: Worker, source: str) -> list[tuple[int, str]]:
    with pytest.raises(ProgramRejected) as caught:
        worker.load(source, LIMITS.load)
    return caught.value.problems


def test_windows_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RunFailed, match="needs Linux or macOS: use WSL on Windows"):
        Worker((4,), 2, LIMITS, static_check=True, skip=frozenset(), probe=False)


def test_the_corpus_is_large_and_its_names_are_distinct():
    assert len(CORPUS) >= 170
    assert len({program.name for program in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("program", STATIC, ids=lambda program: program.name)
def test_rejected_with_reasons_before_anything_runs(worker: Worker, program: Program):
    found = problems(worker, program.source)
    assert found
    for line, reason in found:
        assert line >= 0
        assert reason == reason.strip()
        assert len(reason) < 220


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("    {name}[0] = 1", "is a module constant and cannot be changed: potentials keep no state"),
        ("    {name}_()", "is not allowed: it is neither defined here nor an allowed builtin"),
        ("    observations.{name}()", "is not allowed"),
        ("    np.{name}()", "is not allowed: it is not on the list of allowed functions"),
        ("    {name}__ = 1", "is not allowed"),
        ("def {name}(): pass", "is defined twice"),
    ],
)
@pytest.mark.parametrize("letter", ["\u4e00", "\U00020000", "\xe9", "a"])
def test_the_reasons_fit_into_the_reply_however_long_the_names(worker: Worker, letter: str, line: str, reason: str):
    """A reply that is cut would count as that of a killed worker."""
    name = letter * (600 // len(letter.encode()))
    lines = "".join(f"{line.format(name=name)}\n" for _ in range(24))
    found = problems(worker, f"{name} = [0]\ndef potential(observations, actions, valid):\n    return 0\n{lines}")
    assert all(len(text) < 200 for _, text in found)
    assert any(text.endswith(reason) for _, text in found)


@pytest.mark.parametrize("program", DYNAMIC, ids=lambda program: program.name)
def test_killed_reported_or_accepted_as_specified(program: Program):
    endless = program.outcome != "OK" and {*"TK"} & {*program.outcome}
    got, error = outcome(program.source, LIMITS if endless else UNHURRIED)
    assert got in ([program.outcome] if program.outcome == "OK" else list(program.outcome)), str(error)
    if isinstance(error, ProgramFailed):
        assert str(error).endswith(".")
        if got == "E":
            assert error.line > 1, "an exception is reported with the program's line"


def test_all_problems_are_reported_at_once_with_their_lines(worker: Worker):
    found = problems(worker, "import os\n\n\n" + body("x = open('f')\nreturn x.data"))
    assert [line for line, _ in found] == [1, 5, 6]


def test_a_problem_says_why(worker: Worker):
    ((line, reason),) = problems(worker, body("return np.random.rand(len(actions))"))
    assert line == 2
    assert "deterministic" in reason


def test_a_hang_is_killed_at_its_limit_and_the_sandbox_goes_on():
    source = body("while observations[0, -1, 0] == 200:\n    pass\nreturn actions[:, 0]")
    hang = windows()
    hang.symbols[:] = 200
    with Sandbox(source, (4,), 2, limits=replace(LIMITS, call=3.0)) as program:
        first = program(windows())
        with pytest.raises(ProgramFailed, match="longer than 3 s"):
            program(hang)
        np.testing.assert_array_equal(program(windows()), first)


def test_a_programs_time_is_that_of_a_call_however_many_windows_come_at_once(monkeypatch):
    """32 calls had the time of one: what passed on the few windows of a label run failed on those of a training."""
    given: list[tuple[int, float]] = []
    evaluate = Worker.evaluate

    def noted(self, some, seconds):
        given.append((len(some), seconds))
        return evaluate(self, some, 120.0)

    monkeypatch.setattr(Worker, "evaluate", noted)
    with Sandbox(FINE, (4,), 2, limits=replace(LIMITS, call=3.0)) as program:
        program.evaluate_numbered(windows(7))
        program.evaluate_numbered(windows(33 * CHUNK + 1))
    assert given == [(7, 3.0), (32 * CHUNK, 96.0), (CHUNK + 1, 6.0)]


def test_values_are_the_same_for_any_batch_bit_for_bit():
    source = body(
        "x = np.sqrt(observations.astype(float) + 0.1)\n"
        "return np.exp(-x.mean(axis=(1, 2))) + np.einsum('bij,bij->b', x, x) / np.linalg.norm(x[:, -1], axis=1)"
    )
    many = windows(3 * CHUNK + 11)
    with Sandbox(source, (4,), 2) as program:
        whole = program(many)
        singles = np.concatenate([program(many[i : i + 1]) for i in range(0, len(many), 37)])
        np.testing.assert_array_equal(singles, whole[::37])
        order = np.random.default_rng(1).permutation(len(many))
        np.testing.assert_array_equal(program(many[order]), whole[order])
        assert program(many[:0]).shape == (0,)


@pytest.mark.parametrize(
    "said", ["np.arange(9.0).reshape(3, 3)[C].sum()", "[0, 2] == C", "len(C + [1])", "isinstance(C, list)"]
)
def test_a_list_above_the_functions_is_what_it_is_inside_one(said: str):
    lines = "C = [0, 2]\n", body(f"return np.zeros(len(actions)) + ({said})")
    inside = body(f"C = [0, 2]\nreturn np.zeros(len(actions)) + ({said})")
    with Sandbox("".join(lines), (4,), 2) as above, Sandbox(inside, (4,), 2) as below:
        np.testing.assert_array_equal(above(windows()), below(windows()))


def test_repeated_windows_are_evaluated_once():
    few = windows(5)
    many = few[np.tile(np.arange(5), 200)]
    with Sandbox(FINE, (4,), 2) as program:
        sent: list[int] = []
        evaluate = program._evaluate_part
        program._evaluate_part = lambda some: sent.append(len(some)) or evaluate(some)  # type: ignore[method-assign]
        assert program(many).shape == (1000,)
        assert sent == [len(few)]


def test_components_come_back_by_name():
    source = body("a = actions[:, 0] * 1.0\nb = valid.sum(axis=1)\nreturn a + b, {'first': a, 'second': b}")
    with Sandbox(source, (4,), 2) as program:
        values, components = program.evaluate(windows())
    assert list(components) == ["first", "second"]
    np.testing.assert_array_equal(components["first"] + components["second"], values)


def test_components_that_some_windows_lack_or_that_change_places_keep_their_names():
    source = body(
        "a = actions[:, 0] * 1.0\nif observations[0, -1, 0] == 1:\n    return a, {'first': a, 'second': a + 1}\n"
        "if observations[0, -1, 0] == 2:\n    return a, {'third': a, 'second': a + 1, 'first': a}\n"
        "return a, {'second': a + 1}"
    )
    batch = windows(3 * CHUNK)
    shown = batch.observations.copy()
    shown[:, -1, 0] = 1 + np.arange(3 * CHUNK) // CHUNK
    batch = batch.showing(shown)
    with Sandbox(source, (4,), 2) as program:
        for _ in range(2):
            values, components = program.evaluate_numbered(batch)
            assert list(components) == ["first", "second"]
            np.testing.assert_array_equal(components["second"], values + 1)
            np.testing.assert_array_equal(components["first"][: 2 * CHUNK], values[: 2 * CHUNK])
            assert np.isnan(components["first"][2 * CHUNK :]).all()


def test_a_program_sees_raw_integers_and_their_types():
    source = body(
        "assert observations.dtype == np.int64\nassert actions.dtype == np.int64\nassert valid.dtype == bool\n"
        "assert observations.shape[1:] == (3, 4)\nreturn observations[:, -1, 0] - 300"
    )
    with Sandbox(source, (4,), 2) as program:
        np.testing.assert_array_equal(program(windows()), windows().observations[:, -1, 0].astype(int) - 300)


UNARY = (
    "abs", "all", "any", "argmax", "argmin", "argsort", "around", "average", "ceil", "cos", "count_nonzero",
    "cumsum", "diff", "exp", "exp2", "flatnonzero", "floor", "gradient", "isfinite", "log1p", "max", "mean",
    "median", "min", "nan_to_num", "nanmax", "nanmean", "nanmedian", "nanstd", "nonzero", "prod", "ptp",
    "ravel", "rint", "sign", "sort", "sqrt", "square", "std", "sum", "tanh", "transpose", "trunc", "unique",
    "var", "zeros_like",
)  # fmt: skip


def test_every_allowed_function_exists_and_runs_after_the_lock():
    calls = "\n".join(f"x = np.{name}(small)" for name in UNARY)
    source = body(
        "small = actions.astype('float64')\n" + calls + "\nx = np.percentile(small, 30)\nx = np.histogram(small, 5)\n"
        "x = np.interp(small[:, 0], [0, 1], [0, 1])\nx = np.einsum('ij,ij->i', small, small)\n"
        "x = np.isin(actions, [1, 2])\nx = np.linalg.norm(small)\nx = np.linalg.norm(small, axis=1)\n"
        "x = np.select([small > 1], [small])\nx = np.pad(small, 1)\nx = math.comb(5, 2)\n"
        "x = np.where(small > 1, 1, 0).sum(axis=1)\nreturn x"
    )
    with Sandbox(source, (4,), 2) as program:
        program(windows())


def test_the_worker_has_no_secrets_of_ours(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary-0123456789")
    with Sandbox(FINE, (4,), 2) as program:
        assert program._worker is not None
        folder = Path(f"/proc/{program._worker._process.pid}")
        if not folder.exists():
            pytest.skip("no /proc here")
        try:
            environment = (folder / "environ").read_bytes()
        except PermissionError:
            return
        assert b"canary" not in environment


def test_workers_and_descriptors_do_not_pile_up():
    with Sandbox(FINE, (4,), 2) as program:
        program(windows())
    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc here")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Sandbox(FINE, (4,), 2) as program:
            program(windows())
            process = program._worker._process  # type: ignore[union-attr]
        assert process.returncode is not None
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_worker_killed_from_outside_is_replaced_once():
    with Sandbox(FINE, (4,), 2) as program:
        first = program(windows())
        program._worker._process.kill()  # type: ignore[union-attr]
        program._worker._process.wait()  # type: ignore[union-attr]
        np.testing.assert_array_equal(program(windows()), first)


def test_windows_of_another_shape_are_refused():
    with Sandbox(FINE, (5,), 2) as program, pytest.raises(BkrlError, match="made for windows"):
        program(windows())


def test_actions_beyond_a_byte_are_told_apart():
    seen = np.zeros((3, 2, 4), np.uint8)
    given = Windows.of(seen, np.array([[1], [257], [1]]), np.ones((3, 2), bool))
    with Sandbox("def potential(observations, actions, valid):\n    return actions[:, -1] * 1.0\n", (4,), 1) as program:
        assert program(given).tolist() == [1, 257, 1]
