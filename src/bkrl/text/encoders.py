"""Text encoders for goal potentials: each text becomes a unit vector, the same one in every process.

`hash` needs nothing: words, pairs of words and letter triples are hashed into a fixed number of places, weighted by
how rarely they occur in the texts of the dataset, so that "you see" says little and "purple" much.  `hf:NAME_OR_PATH`
is any Transformers encoder on this machine, mean-pooled over its tokens; `minilm` is one of them, all-MiniLM-L6-v2
(after Wang et al. 2020, arXiv 2002.10957), which `bkrl lm fetch minilm` brings.  Nothing is fetched here.
Each encoder embeds a text once and remembers it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NotRequired, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import Flag
from bkrl.core.hub import HERE, is_place, model_folder, quiet, read_model, read_tokenizer, reason
from bkrl.core.models import fetched, find

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
"""Its name in the local cache of Hugging Face, where it is looked for if `bkrl lm fetch minilm` did not bring it."""
_WORD = re.compile(r"\w+")


class TextEncoder(Protocol):
    """Texts → unit vectors."""

    name: str
    size: int

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, size) float32 with rows of length 1 (0 for an empty text); row i depends on text i alone."""

    def settings(self) -> dict[str, Any]:
        """What `open_encoder` needs to make the same encoder again, as plain values."""


class _Remembering:
    """Embeds every distinct text once, by itself: a vector cannot depend on what else is in the batch."""

    size: int

    def __init__(self) -> None:
        self._known: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        for text in texts:
            if text not in self._known:
                self._known[text] = self.embed(text)
        return np.stack([self._known[text] for text in texts]) if texts else np.zeros((0, self.size), np.float32)

    def embed(self, text: str) -> NDArray[np.float32]:
        """(size,) the vector of one text."""
        raise NotImplementedError


class HashEncoder(_Remembering):
    """Hashed words, word pairs and letter triples; `rarity` gives each word's weight, unknown words get the largest."""

    name = "hash"

    def __init__(self, rarity: Mapping[str, float] | None = None, size: int = 192) -> None:
        super().__init__()
        self.rarity = dict(rarity or {})
        self.size = size
        self._unknown = max(self.rarity.values(), default=1.0)

    @classmethod
    def fit(cls, *corpora: Iterable[str], size: int = 192) -> HashEncoder:
        """Weights from how many of the n texts of a corpus hold a word: ln((n + 1) / (count + 1)), at least 0.05.

        With several corpora (captions, goals) a word's weight is its smallest: what every caption says tells as little
        as what every goal says.  Numbers weigh 0.05.
        """
        weights: dict[str, float] = {}
        for corpus in corpora:
            documents = [set(words(text)) for text in corpus]
            counts = Counter(word for document in documents for word in document)
            for word, count in counts.items():
                weight = max(0.05, math.log((len(documents) + 1) / (count + 1)))
                weights[word] = min(weight, weights.get(word, weight))
        return cls({word: round(weight, 4) for word, weight in sorted(weights.items())}, size)

    def embed(self, text: str) -> NDArray[np.float32]:
        vector = np.zeros(self.size)
        for feature, weight in self._features(text).items():
            digest = hashlib.blake2b(feature.encode(), digest_size=8).digest()
            number = int.from_bytes(digest, "little")
            vector[number % self.size] += weight if number >> 63 else -weight
        norm = np.linalg.norm(vector[None], axis=1)[0]
        return (vector / (norm if norm > 0 else 1.0)).astype(np.float32)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "rarity": self.rarity}

    def _features(self, text: str) -> Counter[str]:
        features: Counter[str] = Counter()
        said = words(text)
        for word in said:
            weight = 0.05 if word.isdigit() else self.rarity.get(word, self._unknown)
            features[f"w:{word}"] += weight  # type: ignore[assignment]
            padded = f"<{word}>"
            for i in range(len(padded) - 2):
                features[f"c:{padded[i : i + 3]}"] += 0.3 * weight / math.sqrt(len(padded) - 2)  # type: ignore[assignment]
        for first, second in pairwise(said):
            pair = 0.5 * min(self.rarity.get(first, self._unknown), self.rarity.get(second, self._unknown))
            features[f"p:{first} {second}"] += pair  # type: ignore[assignment]
        return features


class HuggingFaceEncoder(_Remembering):
    """A Transformers encoder by name or path, mean-pooled over its tokens and normalised.

    Texts go through one at a time: padding to a common length changes the last bits of a vector.
    """

    def __init__(self, where: str, name: str, max_length: int = 256) -> None:
        super().__init__()
        folder = model_folder(where)
        import torch
        from safetensors import SafetensorError
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

        self._torch, self.name = torch, name
        try:
            self._tokenizer = read_tokenizer(where, folder)
            decodes = AutoConfig.from_pretrained(folder, **HERE).is_encoder_decoder
            with quiet(), torch.device("cpu"):  # agents are built on "meta" first (`check_fit`)
                model = read_model(AutoModelForTextEncoding if decodes else AutoModel, folder)
                self._model = model.eval().requires_grad_(False)
                self.size = int(self._model.config.hidden_size)
                positions = getattr(self._model.config, "max_position_embeddings", max_length)
                self._most = min(max_length, positions, self._tokenizer.model_max_length)
                self.probe = self.embed("a red ball, seen once").tolist()[:8]  # enough to know it by
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
            text = f"The text encoder {where} cannot be loaded ({reason(error)}); "
            remedy = "name the folder of a whole one." if is_place(where) else f"run `hf download {where}`."
            raise InputError(text + remedy) from None

    def embed(self, text: str) -> NDArray[np.float32]:
        """(size,) the mean of the last layer over all tokens of one text, at length 1."""
        with self._torch.no_grad():
            tokens = self._tokenizer(text, truncation=True, max_length=self._most, return_tensors="pt")
            if not tokens["input_ids"].numel():  # an empty text, without tokens about its ends
                return np.zeros(self.size, np.float32)
            mean = self._model(**tokens).last_hidden_state[0].float().mean(0)
            vector: NDArray[np.float32] = (mean / mean.norm().clamp(min=1e-12)).numpy()
        return vector

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "probe": self.probe}


def words(text: str) -> list[str]:
    """Lower-case words, a plural s taken off, so that "steps" and "step" are one."""
    found = _WORD.findall(text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]


def check_encoder(name: str) -> None:
    """UsageError unless `name` is "hash", "minilm" or "hf:NAME_OR_PATH"."""
    if name not in ("hash", "minilm") and not (name.startswith("hf:") and len(name) > 3):
        raise UsageError(f"There is no encoder '{name}'; use hash, minilm or hf:NAME_OR_PATH.")


def fit_encoder(name: str, *corpora: Iterable[str]) -> TextEncoder:
    """An encoder for a new potential; `hash` measures on the corpora how rare words are."""
    check_encoder(name)
    return HashEncoder.fit(*corpora) if name == "hash" else _loaded(name)


class EncoderSettings(TypedDict):
    """What `settings` of an encoder gives: `rarity` of the hash encoder, `probe`, of a vector, of others."""

    name: str
    size: Annotated[int, Flag("", least=1, most=2**16)]
    rarity: NotRequired[dict[str, float]]
    probe: NotRequired[list[float]]


def open_encoder(settings: EncoderSettings) -> TextEncoder:
    """The encoder an artefact names; InputError where another model has that name now."""
    if settings["name"] == "hash":
        return HashEncoder(settings.get("rarity"), settings["size"])
    check_encoder(settings["name"])
    encoder = _loaded(settings["name"])
    probe = settings.get("probe", encoder.probe)
    if len(probe) != len(encoder.probe) or not np.allclose(probe, encoder.probe, atol=1e-3):
        raise InputError(
            f"The text encoder {encoder.name} is another model than the one that was trained with; bring that one back."
        )
    return encoder


@cache
def _loaded(name: str) -> HuggingFaceEncoder:
    """One model, and one memory of texts, for everything in this process that names it."""
    return HuggingFaceEncoder(str(_minilm()) if name == "minilm" else name.removeprefix("hf:"), name)


def _minilm() -> Path:
    """The folder of MiniLM, from the catalogue or from the local cache of Hugging Face."""
    if not find("minilm").here:
        with suppress(InputError):
            return model_folder(MINILM)
    return fetched("minilm")
