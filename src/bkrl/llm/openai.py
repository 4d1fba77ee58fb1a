"""`openai:MODEL`: any endpoint that speaks OpenAI's chat completions (OpenAI, Azure, vLLM, Ollama, llama.cpp, …).

The environment is read as the SDK reads it: OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_ORG_ID, OPENAI_PROJECT_ID; for
Azure AZURE_OPENAI_ENDPOINT, AZURE_OPENAI_API_KEY and, for the old interface, OPENAI_API_VERSION. The SDK carries the
request; its own retries are off, its reading of answers is not used (it passes broken ones through), and its errors
are sorted in `faults`.

What an endpoint accepts is found out by the first request, alone: it asks for a JSON schema, and falls back to plain
JSON and to text; a parameter that is refused is left out from then on. The answer's form is recorded, and validated
by whoever asked.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bkrl.errors import InputError
from bkrl.llm.faults import from_status, redacted
from bkrl.llm.protocol import Fault, Reply, ReplyFormat, ReplyStatus, Request

if TYPE_CHECKING:
    import openai

MAX_BODY = 4 * 2**20
"""Larger answers are dropped while they arrive."""
CONNECT_SECONDS = 15.0
MOST_ADAPTATIONS = 8
_OFFICIAL = "https://api.openai.com/v1"
_REFUSAL = (
    "unsupported",
    "not support",
    "unrecognized",
    "unknown",
    "unexpected",
    "extra",
    "invalid",
    "not permitted",
    "only",
)


class OpenAIBackend:
    """One model at one endpoint. InputError when a key is needed and none is set."""

    def __init__(self, model: str) -> None:
        self.name = f"openai:{model}"
        self._model = model
        self._url, self._key, self._azure = _connection()
        host = urlsplit(self._url).hostname or ""
        self._loopback = _is_loopback(host)
        self._notice = ""
        if not self._key:
            if not self._loopback:
                wanted = "AZURE_OPENAI_API_KEY" if self._azure else "OPENAI_API_KEY"
                raise InputError(f"No key for {host}: set {wanted} in the environment, or use --llm rules.")
            self._key, self._notice = "none", f"No key is set; {host} is this machine, so a dummy is sent."
        self.identity: Mapping[str, str] = {"kind": "openai", "host": host, "model": model}
        self._formats: list[ReplyFormat] = ["json_schema", "json_object", "text"]
        self._limit_field = "max_completion_tokens" if host == "api.openai.com" or self._azure else "max_tokens"
        self._left_out: set[str] = set()
        self._client: openai.AsyncOpenAI | None = None
        self._first = asyncio.Lock()
        self._known = False
        self._final: Fault | None = None

    async def complete(self, request: Request) -> Reply:
        if self._known:
            return await self._adapting(request)
        async with self._first:
            if self._final is not None:
                raise self._final
            if not self._known:
                try:
                    reply = await self._adapting(request)
                except Fault as fault:
                    self._final = fault if fault.kind == "stop" else None
                    raise
                self._known = True
                return reply
        return await self._adapting(request)

    def facts(self) -> dict[str, str]:
        facts = {"model": self._model, "endpoint": redacted(self._url), "api_key": "dummy" if self._notice else "set"}
        if self._notice:
            facts["notice"] = self._notice
        if self._left_out:
            facts["parameters_refused"] = ", ".join(sorted(self._left_out))
        return facts

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _adapting(self, request: Request) -> Reply:
        """Send, and send again without what the endpoint refuses."""
        for _ in range(MOST_ADAPTATIONS):
            form = self._formats[0] if request.schema is not None else "text"
            parameters = self._parameters(request, form)
            try:
                return await self._send(parameters, form)
            except _Refused as refused:
                if not self._adapt(refused, parameters):
                    raise refused.fault from None
        raise Fault("item", "bad request", "the server keeps refusing parameters")

    def _parameters(self, request: Request, form: ReplyFormat) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": message.role, "content": message.text} for message in request.messages],
            self._limit_field: request.max_tokens,
            "temperature": request.temperature,
        }
        if request.reasoning_effort is not None:
            parameters["reasoning_effort"] = request.reasoning_effort
        if form == "json_schema" and request.schema is not None:
            schema = {"name": "answer", "schema": dict(request.schema), "strict": True}
            parameters["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif form == "json_object":
            parameters["response_format"] = {"type": "json_object"}
        return {name: value for name, value in parameters.items() if name not in self._left_out}

    def _adapt(self, refused: _Refused, sent: Mapping[str, Any]) -> bool:
        """Whether something the server named (or must have meant) can be changed; changes it."""
        words = refused.words
        for field, other in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
            if field in sent and field in words:
                self._left_out.add(field)
                self._limit_field = other
                return True
        for name in ("temperature", "reasoning_effort"):
            if name in sent and name in words:
                self._left_out.add(name)
                return True
        if "response_format" not in sent:
            return False
        # An unnamed complaint is taken for one about the answer's form only while nothing has ever been accepted.
        named = any(mark in words for mark in ("response_format", "json_schema", "json_object", "schema", "guided"))
        if named or not (self._known or "message" in words or "model" in words):
            if sent["response_format"]["type"] == self._formats[0]:
                self._formats.pop(0)
            return True
        return False

    async def _send(self, parameters: dict[str, Any], form: ReplyFormat) -> Reply:
        import openai

        try:
            answer = await self._opened().chat.completions.with_raw_response.create(**parameters)
        except openai.APIStatusError as error:
            raise self._status_fault(error) from None
        except openai.APIConnectionError as error:
            raise _connection_fault(error) from None
        except _TooLarge:
            text = f"an answer of more than {MAX_BODY // 2**20} MB was refused"
            raise Fault("item", "reply too long", text, billed=True) from None
        except Exception as error:  # noqa: BLE001 - whatever the SDK lets through must not end a run of thousands
            told = f"{type(error).__name__}: {redacted(str(error), self._key)}"
            raise Fault("retry", "client", told, billed=True) from None
        response = answer.http_response
        return self._read(response.content, dict(response.headers), form)

    def _status_fault(self, error: openai.APIStatusError) -> Exception:
        body = error.body
        if isinstance(body, Mapping) and isinstance(body.get("error"), (Mapping, str)):
            body = body["error"]
        described = body if isinstance(body, (Mapping, str)) else str(error.message)
        headers = {name.lower(): value for name, value in error.response.headers.items()}
        fault = from_status(error.status_code, described, headers, self._key)
        words = str(described).lower()
        if (
            error.status_code in (400, 422)
            and fault.reason == "bad request"
            and any(mark in words for mark in _REFUSAL)
        ):
            return _Refused(fault, words)
        return fault

    def _read(self, content: bytes, headers: Mapping[str, str], form: ReplyFormat) -> Reply:
        """A reply out of the body of a 200 answer. Raises Fault for everything that is not one."""
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            if content.lstrip()[:1] == b"<":
                told = f"{redacted(self._url)} answers with a web page; is it an OpenAI-compatible address?"
                raise Fault("retry", "not an API", told) from None
            raise Fault("retry", "unreadable", "the answer is not JSON", billed=True) from None
        if isinstance(body, dict) and body.get("error"):
            raise self._error_inside(body["error"], headers)
        try:
            choice = body["choices"][0]
            message = choice["message"]
        except (KeyError, IndexError, TypeError):
            raise Fault("retry", "no choices", "the answer holds no choices", billed=True) from None
        if not isinstance(message, dict):
            raise Fault("retry", "no choices", "the answer holds no message", billed=True)
        finish = str(choice.get("finish_reason") or "stop")
        text, status = _text(message), _status(finish, message)
        if status == "ok" and not text.strip():
            raise Fault("retry", "empty", "the answer is empty", billed=True)
        prompt, completion, reasoning = _usage(body.get("usage"))
        model = body.get("model")
        return Reply(text, status, form, model if isinstance(model, str) else "", finish, prompt, completion, reasoning)

    def _error_inside(self, error: object, headers: Mapping[str, str]) -> Fault:
        described = error if isinstance(error, (Mapping, str)) else str(error)
        code = described.get("code") if isinstance(described, Mapping) else None
        status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
        return from_status(status, described, headers, self._key)

    def _opened(self) -> openai.AsyncOpenAI:
        if self._client is None:
            self._client = _client(self._url, self._key, self._azure)
        return self._client


class _Refused(Exception):
    """The server does not know or accept a parameter; `words` are its own, in lower case."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.words = words


class _TooLarge(Exception):
    """The body of an answer exceeds MAX_BODY."""


def _connection() -> tuple[str, str, bool]:
    """Address, key ("" if none) and whether it is Azure, from the environment."""
    url, key = os.environ.get("OPENAI_BASE_URL", ""), os.environ.get("OPENAI_API_KEY", "")
    endpoint, azure_key = os.environ.get("AZURE_OPENAI_ENDPOINT", ""), os.environ.get("AZURE_OPENAI_API_KEY", "")
    if endpoint and not url and (azure_key or not key):
        if not endpoint.startswith(("http://", "https://")):
            raise InputError("AZURE_OPENAI_ENDPOINT must begin with https://.")
        return endpoint.rstrip("/"), azure_key, True
    url = url or _OFFICIAL
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InputError("OPENAI_BASE_URL must be an address like https://HOST/v1.")
    host = urlsplit(url).hostname or ""
    return url, key or (azure_key if host.endswith((".azure.com", ".azure.us", ".azure.cn")) else ""), False


def _client(url: str, key: str, azure: bool) -> openai.AsyncOpenAI:
    import openai

    # The SDK moved from httpx to httpx2 with version 3; both have the same interface.
    http = import_module("httpx2" if find_spec("httpx2") else "httpx")

    class Capped(http.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._inner:
                size += len(chunk)
                if size > MAX_BODY:
                    raise _TooLarge
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def cap(response: Any) -> None:
        response.stream = Capped(response.stream)

    # Plain bytes are asked for, so that compression cannot pass MAX_BODY; no redirect carries the key elsewhere.
    client = http.AsyncClient(
        timeout=http.Timeout(None, connect=CONNECT_SECONDS),
        limits=http.Limits(max_connections=1000, max_keepalive_connections=100),
        follow_redirects=False,
        headers={"accept-encoding": "identity"},
        event_hooks={"response": [cap]},
    )
    common: dict[str, Any] = {"api_key": key, "max_retries": 0, "http_client": client}
    version = os.environ.get("OPENAI_API_VERSION", "")
    if azure and version:
        return openai.AsyncAzureOpenAI(azure_endpoint=url, api_version=version, **common)
    if azure:
        return openai.AsyncOpenAI(base_url=f"{url}/openai/v1/", **common)
    return openai.AsyncOpenAI(base_url=url, **common)


def _connection_fault(error: BaseException) -> Fault:
    cause: BaseException | None = error
    while cause is not None:
        kind = type(cause).__name__
        if kind in ("ConnectError", "ConnectTimeout", "UnsupportedProtocol", "gaierror"):
            return Fault("retry", "unreachable", "The server cannot be reached; check OPENAI_BASE_URL and the network")
        if kind in ("ReadError", "RemoteProtocolError", "ReadTimeout", "CloseError"):
            return Fault(
                "retry", "connection lost", "the connection broke before the whole answer had come", billed=True
            )
        cause = cause.__cause__ or cause.__context__
    return Fault("retry", "connection lost", "the connection broke", billed=True)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _status(finish: str, message: Mapping[str, Any]) -> ReplyStatus:
    if finish == "content_filter":
        return "filtered"
    if message.get("refusal"):
        return "refused"
    return "truncated" if finish in ("length", "max_tokens") else "ok"


def _usage(usage: object) -> tuple[int | None, int | None, int | None]:
    if not isinstance(usage, dict):
        return None, None, None
    details = usage.get("completion_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(reasoning)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
