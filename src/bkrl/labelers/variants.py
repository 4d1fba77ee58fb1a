"""The kinds of label, by the name that `--variant` takes."""

from bkrl.labelers.closed import CLOSED
from bkrl.labelers.code import CODE
from bkrl.labelers.goals import GOAL
from bkrl.labelers.plan import Plan, Variant
from bkrl.labelers.preferences import PREF

VARIANTS: dict[str, Variant] = {"pref": PREF, "goal": GOAL, "code": CODE}


def variant_of_plan(plan: Plan) -> Variant:
    """How a plan is asked: open, or by closed questions."""
    return (CLOSED if plan.closed else VARIANTS)[plan.variant]
