"""How results are printed, shared by all commands."""

import shlex
from typing import Annotated, Any

import typer

from bkrl.cli import console

MOST_LISTED = 8

Json = Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")]


def show_result(result: Any, as_json: bool) -> None:
    """What a verb gives back: a run; where it made none, something with `text()` and `values()`; or nothing."""
    from bkrl.runs.record import Run

    if result is None:
        return
    if isinstance(result, Run):
        show_run(result, as_json)
    elif as_json:
        console.print_json(result.values())
    else:
        console.print_text(result.text())


def show_run(run: Any, as_json: bool, origin: bool = False) -> None:
    """What a run found, as JSON or as tables; with `origin` also its command, its seed and what it was made from."""
    if as_json:
        console.print_json({"path": run.path.as_posix(), **run.manifest})
        return
    facts = {"stage": run.stage, **(_origin(run) if origin else {}), **run.facts}
    table = facts.pop("table", None)
    if table is not None:
        for name in ("quality", "modes"):  # the table says it better
            facts.pop(name, None)
    print_facts(run.path.as_posix(), facts, False)
    if isinstance(table, dict):
        console.print_table("", table["header"], table["rows"])


def _origin(run: Any) -> dict[str, Any]:
    seed = run.config["config"].get("seed")
    inputs = {name: one["path"] for name, one in run.config["inputs"].items()}
    made_from: Any = inputs
    if all(name == path for name, path in inputs.items()):  # a report's: many, and without names
        made_from = list(inputs) if len(inputs) <= MOST_LISTED else f"{len(inputs)} runs"
    return {
        "command": shlex.join(map(str, run.config["argv"])),
        "seed": None if seed is None else str(seed),
        "made from": made_from or None,
    }


def print_facts(title: str, facts: dict[str, Any], as_json: bool) -> None:
    """Facts, nested ones with their path as name, as a table of two columns, or as JSON."""
    if as_json:
        console.print_json(facts)
        return
    console.print_table(title, ("", ""), _flat(facts))


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested facts as rows; hashes of prompts and long lists are for the manifest, not for the eye."""
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += _flat(value, f"{name}: ") if key != "prompts" else []
        elif key == "warnings":
            rows += [("warning", sentence) for sentence in value]
        elif isinstance(value, list):
            if len(value) <= MOST_LISTED and not any(isinstance(item, (dict, list)) for item in value):
                rows.append((name, ", ".join(map(console.cell, value))))
        elif value is not None:
            rows.append((name, value))
    return rows
