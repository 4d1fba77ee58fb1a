"""Preferences asked for while a policy learns: pairs of short segments of its own experience, asked about beside it.

Answers come when they come, and are accepted at fixed steps alone. What is accepted is noted in the run's folder before
anything is made of it (`ACCEPTED`). A run that goes on from an earlier checkpoint accepts the same answers at the same
steps again, however quick the annotator is by then.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.documents import Mismatch
from bkrl.core.errors import InputError, RunFailed
from bkrl.core.files import check_checksum, with_checksum
from bkrl.core.lines import LineFile, read_rows
from bkrl.core.prefixes import under
from bkrl.core.seeds import derive_seed, generator
from bkrl.data.partition import partition
from bkrl.data.windows import Rollout, Windows
from bkrl.envs import make_vec
from bkrl.labelers.answers import CHOICE_SCHEMA, Unparsed, parse_choice
from bkrl.labelers.asking import Sampling, turns
from bkrl.labelers.material import EnvCard, SegmentText
from bkrl.labelers.preferences import pair_prompt
from bkrl.llm.protocol import Exchange, Request, address
from bkrl.llm.session import STOPPED, AskSession
from bkrl.text import prompts

ACCEPTED: Final = "accepted.jsonl"
_LABELS: Final = {"A": 1.0, "tie": 0.5, "B": 0.0}
_WAITING, _UNUSABLE = -2.0, -1.0
_CHANCE: Final = 20
"""Segments of random play that a forecast looks at in each env."""
_SIDES = ("a", "b", "pool")
_MEND = "restore it, or begin again with --fresh"


class _Point(TypedDict):
    """A line of `ACCEPTED`: labels of pairs by their questions, -1 where the answer cannot be used."""

    step: int
    labels: dict[str, float]
    crc: int


class LiveComparisons:
    """Pairs of segments, and what the annotator of a session prefers.

    Args:
        session: of the annotator; closed by whoever opened it.
        card: of the env; prompts name no task.
        caption: (B, *obs_shape) uint8 → B captions.
        length: actions in a segment.
        count: pairs to ask about each time.
        sampling: how answers are drawn.
        seed: of what is compared.
        wait: wait for each answer, so that a run without kept replies has the same bytes as one with them.

    Attributes:
        a, b: the P pairs asked about so far.
        groups: (P,) of which env both segments are, so far as `data.partition` tells them apart.
        labels: (P,) float64, 1 where A is better, 0.5 for a tie, 0 where B is; negative without a usable answer.
    """

    a: Windows
    b: Windows

    def __init__(
        self,
        session: AskSession,
        card: EnvCard,
        caption: Callable[[NDArray[np.uint8]], list[str]],
        obs_shape: tuple[int, ...],
        *,
        length: int,
        count: int,
        sampling: Sampling,
        seed: int,
        wait: bool = False,
    ) -> None:
        self.session, self.card, self.caption = session, card, caption
        self.length, self.count, self.sampling, self.seed = length, count, sampling, seed
        self.at_once = session.backend.identity is None or wait
        nothing = Windows.of(
            np.zeros((0, length + 1, *obs_shape), np.uint8),
            np.zeros((0, length), np.int64),
            np.zeros((0, length + 1), bool),
        )
        self.a = self.b = self._pool = nothing
        self.groups = self._pool_groups = np.zeros(0, np.int64)
        self.labels = np.zeros(0)
        self.rollouts = 0
        self._said: set[str] = set()
        self._waiting: dict[str, tuple[int, Request]] = {}
        self._noted: dict[int, dict[str, float]] = {}
        self._file: LineFile | None = None

    @property
    def usable(self) -> NDArray[np.int64]:
        """The pairs that have a label."""
        return np.flatnonzero(self.labels >= 0)

    def open(self, folder: Path) -> None:
        """Note in this folder what is accepted, and read what was noted there.

        Raises:
            InputError: the file is damaged.
            RunFailed: it cannot be written.
        """
        path = folder / ACCEPTED
        for number, row in enumerate(read_rows(path, _Point, mend=_MEND), 1):
            try:
                check_checksum(row)
            except Mismatch:
                raise InputError(f"{path} is damaged at line {number}; {_MEND}.") from None
            self._noted[row["step"]] = row["labels"]
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise RunFailed(f"{path} cannot be written ({error.strerror}).") from None

    def close(self) -> None:
        """Close that file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def offer(self, rollout: Rollout) -> None:
        """Take in what may be compared: of each env the segment that ends after one action of this rollout."""
        steps, envs = rollout.rewards.shape
        t = int(generator(self.seed, "live", "moment", self.rollouts).integers(steps))
        self.rollouts += 1
        ended, rows = rollout.final_index // envs == t, np.arange(envs)
        rows[rollout.final_index[ended] % envs] = envs + np.arange(np.count_nonzero(ended))
        following = rollout.windows(self.length, t + 1, t + 1), rollout.final_windows(self.length)[ended]
        windows = Windows.joined(following)[rows]
        whole = np.flatnonzero(windows.valid.all(1))
        self._pool = Windows.joined([self._pool, windows[whole]])
        self._pool_groups = np.concatenate([self._pool_groups, whole])

    def ask(self, step: int, last: bool = False) -> None:
        """Ask about pairs of what was offered since the last time. A segment is asked about once, by its words. `last`:
        nothing is accepted after this step, so that what is neither kept nor waited for is not sent.
        """
        first, second = self._drawn(step).T
        known = len(self.labels)
        self.a, self.b = (Windows.joined([old, self._pool[rows]]) for old, rows in ((self.a, first), (self.b, second)))
        self.groups = np.concatenate([self.groups, self._pool_groups[first]])
        self.labels = np.concatenate([self.labels, np.full(len(first), _WAITING)])
        self._pool, self._pool_groups = self._pool[:0], self._pool_groups[:0]
        self._send(np.arange(known, len(self.labels)), last)

    def accept(self, step: int) -> None:
        """Take in the answers that have come; those that were noted for this step, where some were."""
        came = self._noted.get(step)
        if came is None or not came.keys() <= self._waiting.keys():
            came = self._arrived()
            self._note(step, came)
        else:
            self.session.count_again([self._waiting[question][1] for question in came])
        for question, label in came.items():
            self.labels[self._waiting.pop(question)[0]] = label

    def by_chance(self, env_id: str, num_envs: int) -> list[Request]:
        """Questions such as `ask` would send, about random play; nothing is sent or remembered."""
        envs, rng = make_vec(env_id, num_envs), generator(self.seed, "live", "chance")
        seen = [envs.reset(seed=derive_seed(self.seed, "live", "chance"))[0]]
        done: list[NDArray[np.int64]] = []
        ages = np.zeros(num_envs, np.int64)
        for moment in range(1, _CHANCE * self.length + 1):
            done.append(rng.integers(0, len(self.card.action_names), num_envs))
            observations, _, terminated, truncated, _ = envs.step(done[-1])
            seen.append(observations)
            ages = np.where(terminated | truncated, 0, ages + 1)
            if moment % self.length == 0:
                whole = np.flatnonzero(ages >= self.length)
                views = np.stack(seen[-self.length - 1 :], 1)[whole]
                actions = np.stack(done[-self.length :], 1)[whole]
                self._pool = Windows.joined([self._pool, Windows.of(views, actions, np.ones(views.shape[:2], bool))])
                self._pool_groups = np.concatenate([self._pool_groups, whole])
        envs.close()
        first, second = self._drawn(0).T
        texts = [self._texts(self._pool[rows]) for rows in (first, second)]
        self._pool, self._pool_groups, self._said = self._pool[:0], self._pool_groups[:0], set()
        return [self._request(a, b) for a, b in zip(*texts, strict=True)]

    def facts(self) -> dict[str, Any]:
        return {
            "pairs": len(self.labels),
            "labelled": len(self.usable),
            "ties": int((self.labels == _LABELS["tie"]).sum()),
            "unusable": int((self.labels == _UNUSABLE).sum()),
            "waiting": int((self.labels == _WAITING).sum()),
        }

    # ------------------------------------------------------------------------------------------------------- asking

    def _texts(self, windows: Windows) -> list[SegmentText]:
        """Segments in words."""
        count, rows = windows.valid.shape
        captions = self.caption(windows.observations.reshape(count * rows, *windows.observations.shape[2:]))
        names = [prompts.name(action) for action in self.card.action_names]
        return [
            SegmentText(tuple(captions[i * rows : (i + 1) * rows]), tuple(names[action] for action in actions))
            for i, actions in enumerate(windows.actions.tolist())
        ]

    def _drawn(self, step: int) -> NDArray[np.int64]:
        """(n, 2) rows of the pool to be compared, both of a pair in one part of `data.partition`."""
        texts = self._texts(self._pool)
        parts = partition(self._pool_groups).tolist()
        single: dict[int, int] = {}
        pairs: list[tuple[int, int]] = []
        met: set[str] = set()
        for index in generator(self.seed, "live", "pairs", step).permutation(len(texts)).tolist():
            if len(pairs) == self.count:
                break
            name, part = _name(texts[index]), parts[index]
            if name in self._said or name in met:
                continue
            met.add(name)
            if part in single:
                pairs.append((single.pop(part), index))
            else:
                single[part] = index
        self._said |= {_name(texts[index]) for pair in pairs for index in pair}
        return np.array(pairs, np.int64).reshape(-1, 2)

    def _request(self, a: SegmentText, b: SegmentText) -> Request:
        return self.sampling.request(turns(pair_prompt(self.card, a, b)), CHOICE_SCHEMA, 0)

    def _send(self, rows: NDArray[np.int64], last: bool) -> None:
        """Ask about these pairs; those that are to be waited for are asked about when they are wanted. See `ask`."""
        noted = {question for point in self._noted.values() for question in point}
        new: list[Request] = []
        for row, a, b in zip(rows.tolist(), self._texts(self.a[rows]), self._texts(self.b[rows]), strict=True):
            request = self._request(a, b)
            question = _question(request)
            self._waiting[question] = row, request
            if not self.at_once and question not in noted:
                new.append(request)
        self.session.submit(new, send=not last)

    def _arrived(self) -> dict[str, float]:
        """Labels of the waiting pairs whose answers are there, in the order of asking."""
        if self.at_once:
            exchanges = self.session.ask([request for _, request in self._waiting.values()])
        else:
            exchanges = self.session.poll()
        found = {_question(one.request): _label(one) for one in exchanges if one.reason != STOPPED}
        return {question: found[question] for question in self._waiting if question in found}

    def _note(self, step: int, labels: Mapping[str, float]) -> None:
        if self._file is None:
            return
        try:
            self._file.append(json.dumps(with_checksum({"step": step, "labels": dict(labels)})))
            self._file.sync()
        except OSError as error:
            raise RunFailed(
                f"What was accepted cannot be noted ({error.strerror}); free some space and run again."
            ) from None

    # -------------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {
            f"{side}.{name}": array
            for side, windows in zip(_SIDES, (self.a, self.b, self._pool), strict=True)
            for name, array in windows.arrays().items()
        }
        return arrays | {
            "groups": self.groups,
            "labels": self.labels,
            "pool.groups": self._pool_groups,
            "rollouts": np.array([self.rollouts]),
            **self.session.state(),
        }

    def restore(self, state: Mapping[str, NDArray[Any]], last: bool = False) -> None:
        """Take back what `state` returned, and ask again about what waited for an answer; see `ask`."""
        sides = (under(state, f"{side}.") for side in _SIDES)
        self.a, self.b, self._pool = (Windows.of(one["observations"], one["actions"], one["valid"]) for one in sides)
        self.groups, self._pool_groups = state["groups"], state["pool.groups"]
        self.labels, self.rollouts = state["labels"].copy(), int(state["rollouts"][0])
        self._said = {_name(text) for windows in (self.a, self.b) for text in self._texts(windows)}
        self.session.restore(state)
        self._waiting.clear()
        self._send(np.flatnonzero(self.labels == _WAITING), last)


def _name(text: SegmentText) -> str:
    return "\n".join([*text.captions, *text.actions])


def _question(request: Request) -> str:
    """What tells a question from others, also where it is asked again with more room for the reply."""
    return address([(message.role, message.text) for message in request.messages], request.sample)


def _label(exchange: Exchange) -> float:
    choice = Unparsed("") if exchange.answer is None else parse_choice(exchange.answer)
    return _UNUSABLE if isinstance(choice, Unparsed) else _LABELS[choice]
