"""Reading replies. A parser returns what the reply says, or `Unparsed` with the reason; it never falls back to a label.

Accepted forms, in this order: the JSON that was asked for (also inside prose or a fence), tagged text
(`<choice>A</choice>`), and a few unmistakable short forms (`**A**`, `Answer: B`, `A > B`). What a model wrote inside
`<think>` is not its answer. Two different answers in one reply are none, and neither is one that is taken back after it
("Answer: A. Actually, B."): which of them counts would be a guess, and whoever asked can ask again.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

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
_VALUE = (
    r"(?:\ba\s+(?=tie|draw))?"
    r"(A\s*[>≻]\s*B|B\s*[<≺]\s*A|B\s*[>≻]\s*A|A\s*[<≺]\s*B|A\s*=\s*B|B\s*=\s*A|segment\s+[AB]|[AB]|tie|draw|equal)"
)
_SHORT = re.compile(rf"[^\w?]*{_VALUE}[^\w?]*", re.IGNORECASE)
_MARKED = re.compile(
    r"\b(?:final\s+)?(?:answer|choice|preference|verdict|rank)\b\W{0,4}?\s*(?:is\b|:|=|\]|\*\*)[\W_]{0,80}?"
    rf"{_VALUE}(?!\w)",
    re.IGNORECASE,
)
_WORD = r"(?:\w+[^\S\n]+)?"
_END_OF_ANSWER = re.compile(
    rf"[*_`\"')\]}}]*(?:\Z|[^\S\n]*(?:\Z|[\n.;:!(]|[,–—-](?!\s*[AB]\b)|(?:because|since|as|due|over|between)\b"
    rf"|(?:is|was|does|performs|looks)[^\S\n]+{_WORD}(?:better|preferred|preferable|ahead)\b))",
    re.IGNORECASE,
)
"""What may follow an answer in its sentence. Other words may turn it round: "A is worse", "A and B are equal"."""
_SENTENCE = re.compile(r"[\n.;:!?]+")
_CLAUSE = re.compile(r"[\n.;:!?,()–—…]+|\s-+\s")
_STATED = re.compile(
    rf"{_VALUE}(?:[^\S\n]+(?:is|was|does|performs|looks)[^\S\n]+{_WORD}(?:better|preferred|preferable|ahead))?",
    re.IGNORECASE,
)
"""A whole sentence that says nothing but an answer."""
_TAKEN_BACK = re.compile(
    r"(?:(?:but|oh|and|well|ok|okay|so|ah|um+|uh|hm+|then|yet|please)[^\S\n]+){0,3}"
    r"(?:actually|wait|hang on|hold on|hm+|oops|whoops|sorry(?! to\b)|apologies|correction|correcting|corrected|nope"
    r"|my (?:mistake|bad|error|apologies)|(?:scratch|strike|ignore|disregard) (?:that|this|it)"
    r"|on (?:second|further|closer|reflection|reconsideration|rereading)|(?:re(?:considering|thinking|reading))"
    r"|thinking again|looking again|come to think|let me (?:re\w+|correct|think|look|check|double)"
    r"|i (?:meant|was wrong|misread|misspoke|made an?\b|take (?:that|it)|changed?\b|have changed)|i['’]ve changed"
    r"|no(?:$|[^\S\n]+(?:wait|sorry|actually|that|it|i)\b)|not?[^\S\n]+{V}|edit$|update$|revised?$"
    r"|(?:or|rather|or rather|instead|make (?:that|it)|i mean|in fact|(?:it|that)(?:['’]s| is| should be| must be)"
    r"|(?:i['’]d|i|i would|i now|i would now|i['’]d now) (?:say|choose|pick|prefer|go with))[^\S\n]+{V}"
    r")(?!\w)".replace("{V}", rf"(?:is it[^\S\n]+)?{_STATED.pattern}[^\S\n]*$"),
    re.IGNORECASE,
)
"""How a clause begins that takes back what was said before."""
_NEGATED = re.compile(r"\b(?:not|never|hardly|barely|no)\b", re.IGNORECASE)
_TAGGED = re.compile(r"<(choice|answer|preference)>(.{0,200}?)</\1>", re.DOTALL | re.IGNORECASE)
_QUOTATION = re.compile(r'"(?:[^"\\\n]|\\.)*+"?')
_LONGEST_QUOTED_ANSWER = 11
"""Longer quotations are words of the world that are repeated, which may say anything."""
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[^`\n]*+\n(.*?)(?:^[ \t]*+\1[ \t]*+$|\Z)", re.DOTALL | re.MULTILINE)
_DEFINES = re.compile(r"^[ \t]*def\s+potential\s*\(", re.MULTILINE)


def parse_choice(text: str) -> Choice | Unparsed:
    """Which segment a reply prefers."""
    answer = _answer_part(text)
    if isinstance(answer, Unparsed):
        return answer
    found: list[Choice] = []
    keyed, place = False, 0
    for value, end in _json_places(answer):
        if isinstance(value, dict) and "choice" in value:
            keyed = True
            choice = _choice(value["choice"])
            if choice is not None:
                found.append(choice)
                place = end
    if not found and keyed:
        return Unparsed('"choice" must be "A", "B" or "tie"')
    if not found and re.match(r"(?:```\w*\s*)?\{", answer):
        return Unparsed("it is not valid JSON with a choice")
    answer = unicodedata.normalize("NFKC", _QUOTATION.sub(_kept_quotation, answer[place:]))
    place = 0
    if not found:
        for tagged in _TAGGED.finditer(answer):
            if (choice := _choice(tagged[2])) is not None:
                found.append(choice)
                place = tagged.end()
    if not found:
        whole = _SHORT.fullmatch(answer)
        if whole and (choice := _choice(whole[1])) is not None:
            return choice
    if not found:
        for marked in _marked(answer):
            if (choice := _choice(marked[1])) is not None:
                found.append(choice)
                place = marked.end()
    if not found:
        return Unparsed("no choice was found")
    if len(set(found)) > 1:
        return Unparsed("the reply names different choices")
    return Unparsed("the reply takes its choice back") if _taken_back(answer[place:], found[0]) else found[0]


def parse_goals(text: str) -> list[str] | Unparsed:
    """The goals a reply suggests, cleaned and without repetitions, in the reply's order."""
    answer = _answer_part(text)
    if isinstance(answer, Unparsed):
        return answer
    listed: list[Any] | None = None
    for value in _json_values(answer):
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
        for value in _json_values(answer):
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


def _marked(text: str) -> Iterator[re.Match[str]]:
    """Where the text calls something (its group 1) its answer, as far as nothing that follows can turn it round."""
    for found in _MARKED.finditer(text):
        after = _END_OF_ANSWER.match(text, found.end())
        if after is not None and not _NEGATED.search(after[0]):
            yield found


def _taken_back(text: str, choice: Choice) -> bool:
    """Whether what follows an answer gives another one, or takes it back."""
    others = [_choice(found[1]) for found in _marked(text)]
    for sentence in _SENTENCE.split(text):
        stated = _STATED.fullmatch(_bare(sentence))
        others += [_choice(stated[1])] if stated else []
    if any(other not in (None, choice) for other in others):
        return True
    return any(_TAKEN_BACK.match(_bare(clause)) for clause in _CLAUSE.split(text))


def _bare(text: str) -> str:
    """A piece of a text without what surrounds its words."""
    return text.strip(" \t*_`\"'#>()[]{}-–—…\u2022")


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


def _json_values(text: str) -> Iterator[Any]:
    """Every outermost JSON object or list in the text, left to right; a trailing comma is forgiven."""
    return (value for value, _ in _json_places(text))


def _json_places(text: str) -> Iterator[tuple[Any, int]]:
    """The same, each with the place where it ends."""
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
