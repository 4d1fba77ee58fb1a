"""The static check itself: what it lets through, what it drops, and that nothing makes it crash."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

from bkrl.sandbox import check as sandbox_check
from bkrl.sandbox.check import Rejected, check_program
from tests.potentials.corpus import CORPUS, FINE, body

_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)


def problems(source: str) -> list[str]:
    with pytest.raises(Rejected) as caught:
        check_program(source)
    return [str(problem) for problem in caught.value.problems]


def test_imports_and_annotations_are_dropped_before_anything_runs():
    source = (
        "import numpy as np\nimport math\nSIZE: int = 7\n\n"
        "def potential(observations: np.ndarray, actions, valid) -> np.ndarray:\n"
        "    total: float = 0.0\n    later: int\n    if SIZE > 3:\n        total: float = 1.0\n"
        "    return actions[:, 0] + total\n"
    )
    tree = check_program(source)
    kinds = {type(node) for node in ast.walk(tree)}
    assert not kinds & {ast.Import, ast.ImportFrom, ast.AnnAssign}
    assert all(argument.annotation is None for argument in ast.walk(tree) if isinstance(argument, ast.arg))


def test_lines_are_those_of_the_text():
    assert problems("X = 1\n" + body("a = 1\n\nreturn open('x')"))[0].startswith("line 5: ")


def test_helpers_constants_and_ordinary_syntax_are_fine():
    check_program(
        'BALL, KEY = 6, 5\nWEIGHTS = {"near": 0.5, "far": -0.25 * 2}\nPLACES = [(0, 1), (2, 3)]\nBIG = -math.inf\n\n'
        "def near(view, far=9.0):\n    return np.where(view[..., 0] == BALL, 1.0, far).min(axis=(1, 2))\n\n"
        + body(
            """
            total = np.zeros(len(actions))
            for index, place in enumerate(PLACES):
                total += WEIGHTS["near"] * near(observations[:, -1]) if index else 0.0
            while total.max() > 100:
                total = total / 2
            parts = {name: total * weight for name, weight in WEIGHTS.items()}
            assert total.shape == (len(actions),)
            return np.linalg.norm(actions, axis=1) + sum(parts.values()), parts
            """
        )
    )


def test_places_that_where_leaves_out_are_not_read_from_memory():
    """np.divide(a, b, where=b > 0) gave a window a value that depended on those beside it."""
    (said,) = problems(body("return np.divide(actions[:, 0], 2, where=actions[:, 0] > 0)"))
    assert said.startswith("line 2: where= without out= leaves other places uninitialised")
    assert "use np.where, or add out=np.zeros(...)" in said
    for other in (
        "np.divide(actions[:, 0], 2, out=(None,), where=actions[:, 0] > 0)",
        'np.pad(actions, 1, mode="empty")[0]',
        'np.pad(actions, 1, "empty")[0]',
    ):
        assert problems(body(f"return {other}")) == [said]
    check_program(body('return np.pad(actions[:, 0] * 1.0, 1, mode="edge")[1:-1]'))


def test_every_listed_name_exists():
    import math

    assert all(hasattr(np, name) for name in sandbox_check.NUMPY)
    assert all(hasattr(math, name) for name in sandbox_check.MATH)
    assert all(hasattr(np.linalg, name) for name in sandbox_check.NUMPY_LINALG)


def test_nothing_dangerous_is_listed():
    forbidden = "load save fromfile tofile memmap frombuffer vectorize frompyfunc errstate seterr empty random lib show"
    assert not set(forbidden.split()) & (sandbox_check.NUMPY | sandbox_check.METHODS)
    assert not any(
        name.startswith("_") for name in sandbox_check.NUMPY | sandbox_check.METHODS | sandbox_check.BUILTINS
    )


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_mutants_of_the_corpus_are_refused_or_accepted_and_never_crash_the_check():
    rng = np.random.Generator(np.random.PCG64(0))
    sources = [program.source for program in CORPUS if len(program.source) < 2000] + [FINE]
    pieces = [token for source in sources for token in _TOKEN.findall(source)]
    accepted = 0
    for _ in range(4000):
        tokens = _TOKEN.findall(sources[rng.integers(len(sources))])
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(len(tokens) + 1))
            kind = rng.integers(3)
            if kind == 0:
                tokens.insert(place, pieces[rng.integers(len(pieces))])
            elif tokens:
                place = min(place, len(tokens) - 1)
                tokens[place : place + 1] = [] if kind == 1 else [pieces[rng.integers(len(pieces))]]
        try:
            tree = check_program("".join(tokens))
        except Rejected:
            continue
        accepted += 1
        for node in ast.walk(tree):
            assert not isinstance(node, (ast.Import, ast.ClassDef, ast.Lambda, ast.Try, ast.With, ast.Global))
            if isinstance(node, ast.Attribute):
                assert not node.attr.startswith("_")
            if isinstance(node, ast.Name):
                assert "__" not in node.id
                assert node.id not in {"eval", "exec", "open", "getattr", "globals", "compile", "print"}
    assert accepted > 50
