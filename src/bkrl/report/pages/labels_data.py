"""What the label browser knows, packed: every caption, line, prompt and picture is there once and pointed at by number.

Records come in chunks of `CHUNK`, which the page parses when it shows them; `index` holds, column by column, what it
filters and sorts by. Nothing in here is markup: the script puts it into the page as text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bkrl.data.dataset import Dataset, Segment
from bkrl.labelers.audit import Answers
from bkrl.labelers.material import EnvCard, return_to_go
from bkrl.labelers.quality import Vote, agreement_of, closed_votes, questions, rules_choice, segments_of, votes_of
from bkrl.report.plots.pictures import Pictures, pack

Row = Mapping[str, Any]
CHUNK = 200
REPLY_CHARS = 20_000
EXCHANGE = (
    "id", "prompt", "reply", "status", "reason", "sample", "model", "finish", "format", "tokens_in", "tokens_out",
    "tokens_reasoning", "cost",
)  # fmt: skip
"""Fields of a packed exchange, in order; `prompt`, `model`, `finish` and `format` are numbers."""

Packed = tuple[Row, Sequence[Sequence[Row]]]
"""What the page's script reads: the head when the page opens, a chunk of records when one of them is shown."""


class Book:
    """Texts by number, each kept once; prompts as lists of lines, because captions come again and again."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._texts: dict[tuple[int, ...], int] = {}
        self._prompts: dict[str, int] = {}
        self._turns: list[list[list[int]]] = []

    def line(self, text: str) -> int:
        """The number of a text that is shown as it is."""
        return self._lines.setdefault(text, len(self._lines))

    def prompt(self, conversation: str) -> int:
        """The number of a conversation as it stands in responses.parquet."""
        if conversation not in self._prompts:
            turns = json.loads(conversation)
            self._turns.append([[self.line(turn["role"]), self._text(turn["content"])] for turn in turns])
            self._prompts[conversation] = len(self._prompts)
        return self._prompts[conversation]

    def exchange(self, response: Row) -> list[Any]:
        """A row of responses.parquet as `EXCHANGE` says."""
        reply = response["reply"]
        if reply is not None and len(reply) > REPLY_CHARS:
            reply = f"{reply[:REPLY_CHARS]} … ({len(reply) - REPLY_CHARS:,} more characters in responses.parquet)"
        words = [self.line(response[name] or "") for name in ("model", "finish_reason", "answered_as")]
        figures = [response[name] for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cost_usd")]
        known = [response["request_id"], self.prompt(response["prompt"]), reply, response["status"], response["reason"]]
        return [*known, response["sample"], *words, *figures]

    def to_json(self) -> Row:
        return {"lines": list(self._lines), "texts": [list(text) for text in self._texts], "prompts": self._turns}

    def _text(self, text: str) -> int:
        lines = tuple(self.line(line) for line in text.split("\n"))
        return self._texts.setdefault(lines, len(self._texts))


def of_pairs(
    dataset: Dataset,
    card: EnvCard,
    table: Sequence[Row],
    responses: Sequence[Row],
    audits: Mapping[str, Answers],
    *,
    by_rules: bool,
    choices: Sequence[Row] = (),
) -> Packed:
    """The browser's data of a preference run; `choices`: of closed questions."""
    book, known = Book(), {int(row["request_id"]): row for row in responses}
    segments = [segment for row in table for segment in segments_of(row)]
    steps, pictures = _steps(dataset, card.family, segments, book)
    closed, points = closed_votes(choices, known), any(row["outcomes"] != ["A", "B"] for row in choices)
    records, facts = [], []
    for number, row in enumerate(table):
        a, b = segments_of(row)
        each = closed.get(row["pair_id"], []) if choices else [votes_of(row, known)]
        votes = [vote for some in each for vote in some]
        asked = [[known[i] for i in vote.request_ids] for vote in votes]
        people = [given[row["pair_id"]] for given in audits.values() if row["pair_id"] in given]
        values = {vote.value for vote in votes if vote.value}
        gain = return_to_go(dataset, a) - return_to_go(dataset, b)
        about = {
            "id": row["pair_id"],
            "label": row["label"],
            "status": row["status"],
            "agreement": None if points else agreement_of(row),
            **_bill([response for exchanges in asked for response in exchanges]),
            "rules": None if by_rules else rules_choice(dataset, card, row),
            "gain": round(float(gain), 4),
            "person": people or None,
            "differs": len(values) > 1,
            "biased": any(map(_follows_position, each)),
        }
        facts.append(about)
        records.append(
            {
                "where": [where(segment) for segment in (a, b)],
                "segments": steps[2 * number : 2 * number + 2],
                "votes": [
                    [
                        None if points else vote.swapped,
                        vote.sample,
                        vote.value,
                        f"{'AB'[2 * i // len(votes)]} alone: {vote.status}" if points else vote.status,
                        [book.exchange(one) for one in asked[i]],
                    ]
                    for i, vote in enumerate(votes)
                ],
            }
        )
    names = "id label status agreement tokens cost rules gain person differs biased"
    return _packed("pref", book, pictures, dataset, records, names, facts)


def of_goals(dataset: Dataset, family: str, table: Sequence[Row], responses: Sequence[Row]) -> Packed:
    """The browser's data of a goal run."""
    book = Book()
    asked = {int(one[-1]["request_id"]): one for one in questions(responses)}
    queries: dict[int, list[Row]] = {}
    for row in table:
        queries.setdefault(row["query_id"], []).append(row)
    segments = [Segment(rows[0]["episode_id"], rows[0]["start"], rows[0]["length"]) for rows in queries.values()]
    steps, pictures = _steps(dataset, family, segments, book)
    records, facts = [], []
    for (query, rows), segment, seen in zip(queries.items(), segments, steps, strict=True):
        ids = sorted({int(i) for row in rows for i in row["request_ids"]})
        exchanges = [asked[i] for i in ids if i in asked]
        goals = [row for row in rows if row["goal"] is not None]
        about = {
            "id": query,
            "status": "labelled" if goals else rows[0]["status"],
            "goals": [row["goal_id"] for row in goals],
            **_bill([response for one in exchanges for response in one]),
        }
        facts.append(about)
        records.append(
            {
                "where": [where(segment)],
                "segments": [seen],
                "goals": [[book.line(row["goal"]), [book.line(words) for words in row["said"]]] for row in goals],
                "asked": [[book.exchange(response) for response in one] for one in exchanges],
            }
        )
    return _packed("goal", book, pictures, dataset, records, "id status goals tokens cost", facts)


def _packed(
    variant: str,
    book: Book,
    pictures: Pictures | None,
    dataset: Dataset,
    records: Sequence[Row],
    names: str,
    facts: Sequence[Row],
) -> Packed:
    """`names`: the columns of the index, of `facts` about each record."""
    head = {
        "variant": variant,
        "chunk": CHUNK,
        "fields": EXCHANGE,
        "actions": dataset.action_names,
        "pictures": None if pictures is None else pictures.to_json(),
        "book": book.to_json(),
        "index": {name: [about[name] for about in facts] for name in names.split()},
    }
    return head, [records[start : start + CHUNK] for start in range(0, len(records), CHUNK)]


def _steps(
    dataset: Dataset, family: str, segments: Sequence[Segment], book: Book
) -> tuple[list[list[list[int]]], Pictures | None]:
    """Each segment as steps [view, caption, action] (-1: no picture, no action after it), and the pictures."""
    rows = [dataset.rows(segment) for segment in segments]
    flat = np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
    packed = pack(family, dataset.observations[flat]) if len(flat) else None
    view = {} if packed is None else dict(zip(flat.tolist(), packed.number.tolist(), strict=True))
    captions = {row: book.line(dataset.caption(row)) for row in flat.tolist()}
    steps = [
        [
            [view.get(row, -1), captions[row], int(dataset.actions[row]) if row != some[-1] else -1]
            for row in some.tolist()
        ]
        for some in rows
    ]
    return steps, packed


def _bill(responses: Sequence[Row]) -> Row:
    """Tokens and cost of some responses; null where nothing is known."""
    tokens = [row["prompt_tokens"] + (row["completion_tokens"] or 0) for row in responses if row["prompt_tokens"]]
    costs = [row["cost_usd"] for row in responses if row["cost_usd"] is not None]
    return {"tokens": sum(tokens) if tokens else None, "cost": sum(costs) if costs else None}


def _follows_position(votes: Sequence[Vote]) -> bool:
    """Whether the first shown segment, or the second, won in both orders."""
    both = {swapped: {v.value for v in votes if v.swapped is swapped and v.value != "tie"} for swapped in (False, True)}
    return any(one in both[False] and other in both[True] for one, other in (("A", "B"), ("B", "A")))


def where(segment: Segment) -> str:
    """Where a segment lies, in words."""
    return f"episode {segment.episode_id}, steps {segment.start} to {segment.start + segment.length}"
