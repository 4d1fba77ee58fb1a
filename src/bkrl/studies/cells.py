"""The cells of a study: which of them a command means, what each needs, and how it stands."""

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import flags_of
from bkrl.runs.identity import changed
from bkrl.runs.inputs import check_inputs, read_by
from bkrl.runs.record import Run
from bkrl.studies.section import Cell
from bkrl.studies.study import Study


def name_of(cell: Cell, out: Path) -> str:
    """A cell's name: its run directory below the study's folder, as in "babyai/ppo-s1"."""
    return cell.run_dir.relative_to(out).as_posix()


def needs(cells: Iterable[Cell]) -> dict[Path, list[Path]]:
    """Run directory → the run directories of other cells that its settings name: what has to be there before."""
    folders = {cell.run_dir: cell for cell in cells}
    return {folder: [path for path in _paths(cell.config) if path in folders and path != folder]
            for folder, cell in folders.items()}  # fmt: skip


def chosen(study: Study, out: Path, only: str) -> list[Cell]:
    """The cells whose name fits one of the patterns in `only` (all when it is empty), and all that those need.

    Raises:
        UsageError: no cell's name fits.
    """
    if not only:
        return list(study.cells)
    patterns = [pattern.strip() for pattern in only.split(",") if pattern.strip()]
    wanted = {
        cell.run_dir for cell in study.cells if any(fnmatchcase(name_of(cell, out), pattern) for pattern in patterns)
    }
    if not wanted:
        some = ", ".join(name_of(cell, out) for cell in study.cells[-3:])
        raise UsageError(f"No cell is called '{only}'; names look like {some} (see --dry-run), and * stands for any.")
    needed = needs(study.cells)
    for cell in reversed(study.cells):
        if cell.run_dir in wanted:
            wanted.update(needed[cell.run_dir])
    return [cell for cell in study.cells if cell.run_dir in wanted]


def report_on(cells: Iterable[Cell], study: Study) -> Cell:
    """The study's report on those of its runs that are among these cells, or done already."""
    asked, here = study.report.config, {cell.run_dir for cell in cells}
    done = {cell.run_dir for cell in study.cells if cell.run_dir in here or state_of(cell) == "done"}
    return study.report._replace(config=replace(asked, runs=tuple(run for run in asked.runs if run in done)))


def state_of(cell: Cell) -> str:
    """ "done" for a finished cell, "" for one that is not, and else why what is there is not what is wanted."""
    complete = (cell.run_dir / "manifest.json").exists()
    if not complete and not (cell.run_dir / "config.json").exists():
        return ""
    try:
        different = changed(cell.run_dir, *cell.made)
        stale = check_inputs(Run.open(cell.run_dir, verify=False), read_by(cell.config)) if complete else []
    except InputError as problem:
        return str(problem)
    if different:
        return f"{cell.run_dir} holds a run that differs in {', '.join(different)}; remove it, or choose another --out."
    if stale:
        return f"{stale[0]} Remove {cell.run_dir} to make it again."
    return "done" if complete else ""


def _paths(config: Any) -> list[Path]:
    """Paths among its settings. Some name a run or something else, as `lm` does: these count as paths, too."""
    values = [one.of(config) for one in flags_of(type(config))]
    listed = [each for value in values for each in (value if isinstance(value, tuple) else (value,))]
    return [Path(each) for each in listed if isinstance(each, (Path, str))]
