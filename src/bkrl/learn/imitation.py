"""Learning from a teacher beside the reward, with a weight that falls to 0 (kickstarting, Schmitt et al. 2018).

The loss is KL(teacher ‖ policy) in the states that the learner visits: for a bot the cross-entropy of its action, for
a policy the divergence from it. Both have the gradient of the cross-entropy with the teacher's distribution.
"""

import torch
from torch import Tensor

from bkrl.learn.rollout import Collector


class Imitation:
    """A loss beside those of PPO, of the same steps, whose weight falls linearly to 0 until so many env steps; nothing
    of it is in a checkpoint. The teacher is the collector's.
    """

    def __init__(self, weight: float, until: int) -> None:
        self.weight, self.until = weight, until
        self._figures: list[Tensor] = []

    def begin(self, collector: Collector) -> bool:
        """An update begins, which learns from what was collected last; whether the loss has any weight in it."""
        assert collector.taught is not None
        begun = collector.step - collector.rollout.rewards.size
        self.now = self.weight * max(0.0, 1 - begun / self.until)
        self.wanted = collector.taught.flatten(0, 1).softmax(-1)
        self._figures.clear()
        return self.now > 0

    def loss(self, index: Tensor, logits: Tensor) -> Tensor:
        """Of the steps `index`, flat t * N + n, whose `logits` are (B, A) now; its weight included."""
        wanted = self.wanted.index_select(0, index)
        found = (torch.xlogy(wanted, wanted) - wanted * logits.log_softmax(-1)).sum(-1).mean()
        with torch.no_grad():
            agreed = (wanted.argmax(-1) == logits.argmax(-1)).float().mean()
            self._figures.append(torch.stack([found, agreed]))
        return self.now * found

    def metrics(self) -> dict[str, float]:
        """The divergence in nats, how often both find the same action likeliest, and the weight."""
        kl, agreed = torch.stack(self._figures).mean(0).tolist()
        return {"imitate/kl": kl, "imitate/agreement": agreed, "imitate/weight": self.now}
