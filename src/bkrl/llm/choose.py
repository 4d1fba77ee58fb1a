"""Closed questions: the answer is one of a few words, and what counts is how likely each of them is.

A question is worded in several ways that mean the same (`Phrasing`): both orders of what is compared, the words of the
answer named in either order, a scale turned round. Averaged log-probabilities cancel what place and word add by
themselves; a question whose phrasings still disagree weighs nothing (`settled`). Where a backend tells no
log-probabilities (`protocol.chances`), the words of several samples vote.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.llm.protocol import LOCAL, Exchange, Message, Request, request_key
from bkrl.llm.session import AskSession

MAX_TOKENS: Final = 200
"""Of a reply, where no log-probabilities are told; room for a model that thinks first."""
MOST_KNOWN: Final = 100
"""So many known answers are enough for a temperature and a bias."""
_COUNTED: Final = ("questions", "with_logprobs", "unclear", "failed")
FLOOR: Final = np.log(1e-4)
"""A word that was not among those told counts as this unlikely: one missing phrasing must not decide alone.

Labels take no word for less likely (`settled`). Goals do (`goals.closed`): by parts, a bias of any size is taken off.
"""

Line = tuple[tuple[Message, ...], tuple[str, ...]]
"""What is sent: the conversation, and the words of which the answer is to be one."""


@dataclass(frozen=True)
class Phrasing:
    """One way to put a question. `outcomes[k]` is the place in `options` of the word that means outcome k."""

    messages: tuple[Message, ...]
    options: tuple[str, ...]
    outcomes: tuple[int, ...]

    @property
    def line(self) -> Line:
        """What is sent."""
        return self.messages, self.options


@dataclass(frozen=True)
class ClosedQuestion:
    """A question in all its phrasings, which have the same K outcomes."""

    phrasings: tuple[Phrasing, ...]


@dataclass(frozen=True)
class ClosedAnswer:
    """`scores`: (V, K) log-probabilities of the outcomes by each phrasing, NaN where its answer was not clear; `exact`:
    whether the backend told them; `exchanges`: of each phrasing.
    """

    scores: NDArray[np.float64]
    exact: bool
    exchanges: tuple[tuple[Exchange, ...], ...]


def read_answer(reply: str, options: Sequence[str]) -> tuple[NDArray[np.float64], bool]:
    """(K,) log-probabilities of the options by a reply, and whether the backend told them; NaN for no clear answer.

    An option whose log-probability is not among those told counts as impossible. Words are clear where the reply
    begins or ends with one option, and not with two different ones; a single digit or letter must be the only one, and
    that, or what ends a reply, counts in none that denies ("1 is worse").
    """
    nothing = np.full(len(options), np.nan)
    try:
        found = json.loads(reply)["logprobs"]
        told = np.array([float(found.get(option, -np.inf)) for option in options])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        named = _named(reply, options)
        return (nothing if named is None else np.where(np.arange(len(options)) == named, 0.0, -np.inf)), False
    except OverflowError:
        return nothing, False
    if np.isnan(told).any() or not np.isfinite(told.max()):
        return nothing, True
    with np.errstate(over="ignore"):
        told = told - told.max()
    return told - np.log(np.exp(told).sum()), True


DENIES: Final = re.compile(
    r"\b(?:no[rt]|neither|never|cannot|dont|wors[et]|wrong|least|less|weake\w+|inferior|losing|loses|loser|avoid|reject\w*|"
    r"against|but)\b|n['’]t\b",
    re.IGNORECASE,
)
"""Words with which a reply may name what it does not choose."""


def _named(reply: str, options: Sequence[str]) -> int | None:
    """The option that the words of a reply name."""
    words = re.findall(r"\w+", reply.lower())
    spelled = [re.findall(r"\w+", option.lower()) for option in options]
    found: set[int] = set()
    for take in (lambda n: words[:n], lambda n: words[len(words) - n :]):
        fits = [k for k, one in enumerate(spelled) if one and take(len(one)) == one]
        found |= {max(fits, key=lambda k: len(spelled[k]))} if fits else set()
    short = {k for k, one in enumerate(spelled) if len("".join(one)) == 1 and one[0] in words}
    if not found or len(found | short) != 1:
        return None
    only = found.pop()
    begins = only not in short and words[: len(spelled[only])] == spelled[only]
    return None if DENIES.search(reply) and not begins and words != spelled[only] else only


def request_of(line: Line, max_tokens: int, effort: str | None, sample: int = 0) -> Request:
    """The `sample`-th request of a line; the first one asks for log-probabilities."""
    messages, options = line
    choices = () if sample else options
    return Request(messages, None, 1.0 if sample else 0.0, max_tokens, effort, sample, choices=choices)


class Chooser:
    """Asks closed questions in a session, each phrasing once for ever.

    Args:
        session: who is asked; closed by whoever opened it.
        votes: samples at temperature 1 that vote where there are no log-probabilities; else the temperature is 0.
        max_tokens, effort: of a reply.
        wait: wait for each answer; else it comes with a later `poll`.
    """

    def __init__(
        self,
        session: AskSession,
        *,
        votes: int = 1,
        max_tokens: int = MAX_TOKENS,
        effort: str | None = None,
        wait: bool = True,
    ) -> None:
        backend = session.backend
        free, local = backend.identity is None, (backend.identity or {}).get("kind") in LOCAL
        once = local or (free and not backend.name.startswith("replay:"))  # another sample would say the same
        self.session, self.votes, self.wait = session, 1 if once else votes, wait or free
        self.max_tokens, self.effort = max_tokens, effort
        self._counts = np.zeros(len(_COUNTED), np.int64)  # of finished lines
        self._heard: dict[Line, list[Exchange]] = {}
        self._read: dict[Line, list[NDArray[np.float64]]] = {}
        self._done: dict[Line, bool] = {}  # finished line → whether the backend told log-probabilities
        self._waiting: dict[str, Line] = {}  # request → line
        self._askers: dict[Line, list[ClosedQuestion]] = {}
        self._came: dict[ClosedQuestion, ClosedAnswer] = {}

    def requests(self, questions: Sequence[ClosedQuestion]) -> list[Request]:
        """The first requests of questions, each once."""
        lines = dict.fromkeys(phrasing.line for question in questions for phrasing in question.phrasings)
        return [request_of(line, self.max_tokens, self.effort) for line in lines]

    def ask(self, questions: Sequence[ClosedQuestion], title: str = "") -> list[ClosedAnswer | None]:
        """The answers in order; None where one has not come yet. Raises what `AskSession.run` raises."""
        new: dict[Line, None] = {}
        for question in questions:
            for line in (phrasing.line for phrasing in question.phrasings):
                if line not in self._heard:
                    new[line] = None
                if line not in self._done:
                    self._askers.setdefault(line, []).append(question)
        self._heard |= {line: [] for line in new}
        self._read |= {line: [] for line in new}
        self._send([(line, 0) for line in new], title)
        found = [self.answer(question) for question in questions]
        self._came.clear()
        return found

    def poll(self) -> dict[ClosedQuestion, ClosedAnswer]:
        """The questions whose last phrasing was answered since the last call."""
        if self._waiting:
            again: list[tuple[Line, int]] = []
            for exchange in self.session.poll():
                again += self._hear(self._waiting.pop(exchange.key), exchange)
            self._send(again)
        came, self._came = self._came, {}
        return came

    def answer(self, question: ClosedQuestion) -> ClosedAnswer | None:
        """What is known of a question; None where a phrasing is still unanswered."""
        if any(phrasing.line not in self._done for phrasing in question.phrasings):
            return None
        scores = np.stack([self._scores(one.line)[list(one.outcomes)] for one in question.phrasings])
        exchanges = tuple(tuple(self._heard[one.line]) for one in question.phrasings)
        return ClosedAnswer(scores, all(self._done[one.line] for one in question.phrasings), exchanges)

    def facts(self) -> dict[str, Any]:
        """What was asked, and what came of it, by phrasings that are finished; `unclear` and `failed` count votes
        singly.
        """
        counts = dict(zip(_COUNTED, self._counts.tolist(), strict=True))
        return {**self.session.backend.facts(), **counts, "waiting": len(self._waiting)}

    def state(self, again: Iterable[ClosedQuestion] = ()) -> dict[str, NDArray[Any]]:
        """What a checkpoint holds: what asking took, but for what will be asked, and counted, once more after
        `restore`: lines that are not finished, and those of the questions `again`.
        """
        lines = {phrasing.line for question in again for phrasing in question.phrasings} & self._done.keys()
        counts = self._counts - sum((self._count(line) for line in lines), np.zeros_like(self._counts))
        left = [some for line, some in self._heard.items() if line in lines or line not in self._done]
        return {"choices": counts, **self.session.state([exchange for some in left for exchange in some])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned, before anything is asked."""
        if "choices" in state:
            self._counts[:] = state["choices"]
        self.session.restore(state)

    def _count(self, line: Line) -> NDArray[np.int64]:
        """What a finished line adds to the counts."""
        failed = sum(one.answer is None for one in self._heard[line])
        unread = sum(bool(np.isnan(one).any()) for one in self._read[line])
        return np.array([1, self._done[line], unread - failed, failed])

    def _scores(self, line: Line) -> NDArray[np.float64]:
        """(K,) of a finished line: what the backend told, or the share of clear votes."""
        read = self._read[line]
        if self._done[line]:
            return read[0]
        clear = [np.exp(one) for one in read if not np.isnan(one).any()]
        with np.errstate(divide="ignore"):
            return np.log(np.mean(clear, 0)) if clear else np.full(len(line[1]), np.nan)

    def _send(self, wanted: Sequence[tuple[Line, int]], title: str = "") -> None:
        """Ask, wait or not, until nothing is left that can be sent now."""
        while wanted:
            again: list[tuple[Line, int]] = []
            requests = [request_of(line, self.max_tokens, self.effort, sample) for line, sample in wanted]
            if self.wait:
                for (line, _), exchange in zip(wanted, self.session.ask(requests, title), strict=True):
                    again += self._hear(line, exchange)
            else:
                for (line, _), request in zip(wanted, requests, strict=True):
                    if (kept := self.session.kept(request)) is None:
                        self._waiting[request_key(self.session.backend.identity or {}, request)] = line
                        self.session.submit([request])
                    else:
                        again += self._hear(line, kept)
            wanted = again

    def _hear(self, line: Line, exchange: Exchange) -> list[tuple[Line, int]]:
        """Take in one answer; the samples that are still to be asked for."""
        heard, answer = self._heard[line], exchange.answer
        scores, exact = (np.full(len(line[1]), np.nan), False) if answer is None else read_answer(answer, line[1])
        exact &= not heard  # only the first request asks for log-probabilities
        heard.append(exchange)
        self._read[line].append(scores)
        if len(heard) == 1 and not exact and answer is not None and self.votes > 1:
            return [(line, sample) for sample in range(1, self.votes)]
        if exact or (answer is None and len(heard) == 1) or len(heard) == self.votes:
            self._done[line] = exact
            self._counts += self._count(line)
            for question in self._askers.pop(line, []):
                if (found := self.answer(question)) is not None:
                    self._came[question] = found
        return []


def settled(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(N, V, K) log-probabilities → (N, K) those of all phrasings together, and (N,) whether the phrasings agree.

    Together: the mean of the log-probabilities, so for two outcomes the mean of the log-odds. Whether phrasings agree
    (on the likeliest outcome) is looked at once what each of them adds on average over all N questions is taken away:
    an annotator that mostly names the first of two still orders questions by how sure of it it is. A question with an
    unclear phrasing is NaN and agrees with nothing.
    """
    centred = np.maximum(scores, FLOOR)
    centred = centred - centred.mean(2, keepdims=True)
    clear = ~np.isnan(centred).any((1, 2))
    together = centred.mean(1)
    together = together - np.log(np.exp(together).sum(1, keepdims=True))
    if not clear.any():
        return together, clear
    adds = centred[clear].mean(0)
    best = (centred - (adds - adds.mean(0))).argmax(2)
    return together, clear & (best == best[:, :1]).all(1)


@dataclass(frozen=True)
class Calibration:
    """A temperature, and a bias for each outcome, fitted on known answers; `source`: who gave these."""

    temperature: float
    bias: tuple[float, ...]
    known: int
    source: str

    def __call__(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N, K) log-probabilities → the same, calibrated."""
        moved = scores / self.temperature + np.array(self.bias)
        return (
            moved
            - np.log(np.exp(moved - moved.max(1, keepdims=True)).sum(1, keepdims=True))
            - moved.max(1, keepdims=True)
        )

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "bias": list(self.bias)}


def calibration(
    scores: NDArray[np.float64], known: NDArray[np.int64], source: str, *, biased: bool = True
) -> Calibration:
    """The temperature and biases with the least cross-entropy on known outcomes (N,); NaN does not count.

    A weak pull towards temperature 1 and no bias keeps both finite where the answers are perfect, or too few. Without
    `biased` only the temperature is fitted: outcomes that may change places have no bias.
    """
    from scipy.optimize import minimize

    clear = ~np.isnan(scores).any(1)
    scores, known = scores[clear][:MOST_KNOWN], known[clear][:MOST_KNOWN]
    N, K = scores.shape
    free = K - 1 if biased else 0

    def made(x: NDArray[np.float64]) -> Calibration:
        bias = np.concatenate([[0.0], x[1:], np.zeros(K - 1 - free)])
        return Calibration(float(np.exp(x[0])), tuple(float(b) for b in bias - bias.mean()), N, source)

    def loss(x: NDArray[np.float64]) -> float:
        told = made(x)(scores)
        return float(-told[np.arange(N), known].sum() + 0.01 * (x**2).sum())

    start = np.zeros(1 + free)
    bounds = [(-4.0, 4.0), *[(-20.0, 20.0)] * free]
    return made(minimize(loss, start, method="L-BFGS-B", bounds=bounds).x) if N else made(start)
