"""Controls for preference labels: what labels without any knowledge, or with the reward itself, would be worth.

`random` flips a coin for each pair; `return` prefers the segment with the higher discounted return-to-go. Neither asks
anyone. A claim about background knowledge has to beat the first and may be compared with the second.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset
from bkrl.labelers.material import EnvCard, return_to_go, segment_text
from bkrl.labelers.plan import LabelResult, Plan, Variant
from bkrl.labelers.preferences import PREF, Pair, draw_pairs, row_of
from bkrl.labelers.quality import of_pairs
from bkrl.llm.session import AskSession

NAMES = {
    "random": "control: a coin for each pair (no knowledge)",
    "return": "control: the higher discounted return-to-go (the env's reward, not background knowledge)",
}


def control(name: str) -> Variant:
    """Preferences by the control of that name."""
    return replace(PREF, label=partial(_label, name))


def _label(name: str, plan: Plan, session: AskSession) -> LabelResult:
    drawn = draw_pairs(plan.dataset, plan.num, plan.length, plan.seed)
    table = rows(name, plan.dataset, drawn, plan.seed, plan.card)
    return LabelResult(table, None, of_pairs(plan.dataset, plan.card, table, [], by_rules=False), usable=True)


def rows(
    name: str, dataset: Dataset, pairs: list[Pair], seed: int, card: EnvCard | None = None
) -> list[dict[str, Any]]:
    """Rows of preferences.parquet made without asking. `name`: one of `NAMES`; `card`: says what prompts would show."""
    coins = generator(seed, "label", "control").random(len(pairs))
    table = []
    for number, pair in enumerate(pairs):
        if segment_text(dataset, pair.a, card) == segment_text(dataset, pair.b, card):
            label, status = 0.5, "identical"
        elif name == "random":
            label, status = float(coins[number] < 0.5), "labelled"
        else:
            gain = return_to_go(dataset, pair.a) - return_to_go(dataset, pair.b)
            label, status = 0.5 if gain == 0 else float(gain > 0), "labelled"
        votes = (int(label == 1.0), int(label == 0.0), int(label == 0.5 and status == "labelled"), 0)
        table.append(row_of(number, pair, label, status, votes))
    return table
