"""Names and random streams."""

import subprocess
import sys

import pytest

from bkrl.core.errors import UsageError
from bkrl.core.registry import Registry, did_you_mean
from bkrl.core.seeds import derive_seed, generator


def test_a_name_nearly_right_gets_a_suggestion():
    registry: Registry[object] = Registry("thing")
    registry.add("alpha", "math:pi", "a number")
    registry.add("beta", 2)
    assert registry.get("alpha") == pytest.approx(3.14159, abs=1e-5)
    with pytest.raises(UsageError, match=r"no thing 'alfa'\. Did you mean 'alpha'\? Known: alpha, beta\."):
        registry.get("alfa")
    with pytest.raises(ValueError, match="twice"):
        registry.add("beta", 3)
    assert did_you_mean("zzz", ["alpha"]) == ""


def test_streams_are_named_and_the_same_in_every_process():
    code = "from bkrl.core.seeds import *; print(derive_seed(3, 'a', 1), generator(3, 'a').integers(10**9))"
    outs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": h}).stdout
        for h in ("0", "1")
    }
    assert outs == {f"{derive_seed(3, 'a', 1)} {generator(3, 'a').integers(10**9)}\n"}
    names = [("a",), ("b",), ("a", 1), ("a", "1"), ("a1",), ()]
    assert len({derive_seed(s, *n) for s in range(3) for n in names}) == 18
