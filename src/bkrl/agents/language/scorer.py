"""How likely a language model finds each action's name after a prompt, and the policy that is made of it.

Three rules were published under the name of GLAM (Carta et al. 2023, arXiv 2302.02662; Lamorel), and they are different
policies. With S the summed log-probability of a name's tokens, π = softmax of

    prob        exp(S) / max exp(S), at most e / (e + A - 1) for any action: .576 for A = 3, .352 for 6, .254 for 9
    logit       the sum of raw logits, and 1 for each token that a name is shorter than the longest
    logprob     S
    restricted  S, where only tokens of some candidate count: the model need not name an action otherwise

Equal prompts are scored once, those of about one length together, and the candidates of a prompt in one row
(`packing`). The first prompts are scored the plain way too; where the two differ, all are from then on, with a warning.
"""

import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bkrl.agents.language.bodies import Body, Causal, Lower, Seq2Seq
from bkrl.agents.language.models import LanguageModel
from bkrl.agents.language.packing import Packed, Prompts
from bkrl.agents.networks.layers import in_float32
from bkrl.core.errors import InputError
from bkrl.text.policy_prompts import Chat

Rule = Literal["logprob", "restricted", "prob", "logit"]
Normalise = Literal["none", "token", "word", "unconditional"]
_TOLERANCE = 1e-4
_SLOW = "all are scored one by one from here on, which is right and several times slower"
_KEPT = 2**14
"""So many prompts are kept as tokens."""
_CHECKED = 4
"""So many prompts are scored both ways on first use."""


@dataclass(frozen=True)
class Scoring:
    """What makes a policy of token probabilities.

    Attributes:
        rule: see the module.
        normalise: divide a score by the name's tokens or words, or take off what the name scores after no prompt
            (`unconditional`): long names are else less likely than short ones, whatever the prompt.
        temperature: divides what the softmax is taken of.
        eos: whether the end of the text counts as a token of each name.
        bias: (A,) of the names, taken off the policy's logits: what a name scores whatever the prompt. (): nothing.
    """

    rule: Rule = "logprob"
    normalise: Normalise = "none"
    temperature: float = 1.0
    eos: bool = False
    bias: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scored:
    """What a model says of B prompts and A candidates.

    Attributes:
        logits: (B, A) float32, of the policy.
        scores: (B, A) float32, of the names, before temperature and `prob`'s exponential.
        hidden: (B, D), the state before the first token of an answer.
    """

    logits: Tensor
    scores: Tensor
    hidden: Tensor


class Scorer:
    """Scores A candidates after prompts.

    Args:
        lm: the model, whose weights may change meanwhile.
        names: the candidates.
        scoring: how token probabilities become a policy.
        packed: score the candidates of a prompt in one row; otherwise each in a row of its own.
        frozen: so many lower layers of a causal model are frozen.
        half: layers compute in bfloat16; logits, and what is checked on first use, in float32.
        most_tokens: prompts are scored together up to so many tokens, which bounds memory.

    Raises:
        InputError: a name becomes no token, or two names the same tokens.
    """

    def __init__(
        self,
        lm: LanguageModel,
        names: Sequence[str],
        scoring: Scoring | None = None,
        *,
        packed: bool = True,
        frozen: int = 0,
        half: bool = False,
        most_tokens: int = 2**14,
    ) -> None:
        self.lm, self.names, self.scoring, self.most_tokens = lm, tuple(names), scoring or Scoring(), most_tokens
        self.half = half
        if half:  # oneDNN keeps a plan of each shape that it multiplies, and prompts have hundreds: some .6 GB
            os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
        self.candidates = lm.candidates(self.names, self.scoring.eos)
        self._words = torch.tensor([max(1, len(name.split())) for name in self.names])
        self.body: Body
        if lm.kind == "seq2seq":
            self.body = Seq2Seq(lm.model, self.candidates, lm.start, frozen)
        else:
            self.body = Causal(lm.model, self.candidates, frozen)
        self.packed = packed and self.body.packs
        self._checked = not self.packed
        if packed and not self.packed:
            warnings.warn(f"{lm.name} is not built as T5 is, so {_SLOW}.", RuntimeWarning, stacklevel=2)
        self._read: dict[str | Chat, list[int]] = {}
        self._room = max((len(one) for one in self.candidates), default=1) - 1

    def prompts(self, texts: Sequence[str | Chat]) -> Prompts:
        """Prompts as tokens; InputError for one that is longer than the model reads."""
        rows = [self._tokens(text) for text in texts]
        longest = max(map(len, rows)) + self._room
        if self.lm.limit is not None and longest > self.lm.limit:
            raise InputError(
                f"A prompt has {longest} tokens with its answers, and {self.lm.name} reads {self.lm.limit}; let the "
                "policy see fewer observations, or choose another model."
            )
        return Prompts.of(rows, self.lm.pad)

    def _tokens(self, text: str | Chat) -> list[int]:
        """A prompt as tokens. An update reads again what its rollout has read, so the newest are kept."""
        if text not in self._read:
            if len(self._read) == _KEPT:
                self._read.clear()
            self._read[text] = self.lm.tokens(text)
        return self._read[text]

    def can_split(self) -> bool:
        """Whether a part of the body is frozen, so that `lower` can be computed once for all epochs."""
        below = self.body.below() if self.packed else []
        return bool(below) and not any(parameter.requires_grad for parameter in below)

    @torch.no_grad()
    def lower(self, prompts: Prompts) -> Lower:
        """States of the frozen part for each of the prompts."""
        B, S = prompts.tokens.shape
        kept: dict[str, Tensor] = {}
        for rows in self.body.together(prompts, self.most_tokens):
            with self._products(prompts):
                made = self.body.lower(prompts.rows(rows))
            for name, states in made.items():
                width = S if name == "states" else states.shape[1]
                if name not in kept:
                    kept[name] = states.new_zeros(B, width, states.shape[2])
                kept[name][rows, : states.shape[1]] = states
        return kept

    def together(self, prompts: Prompts, most_tokens: int) -> list[Tensor]:
        """Numbers of prompts in groups of up to so many distinct tokens, neighbours with what they begin with alike."""
        first, inverse = _distinct(prompts)
        groups = self.body.together(prompts if first is None else prompts.rows(first), most_tokens)
        return groups if inverse is None else [torch.isin(inverse, group).nonzero()[:, 0] for group in groups]

    def __call__(self, prompts: Prompts, lower: Lower | None = None) -> Scored:
        """Score prompts.

        Args:
            prompts: from `prompts`.
            lower: what `lower` said of them; None computes it on the way.
        """
        if not self._checked:
            self._check(prompts)
        first, inverse = _distinct(prompts)
        kept, chosen = prompts, dict(lower or {})
        if first is not None:
            kept = prompts.rows(first)
            chosen = {name: states.index_select(0, first) for name, states in chosen.items()}
        parts: list[tuple[Tensor, Tensor]] = []
        groups = self.body.together(kept, self.most_tokens)
        for rows in groups:
            part = {name: states.index_select(0, rows) for name, states in chosen.items()}
            parts.append(self._score(kept.rows(rows), part))
        back = torch.cat(groups).argsort()
        back = back if inverse is None else back[inverse]
        scores, hidden = (torch.cat(one).index_select(0, back) for one in zip(*parts, strict=True))
        if self.scoring.normalise == "unconditional":
            nothing = Prompts.of([self.lm.nothing], self.lm.pad).to(prompts.tokens.device)
            scores = scores - self._score(nothing, {})[0]
        return Scored(policy_logits(scores, self.scoring), scores, hidden)

    def _products(self, prompts: Prompts) -> AbstractContextManager[object]:
        return torch.autocast(prompts.tokens.device.type, torch.bfloat16) if self.half else nullcontext()

    def _score(self, prompts: Prompts, lower: Lower) -> tuple[Tensor, Tensor]:
        """(B, A) scores and (B, D) first states, in the order of the prompts."""
        packed = self.body.packed.to(prompts.tokens.device)
        if self.packed:
            with self._products(prompts):
                states = self.body.read(prompts, lower)
            with in_float32(states):  # a product rounded to 8 bits would move ratios by percents
                logits = self.body.logits(states.float())
            hidden = states[:, 0]
            source = packed.source
        else:
            every, hidden = self.body.rows(prompts, self.candidates)
            logits = every[:, :, : packed.target.shape[1]].float().flatten(1, 2)
            source = torch.arange(logits.shape[1], device=logits.device).view(packed.target.shape)
        tokens = token_scores(logits, packed, source, self.scoring.rule)
        scores = tokens.sum(2)
        if self.scoring.normalise == "token":
            scores = scores / packed.lengths
        elif self.scoring.normalise == "word":
            scores = scores / self._words.to(scores.device)
        return scores, hidden

    @torch.no_grad()
    def _check(self, prompts: Prompts) -> None:
        """Score some prompts both ways; where they differ, warn and leave packing."""
        some = prompts.rows(torch.arange(min(_CHECKED, len(prompts.tokens)), device=prompts.tokens.device))
        half, self.half = self.half, False
        try:
            with torch.autocast(prompts.tokens.device.type, enabled=False):
                said = self._score(some, self.body.lower(some) if self.can_split() else {})[0]
                self.packed = False
                plain = self._score(some, {})[0]
        finally:
            self.half, self.packed = half, True
        apart = float(((said - plain).abs() / plain.abs().clamp(min=1.0)).max())
        self.packed, self._checked = apart <= _TOLERANCE, True
        if not self.packed:
            warnings.warn(
                f"{self.lm.name} does not score packed candidates as it scores them one by one (they differ by "
                f"{apart:.1e}); {_SLOW}.",
                RuntimeWarning,
                stacklevel=2,
            )


def token_scores(logits: Tensor, packed: Packed, source: Tensor, rule: Rule) -> Tensor:
    """(B, A, M) what each token adds to the score of its candidate.

    Args:
        logits: (B, P, V) float32.
        source: (A, M) which of the P says how likely a token is.
        rule: see the module.
    """
    said = logits[:, source, packed.target]
    if rule == "logit":
        return torch.where(packed.inside, said, torch.ones_like(said))
    if rule == "restricted":
        logits = logits.index_select(2, packed.columns)
    return torch.where(packed.inside, said - logits.logsumexp(2)[:, source], torch.zeros_like(said))


def policy_logits(scores: Tensor, scoring: Scoring) -> Tensor:
    """(B, A) logits of the policy that scores (B, A) make."""
    if scoring.rule == "prob":
        scores = (scores - scores.amax(1, keepdim=True)).exp()
    logits = scores / scoring.temperature
    return logits - logits.new_tensor(scoring.bias) if scoring.bias else logits


def _distinct(prompts: Prompts) -> tuple[Tensor | None, Tensor | None]:
    """The first row of each distinct prompt, and for each prompt the number of its own; None, None: all are."""
    B = len(prompts.tokens)
    keyed = torch.cat([prompts.lengths[:, None], prompts.tokens], 1)
    found, inverse = keyed.unique(dim=0, return_inverse=True)
    if len(found) == B:
        return None, None
    places = torch.arange(B, device=inverse.device)
    first = inverse.new_full((len(found),), B).scatter_reduce(0, inverse, places, "amin")
    return first, inverse
