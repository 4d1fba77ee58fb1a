"""The Batch API of the misbehaving server: files go up, batches ripen, answers come in any order or not at all."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from tests.llm.fault_server import FaultServer

CallPlan = Callable[[str, int], str]
"""(what is called, how often it was before) → ok, a status or `reset` (before it was done; with `_after`: after)."""


class BatchDesk:
    """Files and batches. A batch is answered when it is asked about for the `polls`-th time, and then ends as `ends`.

    What a line is answered with is the server's own `plan`, by the same prompt hash as at once; `unanswered` leaves it
    out, as an expired batch does. Answers come in reverse order, the first of them twice if `messy`, with lines that
    belong to nobody.
    """

    def __init__(self, server: FaultServer) -> None:
        self.server = server
        self.plan: CallPlan = lambda call, attempt: "ok"
        self.polls, self.ends, self.messy = 1, "completed", False
        self.hidden = 0
        """How many times the list of batches comes empty."""
        self.calls: Counter[str] = Counter()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.submitted: Counter[str] = Counter()
        """How often each custom_id was handed in."""

    async def answer(self, line: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        from tests.llm.fault_server import STATUS, head, reset, send

        method, address, _ = line.split(" ")
        path, _, query = address.partition("?")
        call, done = self._call(method, path.strip("/").split("/"), dict(parse_qsl(query)))
        does, _, argument = self.plan(call, self.calls[call]).partition(":")
        self.calls[call] += 1
        if does == "reset":
            reset(writer)
            return False
        named = does.removesuffix("_after")
        if named in STATUS:
            if named != does:
                done(body)
            status, error = STATUS[named]
            return await send(writer, status, {"error": error}, {"Retry-After": argument} if argument else {})
        result = done(body)
        if does == "reset_after":
            reset(writer)
            return False
        if result is None:
            return await send(writer, 404, {"error": {"message": "there is nothing here"}})
        if isinstance(result, bytes):
            writer.write(head(200, len(result), kind="application/octet-stream") + result)
            await writer.drain()
            return True
        return await send(writer, 200, result)

    def _call(self, method: str, parts: list[str], query: dict[str, str]) -> tuple[str, Callable[[bytes], Any]]:
        if method == "POST" and parts[-1] == "files":
            return "upload", self._upload
        if method == "GET" and parts[-1] == "content":
            return "content", lambda body: self.files.get(parts[-2])
        if method == "POST" and parts[-1] == "batches":
            return "create", self._create
        if method == "GET" and parts[-1] == "batches":
            return "list", lambda body: self._list(**query)
        if method == "GET" and parts[-2] == "batches":
            return "retrieve", lambda body: self._retrieve(parts[-1])
        return "unknown", lambda body: None

    def _upload(self, body: bytes) -> dict[str, Any]:
        # The part of the form that names a file: its head, an empty line, its bytes, the boundary.
        boundary = body.split(b"\r\n", 1)[0]
        part = next(part for part in body.split(boundary) if b"filename=" in part)
        name = f"file-{len(self.files) + 1}"
        self.files[name] = part.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")
        return {"id": name, "object": "file", "purpose": "batch"}

    def _create(self, body: bytes) -> dict[str, Any]:
        wanted = json.loads(body)
        lines = self.files[wanted["input_file_id"]].splitlines()
        self.submitted.update(json.loads(line)["custom_id"] for line in lines)
        name = f"batch_{len(self.batches) + 1}"
        self.batches[name] = {
            "id": name,
            "status": "validating",
            "polls": 0,
            "endpoint": wanted["endpoint"],
            "input_file_id": wanted["input_file_id"],
            "metadata": wanted.get("metadata"),
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
        }
        return self.batches[name]

    def _list(self, limit: str, after: str = "") -> dict[str, Any]:
        shown = [] if self.hidden > 0 else list(self.batches.values())[::-1]
        self.hidden -= 1
        first = 1 + [one["id"] for one in shown].index(after) if after else 0
        page = shown[first : first + int(limit)]
        return {"object": "list", "data": page, "has_more": first + len(page) < len(shown)}

    def _retrieve(self, name: str) -> dict[str, Any] | None:
        batch = self.batches.get(name)
        if batch is None:
            return None
        batch["polls"] += 1
        if batch["status"] in ("validating", "in_progress"):
            batch["status"] = "in_progress"
            if batch["polls"] >= self.polls:
                self._finish(batch)
        return batch

    def _finish(self, batch: dict[str, Any]) -> None:
        batch["status"] = self.ends
        if self.ends == "failed":
            batch["errors"] = {"data": [{"message": f"line 1 is odd, said {self.server.said[-80:]}"}]}
            return
        output, errors = [], []
        for raw in self.files[batch["input_file_id"]].splitlines():
            line = json.loads(raw)
            answered = self._line(line["body"])
            if answered is None:
                continue
            status, body = answered
            answer = {
                "custom_id": line["custom_id"],
                "response": {"status_code": status, "body": body},
                "error": None,
            }
            (output if status == 200 else errors).append(json.dumps(answer))
        output.reverse()
        if self.messy and output:
            foreign = json.dumps({"custom_id": "nobody", "response": {"status_code": 200, "body": {}}})
            output = [output[-1], "{torn", "[" * 50_000, foreign, '{"custom_id": ["nobody"]}', *output]
        batch["request_counts"].update(completed=len(output), failed=len(errors))
        for kind, lines in (("output_file_id", output), ("error_file_id", errors)):
            if lines:
                name = f"file-{len(self.files) + 1}"
                self.files[name] = "\n".join(lines).encode()
                batch[kind] = name

    def _line(self, body: dict[str, Any]) -> tuple[int, Any] | None:
        from tests.llm.fault_server import STATUS, answer_to, refusal

        prompt, attempt = self.server.seen_before(body)
        does = self.server.plan(prompt, attempt)
        if does == "unanswered":
            return None
        refused = refusal(does, body)
        if refused is not None:
            return 400, refused
        if does.startswith("echo_"):
            return int(does[5:]), [{"error": {"message": f"you said {self.server.said[-80:]}"}}]
        if does in STATUS:
            status, error = STATUS[does]
            return status, {"error": error}
        self.server.billed[prompt] += 1
        return 200, answer_to(body, prompt, does, self.server.said)
