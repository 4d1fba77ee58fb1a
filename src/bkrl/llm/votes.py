"""`votes`: what people said about where Housekeep's things belong, in the form of an annotator's answers.

It is the truth by which Housekeep judges, and so no knowledge that an agent could have: an upper bound of what labels
can do there. It answers as `rules` does, with the votes in place of the table written by hand; programs hold the votes.
"""

from collections.abc import Mapping
from functools import cache, partial

from bkrl.envs.housekeep.labels import truth
from bkrl.llm.rules import Knowledge, RulesBackend, housekeep, tidying

HONESTY = "votes (the truth that Housekeep judges by: an upper bound, not a language model)"


class VotesBackend(RulesBackend):
    """Answers from the votes."""

    name, honesty = "votes", HONESTY

    def knowledge(self) -> Mapping[str, Knowledge]:
        """See the function."""
        return knowledge()


@cache
def knowledge() -> dict[str, Knowledge]:
    """The votes of all houses: a place is right where it is right in one of them."""
    right = truth()
    places: dict[str, str] = {}
    for (thing, place), yes in right.items():
        if yes:
            places.setdefault(thing, place)

    def belongs(thing: str, place: str) -> bool:
        return right.get((thing, place), False)

    homes = housekeep.Homes(belongs, places.__contains__, lambda thing: places.get(thing, ""))
    return {
        "Housekeep": Knowledge(
            partial(housekeep.judge, homes=homes),
            partial(housekeep.goals, homes=homes),
            partial(tidying.programs, belongs=belongs),
            belongs=belongs,
        )
    }
