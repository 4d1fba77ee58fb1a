"""The forms of shaping in words: what takes part in learning how, and what each form keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bkrl.report.groups import Trained
from bkrl.report.model import Form
from bkrl.rewards.shaping import FORMS

NOVELTY = "novelty"
"""What `rnd` adds is no shaping, but a bonus all the same."""
_NOVELTY = ("a bonus for novelty is added to the reward", "none: what is optimal may change while the bonus lasts")


def form_of(alg: str, facts: Mapping[str, Any]) -> str:
    """The form of shaping of a run; runs from before manifests named one had potential-based shaping or none."""
    if alg == "rnd":
        return NOVELTY
    return str(facts.get("form") or ("pbrs" if alg.startswith("bk-") else "none"))


def guarantee_of(alg: str, facts: Mapping[str, Any]) -> str:
    """What that form keeps, as the run's manifest says."""
    if alg == "rnd":
        return _NOVELTY[1]
    form = form_of(alg, facts)
    return str(facts.get("guarantee") or (FORMS[form].guarantee if form in FORMS else ""))


def forms_of(trained: Sequence[Trained]) -> list[Form]:
    """One entry for each form and guarantee on the page, with the methods that use it."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in trained:
        found.setdefault((run.form, run.guarantee), set()).add(run.alg)
    order = [*FORMS, NOVELTY]
    known = sorted(found, key=lambda one: (order.index(one[0]) if one[0] in order else len(order), one))
    added = {NOVELTY: _NOVELTY[0]} | {form: facts.added for form, facts in FORMS.items()}
    return [
        Form(form, sorted(found[form, kept]), added.get(form, ""), kept, kept.lower().startswith("none"))
        for form, kept in known
    ]
