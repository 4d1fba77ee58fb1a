"""Small language models learn to read: spans of a text that are left out (Raffel et al. 2020), or what comes next.

A T5 is given every other text with gaps, which it fills, and of the others the beginning, which it goes on from (as
Lester et al. 2021, arXiv 2104.08691, adapt T5). Gaps alone teach it to begin every answer with the same token, whatever
the prompt, and what it knows of the prompt then does not reach the scores and values of a policy. A decoder alone is
given a text and says each next token. Both may then learn answers to prompts. A step of this learner is one update;
what it reads in an update hangs on its number alone.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from bkrl.agents.language.models import LanguageModel
from bkrl.agents.language.packing import Tokens
from bkrl.agents.language.reading import TextPair, cross_entropy_of
from bkrl.agents.networks.adam import Adam
from bkrl.core.seeds import generator
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.on_rollouts import Diverged, moments, restore_moments
from bkrl.learn.protocol import Learner, Saved

_ITERATION = 20
_CORRUPTED, _SPAN = 0.15, 3
_CONTINUED = 0.5
_WARM_UP = 50


class Pretrainer(Learner):
    """A `Learner` that trains a language model; nothing acts.

    Args:
        lm: its weights are trained.
        texts: to read, as tokens.
        pairs: prompts and answers, learnt after reading.
        steps, pair_steps: updates of both kinds.
        batch: texts or pairs in an update.
        rate: the learning rate, which rises for 50 updates and then falls to 0.
        sentinels: tokens that stand for gaps, in their order.
        seed: of batches and gaps.
    """

    agent: Any = None
    hardware: Hardware = CPU

    def __init__(
        self,
        lm: LanguageModel,
        texts: Sequence[Tokens],
        pairs: Sequence[TextPair],
        *,
        steps: int,
        pair_steps: int,
        batch: int,
        rate: float,
        sentinels: Sequence[int],
        seed: int,
    ) -> None:
        self.lm, self.texts, self.pairs, self.batch, self.rate, self.seed = lm, texts, pairs, batch, rate, seed
        self.sentinels, self.steps, self.total_steps = sentinels, steps, steps + pair_steps
        self.eos = int(lm.tokenizer.eos_token_id)
        self.step = 0
        self.parameters = list(lm.model.parameters())
        self.optimizer = Adam(self.parameters, lr=rate, eps=1e-8)

    def iterate(self) -> dict[str, float]:
        """Twenty updates; the mean cross-entropy of a token, in nats, and seconds.

        Raises:
            Diverged: it is not finite.
        """
        began = time.perf_counter()
        losses = []
        for _ in range(min(_ITERATION, self.total_steps - self.step)):
            rate = min(1.0, (self.step + 1) / _WARM_UP) * (1 - self.step / self.total_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * rate
            self.optimizer.zero_grad()
            loss = cross_entropy_of(self.lm, self._pairs(self.step))
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            losses.append(loss.item())
            self.step += 1
        mean = float(np.mean(losses))
        if not np.isfinite(mean):
            raise Diverged(f"Reading diverged at update {self.step:,}: begin again with --fresh and a smaller --rate.")
        return {"lm/loss": mean, "time/update": time.perf_counter() - began}

    def _pairs(self, step: int) -> list[TextPair]:
        """What update `step` reads."""
        rng = generator(self.seed, "batch", step)
        if step >= self.steps:
            return [self.pairs[i] for i in rng.integers(0, len(self.pairs), self.batch).tolist()]
        chosen = rng.integers(0, len(self.texts), self.batch).tolist()
        return [self.pair(self.texts[i], rng) for i in chosen]

    def pair(self, text: Tokens, rng: np.random.Generator) -> TextPair:
        """A text as what is given and what is to be said of it."""
        if self.lm.kind == "causal":
            return TextPair((), (*text, self.eos))
        if len(text) > 1 and rng.random() < _CONTINUED:
            cut = int(rng.integers(1, len(text)))
            return TextPair(text[:cut], (*text[cut:], self.eos))
        given, said = with_gaps(text, self.sentinels, rng)
        return TextPair(given, (*said, self.eos))

    @torch.no_grad()
    def held_out(self, texts: Sequence[Tokens]) -> float:
        """The mean cross-entropy of texts, their gaps drawn from a stream of its own."""
        rng = generator(self.seed, "held out")
        batches = [texts[i : i + self.batch] for i in range(0, len(texts), self.batch)]
        pairs = ([self.pair(text, rng) for text in batch] for batch in batches)
        return float(np.mean([cross_entropy_of(self.lm, batch).item() for batch in pairs]))

    def state(self) -> Saved:
        tensors: dict[str, Any] = {f"weights.{index}": one for index, one in enumerate(self.parameters)}
        return Saved(tensors | moments(self.optimizer, self.parameters), {"step": self.step}, exact=True)

    @torch.no_grad()
    def restore(self, saved: Saved) -> None:
        self.step = int(saved.counters["step"])
        for index, parameter in enumerate(self.parameters):
            parameter.copy_(torch.from_numpy(saved.tensors[f"weights.{index}"]))
        restore_moments(self.optimizer, self.parameters, saved.tensors)

    def facts(self) -> dict[str, Any]:
        return self.hardware.facts(self.parameters)


def with_gaps(text: Tokens, sentinels: Sequence[int], rng: np.random.Generator) -> tuple[Tokens, Tokens]:
    """A text with sentinels for gaps, 15 % of it in spans of about three tokens; and the sentinels with what is there.

    "go to the red ball" may become "go <0> red <1>" and "<0> to the <1> ball".
    """
    n = len(text)
    count = min(len(sentinels), max(1, round(n * _CORRUPTED / _SPAN)))
    gap = np.zeros(n + 1, bool)
    for start in rng.choice(n, min(count, n), replace=False).tolist():
        gap[start : min(n, start + int(rng.integers(1, 2 * _SPAN)))] = True
    given: list[int] = []
    said: list[int] = []
    number = 0
    for place, token in enumerate(text):
        if not gap[place]:
            given.append(token)
            continue
        if not place or not gap[place - 1]:
            given.append(sentinels[number])
            said.append(sentinels[number])
            number += 1
        said.append(token)
    return tuple(given), tuple(said)
