"""How far labels can be trusted, worked out from a label run's tables: the same figures after a merge or years later.

`of_pairs`, `of_goals` and `of_programs` give plain facts for the manifest; `as_table` turns facts into rows to print.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bkrl import envs
from bkrl.core.reporter import percent, percents
from bkrl.data.dataset import Dataset, Segment
from bkrl.labelers.agreement import alpha_with_interval, mean_share, self_agreement, share
from bkrl.labelers.answers import Choice, Unparsed, parse_choice
from bkrl.labelers.material import EnvCard, return_to_go, segment_text
from bkrl.llm.choose import read_answer
from bkrl.llm.protocol import Fault
from bkrl.llm.rules import KNOWLEDGE, answer
from bkrl.text.prompts import SHIPPED

Row = Mapping[str, Any]
CHANCE = 0.5
FAVOURITE = 0.8
"""An annotator that names one place in a larger share of its answers has a favourite place."""
ALIKE = 0.01
"""Log-odds that spread less say nothing."""
LEAST_JUDGED = 20
Facts = dict[str, Any]
Reader = Callable[[str], "Choice | Unparsed"]
SWAPPED: dict[str, Choice] = {"A": "B", "B": "A", "tie": "tie"}


@dataclass(frozen=True)
class Vote:
    """One answer to a pair. `value` is in terms of the pair's own A and B, None if there was no answer to be read;
    `swapped`: B was shown first; `request_ids`: the question and, where it had to be repeated, its repetition.
    """

    swapped: bool
    sample: int
    value: Choice | None
    status: str
    request_ids: tuple[int, ...]


def questions(responses: Sequence[Row]) -> list[list[Row]]:
    """Responses in the order they were asked, each question together with its repair: a prompt that goes on where the
    one before it ended.
    """
    asked: list[list[Row]] = []
    for response in responses:
        if asked and response["prompt"].startswith(asked[-1][0]["prompt"][:-1] + ","):
            asked[-1].append(response)
        else:
            asked.append([response])
    return asked


def closed_choice(reply: str) -> Choice | Unparsed:
    """Which segment an answer to a closed question finds better, in terms of what was shown; a tie where neither is."""
    scores, _ = read_answer(reply, ("1", "2"))
    if scores[0] != scores[0]:
        return Unparsed("neither 1 nor 2 was named")
    return "tie" if scores[0] == scores[1] else "A" if scores[0] > scores[1] else "B"


def read_choice(reply: str) -> Choice | Unparsed:
    """The same of an answer in words; one that holds log-probabilities was closed."""
    return closed_choice(reply) if reply.startswith('{"logprobs"') else parse_choice(reply)


def votes_of(row: Row, responses: Mapping[int, Row], read: Reader = read_choice) -> list[Vote]:
    """The votes behind a row of preferences.parquet, read again from the replies (`responses` by request id).

    The first question of a pair shows A first; one that reads otherwise is the pair swapped.
    """
    asked = questions([responses[request_id] for request_id in row["request_ids"]])
    votes = []
    for exchanges in asked:
        last = exchanges[-1]
        swapped = exchanges[0]["prompt"] != asked[0][0]["prompt"]
        found = read(last["reply"]) if last["status"] == "ok" else Unparsed(last["status"])
        value = None if isinstance(found, Unparsed) else SWAPPED[found] if swapped else found
        status = "labelled" if value else "unparsed" if last["status"] == "ok" else last["status"]
        ids = tuple(int(one["request_id"]) for one in exchanges)
        votes.append(Vote(swapped, int(last["sample"]), value, status, ids))
    return votes


def closed_votes(choices: Sequence[Row], responses: Mapping[int, Row]) -> dict[int, list[list[Vote]]]:
    """Of each pair its closed questions, with a vote for every phrasing, as it counted (rows of choices.parquet). What
    is said of one segment alone (points) is no vote; the status has it.
    """
    found: dict[int, list[list[Vote]]] = {}
    for row in choices:
        asked = found.setdefault(int(row["about"]), [])
        asked += [[]] if row["phrasing"] == 0 else []
        (first, second), last = row["logprobs"], responses[row["request_ids"][-1]]["status"]
        value: Choice | None = None
        if first is not None and second is not None:
            value = "tie" if first == second else "A" if first > second else "B"
        status = "labelled" if value else "unparsed" if last == "ok" else last
        if value and row["outcomes"] != ["A", "B"]:
            status = "tie" if value == "tie" else row["outcomes"]["AB".index(value)]
            value = None
        asked[-1].append(Vote(row["phrasing"] == 1, 0, value, status, tuple(row["request_ids"])))
    return found


def agreement_of(row: Row) -> float | None:
    """The share of a pair's valid answers that were its commonest one: 1 if all agree; None without a label.

    A pair that was never asked about (identical segments, a control) has no disagreement.
    """
    if row["label"] is None:
        return None
    counts = [row[f"votes_{name}"] or 0 for name in ("a", "b", "tie")]
    return float(max(counts) / sum(counts)) if sum(counts) else 1.0


def segments_of(row: Row) -> tuple[Segment, Segment]:
    """The two segments of a row of preferences.parquet."""
    a, b = (Segment(row[f"{side}_episode_id"], row[f"{side}_start"], row["length"]) for side in "ab")
    return a, b


def rules_choice(dataset: Dataset, card: EnvCard, row: Row) -> Choice | None:
    """What the rules annotator says of the pair, A shown first; None if it does not know the env or its words."""
    if envs.family(card.family).knowledge not in KNOWLEDGE:
        return None
    a, b = (segment_text(dataset, segment, card) for segment in segments_of(row))
    try:
        value = parse_choice(answer([text for _, text in SHIPPED.render("pref", world=card, a=a, b=b)]))
    except Fault:  # captions in a language that it does not read
        return None
    return None if isinstance(value, Unparsed) else value


def of_pairs(
    dataset: Dataset,
    card: EnvCard,
    table: Sequence[Row],
    responses: Sequence[Row],
    *,
    by_rules: bool,
    read: Reader | None = None,
) -> Facts:
    """Facts about preference labels, from the rows of preferences.parquet and responses.parquet.

    `by_rules`: the rules annotator made these labels, so there is no point in asking it for a second opinion.
    `read`: reads a reply, in terms of what was shown.
    """
    known = {int(response["request_id"]): response for response in responses}
    votes = [votes_of(row, known, read or read_choice) for row in table]
    valid = [[vote for vote in asked if vote.value is not None] for asked in votes]
    shown = [[SWAPPED[vote.value] if vote.swapped else vote.value for vote in one if vote.value] for one in valid]
    each_order = [[str(vote.value) for vote in one if vote.swapped is way] for one in valid for way in (False, True)]
    decided_shown = [[value for value in one if value != "tie"] for one in shown]
    decided = [row for row in table if row["label"] not in (None, 0.5)]
    gains = [(_gain(dataset, row), row["label"]) for row in decided]
    facts: Facts = {
        "pairs": len(table),
        "identical": sum(row["status"] == "identical" for row in table),
        "labelled": sum(row["status"] == "labelled" for row in table),
        "without_label": sum(row["label"] is None for row in table),
        "tie": mean_share([one.count("tie") / len(one) for one in shown if one]),
        "invalid": mean_share([1 - len(good) / len(asked) for good, asked in zip(valid, votes) if asked]),
        "first_shown_preferred": mean_share([one.count("A") / len(one) for one in decided_shown if one]),
        "position_bias": mean_share([bias for one in valid if (bias := _position_bias(one)) is not None]),
        "swap_consistency": mean_share([same for one in valid if (same := _consistency(one)) is not None]),
        "self_agreement": self_agreement(each_order),
        "krippendorff_alpha": alpha_with_interval([[str(vote.value) for vote in one] for one in valid]),
        "not_unanimous": mean_share([float(len({vote.value for vote in one}) > 1) for one in valid if len(one) > 1]),
        "agreement_with_return": mean_share([float((gain > 0) == (label > 0.5)) for gain, label in gains if gain]),
    }
    if not by_rules:
        second = [(row["label"], rules_choice(dataset, card, row)) for row in decided]
        known_to_rules = [(label, choice) for label, choice in second if choice in ("A", "B")]
        facts["agreement_with_rules"] = mean_share([float((c == "A") == (label > 0.5)) for label, c in known_to_rules])
    return facts


def of_goals(table: Sequence[Row], responses: Sequence[Row]) -> Facts:
    """Facts about goals, from the rows of goals.parquet and responses.parquet."""
    queries = {row["query_id"] for row in table}
    answered = {row["query_id"] for row in table if row["goal"] is not None}
    named = Counter(row["goal"] for row in table if row["goal"] is not None)
    failed = sum(row["goal"] is None for row in table)
    return {
        "queries": len(queries),
        "invalid": share(failed * len(queries) / max(1, len(questions(responses))), len(queries)),
        "without_goal": len(queries) - len(answered),
        "distinct_goals": len(named),
        "wordings": len({words for row in table for words in row["said"] or []}),
        "goals_per_query": named.total() / len(answered) if answered else 0.0,
        "most_frequent": [{"goal": goal, "queries": count} for goal, count in named.most_common(10)],
    }


def of_programs(table: Sequence[Row]) -> Facts:
    """Facts about programs: how many candidates worked, which one was chosen and what it was compared with."""
    chosen = [row["candidate_id"] for row in table if row["chosen"]]
    return {
        "candidates": sum(row["status"] != "repeated" for row in table),
        "working": sum(row["status"] == "ok" for row in table),
        "unparsed": sum(row["status"] == "unparsed" for row in table),
        "chosen": chosen[0] if chosen else None,
        "why": [
            {
                "candidate": row["candidate_id"],
                "conversation": row["conversation"],
                "round": row["round"],
                "status": row["status"],
                "error": row["error"],
                **(json.loads(row["score_details"]) if row["score_details"] else {}),
            }
            for row in table
        ],
    }


def at_chance(facts: Facts) -> list[str]:
    """What in the figures of labels says that they are no better than chance: clauses, none where nothing does. A
    favourite place is forgiven where the labels agree more often than by chance with exact values or, where there are
    none, with the rules annotator.
    """
    found = []
    first, by = facts.get("first_shown_preferred") or {}, "exact values"
    truth = facts.get("exact_accuracy") or {}
    if not truth:
        truth, by = facts.get("agreement_with_rules") or {}, "the rules annotator"
    known = (truth.get("n") or 0) >= LEAST_JUDGED
    above = known and truth["low"] > CHANCE
    if first.get("n") and max(first["rate"], 1 - first["rate"]) > FAVOURITE and not above:
        place = "first" if first["rate"] > CHANCE else "second"
        share_ = max(first["rate"], 1 - first["rate"])
        found.append(f"the segment shown {place} is preferred in {percent(share_)} of the answers")
    if known and not above:
        found.append(f"they agree with {by} in {percent(truth['rate'])} of {truth['n']:,} decided pairs")
    area, order = facts.get("exact_auc") or {}, facts.get("subgoal_rho") or {}
    if (area.get("n") or 0) >= LEAST_JUDGED and not (area["low"] or 0.0) > CHANCE:
        found.append(f"sensible goals are told from others at an area under the curve of {area['value'] or 0.0:.2f}")
    if order and order["value"] <= 0:
        found.append(f"sub-goals are ordered at a rank correlation of {order['value']:.2f} with how important they are")
    if facts.get("log_odds_spread", 1.0) < ALIKE:
        found.append(f"log-odds are all alike (their spread is {facts['log_odds_spread']:.3f})")
    return found


def as_table(facts: Facts) -> dict[str, Any]:
    """Facts as `header` and `rows` to print, whatever the variant; what could not be measured (n = 0) is left out."""
    if "why" in facts:
        return _table_of_programs(facts)
    known = {name: facts[name] for name in WORDS if name in facts}
    rows = [
        [WORDS[name], *cells(value)]
        for name, value in known.items()
        if not (isinstance(value, Mapping) and value["n"] == 0)
    ]
    for one in facts.get("exact_bins", []):
        rows.append([f"right where {percent(one['from'])} to {percent(one['to'])} sure", *cells(one)])
    return {"header": ["", "value", "95 % interval", "n"], "rows": rows}


def in_words(facts: Facts) -> str:
    """What came out, in one sentence."""
    if "candidates" in facts:
        chosen = facts["why"][facts["chosen"]]
        order = facts.get("subgoal_rho")
        said = " Rank correlation with exact importance: {} ({}, n = {}).".format(*cells(order)) if order else ""
        return f"Working programs: {facts['working']} of {facts['candidates']}; chosen: round {chosen['round']}.{said}"
    if "queries" in facts:
        return f"{facts['distinct_goals']:,} distinct goals from {facts['queries']:,} queries."
    tie = facts["tie"]["rate"]
    rates = "" if tie is None else f", ties {percent(tie, 1)}, invalid {percent(facts['invalid']['rate'], 1)}"
    return f"{facts['labelled']:,} pairs labelled, {facts['identical']:,} identical{rates}."


WORDS = {
    "pairs": "pairs",
    "identical": "identical segments (ties without asking)",
    "labelled": "labelled",
    "without_label": "without a label",
    "queries": "moments asked about",
    "without_goal": "moments without a goal",
    "distinct_goals": "distinct goals",
    "wordings": "different wordings of them",
    "goals_per_query": "goals for a moment",
    "tie": "ties among answers",
    "invalid": "answers that could not be used",
    "first_shown_preferred": "the segment shown first preferred",
    "position_bias": "answer follows the position (pairs asked in both orders)",
    "swap_consistency": "same answer in both orders, ties included",
    "self_agreement": "same answer when asked again",
    "not_unanimous": "pairs whose answers differ",
    "krippendorff_alpha": "Krippendorff's alpha of all answers",
    "agreement_with_return": "agreement with the return (decided pairs)",
    "agreement_with_rules": "agreement with the rules annotator (decided pairs)",
    "exact_accuracy": "right by exact values",
    "exact_accuracy_clear": "of the half of them that differ most",
    "exact_equal": "pairs of exactly equal value (not counted)",
    "exact_agreement": "same answer as exact values, of all goals at a moment",
    "exact_goals": "goals that are sensible at a moment, by exact values",
    "exact_precision": "of the goals named, sensible",
    "exact_recall": "of the sensible goals, named",
    "exact_auc": "area under the curve, sensible goals against others",
    "exact_seconds": "seconds",
    "exact_cost": "US dollars",
}


def cells(value: Any) -> list[Any]:
    """value, interval and n of a figure as text for a cell each."""
    if isinstance(value, str):
        return [value, "", ""]
    if not isinstance(value, Mapping):
        return [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}", "", ""]
    low, high = value["low"], value["high"]
    if "rate" in value:
        number = percent(value["rate"], 1)
        interval = "" if low is None else percents(low, high, 1)
    else:
        number = "–" if value["value"] is None else f"{value['value']:.3f}"
        interval = "" if low is None else f"{low:.3f} to {high:.3f}"
    return [number, interval, f"{value['n']:,}"]


def _table_of_programs(facts: Facts) -> dict[str, Any]:
    rows = []
    for one in facts["why"]:
        figures = [one.get("score"), one.get("ordering"), one.get("coverage"), one.get("levels")]
        verdict = verdict_of(one, facts["chosen"]).partition("\n")[0]
        rows.append([one["candidate"], one["conversation"], one["round"], one["status"], *figures, verdict])
    header = ["candidate", "conversation", "round", "status", "score", "success above others", "coverage", "levels"]
    return {"header": [*header, "verdict"], "rows": rows}


def verdict_of(one: Row, chosen: int | None) -> str:
    """Why a candidate (an entry of `why`) was chosen or not, in words."""
    if one["candidate"] == chosen:
        return "chosen: the best score, the earliest of equals"
    if one["status"] == "repeated":
        return "the same program again; the conversation ended"
    if one["error"] or one["status"] != "ok":
        return str(one["error"] or one["status"])
    return "gives one value everywhere" if one["constant"] else "works; not the best score"


def _gain(dataset: Dataset, row: Row) -> float:
    a, b = segments_of(row)
    return return_to_go(dataset, a) - return_to_go(dataset, b)


def _both_orders(votes: Sequence[Vote]) -> list[tuple[Vote, Vote]]:
    """Votes of the same number in the two orders."""
    straight = {vote.sample: vote for vote in votes if not vote.swapped}
    return [(straight[vote.sample], vote) for vote in votes if vote.swapped and vote.sample in straight]


def _position_bias(votes: Sequence[Vote]) -> float | None:
    """Among votes decided in both orders: how often the same *place* won, whichever segment stood there."""
    both = [(one.value, other.value) for one, other in _both_orders(votes) if "tie" not in (one.value, other.value)]
    return sum(one != other for one, other in both) / len(both) if both else None


def _consistency(votes: Sequence[Vote]) -> float | None:
    both = [one.value == other.value for one, other in _both_orders(votes)]
    return sum(both) / len(both) if both else None
