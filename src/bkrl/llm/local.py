"""A causal language model on this machine: `local:NAME` (of `bkrl lm list`), `gguf:PATH`, `hf:NAME_OR_PATH`.

Nothing is fetched here, and the model is loaded when the first request comes. Its chat template shapes the prompt; a
model without one gets the turns as plain text. Requests are gathered into batches. Where a request has `choices`, the
answer is the log-probability of each (`scoring`); answers are stored under the hash of the weights.

The other requests of a batch change neither the room for an answer nor what is drawn: requests with less room than
others, and those with a temperature (transformers draws a whole batch from one generator), are answered apart. What is
left is rounding, so where two words are almost equally likely a written answer may turn out otherwise.

GGUF files are dequantised to float32. BKRL_LLM_THREADS says how many threads compute (1), BKRL_LLM_ARITHMETIC in what
the layers multiply: float32, or bfloat16, which is faster and stored as another model's answers.
"""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import sha256
from bkrl.core.hub import content, is_place, model_folder
from bkrl.core.models import catalogue, find
from bkrl.llm.protocol import Connection, Fault, Message, Reply, Request, chances, request_key
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
        self._model: Any = None
        self._tokenizer: Any = None
        self._scorer: Any = None
        self._closing = threading.Event()

    async def complete(self, request: Request) -> Reply:
        if self._queue is None:
            self._closing.clear()
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
        self._closing.set()  # a thread cannot be cancelled, so it looks at this before each layer
        if self._worker is not None:
            self._worker.cancel()
            with suppress(asyncio.CancelledError):
                await self._worker
        self._queue = self._worker = None

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
                outcomes = await asyncio.to_thread(self._answer, [request for request, _ in alike])
            except asyncio.CancelledError:
                raise
            except Fault as fault:
                outcomes = [fault] * len(alike)
            except Exception as error:  # noqa: BLE001 - out of memory and the like have to reach the caller
                text = f"The model failed ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
                outcomes = [Fault("stop", "model", text)] * len(alike)
            for (_, future), outcome in zip(alike, outcomes, strict=True):
                if future.done():
                    continue
                if isinstance(outcome, Reply):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)

    def _answer(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        """Answer requests that share temperature and length, in their order; runs in a thread."""
        with _computing(self._threads):
            if self._model is None:
                self._load()
            return self._outcomes(requests)

    def _outcomes(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        prompts = [self._prompt(request.messages) for request in requests]
        limit = getattr(self._model.config, "max_position_embeddings", None) or 10**9
        outcomes: dict[int, Reply | Exception] = {}
        groups: dict[tuple[int, int], list[int]] = {}
        closed: dict[int, dict[str, tuple[int, ...]]] = {}
        for number, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            options = self._options(request, prompt)
            room = min(request.max_tokens, limit - len(prompt))
            if room < 1 or any(len(prompt) + len(tokens) > limit for tokens in options.values()):
                text = f"the prompt has {len(prompt)} tokens, the model reads {limit}"
                outcomes[number] = Fault("item", "context length", text)
            elif len(set(options.values())) < len(options) or () in options.values():
                text = f"the options {', '.join(options)} are not different tokens to the model; choose other words"
                outcomes[number] = Fault("item", "options", text)
            elif options:
                closed[number] = options
            else:
                groups.setdefault((room, number if request.temperature > 0 else -1), []).append(number)
        for (room, _), numbers in groups.items():
            written = self._write([prompts[number] for number in numbers], room, requests[numbers[0]])
            for number, tokens in zip(numbers, written, strict=True):
                outcomes[number] = self._reply(tokens, len(prompts[number]))
        scores = self._scorer.score([(prompts[number], list(options.values())) for number, options in closed.items()])
        for (number, options), found in zip(closed.items(), scores, strict=True):
            text = chances(dict(zip(options, found, strict=True)))
            outcomes[number] = Reply(
                text, model=self.identity["model"], prompt_tokens=len(prompts[number]), completion_tokens=1
            )
        return [outcomes[number] for number in range(len(requests))]

    def _write(self, prompts: Sequence[list[int]], room: int, first: Request) -> list[list[int]]:
        """What the model writes after each prompt, at most `room` tokens, drawn as the first of the requests wants."""
        import torch

        tokenizer, model = self._tokenizer, self._model
        longest = max(map(len, prompts))
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (tokenizer.eos_token_id or 0)
        ids = torch.full((len(prompts), longest), pad, dtype=torch.long)
        mask = torch.zeros((len(prompts), longest), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        drawing: dict[str, Any] = {"do_sample": False}
        if first.temperature > 0:
            drawing = {"do_sample": True, "temperature": first.temperature}
        seed = int(request_key(self.identity, first)[:15], 16)
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            written = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=room,
                pad_token_id=pad,
                **drawing,
            )
        rows: list[list[int]] = written[:, longest:].tolist()
        return rows

    def _reply(self, tokens: list[int], prompt_tokens: int) -> Reply:
        ends = self._model.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends}
        ended = next((place for place, token in enumerate(tokens) if token in ends), None)
        kept = tokens if ended is None else tokens[:ended]
        text = self._tokenizer.decode(kept, skip_special_tokens=True)
        cut = ended is None
        return Reply(
            text,
            "truncated" if cut else "ok",
            model=self.identity["model"],
            finish_reason="length" if cut else "stop",
            prompt_tokens=prompt_tokens,
            completion_tokens=len(kept),
        )

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        text, special = self._text(messages)
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def _text(self, messages: Sequence[Message]) -> tuple[str, bool]:
        """A conversation as the model reads it, and whether its tokenizer adds the tokens that begin a text."""
        turns = [{"role": message.role, "content": message.text} for message in messages]
        if self._tokenizer.chat_template:
            return self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True), False
        return "\n\n".join(f"{turn['role']}:\n{turn['content']}" for turn in turns) + "\n\nassistant:\n", True

    def _options(self, request: Request, prompt: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The tokens that each choice adds to the prompt; where the two would melt, those of the choice alone."""
        found = {}
        for choice in request.choices:
            text, special = self._text(request.messages)
            whole = list(self._tokenizer(text + choice, add_special_tokens=special)["input_ids"])
            melted = whole[: len(prompt)] != list(prompt)
            alone = self._tokenizer(choice, add_special_tokens=False)["input_ids"]
            found[choice] = tuple(alone if melted else whole[len(prompt) :])
        return found

    def _load(self) -> None:
        import torch

        from bkrl.llm.scoring import Scorer
        from bkrl.llm.weights import load, to_bfloat16

        assert self._path is not None
        try:
            model, self._tokenizer = load(self._path, "auto" if self._path.is_dir() else torch.float32)
        except InputError as error:
            raise Fault("stop", "model", str(error)) from None
        if self._half:
            to_bfloat16(model)
        self._model = model.to("cuda" if torch.cuda.is_available() else "cpu")
        for layer in self._model.modules():
            if not list(layer.children()):
                layer.register_forward_pre_hook(self._go_on)
        self._scorer = Scorer(self._model)

    def _go_on(self, *_: Any) -> None:
        if self._closing.is_set():
            raise Fault("stop", "closed", "the session is closed")


def from_folder(spec: str, connection: Connection) -> LocalBackend:
    """`hf:NAME_OR_PATH`. InputError when it is not on this machine."""
    identity = {"kind": "hf", "model": spec, "host": "local"}
    path = model_folder(spec) if connection.asking or is_place(spec) else None
    if path is not None and is_place(spec):
        identity |= {"model": path.name, "content": content(path)}
    return LocalBackend(f"hf:{spec}", identity, path)


def from_catalogue(name: str, connection: Connection) -> LocalBackend:
    """`local:NAME`. UsageError for an unknown name, InputError when it is not fetched, or is not what was fetched."""
    model = find(name)
    identity = {"kind": "gguf", "model": name, "host": "local", "content": model.sha256}
    return LocalBackend(f"local:{name}", identity, gguf_file(name) if connection.asking else None)


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


@contextmanager
def _computing(threads: int) -> Iterator[None]:
    """Torch computes with so many threads inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _drawing(request: Request) -> tuple[bool, float, int]:
    return bool(request.choices), request.temperature, request.max_tokens
