"""The table of what a server's answers mean, row by row, and what a message may never repeat."""

from __future__ import annotations

import email.utils
import time
from typing import Any

import pytest

from bkrl.llm.faults import Secrets, from_status, redacted, retry_after

ROWS: list[tuple[int, Any, str, str]] = [
    (401, {"message": "bad key"}, "stop", "key"),
    (402, {}, "stop", "payment"),
    (403, {"message": "region"}, "stop", "forbidden"),
    (404, {"code": "model_not_found"}, "stop", "no such model"),
    (404, "not found", "stop", "no such model"),
    (400, {"message": "The model `x` does not exist"}, "stop", "no such model"),
    (301, {}, "stop", "redirect"),
    (307, {}, "stop", "redirect"),
    (429, {"code": "insufficient_quota"}, "stop", "quota"),
    (403, {"message": "You exceeded your current quota"}, "stop", "quota"),
    (0, {"code": "insufficient_quota"}, "stop", "quota"),
    (429, {"code": "rate_limit_exceeded"}, "wait", "busy"),
    (429, {"message": "Too many tokens, please wait before trying again."}, "wait", "busy"),
    (429, {"message": "You exceeded your current quota, limit: 10. Please retry in 34.07s."}, "wait", "busy"),
    (429, {"message": "Request too large for m on tokens per min (TPM): Limit 1."}, "item", "context length"),
    (503, "busy", "wait", "busy"),
    (529, {}, "wait", "busy"),
    (400, {"code": "context_length_exceeded"}, "item", "context length"),
    (400, {"message": "This model's maximum context length is 8192 tokens"}, "item", "context length"),
    (413, "", "item", "context length"),
    (400, {"code": "content_filter"}, "item", "filtered"),
    (400, {"message": "violates our content management policy"}, "item", "filtered"),
    (403, {"message": "flagged by moderation"}, "item", "filtered"),
    (400, {"message": "odd"}, "item", "bad request"),
    (422, {"message": "odd"}, "item", "bad request"),
    (408, {}, "retry", "status 408"),
    (409, {}, "retry", "status 409"),
    (500, {}, "retry", "status 500"),
    (502, "<html>", "retry", "status 502"),
    (504, {}, "retry", "status 504"),
    (524, {}, "retry", "status 524"),
    (418, {}, "retry", "status 418"),
    (0, {"message": "?"}, "retry", "error"),
]


@pytest.mark.parametrize(("status", "error", "kind", "reason"), ROWS, ids=range(len(ROWS)))
def test_a_status_is_sorted(status: int, error: Any, kind: str, reason: str) -> None:
    fault = from_status(status, error, {})
    assert (fault.kind, fault.reason) == (kind, reason)


def test_a_gateway_that_gave_up_may_have_cost_an_answer() -> None:
    assert [from_status(status, {}, {}).billed for status in (500, 502, 504, 522, 524)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_the_wish_to_wait_is_read_in_every_form() -> None:
    assert retry_after({"retry-after": "7"}) == 7.0
    assert retry_after({"retry-after": "0.5"}) == 0.5
    assert retry_after({"retry-after": "900"}) == 900.0, "however long"
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    date = retry_after({"retry-after": email.utils.formatdate(time.time() + 30, usegmt=True)})
    assert date == pytest.approx(30, abs=2)
    past = email.utils.formatdate(time.time() - 30, usegmt=True)
    assert [retry_after({"retry-after": value}) for value in ("-3", past)] == [0.0, 0.0]
    for nonsense in ("soon", "", "nan", "inf", "Mon, 01 Jan 99999999999999 00:00:00 GMT"):
        assert retry_after({"retry-after": nonsense}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-CANARY*****wxyz.",
        "key my-very-own-CANARY is wrong",
        "https://user:CANARY@host/v1 failed",
        "https://user:p@CANARY@host/v1 failed",
        "GET https://host/v1?api-key=CANARY failed",
        "header Authorization: Bearer CANARY",
        "gsk_x gsk-CANARY12345",
    ],
)
def test_no_message_repeats_a_secret(text: str) -> None:
    hidden = Secrets(["my-very-own-CANARY"]).hide(text)
    assert "CANARY" not in redacted(hidden)
    assert "CANARY" not in str(from_status(401, {"message": hidden}, {}))


def test_messages_are_one_short_printable_line() -> None:
    told = redacted("a\x1b[31m\nb" + "x" * 1000)
    assert "\n" not in told
    assert "\x1b" not in told
    assert len(told) <= 201
