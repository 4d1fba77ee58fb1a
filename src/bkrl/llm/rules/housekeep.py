"""What the rules annotator knows of Housekeep: carry what lies where it does not belong to where it does.

Everything is read from captions; what belongs where is `belongings`, or another table (`Homes`). Weights are round
numbers chosen by thought, not fitted to any task.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from bkrl.llm.rules.belongings import belongs, kinds_of, place_for
from bkrl.llm.rules.segment import ReadSegment, unknown_caption

_HOLD = re.compile(r"You hold the ([^.]+)\.")
_ON = re.compile(r"The ([^.]+?) is on the ([^.]+)\.")
_SEE = re.compile(r"You see (nothing|the [^.]+)\.")


class Homes(NamedTuple):
    """Where things belong: whether one belongs in a place; whether anything is known of it; its first place, or ""."""

    belongs: Callable[[str, str], bool]
    known: Callable[[str], bool]
    first: Callable[[str], str]


RULES: Final = Homes(belongs, lambda thing: bool(kinds_of(thing)), place_for)


@dataclass(frozen=True)
class HousekeepState:
    """One caption, understood: the thing in the hand, "" for none; where each thing lies; the places in view."""

    held: str = ""
    lies: dict[str, str] = field(default_factory=dict)
    view: tuple[str, ...] = ()

    def right(self, homes: Homes) -> frozenset[str]:
        """The things that lie where they belong."""
        return frozenset(thing for thing, place in self.lies.items() if homes.belongs(thing, place))

    def out_of_place(self, homes: Homes) -> list[str]:
        """The things of which something is known that do not."""
        right = self.right(homes)
        return sorted(thing for thing in self.lies if thing not in right and homes.known(thing))


@lru_cache(maxsize=65_536)
def understand(caption: str) -> HousekeepState:
    """Read a caption; sentences of another form are passed over. Raises Fault when there is no other."""
    hold, see, lying = _HOLD.search(caption), _SEE.search(caption), _ON.findall(caption)
    if not (hold or see or lying):
        raise unknown_caption(caption)
    view = () if see is None or see[1] == "nothing" else tuple(see[1].removeprefix("the ").split(", the "))
    return HousekeepState(hold[1] if hold else "", dict(lying), view)


def judge(segment: ReadSegment, homes: Homes = RULES) -> tuple[float, str]:
    """Score of a segment, and what the agent does in it."""
    states = [understand(caption) for caption in segment.captions]
    score, reasons = 0.0, []
    for before, after in pairwise(states):
        gain, reason = _outcome(before, after, homes)
        score += gain
        if reason and reason not in reasons:
            reasons.append(reason)
    start, end = states[0], states[-1]
    found = sorted((set(end.lies) | {end.held}) - set(start.lies) - {start.held, ""})
    score += 0.3 * len(found)
    if found:
        reasons.append(f"finds the {found[0]}")
    ready = [place for place in end.view if end.held and homes.belongs(end.held, place)]
    if ready:
        score += 0.4
        reasons.append(f"sees the {ready[0]}, where the {end.held} belongs")
    idle = sum(before == after for before, after in pairwise(states))
    score += 0.2 * len(end.right(homes)) - 0.2 * len(end.out_of_place(homes)) - 0.02 * idle
    return score, " and ".join(reasons[:2]) or "changes little"


def _outcome(before: HousekeepState, after: HousekeepState, homes: Homes) -> tuple[float, str]:
    """What one step gains, and the reason in words."""
    if after.held and after.held != before.held:
        if after.held in before.right(homes):
            return -1.0, f"takes the {after.held} from where it belongs"
        return (1.0 if homes.known(after.held) else 0.2), f"picks up the {after.held}"
    if before.held and not after.held:
        place = after.lies.get(before.held, "")
        if homes.belongs(before.held, place):
            return 2.0, f"puts the {before.held} on the {place}, where it belongs"
        return -1.0, f"puts the {before.held} on the {place or 'floor'}, where it does not belong"
    return 0.0, ""


def goals(segment: ReadSegment, homes: Homes = RULES) -> list[str]:
    """What is worth doing from the end of the segment, most useful first."""
    state = understand(segment.captions[-1])
    if state.held:
        places = [place for place in state.view if homes.belongs(state.held, place)]
        known = places or [place for place in (homes.first(state.held),) if place]
        found = [f"put the {state.held} on the {place}" for place in known[:4]]
        return found or [f"put the {state.held} away"]
    found = [f"pick up the {thing}" for thing in state.out_of_place(homes)[:6]]
    return found or ["look for things that are out of place"]
