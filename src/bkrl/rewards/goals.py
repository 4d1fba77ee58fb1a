"""A reward stream of goals reached, paid as they are, or as a potential that keeps the task's optimum."""

from typing import Any, Literal

import numpy as np

from bkrl.data.windows import Rollout
from bkrl.goals.places import PlaceTracker
from bkrl.goals.tracker import GoalTracker
from bkrl.rewards.streams import RewardStream

GoalForm = Literal["bonus", "potential"]


class GoalReward(RewardStream):
    """What goals pay.

    With "bonus" the stream is what the tracker paid. With "potential" it is γΦ(h') − Φ(h), where Φ(h) is what the
    episode has paid so far; Φ of a true end is 0, and where an episode is cut off Φ stays, unless `cut_ends` (published
    defect b10). The log is emptied.
    """

    whole = "Goals are followed through episodes"
    name = "goals"
    episodic = True

    def __init__(
        self,
        tracker: GoalTracker | PlaceTracker,
        gamma: float,
        coef: float = 1.0,
        form: GoalForm = "bonus",
        *,
        cut_ends: bool = False,
    ) -> None:
        self.tracker, self.gamma, self.coef, self.form, self.cut_ends = tracker, gamma, coef, form, cut_ends
        tracker.log = []

    def rewards(self, rollout: Rollout) -> np.ndarray:
        """(T, N) float32."""
        log, self.tracker.log = self.tracker.log or [], []
        if len(log) != len(rollout.rewards):
            raise ValueError(f"{len(log)} steps were followed, and the rollout has {len(rollout.rewards)}")
        paid, before, after = (np.stack(column) for column in zip(*log, strict=True))
        if self.form == "bonus":
            return paid
        return (self.gamma * after * ~rollout.ends(self.cut_ends) - before).astype(np.float32)

    def metrics(self) -> dict[str, float]:
        """Shares of goals of each quality since training began, and how many situations, or questions, were met."""
        shares: dict[str, Any] = self.tracker.shares()
        figures = {f"goals/{what}_{name}": share for what, found in shares.items() for name, share in found.items()}
        return figures | {"goals/situations": float(self.tracker.book.met)}
