"""Tokenizers that are trained on the texts of an env: pairs of bytes that are often neighbours become one token.

Byte-pair encoding (Sennrich et al. 2016) on bytes: words of the texts become one token each, any other word is spelt in
smaller ones, and no text is unknown. The same texts give the same tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAD = "<pad>"
"""Token 0, which stands behind the end of shorter texts."""
_BYTES = 256


class Tokenizer:
    """Texts → numbers of tokens, by a tokenizer of the library."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.size = int(inner.get_vocab_size())

    @classmethod
    def trained(cls, texts: Iterable[str], most: int) -> Tokenizer:
        """The tokenizer of these texts, with at most `most` tokens, the 256 bytes and the padding among them."""
        from tokenizers import Tokenizer as Inner
        from tokenizers import decoders, models, pre_tokenizers, trainers

        inner = Inner(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=max(most, _BYTES + 1), initial_alphabet=alphabet, special_tokens=[PAD], show_progress=False
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner)

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(B, S) tokens, padded with 0 to the longest, and (B,) lengths, at least 1."""
        found = [one.ids or [0] for one in self._inner.encode_batch(list(texts))]
        lengths = np.array([len(one) for one in found], np.int64)
        tokens = np.zeros((len(found), lengths.max(initial=1)), np.int64)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.fromiter(chain.from_iterable(found), np.int64)
        return tokens, lengths

    def to_json(self) -> str:
        """A text from which `of_json` makes it again."""
        return str(self._inner.to_str())

    @classmethod
    def of_json(cls, text: str) -> Tokenizer:
        """The tokenizer that `to_json` was called on."""
        from tokenizers import Tokenizer as Inner

        return cls(Inner.from_str(text))
