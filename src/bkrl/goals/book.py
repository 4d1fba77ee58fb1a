"""The book of situations: what was suggested in each, which deeds that pays, and how good the suggestions are."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.family import GoalSpace
from bkrl.goals.closed import ClosedSuggester
from bkrl.goals.match import Matcher, normal
from bkrl.goals.protocol import Goals, Suggester
from bkrl.llm.session import AskSession

QUALITIES: Final = ("good", "bad_timing", "nonsense", "impossible")
"""Suggested by the env's rules too; possible, but not here; a deed that is never possible; no deed at all."""


class BaseBook:
    """What books have in common.

    Attributes:
        suggester: who is asked about what is met first; None: only what is in the book counts (an agent that is
            evaluated).
    """

    suggester: Any = None

    @property
    def session(self) -> AskSession | None:
        """Who is asked, if anybody."""
        return self.suggester.session if self.suggester else None

    def entries(self) -> Any:
        """What was met, in its order, as a policy file keeps it."""
        raise NotImplementedError

    def saved(self) -> dict[str, Any]:
        """The entries as JSON, and what asking took."""
        book = np.frombuffer(json.dumps(self.entries(), ensure_ascii=False).encode(), np.uint8).copy()
        return {"book": book, **(self.suggester.account.state() if self.session else {})}

    def facts(self) -> dict[str, Any]:
        """Who suggested, and what a manifest says of it."""
        return {"suggester": self.suggester.name, **self.suggester.facts()} if self.suggester else {}


class Kinds:
    """A row for each situation, zeros at first; those of one kind are kept once, since many situations have the same.

    Attributes:
        rows: of each kind; the first is zeros.
        which: the kind of each situation.
    """

    def __init__(self, *shape: int, dtype: Any) -> None:
        self.rows, self.which = np.zeros((1, *shape), dtype), np.zeros(1, np.int32)
        self._numbers: dict[Any, int] = {}

    def __getitem__(self, at: Any) -> NDArray[Any]:
        """As of an array of all rows; `at` may be (situations, columns)."""
        return self.rows[self.which[at[0]], at[1]] if isinstance(at, tuple) else self.rows[self.which[at]]

    def put(self, situation: int, kind: Any, row: Any) -> None:
        """This row for a situation; all of the kind have it."""
        number = self.which[situation] = self._numbers.setdefault(kind, len(self._numbers) + 1)
        self.rows = roomy(self.rows, number)
        self.rows[number] = row


def roomy(rows: NDArray[Any], last: int) -> NDArray[Any]:
    """Rows up to the last one that is needed, and perhaps more, of zeros."""
    while last >= len(rows):
        rows = np.concatenate([rows, np.zeros_like(rows)])
    return rows


class GoalBook(BaseBook):
    """A row for each situation that was met. A suggester is asked about a situation when it is met first.

    Args:
        situations: of the env.
        suggester: suggests goals, or nobody.
        matcher: says which deeds reach a goal.

    Attributes:
        pays: (K, A) float32, what each deed pays in each situation; 0 for all while no goals are known.
        unmatched: (K,) suggestions that no deed reaches. Both are `Kinds`, as `sensible` is.
    """

    def __init__(self, situations: GoalSpace, suggester: Suggester | None, matcher: Matcher) -> None:
        self.situations, self.suggester, self.matcher = situations, suggester, matcher
        A = len(situations.deeds)
        self.goals: dict[int, Goals | None] = {}
        self._row_of: dict[int, int] = {}
        self.pays, self.unmatched = Kinds(A, dtype=np.float32), Kinds(dtype=np.int64)
        self._sensible, self._to_judge = Kinds(A, dtype=bool), list[int]()
        self.possible = np.array([deed in situations.possible for deed in situations.deeds])
        # Many situations have the same goals
        self._mask = lru_cache(1 << 12)(lambda deeds: np.array([deed in deeds for deed in situations.deeds]))
        self._matched = lru_cache(1 << 12)(self._match)
        # Sorted keys and their rows, so that a look-up of many keys is one search. Those that came last are not among
        # them: sorting at each arrival took most of the time once a run had met a hundred thousand.
        self._sorted, self._rows = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def rows(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) situations → (N,) their rows; new ones are entered, and asked about."""
        places = np.searchsorted(self._sorted, keys)
        known = places < len(self._sorted)
        known[known] = self._sorted[places[known]] == keys[known]
        rows = np.empty(len(keys), np.int64)
        rows[known] = self._rows[places[known]]
        if not known.all():
            late = keys[~known].tolist()
            new = {key for key in late if key not in self._row_of}
            if new:
                self._enter(sorted(new))
            rows[~known] = [self._row_of[key] for key in late]
        return rows

    @property
    def met(self) -> int:
        """How many situations were met."""
        return len(self.goals)

    @property
    def sensible(self) -> Kinds:
        """(K, A) the deeds that make sense there by the rules of the env: worked out when it is asked for, since an
        agent that is evaluated never asks.
        """
        for key in self._to_judge:
            deeds = self.situations.sensible(key)
            self._sensible.put(self._row_of[key], deeds, self._mask(deeds))
        self._to_judge.clear()
        return self._sensible

    def poll(self) -> int:
        """Take in what the suggester has found meanwhile; how many situations that were."""
        came = self.suggester.poll() if self.suggester else {}
        for key, goals in came.items():
            self._write(key, goals)
        return len(came)

    def _enter(self, keys: list[int]) -> None:
        for one in (self.pays, self.unmatched, self._sensible):
            one.which = roomy(one.which, len(self._row_of) + len(keys))
        found = self.suggester.suggest(keys) if self.suggester else [None] * len(keys)
        for key, goals in zip(keys, found, strict=True):
            self._row_of[key] = len(self._row_of)
            self._to_judge.append(key)
            self.goals[key] = None
            if goals is not None:
                self._write(key, goals)
        if len(self._row_of) > 1.125 * len(self._sorted):
            met = np.fromiter(self._row_of, np.int64, len(self._row_of))
            self._rows = np.argsort(met)
            self._sorted = met[self._rows]

    def _match(self, goals: Goals) -> tuple[Goals, NDArray[np.float32], int]:
        """Goals in their normal form, what each deed is paid for them, and how many no deed reaches."""
        goals = tuple(dict.fromkeys(map(normal, goals)))
        pays = self.matcher(goals)
        return goals, pays.max(0, initial=0.0), int((pays.max(1, initial=0.0) == 0).sum())

    def _write(self, key: int, goals: Goals) -> None:
        self.goals[key], pays, unmatched = self._matched(goals)
        for one, row in ((self.pays, pays), (self.unmatched, unmatched)):
            one.put(self._row_of[key], self.goals[key], row)

    def entries(self) -> dict[str, Any]:
        """The lists of goals that differ, the situations, and which list is whose: many situations have the same."""
        lists: dict[Goals | None, int] = {}
        which = [lists.setdefault(self.goals[key], len(lists)) for key in self._row_of]
        return {"goals": list(lists), "keys": list(self._row_of), "which": which}

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `saved` returned. Situations without goals are asked about again."""
        entries = told_entries(json.loads(bytes(saved["book"])))
        told = [key for key, goals in entries if goals is not None]
        if told and isinstance(self.suggester, ClosedSuggester):  # it knows situations by their words
            self.suggester.suggest(told)
        if self.session:
            self.suggester.account.restore(saved)
        self._row_of.clear()
        self._to_judge.clear()
        self.goals.clear()
        self._sorted, self._rows = self._sorted[:0], self._rows[:0]
        self.pays.which[:], self.unmatched.which[:] = 0, 0
        self.enter(entries)
        waiting = [key for key, goals in entries if goals is None]
        for key, found in zip(waiting, self.suggester.suggest(waiting) if self.suggester else [], strict=False):
            if found is not None:
                self._write(key, found)

    def enter(self, entries: Sequence[tuple[int, Sequence[str] | None]]) -> None:
        """Situations in their order, with the goals that are known; nothing is asked."""
        suggester, self.suggester = self.suggester, None
        self._enter([key for key, _ in entries])
        self.suggester = suggester
        for key, goals in entries:
            if goals is not None:
                self._write(key, tuple(goals))


def told_entries(document: Any) -> list[tuple[int, Sequence[str] | None]]:
    """What `GoalBook.entries` wrote, or files of before, which repeat the goals of each situation."""
    if isinstance(document, list):
        return [(int(key), goals) for key, goals in document]
    lists = document["goals"]
    return [(int(key), lists[one]) for key, one in zip(document["keys"], document["which"], strict=True)]
