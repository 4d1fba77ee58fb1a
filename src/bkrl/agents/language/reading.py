"""How well a language model says a text after another: what it is trained by where it does not act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bkrl.agents.language.models import LanguageModel
from bkrl.agents.language.packing import Prompts, Tokens

_IGNORED = -100


class Pair(NamedTuple):
    """What is given, what is to be said, and how many tokens of that are not learnt."""

    given: Tokens
    said: Tokens
    skipped: int = 0


def cross_entropy_of(
    lm: LanguageModel, pairs: Sequence[Pair], device: torch.device | None = None, each: bool = False
) -> Tensor:
    """The mean cross-entropy of the tokens to be said, float32; with `each` that of each pair, (B,)."""
    device = device or torch.device("cpu")
    wanted = [(_IGNORED,) * one.skipped + one.said[one.skipped :] for one in pairs]
    if lm.kind == "seq2seq":
        given = Prompts.of([one.given or tuple(lm.nothing) for one in pairs], lm.pad).to(device)
        fed = Prompts.of([(lm.start, *one.said[:-1]) for one in pairs], lm.pad).tokens.to(device)
        logits = lm.model(
            input_ids=given.tokens, attention_mask=given.mask.long(), decoder_input_ids=fed, use_cache=False
        ).logits
        target = Prompts.of(wanted, _IGNORED).tokens
    else:
        whole = Prompts.of([one.given + one.said for one in pairs], lm.pad).to(device)
        logits = lm.model(input_ids=whole.tokens, attention_mask=whole.mask.long(), use_cache=False).logits[:, :-1]
        behind = [(_IGNORED,) * len(one.given) + said for one, said in zip(pairs, wanted, strict=True)]
        target = Prompts.of(behind, _IGNORED).tokens[:, 1:]
    target = target.to(device)
    if not each:
        return cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=_IGNORED)
    losses = cross_entropy(logits.transpose(1, 2).float(), target, ignore_index=_IGNORED, reduction="none")
    return losses.sum(1) / (target != _IGNORED).sum(1)
