"""Captioners: which deed a transition is said to be.

A goal is reached when the caption of a transition names it. The published results rest on captions that are true; the
paper's ablation asks what is left with a captioner that errs.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bkrl.core.seeds import generator
from bkrl.envs.family import GoalSpace

Success = Literal["action", "eval", "tried"]
"""When a deed counts as done: by the permissive rule, when the game did it, or when it was tried."""
NOTHING = -1


def first_alike(situations: GoalSpace) -> NDArray[np.int64]:
    """(A,) for each action the first one whose deed is the same, perhaps by another name."""
    first = {deed: number for number, deed in reversed(list(enumerate(situations.deeds)))}
    return np.array([min(first[name] for name in same if name in first) for same in situations.same])


class Captioner:
    """Says of each transition which deed it was.

    Attributes:
        steps: how often it was asked, where what it says depends on that.
        figures: what was measured of it, for manifests.
    """

    steps: int = 0
    figures: dict[str, Any] | None = None

    def __call__(
        self, before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8], infos: Mapping[str, Any]
    ) -> NDArray[np.int64]:
        """(N,) the number of the deed, or `NOTHING`.

        Args:
            before, after: (N, *obs_shape) symbols; `after` holds the true last ones of episodes that ended.
            actions: (N,) what was done.
            infos: of the step.
        """
        raise NotImplementedError


class TrueCaptioner(Captioner):
    """The truth: the action, where the env says that it succeeded."""

    def __init__(self, success: Success = "action") -> None:
        self.success = success

    def __call__(
        self, before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8], infos: Mapping[str, Any]
    ) -> NDArray[np.int64]:
        return actions if self.success == "tried" else np.where(infos[f"{self.success}_success"], actions, NOTHING)


class NoisyCaptioner(Captioner):
    """The truth with a stated accuracy: otherwise another possible deed, or nothing, all equally likely.

    A deed counts once, however many actions and names it has.
    Draws are named after the step, so that they are the same whenever a run goes on.

    Args:
        told: the truth.
        situations: of the env.
        accuracy: share of true captions.
        seed: of the errors.
    """

    def __init__(self, told: Captioner, situations: GoalSpace, accuracy: float, seed: int) -> None:
        self.told, self.accuracy, self.seed = told, accuracy, seed
        self._group = first_alike(situations)
        possible = [number for number, deed in enumerate(situations.deeds) if deed in situations.possible]
        self._others = np.array([NOTHING, *np.unique(self._group[possible])])
        self.steps = 0

    def __call__(
        self, before: NDArray[np.uint8], actions: NDArray[np.int64], after: NDArray[np.uint8], infos: Mapping[str, Any]
    ) -> NDArray[np.int64]:
        true = self.told(before, actions, after, infos)
        rng = generator(self.seed, "captions", self.steps)
        self.steps += 1
        wrong = rng.random(len(true)) >= self.accuracy
        # One of the others: a draw among all but one, moved on past the true one where that is among them
        same = self._others == np.where(true == NOTHING, NOTHING, self._group[true])[:, None]
        place, known = np.argmax(same, 1), same.any(1)
        drawn = (rng.random(len(true)) * (len(self._others) - known)).astype(np.int64)
        return np.where(wrong, self._others[drawn + (known & (drawn >= place))], true)
