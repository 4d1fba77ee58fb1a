"""What a label run asks, and the tables that are made of the answers, whoever gives them.

A shard asks its share of the questions and has its share of the rows, numbered as in the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bkrl import envs
from bkrl.core.config import LabelConfig
from bkrl.core.errors import BkrlError
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.schema import GOALS, LIBRARY, PREFERENCES, PROGRAMS
from bkrl.data.windows import Windows
from bkrl.labelers import code, goals, preferences, quality
from bkrl.labelers.asking import Responses, Sampling
from bkrl.labelers.material import SegmentText, WorldCard, world_card
from bkrl.labelers.shards import Shard
from bkrl.llm.protocol import Request
from bkrl.llm.session import AskSession
from bkrl.sandbox.pool import Sandbox, probation
from bkrl.text import prompts

HORIZON = 5
"""Past actions that a code potential sees."""
NUM = {"pref": 5000, "goal": 500, "code": 5}
LENGTH = {"pref": 5, "goal": 3, "code": HORIZON}


@dataclass(frozen=True)
class Done:
    """A labelling: the rows of its table, every exchange, figures of quality; `more`: further tables by file name."""

    file: str
    schema: pa.Schema
    table: list[dict[str, Any]]
    responses: Responses
    quality: dict[str, Any]
    more: dict[str, pa.Table] = field(default_factory=dict)


def label(config: LabelConfig, dataset: Dataset, session: AskSession) -> Done:
    """Ask everything that `config` wants to know about a dataset."""
    return {"pref": _pref, "goal": _goal, "code": _code}[config.variant](config, dataset, session)


def requests(config: LabelConfig, dataset: Dataset) -> list[Request] | None:
    """What would be asked, second questions left out; None for programs, where each request builds on a reply."""
    world = world_of(config, dataset)
    if config.variant == "pref":
        drawn = pairs(config, dataset)
        mine = _pairs_of(config, dataset, drawn)
        questions = [q for q in preferences.plan(dataset, drawn, config.swap, config.votes) if q.pair in mine]
        return [preferences.request(dataset, world, drawn[q.pair], q, _sampling(config)) for q in questions]
    if config.variant == "goal":
        return [
            goals.request(dataset, world, query, _sampling(config), sample)
            for _, query in _queries(config, dataset)
            for sample in range(config.votes)
        ]
    return None


def pairs(config: LabelConfig, dataset: Dataset) -> list[preferences.Pair]:
    """The pairs to compare, those of other shards included."""
    return preferences.draw_pairs(dataset, config.num or NUM["pref"], config.length or LENGTH["pref"], config.seed)


def most_programs(config: LabelConfig) -> int:
    """How many programs can be asked for at most."""
    return (config.num or NUM["code"]) * len(Shard.parse(config.shard).conversations(config.votes))


def world_of(config: LabelConfig, dataset: Dataset) -> WorldCard:
    """The world of a dataset, with the prompts that a labelling asks with."""
    return world_card(dataset.env_id, config.prompt)


def try_prompts(config: LabelConfig, dataset: Dataset) -> None:
    """Fill in once every template that may be needed. InputError when one of somebody's own cannot be."""
    world = world_of(config, dataset)
    some = SegmentText(("A caption.", "A caption."), (world.action_names[0],))
    if config.variant == "code":
        code.code_prompt(world, layout(world), HORIZON, [some])
        world.prompts.render("code_error", error="An error.")
        values = {"count": 1, "lowest": 0.0, "mean": 0.0, "highest": 0.0, "ordering": 0.5}
        example = code.Example(some.captions, some.actions, 0.0, (("part", 0.0),))
        world.prompts.render("code_improve", **values, components=[("part", 0.0, 0.0, 0.0)], examples=[example])
        return
    if config.variant == "pref":
        preferences.pair_prompt(world, some, some)
    else:
        goals.goal_prompt(world, some)
    world.prompts.render("repair", reason="A reason.", format="A form.")


def templates(variant: str, world: WorldCard) -> list[str]:
    """The templates that a labelling is worded by."""
    own = {"pref": preferences.TEMPLATES, "goal": goals.TEMPLATES, "code": code.TEMPLATES}[variant]
    return [*own, f"world_{world.family}"]


def layout(world: WorldCard) -> str:
    """What the integers of an observation mean, in words."""
    piece = f"layout_{world.family}"
    if piece in prompts.names():
        return world.prompts.piece(piece, layout=envs.family(world.family).layout)
    return "observations[b, i] is the world's observation as it is."


def _pref(config: LabelConfig, dataset: Dataset, session: AskSession) -> Done:
    world, drawn = world_of(config, dataset), pairs(config, dataset)
    mine = _pairs_of(config, dataset, drawn)
    questions = [q for q in preferences.plan(dataset, drawn, config.swap, config.votes) if q.pair in mine]
    answers = preferences.ask_pairs(session, dataset, world, drawn, questions, _sampling(config))
    responses = Responses()
    table = [row for row in preferences.rows(drawn, questions, answers, responses) if row["pair_id"] in mine]
    facts = quality.of_pairs(dataset, world, table, responses.rows, by_rules=config.llm == "rules")
    return Done("preferences.parquet", PREFERENCES, table, responses, facts)


def _goal(config: LabelConfig, dataset: Dataset, session: AskSession) -> Done:
    numbered = _queries(config, dataset)
    queries = [query for _, query in numbered]
    world = world_of(config, dataset)
    answers = goals.ask_goals(session, dataset, world, queries, config.votes, _sampling(config))
    responses = Responses()
    table = goals.rows(dataset, queries, answers, responses)
    table = [{**row, "query_id": numbered[row["query_id"]][0]} for row in table]
    library = pa.Table.from_pylist([entry.row for entry in goals.library(table)], schema=LIBRARY)
    return Done(
        "goals.parquet",
        GOALS,
        table,
        responses,
        quality.of_goals(table, responses.rows),
        {"library.parquet": library},
    )


def _code(config: LabelConfig, dataset: Dataset, session: AskSession) -> Done:
    world = world_of(config, dataset)
    validation = code.validation_set(dataset, HORIZON, config.seed)
    candidates = code.write_programs(
        session,
        dataset,
        world,
        layout(world),
        validation,
        checker(dataset),
        rounds=config.num or NUM["code"],
        conversations=Shard.parse(config.shard).conversations(config.votes),
        sampling=_sampling(config),
    )
    responses = Responses()
    table = code.rows(validation, candidates, responses)
    return Done("programs.parquet", PROGRAMS, table, responses, quality.of_programs(table))


def _pairs_of(config: LabelConfig, dataset: Dataset, drawn: list[preferences.Pair]) -> set[int]:
    """The numbers of the pairs that this shard labels."""
    shard = Shard.parse(config.shard)
    return {number for number, pair in enumerate(drawn) if shard.holds(dataset, pair.a, pair.b)}


def _queries(config: LabelConfig, dataset: Dataset) -> list[tuple[int, Segment]]:
    """The queries that this shard asks, with their numbers in the whole."""
    shard = Shard.parse(config.shard)
    drawn = goals.draw_queries(dataset, config.num or NUM["goal"], config.length or LENGTH["goal"], config.seed)
    return [(number, query) for number, query in enumerate(drawn) if shard.holds(dataset, query)]


def _sampling(config: LabelConfig) -> Sampling:
    effort = None if config.effort == "default" else config.effort
    return Sampling(config.temperature, config.max_tokens, effort)


def checker(dataset: Dataset) -> code.Checker:
    """Runs programs in the sandbox, with the behaviour checks every potential has to pass."""

    def check(program: str, windows: Windows) -> code.Checked:
        try:
            with Sandbox(program, dataset.obs_shape, windows.horizon) as sandbox:
                values, components = sandbox.evaluate(windows)
                probation(sandbox, windows)
        except BkrlError as error:
            return code.Checked(None, error=str(error))
        return code.Checked(values, components)

    return check
