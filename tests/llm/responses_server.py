"""The misbehaving server's Responses API: its requests as those of chat completions, its answers out of those."""

from __future__ import annotations

from typing import Any

NAMES = {
    "seed": "seed",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "logprobs": "include",
}
KNOWN = {
    *("model", "input", "max_output_tokens", "temperature", "top_logprobs", "reasoning", "text", "include", "store"),
    *("service_tier", "chat_template_kwargs"),
}


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A request as a chat completion's; AssertionError for a field that this API does not have."""
    assert body.keys() <= KNOWN, body.keys() - KNOWN
    assert body["store"] is False
    assert all(turn.keys() == {"role", "content"} for turn in body["input"])
    chat = {name: body[name] for name in ("model", "temperature", "top_logprobs", "service_tier") if name in body}
    chat |= {"messages": body["input"], "max_tokens": body["max_output_tokens"]}
    if "reasoning" in body:
        chat["reasoning_effort"] = body["reasoning"]["effort"]
    if "text" in body:
        form = body["text"]["format"]
        assert form["type"] == "json_object" or {"name", "schema", "strict"} <= form.keys()
        chat["response_format"] = form
    if "include" in body:
        assert body["include"] == ["message.output_text.logprobs"]
        chat["logprobs"] = True
    return chat


def complaint(error: Any) -> Any:
    """A refusal with the names that this API has."""
    if isinstance(error, dict) and "param" in error.get("error", {}):
        name = error["error"]["param"]
        called = NAMES.get(name, name)
        message = f"Unsupported parameter: '{called}' is not supported with this model."
        return {"error": {"message": message, "type": "invalid_request_error", "param": called, "code": None}}
    return error


def as_response(completion: Any) -> Any:
    """A chat completion's body as a response; what is broken stays broken."""
    if not isinstance(completion, dict) or "choices" not in completion:
        return completion
    response: dict[str, Any] = {
        **{"id": "resp_1", "object": "response", "created_at": 1.0, "model": completion["model"], "error": None},
        **{"status": "completed", "incomplete_details": None, "output": [], "parallel_tool_calls": True},
        **{"tools": [], "tool_choice": "auto"},
    }
    if not completion["choices"]:
        return response
    choice = completion["choices"][0]
    message, finish = choice["message"], choice["finish_reason"]
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
    if reason:
        response |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    if message.get("reasoning_content"):
        thought["content"] = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
    content: list[dict[str, Any]] = []
    if message.get("refusal"):
        content = [{"type": "refusal", "refusal": message["refusal"]}]
    elif isinstance(message["content"], str):
        content = [{"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}]
    if choice.get("logprobs"):
        first = choice["logprobs"]["content"][0]
        likely = [{**one, "bytes": []} for one in first["top_logprobs"]]
        content[0]["logprobs"] = [{"token": first["token"], "bytes": [], "logprob": 0.0, "top_logprobs": likely}]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    aside = {"type": "output_text", "text": "I look at both.", "annotations": [], "logprobs": []}
    response["output"] = [thought, {**said, "id": "msg_0", "phase": "commentary", "content": [aside]}, said]
    usage = completion["usage"] or {}
    response["usage"] = {
        "input_tokens": usage.get("prompt_tokens", 0),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, **usage.get("prompt_tokens_details", {})},
        "output_tokens": usage.get("completion_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": 0, **usage.get("completion_tokens_details", {})},
        "total_tokens": usage.get("total_tokens")
        or sum(usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens")),
    }
    return response
