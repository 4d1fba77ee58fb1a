"""What asking a language model means here: a request, a reply, a fault, a backend.

A new backend is one class with the four members of `Backend`, made from a name and a `Connection`. Nothing in this
file knows HTTP, prompts or labels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol

MAX_REPLY_CHARS = 1_000_000
"""Longer replies are refused before anything parses them."""
LOCAL = ("hf", "gguf")
"""Kinds of identities whose models compute on this machine: free, and without a deadline."""
_LONGEST_NAME = 200

ReplyStatus = Literal["ok", "truncated", "filtered", "refused"]
REFUSED: Final = ("refused", "filtered")
"""Of a reply that is a refusal."""
ReplyFormat = Literal["json_schema", "json_object", "text"]
Tier = Literal["default", "batch", "flex"]
"""How a reply was bought: at once, by the Batch API, or at once with patience (cheaper)."""
Api = Literal["chat", "responses"]
"""Which API of an `openai:` endpoint is spoken."""


@dataclass(frozen=True)
class Connection:
    """How a backend is reached; nothing here but `body`, `api` and `seed` changes an answer.

    memory: folder where what is learnt about endpoints is kept (None: nowhere); tier: at which price requests are sent;
    asking: False when nothing will be sent, so that no key is needed; headers: sent with every request, secret; body:
    fields added to every request, which the backend makes part of its identity; effort: the reasoning effort of its
    requests, with which abilities of an endpoint differ; seed: of an annotator that draws.
    """

    memory: Path | None = None
    tier: Tier = "default"
    asking: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    api: Api = "chat"
    effort: str = "default"
    seed: int = 0


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True)
class Request:
    """Everything that may change an answer, and nothing else.

    `schema` is the JSON schema the answer should follow (None: free text); `sample` counts independent answers to the
    same words (votes), so that the second vote is not read back from the first one's record. `redraw` counts the bad
    answers that came before (errors, empty ones), since a server that draws by a seed would give the same again; it is
    no part of the key, for any good answer will do. `choices` are words of which the answer is to be one: a backend
    that knows how likely the first word of its answer is to be each of them says so (`chances`) in place of its words.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None = None
    temperature: float = 0.0
    max_tokens: int = 1024
    reasoning_effort: str | None = None
    sample: int = 0
    redraw: int = 0
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """One answer as it came back. Only status "ok" is ever read as an answer or reused from the store."""

    text: str
    status: ReplyStatus = "ok"
    format: ReplyFormat = "text"
    model: str = ""
    finish_reason: str = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `prompt_tokens` that the provider read from its own prompt cache."""
    tier: Tier = "default"

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Reply:
        """The reply that a row of responses.parquet records; the row must have one."""
        same = ("status", "model", "finish_reason", "prompt_tokens", "completion_tokens", "reasoning_tokens")
        return cls(text=row["reply"], format=row["answered_as"], **{name: row[name] for name in same})


NOT_ASKED = "not asked yet"
"""The reason of an exchange that was looked for among kept replies only, and is not there."""


@dataclass(frozen=True)
class Exchange:
    """One question and what came of it: a reply, or a failure (`reason`, `detail`). `cached`: read from the store.

    `cost_usd` is what the reply costs by today's price list, at the tier at which it was bought; None when that is not
    known.
    """

    request: Request
    key: str
    reply: Reply | None
    reason: str = ""
    detail: str = ""
    cached: bool = False
    cost_usd: float | None = None

    @property
    def status(self) -> str:
        """ok, truncated, filtered, refused or failed."""
        return "failed" if self.reply is None else self.reply.status

    @property
    def answer(self) -> str | None:
        """The text to be parsed: only of a good reply."""
        return self.reply.text if self.reply is not None and self.reply.status == "ok" else None


FaultKind = Literal["stop", "wait", "retry", "item", "again"]


class Fault(Exception):
    """Why no reply came back, sorted by what has to happen next.

    stop: nothing further can succeed (key, quota, unknown model); wait: the whole pool pauses; retry: this request
    again; item: this request can never succeed, the others can; again: the backend has learnt how to ask, and this
    request can be sent once more at once. `retry_after` is in seconds; `billed` says that the provider may have charged
    for an answer that was lost.
    """

    def __init__(
        self, kind: FaultKind, reason: str, text: str = "", *, retry_after: float | None = None, billed: bool = False
    ) -> None:
        super().__init__(text or reason)
        self.kind = kind
        self.reason = reason
        self.retry_after = retry_after
        self.billed = billed


class Backend(Protocol):
    """Something that answers requests. It is called from one event loop, many requests at a time."""

    @property
    def name(self) -> str:
        """What the user typed, e.g. `openai:MODEL`."""

    @property
    def identity(self) -> Mapping[str, str] | None:
        """What tells its answers from another backend's (kind, host, model; never a connection setting), or None when
        its answers cost nothing and are not stored.
        """

    async def complete(self, request: Request) -> Reply:
        """Answer once. Raises Fault; does not retry, wait or log."""

    def facts(self) -> dict[str, str]:
        """What the manifest says about it. Never a secret."""

    async def close(self) -> None: ...


class FreeBackend:
    """What backends have in common that answer in this process: it costs nothing, and answers are not stored."""

    identity = None

    async def close(self) -> None:
        return None


def request_content(identity: Mapping[str, str], request: Request) -> str:
    """Exactly what changes the answer, as canonical JSON: endpoint, words, schema, sampling, sample index."""
    content = {
        "version": 1,
        "endpoint": dict(sorted(identity.items())),
        "messages": [[message.role, message.text] for message in request.messages],
        "schema": request.schema,
        "temperature": float(request.temperature),
        "max_tokens": int(request.max_tokens),
        "reasoning_effort": request.reasoning_effort,
        "sample": int(request.sample),
        **({"choices": list(request.choices)} if request.choices else {}),
    }
    return canonical(content)


def chances(found: Mapping[str, float]) -> str:
    """The text of a reply that says how likely each choice was: a JSON object of log-probabilities."""
    return canonical({"logprobs": dict(found)})


def canonical(content: Any) -> str:
    """JSON with one spelling only: sorted, without spaces, in ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def request_key(identity: Mapping[str, str], request: Request) -> str:
    """sha256 (hex) of the request's content: its address in the store."""
    return hashlib.sha256(request_content(identity, request).encode("ascii")).hexdigest()


def address(turns: Sequence[tuple[str, str]], sample: int) -> str:
    """sha256 (hex) of a conversation's (role, text) and the sample index: a request's address at any backend."""
    return hashlib.sha256(json.dumps([turns, sample]).encode("ascii")).hexdigest()


def cleaned(reply: Reply) -> Reply:
    """The same reply with words that SQLite, Parquet and terminals can hold; an absurdly long one is a fault."""
    if len(reply.text) > MAX_REPLY_CHARS:
        raise Fault("item", "reply too long", f"a reply of {len(reply.text):,} characters was refused", billed=True)
    model, finish_reason = _storable(reply.model)[:_LONGEST_NAME], _storable(reply.finish_reason)[:_LONGEST_NAME]
    return replace(reply, text=_storable(reply.text), model=model, finish_reason=finish_reason)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
