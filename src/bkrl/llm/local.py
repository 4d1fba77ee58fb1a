"""A causal language model on this machine: `local:NAME` (of `bkrl lm list`), `gguf:PATH`, `hf:NAME_OR_PATH`.

Nothing is fetched here, and the model is loaded when the first request comes, in a process of its own (`causal`): in
this one it would hold the interpreter's lock while a policy trains. Its chat template shapes the prompt; a model
without one gets the turns as plain text. Requests are gathered into batches. Where a request has `choices`, the answer
is the log-probability of each (`scoring`); answers are stored under the hash of the weights.

The other requests of a batch change neither the room for an answer nor what is drawn: requests with less room than
others, and those with a temperature (transformers draws a whole batch from one generator), are answered apart. What is
left is rounding, so where two words are almost equally likely a written answer may turn out otherwise.

GGUF files are dequantised to float32. BKRL_LLM_THREADS says how many threads compute (1), BKRL_LLM_ARITHMETIC in what
the layers multiply: float32, or bfloat16, which is faster and stored as another model's answers.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import sha256
from bkrl.core.hub import content, is_place, model_folder
from bkrl.core.models import catalogue, find
from bkrl.llm.protocol import Connection, Fault, Reply, Request
from bkrl.llm.store import FILE
from bkrl.llm.weights import chat_template_in, gguf_file

BATCH = 16
CLOSED_BATCH = 64
GATHER_SECONDS = 0.02


class LocalBackend:
    """One causal language model; see `from_folder`, `from_catalogue` and `from_gguf`.

    Args:
        name: what the user typed.
        identity: what tells its answers from another model's.
        path: the folder or file of its weights; None where nothing will be asked.
    """

    def __init__(self, name: str, identity: Mapping[str, str], path: Path | None) -> None:
        self.name = name
        self._half = _arithmetic() == "bfloat16"
        self.identity = {**identity, **({"arithmetic": "bfloat16"} if self._half else {})}
        self._path = path
        self._templated = path is None or chat_template_in(path)
        self._threads = _threads()
        self._queue: asyncio.Queue[tuple[Request, asyncio.Future[Reply]]] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def complete(self, request: Request) -> Reply:
        if self._queue is None:
            self._queue = asyncio.Queue()
            self._worker = asyncio.create_task(self._work(self._queue))
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((request, future))
        return await future

    def facts(self) -> dict[str, str]:
        facts = {"model": self.identity["model"]}
        if "content" in self.identity:
            facts["model_sha256"] = self.identity["content"]
        if self._half:
            facts["arithmetic"] = "bfloat16"
        if not self._templated:
            facts["notice"] = f"{self.name} has no chat template, so it reads conversations as plain text."
        return facts

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            with suppress(asyncio.CancelledError):
                await self._worker
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.communicate(b"")
        self._queue = self._worker = self._process = None

    async def _work(self, queue: asyncio.Queue[tuple[Request, asyncio.Future[Reply]]]) -> None:
        waiting: list[tuple[Request, asyncio.Future[Reply]]] = []
        while True:
            if not waiting:
                waiting.append(await queue.get())
                await asyncio.sleep(GATHER_SECONDS)
            while not queue.empty():
                waiting.append(queue.get_nowait())
            waiting = [item for item in waiting if not item[1].done()]
            if not waiting:
                continue
            first = waiting[0][0]
            alike = [item for item in waiting if _drawing(item[0]) == _drawing(first)]
            alike = alike[: CLOSED_BATCH if first.choices else BATCH]
            waiting = [item for item in waiting if item not in alike]
            try:
                outcomes: Sequence[Reply | Exception] = await self._answers([request for request, _ in alike])
            except Exception as error:  # noqa: BLE001 - nobody may wait for ever
                outcomes = [error] * len(alike)
            for (_, future), outcome in zip(alike, outcomes, strict=True):
                if future.done():
                    continue
                if isinstance(outcome, Reply):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)

    async def _answers(self, requests: Sequence[Request]) -> list[Reply | Fault]:
        """What the model answers to requests that share temperature and length, in their order."""
        process = self._process = self._process or await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([asdict(request) for request in requests]).encode() + b"\n")
            await process.stdin.drain()
            told = json.loads(await process.stdout.readline())
            return [Reply(**one) if "status" in one else Fault(**one) for one in told]
        except (ValueError, ConnectionError):  # an empty line: no more will come
            await process.communicate(b"")
            self._process, code = None, process.returncode
            why = f"its process ended with status {code}"
            if code == -9:
                why = "its process was killed, perhaps for lack of memory: take a smaller model, or a larger machine"
            raise Fault("stop", "model", f"{self.name} answers no more ({why})") from None

    async def _started(self) -> asyncio.subprocess.Process:
        """A new process that computes the answers, and ends with this one."""
        if self._path is None:
            why = f"it is not on this machine, and a question is new: `bkrl lm fetch {self.identity['model']}`"
            raise Fault("stop", "model", f"{self.name} cannot be asked ({why})")
        words = (str(self._path), json.dumps(dict(self.identity)), str(self._threads))
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "bkrl.llm.causal", *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**30,  # of a line
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"},
                process_group=0,  # Ctrl-C reaches this process, which then ends the other
            )
        except OSError as error:
            raise Fault("stop", "model", f"{self.name} cannot be given a process ({error.strerror})") from None


def from_folder(spec: str, connection: Connection) -> LocalBackend:
    """`hf:NAME_OR_PATH`. InputError when it is not on this machine, but for a name of which nothing is asked."""
    identity, path = {"kind": "hf", "model": spec, "host": "local"}, None
    with nullcontext() if connection.asking or is_place(spec) else suppress(InputError):
        path = model_folder(spec)
        identity |= {"model": path.name if is_place(spec) else spec, "content": content(path)}
    return LocalBackend(f"hf:{spec}", identity, path)


def from_catalogue(name: str, connection: Connection) -> LocalBackend:
    """`local:NAME`. UsageError for an unknown name, InputError when it is not what was fetched, or not fetched: unless
    there are kept replies, since they may be all that is asked for.
    """
    model = find(name)
    identity = {"kind": "gguf", "model": name, "host": "local", "content": model.sha256}
    kept = connection.memory is not None and (connection.memory / FILE).exists() and not model.here
    return LocalBackend(f"local:{name}", identity, gguf_file(name) if connection.asking and not kept else None)


def from_gguf(spec: str, connection: Connection) -> LocalBackend:
    """`gguf:PATH`. InputError when there is no such file."""
    path = gguf_file(spec if spec.endswith(".gguf") else f"{spec}.gguf")
    found = sha256(path)
    known = (model.name for model in catalogue().values() if model.sha256 == found)
    identity = {"kind": "gguf", "model": next(known, path.stem), "host": "local", "content": found}
    return LocalBackend(f"gguf:{spec}", identity, path)


def _threads() -> int:
    said = os.environ.get("BKRL_LLM_THREADS", "1")
    if not said.isdigit() or not 1 <= int(said) <= 256:
        raise UsageError(f"BKRL_LLM_THREADS must be a number from 1 to 256, not {said!r}.")
    return int(said)


def _arithmetic() -> str:
    said = os.environ.get("BKRL_LLM_ARITHMETIC", "float32")
    if said not in ("float32", "bfloat16"):
        raise UsageError(f"BKRL_LLM_ARITHMETIC must be float32 or bfloat16, not {said!r}.")
    return said


def _drawing(request: Request) -> tuple[bool, float, int]:
    return bool(request.choices), request.temperature, request.max_tokens
