"""ECHO's auxiliary loss (arXiv 2605.24517): a language model that acts also learns to say what its actions bring.

After the prompt of a step and the name of the action taken there, the tokens of what was seen next are to be said; the
loss of a step is their mean cross-entropy, so that a minibatch may be computed in parts. Where an episode ended, what
was seen is its last observation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bkrl.agents.language.agent import LanguageAgent
from bkrl.agents.language.reading import Pair, cross_entropy_of
from bkrl.core.errors import InputError
from bkrl.learn.rollout import Collector


class Echo:
    """See `Auxiliary`.

    Args:
        agent: whose model learns.
        weight: of the loss.
    """

    def __init__(self, agent: LanguageAgent, weight: float) -> None:
        self.agent, self.weight = agent, weight
        self._losses: list[Tensor] = []

    def begin(self, collector: Collector) -> None:
        """Put what was seen and done, and what came of it, into tokens; InputError for more than the model reads."""
        self._losses.clear()
        lm, T, r = self.agent.lm, collector.num_steps, collector.rollout
        prompts, index = self.agent.prompts(collector.views[:T].flat())
        given, self.index = [tuple(lm.tokens(prompt)) for prompt in prompts], index
        after = collector.views[1 : T + 1].flat().text
        assert after is not None
        after = after.copy()
        if len(r.final_index):
            assert collector.final_views.text is not None
            after[r.final_index] = collector.final_views.text
        texts = [", ".join(sentence.removesuffix(".") for sentence in sentences) for sentences in after]
        known = {text: self._said(text) for text in dict.fromkeys(texts)}
        self.given, self.after = given, [known[text] for text in texts]
        self.names, self.actions = self.agent.scorer.candidates, r.actions.ravel()
        longest = max(map(len, given)) + max(map(len, self.names)) + max(map(len, known.values()))
        if lm.limit is not None and longest > lm.limit:
            raise InputError(
                f"A prompt with what is seen after it has up to {longest} tokens, and {lm.name} reads {lm.limit}; let "
                "the policy see fewer observations, or leave --echo out."
            )

    def loss(self, index: Tensor, logits: Tensor) -> Tensor:
        del logits
        pairs = [self._pair(step) for step in index.tolist()]
        found = cross_entropy_of(self.agent.lm, pairs, self.agent.device, each=True)
        self._losses.append(found.detach())
        return self.weight * found.mean()

    def metrics(self) -> dict[str, float]:
        """The mean cross-entropy of a token, in nats; of the steps that this process computed."""
        return {"ppo/echo_loss": float(torch.cat(self._losses).mean())} if self._losses else {}

    def _pair(self, step: int) -> Pair:
        name = self.names[int(self.actions[step])]
        return Pair(self.given[int(self.index[step])], (*name, *self.after[step]), len(name))

    def _said(self, text: str) -> tuple[int, ...]:
        tokenizer = self.agent.lm.tokenizer
        space = " " if self.agent.lm.kind == "causal" and not self.agent.lm.chat else ""
        tokens = tuple(tokenizer(space + text, add_special_tokens=False)["input_ids"])
        end = tokenizer.eos_token_id
        return tokens if end is None else (*tokens, int(end))
