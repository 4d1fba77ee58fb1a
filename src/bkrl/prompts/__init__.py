"""Prompts: Markdown templates that anyone can read and edit, and the one function that fills them in.

A template is split into turns at its `<<<role>>>` lines *before* anything is filled in, and text from a world
(captions, programs' errors) enters only through the `quote` filter, as one JSON string without brackets of the kinds
that mark up prompts, or backticks. So no text from a world can open a turn, close a block or end its own quotation, in
our templates or in a model's chat template. Names of actions, which stand unquoted, go through `name`.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from bkrl.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

LONGEST_QUOTE = 4000
_TURN = re.compile(r"^<<<(system|user|assistant)>>>\n", re.MULTILINE)
_LONGEST_NAME = 40
_ESCAPED = {mark: f"\\u{ord(mark):04x}" for mark in "<>&`[]|"}


def render(name: str, **values: Any) -> list[tuple[str, str]]:
    """The turns of template `name` as (role, text), filled in with `values`; a value that is missing is an error."""
    return [(role, template.render(**values).strip()) for role, template in _turns(name)]


def fingerprint(names: Iterable[str]) -> dict[str, str]:
    """sha256 of each named template file, for the manifest."""
    return {name: hashlib.sha256(_source(f"{name}.md").encode()).hexdigest() for name in sorted(set(names))}


def piece(name: str, **values: Any) -> str:
    """A piece of prompt without turns, filled in with `values`."""
    return _environment().from_string(_source(f"{name}.md")).render(**values).strip()


def names() -> list[str]:
    """All templates of the package."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".md") for file in files if file.name.endswith(".md"))


@lru_cache(maxsize=1 << 14)  # captions come again and again
def quote(text: str) -> str:
    """`text` as one JSON string on one line: control, direction and zero-width characters gone, length bounded."""
    kept = "".join(_plain(character) for character in text)
    if len(kept) > LONGEST_QUOTE:
        kept = kept[:LONGEST_QUOTE] + "…"
    quoted = json.dumps(kept, ensure_ascii=False)
    return re.sub(r"[<>&`|\[\]]", lambda found: _ESCAPED[found[0]], quoted)


def name(text: str) -> str:
    """`text` as a name that may stand unquoted: letters, digits, spaces, hyphens and underscores, at most 40."""
    return re.sub(r"[^\w -]+|\s+", " ", text).strip()[:_LONGEST_NAME] or "unnamed"


def _plain(character: str) -> str:
    if character in "\n\r\t":
        return " "
    kind = unicodedata.category(character)[0]
    return " " if kind == "Z" else "" if kind == "C" else character


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_source),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters["quote"] = quote
    return environment


@cache
def _turns(name: str) -> tuple[tuple[str, Template], ...]:
    pieces = _TURN.split(_source(f"{name}.md"))[1:]
    return tuple((role, _environment().from_string(text)) for role, text in zip(pieces[::2], pieces[1::2]))


def _source(file: str) -> str:
    try:
        return (resources.files(__name__) / file).read_text("utf-8")
    except (FileNotFoundError, OSError):
        raise UsageError(f"There is no prompt '{file}'; the package has {', '.join(names())}.") from None
