"""label: ask what is known about a world. Dataset → responses.parquet and preferences, goals or programs.parquet.

A killed run is started again with the same command: every reply is in the store, so the tables come out as if nothing
had happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bkrl import envs
from bkrl.core.config import LabelConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import write_table
from bkrl.core.reporter import Reporter, percent
from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset
from bkrl.data.schema import PREFERENCES, RESPONSES
from bkrl.labelers import baseline, batching, code, goals, preferences, quality, recorded, work
from bkrl.labelers import shards as parts
from bkrl.labelers.asking import Responses
from bkrl.labelers.material import SegmentText, draw_segments, world_card
from bkrl.labelers.tables import responses_of
from bkrl.llm import extras, open_backend
from bkrl.llm.ask import AskPolicy
from bkrl.llm.batches import Batches, out_in
from bkrl.llm.budget import FILE as SPENDING
from bkrl.llm.budget import Budget
from bkrl.llm.forecast import Forecast, forecast
from bkrl.llm.kept import KeptAnswers, Speaker
from bkrl.llm.prices import find_price, remarks, unknown_price
from bkrl.llm.protocol import Backend, Message, Request, Tier
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from bkrl.runs.record import Run
from bkrl.stages import to_do

MOST_QUESTIONS = 1_000_000
"""Of one run: their segments, prompts and answers are all in memory."""
_MANY = 50_000
_SHOWN = 3
_TYPICAL_TOKENS = {"pref": 60, "goal": 60, "code": 1200}
"""Of a reply without reasoning; a guess, used where no reply is known."""


@dataclass(frozen=True)
class Outlook:
    """What a dry run finds: some of the prompts, and what asking them all would take."""

    prompts: tuple[str, ...]
    forecast: Forecast
    note: str = ""

    def text(self) -> str:
        """All of it for a person."""
        return "\n\n".join([*self.prompts, "\n".join(filter(None, [self.note, *self.forecast.sentences()]))])

    def values(self) -> dict[str, Any]:
        """All of it as plain values; dollars are None where the price is not known."""
        return {**self.forecast.values(), "note": self.note or None, "prompts": list(self.prompts)}


def run(config: LabelConfig, reporter: Reporter) -> Run | Outlook | None:
    """Label a dataset; an outlook for a dry run, which asks nothing and writes nothing; None for a batch that is still
    out.

    Raises:
        UsageError: settings that do not fit together, or ask for more than there is.
        InputError: the dataset is missing, damaged or too short for --length; a key, model or replay is not there.
        RunFailed: not one usable answer came back.
    """
    dataset = Dataset.open(config.dataset)
    if config.reparse is not None:
        config = recorded.settings_of(config.reparse, config, dataset)
    _check(config)
    _check_dataset(config, dataset)
    if _questions(config) > _MANY and config.variant != "code":
        reporter.say(f"Drawing and wording {_questions(config):,} questions; a million take some minutes.")
    if config.dry_run:
        return _outlook(config, dataset)
    if config.reparse is not None:
        with recorded.reader(config, reporter) as reader:
            result = _open(config, dataset, reporter)
            if not result.complete:
                done = work.label(config, dataset, reader)
                answers = reader.usage.asked - reader.absent
                facts = {"run": config.reparse, "answers": answers, "not_asked": reader.absent}
                _finish(config, dataset, result, reader, done, _usage(reader), reporter, reparsed=facts)
        return result
    if to_do(config) and config.llm not in baseline.NAMES:
        _check_store(config)
    result = _open(config, dataset, reporter)
    if result.complete:
        return result
    if config.llm in baseline.NAMES:
        _label_control(config, dataset, result)
        return result
    with _asker(config, result, reporter) as asker:
        if config.batch == "off":
            _check_nothing_is_out(result.path, "pass --batch collect first")
            done = work.label(config, dataset, asker)
            _finish(config, dataset, result, asker, done, _usage(asker), reporter)
            return result
        batches = Batches(result.path, asker)
        finished = batching.advance(config.batch, batches, asker, partial(work.label, config, dataset), reporter)
        if finished is None:
            return None
        asker, done = finished
        _finish(config, dataset, result, asker, done, _usage(asker), reporter, batches=batches.facts())
    return result


def _open(config: LabelConfig, dataset: Dataset, reporter: Reporter) -> Run:
    if config.fresh:
        _check_nothing_is_out(config.run_dir, "pass --batch collect before --fresh")
    body = extras.body_file(config.body or "") if config.llm.startswith("openai:") else None
    world = work.world_of(config, dataset)
    own = {f"prompt {name}": path for name, path in world.prompts.files(work.templates(config.variant, world)).items()}
    inputs = {"dataset": config.dataset, **own} | ({"body": body} if body is not None else {})
    result = Run.create(config.run_dir, stage="label", config=config, inputs=inputs, fresh=config.fresh)
    if result.complete:
        reporter.say(f"{result.path} is already complete.")
    return result


def merge(shards: Sequence[Path], out: Path, reporter: Reporter, dataset: Path | None = None) -> Run:
    """Join the shards of one labelling into the run that it would have been undivided: the same tables, byte for byte.

    `dataset`: where the labelled dataset lies on this machine, by default where the first shard found it.

    Raises InputError when the shards do not belong together, or one is missing, given twice, unfinished or damaged.
    """
    runs = parts.together(shards)
    config = parts.config_of(runs, out, dataset)
    data = Dataset.open(config.dataset)
    if data.manifest_sha256 != runs[0].config["inputs"]["dataset"]["manifest_sha256"]:
        raise InputError(f"The shards labelled another dataset than {config.dataset}; name it with --dataset.")
    sources = {f"shard {number}": run.path for number, run in enumerate(runs, 1)}
    result = Run.create(out, stage="label", config=config, inputs={"dataset": config.dataset, **sources})
    if result.complete:
        reporter.say(f"{result.path} is already complete.")
        return result
    rows = [row for run in runs for row in responses_of(run)]
    with KeptAnswers(
        Speaker(config.llm, recorded.facts_of(runs[0])), rows=rows, exact=True, reporter=reporter
    ) as asker:
        done = work.label(config, data, asker)
    usage = parts.summed([run.facts["usage"] for run in runs])
    _finish(config, data, result, asker, done, usage, reporter, merged=[run.path for run in runs])
    return result


def example_prompt(variant: Literal["code", "pref", "goal"], env_id: str, prompt: str | None = None) -> str:
    """Exactly what would be sent for one question about a world, as text: two random segments stand for a dataset."""
    world = world_card(env_id, prompt)
    segments = _random_segments(env_id, work.LENGTH[variant])
    if variant == "pref":
        rendered = preferences.pair_prompt(world, *segments)
    elif variant == "goal":
        rendered = goals.goal_prompt(world, segments[0])
    else:
        rendered = code.code_prompt(world, work.layout(world), work.HORIZON, segments)
    return "\n\n".join(f"[{role}]\n{text}" for role, text in rendered) + "\n"


def _label_control(config: LabelConfig, dataset: Dataset, result: Run) -> None:
    pairs = work.pairs(config, dataset)
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
def _asker(config: LabelConfig, result: Run, reporter: Reporter) -> Iterator[AskSession]:
    backend = _backend(config)
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
    try:
        if backend.identity is None:
            with AskSession(backend, None, policy, reporter) as session:
                yield session
            return
        budget = Budget(result.file(SPENDING), config.max_requests or None, config.max_cost or None)
        with closing(budget), Store(config.cache) as store:
            price = find_price(backend.identity, config.prices)
            for remark in remarks(price):
                reporter.warn(remark)
            with AskSession(backend, store, policy, reporter, budget, price) as session:
                yield session
    finally:
        result.release()


def _check_nothing_is_out(folder: Path, way_out: str) -> None:
    out = out_in(folder)
    if out:
        raise UsageError(f"{out:,} requests of this run are out in batches and would be paid twice; {way_out}.")


def _outlook(config: LabelConfig, dataset: Dataset) -> Outlook:
    requests, note = work.requests(config, dataset), ""
    if requests is None:
        most = work.most_programs(config)
        text = example_prompt("code", dataset.env_id, config.prompt)
        note = f"At most {most:,} requests, each building on the reply before; reckoned with the first prompt."
        shown = [text.rstrip("\n")]
        requests = [Request((Message("user", text),), max_tokens=config.max_tokens)] * most
    else:
        some = requests[:: max(1, len(requests) // _SHOWN)][:_SHOWN]
        shown = ["\n\n".join(f"[{message.role}]\n{message.text}" for message in request.messages) for request in some]
    identity = None if config.llm in baseline.NAMES else _backend(config).identity
    tier: Tier = config.tier if config.batch == "off" else "batch"
    price = find_price(identity, config.prices)
    reckoned = forecast(requests, _TYPICAL_TOKENS[config.variant], config.cache, identity, price, tier)
    return Outlook(tuple(shown), reckoned, "\n".join(filter(None, [note, *remarks(price)])))


def _check_store(config: LabelConfig) -> None:
    """InputError when replies are to be kept and cannot be."""
    if _backend(config).identity is not None:
        with Store(config.cache):
            pass


def _check_dataset(config: LabelConfig, dataset: Dataset) -> None:
    """Refuse what the dataset is too small for, and what would not fit into memory."""
    asked = _questions(config)
    if asked > MOST_QUESTIONS:
        raise UsageError(
            f"That would be {asked:,} questions, and a run holds at most {MOST_QUESTIONS:,}; lower --num or --votes."
        )
    if config.prompt is not None:
        work.try_prompts(config, dataset)
    if config.variant == "code":
        return
    length = config.length or work.LENGTH[config.variant]
    draw_segments(dataset, 1, length, generator(config.seed, "label", "check"))
    segments = int((dataset.lengths - length + 1).clip(0).sum())
    possible, things = (segments, "segments") if config.variant == "goal" else (segments * (segments - 1) // 2, "pairs")
    if config.num > possible:
        raise UsageError(
            f"{config.dataset} has no more than {possible:,} {things} of {length} actions; pass a --num up to that, or "
            "collect more."
        )


def _questions(config: LabelConfig) -> int:
    """At most so many questions are asked, follow-ups left out."""
    return (config.num or work.NUM[config.variant]) * config.votes * (2 if config.swap == "both" else 1)


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
    if config.batch != "off" and not config.llm.startswith("openai:"):
        raise UsageError(f"--batch is for --llm openai:MODEL; leave it out, {config.llm} has no batches.")
    if config.batch != "off" and config.variant == "code":
        raise UsageError(
            "--batch is for the variants pref and goal; leave it out, code is a conversation in which each question "
            "builds on the reply before."
        )
    if config.llm == "rules" and config.prompt is not None:
        raise UsageError(
            "--prompt is for language models: what --llm rules knows is in its code, so other words would change "
            "nothing, or be words that it cannot read; leave it out."
        )
    if config.tier != "default" and not config.llm.startswith("openai:"):
        raise UsageError("--tier is for --llm openai:MODEL.")
    if config.llm in baseline.NAMES and config.shard is not None:
        raise UsageError(f"--shard shares out questions, and --llm {config.llm} asks none.")
    if config.reparse is not None and config.reparse.resolve() == config.run_dir.resolve():
        raise UsageError(f"--reparse makes a run of its own; choose another --out than {config.reparse}.")
    shard = parts.Shard.parse(config.shard)
    if config.variant == "code":
        shard.conversations(config.votes)
    if config.llm not in baseline.NAMES and config.reparse is None:
        identity = _backend(config).identity
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


def _finish(
    config: LabelConfig,
    dataset: Dataset,
    result: Run,
    asker: AskSession,
    done: work.Done,
    usage: Mapping[str, Any],
    reporter: Reporter,
    **more: Any,
) -> None:
    """Write the tables and the manifest, and say what came out. `more` are further facts."""
    world = work.world_of(config, dataset)
    write_table(result.file("responses.parquet"), pa.Table.from_pylist(done.responses.rows, schema=RESPONSES))
    write_table(result.file(done.file), pa.Table.from_pylist(done.table, schema=done.schema))
    for name, table in done.more.items():
        write_table(result.file(name), table)
    _require_something(config, done.table, done.responses)
    result.finish(
        ["responses.parquet", done.file, *done.more],
        variant=config.variant,
        env_id=dataset.env_id,
        llm=config.llm,
        **asker.backend.facts(),
        prompts=world.prompts.fingerprint(work.templates(config.variant, world)),
        usage=usage,
        **more,
        quality=done.quality,
        table=quality.as_table(done.quality),
    )
    _say(config, asker, done.quality, reporter)


def _usage(asker: AskSession) -> dict[str, Any]:
    """What asking took; of an annotator that costs nothing only how often it was asked."""
    facts = asker.usage.as_facts()
    if asker.backend.identity is None:
        return {name: facts[name] for name in ("requests", "failed", "failed_reasons")}
    return {**facts, "interrupted": asker.interrupted(), **asker.usage.cost_facts(asker.budget)}


def _say(config: LabelConfig, asker: AskSession, facts: dict[str, Any], reporter: Reporter) -> None:
    usage = asker.usage
    if usage.failed:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(usage.reasons.items()))
        reporter.warn(
            f"{usage.failed:,} of {usage.asked:,} requests brought no answer ({reasons}); they carry no label."
        )
    if isinstance(asker, KeptAnswers) and not asker.budget.requests:
        told = f", {asker.absent:,} of them were never answered" if asker.absent else ""
        reporter.say(f"{usage.asked:,} answers read again{told}; nothing was sent.")
    elif asker.backend.identity is not None:
        cost = usage.cost_in_words(asker.budget)
        reporter.say(f"{usage.asked:,} requests: {usage.cached:,} from the store, {usage.sent:,} sent; {cost}.")
    if config.variant == "pref":
        tie = facts["tie"]["rate"]
        reporter.say(
            f"{facts['labelled']:,} pairs labelled, {facts['identical']:,} identical"
            + ("" if tie is None else f", ties {percent(tie, 1)}, invalid {percent(facts['invalid']['rate'], 1)}")
            + "."
        )
    elif config.variant == "goal":
        reporter.say(f"{facts['distinct_goals']:,} distinct goals from {facts['queries']:,} queries.")
    else:
        chosen = facts["why"][facts["chosen"]]
        reporter.say(f"{facts['working']} of {facts['candidates']} programs work; chosen: round {chosen['round']}.")


def _backend(config: LabelConfig) -> Backend:
    return open_backend(config.llm, recorded.connection(config, asking=not config.dry_run))


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
