"""Reading a chat completion: bytes in, a reply or a fault out; the same for live answers and lines of a batch."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bkrl.llm.faults import Secrets, error_in, from_status, redacted
from bkrl.llm.protocol import Fault, Reply, ReplyFormat, ReplyStatus, Tier, chances

_REASONING = ("reasoning_content", "reasoning")
"""Where some servers put the whole text, with an empty `content` beside it."""


def read_json_body(content: bytes, address: str, secrets: Secrets) -> Any:
    """The JSON value of a body, secrets hidden. Raises Fault for anything else, also for nesting that no parser
    follows.
    """
    try:
        return secrets.hide_in(json.loads(content))
    except (ValueError, RecursionError):
        if content.lstrip()[:1] == b"<":
            text = f"{redacted(address)} answers with a web page; is it an OpenAI-compatible address?"
            raise Fault("retry", "not an API", text) from None
        raise Fault("retry", "unreadable", "the answer is not JSON", billed=True) from None


def read_completion(body: Any, headers: Mapping[str, str], form: ReplyFormat, tier: Tier = "default") -> Reply:
    """A reply out of the body of a 200 answer. Raises Fault for everything that is not one.

    `tier`: what was asked for. A body that names another than flex, where that was asked for, is believed; any other
    reply counts as of the tier that was asked for, since no list has the prices of dearer ones.
    """
    failed = body[0] if isinstance(body, list) and body else body
    if isinstance(failed, dict) and failed.get("error"):
        raise error_inside(failed, headers)
    try:
        choice = body["choices"][0]
        message = choice["message"]
    except (KeyError, IndexError, TypeError):
        raise Fault("retry", "no choices", "the answer holds no choices", billed=True) from None
    if not isinstance(message, dict):
        raise Fault("retry", "no choices", "the answer holds no message", billed=True)
    finish = str(choice.get("finish_reason") or "stop")
    text, status = _text(message.get("content")), _status(finish, message)
    if status == "ok" and not text.strip():
        text = next((text for name in _REASONING if (text := _text(message.get(name))).strip()), "")
    if status == "ok" and not text.strip():
        raise Fault("retry", "empty", "the answer is empty", billed=True)
    model, usage = body.get("model"), body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    if tier == "flex" and body.get("service_tier", "flex") != "flex":
        tier = "default"
    return Reply(
        text,
        status,
        form,
        model if isinstance(model, str) else "",
        finish,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_written(usage),
        reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
        cached_tokens=_detail(usage, "prompt_tokens_details", "cached_tokens"),
        tier=tier,
    )


def with_chances(reply: Reply, body: Any, choices: Sequence[str]) -> Reply:
    """The reply with the log-probabilities of `choices` as its text, where the body of its answer holds them.

    A choice counts as the likeliest of the first token's alternatives that spell or begin it (" yes", "Yes", "pick" of
    "pickup"). The reply stays as it is where alternatives are no numbers or name no choice; where one begins several
    choices ("place", of "place stone" and "place table"), since the first token does not tell them apart; and where
    another word is likelier than the choices and not all of these are named: "Both" before "1" does not mean "not 2".
    """
    try:
        first = body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        told = [(float(one["logprob"]), str(one["token"]).strip().lower()) for one in first]
    except (KeyError, IndexError, TypeError, ValueError):
        return reply
    listed = sorted(one for one in told if math.isfinite(one[0]))  # the likeliest last
    meant = [[choice for choice in choices if token and choice.lower().startswith(token)] for _, token in listed]
    found = {named[0]: value for (value, _), named in zip(listed, meant, strict=True) if named}
    doubtful = max(map(len, meant), default=0) > 1 or (len(found) < len(choices) and not any(meant[-1:]))
    if not found or doubtful or reply.status not in ("ok", "truncated"):
        return reply
    return replace(reply, text=chances(found), status="ok")


def error_inside(body: object, headers: Mapping[str, str]) -> Fault:
    """The fault behind a body with an `error` that came with status 200."""
    described = error_in(body)
    code = described.get("code") if isinstance(described, Mapping) else None
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    return from_status(status, described, headers)


def _text(content: object) -> str:
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _status(finish: str, message: Mapping[str, Any]) -> ReplyStatus:
    if finish == "content_filter":
        return "filtered"
    if message.get("refusal"):
        return "refused"
    return "truncated" if finish in ("length", "max_tokens") else "ok"


def _written(usage: Mapping[str, Any]) -> int | None:
    """Tokens that are paid for as output. Some providers count thoughts in the total alone, not among those of the
    completion.
    """
    prompt, told, total = (_count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    return told if prompt is None or told is None or total is None else max(told, total - prompt)


def _detail(usage: Mapping[str, Any], group: str, name: str) -> int | None:
    details = usage.get(group)
    return _count(details.get(name)) if isinstance(details, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
