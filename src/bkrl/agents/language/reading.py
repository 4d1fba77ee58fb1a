"""How well a language model says a text after another: what it is trained by where it does not act."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import cross_entropy

from bkrl.agents.language.models import LanguageModel
from bkrl.agents.language.packing import Prompts, Tokens

_IGNORED = -100


class TextPair(NamedTuple):
    """The tokens given, and those to be said after them."""

    given: Tokens
    said: Tokens


def cross_entropy_of(lm: LanguageModel, pairs: Sequence[TextPair]) -> Tensor:
    """The mean cross-entropy of the tokens to be said, float32."""
    if lm.kind == "seq2seq":
        given = Prompts.of([one.given or tuple(lm.nothing) for one in pairs], lm.pad)
        fed = Prompts.of([(lm.start, *one.said[:-1]) for one in pairs], lm.pad).tokens
        logits = lm.model(
            input_ids=given.tokens, attention_mask=given.mask.long(), decoder_input_ids=fed, use_cache=False
        ).logits
        target = Prompts.of([one.said for one in pairs], _IGNORED).tokens
    else:
        whole = Prompts.of([one.given + one.said for one in pairs], lm.pad)
        logits = lm.model(input_ids=whole.tokens, attention_mask=whole.mask.long(), use_cache=False).logits[:, :-1]
        behind = [(_IGNORED,) * len(one.given) + one.said for one in pairs]
        target = Prompts.of(behind, _IGNORED).tokens[:, 1:]
    return cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=_IGNORED)
