"""Asking language models: one protocol, one ask loop, one store; who answers is a name like `openai:MODEL`."""

from __future__ import annotations

from collections.abc import Callable

from bkrl.errors import UsageError
from bkrl.llm.protocol import Backend, Connection
from bkrl.registry import Registry

__all__ = ["BACKENDS", "open_backend"]

BACKENDS: Registry[Callable[[str, Connection], Backend]] = Registry("llm")
BACKENDS.add("rules", "bkrl.llm.rules:RulesBackend", "embedded hand-written heuristics; not a language model, free")
BACKENDS.add(
    "openai", "bkrl.llm.openai:OpenAIBackend", "openai:MODEL, any OpenAI-compatible endpoint (OPENAI_BASE_URL)"
)
BACKENDS.add("hf", "bkrl.llm.local:LocalBackend", "hf:NAME_OR_PATH, a local transformers model")
BACKENDS.add("replay", "bkrl.llm.replay:ReplayBackend", "replay:RUN_OR_FILE, the answers of an earlier label run")


def open_backend(spec: str, connection: Connection = Connection()) -> Backend:  # noqa: B008 - frozen
    """The backend that a name like `rules`, `openai:MODEL`, `hf:PATH` or `replay:RUN` stands for.

    Raises UsageError for an unknown name or a missing model, InputError when what it needs (a key, a file) is not
    there.
    """
    kind, colon, name = spec.partition(":")
    make = BACKENDS.get(kind)
    if kind == "rules" and colon:
        raise UsageError("--llm rules takes no model name.")
    if kind != "rules" and not name:
        raise UsageError(f"--llm {kind} needs a name after a colon: {BACKENDS.help(kind)}.")
    return make(name, connection)
