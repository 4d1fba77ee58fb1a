"""The forms of shaping in words: what is added to the reward, and what each form keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkrl.report.comparison import Trained

WHAT = {
    "none": "nothing: the world's own reward alone",
    "pbrs": "potential-based shaping: γΦ(h′) − Φ(h) is added, Φ of a terminal state is 0",
    "advice": "nothing is added to the reward: the policy's logits start at what the advice says, which fades to 0",
    "decay": "a plain bonus whose weight falls to 0 by a schedule",
    "pbim": "an intrinsic reward whose sum over an episode is taken back at its end",
    "grm": "an intrinsic reward whose sum over an episode is taken back at its end",
    "additive": "a plain bonus is added to the reward",
}


def forms_of(trained: Sequence[Trained]) -> list[dict[str, Any]]:
    """One entry for each form and guarantee on the page, with the methods that use it."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in trained:
        found.setdefault((run.form, run.guarantee), set()).add(run.alg)
    order = list(WHAT)
    known = sorted(found, key=lambda one: (order.index(one[0]) if one[0] in order else len(order), one))
    return [
        {
            "form": form,
            "algs": sorted(found[form, guarantee]),
            "what": WHAT.get(form, ""),
            "guarantee": guarantee or "The world's own task, unchanged.",
            "unguarded": guarantee.lower().startswith("none"),
        }
        for form, guarantee in known
    ]
