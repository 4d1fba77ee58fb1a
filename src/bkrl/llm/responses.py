"""OpenAI's Responses API (`--api responses`), put as chat completions: requests on their way out, answers on their way
in, and the names of fields that a server complains about. Everything else treats the two APIs alike.
"""

import re
from collections.abc import Mapping
from typing import Any

PATH = "/responses"
FIELDS = {
    **{"input": "--prompt", "instructions": "--prompt", "max_output_tokens": "--max-tokens", "reasoning": "--effort"},
    **dict.fromkeys(("text", "include", "store", "background", "conversation", "previous_response_id"), ""),
}
"""Fields of this API that `--body` cannot set, with the flag that changes them ("": none does)."""
_LOGPROBS = "message.output_text.logprobs"
_FINISH = {"max_output_tokens": "length"}
_CALLED = {
    "reasoning_effort": r"reasoning\.effort|['\"`]reasoning['\"`]",
    "response_format": r"text\.format|['\"`]text['\"`]",
    "logprobs": rf"{re.escape(_LOGPROBS)}|['\"`]include['\"`]",
    "max_tokens": "max_output_tokens",
}
"""Names of fields of chat completions, and what this API calls them."""


def request_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request, from the parameters of a chat completion. The provider is asked to keep nothing."""
    rest = dict(parameters)
    body = {"input": rest.pop("messages"), "store": False}
    limit = [rest.pop(name) for name in ("max_tokens", "max_completion_tokens") if name in rest]
    body |= {"max_output_tokens": limit[0]} if limit else {}
    if "reasoning_effort" in rest:
        body["reasoning"] = {"effort": rest.pop("reasoning_effort")}
    form = rest.pop("response_format", None)
    if form is not None:
        body["text"] = {"format": {"type": form["type"], **form.get("json_schema", {})}}
    if rest.pop("logprobs", False):
        body["include"] = [_LOGPROBS]
    return rest | body


def completion_of(body: Any) -> Any:
    """The body of a chat completion with the same answer; what is no whole answer stays as it is, without choices."""
    if not isinstance(body, dict) or body.get("status") not in ("completed", "incomplete"):
        return body
    output = body.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    said = [item for item in items if item.get("type") == "message"]
    parts = _parts([item for item in said if item.get("phase") != "commentary"] or said)
    texts = [part for part in parts if part.get("type") == "output_text"]
    message = {
        "content": texts,
        "refusal": any(part.get("type") == "refusal" for part in parts),
        "reasoning": _parts([item for item in items if item.get("type") == "reasoning"]),
    }
    chances = next((part["logprobs"] for part in texts if part.get("logprobs")), None)
    reason = str((body.get("incomplete_details") or {}).get("reason") or "stop")
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    choice = {"message": message, "finish_reason": _FINISH.get(reason, reason), "logprobs": {"content": chances}}
    return {
        **{name: body.get(name) for name in ("model", "service_tier", "error") if name in body},
        "choices": [choice if chances else {**choice, "logprobs": None}] if items else [],
        "usage": {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "total_tokens": usage.get("total_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens_details": usage.get("output_tokens_details"),
        },
    }


def chat_words(words: str, limit: str) -> str:
    """A complaint in lower case, with the names that chat completions have; `limit`: that of the longest reply."""
    for name, called in _CALLED.items():
        words = re.sub(called, limit if name == "max_tokens" else name, words)
    return words


def _parts(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    contents = [item.get("content") for item in items]
    return [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
