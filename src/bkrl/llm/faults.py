"""Sorting what an OpenAI-compatible server answers: one table, used by the backend, tested row by row.

Providers agree on few things, so an answer is sorted by its HTTP status first and by words in its error second. What is
unknown is tried again, because a lost answer costs more than a wasted request.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from typing import Any

from bkrl.llm.protocol import Fault

_QUOTA = (
    "insufficient_quota",
    "billing_hard_limit",
    "billing_not_active",
    "exceeded your current quota",
    "credit balance",
)
_CONTEXT = (
    "context_length",
    "context length",
    "maximum context",
    "too many tokens",
    "prompt is too long",
    "input is too long",
)
_FILTERED = ("content_filter", "content_policy", "content management policy", "responsibleai", "moderation")
_NO_MODEL = (
    "model_not_found",
    "does not exist",
    "model not found",
    "no such model",
    "deploymentnotfound",
    "unknown model",
)
_SECRET = re.compile(r"(?:sk|key|pk|gsk|xai)-[\w*.-]{4,}|Bearer\s+\S+|(?<=//)[^/\s]+@|\?[^\s\"']*", re.IGNORECASE)
_LONGEST_MESSAGE = 200
_GATEWAY_TIMEOUTS = (504, 522, 524)
"""A gateway has given up on a model that may go on writing, and be paid for it."""


def from_status(status: int, error: Mapping[str, Any] | str, headers: Mapping[str, str], secret: str = "") -> Fault:
    """The fault behind an HTTP status other than 200, or behind an `error` object that came with 200.

    Args:
        status: HTTP status (for an error inside a 200 answer: the code it names, or 0).
        error: the answer's `error` object or text.
        headers: of the answer, lower-case names.
        secret: the key in use; never repeated in a message.
    """
    said = _said(error, secret)
    words = (str(error) if isinstance(error, str) else " ".join(str(value) for value in error.values())).lower()
    wait = retry_after(headers)
    if any(mark in words for mark in _QUOTA) and status in (0, 400, 402, 403, 429):
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
        what = "There is no such model here" if known else "The address has no chat completions; check OPENAI_BASE_URL"
        return Fault("stop", "no such model", f"{what}{said}")
    if status == 413 or any(mark in words for mark in _CONTEXT):
        return Fault("item", "context length", f"the prompt is too long for the model{said}")
    if 300 <= status < 400:
        return Fault("stop", "redirect", "The server redirects to another address; set OPENAI_BASE_URL to that one")
    if status in (429, 503, 529):
        return Fault("wait", "busy", f"the server asks for less (status {status}){said}", retry_after=wait)
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


def redacted(text: str, secret: str = "") -> str:
    """`text` on one line, without keys, user names in addresses or query strings, at most 200 characters."""
    clean = text.replace(secret, "[key]") if len(secret) >= 4 else text
    clean = " ".join(_SECRET.sub("[hidden]", clean).split())
    clean = "".join(c for c in clean if c.isprintable())
    return clean if len(clean) <= _LONGEST_MESSAGE else clean[:_LONGEST_MESSAGE] + "…"


def _said(error: Mapping[str, Any] | str, secret: str) -> str:
    message = error if isinstance(error, str) else str(error.get("message") or error.get("code") or "")
    clean = redacted(message, secret).rstrip(".")
    return f" ({clean})" if clean else ""
