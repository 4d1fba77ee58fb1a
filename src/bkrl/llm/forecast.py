"""What asking will take, before anything is asked: tokens, dollars, and what is in the store already."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from bkrl.llm.asker import kept_in
from bkrl.llm.policy import LONGER_REPLY
from bkrl.llm.prices import FREE, Price
from bkrl.llm.protocol import Reply, Request, Tier
from bkrl.llm.store import FILE, Store

CHARS_PER_TOKEN = 4
"""Of English; an estimate."""


@dataclass(frozen=True)
class Outlook:
    """Totals of what is still to be asked. Tokens in are estimated from characters; tokens out are guessed (or taken
    from `measured` replies of the same questions), and bounded by replies that are all cut off and asked for once more
    with more room. `prompts` are some of those that would be sent, `notes` what a person should know besides. All
    figures are for `requests` questions; there may be `at_most` times as many, those besides with `each` tokens in and
    most tokens out, the mean of all, kept or not. `carried`: so many earlier replies stand in a prompt, on average, at
    most, each beside words of ours that are no longer than the first prompt; only what is paid at most counts them.
    """

    requests: int
    kept: int
    tokens_in: int
    tokens_out: int
    most_tokens_out: int
    measured: int
    price: Price | None
    tier: Tier
    prompts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    at_most: float = 1.0
    carried: float = 0.0
    each: tuple[float, float] = (0.0, 0.0)

    def times(self, factor: float, **more: Any) -> Self:
        """As many times the tokens; `more`: other fields."""
        names = ("tokens_in", "tokens_out", "most_tokens_out")
        return replace(self, **{name: round(vars(self)[name] * factor) for name in names}, **more)

    def text(self) -> str:
        """All of it for a person."""
        return "\n\n".join([*self.prompts, "\n".join([*self.notes, *self.sentences()])])

    def sentences(self) -> list[str]:
        """For the person who thinks about starting it."""
        kept = f" ({self.kept:,} of them in the store already)" if self.kept else ""
        out = f"from {self.measured:,} replies in the store" if self.measured else "a guess"
        most = f" to {self.requests * self.at_most:,.0f}" if self.at_most > 1 else ""
        return [
            f"{self.requests:,}{most} requests{kept}. To be asked: about {self.tokens_in:,} tokens in (at "
            f"{CHARS_PER_TOKEN} characters a token), {self.tokens_out:,} out ({out}; at most {self._most[1]:,.0f}).",
            self._in_words(),
            "Nothing was asked or written.",
        ]

    def values(self) -> dict[str, object]:
        """All of it as plain values; dollars are None where the price is not known."""
        about, most = self._dollars() or (None, None)
        values = {name: one for name, one in vars(self).items() if name not in ("price", "notes", "prompts", "each")}
        words = {"note": "\n".join(self.notes) or None, "prompts": list(self.prompts)}
        return {**values, "usd": about, "most_usd": most, "price": self.price and self.price.source, **words}

    def _dollars(self) -> tuple[float, float] | None:
        """About, and with the longest replies; None where the price is not known."""
        if self.price is None:
            return None
        about = self.price.of_tokens(self.tokens_in, self.tokens_out, 0, self.tier)
        tokens, out = self._most
        most_in = round(2 * (tokens + self.carried * (tokens + out * LONGER_REPLY / (1 + LONGER_REPLY))))
        return about, self.price.of_tokens(most_in, round(out), 0, self.tier)

    @property
    def _most(self) -> tuple[float, float]:
        """Tokens in and out, at most: none of what comes besides the `requests` is kept."""
        more = self.requests * (self.at_most - 1)
        return self.tokens_in + more * self.each[0], self.most_tokens_out + more * self.each[1]

    def _in_words(self) -> str:
        dollars = self._dollars()
        if self.price is None or dollars is None:
            return "Price unknown: it is not in the shipped list; give it with --prices FILE (see docs/endpoints.md)."
        if self.price == FREE:
            return "Price: nothing, this machine answers."
        about, most = dollars
        tier = "" if self.tier == "default" else f" as {self.tier}"
        requests = "" if self.at_most == 1 else "with most requests, and "
        later = ", shown in later prompts too" if self.carried else ""
        longest = f"at most ${most:,.2f} ({requests}each reply cut off and asked for again{later})"
        return f"Price{tier}: about ${about:,.2f}, {longest}, by {self.price.source}."


def shown(requests: Sequence[Request]) -> tuple[str, ...]:
    """Three prompts, as `Outlook.prompts`."""
    some = requests[:: max(1, len(requests) // 3)][:3]
    return tuple("\n\n".join(f"[{turn.role}]\n{turn.text}" for turn in request.messages) for request in some)


def forecast(
    requests: Iterable[Request],
    guess: int,
    cache: Path,
    identity: Mapping[str, str] | None,
    price: Price | None,
    tier: Tier = "default",
) -> Outlook:
    """What `requests` will take. `guess`: tokens of a reply where none is known; `cache`: the store's folder, which is
    only read.
    """
    wanted = list(requests)
    kept = _kept(wanted, cache, identity)
    open_ = [request for request, reply in zip(wanted, kept) if reply is None]
    lengths = [reply.completion_tokens for reply in kept if reply is not None and reply.completion_tokens is not None]
    typical = sum(lengths) / len(lengths) if lengths else guess
    (tokens_in, longest), (each_in, each_out) = (_tokens(some, price) for some in (open_, wanted))
    count = max(1, len(wanted))
    return Outlook(
        requests=len(wanted),
        kept=len(wanted) - len(open_),
        tokens_in=tokens_in,
        tokens_out=round(sum(min(typical, request.max_tokens) for request in open_)),
        most_tokens_out=longest,
        measured=len(lengths),
        price=price,
        tier=tier,
        each=(each_in / count, each_out / count),
    )


def _tokens(requests: list[Request], price: Price | None) -> tuple[int, int]:
    """In and, with replies that are all cut off, out."""
    chars = sum(len(message.text) for request in requests for message in request.messages)
    chars += len(requests) * (0 if price is None else price.added)
    return chars // CHARS_PER_TOKEN, sum(request.max_tokens for request in requests) * (1 + LONGER_REPLY)


def _kept(requests: list[Request], cache: Path, identity: Mapping[str, str] | None) -> list[Reply | None]:
    if identity is None or not (cache / FILE).exists():
        return [None] * len(requests)
    with Store(cache) as store:
        return [found and found[2] for found in (kept_in(store, identity, request) for request in requests)]
