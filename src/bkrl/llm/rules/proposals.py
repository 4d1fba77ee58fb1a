"""What the rules annotator proposes when programs are to be improved: its own ones, with other weights of their parts.

A deterministic family. It stands in for a language model that is told how agents fared: it does not understand that,
and tries one part after another.
"""

import re
import zlib
from collections.abc import Sequence

FACTORS = (2.0, 0.5, 0.0)
"""By which a part's weight is multiplied."""
_SUM = "sum(parts.values())"
WEIGHT = re.compile(r"""(["']\w+["'](?:: \(?|\] = )|rest = rest \+ )(-?\d+\.\d+)( \* |, )""")
"""The weight of a part of a program, with what stands before and behind it."""


def proposed(programs: Sequence[str], given: str, number: int) -> str:
    """Proposal `number`, from 0: of `programs` in turn, from the richest on, or of `given` with one weight changed.

    With weights w0, w1, w2 of a program whose checksum is 1 mod 3, proposals 0, 1, 2 are (w0, 2 w1, w2),
    (w0, w1, w2 / 2) and (0, w1, w2).
    """
    if not given:
        again, place = divmod(number, len(programs))
        program = programs[-1 - place]
        return program if not again else varied(programs[-1], number)
    return varied(given, number)


def varied(program: str, number: int) -> str:
    """The program with one weight changed; the same where its value is no sum of weighted parts."""
    parts = list(WEIGHT.finditer(program)) if _SUM in program else []
    if not parts:
        return program
    part = parts[(zlib.crc32(program.strip().encode()) + number) % len(parts)]
    weight = round(float(part[2]) * FACTORS[number % len(FACTORS)], 6)
    return f"{program[: part.start()]}{part[1]}{weight}{part[3]}{program[part.end() :]}"
