"""What the scripts here share: `--json`, `--quick`, and how figures are printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the two flags, whose help is the script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="show that it runs; such figures mean nothing")
    return parser


def show(figures: Mapping[str, float], as_json: bool) -> None:
    """Print figures, rounded to three digits, as JSON or line by line."""
    if as_json:
        print(json.dumps({key: round(value, 3) for key, value in figures.items()}))
        return
    for key, value in figures.items():
        print(f"{key:36} {value:14,.3f}")
