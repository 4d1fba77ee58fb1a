"""Sorting what an OpenAI-compatible server answers: one table, used by the backend, tested row by row.

Providers agree on few things, so an answer is sorted by its HTTP status first and by words in its error second. What is
unknown is tried again, because a lost answer costs more than a wasted request.
"""

import email.utils
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from bkrl.llm.protocol import Fault

_QUOTA = (
    "insufficient_quota", "billing_hard_limit", "billing_not_active", "exceeded your current quota", "credit balance",
)  # fmt: skip
_CONTEXT = (
    "context_length", "context length", "maximum context", "too many tokens", "prompt is too long", "input is too long",
    "request too large",
)  # fmt: skip
_FILTERED = ("content_filter", "content_policy", "content management policy", "responsibleai", "moderation")
_NO_MODEL = (
    "model_not_found", "does not exist", "model not found", "no such model", "deploymentnotfound", "unknown model",
)  # fmt: skip
_SECRET = re.compile(r"(?:sk|key|pk|gsk|xai)-[\w*.-]{4,}|Bearer\s+\S+|(?<=//)[^/\s]+@|\?[^\s\"']*", re.IGNORECASE)
_HIDDEN = "[key]"
_PLAIN_WORD = re.compile(r"(?<![A-Za-z])(?:[A-Za-z][a-z]{7,14}|[A-Z]{8,15})(?![A-Za-z])")
_LONGEST_MESSAGE = 200
_GATEWAY_TIMEOUTS = (504, 522, 524)
"""A gateway has given up on a model that may go on writing, and be paid for it."""


class Secrets:
    """Words that must not be stored or shown when a server sends them back: keys, passwords, values of headers.

    Words of fewer than `SHORTEST` characters are rather placeholders, and would be found in ordinary answers. So would
    plain words within a secret, such as the last one of "sk-no-key-required": of longer ones, any `RUN` characters in a
    row are hidden, but not those of such a word alone.
    """

    SHORTEST = 6
    RUN = 8

    def __init__(self, words: Iterable[str]) -> None:
        long = [word for word in words if len(word) >= self.SHORTEST]
        quoted = [quote(word, safe="", errors="replace") for word in long]
        escaped = [json.dumps(word)[1:-1] for word in long]
        twice = [json.dumps(word)[1:-1] for word in escaped]  # in an answer that is JSON itself
        self._forms = sorted({*long, *quoted, *escaped, *twice}, key=lambda form: (-len(form), form))
        self._runs: set[str] = set()
        for form in self._forms:
            plain = [match.span() for match in _PLAIN_WORD.finditer(form)]
            for start in range(len(form) - self.RUN + 1):
                if not any(first <= start and start + self.RUN <= last for first, last in plain):
                    self._runs.add(form[start : start + self.RUN])

    def hide(self, text: str) -> str:
        """`text` with `[key]` where a secret or a part of one stood, as it is, quoted for an address or escaped for
        JSON.
        """
        for form in self._forms:
            text = text.replace(form, _HIDDEN)
        starts = range(len(text) - self.RUN + 1) if self._runs else ()
        found = [start for start in starts if text[start : start + self.RUN] in self._runs]
        for first, last in reversed(_joined(found, self.RUN)):
            text = text[:first] + _HIDDEN + text[last:]
        return text

    def hide_in(self, value: Any) -> Any:
        """The same for every text and name in a JSON value; None for one nested too deep to be looked through."""
        try:
            return self._hidden(value)
        except RecursionError:
            return None

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, list):
            return [self._hidden(one) for one in value]
        return {self.hide(name): self._hidden(one) for name, one in value.items()} if isinstance(value, dict) else value


def _joined(starts: Sequence[int], length: int) -> list[tuple[int, int]]:
    """The stretches, first and behind the last character, that runs of this length at increasing starts cover."""
    found: list[tuple[int, int]] = []
    for start in starts:
        first = found.pop()[0] if found and start <= found[-1][1] else start
        found.append((first, start + length))
    return found


def error_in(body: Any) -> Mapping[str, Any] | str:
    """The error that a body describes: the body itself, its `error`, or that of a list's first entry (Gemini)."""
    if isinstance(body, list):
        body = body[0] if body else ""
    if isinstance(body, Mapping) and isinstance(body.get("error"), (Mapping, str)):
        body = body["error"]
    return body if isinstance(body, (Mapping, str)) else str(body)


def from_status(status: int, error: Mapping[str, Any] | str, headers: Mapping[str, str]) -> Fault:
    """The fault behind an HTTP status other than 200, or behind an `error` object that came with 200.

    Args:
        status: HTTP status (for an error inside a 200 answer: the code it names, or 0).
        error: the answer's `error` object or text.
        headers: of the answer, lower-case names.
    """
    said = _said(error)
    words = (str(error) if isinstance(error, str) else " ".join(str(value) for value in error.values())).lower()
    wait = retry_after(headers)
    if any(mark in words for mark in _QUOTA) and status in (0, 400, 402, 403, 429) and "retry in" not in words:
        return Fault("stop", "quota", f"The account has no credit or quota left{said}. Top it up, then run again")
    if status == 401:
        return Fault(
            "stop", "key", f"The server does not accept the key{said}. Set a valid OPENAI_API_KEY and run again"
        )
    if status == 402:
        return Fault("stop", "payment", f"The server asks for payment{said}")
    if any(mark in words for mark in _FILTERED) and status in (0, 400, 403, 422):
        return Fault("item", "filtered", f"the provider's filter refused the prompt{said}")
    if status == 403:
        return Fault("stop", "forbidden", f"The key may not use this model or endpoint{said}")
    if status == 404:
        known = any(mark in words for mark in _NO_MODEL)
        what = (
            "There is no such model here" if known else "The address has no such API; check OPENAI_BASE_URL (and --api)"
        )
        return Fault("stop", "no such model", f"{what}{said}")
    if status in (429, 503, 529) and "request too large" not in words:  # for a minute's tokens, so it will not pass
        return Fault("wait", "busy", f"the server asks for less (status {status}){said}", retry_after=wait)
    if status == 413 or any(mark in words for mark in _CONTEXT):
        return Fault("item", "context length", f"the prompt is too long for the model{said}")
    if 300 <= status < 400:
        return Fault("stop", "redirect", "The server redirects to another address; set OPENAI_BASE_URL to that one")
    if status in (400, 422) and any(mark in words for mark in _NO_MODEL) and "model" in words:
        return Fault("stop", "no such model", f"There is no such model here{said}")
    if status in (400, 405, 415, 422):
        return Fault("item", "bad request", f"the server does not accept the request (status {status}){said}")
    reason = f"status {status}" if status else "error"
    return Fault("retry", reason, f"the server failed{said}", retry_after=wait, billed=status in _GATEWAY_TIMEOUTS)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as the headers ask (`retry-after-ms`, `retry-after` in seconds or as a date), or None."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return max(0.0, seconds) if seconds == seconds and seconds != float("inf") else None
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, date.timestamp() - time.time())


def redacted(text: str) -> str:
    """`text` on one line, without what looks like a key, user names in addresses or query strings, at most 200
    characters. The secrets that are known are hidden before, as an answer is read (`Secrets`).
    """
    clean = " ".join(_SECRET.sub("[hidden]", text).split())
    clean = "".join(c for c in clean if c.isprintable())
    return clean if len(clean) <= _LONGEST_MESSAGE else clean[:_LONGEST_MESSAGE] + "…"


def _said(error: Mapping[str, Any] | str) -> str:
    message = error if isinstance(error, str) else str(error.get("message") or error.get("code") or "")
    clean = redacted(message).rstrip(".")
    return f" ({clean})" if clean else ""
