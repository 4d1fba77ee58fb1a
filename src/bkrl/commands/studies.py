"""Commands about many runs: sweep, watch, compare, trace, export curves."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
