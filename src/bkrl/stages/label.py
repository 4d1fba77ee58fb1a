"""label: ask what is known about a world. Dataset → responses.parquet and preferences, goals or programs.parquet.

A killed run is started again with the same command: every reply is in the store, so the tables come out as if nothing
had happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bkrl import envs, prompts
from bkrl.config import LabelConfig
from bkrl.dataset import Dataset, Segment
from bkrl.errors import BkrlError, RunFailed, UsageError
from bkrl.labelers import baseline, batching, code, goals, preferences, quality
from bkrl.labelers.asking import Responses, Sampling
from bkrl.labelers.material import SegmentText, WorldCard, world_card
from bkrl.llm import open_backend
from bkrl.llm.ask import Asker, AskPolicy
from bkrl.llm.batches import Batches, out_in
from bkrl.llm.budget import FILE as SPENDING
from bkrl.llm.budget import Budget
from bkrl.llm.openai import OpenAIBackend
from bkrl.llm.prices import find_price, unknown_price
from bkrl.llm.protocol import Connection, Request
from bkrl.llm.store import Store
from bkrl.potentials.sandbox import Sandbox, probation
from bkrl.reporter import Reporter
from bkrl.rng import generator
from bkrl.run import Run, write_table
from bkrl.schema import GOALS, PREFERENCES, PROGRAMS, RESPONSES
from bkrl.windows import Windows

HORIZON = 5
"""Past actions that a code potential sees."""
_NUM = {"pref": 5000, "goal": 500, "code": 5}
_LENGTH = {"pref": 5, "goal": 3, "code": HORIZON}
_CHARS_PER_TOKEN = 4
_SHOWN = 3


def run(config: LabelConfig, reporter: Reporter) -> Run | None:
    """Label a dataset; None for a dry run, which asks nothing and writes nothing."""
    dataset = Dataset.open(config.dataset)
    world = world_card(dataset.env_id)
    if config.dry_run:
        _dry_run(config, dataset, world, reporter)
        return None
    _check(config)
    result = Run.create(
        config.run_dir, stage="label", config=config, inputs={"dataset": config.dataset}, fresh=config.fresh
    )
    if result.complete:
        reporter.say(f"{result.path} is already complete.")
        return result
    if config.llm in baseline.NAMES:
        _label_control(config, dataset, result)
        return result
    with _asker(config, result, reporter) as asker:
        variant = {"pref": _label_pairs, "goal": _label_goals, "code": _label_code}[config.variant]
        work = partial(variant, config, dataset, world)
        batches = None
        if config.batch == "off":
            _check_nothing_is_out(result)
            done = work(asker)
        else:
            batches = _batches(result, asker, reporter)
            finished = batching.advance(config.batch, batches, asker, work, reporter)
            if finished is None:
                return None
            asker, done = finished
        name, schema, table, responses, facts, templates = done
        write_table(result.file("responses.parquet"), pa.Table.from_pylist(responses.rows, schema=RESPONSES))
        write_table(result.file(name), pa.Table.from_pylist(table, schema=schema))
        _require_something(config, table, responses)
        result.finish(
            ["responses.parquet", name],
            variant=config.variant,
            env_id=dataset.env_id,
            llm=config.llm,
            **asker.backend.facts(),
            prompts=prompts.fingerprint([*templates, f"world_{world.family}"]),
            usage=_usage(asker),
            **({"batches": batches.facts()} if batches else {}),
            quality=facts,
            table=quality.as_table(facts),
        )
    _say(config, asker, facts, reporter)
    return result


def example_prompt(variant: Literal["code", "pref", "goal"], env_id: str) -> str:
    """Exactly what would be sent for one question about a world, as text: two random segments stand for a dataset."""
    world = world_card(env_id)
    segments = _random_segments(env_id, _LENGTH[variant])
    if variant == "pref":
        rendered = preferences.pair_prompt(world, *segments)
    elif variant == "goal":
        rendered = goals.goal_prompt(world, segments[0])
    else:
        rendered = code.code_prompt(world, _layout(world.family), HORIZON, segments)
    return "\n\n".join(f"[{role}]\n{text}" for role, text in rendered) + "\n"


_Work = tuple[str, pa.Schema, list[dict[str, Any]], Responses, dict[str, Any], tuple[str, ...]]


def _label_pairs(config: LabelConfig, dataset: Dataset, world: WorldCard, asker: Asker) -> _Work:
    pairs = _pairs(config, dataset)
    questions = preferences.plan(dataset, pairs, config.swap, config.votes)
    answers = preferences.ask_pairs(asker, dataset, world, pairs, questions, _sampling(config))
    responses = Responses()
    table = preferences.rows(pairs, questions, answers, responses)
    facts = quality.of_pairs(dataset, world, table, responses.rows, by_rules=config.llm == "rules")
    return "preferences.parquet", PREFERENCES, table, responses, facts, preferences.TEMPLATES


def _label_goals(config: LabelConfig, dataset: Dataset, world: WorldCard, asker: Asker) -> _Work:
    queries = _queries(config, dataset)
    answers = goals.ask_goals(asker, dataset, world, queries, config.votes, _sampling(config))
    responses = Responses()
    table = goals.rows(dataset, queries, answers, responses)
    return "goals.parquet", GOALS, table, responses, quality.of_goals(table, responses.rows), goals.TEMPLATES


def _label_code(config: LabelConfig, dataset: Dataset, world: WorldCard, asker: Asker) -> _Work:
    validation = code.validation_set(dataset, HORIZON, config.seed)
    candidates = code.write_programs(
        asker,
        dataset,
        world,
        _layout(world.family),
        validation,
        _checker(dataset),
        rounds=config.num or _NUM["code"],
        votes=config.votes,
        sampling=_sampling(config),
    )
    responses = Responses()
    table = code.rows(validation, candidates, responses)
    return "programs.parquet", PROGRAMS, table, responses, quality.of_programs(table), code.TEMPLATES


def _label_control(config: LabelConfig, dataset: Dataset, result: Run) -> None:
    pairs = _pairs(config, dataset)
    table = baseline.rows(config.llm, dataset, pairs, config.seed)
    write_table(result.file("preferences.parquet"), pa.Table.from_pylist(table, schema=PREFERENCES))
    facts = quality.of_pairs(dataset, world_card(dataset.env_id), table, [], by_rules=False)
    result.finish(
        ["preferences.parquet"],
        variant=config.variant,
        env_id=dataset.env_id,
        llm=config.llm,
        annotator=baseline.NAMES[config.llm],
        quality=facts,
        table=quality.as_table(facts),
    )


@contextmanager
def _asker(config: LabelConfig, result: Run, reporter: Reporter) -> Iterator[Asker]:
    backend = open_backend(config.llm, _connection(config))
    local = backend.identity is not None and backend.identity.get("kind") == "hf"
    policy = AskPolicy(
        concurrency=min(20, config.concurrency),
        max_concurrency=config.concurrency,
        deadline=None if local else 120.0,
        first_alone=not local,
        rpm=config.rpm or None,
        tpm=config.tpm or None,
    )
    if "notice" in backend.facts():
        reporter.say(backend.facts()["notice"])
    if backend.identity is None:
        yield Asker(backend, None, policy, reporter)
        return
    budget = Budget(result.file(SPENDING), config.max_requests or None, config.max_cost or None)
    with closing(budget), Store(config.cache) as store:
        yield Asker(backend, store, policy, reporter, budget, find_price(backend.identity, config.prices))


def _batches(result: Run, asker: Asker, reporter: Reporter) -> Batches:
    assert isinstance(asker.backend, OpenAIBackend)  # _check has made sure
    assert asker.store is not None
    return Batches(result.path, asker.backend, asker.store, asker.budget, asker.price, reporter)


def _check_nothing_is_out(result: Run) -> None:
    out = out_in(result.path)
    if out:
        raise UsageError(
            f"{out:,} requests of this run are out in batches and would be paid twice; pass --batch collect first."
        )


def _checker(dataset: Dataset) -> code.Checker:
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


def _dry_run(config: LabelConfig, dataset: Dataset, world: WorldCard, reporter: Reporter) -> None:
    _check(config)
    requests: list[Request]
    if config.variant == "pref":
        pairs = _pairs(config, dataset)
        questions = preferences.plan(dataset, pairs, config.swap, config.votes)
        requests = [preferences.request(dataset, world, pairs[q.pair], q, _sampling(config)) for q in questions]
    elif config.variant == "goal":
        samples = range(config.votes)
        queries = _queries(config, dataset)
        requests = [
            goals.request(dataset, world, query, _sampling(config), sample) for query in queries for sample in samples
        ]
    else:
        reporter.say(
            f"At most {(config.num or _NUM['code']) * config.votes:,} requests, each building on the reply before."
        )
        reporter.say(example_prompt("code", dataset.env_id))
        return
    characters = sum(len(message.text) for request in requests for message in request.messages)
    for request in requests[:: max(1, len(requests) // _SHOWN)][:_SHOWN]:
        reporter.say("\n\n".join(f"[{message.role}]\n{message.text}" for message in request.messages) + "\n")
    reporter.say(
        f"{len(requests):,} requests, about {characters // _CHARS_PER_TOKEN:,} tokens of prompts in all (estimated at "
        f"{_CHARS_PER_TOKEN} characters a token); nothing was asked."
    )


def _check(config: LabelConfig) -> None:
    for name in ("num", "length", "max_requests", "max_cost", "rpm", "tpm", "temperature"):
        if getattr(config, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} cannot be negative.")
    for name in ("votes", "concurrency", "max_tokens"):
        if getattr(config, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1.")
    if config.llm in baseline.NAMES and config.variant != "pref":
        raise UsageError(
            f"--llm {config.llm} is a control for --variant pref only; train-rm --control makes the others."
        )
    if config.variant != "pref" and config.swap != "none":
        raise UsageError("--swap is for --variant pref: only a comparison has an order.")
    if config.batch != "off" and (not config.llm.startswith("openai:") or config.variant == "code"):
        raise UsageError(
            "--batch is for --llm openai:MODEL and the variants pref and goal; code is a conversation, each question "
            "builds on the reply before."
        )
    if config.tier != "default" and not config.llm.startswith("openai:"):
        raise UsageError("--tier is for --llm openai:MODEL.")
    if config.llm not in baseline.NAMES:
        identity = open_backend(config.llm, _connection(config)).identity
        if identity is not None and find_price(identity, config.prices) is None and config.max_cost:
            raise unknown_price(identity)


def _require_something(config: LabelConfig, table: list[dict[str, Any]], responses: Responses) -> None:
    """A run without a single usable label is a failure; its tables are left for a look."""
    column = {"pref": "label", "goal": "goal", "code": "score"}[config.variant]
    if config.variant == "code" and any(row["chosen"] for row in table):
        return
    if config.variant != "code" and any(row[column] is not None for row in table):
        return
    if config.variant == "code" and any(row["score"] is not None for row in table):
        raise RunFailed(
            "Every program that worked gives the same value everywhere; ask again with another --seed or --llm."
        )
    last = responses.rows[-1] if responses.rows else {"reason": "nothing was asked", "reply": None}
    reason = table[-1].get("error") or last["reason"] or f"the last reply begins {str(last['reply'])[:80]!r}"
    raise RunFailed(f"Not one usable answer came back ({reason}); look at responses.parquet in the run's folder.")


def _usage(asker: Asker) -> dict[str, Any]:
    """What asking took; of an annotator that costs nothing only how often it was asked."""
    facts = asker.usage.as_facts()
    if asker.backend.identity is None:
        return {name: facts[name] for name in ("requests", "failed", "failed_reasons")}
    return {**facts, "interrupted": asker.interrupted(), **asker.cost_facts()}


def _say(config: LabelConfig, asker: Asker, facts: dict[str, Any], reporter: Reporter) -> None:
    usage = asker.usage
    if usage.failed:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(usage.reasons.items()))
        reporter.warn(
            f"{usage.failed:,} of {usage.asked:,} requests brought no answer ({reasons}); they carry no label."
        )
    if asker.backend.identity is not None:
        reporter.say(f"{usage.asked:,} requests: {usage.cached:,} from the store, {usage.sent:,} sent.")
    if config.variant == "pref":
        tie = facts["tie"]["rate"]
        reporter.say(
            f"{facts['labelled']:,} pairs labelled, {facts['identical']:,} identical"
            + ("" if tie is None else f", ties {tie:.1%}, invalid {facts['invalid']['rate']:.1%}")
            + "."
        )
    elif config.variant == "goal":
        reporter.say(f"{facts['distinct_goals']:,} distinct goals from {facts['queries']:,} queries.")
    else:
        chosen = facts["why"][facts["chosen"]]
        reporter.say(f"{facts['working']} of {facts['candidates']} programs work; chosen: round {chosen['round']}.")


def _pairs(config: LabelConfig, dataset: Dataset) -> list[preferences.Pair]:
    return preferences.draw_pairs(dataset, config.num or _NUM["pref"], config.length or _LENGTH["pref"], config.seed)


def _queries(config: LabelConfig, dataset: Dataset) -> list[Segment]:
    return goals.draw_queries(dataset, config.num or _NUM["goal"], config.length or _LENGTH["goal"], config.seed)


def _connection(config: LabelConfig) -> Connection:
    return Connection(config.cache, config.tier, asking=not config.dry_run)


def _sampling(config: LabelConfig) -> Sampling:
    effort = None if config.effort == "default" else config.effort
    return Sampling(config.temperature, config.max_tokens, effort)


def _layout(family: str) -> str:
    """What the integers of an observation mean, in words."""
    if family == "crafter":
        from bkrl.envs.crafter import layout

        return prompts.piece("layout_crafter", layout=layout)
    if family == "babyai":
        return prompts.piece("layout_babyai")
    return "observations[b, i] is the world's observation as it is."


def _random_segments(env_id: str, length: int) -> list[SegmentText]:
    """Two segments of random play in the world, always the same two."""
    rng = generator(0, "label", "example")
    env = envs.make(env_id, backend="reference")  # a moment's play is not worth compiling an engine
    caption = envs.captioner(env_id)
    names = envs.world(env_id).action_names
    segments = []
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        captions = caption(np.asarray(observation)[None])
        actions: list[str] = []
        while len(actions) < length:
            action = int(rng.integers(len(names)))
            observation, _, terminated, truncated, _ = env.step(action)
            captions += caption(np.asarray(observation)[None])
            actions.append(names[action])
            if terminated or truncated:
                observation, _ = env.reset()
                captions, actions = caption(np.asarray(observation)[None]), []
        segments.append(SegmentText(tuple(captions), tuple(actions)))
    env.close()
    return segments
