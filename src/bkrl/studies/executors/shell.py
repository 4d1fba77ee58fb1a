"""Cells as shell commands, for any other scheduler or for reading."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bkrl.core.flags import LENIENT, flags_of, option_name, without_effect
from bkrl.studies.section import Cell


def script(cells: Sequence[Cell], needs: Mapping[Path, Sequence[Path]]) -> str:
    """A script for bash: one command a line; those under one heading may run side by side.

    Args:
        cells: what is left to do, each after what it needs.
        needs: run directory → run directories of what has to be there before.
    """
    levels: dict[Path, int] = {}
    for cell in cells:
        levels[cell.run_dir] = 1 + max((levels.get(folder, 0) for folder in needs[cell.run_dir]), default=0)
    lines = ["set -e"]
    for level in sorted(set(levels.values())):
        lines.append(f"# step {level} of {max(levels.values())}: these do not need each other")
        lines += [command(cell) for cell in cells if levels[cell.run_dir] == level]
    return "\n".join(lines) + "\n"


def command(cell: Cell) -> str:
    """The command line that does a cell; settings with their default are left out."""
    verb = ["lm", "make"] if cell.stage == "lm_make" else [cell.stage.replace("_", "-")]
    words, positional, given = ["bkrl", *verb], [], []
    for one in flags_of(type(cell.config)):
        value = one.of(cell.config)
        if one.flag.positional:
            positional += [str(item) for item in (value if isinstance(value, tuple) else (value,))]
        elif value != one.default:
            words += _option(option_name(one.path), value)
            given.append(one.name)
    if without_effect(cell.config, given, sure=False):  # a study shares settings between methods
        words.append(LENIENT)
    return shlex.join([*words[: 1 + len(verb)], *positional, *words[1 + len(verb) :]])


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [name if value else f"--no-{name[2:]}"]
    return [word for one in (value if isinstance(value, tuple) else (value,)) for word in (name, str(one))]
