"""How results are printed, shared by all commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bkrl import console

LOOK = "Looking at things"

Json = Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")]


def show_run(run: Any, as_json: bool) -> None:
    if as_json:
        console.print_json({"path": run.path.as_posix(), **run.manifest})
        return
    facts = {"stage": run.stage, **run.facts}
    table = facts.pop("table", None)
    if table is not None:
        facts.pop("quality", None)  # the table says it better
    print_facts(run.path.as_posix(), facts, False)
    if isinstance(table, dict):
        console.print_table("", table["header"], table["rows"])


def print_facts(title: str, facts: dict[str, Any], as_json: bool) -> None:
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
        elif isinstance(value, list):
            if len(value) <= 8 and not any(isinstance(item, (dict, list)) for item in value):
                rows.append((name, ", ".join(map(str, value))))
        elif value is not None:
            rows.append((name, value))
    return rows
