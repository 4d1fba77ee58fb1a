"""How hard a session tries, and when it gives a request or itself up.

What happens to a fault is decided here and nowhere else (backends only sort them, see `protocol.Fault`):

=====  =====================================================================================================
stop   nothing further is sent; what was answered is in the store
wait   the whole pool pauses (as long as the server asks) and asks for less; costs the request no attempt
retry  this request again after a pause with full jitter, within `attempts` and `patience`
item   this request is recorded as failed; the others go on
again  the backend has learnt how to ask: this request at once again; costs it no attempt
=====  =====================================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from bkrl.llm.protocol import LOCAL, Tier

EMPTY = ("empty", "no choices")
NEVER_ANSWERED = ("unreachable", "not an API", *EMPTY)
"""Reasons that end the session when not one reply has come (where empty: nor is kept): address or model are wrong."""
EARLY_ATTEMPTS = 4
EARLY_FAILURES = 20
EMPTY_ANSWERS = 6
"""A request is given up after so many empty answers, since each is paid for."""
BAD = (*EMPTY, "unreadable", "error")
UNLIKELY = 1e-5
"""A request is given up when its bad answers in a row are less likely than this by chance. The chance of one is the
share of bad answers among the latest ones to all requests. Then the request is at fault, not the server.
"""
LATEST = 50
"""That share is of about so many answers."""
MOST_ADAPTATIONS = 8
OTHERS_SECONDS = 0.2
"""Time between two looks whether another process has got the answer that it waits for."""
LONGER_REPLY = 4
"""A reply cut off by its token limit is asked for once more with this many times the limit."""

FLEX: Mapping[str, Any] = {"deadline": 900.0, "patience": 3600.0, "stall": 3600.0}
"""At the flex tier replies may take a quarter of an hour."""


@dataclass(frozen=True)
class AskPolicy:
    """How hard to try. Times in seconds; `deadline` bounds one attempt as a whole (None: no bound), `patience` one
    request. `stall`: so long without any reply, and the session stops; where the server itself names the pauses, only
    after `refusals` of them. `grace`: so long are replies in flight waited for when the session is stopped or closed.
    `first_by_itself`: nothing else is sent before the first reply has come, so that a wrong key or address costs one
    request.
    """

    concurrency: int = 20
    max_concurrency: int = 64
    deadline: float | None = 120.0
    patience: float = 600.0
    attempts: int = 12
    first_pause: float = 0.5
    longest_pause: float = 30.0
    stall: float = 600.0
    refusals: int = 100
    grace: float = 5.0
    rpm: float | None = None
    tpm: float | None = None
    first_by_itself: bool = True

    @classmethod
    def of(
        cls, identity: Mapping[str, Any] | None, most: int, rpm: float = 0.0, tpm: float = 0.0, tier: Tier = "default"
    ) -> Self:
        """For a backend with this identity, with at most so many requests in flight; a model here has all the time."""
        local = identity is not None and identity.get("kind") in LOCAL
        late = {"deadline": None} if local else FLEX if tier == "flex" else {}
        return cls(min(20, most), most, rpm=rpm or None, tpm=tpm or None, first_by_itself=not local, **late)
