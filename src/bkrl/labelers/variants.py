"""The kinds of label, by the name that `--variant` takes."""

from __future__ import annotations

from bkrl.labelers.code import CODE
from bkrl.labelers.goals import GOAL
from bkrl.labelers.plan import Variant
from bkrl.labelers.preferences import PREF

VARIANTS: dict[str, Variant] = {"pref": PREF, "goal": GOAL, "code": CODE}
