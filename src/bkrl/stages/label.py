"""label: ask what is known about an env. Dataset → responses.parquet and preferences, goals or programs.parquet.

A killed run is started again with the same command: every reply is in the store, so the tables come out as if nothing
had happened. `run` makes a run; `outlook` (--dry-run), `submit` and `batch_status` (--batch) make none.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset
from bkrl.inspect import truth
from bkrl.labelers import baseline
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.finish import finish
from bkrl.labelers.material import draw_segments
from bkrl.labelers.plan import LabelResult, Plan, Variant
from bkrl.labelers.variants import variant_of_plan
from bkrl.llm import CLOSED_ONLY, EMBEDDED, check_knows, extras, open_backend
from bkrl.llm.batches import Batches, asked_in, out_in, refused_in
from bkrl.llm.choose import Chooser
from bkrl.llm.controls import HONESTY
from bkrl.llm.forecast import Outlook, forecast, shown
from bkrl.llm.opening import opened, session_with
from bkrl.llm.prices import remarks
from bkrl.llm.protocol import Backend, Connection, Tier
from bkrl.llm.recorded import RecordedAnswers, RecordedBackend
from bkrl.llm.session import AskSession
from bkrl.runs.record import Run
from bkrl.stages import to_do
from bkrl.text.prompts import SHIPPED

MOST_QUESTIONS = 1_000_000
"""Of one run: their segments, prompts and answers are all in memory."""
_MANY = 50_000


@dataclass(frozen=True)
class _Job:
    """A label run's settings, unpacked and found to fit together.

    create: makes the run directory or goes on with it; to_do: False where a complete run lies there; session: to be
    opened when there is something to do.
    """

    plan: Plan
    variant: Variant
    session: AskSession
    cache: Path
    create: Callable[[], Run]
    to_do: bool


@announced
def run(config: LabelConfig, reporter: Reporter) -> Run:
    """Label a dataset: ask, or collect a batch (`batch="collect"`).

    Raises:
        UsageError: settings that do not fit together, or ask for more than there is.
        InputError: the dataset is missing, damaged or too short for --length; a key, model or replay is not there.
        RunFailed: not one usable answer came back, or answers of a batch are still due.
    """
    if config.dry_run or (config.batch in ("submit", "status") and to_do(config)):
        raise UsageError("--dry-run and --batch submit or status make no run; use them with `bkrl label`.")
    job = _job(config, reporter)
    with _at_work(job, reporter) as (result, session):
        if result.complete:
            return result
        if config.batch == "collect":
            batches = Batches(result.path, session)
            kept, done = _collect(job, batches, session, reporter)
            finish(result, job.plan, kept, done, reporter, batches=batches.facts())
            return result
        _check_nothing_is_out(result.path, "pass --batch collect first")
        finish(result, job.plan, session, job.variant.label(job.plan, session), reporter)
        return result


def outlook(config: LabelConfig, reporter: Reporter) -> Outlook:
    """What a run would ask, and what that would take. Asks and writes nothing."""
    job = _job(config, reporter)
    plan, notes, session = job.plan, remarks(job.session.price), job.session
    requests = job.variant.requests(plan)
    prompts = shown(requests)
    mended = session.backend.identity is not None and "repair" in job.variant.templates
    carried = 0.5 * mended  # second questions hold the reply that could not be read
    if plan.variant == "code" and not plan.closed:
        carried = 1 - 1 / plan.num
        most = f"At most {len(requests):,} requests; reckoned with the first prompt, to which each later one adds a"
        notes, prompts = [f"{most} program and what came of it.", *notes], prompts[:1]
    tier: Tier = config.tier if config.batch == "off" else "batch"
    reckoned = forecast(requests, job.variant.reply_tokens, job.cache, session.backend.identity, session.price, tier)
    samples = Chooser(session, votes=plan.votes).votes if plan.closed else 1 + mended
    return replace(reckoned, prompts=prompts, notes=tuple(notes), at_most=samples, carried=carried)


def submit(config: LabelConfig, reporter: Reporter) -> None:
    """Hand in as batches whatever is missing and not handed in already."""
    job = _job(config, reporter)
    with _at_work(job, reporter) as (result, session):
        batches = Batches(result.path, session)
        kept, _ = _from_store(job, batches, session)
        out = batches.out()
        first = next((request for key, request in kept.missing.items() if key not in out), None)
        if first is not None and not batches.endpoint_known:
            # One request of an endpoint that was never asked, before thousands are submitted blindly.
            session.ask([first], "try one request")
            kept, _ = _from_store(job, batches, session)
        batches.submit(kept.missing)


def batch_status(config: LabelConfig, reporter: Reporter) -> None:
    """Say how every batch of a run is doing."""
    with _at_work(_job(config, reporter), reporter) as (result, session):
        Batches(result.path, session).status()


def _collect(
    job: _Job, batches: Batches, session: AskSession, reporter: Reporter
) -> tuple[RecordedAnswers, LabelResult]:
    """The work, once every answer is in the store. RunFailed as long as one is missing."""
    kept, _ = _from_store(job, batches, session)
    outcome = batches.collect(kept.missing)
    if outcome.replies or outcome.faults:
        reporter.say(f"{outcome.replies:,} replies collected.")
    if outcome.faults:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in outcome.faults.most_common())
        reporter.warn(f"{outcome.faults.total():,} requests brought no reply ({reasons}).")
    if outcome.foreign:
        reporter.warn(f"{outcome.foreign:,} lines of the output belong to no request of this run, and were left alone.")
    kept, done = _from_store(job, batches, session)
    if not kept.missing:
        return kept, done
    if waiting := len(batches.out() & kept.missing.keys()):
        raise RunFailed(f"{waiting:,} requests are still out; collect again later (--batch status tells how they do).")
    raise RunFailed(
        f"{len(kept.missing):,} requests are still to be asked (failed ones, second questions about answers that "
        "could not be read, longer replies); --batch submit hands them in, or leave --batch out to ask them now."
    )


def _from_store(job: _Job, batches: Batches, session: AskSession) -> tuple[RecordedAnswers, LabelResult]:
    """The whole work with the answers that are kept, and what is missing."""
    with RecordedAnswers(session, batches.failures) as kept:
        return kept, job.variant.label(job.plan, kept)


@contextmanager
def _at_work(job: _Job, reporter: Reporter) -> Iterator[tuple[Run, AskSession]]:
    """The run directory, and a session to ask the annotator with if there is something to do."""
    with ExitStack() as last, ExitStack() as stack:
        session = opened(job.session, job.cache if job.to_do else None, stack)
        result = job.create()
        last.callback(result.release)
        if not result.complete:
            for sentence in filter(None, [session.backend.facts().get("notice")]):
                reporter.say(sentence)
            for sentence in remarks(session.price):
                reporter.warn(sentence)
        if session.store is not None:
            session.keep_account(result.path)
            session.budget.keys |= asked_in(result.path)
            session.budget.over |= refused_in(result.path)
        yield result, session


def _check_nothing_is_out(folder: Path, way_out: str) -> None:
    if out := out_in(folder):
        raise UsageError(f"{out:,} requests of this run are out in batches and would be paid twice; {way_out}.")


# Settings


def _job(config: LabelConfig, reporter: Reporter) -> _Job:
    """Unpack the settings. Refuses what does not fit together, before anything is written."""
    plan = planned(config, Dataset.open(config.dataset))
    variant = variant_of_plan(plan)
    headers, body = extras.headers(config.header or "", not config.dry_run), extras.body(config.body or "", config.api)
    asking, seed = not config.dry_run, config.seed
    connection = Connection(config.cache, config.tier, asking, headers, body, config.api, config.effort, seed)
    if config.llm in baseline.NAMES and not config.closed:
        variant = baseline.control(config.llm)
        backend: Backend = RecordedBackend(config.llm, {"annotator": baseline.NAMES[config.llm]})
    elif config.llm == "exact":
        truth.check(plan.dataset.env_id, plan.criteria)
        backend = RecordedBackend("exact", HONESTY)
    else:
        backend = open_backend(config.llm, connection)
    session = session_with(backend, config, reporter, rpm=config.rpm, tpm=config.tpm, tier=config.tier)
    check_plan(plan, variant)
    if "exact" in (config.llm, config.score) and not config.dry_run and to_do(config):
        known = truth.truth_of(plan, reporter)
        session.backend = truth.annotator(plan, known) if config.llm == "exact" else backend
        variant = truth.scored(variant, known)
    if (most := variant.most_questions(plan)) > _MANY and plan.variant != "code":
        reporter.say(f"Drawing and wording {most:,} questions; a million take some minutes.")
    own = {f"prompt {name}": path for name, path in plan.card.prompts.files(variant.files(plan.card)).items()}
    return _Job(plan, variant, session, config.cache, partial(_create, config, own, reporter), to_do(config))


def _create(config: LabelConfig, prompts: dict[str, Path], reporter: Reporter) -> Run:
    if config.fresh:
        _check_nothing_is_out(config.run_dir, "pass --batch collect before --fresh")
    body = extras.body_file(config.body or "") if config.llm.startswith("openai:") else None
    inputs = {"dataset": config.dataset, **prompts} | ({"body": body} if body is not None else {})
    return Run.begin(config, "label", inputs, reporter)


def planned(config: LabelConfig, dataset: Dataset) -> Plan:
    """What is asked about a dataset. Refuses settings that do not fit together, or to it."""
    _check(config)
    plan = Plan.of(config, dataset)
    check_knows(config.llm, plan.card.env_id, plan.card.family)
    if plan.closed and plan.calibrate == "rules":
        check_knows("rules", plan.card.env_id, plan.card.family)
    if dataset.language != "en" and "rules" in (config.llm if plan.variant != "code" else "", plan.calibrate):
        raise UsageError(
            f"The rules annotator reads English captions alone, and {dataset.path} holds others; collect with "
            "--language en, or name a language model, such as openai:MODEL, and leave --calibrate rules out."
        )
    return plan


def _check(config: LabelConfig) -> None:
    variant, llm = config.variant, config.llm
    remote, control = llm.startswith("openai:"), llm in baseline.NAMES and not config.closed
    if llm.partition(":")[0] in CLOSED_ONLY and not config.closed and not control:
        raise UsageError(f"--llm {llm} answers closed questions only; pass --ask closed, or leave --ask open out.")
    if config.closed and llm in ("return", "rules", "votes"):
        raise UsageError(f"--llm {llm} answers open questions only; leave --ask closed out.")
    if llm == "words" and (variant != "pref" or not config.with_mission or config.compare == "points"):
        raise UsageError("--llm words compares pairs by their missions; pass --variant pref --with-mission.")
    if llm == "exact" and config.rate == "need":
        raise UsageError("--llm exact says how important sub-goals are, not what needs what; leave --rate need out.")
    if config.score == "exact" and variant == "code" and not config.closed:
        raise UsageError("--score exact of --variant code compares ratings of sub-goals; pass --ask closed.")
    if config.closed and config.with_mission and variant != "pref":
        raise UsageError("Closed questions tell missions of pairs alone; leave --with-mission out, or pass --ask open.")
    if config.closed and config.swap != "none":
        raise UsageError("Closed questions are always asked in both orders; leave --swap out.")
    if control and variant != "pref":
        raise UsageError(f"--llm {llm} is a control for --variant pref only; train-rm --control makes the others.")
    if variant != "pref" and config.swap != "none":
        raise UsageError("--swap is for --variant pref: only a comparison has an order.")
    if config.batch != "off" and not remote:
        raise UsageError(f"--batch is for --llm openai:MODEL; leave it out, {llm} has no batches.")
    if config.batch != "off" and variant == "code":
        raise UsageError(
            "--batch is for the variants pref and goal; leave it out, code is a conversation in which each question "
            "builds on the reply before."
        )
    if llm in EMBEDDED and config.prompt is not None:
        raise UsageError(
            f"--prompt is for language models: what --llm {llm} knows is in its code, so other words would change "
            "nothing, or be words that it cannot read; leave it out."
        )
    if llm == "rules" and variant == "code" and config.with_mission and config.with_memory:
        raise UsageError(
            "The rules annotator writes programs that read missions, or programs that read the memory of an episode, "
            "not both; leave out --with-mission or --with-memory."
        )
    if config.tier != "default" and not remote:
        raise UsageError("--tier is for --llm openai:MODEL.")


def check_plan(plan: Plan, variant: Variant) -> None:
    """Refuse what the dataset is too small for, and what would not fit into memory."""
    if (most := variant.most_questions(plan)) > MOST_QUESTIONS:
        raise UsageError(
            f"That would be {most:,} questions, and a run holds at most {MOST_QUESTIONS:,}; lower --num or --votes."
        )
    if plan.card.prompts is not SHIPPED:
        variant.try_prompts(plan.card)
        if "repair" in variant.templates:
            plan.card.prompts.render("repair", reason="A reason.", format="A form.")
    if plan.variant == "code":
        return
    dataset, length = plan.dataset, plan.length
    draw_segments(dataset, 1, length, generator(plan.seed, "label", "check"))
    segments = int((dataset.lengths - length + 1).clip(0).sum())
    possible, things = (segments, "segments") if plan.variant == "goal" else (segments * (segments - 1) // 2, "pairs")
    if plan.num > possible:
        raise UsageError(
            f"{dataset.path} has no more than {possible:,} {things} of {length} actions; pass a --num up to that, or "
            "collect more."
        )
