"""A loopback server that speaks chat completions and misbehaves on command, over raw sockets: it can lie about
anything.

What it answers is a function of the prompt, so answers that were mixed up show. It counts every completion it would
have billed, for each prompt.
"""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import hashlib
import json
import math
import re
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bkrl.llm.policy import AskPolicy
from tests.llm.batch_server import BatchDesk
from tests.llm.responses_server import as_chat, as_response, complaint

# Short pauses; deadlines that a busy machine does not miss, for tests that are not about them.
QUICK = AskPolicy(first_pause=0.01, longest_pause=0.05, deadline=60.0, patience=120.0, attempts=6, grace=60.0)

Plan = Callable[[str, int], str]
"""(prompt hash, how often this prompt came before) → the name of what to do."""


def truth(prompt: str) -> str:
    """The right choice for a prompt hash."""
    return "AB"[int(prompt[:8], 16) % 2]


class FaultServer:
    def __init__(self, plan: Plan | None = None, latency: float = 0.0) -> None:
        self.plan: Plan = plan or (lambda prompt, attempt: "ok")
        self.latency = latency
        self.answers = threading.Event()
        """Nothing is answered while it is not set."""
        self.answers.set()
        self.desk = BatchDesk(self)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.said = ""
        """The head of the latest request, as it came; `echo` repeats it."""
        self.addresses: list[str] = []
        self.seen: Counter[str] = Counter()
        self.billed: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FaultServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                self.said = "".join(c for c in head.decode("latin-1") if c.isprintable() or c == " ")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.headers.append(headers)
                self.addresses.append(lines[0].split(" ")[1])
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    if "/chat/completions" in lines[0] or "/responses" in lines[0]:
                        keep = await self._answer(json.loads(body or b"{}"), writer)
                    else:
                        keep = await self.desk.answer(lines[0], body, writer)
                finally:
                    self.in_flight -= 1
                if not keep:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    def seen_before(self, body: dict[str, Any]) -> tuple[str, int]:
        """The prompt's hash, and how often it came before."""
        prompt = hashlib.sha256(json.dumps(body.get("messages") or body.get("input")).encode()).hexdigest()
        attempt = self.seen[prompt]
        self.seen[prompt] += 1
        return prompt, attempt

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        prompt, attempt = self.seen_before(body)
        self.requests.append(body)
        does, _, argument = self.plan(prompt, attempt).partition(":")
        while not self.answers.is_set():
            await asyncio.sleep(0.005)
        if self.latency:
            await asyncio.sleep(self.latency)
        refused = refusal(does, body)
        if refused is not None:
            return await send(writer, 400, refused)
        if does == "no_api":
            return await send(writer, 404, {"detail": "Not Found"})
        if does.startswith("echo_"):
            return await send(writer, int(does[5:]), [{"error": {"message": f"you said {self.said[-80:]}"}}])
        if does in STATUS:
            status, error = STATUS[does]
            extra = {"Retry-After": argument} if argument and does != "429ms" else {}
            if does == "429ms":
                extra = {"retry-after-ms": argument}
            if argument == "date":
                extra = {"Retry-After": email.utils.formatdate(time.time() + 1, usegmt=True)}
            return await send(writer, status, {"error": error}, extra)
        if does == "reset":
            reset(writer)
            return False
        if does == "hang":
            await asyncio.sleep(30)
            return False
        if does == "redirect":
            return await send(writer, 307, {}, {"Location": "http://127.0.0.1:9/elsewhere"})
        self.billed[prompt] += 1
        answered = answer_to(body, prompt, does, self.said)
        raw = json.dumps(answered).encode()
        if does in ("reset_mid", "short_body"):
            writer.write(head(200, len(raw) + (10 if does == "short_body" else 0)) + raw[: len(raw) // 2])
            await writer.drain()
            if does == "reset_mid":
                reset(writer)
            return False
        if does == "trickle":
            writer.write(head(200, len(raw)))
            for byte in raw:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
            return True
        if does in ("flood", "zipped"):
            return await _flood(writer, does == "zipped")
        if does in PACKED:
            packing, pack = PACKED[does]
            body = pack(raw)
            writer.write(head(200, len(body), {"Content-Encoding": packing}) + body)
            await writer.drain()
            return True
        special = _broken(does, raw)
        if special is not None:
            kind = "text/html" if does == "html" else "application/json"
            writer.write(head(200, len(special), kind=kind) + special)
            await writer.drain()
            return True
        return await send(writer, 200, answered)


PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "torn_gzip": ("gzip", lambda raw: gzip.compress(raw)[:-20]),
    "no_gzip": ("gzip", lambda raw: raw),
    "odd_packing": ("br", lambda raw: raw),
}
"""Answers that are packed although nobody asked for it: what they claim to be, and what is done to them."""

STATUS: dict[str, tuple[int, dict[str, Any]]] = {
    "400": (400, {"message": "messages[0] is odd", "code": "odd"}),
    "401": (401, {"message": "Incorrect API key provided: sk-CANARY-0123456789abcdef.", "code": "invalid_api_key"}),
    "402": (402, {"message": "pay first"}),
    "403": (403, {"message": "not for you"}),
    "404": (404, {"message": "The model `m` does not exist", "code": "model_not_found"}),
    "408": (408, {"message": "slow"}),
    "413": (413, {"message": "large"}),
    "429": (429, {"message": "slow down", "code": "rate_limit_exceeded"}),
    "429ms": (429, {"message": "slow down", "code": "rate_limit_exceeded"}),
    "quota": (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}),
    "context": (400, {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}),
    "filter400": (400, {"message": "content management policy", "code": "content_filter"}),
    "500": (500, {"message": "oops"}),
    "502": (502, {"message": "oops"}),
    "503": (503, {"message": "busy"}),
    "529": (529, {"message": "overloaded"}),
}


def answer_to(body: dict[str, Any], prompt: str, does: str, said: str = "") -> Any:
    """The body of a 200 answer, by the API that the request's body is of."""
    answered = completion(prompt, does, said)
    return as_response(answered) if "input" in body else answered


def refusal(does: str, body: dict[str, Any]) -> Any:
    """What a server says that does not know a parameter; `picky` knows hardly any, `gemini` says it in a list."""
    if "input" in body:
        return complaint(refusal(does, as_chat(body)))
    unknown = [name for name in ("seed", "logprobs") if name in body]
    if does == "gemini" and unknown:
        told = "\n".join(
            f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.' for name in unknown
        )
        violations = [{"description": line} for line in told.splitlines()]
        details = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
        return [{"error": {"code": 400, "message": told, "status": "INVALID_ARGUMENT", "details": details}}]
    rejects = {
        "no_schema": ("response_format.json_schema",),
        "no_format": ("response_format",),
        "no_max_tokens": ("max_tokens",),
        "no_temperature": ("temperature",),
        "no_extras": ("seed", "logprobs", "reasoning_effort"),
        "no_limits": ("max_tokens", "max_completion_tokens"),
        "no_flex": ("service_tier",),
        "no_top": ("top_logprobs",),
        "no_extra": ("chat_template_kwargs",),
        "picky": ("max_tokens", "temperature", "response_format"),
    }.get(does, ())
    for name in rejects:
        parameter, _, kind = name.partition(".")
        if parameter in body and (not kind or body[parameter].get("type") == kind):
            other = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
            return {
                "error": {
                    "message": f"Unsupported parameter: '{parameter}' is not supported.{other}",
                    "param": parameter,
                }
            }
    return None


def completion(prompt: str, does: str, said: str = "") -> Any:
    text: Any = json.dumps({"thoughts": "so it is", "choice": truth(prompt)})
    message: dict[str, Any] = {"role": "assistant", "content": text}
    finish = "stop"
    usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 10}
    if does == "goals":
        message["content"] = json.dumps({"goals": ["open a door", "pick up a key"]})
    elif does == "deeds":
        message["content"] = "- Chop tree\n- Drink water"
    elif does in ("no_top", "top"):
        message["content"] = "Yes"
    elif does == "prose":
        message["content"] = "I would rather not say."
    elif does == "surrogate":
        message["content"] = text.replace("so it is", "\ud800 \x00")
    elif does == "odd_names":
        finish = "sto\ud800p\x00"
    elif does == "null_content":
        message["content"] = None
    elif does == "thinking":
        message |= {"content": "", "reasoning_content": text}
    elif does == "echo":
        message["content"], finish = json.dumps({"thoughts": said, "choice": truth(prompt)}), said
    elif does == "piece":  # of the key
        piece = re.search(r"(?<=bearer ).{6}(\S{20})", said, re.IGNORECASE)[1]  # type: ignore[index]
        message["content"], finish = json.dumps({"thoughts": f"I see {piece}.", "choice": truth(prompt)}), piece
    elif does == "parts":
        message["content"] = [{"type": "text", "text": text}]
    elif does == "deep_text":
        message["content"] = '{"thoughts": ' + "[" * 100_000 + "]" * 100_000 + "}"
    elif does == "refusal":
        message = {"role": "assistant", "content": None, "refusal": "no"}
    elif does == "length":
        message["content"], finish = text[:10], "length"
    elif does == "content_filter":
        message["content"], finish = "", "content_filter"
    if does == "details":
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 64},
            "completion_tokens_details": {"reasoning_tokens": 4},
        }
    if does == "apart":  # as some providers count what was thought
        details = {"completion_tokens_details": {"reasoning_tokens": 1000}}
        usage = {"prompt_tokens": 300, "completion_tokens": 10, "total_tokens": 1310, **details}
    body: Any = {
        "model": "m-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }
    if does == "top":
        likely = [{"token": token, "logprob": math.log(chance)} for token, chance in (("Yes", 0.1), (" No", 0.3))]
        body["choices"][0]["logprobs"] = {"content": [{"token": "Yes", "top_logprobs": likely}]}
    if does == "echo":
        body["model"] = said[said.lower().find("authorization") :]  # only 200 characters of a name are kept
    if does == "odd_names":
        body["model"] = "m\udfff\x00" * 1000
    if does == "no_usage":
        body["usage"] = None
    elif does == "empty_choices":
        body["choices"] = []
    elif does == "null_choices":
        body["choices"] = None
    elif does == "list_in_200":
        body = [{"error": {"code": 502, "message": "upstream"}}]
    elif does == "error_in_200":
        body = {"error": {"code": 502, "message": "upstream"}}
    elif does == "quota_in_200":
        body = {"error": {"code": "insufficient_quota", "message": "none left"}}
    return body


def _broken(does: str, raw: bytes) -> bytes | None:
    """The body of a 200 answer that is no answer."""
    match does:
        case "truncated_json":
            return raw[: len(raw) // 2]
        case "html":
            return b"<!doctype html><title>hello</title>"
        case "null":
            return b"null"
        case "two_documents":
            return raw + raw
        case "not_utf8":
            return raw[:-10] + b"\xff\xfe" + raw[-10:]
        case "empty_body":
            return b""
        case "deep":
            return b"[" * 200_000
        case "deep_closed":
            return b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        case "huge":
            return b'{"choices": "' + b"x" * (6 * 2**20) + b'"}'
    return None


async def _flood(writer: asyncio.StreamWriter, zipped: bool) -> bool:
    """50 MB of an answer: as they are, or packed into few bytes that claim to be an encoding."""
    size = 50 * 2**20
    body = b'{"choices": "' + b"x" * size + b'"}'
    if zipped:
        body = gzip.compress(body)
    extra = {"Content-Encoding": "gzip"} if zipped else {}
    writer.write(head(200, len(body), extra))
    for start in range(0, len(body), 2**16):
        writer.write(body[start : start + 2**16])
        await writer.drain()
    return True


def head(status: int, length: int, extra: dict[str, str] | None = None, kind: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {length}", f"Content-Type: {kind}"]
    lines += [f"{name}: {value}" for name, value in (extra or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def send(writer: asyncio.StreamWriter, status: int, body: Any, extra: dict[str, str] | None = None) -> bool:
    raw = json.dumps(body).encode()
    writer.write(head(status, len(raw), extra) + raw)
    await writer.drain()
    return True


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
