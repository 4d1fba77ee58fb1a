"""Reading replies. A parser returns what the reply says, or `Unparsed` with the reason; it never falls back to a label.

Most replies are the JSON that was asked for, by itself, in a fence or after some prose. Beside it a tag
(`<choice>A</choice>`) and an answer that ends the reply (`**A**`, `Answer: B`, `A > B`) are read. What a model wrote
inside `<think>` is not its answer. Two different answers in one reply are none, and neither is one after which the
reply goes on about its choice: the question can be asked again.
"""

import ast
import json
import re
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from bkrl.llm.choose import DENIES

Choice = Literal["A", "B", "tie"]

LONGEST_ANSWER = 200_000
LONGEST_GOAL = 80
MOST_GOALS = 20

CHOICE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"thoughts": {"type": "string"}, "choice": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["thoughts", "choice"],
    "additionalProperties": False,
}
GOALS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"goals": {"type": "array", "items": {"type": "string"}}},
    "required": ["goals"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Unparsed:
    """Why a reply holds no answer, in words a model can act on when it is asked again."""

    reason: str


# Every pattern here takes time in proportion to the text, whatever the text: replies may be written to hang a reader.
_THOUGHT = re.compile(r"<(/?)(think|thinking|reasoning)>", re.IGNORECASE)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_VALUE = r"(?:\ba\s+(?=tie|draw))?(A\s*[<>=≺≻]\s*B|B\s*[<>=≺≻]\s*A|segment\s+[AB]|[AB]|tie|draw|equal)"
_TAGGED = re.compile(r"<(choice|answer|preference)>(.{0,200}?)</\1>", re.DOTALL | re.IGNORECASE)
_SHORT = re.compile(rf"[^\w?]*{_VALUE}[^\w?]*", re.IGNORECASE)
_MARKED = re.compile(
    rf"\b(?:answer|choice|preference|verdict|rank)\b\W{{0,4}}?\s*(?:is\b|:|=|\]|\*\*)[\W_]{{0,80}}?{_VALUE}(?!\w)",
    re.IGNORECASE,
)
_BEFORE = re.compile(r"(?:[\w'’-]+[ *_]+){0,3}\Z")  # words of the same clause
_SECOND_THOUGHT = re.compile(
    r"\b(?:actually|wait|hmm+|wrong|mistake|sorry|correction|scratch|edit|instead|rather|reconsider\w*|changed)\b",
    re.IGNORECASE,
)
_QUOTATION = re.compile(r'"(?:[^"\\\n]|\\.)*+"?')
_LONGEST_QUOTED_ANSWER = 11
"""Longer quotations are words of the env that are repeated, which may say anything."""
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[^`\n]*+\n(.*?)(?:^[ \t]*+\1[ \t]*+$|\Z)", re.DOTALL | re.MULTILINE)
_DEFINES = re.compile(r"^[ \t]*def\s+potential\s*\(", re.MULTILINE)


def parse_choice(text: str) -> Choice | Unparsed:
    """Which segment a reply prefers."""
    answer = _answer_part(text)
    if isinstance(answer, Unparsed):
        return answer
    keyed = [(value["choice"], end) for value, end in _json(answer) if isinstance(value, dict) and "choice" in value]
    found = [(choice, end) for value, end in keyed if (choice := _choice(value)) is not None]
    if keyed and not found:
        return Unparsed('"choice" must be "A", "B" or "tie"')
    if not found and re.match(r"(?:```\w*\s*)?\{", answer):
        return Unparsed("it is not valid JSON with a choice")
    if not found:
        answer = unicodedata.normalize("NFKC", _QUOTATION.sub(_kept_quotation, answer))
        tags = _TAGGED.finditer(answer)
        found = [(choice, tag.end()) for tag in tags if (choice := _choice(tag[2])) is not None]
    if found:
        after = unicodedata.normalize("NFKC", answer[found[-1][1] :])
        others = re.findall(r"\b(?:[AB]|tie|draw)\b", after)
        if _SECOND_THOUGHT.search(after) or any(_choice(other) != found[-1][0] for other in others):
            return Unparsed("the reply goes on after its choice")
    else:
        whole = _SHORT.fullmatch(answer)
        marks = [whole] if whole else list(_MARKED.finditer(answer))
        before = [_BEFORE.search(answer[max(0, mark.start() - 60) : mark.start()]) for mark in marks]
        if any(words and DENIES.search(words[0]) for words in before):
            return Unparsed("the reply may name what it does not choose")
        if marks and re.fullmatch(r"(?:[^\w?]|_)*", answer[marks[-1].end() :]):
            found = [(choice, mark.end()) for mark in marks if (choice := _choice(mark[1])) is not None]
    if not found:
        return Unparsed("no choice was found")
    if len({choice for choice, _ in found}) > 1:
        return Unparsed("the reply names different choices")
    return found[0][0]


def parse_goals(text: str) -> list[str] | Unparsed:
    """The goals a reply suggests, cleaned and without repetitions, in the reply's order."""
    answer = _answer_part(text)
    if isinstance(answer, Unparsed):
        return answer
    listed: list[Any] | None = None
    for value, _ in _json(answer):
        if isinstance(value, dict) and isinstance(value.get("goals"), list):
            listed = value["goals"]
            break
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            listed = value
            break
    if listed is None:
        lines = _inside_goals(answer).splitlines()
        bullet = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,2}[.)])\s+(\S.*)$")
        listed = [found[1] for line in lines if (found := bullet.match(line))]
    goals: dict[str, None] = {}
    for item in listed[:MOST_GOALS]:
        goal = clean_goal(item) if isinstance(item, str) else None
        if goal is not None:
            goals.setdefault(goal)
    return list(goals) if goals else Unparsed("no usable goal was found")


def clean_goal(text: str) -> str | None:
    """A goal as the library keeps it: one line of plain lower-case words, or None if it is not a goal."""
    plain = unicodedata.normalize("NFKC", text)
    plain = "".join(c if unicodedata.category(c)[0] not in "CZ" else " " if c in " \t\n\r\xa0" else "" for c in plain)
    plain = re.sub(r"\s+", " ", plain).strip(" .;:,!\"'*_`-").lower()
    if not 3 <= len(plain) <= LONGEST_GOAL or not re.fullmatch(r"[^\W\d_][\w ,'()-]*", plain):
        return None
    return plain


def parse_program(text: str) -> str | Unparsed:
    """The source of the one program in a reply that defines `potential`."""
    answer = _answer_part(text.replace("\r\n", "\n").removeprefix("\ufeff"))
    if isinstance(answer, Unparsed):
        return answer
    blocks = _blocks(answer)
    inner = [block for outer in blocks for block in _blocks(outer) if _DEFINES.search(block)]
    blocks = inner or blocks  # a whole reply may stand in a fence of its own
    programs = [block for block in blocks if _DEFINES.search(block)]
    if not programs:
        for value, _ in _json(answer):
            if isinstance(value, dict):
                programs += [v for v in value.values() if isinstance(v, str) and _DEFINES.search(v)]
    if not programs and not blocks:
        bare = textwrap.dedent(answer)
        if _DEFINES.search(bare) and _compiles(bare):
            programs = [bare]
    if not programs:
        return Unparsed("no ```python block defines potential(observations, actions, valid)")
    distinct = {_tidy(program) for program in programs}
    longest = max(distinct, key=len)
    if any(program not in longest for program in distinct):
        return Unparsed("several different programs were given; give exactly one")
    return longest


def _blocks(text: str) -> list[str]:
    """What stands in fences, those inside other fences left out."""
    return [textwrap.dedent(body) for _, body in _FENCE.findall(text)]


def _tidy(program: str) -> str:
    plain = program.replace("\u200b", "").replace("\ufeff", "").replace("\xa0", " ").expandtabs(4)
    if not _compiles(plain):
        straight = plain.translate(str.maketrans("“”‘’（），：＝", "\"\"''(),:="))
        plain = straight if _compiles(straight) else plain
    return plain.strip("\n") + "\n"


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _answer_part(text: str) -> str | Unparsed:
    """The text outside of any marked thinking."""
    if len(text) > LONGEST_ANSWER:
        return Unparsed(f"the reply is longer than {LONGEST_ANSWER:,} characters")
    return _without_thoughts(text).strip() or Unparsed("the reply is empty")


def _without_thoughts(text: str) -> str:
    """The text outside of thinking tags. An end without a beginning ends what began before the reply; a beginning
    without an end reaches to the end.
    """
    kept: list[str] = []
    place, inside = 0, ""
    for tag in _THOUGHT.finditer(text):
        ends, name = bool(tag[1]), tag[2].lower()
        if not inside:
            kept.append(text[place : tag.start()])
        elif not ends:
            continue
        if ends and name != inside:
            kept.clear()
        place, inside = tag.end(), "" if ends else name
    if not inside:
        kept.append(text[place:])
    return " ".join(kept)


def _kept_quotation(found: re.Match[str]) -> str:
    """A quotation as it stays: one that is not closed on its line, or short enough for an answer."""
    closed = len(found[0]) > 1 and found[0].endswith('"')
    return " " if closed and len(found[0]) - 2 > _LONGEST_QUOTED_ANSWER else found[0]


def _inside_goals(text: str) -> str:
    """What stands between the first `<goals>` and the `</goals>` after it; the whole text without them."""
    start = re.compile("<goals>", re.IGNORECASE).search(text)
    end = re.compile("</goals>", re.IGNORECASE).search(text, start.end()) if start else None
    return text[start.end() : end.start()] if start and end else text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where a name stands twice, which says two things at once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _json(text: str) -> Iterator[tuple[Any, int]]:
    """Every outermost JSON object or list, left to right, and where it ends; a trailing comma is forgiven."""
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    place, failures = 0, 0
    while failures < 200 and (start := re.compile(r"[{\[]").search(text, place)) is not None:
        try:
            value, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            repaired = _TRAILING_COMMA.sub(r"\1", text[start.start() : start.start() + 20_000])
            try:
                value, length = decoder.raw_decode(repaired)
                end = start.start() + length
            except (ValueError, RecursionError):
                place, failures = start.end(), failures + 1
                continue
        yield value, end
        place = end


def _choice(value: object) -> Choice | None:
    if not isinstance(value, str):
        return None
    compact = re.sub(r"[\s*_`\"'().\[\]]|segment", "", unicodedata.normalize("NFKC", value).lower())
    if compact in ("a", "a>b", "a≻b", "b<a", "b≺a"):
        return "A"
    if compact in ("b", "b>a", "b≻a", "a<b", "a≺b"):
        return "B"
    if compact in ("tie", "draw", "equal", "a=b", "b=a"):
        return "tie"
    return None
