"""`openai:MODEL`: any endpoint that speaks OpenAI's chat completions or Responses API (Azure, vLLM, Ollama, …).

The environment is read as the SDK reads it: OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_ORG_ID, OPENAI_PROJECT_ID; for
Azure AZURE_OPENAI_ENDPOINT, AZURE_OPENAI_API_KEY and, for the old interface, OPENAI_API_VERSION. The SDK carries the
request; its own retries are off, its reading of answers is not used (it passes broken ones through), and its errors
are sorted in `faults`.

What an endpoint accepts is found out by its first requests, and remembered (`capabilities`): a JSON schema is asked for
first, then plain JSON, then text; a parameter that is refused is left out from then on. The answer's form is recorded,
and the caller validates it.
"""

from __future__ import annotations

import base64
import math
import os
import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from bkrl.core.errors import InputError, UsageError
from bkrl.core.hosts import is_loopback
from bkrl.llm import extras, responses
from bkrl.llm.capabilities import OPTIONAL, Capabilities, LimitField, Memory, follows
from bkrl.llm.completions import read_completion, read_json_body, with_chances
from bkrl.llm.faults import Secrets, error_in, from_status, redacted
from bkrl.llm.protocol import Connection, Fault, Reply, ReplyFormat, Request, canonical

if TYPE_CHECKING:
    import openai

T = TypeVar("T")

MAX_BODY = 4 * 2**20
"""Larger answers are dropped while they arrive; so are larger lines of a batch's output."""
CONNECT_SECONDS = 15.0
REDRAW = 2**20
"""From the seed of one vote, after a bad answer, to one that no vote has."""
TOP_LOGPROBS = 5
"""How many alternatives of a token are asked for; published, and the most that some endpoints give."""
_ZLIB = ("gzip", "x-gzip", "deflate")
_PIECE = 2**16
_KEYS = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY")
_OFFICIAL_HOST = "api.openai.com"
_OFFICIAL = f"https://{_OFFICIAL_HOST}/v1"
_UNKNOWN = "unsupported|not support|unrecognized|unknown|unexpected|extra|not permitted|not allowed"
_REFUSAL = re.compile(f"{_UNKNOWN}|invalid|only")
_OUTSIDE = re.compile(
    r"\btoo (?:large|big|high|small|low)\b|\b(?:range|between|at most|at least|above|below|exceeds?)\b|[<>]="
    r"|\b(?:less|greater|larger|smaller|higher|lower) than\b"
)
"""Words about a value, where the field itself is known."""


class OpenAIBackend:
    """One model at one endpoint. InputError when a key is needed and none is set."""

    def __init__(self, model: str, connection: Connection) -> None:
        self.name = f"openai:{model}"
        self._model = model
        self.url, self._key, self._azure = _connection()
        self._headers, self._body = connection.headers, dict(connection.body)
        self.old_azure = self._azure and bool(os.environ.get("OPENAI_API_VERSION"))
        self._tier, self.responses = connection.tier, connection.api == "responses"
        host = urlsplit(self.url).hostname or ""
        self._notice = ""
        if not self._key and connection.asking:
            if not is_loopback(host):
                wanted = "AZURE_OPENAI_API_KEY" if self._azure else "OPENAI_API_KEY"
                raise InputError(f"No key for {host}: set {wanted} in the environment, or use --llm rules.")
            self._key, self._notice = "none", f"No key is set; {host} is this machine, so a dummy is sent."
        self.secrets = Secrets([*_secret_words(self.url), *self._headers.values()])
        if connection.asking:
            _check_variables(self._key)
        extra = {"body": canonical(self._body)} if self._body else {}
        if self.responses:
            extra["api"] = "responses"
        if self.secrets.hide(extra.get("body", "")) != extra.get("body", ""):
            raise UsageError("--body holds a secret, and is recorded; send it with --header NAME=VARIABLE.")
        self.identity: Mapping[str, str] = {"kind": "openai", "host": host, "model": model, **extra}
        self._memory = Memory(connection.memory)
        self._name = f"{urlsplit(self.url).netloc.rpartition('@')[2]} {model}" + " (responses)" * self.responses
        self._name += f" (effort {connection.effort})" * (connection.effort != "default")
        limit: LimitField = "max_completion_tokens" if host == _OFFICIAL_HOST or self._azure else "max_tokens"
        self.capabilities = self._memory.recall(self._name, Capabilities(limit_field=limit))
        self._limits_refused: set[str] = set()
        self._client: openai.AsyncOpenAI | None = None

    async def complete(self, request: Request) -> Reply:
        parameters, form = self.parameters(request)
        if self.capabilities.logprobs is None:
            parameters["logprobs"] = True  # asked for once, to know
        try:
            body, headers = await self._send(parameters)
        except Refused as refused:
            raise self.adapted(refused, parameters) from None
        reply = read_completion(body, headers, form, self._tier)
        self.learn(request, parameters, body, reply)
        return with_chances(reply, body, request.choices)

    def facts(self) -> dict[str, str]:
        facts = {"model": self._model, "endpoint": redacted(self.url), "api_key": "dummy" if self._notice else "set"}
        if self._notice:
            facts["notice"] = self._notice
        if self._tier != "default":
            facts["tier"] = self._tier
        refused = [name for name in OPTIONAL[:3] if vars(self.capabilities)[name] is False]
        if refused:
            facts["parameters_refused"] = ", ".join(sorted(refused))
        if self.capabilities.schema_followed is False:
            facts["schema"] = "accepted and not followed by the endpoint; every answer is checked here"
        return facts

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    # What is asked, and what is learnt about asking

    def parameters(self, request: Request, known: Capabilities | None = None) -> tuple[dict[str, Any], ReplyFormat]:
        """The body of a request and the form of answer it asks for, by what is (or was) known of the endpoint."""
        known = known or self.capabilities
        form = known.form if request.schema is not None else "text"
        parameters: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": message.role, "content": message.text} for message in request.messages],
            known.limit_field: request.max_tokens,
        }
        # Servers that draw from a fixed seed by default would give the same vote again and again.
        wanted = {
            "temperature": request.temperature,
            "seed": None if self.responses else request.sample + request.redraw * REDRAW,
            "reasoning_effort": request.reasoning_effort,
        }
        for name, value in wanted.items():
            if value is not None and vars(known)[name] is not False:
                parameters[name] = value
        if form == "json_schema" and request.schema is not None:
            schema = {"name": "answer", "schema": dict(request.schema), "strict": True}
            parameters["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif form == "json_object":
            parameters["response_format"] = {"type": "json_object"}
        if request.choices and known.logprobs is not False:
            parameters |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        if self._tier == "flex" or self.identity["host"] == _OFFICIAL_HOST:
            parameters["service_tier"] = self._tier  # without one a project's own setting counts, which may be dearer
        return parameters | self._body, form

    def adapted(self, refused: Refused, sent: Mapping[str, Any]) -> Fault:
        """What to do about a refusal: ask again without what the server named (or must have meant), or give up."""
        if _out_of_range(refused.words, sent) or not self._adapt(refused.words, sent):
            return refused.fault
        self._memory.keep(self._name, self.capabilities)
        return Fault("again", "adapted", str(refused.fault))

    def _adapt(self, words: str, sent: Mapping[str, Any]) -> bool:
        for name in self._body:
            if _names(words, name.lower()):
                raise Fault("stop", "no such field", f"The endpoint does not accept '{name}' of --body; leave it out")
        if sent.get("service_tier") == "flex" and _names(words, "service_tier"):
            raise Fault("stop", "no such tier", "This endpoint or model has no flex tier; leave out --tier flex")
        limits: tuple[LimitField, LimitField] = ("max_tokens", "max_completion_tokens")
        for field, other in zip(limits, limits[::-1], strict=True):
            if field in sent and _names(words, field):
                self._limits_refused.add(field)
                if other in self._limits_refused:
                    raise Fault("stop", "no limit", "The server refuses every limit on the length of a reply")
                self.capabilities.limit_field = other
                return True
        for name in reversed(OPTIONAL):
            if any(field in sent and _names(words, field) for field in (name, f"top_{name}")):
                setattr(self.capabilities, name, False)
                return True
        form = sent.get("response_format", {}).get("type")
        if form and any(mark in words for mark in ("response_format", "json_object", "schema", "guided")):
            return self.capabilities.weaken_form(form)
        # An unnamed complaint is taken for one about what is optional only while nothing has ever been accepted.
        if self.capabilities.accepted or any(_names(words, name) for name in ("message", "messages", "model")):
            return False
        extras = [name for name in ("logprobs", "seed") if name in sent]
        for name in extras:
            setattr(self.capabilities, name, False)
        return bool(extras) or (form is not None and self.capabilities.weaken_form(form))

    def learn(self, request: Request, sent: Mapping[str, Any], body: Any, reply: Reply) -> None:
        """Remember what an answer says about the endpoint."""
        before = vars(self.capabilities).copy()
        for name in OPTIONAL[:3]:
            if name in sent:
                setattr(self.capabilities, name, True)
        self.capabilities.accepted = True
        if "logprobs" in sent and reply.status == "ok" and not self.capabilities.logprobs:  # a refusal has none
            self.capabilities.logprobs = bool(body["choices"][0].get("logprobs"))
        if reply.format == "json_schema" and reply.status == "ok" and request.schema is not None:
            followed = follows(reply.text, request.schema)
            self.capabilities.schema_followed = followed and self.capabilities.schema_followed is not False
        if vars(self.capabilities) != before:
            self._memory.keep(self._name, self.capabilities)

    def learn_batch(self, offered: bool) -> None:
        """Remember whether the endpoint has a Batch API."""
        if self.capabilities.batch is not offered:
            self.capabilities.batch = offered
            self._memory.keep(self._name, self.capabilities)

    # Sending

    async def _send(self, parameters: dict[str, Any]) -> tuple[Any, Mapping[str, str]]:
        """The JSON body of a 200 answer and its headers."""
        client = self.client()
        create: Any = client.responses if self.responses else client.chat.completions
        plain = self.put({name: value for name, value in parameters.items() if name not in self._body})
        answer = await self.carried(lambda: create.with_raw_response.create(**plain, extra_body=self._body or None))
        response = answer.http_response
        return self.read(read_json_body(response.content, self.url, self.secrets)), dict(response.headers)

    def put(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Parameters of a chat completion, as the API in use takes them."""
        return responses.request_of(parameters) if self.responses else parameters

    def read(self, body: Any) -> Any:
        """The body of a 200 answer, as a chat completion."""
        return responses.completion_of(body) if self.responses else body

    async def carried(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the SDK brings back, its errors sorted into faults."""
        import openai

        try:
            return await call()
        except openai.APIStatusError as error:
            raise self._status_fault(error) from None
        except openai.APIConnectionError as error:
            raise _connection_fault(error) from None
        except Fault:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the SDK lets through must not end a run of thousands
            text = f"{type(error).__name__}: {redacted(self.secrets.hide(str(error)))}"
            raise Fault("retry", "client", text, billed=True) from None

    def _status_fault(self, error: openai.APIStatusError) -> Exception:
        headers = {name.lower(): value for name, value in error.response.headers.items()}
        body = error.body if isinstance(error.body, (Mapping, str, list)) else str(error.message)
        return self.refusal(error.status_code, self.secrets.hide_in(body), headers)

    def refusal(self, status: int, body: object, headers: Mapping[str, str]) -> Exception:
        """The fault behind a status other than 200, or `Refused` where a parameter is to blame."""
        said = error_in(body)
        fault = from_status(status, said, headers)
        words = (said if isinstance(said, str) else " ".join(map(str, said.values()))).lower()
        if self.responses:
            words = responses.chat_words(words, self.capabilities.limit_field)
        about_parameter = fault.reason == "bad request" or (status == 403 and "logprobs" in words)
        refused = about_parameter and status in (400, 403, 422) and _REFUSAL.search(words)
        return Refused(fault, words) if refused else fault

    def client(self) -> openai.AsyncOpenAI:
        """The SDK's client, opened when it is first needed."""
        if self._client is None:
            self._client = _client(self.url, self._key, self._azure, self._headers)
        return self._client


class Refused(Exception):
    """The server does not know or accept a parameter; `words` are its own, in lower case."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.words = words


def _out_of_range(words: str, sent: Mapping[str, Any]) -> bool:
    """Whether a value is at fault, as in "Invalid max_tokens, the range is [1, 8192]": by another name the limit might
    bound nothing. Temperatures up to 1 are left out instead: some servers refuse 0, and nothing else could be sent.
    """
    named = any(name in sent and _names(words, name) for name in ("max_tokens", "max_completion_tokens"))
    named |= sent.get("temperature", 0.0) > 1.0 and _names(words, "temperature")
    return named and _OUTSIDE.search(words) is not None and not re.search(_UNKNOWN, words)


def _names(words: str, name: str) -> bool:
    """Whether an error's words name a field: `top_p` is not named by `top_p_max`, nor `n` by every word with an n."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words) is not None


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


def _check_variables(key: str) -> None:
    """InputError where no header can carry this key, or what the SDK sends beside it: each request would be lost."""
    for name in (*_KEYS, "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        value = os.environ.get(name, "")
        if not extras.fits(value) and (name not in _KEYS or value == key):
            raise InputError(
                f"{name} has a character that no header takes (a line feed or a space at its end?); set it anew."
            )


def _secret_words(url: str) -> list[str]:
    """What must not be shown: every key of the environment, and the secrets that an address holds, in all forms."""
    parts = urlsplit(url)
    keys = [os.environ.get(name, "") for name in _KEYS]
    hidden = parts.password or parts.username or ""
    user, _, password = unquote(parts.netloc.rpartition("@")[0]).partition(":")
    basic = base64.b64encode(f"{user}:{password}".encode("utf-8", "replace")).decode() if hidden else ""
    return [*keys, hidden, unquote(hidden), basic, *(value for _, value in parse_qsl(parts.query))]


def _client(url: str, key: str, azure: bool, headers: Mapping[str, str]) -> openai.AsyncOpenAI:
    import openai

    # The SDK moved from httpx to httpx2 with version 3, and takes its own alone, whichever others are installed.
    http = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])

    class Unpacked(http.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __init__(self, inner: Any, packed: bool, most: float) -> None:
            self._inner, self._packed, self._most = inner, packed, most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for piece in _unpacked(self._inner) if self._packed else self._inner:
                size += len(piece)
                if size > self._most:
                    text = f"an answer of more than {MAX_BODY // 2**20} MB was refused"
                    raise Fault("item", "reply too long", text, billed=True)
                yield piece

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def cap(response: Any) -> None:
        # Plain bytes are asked for; who packs them all the same is unpacked here, where the size is watched on the way.
        encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "", *_ZLIB):
            text = f"an answer came packed as {encoding[:40]} although it was asked for as it is"
            raise Fault("item", "unreadable", text, billed=True)
        # Files of batches are read line by line, each line bounded.
        most = math.inf if response.request.url.path.endswith("/content") else MAX_BODY
        response.stream = Unpacked(response.stream, encoding in _ZLIB, most)

    async def add_headers(request: Any) -> None:
        # Here, and not as the client's own: the SDK writes those into its log.
        request.headers.update(headers)

    # An address with a user in it would be logged as it is.
    parts = urlsplit(url)
    user, colon, host = parts.netloc.rpartition("@")
    if colon:
        url = parts._replace(netloc=host).geturl()
        name, _, password = user.partition(":")
    auth = (unquote(name), unquote(password)) if colon else None
    # No redirect carries the key elsewhere.
    client = http.AsyncClient(
        timeout=http.Timeout(None, connect=CONNECT_SECONDS),
        limits=http.Limits(max_connections=1000, max_keepalive_connections=100),
        follow_redirects=False,
        headers={"accept-encoding": "identity"},
        event_hooks={"request": [add_headers], "response": [cap]},
        auth=auth,
    )
    common: dict[str, Any] = {"api_key": key, "max_retries": 0, "http_client": client}
    version = os.environ.get("OPENAI_API_VERSION", "")
    if azure and version:
        return openai.AsyncAzureOpenAI(azure_endpoint=url, api_version=version, **common)
    if azure:
        return openai.AsyncOpenAI(base_url=f"{url}/openai/v1/", **common)
    return openai.AsyncOpenAI(base_url=url, **common)


async def _unpacked(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Chunks of a gzip or zlib stream as pieces of what it holds, none larger than `_PIECE`, however well it is packed.

    Raises:
        Fault: it is damaged or ends too early.
    """
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: its first bytes say which of the two it is
    empty = True
    try:
        async for chunk in chunks:
            empty = empty and not chunk
            while chunk and not unpack.eof:
                piece = unpack.decompress(chunk, _PIECE)
                chunk = unpack.unconsumed_tail
                yield piece
        while piece := unpack.decompress(b"", _PIECE):
            yield piece
    except zlib.error:
        raise Fault("retry", "unreadable", "the answer came packed, and damaged", billed=True) from None
    if not unpack.eof and not empty:
        raise Fault("retry", "unreadable", "the answer came packed, and ends too early", billed=True)


def _connection_fault(error: BaseException) -> Fault:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Fault):
            return cause
        kind = type(cause).__name__
        if kind in ("ConnectError", "ConnectTimeout", "UnsupportedProtocol", "gaierror"):
            return Fault("retry", "unreachable", "The server cannot be reached; check OPENAI_BASE_URL and the network")
        if kind in ("ReadError", "RemoteProtocolError", "ReadTimeout", "CloseError"):
            return Fault(
                "retry", "connection lost", "the connection broke before the whole answer had come", billed=True
            )
        cause = cause.__cause__ or cause.__context__
    return Fault("retry", "connection lost", "the connection broke", billed=True)
