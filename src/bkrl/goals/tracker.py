"""The goals of N envs through their episodes: what each has before it, what it has done, and what that paid."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import kernel
from bkrl.core.seeds import generator
from bkrl.data.views import Views
from bkrl.goals.book import QUALITIES, BaseBook, GoalBook
from bkrl.goals.captions import NOTHING, Captioner, TrueCaptioner, first_alike

PayRule = Literal["once", "damped", "always"]
"""once: a deed pays once an episode (the paper's novelty bias). damped: the n-th payment of a deed in training is
divided by √n. always: every time."""


class BaseTracker:
    """What trackers (`agents.protocol.Goals`) of N agents have in common: what was paid, and how good goals were.

    Attributes:
        paid: (N,) float32, what the last action of each env paid.
        reached: (N,) float64, the sum of what goals paid in the running episodes, after the last action.
        log: a row for each step, for who empties it: what was paid, `reached` before and after; None: nothing is kept.
        quality: how many goals of each of `qualities` were suggested, and paid.
    """

    def __init__(
        self, book: BaseBook, num_envs: int, deeds: int, rule: PayRule, shown: bool, qualities: Sequence[str]
    ) -> None:
        self.book: Any = book
        self.rule, self.shown, self._qualities = rule, shown, qualities
        self._times = np.zeros(deeds, np.int64)
        self.paid, self.reached = np.zeros(num_envs, np.float32), np.zeros(num_envs)
        self.log: list[tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]] | None = None
        self.quality = {what: np.zeros(len(qualities), np.int64) for what in ("suggested", "paid")}

    def _damp(self, pay: NDArray[np.float64], deeds: NDArray[np.int64]) -> None:
        """Divide the n-th payment of a deed by √n."""
        for i in np.flatnonzero(pay > 0).tolist():
            self._times[deeds[i]] += 1
            pay[i] /= np.sqrt(self._times[deeds[i]])

    def _pay(self, pay: NDArray[np.float64], costs: NDArray[np.float64] | float = 0.0) -> None:
        """Note what goals paid, and what else the step cost."""
        before, self.paid = self.reached.copy(), (pay + costs).astype(np.float32)
        self.reached += pay
        if self.log is not None:
            self.log.append((self.paid, before, self.reached.copy()))

    def _own(self) -> dict[str, NDArray[Any]]:
        """What the next step depends on, beside the book."""
        counts = {f"quality.{what}": counts for what, counts in self.quality.items()}
        return {"times": self._times, "reached": self.reached, **counts}

    def state(self) -> dict[str, Any]:
        """What the next step depends on."""
        return {name: np.array(one) for name, one in self._own().items()} | self.book.saved()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        self.book.restore(state)
        for name, one in self._own().items():
            one[...] = state[name]

    def shares(self) -> dict[str, dict[str, float]]:
        """Of what was suggested and of what was paid: the share of each quality, 0 where there was nothing."""
        return {
            what: dict(zip(self._qualities, (counts / max(1, int(counts.sum()))).tolist(), strict=True))
            for what, counts in self.quality.items()
        }


class GoalTracker(BaseTracker):
    """Sets the goals of N agents (`agents.protocol.Goals`) and says what their last actions paid.

    A goal is before an agent while its deed is suggested in the situation and, under `once`, was not paid in this
    episode; with `wanted`, not yet as often as it is to be done. Deeds with several names ("eat cow", "attack cow") are
    one.

    Args:
        book: the goals of each situation.
        num_envs: N.
        rule: see `PayRule`.
        captioner: says which deed was done.
        shown: whether agents see their goals; if not, all that they see is 0.
        counted: whether the quality of goals is counted.
        wanted: under `once`: deeds, each as often as it is to be done in an episode (`GoalSpace.composition`), for
            1/n the n-th time; others are no goals. (): every deed once.
    """

    def __init__(
        self,
        book: GoalBook,
        num_envs: int,
        rule: PayRule = "once",
        captioner: Captioner | None = None,
        *,
        shown: bool = True,
        counted: bool = False,
        wanted: Sequence[str] = (),
    ) -> None:
        N, deeds = num_envs, book.situations.deeds
        super().__init__(book, N, len(deeds), rule, shown, QUALITIES)
        self.counted = counted
        self.captioner: Captioner = captioner or TrueCaptioner()
        self._seen = np.zeros((N, 0), np.uint8)
        self._group = first_alike(book.situations)
        self._rows = np.zeros(N, np.int64)
        # By the first deed of each group: how often it was paid in the episode, and how often it can be
        self._done = np.zeros((N, len(deeds)), np.int64)
        most = [sum(wanted.count(name) for name in same) if wanted else 1 for same in book.situations.same]
        self._most = np.tile(np.array(most, np.int64)[self._group], (N, 1))

    def __call__(self, views: Views, started: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """(N, A) 1 where a deed is a goal now; `started` as in `Agent.act`."""
        self._done[started], self.reached[started] = 0, 0.0
        self.book.poll()
        self._rows = self.book.rows(self.book.situations.keys(views.symbols))
        self._seen = views.symbols.copy()
        book, goals = self.book, np.empty(self._done.shape, np.uint8)
        self._set, pays = goals, book.pays
        _show(pays.rows, pays.which[self._rows], self._done, self._most, self._group, self.rule == "once", goals)
        if self.counted:
            given, sensible = goals > 0, book.sensible[self._rows]
            good, known = np.count_nonzero(given & sensible), np.count_nonzero(given & (sensible | book.possible))
            unmatched = book.unmatched[self._rows].sum()
            self.quality["suggested"] += [good, known - good, np.count_nonzero(given) - known, unmatched]
        return goals if self.shown else np.zeros_like(goals)

    def happened(
        self, actions: NDArray[np.int64], infos: Mapping[str, Any], after: NDArray[np.uint8] | None = None
    ) -> None:
        """The agents took `actions` (N,), the envs returned `infos`, and the symbols `after` (N, ...) followed: goals
        are reached, and paid.
        """
        n, seen = np.arange(len(actions)), self._seen
        deeds = self.captioner(seen, actions, seen if after is None else after, infos)
        pay = np.where(deeds == NOTHING, 0, self.book.pays[self._rows, deeds]).astype(np.float64)
        group = self._group[deeds]
        if self.rule == "once":
            pay *= (self._done[n, group] < self._most[n, group]) / (self._done[n, group] + 1)
            self._done[n, group] += pay > 0
        elif self.rule == "damped":
            self._damp(pay, group)
        if self.counted:
            got = pay > 0
            sensible, possible = self.book.sensible[self._rows, deeds], self.book.possible[deeds]
            good = np.count_nonzero(got & sensible)
            known = np.count_nonzero(got & possible)
            self.quality["paid"] += np.array([good, known - good, np.count_nonzero(got) - known, 0])
        self._pay(pay)

    def _own(self) -> dict[str, NDArray[Any]]:
        own: dict[str, NDArray[Any]] = {"done": self._done, "rows": self._rows, "seen": self._seen}
        return super()._own() | own | {"captions": np.array(self.captioner.steps)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        self._seen = np.zeros_like(state["seen"])  # of the views of the last call, whose shape is not known before one
        super().restore(state)
        self.captioner.steps = int(state["captions"])


class ProgressTracker(GoalTracker):
    """Sets those of the suggested goals whose success changes: MAGELLAN's idea (Gaven et al. 2025) without its model.

    A deed's progress is the distance of two moving averages, a quick and a slow one, of whether it was reached in the
    episodes in which it was a goal. An episode draws its deeds, each with probability progress / most progress, and at
    least `LEAST`; others are no goals in it. The rule is `once`; `seed` is of the draws.
    """

    LEAST, PACES = 0.2, np.array([[0.05], [0.01]])

    def __init__(self, *args: Any, seed: int, **how: Any) -> None:
        super().__init__(*args, **how)
        self.seed, self._all, self._begun = seed, self._most[0].copy(), np.zeros(1, np.int64)
        self._met, self._rates = np.zeros(self._done.shape, bool), np.zeros((2, self._done.shape[1]))

    def __call__(self, views: Views, started: NDArray[np.bool_]) -> NDArray[np.uint8]:
        for n in np.flatnonzero(started).tolist():
            met = np.flatnonzero(self._met[n])
            self._rates[:, met] += self.PACES * ((self._done[n, self._group[met]] > 0) - self._rates[:, met])
            progress = np.abs(self._rates[0] - self._rates[1])
            chances = np.maximum(self.LEAST, progress / progress.max()) if progress.any() else 1.0
            drawn = generator(self.seed, "progress", int(self._begun[0])).random(len(progress))
            self._most[n], self._met[n], self._begun[0] = self._all * (drawn < chances), False, self._begun[0] + 1
        goals = super().__call__(views, started)
        self._met |= self._set > 0
        return goals

    def _own(self) -> dict[str, NDArray[Any]]:
        return super()._own() | {"most": self._most, "met": self._met, "rates": self._rates, "begun": self._begun}


@kernel
def _show(pays, rows, done, most, group, once, goals):  # type: ignore[no-untyped-def]
    """goals (N, A) = 1 where a deed pays and, with `once`, was not paid as often as it can be."""
    for n in range(len(rows)):
        row = rows[n]
        for a in range(goals.shape[1]):
            goals[n, a] = pays[row, a] > 0 and not (once and done[n, group[a]] >= most[n, group[a]])
