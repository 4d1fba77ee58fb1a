"""Goals of an env in which things are put away: pick up what is out of place, put it where it belongs.

As published (Du et al. 2023, Housekeep): with empty hands, each visible thing that is somewhere it does not belong is
to be picked up; with a thing in hand, each place seen in this episode where it belongs is where to put it. Who knows
what belongs where is a judge (`goals.judges`), asked once about each thing and place that is met.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.data.views import Views
from bkrl.envs import placing
from bkrl.envs.family import Placed, TidyGoalSpace
from bkrl.envs.housekeep.labels import truth
from bkrl.goals.belonging import plain_judge
from bkrl.goals.book import BaseBook
from bkrl.goals.judges import Judge, Question, scores
from bkrl.goals.tracker import BaseTracker, PayRule

PLACES: Final = "places"
QUALITIES: Final = ("good", "wrong")
"""By the votes: what is to be picked up is out of place, and is to be put where it belongs; or not."""
COSTS: Final = {"scaled": (-0.1, -0.08), "clipped": (-0.25, -0.2), "none": (0.0, 0.0)}
"""What picking up or putting down costs where it is no goal, and what a grab or release that fails costs, with goals
that pay 1. Published are 2.5, -.25 and -.2, which the published learner clips to 1, -.25 and -.2."""


class PlaceBook(BaseBook):
    """What a judge said of each thing and place that was met.

    Args:
        placing: names the things and places.
        judge: the suggester, or nobody.
        threshold: the probability that yes must exceed.

    Attributes:
        yes: (O, P) float64, the probability that things belong in places; NaN while it is not known.
        asked: (O, P) bool, the pairs that were met.
    """

    def __init__(self, placing: TidyGoalSpace, judge: Judge | None, threshold: float = 0.5) -> None:
        self.placing, self.suggester, self.threshold = placing, judge, threshold
        shape = (len(placing.things), len(placing.places))
        self.yes, self.asked, self._open = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape, bool)
        self._thing = {name: number for number, name in enumerate(placing.things)}
        self._place = {name: number for number, name in enumerate(placing.places)}

    @property
    def met(self) -> int:
        """How many pairs were met."""
        return int(self.asked.sum())

    def meet(self, things: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Ask about pairs (M,), (M,) that were not met before."""
        new = ~self.asked[things, places]
        if not new.any():
            return
        pairs = np.unique(np.stack([things[new], places[new]], 1), axis=0)
        self.asked[tuple(pairs.T)] = True
        self._ask(pairs)

    def _ask(self, pairs: NDArray[np.int64]) -> None:
        if self.suggester is None or not len(pairs):
            return
        said = self.suggester.judge([(self.placing.things[o], self.placing.places[p]) for o, p in pairs.tolist()])
        for (o, p), yes in zip(pairs.tolist(), said, strict=True):
            self._open[o, p] = yes is None
            self.yes[o, p] = np.nan if yes is None else yes

    def poll(self) -> int:
        """Take in what the judge has found meanwhile; how many answers that were."""
        came: Mapping[Question, float] = self.suggester.poll() if self.suggester and self._open.any() else {}
        for (thing, place), yes in came.items():
            pair = self._thing[thing], self._place[place]
            self.yes[pair], self._open[pair] = yes, False
        return len(came)

    def wanted(self, placed: Placed) -> NDArray[np.bool_]:
        """(N, K + P) whether each deed is a goal; pairs that are needed for it are asked about."""
        n = np.arange(len(placed.things))
        free = placed.held < 0
        shown = placed.visible & free[:, None] & (placed.things >= 0)
        reach = placed.seen & ~free[:, None]
        if self.suggester is not None and not self.suggester.knows:
            return np.concatenate([shown, reach], 1)
        lies = shown & (placed.place >= 0)
        in_hand = np.where(free, 0, placed.things[n, placed.held])
        rows, cols = np.nonzero(reach)
        self.meet(np.concatenate([placed.things[lies], in_hand[rows]]), np.concatenate([placed.place[lies], cols]))
        where = np.maximum(placed.place, 0)
        wrong = lies & (self.yes[np.maximum(placed.things, 0), where] <= self.threshold)
        return np.concatenate([wrong, reach & (self.yes[in_hand] > self.threshold)], 1)

    def entries(self) -> list[list[Any]]:
        """Thing, place and probability (None: not known) of each pair that was met, in words."""
        pairs = np.argwhere(self.asked).tolist()
        named = [(self.placing.things[o], self.placing.places[p], self.yes[o, p]) for o, p in pairs]
        return [[thing, place, None if yes != yes else float(yes)] for thing, place, yes in named]

    def enter(self, entries: Sequence[Sequence[Any]]) -> None:
        """Take back what `entries` gave; nothing is asked."""
        self.yes[:], self.asked[:], self._open[:] = np.nan, False, False
        for thing, place, yes in entries:
            pair = self._thing[thing], self._place[place]
            self.asked[pair], self.yes[pair] = True, np.nan if yes is None else float(yes)

    def saved(self) -> dict[str, Any]:
        """See `BaseBook`; and which pairs have no answer yet."""
        again = self._open.copy()
        for thing, place in self.suggester.failed if self.session else ():
            again[self._thing[thing], self._place[place]] = True
        return {"open": again, **super().saved()}

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `saved` returned. Pairs without an answer are asked about again."""
        self.enter(json.loads(bytes(saved["book"])))
        if self.session:
            self.suggester.account.restore(saved)
        self._ask(np.argwhere(saved["open"]))


@dataclass
class PlaceSource:
    """Goals of this kind in any number of envs, as a value that a policy file can hold; see `goals.source.Source`.

    Attributes:
        env_id: the env.
        book: what belongs where.
        rule, costs, shown: see `PlaceTracker`.
        plain: name, accuracy and seed of a judge that asks nobody, so that a policy file can name it; {} for others,
            whose book is kept instead.
    """

    env_id: str
    book: PlaceBook
    rule: PayRule = "once"
    costs: str = "scaled"
    shown: bool = True
    plain: dict[str, Any] = field(default_factory=dict)
    reads_mission: ClassVar[bool] = False

    @property
    def num_deeds(self) -> int:
        """How many deeds can be goals."""
        return self.book.placing.slots + len(self.book.placing.places)

    @property
    def unanswered(self) -> tuple[int, int]:
        """Of how many questions no answer came, and how many were asked."""
        return int(np.isnan(self.book.yes[self.book.asked]).sum()), self.book.met

    def facts(self, tracker: PlaceTracker) -> dict[str, Any]:
        """What a manifest says: who suggested, how its answers compare with the votes, how good the goals were."""
        told = self.book.entries()
        real = truth(self.book.placing.house)
        figures = scores(
            [yes for _, _, yes in told], [real[thing, place] for thing, place, _ in told], self.book.threshold
        )
        accuracy = {name: None if value != value else value for name, value in asdict(figures).items()}
        return {**self.book.facts(), "answers": accuracy, "quality": tracker.shares()}

    def of(self, num_envs: int) -> PlaceTracker:
        return PlaceTracker(self.book, num_envs, self.rule, self.costs, self.shown)

    to_learn = of

    def to_json(self) -> dict[str, Any]:
        return {
            "name": PLACES,
            "env_id": self.env_id,
            "rule": self.rule,
            "costs": self.costs,
            "shown": self.shown,
            "threshold": self.book.threshold,
            "plain": self.plain,
            "book": [] if self.plain else self.book.entries(),
        }

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> PlaceSource:
        """The source that `to_json` described. It asks nobody: what its book does not hold is not known."""
        known, plain = placing(document["env_id"]), dict(document["plain"])
        book = PlaceBook(known, plain_judge(house=known.house, **plain) if plain else None, document["threshold"])
        book.enter(document["book"])
        return cls(document["env_id"], book, document["rule"], document["costs"], document["shown"], plain)


class PlaceTracker(BaseTracker):
    """Sets the goals of N agents (`agents.protocol.Goals`) in such an env and says what their last actions paid.

    As published: a goal that is reached pays, once an episode for each thing picked up and for each thing put away; a
    thing that was put away is not wanted any more. What is no goal costs something (`COSTS`).

    Args:
        book: who knows what belongs where.
        num_envs: N.
        rule: "once", as above; "damped" divides the n-th payment of a deed in training by √n; "always" pays each time.
        costs: a key of `COSTS`.
        shown: whether agents see their goals; if not, all that they see is 0.
    """

    def __init__(
        self, book: PlaceBook, num_envs: int, rule: PayRule = "once", costs: str = "scaled", shown: bool = True
    ) -> None:
        N, self.K = num_envs, book.placing.slots
        deeds = self.K + len(book.placing.places)
        super().__init__(book, N, deeds, rule, shown, QUALITIES)
        self.costs = COSTS[costs]
        self._wanted = np.zeros((N, deeds), bool)
        self._before = _empty(N, book.placing)
        self._picked, self._put = np.zeros((N, self.K), bool), np.zeros((N, self.K), bool)

    def __call__(self, views: Views, started: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """(N, D) 1 where a deed is a goal now; `started` as in `Agent.act`."""
        self._picked[started], self._put[started], self.reached[started] = False, False, 0.0
        self.book.poll()
        n = np.arange(len(started))
        self._before = placed = self.book.placing.read(views.symbols)
        self._wanted = self.book.wanted(placed)
        if self.rule == "once":
            self._wanted[:, : self.K] &= ~self._put
            self._wanted[:, self.K :] &= ~(self._put[n, placed.held] & (placed.held >= 0))[:, None]
        good = np.count_nonzero(self._wanted & placed.good)
        self.quality["suggested"] += np.array([good, np.count_nonzero(self._wanted) - good])
        return self._wanted.view(np.uint8) if self.shown else np.zeros(self._wanted.shape, np.uint8)

    def happened(
        self, actions: NDArray[np.int64], infos: Mapping[str, Any], after: NDArray[np.uint8] | None = None
    ) -> None:
        """The agents took `actions` (N,) and the envs returned `infos`: goals are reached, and paid."""
        n = np.arange(len(actions))
        deed, failed = self.book.placing.done(infos, self._before)
        did, picks = deed >= 0, (deed >= 0) & (deed < self.K)
        got = did & self._wanted[n, deed]
        pay = got.astype(np.float64)
        slot = np.where(picks, deed, np.maximum(self._before.held, 0))
        if self.rule == "once":
            pay[picks & self._picked[n, slot]] = 0
        elif self.rule == "damped":
            self._damp(pay, deed)
        self._picked[n[picks], slot[picks]] = True
        puts = got & ~picks
        self._put[n[puts], slot[puts]] = True
        good = np.count_nonzero((pay > 0) & self._before.good[n, deed])
        self.quality["paid"] += np.array([good, np.count_nonzero(pay) - good])
        self._pay(pay, self.costs[0] * (did & ~got) + self.costs[1] * failed)

    def _own(self) -> dict[str, NDArray[Any]]:
        own = {"wanted": self._wanted, "picked": self._picked, "put": self._put}
        return super()._own() | own | {f"before.{name}": one for name, one in self._before._asdict().items()}


def _empty(N: int, placing: TidyGoalSpace) -> Placed:
    """Before anything was seen."""
    K, P = placing.slots, len(placing.places)
    no = np.full((N, K), -1)
    hidden = np.zeros((N, K), bool)
    return Placed(
        no, hidden, no.copy(), np.full(N, -1), np.zeros((N, P), bool), np.zeros((N, K + P), bool), np.zeros(N, int)
    )
