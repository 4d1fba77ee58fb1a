"""What an endpoint accepts, learnt from its own answers once and remembered for the next process.

One small JSON file, `endpoints.json` in the cache folder, with an entry for each address, model and reasoning effort.
Nothing in it is secret; delete it to have everything found out again.
"""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bkrl.core.documents import Mismatch, typed
from bkrl.core.errors import BkrlError
from bkrl.core.files import atomic_write, read_json, to_json
from bkrl.llm.protocol import ReplyFormat

FILE = "endpoints.json"
OPTIONAL = ("temperature", "reasoning_effort", "seed", "logprobs")
"""Parameters that can be left out when an endpoint refuses them."""
_FORMS: tuple[ReplyFormat, ...] = ("json_schema", "json_object", "text")

LimitField = Literal["max_tokens", "max_completion_tokens"]


@dataclass
class Capabilities:
    """None means: not tried yet.

    accepted: whether a request was ever answered; form: the strictest form of answer that is accepted; schema_followed:
    whether every answer given under a schema kept to it (False: the endpoint accepts schemas and ignores them);
    limit_field: its name for the reply's length.
    """

    accepted: bool = False
    form: ReplyFormat = "json_schema"
    schema_followed: bool | None = None
    limit_field: LimitField = "max_tokens"
    temperature: bool | None = None
    reasoning_effort: bool | None = None
    seed: bool | None = None
    logprobs: bool | None = None
    batch: bool | None = None

    def weaken_form(self, refused: str) -> bool:
        """Take the next weaker form after `refused`; False when there is none."""
        place = _FORMS.index(refused) if refused in _FORMS else 0  # type: ignore[arg-type]
        if place + 1 == len(_FORMS):
            return False
        if _FORMS.index(self.form) <= place:
            self.form = _FORMS[place + 1]
        return True


class Memory:
    """Capabilities of endpoints in a folder, or nowhere (None)."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE

    def recall(self, name: str, default: Capabilities) -> Capabilities:
        """What is known of the endpoint `name`; `default` when nothing is, or the file cannot be read."""
        entry = self._entries().get(name)
        try:
            known: Capabilities = typed(Capabilities, {**dataclasses.asdict(default), **(entry or {})})
        except (Mismatch, TypeError):
            return default
        return known

    def keep(self, name: str, capabilities: Capabilities) -> None:
        """Remember, if the folder lets us: the reply that taught it is not in the store yet and must not be lost. Two
        processes that do so at once lose nothing that would not be learnt again.
        """
        if self._file is None:
            return
        entries = {**self._entries(), name: dataclasses.asdict(capabilities)}
        with suppress(OSError, BkrlError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self._file, to_json({"version": 1, "endpoints": dict(sorted(entries.items()))}))

    def _entries(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            entries = read_json(self._file).get("endpoints")
        except BkrlError:
            return {}
        return entries if isinstance(entries, dict) else {}


def follows(text: str, schema: Mapping[str, Any]) -> bool:
    """Whether `text` is JSON of the form of `schema` (the part of JSON Schema that bkrl uses)."""
    try:
        return _valid(json.loads(text), schema)
    except (ValueError, RecursionError):
        return False


def _valid(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds = {"object": dict, "array": list, "string": str}
    if "enum" in schema and value not in schema["enum"]:
        return False
    kind = schema.get("type")
    if kind in kinds and not isinstance(value, kinds[kind]):
        return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if any(name not in value for name in schema.get("required", ())):
            return False
        if schema.get("additionalProperties") is False and any(name not in properties for name in value):
            return False
        return all(_valid(value[name], inner) for name, inner in properties.items() if name in value)
    if isinstance(value, list) and "items" in schema:
        return all(_valid(item, schema["items"]) for item in value)
    return True
