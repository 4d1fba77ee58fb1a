"""What asking for goals will take, before anything is asked: how many situations a run meets is reckoned from play."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from bkrl.core.seeds import derive_seed, generator
from bkrl.envs import make_vec, situations
from bkrl.goals.asked import AskedSuggester
from bkrl.goals.closed import ClosedSuggester, PartSuggester
from bkrl.llm.forecast import Outlook, forecast, shown
from bkrl.llm.prices import Price
from bkrl.llm.protocol import request_key

_ENVS: Final = 64
_PROBE: Final = 65_536
_REPLY_TOKENS: Final = 40
"""Tokens of a reply where none is kept; a guess."""


def most_of(steps: int) -> float:
    """How many times as many situations as random play an agent that learns may meet in so many steps.

    Measured in Crafter-Typed-Harder with the goals of `rules`: 1.04 in 20,000 steps, 1.4 to 1.7 in 100,000, 3.3 in
    300,000, 6.8 in a million. The root of the steps lies above all of them.
    """
    return max(1.25, math.sqrt(steps / 20_000))


def situations_met(env_id: str, steps: int, seed: int) -> tuple[list[int], int]:
    """The situations that random actions meet in at most `_PROBE` steps, and about how many a run of `steps` meets.

    New ones become rarer by a power of the steps, whose exponent is read off the two halves of the play: 700 after
    half and 1,000 after all of it are 1,000 · x^.51 after x times as many steps.
    """
    known, envs = situations(env_id), make_vec(env_id, _ENVS)
    seen, _ = envs.reset(seed=derive_seed(seed, "outlook"))
    rng, rows = generator(seed, "outlook"), max(2, min(steps, _PROBE) // _ENVS)
    met: dict[int, None] = dict.fromkeys(known.keys(seen).tolist())
    half = 1
    for row in range(1, rows):
        seen = envs.step(rng.integers(0, len(known.deeds), _ENVS))[0]
        met |= dict.fromkeys(np.unique(known.keys(seen)).tolist())
        half = len(met) if row == rows // 2 else half
    envs.close()
    power = math.log2(len(met) / max(1, half))
    return list(met), round(len(met) * max(1.0, steps / (rows * _ENVS)) ** power)


def outlook(
    suggester: AskedSuggester | ClosedSuggester, env_id: str, steps: int, seed: int, cache: Path, price: Price | None
) -> Outlook:
    """Tokens and price of a run, and three of its prompts. Asks and writes nothing."""
    if isinstance(suggester, PartSuggester):
        requests = suggester.requests(0)
        found = forecast(requests, 1, cache, suggester.session.backend.identity, price)
        note = "Each deed is asked about beside each single thing, once for all situations and runs."
        return replace(found, prompts=shown(requests), notes=(note,), at_most=suggester.chooser.votes)
    met, expected = situations_met(env_id, steps, seed)
    asked = [request for key in met for request in suggester.requests(key)]
    requests = list({request_key({}, one): one for one in asked}.values())  # what reads alike is one question
    total = round(expected * len(requests) / len(met))
    reply, votes = (1, suggester.chooser.votes) if isinstance(suggester, ClosedSuggester) else (_REPLY_TOKENS, 1)
    found = forecast(requests, reply, cache, suggester.session.backend.identity, price)
    open_ = found.requests - found.kept
    if not open_:  # what random actions do not meet is like what they meet
        found, open_ = replace(forecast(requests, reply, cache, None, price), kept=found.kept), found.requests
    more = max(1, total - found.kept) / open_
    most = most_of(steps)
    note = (
        f"Random actions met {len(met):,} situations in {min(steps, _PROBE):,} steps; {steps:,} steps, with "
        f"those of evaluations, are reckoned to meet {expected:,}. Those that read alike are one question. An agent "
        f"that learns gets further: it may meet {most:.2g} times as many, at most all different. --max-requests and "
        "--max-cost bound it."
    )
    about = {"requests": total, "prompts": shown(requests), "at_most": most * votes * len(asked) / len(requests)}
    return found.times(more, notes=(note,), **about)
