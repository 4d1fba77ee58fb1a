"""The calls of OpenAI's Batch API: a file of requests goes up, a batch is started, a file of answers comes down."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bkrl.llm import responses
from bkrl.llm.capabilities import Capabilities
from bkrl.llm.completions import read_completion, read_json_body, with_chances
from bkrl.llm.faults import redacted
from bkrl.llm.openai import MAX_BODY, OpenAIBackend, Refused
from bkrl.llm.protocol import Fault, Reply, Request

TRANSFER_SECONDS = 1800.0
"""A file has to be up, and each piece of one down, within this time."""
ATTEMPTS = 6
LONGEST_PAUSE = 60.0
PAGE, PAGES = 100, 100
"""Batches on a page of their list, newest first, and pages in which a lost one is looked for."""


class BatchApi:
    """The Batch API of one backend's endpoint. Every call raises Fault when it cannot be done."""

    def __init__(self, backend: OpenAIBackend) -> None:
        self._backend = backend
        path = responses.PATH if backend.responses else "/chat/completions"
        # The old interface of Azure names the path without a version.
        self._path: Any = path if backend.old_azure else f"/v1{path}"

    def line(self, key: str, request: Request) -> bytes:
        """One request as a line of a batch's input."""
        parameters, _ = self._backend.parameters(request)
        parameters.pop("service_tier", None)
        line = {"custom_id": key, "method": "POST", "url": self._path, "body": self._backend.put(parameters)}
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def reply(self, line: Mapping[str, Any], request: Request, known: Capabilities) -> Reply:
        """The reply in a line of a batch's output. Raises Fault: `again` when the request has to be put otherwise.

        `known`: what was known of the endpoint when the batch was submitted, which says how the request was put.
        """
        backend, response, error = self._backend, line.get("response"), line.get("error")
        parameters, form = backend.parameters(request, known)
        if not isinstance(response, Mapping) or not isinstance(response.get("status_code"), int):
            described = error.get("message") or error.get("code") if isinstance(error, Mapping) else error
            raise Fault("retry", "batch", redacted(str(described or "no response")))
        status, body = response["status_code"], response.get("body")
        if status != 200:
            described = body if isinstance(body, (Mapping, str, list)) else error if isinstance(error, Mapping) else ""
            fault = backend.refusal(status, described, {})
            raise backend.adapted(fault, parameters) if isinstance(fault, Refused) else fault
        body = backend.read(body)
        reply = read_completion(body, {}, form, "batch")
        backend.learn(request, parameters, body, reply)
        return with_chances(reply, body, request.choices)

    async def upload(self, file: Path) -> str:
        """Send a batch's input; its id at the endpoint."""
        created = await self._call(
            lambda client: client.files.with_raw_response.create(file=(file.name, file.read_bytes()), purpose="batch")
        )
        return _id(created)

    async def create(self, file_id: str, token: str) -> str:
        """Start a batch that carries `token` in its metadata; its id. An answer that was lost is looked up, so that one
        batch is never started twice.
        """
        try:
            created = await self._call(
                lambda client: client.batches.with_raw_response.create(
                    input_file_id=file_id, endpoint=self._path, completion_window="24h", metadata={"bkrl": token}
                ),
                attempts=1,
            )
        except Fault as fault:
            if not fault.billed and not fault.reason.startswith("status 5"):
                raise
            with suppress(Fault):  # a gateway that gave up may have passed the call on, also where nobody can look
                if (found := await self.find(token)) is not None:
                    return found
            raise Fault(fault.kind, fault.reason, str(fault), billed=True) from None
        return _id(created)

    async def status(self, batch_id: str) -> dict[str, Any]:
        """The endpoint's own description of a batch."""
        try:
            return await self._call(lambda client: client.batches.with_raw_response.retrieve(batch_id))
        except Fault as fault:
            if fault.reason != "no batch API":
                raise
            # It was there once, so it is rather the address or the account that is another.
            self._backend.learn_batch(True)
            raise Fault(
                "stop",
                "unknown batch",
                f"The endpoint does not know {batch_id}: use the address and the account it was submitted with, or "
                "take it out of batches.json if it is really gone",
            ) from None

    async def find(self, token: str, pages: int = PAGES, **after: str) -> str | None:
        """The id of the batch that carries `token`, or None; `after`: only what the list has behind this one."""
        page = await self._call(lambda client: client.batches.with_raw_response.list(limit=PAGE, **after))
        found = page.get("data")
        batches = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        for batch in batches:
            if (batch.get("metadata") or {}).get("bkrl") == token:
                return _id(batch)
        more = pages > 1 and batches and page.get("has_more")
        return await self.find(token, pages - 1, after=_id(batches[-1])) if more else None

    async def lines(self, file_id: str) -> AsyncIterator[dict[str, Any]]:
        """The lines of a file at the endpoint, an empty one for each that is no JSON object; those longer than MAX_BODY
        are left out. Memory stays bounded.
        """
        opened = self._backend.client().files.with_streaming_response.content(file_id)
        response = await self._carried(opened.__aenter__)
        try:
            chunks = response.iter_bytes(2**16).__aiter__()
            tail, skipping, more = b"", False, True
            while more:
                chunk = await self._carried(lambda: anext(chunks, b""))
                more = bool(chunk)
                *lines, tail = (tail + chunk).split(b"\n") if more else (tail, b"")
                for line in lines:
                    if line and not skipping and len(line) <= MAX_BODY:
                        yield self._object(line)
                    skipping = False
                if len(tail) > MAX_BODY:
                    tail, skipping = b"", True
        finally:
            await opened.__aexit__(None, None, None)

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            value = read_json_body(line, "", self._backend.secrets)
        except Fault:
            return {}
        return value if isinstance(value, dict) else {}

    async def _carried(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What the client brings in time."""
        try:
            async with asyncio.timeout(TRANSFER_SECONDS):
                return await self._backend.carried(call)
        except TimeoutError:
            raise Fault("retry", "deadline", f"no answer within {TRANSFER_SECONDS:.0f} s", billed=True) from None

    async def _call(self, call: Callable[[Any], Awaitable[Any]], attempts: int = ATTEMPTS) -> dict[str, Any]:
        """A call's JSON object; what passes by itself is tried again a few times."""
        for attempt in range(1, attempts + 1):
            try:
                answer = await self._carried(lambda: call(self._backend.client()))
                body = read_json_body(answer.http_response.content, self._backend.url, self._backend.secrets)
                if not isinstance(body, dict):
                    raise Fault("retry", "unreadable", "the answer is not a JSON object", billed=True)
                return body
            except Refused as refused:
                fault = refused.fault
            except Fault as raised:
                fault = raised
            if fault.reason == "no such model":  # what a 404 means elsewhere
                self._backend.learn_batch(False)
                raise Fault("stop", "no batch API", f"{self._backend.name}: this endpoint has no Batch API")
            if fault.kind not in ("retry", "wait") or attempt == attempts:
                raise fault
            await asyncio.sleep(fault.retry_after or min(LONGEST_PAUSE, 0.25 * 2.0**attempt))
        raise AssertionError("unreachable")


def _id(body: Mapping[str, Any]) -> str:
    found = body.get("id")
    if not isinstance(found, str) or not found:
        raise Fault("stop", "no id", "The endpoint's answer names no id; it does not speak the Batch API")
    return found
