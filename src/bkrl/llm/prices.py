"""What a reply costs: one dated price list (`prices.toml`), one's own before it, and never a guess.

A price that is not known is None, and every sum it would enter is None too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from bkrl.core.documents import Mismatch, parse_toml, typed
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_text
from bkrl.core.flags import Flag
from bkrl.core.hosts import is_loopback
from bkrl.llm.protocol import LOCAL, Reply, Request, Tier

_OLD = timedelta(days=183)
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_MILLION = 1e6
TURN_TOKENS = 16
"""More than any chat format adds to a turn."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens at the standard tier; `batch` and `flex` are shares of that; `source` says whence
    it is known, `as_of` when that was, `ends` when the provider shuts the model down, if it has said so.
    """

    input: float
    cached_input: float
    output: float
    batch: float = 1.0
    flex: float = 1.0
    source: str = ""
    as_of: date | None = None
    ends: date | None = None
    cache_write: float = 0.0
    """What a token costs that the provider writes to its prompt cache, where that is more than `input`. Replies do not
    say which were, so all that were not read from it are reckoned so: an upper bound.
    """
    added: int = 0
    """So many bytes of `--body` come to each prompt: no more tokens than these."""

    def of_tokens(self, prompt: int, completion: int, cached: int = 0, tier: Tier = "default") -> float:
        """Dollars for so many tokens; `cached` is the part of `prompt` that was read from the provider's own cache."""
        cached = min(cached, prompt)
        paid = (
            (prompt - cached) * max(self.input, self.cache_write)
            + cached * self.cached_input
            + completion * self.output
        )
        return paid / _MILLION * {"default": 1.0, "batch": self.batch, "flex": self.flex}[tier]

    def of(self, reply: Reply) -> float | None:
        """Dollars paid for a reply; None when the provider did not say how many tokens it had."""
        if self == FREE:
            return 0.0
        if reply.prompt_tokens is None or reply.completion_tokens is None:
            return None
        return self.of_tokens(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens or 0, reply.tier)

    def bound(self, request: Request, tier: Tier = "default") -> float:
        """Dollars that no reply to `request` can exceed."""
        return self.of_tokens(most_prompt_tokens(request) + self.added, request.max_tokens, 0, tier)


_Dollars = Annotated[float, Flag("", least=0, most=1e9)]
_Share = Annotated[float, Flag("", least=0, most=1)]


@dataclass(frozen=True)
class _Entry:
    """A [[price]] of a list."""

    model: str
    input: _Dollars
    output: _Dollars
    host: str = "*"
    cached_input: _Dollars | None = None
    cache_write: _Dollars = 0.0
    batch: _Share = 1.0
    flex: _Share = 1.0
    as_of: Any = None
    ends: Any = None


class _List(TypedDict):
    price: list[_Entry]
    as_of: NotRequired[Any]


FREE = Price(0.0, 0.0, 0.0, source="this machine")


def most_prompt_tokens(request: Request) -> int:
    """A number of tokens that no prompt exceeds: each token of a byte-level vocabulary is at least one byte."""
    words = sum(len(message.text.encode("utf-8", "replace")) + TURN_TOKENS for message in request.messages)
    return words + (len(repr(dict(request.schema))) if request.schema is not None else 0) + TURN_TOKENS


def find_price(identity: Mapping[str, str] | None, override: Path | None = None) -> Price | None:
    """The price of a backend's replies, or None when it is not known.

    An entry of `override` comes first; then models on this machine are free; then the shipped list. Raises InputError
    when `override` is missing or malformed.
    """
    if identity is None:
        return FREE
    model, host, own = identity.get("model", ""), identity.get("host", ""), None
    if override is not None:
        text = read_text(override, f"The price list {override}", "name another with --prices")
        own = _first(_entries(text, str(override), today() + timedelta(days=1)), model, host)
    if own is None and (identity.get("kind") in LOCAL or is_loopback(host)):
        return FREE
    shipped = (resources.files(__package__) / "prices.toml").read_text("utf-8")
    found = own or _first(_entries(shipped, "the shipped price list"), model, host)
    return found and replace(found, added=len(identity.get("body", "").encode()))


def today() -> date:
    """The date that prices are held against."""
    return date.today()


def remarks(price: Price | None) -> list[str]:
    """What a person should know of a price before relying on it: that it is old, that its model ends."""
    if price is None:
        return []
    said = []
    if price.as_of is not None and today() - price.as_of > _OLD:
        said.append(
            f"The price is older than six months ({price.source}); look it up, and give a newer one with --prices FILE."
        )
    if price.ends is not None:
        verb = "is to be shut down" if today() < price.ends else "was to be shut down"
        said.append(f"By its provider's announcement this model {verb} on {price.ends}; take another for a new study.")
    return said


def unknown_price(identity: Mapping[str, str]) -> UsageError:
    """What to say when a limit in dollars is asked for and the price is not known."""
    model, host = identity.get("model", ""), identity.get("host", "")
    return UsageError(
        f"--max-cost needs the price of {model} at {host}, which is not in the shipped list; write [[price]] with "
        f'model = "{model}", input and output (dollars per million tokens) into a file and pass it with --prices FILE.'
    )


def _first(entries: list[tuple[str, str, Price]], model: str, host: str) -> Price | None:
    """The best entry for a model at a host: its exact name, its name without a date, its longest beginning."""
    here = [(name, price) for name, where, price in entries if where in ("*", host)]
    for wanted in (model, _SNAPSHOT.sub("", model)):
        for name, price in here:
            if name == wanted:
                return price
    begins = [(len(name), price) for name, price in here if name.endswith("*") and model.startswith(name[:-1])]
    return max(begins, key=lambda found: found[0])[1] if begins else None


def _entries(text: str, source: str, newest: date = date.max) -> list[tuple[str, str, Price]]:
    """(model, host, price) of every entry of a price list, which is known on no later day than `newest`."""
    try:
        found: _List = typed(_List, parse_toml(text))
        as_of = found.get("as_of")
        return [(one.model, one.host, _price(one, as_of, source, newest)) for one in found["price"]]
    except Mismatch as problem:
        raise InputError(
            f"The price list ({source}) cannot be read: {problem}; each [[price]] needs model, input, output."
        ) from None


def _price(one: _Entry, as_of: object, source: str, newest: date) -> Price:
    as_of = as_of if one.as_of is None else one.as_of
    cached = one.input if one.cached_input is None else one.cached_input
    if cached > one.input:  # otherwise a reply could cost more than `bound` says
        raise Mismatch(f"cached_input must be at most {one.input}, not {cached}")
    for name, said in (("as_of", as_of), ("ends", one.ends)):
        if said is not None and _date(said) is None:
            raise Mismatch(f"{name} must be a date such as 2026-11-21, not {str(said)[:60]!r}")
    if (_date(as_of) or newest) > newest:
        raise Mismatch(f"as_of is the day on which the price was looked up, and {as_of} is still to come")
    source = source if as_of is None else f"{source}, {as_of}"
    known = one.input, cached, one.output, one.batch, one.flex
    return Price(*known, source, _date(as_of), _date(one.ends), one.cache_write)


def _date(value: object) -> date | None:
    """A date of a price list, as TOML's own or in quotes; None for anything else."""
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        return None
