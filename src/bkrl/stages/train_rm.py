"""train-rm: labels → a potential with a fixed scale, a report of its quality and a certificate of what it keeps.

Whatever the variant, what comes out is one kind of artefact (`potential.json` and the files it names), so that
training needs no more than its path. `bkrl.potentials.kinds` says how each kind is made.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from bkrl.core.config import AskConfig
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter, percent, percents
from bkrl.data.dataset import Dataset
from bkrl.inspect.examination import examine
from bkrl.inspect.truth import learnt
from bkrl.labelers.quality import at_chance
from bkrl.labelers.tables import dataset_of
from bkrl.llm import CONTROLS, EMBEDDED, UNINFORMED
from bkrl.llm.opening import check_name, open_session
from bkrl.llm.session import AskSession
from bkrl.potentials import advice_source, controls
from bkrl.potentials.advice import enough
from bkrl.potentials.asked import PLAYED_ENVS
from bkrl.potentials.build import learn_advice, store
from bkrl.potentials.code import advises
from bkrl.potentials.config import TrainRmConfig
from bkrl.potentials.kinds import Maker, Shuffle, made_from
from bkrl.potentials.parts import part_of
from bkrl.potentials.protocol import FILE
from bkrl.potentials.told import told_by
from bkrl.runs.inputs import dataset_at, files_of_envs
from bkrl.runs.record import Run
from bkrl.stages import to_do


def run(config: TrainRmConfig, reporter: Reporter) -> Run:
    """Build, measure, certify and store a potential.

    Raises:
        InputError: the labels or the dataset are missing, damaged or do not belong together; the potential is constant.
        UsageError: a control or encoder that the labels' variant does not have.
        RunFailed: a program failed in the sandbox, or nobody answered about actions.
    """
    with ExitStack() as stack:
        return _run(config, reporter, stack)


def _run(config: TrainRmConfig, reporter: Reporter, stack: ExitStack) -> Run:
    labels = Run.open(config.labels, ("label", "collect") if config.advice else "label")
    labelled = labels.stage == "label"
    _check(config, labelled)
    source = dataset_at(labels, config.dataset) if labelled else config.labels
    control, seed = config.control, config.seed
    kind = made_from(labels, control) if labelled else None
    session: AskSession | None = None
    make: Maker | None = None
    shuffle = Shuffle(seed, config.shuffled_share) if control == "shuffled" else None
    if to_do(config):
        torch.set_num_threads(config.threads)
        session = _annotator(config, stack)
        if kind is not None:
            dataset = dataset_of(labels, source)
            settings = {name: vars(config)[name] for name in kind.settings}
            make = kind.read(labels, dataset, shuffle=shuffle, **settings)
        else:
            dataset = Dataset.open(source)
            make = controls.zero(dataset, 1)
        own = kind is not None and kind.name == "code" and advises(labels)
        if config.part != "whole" or not (own or session is not None or control == "zero"):
            enough(len(dataset.actions))
    inputs = {"labels": config.labels, "dataset": source} if labelled else {"dataset": source}
    inputs |= files_of_envs(Dataset.open(source).env_id) if config.play_steps else {}
    result = Run.begin(config, "train-rm", inputs, reporter)
    if make is None or result.complete:
        return result
    known = control == "none" and str(labels.facts.get("llm")).partition(":")[0] not in UNINFORMED
    if config.play_steps and (session is not None or not own):
        reporter.warn(
            "--play-steps has no effect here, only with a program that has advice of its own, and without --advice; "
            "leave it out."
        )
    doubted = at_chance(labels.facts.get("quality", {})) if known else []
    if doubted:
        reporter.warn(f"The labels of {labels.path} may be at chance: {'; '.join(doubted)}.")
    told, answers = None, dict[str, Any]()
    if session is not None:
        session.keep_account(result.path)
        record, wanted, answers = told_by(session, dataset, config.advice_captions, shuffle)
        told, answers = (record, wanted), {"asked": {"llm": config.advice, **answers, "usage": session.facts()}}
    fitted = make(seed, reporter)
    same = control == "constant"
    play = {"play_steps": config.play_steps, "play_rounds": config.play_rounds}
    psi, advice = learn_advice(fitted, seed, reporter, same_everywhere=same, told=told, **play)
    played = -(-config.play_steps // PLAYED_ENVS) * PLAYED_ENVS if advice["source"] == "program" else 0
    steps = played * (1 + config.play_rounds)
    advice |= answers
    exact = learnt(fitted.raw, labels, dataset) if same else None  # what such advice was made of, not Φ = 0
    if same:
        fitted = controls.silenced(fitted)
    if config.part != "whole":
        fitted = part_of(fitted, config.part, seed, reporter)
    potential, phi = store(
        result.path,
        fitted,
        psi,
        reporter,
        control=control,
        provenance={
            "variant": labels.facts.get("variant"),
            "llm": labels.facts.get("llm", config.advice),
            "labels": labels.path.as_posix(),
            "dataset": dataset.path.as_posix(),
            "dataset_manifest_sha256": dataset.manifest_sha256,
            "seed": seed,
        },
    )
    artefact = potential.artefact
    training = {**fitted.facts, "advice": advice}
    found = examine(potential, dataset, phi, training, seed, config.run_dir)
    exact = exact if same else learnt(potential, labels, dataset)
    potential.close()
    files = found.write(result.path)
    found.tell(reporter)
    if exact is not None and exact["n"]:
        right = labels.facts["quality"].get("exact_accuracy", {}).get("rate")
        by = "" if right is None else f"; its labels are right in {percent(right)} of the pairs"
        reporter.say(
            f"Φ orders {percent(exact['rate'], 1)} ({percents(exact['low'], exact['high'], 1)}) of pairs of "
            f"{exact['n']:,} moments as exact values do{by}."
        )
    result.finish(
        [FILE, *artefact.files, *files],
        variant="evolve" if "chosen_on" in labels.facts else labels.facts.get("variant"),
        kind=artefact.kind,
        control=control,
        env_id=artefact.env_id,
        llm=labels.facts.get("llm", config.advice),
        scale={"lo": artefact.scale.lo, "hi": artefact.scale.hi},
        coverage=found.report["coverage"],
        **({"reads": list(artefact.reads)} if artefact.reads else {}),
        certificate=found.certificate.summary(),
        advice=advice_source(training),
        **({"steps": steps} if steps else {}),
        **({"warnings": found.warnings} if found.warnings else {}),
        **{name: labels.facts[name] for name in ("chosen_on",) if name in labels.facts},
        **({"labels_at_chance": doubted} if doubted else {}),
        **({"exact_accuracy": exact} if exact is not None else {}),
        training=training,
    )
    return result


def _check(config: TrainRmConfig, labelled: bool) -> None:
    """UsageError where settings contradict each other, or what is made of."""
    if not labelled and (config.control not in ("none", "shuffled") or config.part != "whole"):
        raise UsageError("Of a collect run only advice is made; leave out --control (but shuffled) and --part.")
    if config.part != "whole" and config.control in ("zero", "constant"):
        raise UsageError("Φ = 0 has no parts; leave out --part, or choose another --control.")
    if config.advice and config.control in ("zero", "random"):
        raise UsageError(
            f"--control {config.control} holds nothing of an annotator; leave --advice out, or take --control shuffled."
        )


def _annotator(config: TrainRmConfig, stack: ExitStack) -> AskSession | None:
    """Who is asked for advice on actions; None where nobody is."""
    if not config.advice:
        return None
    check_name(config.advice)
    kind = config.advice.partition(":")[0]
    if kind in EMBEDDED and kind not in CONTROLS:
        raise UsageError(f"--advice asks closed questions about actions, which {kind} does not answer; name a model.")
    limits = AskConfig(max_requests=config.max_requests, max_cost=config.max_cost, prices=config.prices)
    return open_session(config.advice, replace(limits, api=config.api, cache=config.cache), stack, seed=config.seed)
