"""evolve: a tournament of programs, scored by their quality and by short trainings (after Eureka, Ma et al. 2024).

Each round asks for programs, makes a potential of each that works, and trains agents with the best of them by the
quality report. The model is told how these agents fared, beside agents without a program, and proposes others. The run
is a label run whose chosen program is the winner: `train-rm` makes an ordinary potential of it.

What is trained on the way are ordinary runs below `cells/`, each of which goes on where it was. Replies are kept. So a
tournament that was killed comes to the same bytes.
"""

from contextlib import ExitStack
from dataclasses import replace

from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.envs import env_spec
from bkrl.envs.sets import SECOND
from bkrl.labelers.code import FAILURES
from bkrl.labelers.config import EvolveConfig
from bkrl.labelers.growing import questions_of
from bkrl.labelers.plan import Plan
from bkrl.labelers.proposals import TEMPLATE, Proposer
from bkrl.labelers.variants import variant_of_plan
from bkrl.llm.forecast import Outlook, forecast, shown
from bkrl.llm.opening import open_session
from bkrl.llm.session import AskSession
from bkrl.runs.record import Run
from bkrl.stages import to_do
from bkrl.stages.label import check_plan, planned
from bkrl.studies.tournament import Tournament, templates_of


def run(config: EvolveConfig, reporter: Reporter) -> Run:
    """Hold the tournament, or go on with it.

    Raises:
        UsageError: settings that cannot mean anything, or a task on which claims are made.
        InputError: the dataset, a key or a model is missing.
        RunFailed: a limit of asking is reached, or not one program could be trained with.
    """
    if config.dry_run:
        raise UsageError("--dry-run makes no run; use it with `bkrl evolve`.")
    plan = _plan(config)
    with ExitStack() as stack:
        session = _session(config, stack) if to_do(config) else None
        own = plan.card.prompts.files(templates_of(plan))
        inputs = {"dataset": config.dataset, **{f"prompt {name}": path for name, path in own.items()}}
        result = Run.begin(config, "label", inputs, reporter)
        stack.callback(result.release)
        if result.complete or session is None:
            return result
        session.reporter = reporter
        session.keep_account(result.path)
        Tournament(config, plan, session, result, reporter).hold()
    return result


def _session(config: EvolveConfig, stack: ExitStack) -> AskSession:
    return open_session(config.llm, config, stack, effort=config.effort, seed=config.seed)


def outlook(config: EvolveConfig, reporter: Reporter) -> Outlook:
    """What a tournament would ask, and how many env steps it would take. Asks and writes nothing."""
    plan = _plan(config)
    with ExitStack() as stack:
        session = _session(config, stack)
        most = config.rounds * config.proposals
        if plan.closed:
            requests, how, at_most, carried = questions_of(plan), "made of these answers.", 1, 0.0
        else:
            requests = Proposer(plan, session).requests()
            at_most, carried = FAILURES, (1 + FAILURES) / 2  # the best program and those that failed
            how = (
                f"each asked for again up to {FAILURES - 1} times where it fails its check; "
                "reckoned with the first prompt, to which later ones add a program and how agents fared with it."
            )
        reply, identity = variant_of_plan(plan).reply_tokens, session.backend.identity
        found = forecast(requests, reply, config.cache, identity, session.price)
    steps = config.trainings * config.steps
    notes = (
        f"{most:,} programs, {how}",
        f"At most {config.trainings:,} trainings of {config.steps:,} steps, {steps:,} env steps in all.",
    )
    return replace(found, prompts=shown(requests)[:1], notes=notes, at_most=at_most, carried=carried)


def _plan(config: EvolveConfig) -> Plan:
    """The questions of a tournament; invalid settings are refused before anything is written."""
    if not config.envs:
        raise UsageError('A tournament needs tasks to train in: --tasks "ENV ENV", such as tasks of the first set.')
    dataset = Dataset.open(config.dataset)
    of_data = env_spec(dataset.env_id)
    for env in config.envs:
        facts = env_spec(env)
        if SECOND.has_task(facts.env_id):
            raise UsageError(
                f"{env} is a task of the second set, on which claims are made; a program that was chosen there could "
                "claim nothing. Take tasks of the first set (docs/studies.md)."
            )
        if any(vars(facts)[name] != vars(of_data)[name] for name in ("family", "obs_shape", "action_names")):
            raise UsageError(
                f"{env} ({facts.family}) has other observations or actions than the dataset, which is of "
                f"{dataset.env_id} ({of_data.family}); take tasks of that family."
            )
    if len(set(config.envs)) < len(config.envs):
        raise UsageError("--tasks names a task twice; leave one out.")
    plan = planned(config.label, dataset)
    check_plan(plan, variant_of_plan(plan))
    task = {"with": [0.0], "without": [0.0]}
    plan.card.prompts.render(TEMPLATE, steps=[1], tasks=[task], score=0.0, others=[0.0], number=1, count=1)
    return plan
