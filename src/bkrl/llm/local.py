"""`hf:NAME_OR_PATH`: a transformers model on this machine, CPU or CUDA. Requests are gathered into batches.

A name is a model in the local cache of Hugging Face; nothing is fetched here. The model is loaded when the first
request comes. Its chat template shapes the prompt; a model without one gets the turns as plain text. Answers are stored
under the model's name, and for a folder also under its content.

The other requests of a batch change neither its room for an answer nor what is drawn: requests with less room than
others, and those with a temperature (transformers draws a whole batch from one generator), are answered apart. What is
left is rounding: a batch is padded, so where two words are almost equally likely an answer may turn out otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bkrl.core.hub import content, is_place, model_folder, reason
from bkrl.llm.protocol import Connection, Fault, Message, Reply, Request, request_key

BATCH = 16
GATHER_SECONDS = 0.02


class LocalBackend:
    """One causal language model. InputError when it is not on this machine."""

    def __init__(self, spec: str, connection: Connection) -> None:
        self.name = f"hf:{spec}"
        self._spec = spec
        self.identity: Mapping[str, str] = {"kind": "hf", "model": spec, "host": "local"}
        self._folder = model_folder(spec) if connection.asking or is_place(spec) else None
        if self._folder is not None and is_place(spec):
            found = content(self._folder)
            self.identity = {"kind": "hf", "model": self._folder.name, "host": "local", "content": found}
        self._queue: asyncio.Queue[tuple[Request, asyncio.Future[Reply]]] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._model: Any = None
        self._tokenizer: Any = None

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
        return facts

    async def close(self) -> None:
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
            alike = [item for item in waiting if _drawing(item[0]) == _drawing(first)][:BATCH]
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
        if self._model is None:
            self._load()
        prompts = [self._prompt(request.messages) for request in requests]
        limit = getattr(self._model.config, "max_position_embeddings", None) or 10**9
        outcomes: dict[int, Reply | Exception] = {}
        groups: dict[tuple[int, int], list[int]] = {}
        for number, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            room = min(request.max_tokens, limit - len(prompt))
            if room < 1:
                text = f"the prompt has {len(prompt)} tokens, the model reads {limit}"
                outcomes[number] = Fault("item", "context length", text)
            else:
                groups.setdefault((room, number if request.temperature > 0 else -1), []).append(number)
        for (room, _), numbers in groups.items():
            written = self._write([prompts[number] for number in numbers], room, requests[numbers[0]])
            for number, tokens in zip(numbers, written, strict=True):
                outcomes[number] = self._reply(tokens, len(prompts[number]))
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
            model=self._spec if "content" not in self.identity else self.identity["model"],
            finish_reason="length" if cut else "stop",
            prompt_tokens=prompt_tokens,
            completion_tokens=len(kept),
        )

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        turns = [{"role": message.role, "content": message.text} for message in messages]
        if self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        text = "\n\n".join(f"{turn['role']}:\n{turn['content']}" for turn in turns) + "\n\nassistant:\n"
        return list(self._tokenizer(text)["input_ids"])

    def _load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(self._folder, **here)
            model = AutoModelForCausalLM.from_pretrained(self._folder, dtype="auto", **here)
        except (OSError, ValueError, KeyError) as error:
            raise Fault("stop", "model", f"The model {self._spec} cannot be loaded ({reason(error)})") from None
        self._model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _drawing(request: Request) -> tuple[float, int]:
    return request.temperature, request.max_tokens
