"""What computes a local model's answers (`local.LocalBackend`): a process of its own, `python -m bkrl.llm.causal`.

Whoever computes beside it shares no interpreter with it, and ending it ends at once what it computes.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from jinja2 import TemplateError

from bkrl.core.documents import typed
from bkrl.core.errors import InputError
from bkrl.llm.protocol import Fault, Message, Reply, Request, chances, request_key

_AT_ONCE = {"enable_thinking": False}
"""Closed questions read the first word: a model that thinks first, by a template such as Qwen3's, is not to."""


class CausalModel:
    """A causal language model, loaded when it is asked first.

    Args:
        path: the folder or file of its weights.
        identity: what tells its answers from another model's.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self._path, self.identity = path, identity
        self._model: Any = None
        self._tokenizer: Any = None
        self._scorer: Any = None
        self._packs = True

    def answer(self, requests: Sequence[Request]) -> list[Reply | Fault]:
        """Answer requests that share temperature and length, in their order."""
        try:
            if self._model is None:
                self._load()
            return self._outcomes(requests)
        except Fault as fault:
            return [fault] * len(requests)
        except Exception as error:  # noqa: BLE001 - out of memory and the like have to reach the caller
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return [Fault("stop", "model", f"The model failed ({why})")] * len(requests)

    def _outcomes(self, requests: Sequence[Request]) -> list[Reply | Fault]:
        prompts = [self._prompt(one.messages, **(_AT_ONCE if one.choices else {})) for one in requests]
        limit = getattr(self._model.config, "max_position_embeddings", None) or 10**9
        outcomes: dict[int, Reply | Fault] = {}
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
            elif options and not self._packs:
                why = "its layers keep more than keys and values; take another model, or --ask open"
                raise Fault("stop", "model", f"{self.identity['model']} cannot be asked closed questions ({why})")
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

    def _prompt(self, messages: Sequence[Message], **how: Any) -> list[int]:
        text, special = self._text(messages, how)
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def _text(self, messages: Sequence[Message], how: Mapping[str, Any]) -> tuple[str, bool]:
        """A conversation as the model reads it, and whether its tokenizer adds the tokens that begin a text."""
        turns = [{"role": message.role, "content": message.text} for message in messages]
        if self._tokenizer.chat_template:
            put = partial(self._tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True, **how)
            try:
                return put(turns), False
            except TemplateError:  # of a template without system turns, such as Gemma 2's: the user says that, too
                if turns[0]["role"] != "system":
                    raise
                told = "\n\n".join(turn["content"] for turn in turns[:2])
                return put([{"role": "user", "content": told}, *turns[2:]]), False
        return "\n\n".join(f"{turn['role']}:\n{turn['content']}" for turn in turns) + "\n\nassistant:\n", True

    def _options(self, request: Request, prompt: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The tokens that each choice adds to the prompt; where the two would melt, those of the choice alone."""
        found: dict[str, tuple[int, ...]] = {}
        text, special = self._text(request.messages, _AT_ONCE)
        for choice in request.choices:
            whole = list(self._tokenizer(text + choice, add_special_tokens=special)["input_ids"])
            melted = whole[: len(prompt)] != list(prompt)
            alone = self._tokenizer(choice, add_special_tokens=False)["input_ids"]
            found[choice] = tuple(alone if melted else whole[len(prompt) :])
        return found

    def _load(self) -> None:
        import torch

        from bkrl.llm.scoring import OptionScorer
        from bkrl.llm.weights import load, to_bfloat16

        try:
            model, self._tokenizer = load(self._path, "auto" if self._path.is_dir() else torch.float32)
        except InputError as error:
            raise Fault("stop", "model", str(error)) from None
        self._scorer = OptionScorer(model)
        self._packs = self._scorer.packs()  # before numbers are rounded
        if "arithmetic" in self.identity:
            to_bfloat16(model)
        self._model = model.to("cuda" if torch.cuda.is_available() else "cpu")


def _listen(put: Callable[[Sequence[Request]], None]) -> None:
    """Take in what stdin brings. Its end is the end of whoever asks, and so of this process, whatever it computes."""
    try:
        for line in sys.stdin:
            put(typed(list[Request], json.loads(line)))
    finally:
        os._exit(0)


def main() -> None:
    """Answer the batches that come."""
    replies = os.fdopen(os.dup(1), "w", 1)
    os.dup2(2, 1)  # what libraries print is no reply
    path, identity, threads = sys.argv[1:]
    batches: SimpleQueue[Sequence[Request]] = SimpleQueue()
    Thread(target=_listen, args=(batches.put,), daemon=True).start()
    model = CausalModel(Path(path), json.loads(identity))
    import torch

    torch.set_num_threads(int(threads))
    while True:
        replies.write(json.dumps([_told(one) for one in model.answer(batches.get())]) + "\n")


def _told(answer: Reply | Fault) -> dict[str, Any]:
    if isinstance(answer, Reply):
        return asdict(answer)
    return {"kind": answer.kind, "reason": answer.reason, "text": str(answer)}


if __name__ == "__main__":
    main()
