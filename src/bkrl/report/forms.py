"""The forms of shaping in words: what takes part in learning how, and what each form keeps."""

from collections.abc import Mapping, Sequence
from typing import Any

from bkrl.methods import find_method
from bkrl.report.groups import Trained
from bkrl.report.model import FormUse
from bkrl.rewards.shaping import FORMS


def form_of(alg: str, facts: Mapping[str, Any]) -> str:
    """The form of shaping of a run; its method's where an early manifest names none."""
    method = find_method(alg)
    found = str(facts.get("form", "none"))
    return method.form if method is not None and found == "none" else found


def guarantee_of(alg: str, facts: Mapping[str, Any]) -> str:
    """What that form keeps, as the run's manifest says."""
    form = form_of(alg, facts)
    said = facts.get("guarantee") if facts.get("form") == form else None
    return str(said or (FORMS[form].guarantee if form in FORMS else ""))


def forms_of(trained: Sequence[Trained]) -> list[FormUse]:
    """One entry for each form and guarantee on the page, with the methods that use it."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in trained:
        found.setdefault((run.form, run.guarantee), set()).add(run.alg)
    order = list(FORMS)
    known = sorted(found, key=lambda one: (order.index(one[0]) if one[0] in order else len(order), one))
    added = {form: facts.added for form, facts in FORMS.items()}
    return [
        FormUse(form, sorted(found[form, kept]), added.get(form, ""), kept, kept.lower().startswith("none"))
        for form, kept in known
    ]
