"""Scripts beside the package run for whoever starts them, from wherever."""

import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["benchmarks", "tests", "docs"])
def test_no_script_hides_a_package(folder):
    """Python looks for modules in a script's own folder first: there, `coverage.py` would be what numba imports.

    What an installed package may require counts too: numba asks for `coverage` though it is seldom installed.
    """
    names = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    required = {
        re.split(r"[^\w.-]", each)[0].lower().replace("-", "_")
        for one in distributions()
        for each in one.requires or ()
    }
    elsewhere = [entry for entry in sys.path if entry and Path(entry).resolve() not in {ROOT, ROOT / folder}]
    taken = {name for name in names if name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere)}
    assert taken | names & required == set()
