"""Log-probabilities of answers under a causal transformers model, exactly, many questions in one pass.

The questions and their options form a tree of tokens (a trie): what several share stands there once, each token sees
the tokens above it and no others, and its position is its depth. So no token is computed twice and nothing is padded.
The part that all questions of a batch share is computed first and its keys and values are kept for later batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from inspect import signature
from itertools import takewhile
from typing import Any

import numpy as np
import torch

PACK = 1024
"""Most tokens of one pass; more take memory and gain no speed."""
KEPT_PREFIXES = 4
WORTH_KEEPING = 32
"""Shared tokens from which on a prefix is computed apart."""

Tokens = tuple[int, ...]
_State = list[tuple[torch.Tensor, torch.Tensor]]


class OptionScorer:
    """Scores options; what a batch shares is kept for later ones."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._states: OrderedDict[Tokens, _State] = OrderedDict()
        given = signature(model.forward).parameters
        self._cache = "cache" if "cache" in given else "past_key_values"  # its name until transformers 5.23

    def score(self, questions: Sequence[tuple[Sequence[int], Sequence[Tokens]]]) -> list[list[float]]:
        """For each (prompt, options) the log-probability of each option after the prompt: the sum over its tokens."""
        with torch.inference_mode():
            if not questions:
                return []
            shared = _common([tuple(prompt)[:-1] for prompt, _ in questions])
            prefix, state = self._prefix(shared, len(questions) > 1)
            return self._passes(questions, prefix, state)

    def packs(self) -> bool:
        """Whether the model answers together as it answers apart: one with a recurrent state does not."""
        options, most = [(2, 3), (3, 2)], 0.01 if self.model.dtype == torch.float32 else 0.5
        try:
            apart = [self.score([((0, 1), [one])])[0][0] for one in options]
            together = self.score([((0, 1), options)])[0]
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError):  # it takes no such masks
            return False
        return all(abs(one - other) < most for one, other in zip(apart, together, strict=True))

    def _prefix(self, shared: Tokens, several: bool) -> tuple[Tokens, _State]:
        """The longest part of `shared` that is worth having, with its keys and values."""
        best, length = None, 0
        for known in self._states:
            if (common := len(_common([known, shared]))) > length:
                best, length = known, common
        state: _State = []
        if best is not None:
            self._states.move_to_end(best)
            state = [(k[:, :, :length], v[:, :, :length]) for k, v in self._states[best]]
        if several and len(shared) - length >= WORTH_KEEPING:
            tree = _Tree(length)
            tree.add(shared[length:])
            state = self._forward(tree, state, [0])[1]
            length = len(shared)
            self._states[shared] = state
            while len(self._states) > KEPT_PREFIXES:
                self._states.popitem(last=False)
        return shared[:length], state

    def _passes(
        self, questions: Sequence[tuple[Sequence[int], Sequence[Tokens]]], prefix: Tokens, state: _State
    ) -> list[list[float]]:
        """The scores, in as many passes as the tokens need; neighbours in the alphabet share the most."""
        order = sorted(range(len(questions)), key=lambda number: tuple(questions[number][0]))
        found: list[list[float]] = [[] for _ in questions]
        members: list[Any] = []
        tree = _Tree(len(prefix))
        for number in order:
            prompt, options = questions[number]
            if members and len(tree.tokens) + len(prompt) - len(prefix) + sum(map(len, options)) > PACK:
                self._read(tree, members, state, found)
                tree, members = _Tree(len(prefix)), []
            end = tree.add(tuple(prompt)[len(prefix) :])
            spots = []
            for option in options:
                last = tree.add(option[:-1], end)
                spots.append([*zip(tree.path(last, len(option)), option, strict=True)])
            members.append((number, spots))
        if members:
            self._read(tree, members, state, found)
        return found

    def _read(self, tree: _Tree, members: Any, state: _State, found: list[list[float]]) -> None:
        places = sorted({place for _, spots in members for option in spots for place, _ in option})
        logs, _ = self._forward(tree, state, places)
        row = {place: number for number, place in enumerate(places)}
        for number, spots in members:
            found[number] = [sum(float(logs[row[place], token]) for place, token in option) for option in spots]

    def _forward(self, tree: _Tree, state: _State, places: Sequence[int]) -> tuple[torch.Tensor, _State]:
        """(places, vocabulary) log-probabilities of what follows the tokens at `places`; keys and values of all."""
        from transformers import DynamicCache

        device, past = self.model.device, tree.start
        cache = DynamicCache(state) if state else DynamicCache()
        seen = torch.from_numpy(tree.seen()).to(device)
        depth = torch.tensor(tree.depths, device=device)
        before = torch.cat([torch.arange(past, device=device), depth])
        out = self.model(
            input_ids=torch.tensor([tree.tokens], device=device),
            attention_mask=attention_masks(self.model, _additive(seen, self.model.dtype), depth, before),
            position_ids=depth[None],
            use_cache=True,
            logits_to_keep=torch.tensor(places, device=device),
            **{self._cache: cache},
        )
        logs = torch.log_softmax(out.logits[0].float(), -1)
        return logs, [(layer.keys, layer.values) for layer in cache.layers]


class _Tree:
    """Tokens below a prefix of `start` tokens: each has a parent (-1: the prefix) and a depth, its position."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def add(self, tokens: Sequence[int], below: int = -1) -> int:
        """Hang a sequence below a token; the place of its last one."""
        for token in tokens:
            place = self._children.get((below, token))
            if place is None:
                place = self._children[below, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(below)
                self.depths.append(self.start if below < 0 else self.depths[below] + 1)
            below = place
        return below

    def path(self, last: int, length: int) -> list[int]:
        """The `length` places that end with `last`, from the top."""
        found = [last]
        while len(found) < length:
            found.append(self.parents[found[-1]])
        return found[::-1]

    def seen(self) -> np.ndarray:
        """(tokens, start + tokens) which tokens each one sees."""
        count = len(self.tokens)
        seen = np.zeros((count, self.start + count), bool)
        prefix = np.arange(self.start + count) < self.start
        for place, parent in enumerate(self.parents):
            seen[place] = prefix if parent < 0 else seen[parent]
            seen[place, self.start + place] = True
        return seen


def attention_masks(model: Any, seen: torch.Tensor, depths: torch.Tensor, before: torch.Tensor) -> Any:
    """What the layers of a model are told that tokens see; one that has windows sees no further back than they are.

    Args:
        model: a causal one.
        seen: (…, tokens, keys), which keys each token sees: bool, or what attention adds to its scores.
        depths, before: (…, tokens) and (…, keys), their positions.

    Returns:
        a mask as `seen`, or one for each kind of layer where only some have windows.
    """
    config = model.config.get_text_config()
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None) or ()
    near = seen
    if window:
        unseen = torch.finfo(seen.dtype).min if seen.is_floating_point() else False
        near = seen.masked_fill(depths[..., :, None] - before[..., None, :] >= window, unseen)
    if "sliding_attention" in kinds:
        return {"full_attention": seen, "sliding_attention": near}
    return seen if kinds else near


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(1, 1, tokens, keys) what attention adds to its scores."""
    added = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)
    return added[None, None]


def _common(sequences: Sequence[Tokens]) -> Tokens:
    """The longest common beginning."""
    first = min(sequences, key=len)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(first, *sequences)))
