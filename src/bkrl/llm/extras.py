"""What a person adds to every request: headers, whose values stay in the environment, and fields of the body."""

import os
import re
from pathlib import Path
from typing import Any

from bkrl.core.documents import Mismatch, parse_json
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_text
from bkrl.llm import responses
from bkrl.llm.protocol import Api

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)=([A-Za-z_][A-Za-z0-9_]*)")
_OURS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "--max-tokens"),
    **{"model": "--llm", "temperature": "--temperature", "reasoning_effort": "--effort", "service_tier": "--tier"},
    **{"seed": "--votes", "n": "--votes", "messages": "--prompt"},
    **dict.fromkeys(("response_format", "stream", "stream_options", "logprobs", "top_logprobs"), ""),
}
"""Fields that bkrl fills in by itself, with the flag that changes them ("": none does)."""


def headers(text: str, asking: bool = True) -> dict[str, str]:
    """Headers and their values from `NAME=VARIABLE,…`. Without `asking` no variable need be set.

    Raises UsageError for another form, InputError for a variable that is not set or cannot be a header. Nothing but a
    plain name before an = is repeated: the rest may be the secret itself.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _HEADER.fullmatch(part)
        if match is None:
            named = re.match(r"[A-Za-z0-9-]{1,40}(?==.)", part)
            name = f"'{named[0]}'" if named else "a part"
            raise UsageError(f"--header is NAME=VARIABLE, whose value an environment variable holds; {name} is not so.")
        value = os.environ.get(match[2], "")
        if asking and not value:
            raise InputError(f"--header {match[1]}: the environment variable that it names is not set.")
        if not fits(value):
            raise InputError(f"--header {match[1]}: the value of its variable has characters that no header takes.")
        found[match[1]] = value
    return found


def fits(value: str) -> bool:
    """Whether a header can carry the value."""
    return value.isascii() and value.isprintable() and value == value.strip()


def body(text: str, api: Api = "chat") -> dict[str, Any]:
    """Fields of a request's body, from a JSON object or the file that holds one.

    Raises UsageError for a field that bkrl fills in, InputError for what is no JSON object.
    """
    if not text:
        return {}
    file = body_file(text)
    given = text if file is None else read_text(file, f"--body {file}", "give a JSON object or a file that holds one")
    try:
        fields = parse_json(given)
    except Mismatch as error:
        raise InputError(f"--body cannot be read as JSON ({error}); give an object or a file that holds one.") from None
    if not isinstance(fields, dict):
        raise InputError('--body must be a JSON object, such as {"top_p": 0.9}, or a file that holds one.')
    ours = _OURS | (responses.FIELDS if api == "responses" else {})
    for name in fields:
        if name in ours:
            beside = "" if name in _OURS else " beside --api responses"
            way = f"; {ours[name]} changes it" if ours[name] else ""
            raise UsageError(f"--body cannot set '{name}'{beside}, which bkrl fills in by itself{way}.")
    return fields


def body_file(text: str) -> Path | None:
    """The file that `--body` names, if it names one."""
    return Path(text) if text and not text.lstrip().startswith("{") else None
