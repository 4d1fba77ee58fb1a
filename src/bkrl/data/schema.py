"""Every Parquet table bkrl writes. Plain types only, so that pandas, polars, duckdb and HF datasets read them all.

Tables that say something about experience point at it with (episode_id, start, length); steps are never copied.
A change that old readers cannot follow raises SCHEMA_VERSION; older tables stay readable. In version 1, observations
were `fixed_size_binary`.
"""

import json
from collections.abc import Sequence
from math import prod

import pyarrow as pa

SCHEMA_VERSION = 2
LABEL = "bot_action"
"""The column of texts that holds the action which a bot would have taken, where one was asked."""

_VERSION = {b"bkrl.schema_version": str(SCHEMA_VERSION).encode()}


def part_name(number: int) -> str:
    """The file of a part of the table of steps."""
    return f"steps/part-{number:05d}.parquet"


def steps_schema(obs_shape: Sequence[int], texts: Sequence[str] = ()) -> pa.Schema:
    """Steps: an episode of T actions has T + 1 rows; the last row's action and reward are null.

    `texts` are the names of further columns of text, which stand last (`goal`, where goals were set while it acted).

    `observation` holds the raw uint8 array, row-major; its shape and dtype stand in the field's metadata. Readers show
    it as an array of numbers, so `reshape(-1, *shape)` needs no Python loop.
    """
    shape = {b"shape": json.dumps(list(obs_shape)).encode(), b"dtype": b"uint8"}
    observation = pa.list_(pa.field("element", pa.uint8(), nullable=False), prod(obs_shape))
    return pa.schema(
        [
            pa.field("episode_id", pa.int64(), nullable=False),
            pa.field("step", pa.int32(), nullable=False),
            pa.field("observation", observation, nullable=False, metadata=shape),
            pa.field("caption", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("mission", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("action", pa.int32()),
            pa.field("reward", pa.float32()),
            pa.field("terminated", pa.bool_(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
            *(pa.field(name, pa.dictionary(pa.int32(), pa.string()), nullable=False) for name in texts),
        ],
        metadata=_VERSION,
    )


def _table(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, dtype) for name, dtype in fields], metadata=_VERSION)


_SEGMENT = [("episode_id", pa.int64()), ("start", pa.int32()), ("length", pa.int32())]

EPISODES = _table(
    ("episode_id", pa.int64()),
    ("seed", pa.int64()),
    ("length", pa.int32()),
    ("episode_return", pa.float32()),
    ("success", pa.bool_()),
    ("terminated", pa.bool_()),
    ("truncated", pa.bool_()),
    ("checkpoint_step", pa.int64()),
    ("part", pa.int32()),
    ("row_start", pa.int64()),
)


def episodes_schema(texts: Sequence[str] = ()) -> pa.Schema:
    """Episodes; `texts` are the names of further columns of text, which stand last (`task_kind`, `explorer`)."""
    fields = [*EPISODES, *(pa.field(name, pa.string(), nullable=False) for name in texts)]
    return pa.schema(fields, metadata=_VERSION)


RESPONSES = _table(
    ("request_id", pa.int64()),
    ("key", pa.string()),
    ("prompt", pa.string()),
    ("sample", pa.int32()),
    ("reply", pa.string()),
    ("status", pa.string()),
    ("reason", pa.string()),
    ("finish_reason", pa.string()),
    ("model", pa.string()),
    ("prompt_tokens", pa.int64()),
    ("completion_tokens", pa.int64()),
    ("reasoning_tokens", pa.int64()),
    ("cost_usd", pa.float64()),
    ("answered_as", pa.string()),
)

PREFERENCES = _table(
    ("pair_id", pa.int64()),
    ("a_episode_id", pa.int64()),
    ("a_start", pa.int32()),
    ("b_episode_id", pa.int64()),
    ("b_start", pa.int32()),
    ("length", pa.int32()),
    ("label", pa.float32()),
    ("status", pa.string()),
    ("votes_a", pa.int32()),
    ("votes_b", pa.int32()),
    ("votes_tie", pa.int32()),
    ("votes_invalid", pa.int32()),
    ("request_ids", pa.list_(pa.int64())),
)

GOALS = _table(
    ("query_id", pa.int64()),
    *_SEGMENT,
    ("caption", pa.string()),
    ("goal", pa.string()),
    ("goal_id", pa.int32()),
    ("status", pa.string()),
    ("request_id", pa.int64()),
    ("said", pa.list_(pa.string())),
    ("request_ids", pa.list_(pa.int64())),
)

LIBRARY = _table(
    ("goal_id", pa.int32()),
    ("goal", pa.string()),
    ("wordings", pa.list_(pa.string())),
    ("wording_counts", pa.list_(pa.int32())),
    ("query_ids", pa.list_(pa.int64())),
    ("request_ids", pa.list_(pa.int64())),
)

PROGRAMS = _table(
    ("candidate_id", pa.int32()),
    ("conversation", pa.int32()),
    ("round", pa.int32()),
    ("program", pa.string()),
    ("status", pa.string()),
    ("error", pa.string()),
    ("score", pa.float64()),
    ("score_details", pa.string()),
    ("chosen", pa.bool_()),
    ("request_id", pa.int64()),
)

TRUTH = _table(("episode_id", pa.int64()), ("step", pa.int32()), ("value", pa.float64()))

CHOICES = _table(
    ("question_id", pa.int64()),
    ("about", pa.string()),
    ("phrasing", pa.int32()),
    ("outcomes", pa.list_(pa.string())),
    ("logprobs", pa.list_(pa.float64())),
    ("exact", pa.bool_()),
    ("request_ids", pa.list_(pa.int64())),
)

# What a row of each table is, and what its columns do not say themselves; docs/data.md shows it.
ABOUT = {
    "steps": (
        "One row a moment: many episodes stand in a file, and an episode of T actions has T + 1 rows, whose last "
        "has no action and no reward (null). Texts that a method recorded beside (`goal`) have columns after these, "
        "which `info.json` names under `texts`. `observation` is the raw uint8 array, row-major; its shape stands in "
        "the field's metadata and in `info.json`. `mission` is that of the moment: sub-goals that an env shows "
        "(`@subgoals=shown`) change within an episode. Datasets of schema version 1 hold observations as "
        "`fixed_size_binary`; they open, and can be merged and divided, like the others."
    ),
    "episodes": (
        "`checkpoint_step`: environment steps the explorer had trained for. `part` and `row_start`: the file of "
        "`steps/` and the row in it where the episode begins. Texts about whole episodes have columns after these, "
        "which `info.json` names under `episode_texts`: `task_kind`, where the env says it, and `explorer`, who acted, "
        "where datasets of several explorers were joined (else the manifest says it)."
    ),
    "responses": (
        "Every request with the whole answer, or the `reason` why there is none. `status`: ok, truncated, filtered, "
        "refused or failed. `key`: its address in the store of replies. `sample`: the number of the vote. "
        "`answered_as`: json_schema, json_object or text. `cost_usd`: null where the price is not known."
    ),
    "preferences": (
        "One row a pair. `label` is the probability that A is better: 1, 0, ½ for a tie, or the share of the votes; "
        "null without a usable answer. `status`: labelled, identical (a tie without asking), or why there is no "
        "label."
    ),
    "goals": (
        "One row for each goal suggested for a segment, with the replies that did (`request_ids`) and the words "
        "each used (`said`); `goal` is null where a reply held none. Goals that say the same share a `goal_id` and "
        "are written alike."
    ),
    "library": (
        "The distinct goals, in the order they first came up: every wording with how often it was used, the moments "
        "it was suggested for, and the replies that did."
    ),
    "choices": (
        "One row for each phrasing of each closed question (`--ask closed`): what it is about, what each answer would "
        "mean (`outcomes`), the log-probability of each (null where the answer was not clear), whether the annotator "
        "told them (`exact`) or its words were counted, and the replies."
    ),
    "truth": (
        "The exact optimal value of each moment that was asked about (`--llm exact`, `--score exact`), by which "
        "train-rm scores what is learnt from the labels."
    ),
    "programs": "Every candidate with its check; the one with the best score is chosen.",
}
