"""train-rm: labels → a potential with a fixed scale, a report of its quality and a certificate of what it keeps.

Whatever the variant, what comes out is one kind of artefact (`potential.json` and the files it names), so that
training needs no more than its path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.networks.advised import Advice
from bkrl.agents.policy import advice_network
from bkrl.core.config import TrainRmConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import atomic_write, read_table, to_json
from bkrl.core.reporter import Reporter, percent, percents
from bkrl.core.seeds import derive_seed, generator
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.distinct import number
from bkrl.data.schema import GOALS, PREFERENCES, PROGRAMS
from bkrl.envs import captioner, family_of, world
from bkrl.inspect.certificate import Certificate, certify
from bkrl.inspect.quality import REPORT, describe, doubts
from bkrl.labelers.quality import agreement_of
from bkrl.labelers.tables import check_belongs
from bkrl.potentials import EMPTY, advice, advice_source, dataset_of, load_potential, read_potential
from bkrl.potentials.code import PROGRAM, CodeRaw
from bkrl.potentials.controls import Zero
from bkrl.potentials.oracle import oracle_program
from bkrl.potentials.protocol import FILE, Artefact, Raw, Scale, Scaled
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run
from bkrl.sandbox.pool import probation
from bkrl.stages import to_do
from bkrl.text.encoders import TextEncoder, check_encoder, fit_encoder

if TYPE_CHECKING:
    from bkrl.potentials.preference.fit import Pairs

CODE_HORIZON = 5
SCALE_WINDOWS = 40_000
"""At most so many windows, evenly spaced over the dataset, are what lo and hi are measured on."""
ADVICE_ROWS = 100_000
"""At most so many rows, from the beginning of the dataset, are what advice is learnt from."""
_BATCH = 8192
CERTIFICATE = "certificate.json"


class _Built:
    """A raw potential before it is stored: how to save it, and what its making found."""

    def __init__(
        self, kind: str, raw: Raw, save: Callable[[Path], tuple[list[str], dict[str, Any]]], facts: dict[str, Any]
    ) -> None:
        self.kind, self.raw, self.save, self.facts = kind, raw, save, facts

    def advise(self, psi: Advice, fit: advice.Fit, found: dict[str, Any]) -> None:
        """Store action advice with the potential; `found`: what else is known of it."""
        save = self.save

        def both(folder: Path) -> tuple[list[str], dict[str, Any]]:
            (files, settings), (more, also) = save(folder), advice.save(psi, folder)
            return [*files, *more], {**settings, **also}

        self.save, self.facts = both, {**self.facts, "advice": {**fit.facts(), **found}}

    def silenced(self) -> _Built:
        """Φ = 0 in its place, with what is known of it."""
        self.close()
        return _Built("zero", Zero(self.raw.horizon), lambda folder: ([], {}), self.facts)

    def close(self) -> None:
        """End what the potential runs beside this process."""
        close = getattr(self.raw, "close", None)
        if close is not None:
            close()


def run(config: TrainRmConfig, reporter: Reporter) -> Run:
    """Build, measure, certify and store a potential.

    Raises:
        InputError: the labels or the dataset are missing, damaged or do not belong together; the potential is constant.
        UsageError: a control or encoder that the labels' variant does not have.
        RunFailed: a program failed in the sandbox.
    """
    labels = Run.open(config.labels, "label")
    dataset_path = dataset_at(labels, config.dataset)
    variant = str(labels.facts.get("variant", labels.config["config"].get("variant")))
    _check_flags(config, variant)
    make = None
    if to_do(config):
        _set_threads(config.threads)
        dataset = Dataset.open(dataset_path)
        check_belongs(labels, dataset)
        make = _maker(config, variant, labels, dataset, reporter)
    result = Run.create(
        config.run_dir,
        stage="train-rm",
        config=config,
        inputs={"labels": config.labels, "dataset": dataset_path},
        fresh=config.fresh,
    )
    if make is None or result.complete:
        reporter.say(f"{result.path} is already complete.")
        return result
    provenance = _provenance(config, variant, labels, dataset)
    built = make()
    told = _advice(config, built, dataset, reporter)
    if config.control == "constant":
        built = built.silenced()
    built.advise(*told)
    potential, values = _store(config, provenance, dataset, built, result, reporter)
    report = describe(potential, dataset, values, built.facts)
    certificate = certify(potential, dataset, config.seed)
    atomic_write(result.file(REPORT), to_json(report))
    atomic_write(result.file(CERTIFICATE), to_json(certificate.to_json()))
    potential.close()
    for sentence in _summary(report):
        reporter.say(sentence)
    for check in certificate.checks:
        if not check.passed:
            reporter.warn(f"Certificate: {check.name} fails: {check.detail}.")
    reporter.say(
        f"Certificate: {certificate.summary()}. They ask for one fixed, finite function whose shaping is exact, "
        "not for quality: they say nothing of whether Φ knows anything."
    )
    warnings = _warnings(config, report)
    for warning in warnings:
        reporter.warn(warning)
    result.finish(
        [FILE, *potential.artefact.files, REPORT, CERTIFICATE],
        variant=variant,
        kind=potential.artefact.kind,
        control=config.control,
        env_id=potential.artefact.env_id,
        llm=labels.facts.get("llm"),
        scale={"lo": potential.artefact.scale.lo, "hi": potential.artefact.scale.hi},
        coverage=report["coverage"],
        certificate=certificate.summary(),
        advice=advice_source(report["training"]),
        **{"warnings": warnings} if warnings else {},
        **{"training": report["training"]} if report["training"] else {},
    )
    return result


def check(path: Path, dataset: Path | None = None) -> Certificate:
    """Run the certificate of a finished potential again, on the dataset it was built on or another of its world.

    Raises:
        InputError: the potential or the dataset is missing, damaged, or of another world.
    """
    run = Run.open(path, "train-rm")
    seed = int(run.config["config"]["seed"])
    potential = load_potential(path)
    try:
        data = Dataset.open(dataset_of(run, dataset))
        if potential.artefact.obs_shape != data.obs_shape:
            raise InputError(f"{path} sees observations of another world than {data.env_id}; name its --dataset.")
        return certify(potential, data, seed)
    finally:
        potential.close()


def _check_flags(config: TrainRmConfig, variant: str) -> None:
    if variant == "goal":
        check_encoder(config.encoder)
    if variant == "code" and config.control == "shuffled":
        raise UsageError(
            "A program has no labels to shuffle; use --control random or zero, or labels of another variant."
        )
    if config.control == "oracle":
        if config.task:
            world(config.task)  # says what a misspelt name was meant to be
        oracle_program(config.task)
    elif config.task:
        raise UsageError("--task is what an oracle knows: use it with --control oracle.")
    if config.epochs < 1:
        raise UsageError("--epochs must be at least 1.")


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _maker(
    config: TrainRmConfig, variant: str, labels: Run, dataset: Dataset, reporter: Reporter
) -> Callable[[], _Built]:
    """What makes the raw potential, once the labels have been read and found fit for it."""
    if config.control == "oracle":
        source = oracle_program(config.task)
        return lambda: _program(source, dataset, config.seed, reporter, {"task": config.task})
    if config.control in ("zero", "random"):
        return lambda: _build_control(config, variant, labels, dataset)
    makers = {"code": _read_code, "pref": _read_preferences, "goal": _read_goals}
    if variant not in makers:
        raise InputError(f"{labels.path} holds labels of unknown variant '{variant}'; it was made by a newer bkrl.")
    return makers[variant](config, labels, dataset, reporter)


def _build_control(config: TrainRmConfig, variant: str, labels: Run, dataset: Dataset) -> _Built:
    """A potential without knowledge that sees as far back as one made from these labels."""
    from bkrl.potentials.controls import random_network
    from bkrl.potentials.preference import WEIGHTS, save_net

    horizon = 4 if variant == "goal" else CODE_HORIZON
    if variant == "pref":
        preferences = read_table(labels.file("preferences.parquet"), PREFERENCES)
        horizon = _segment_length(labels, preferences["length"].to_pylist() or [CODE_HORIZON])
    if config.control == "zero":
        return _Built("zero", Zero(horizon), lambda folder: ([], {}), {})
    network = random_network(_net_config(dataset, horizon), config.seed)
    return _Built("random", network, lambda folder: ([WEIGHTS], save_net(network, folder)), {})


def _read_code(config: TrainRmConfig, labels: Run, dataset: Dataset, reporter: Reporter) -> Callable[[], _Built]:
    rows = [row for row in read_table(labels.file("programs.parquet"), PROGRAMS).to_pylist() if row["chosen"]]
    if len(rows) != 1:
        raise InputError(f"{labels.path} has no chosen program; label again.")
    facts = {"candidate": rows[0]["candidate_id"], "round": rows[0]["round"]}
    return lambda: _program(str(rows[0]["program"]), dataset, config.seed, reporter, facts)


def _program(source: str, dataset: Dataset, seed: int, reporter: Reporter, facts: dict[str, Any]) -> _Built:
    """A program as a potential, once it has behaved on windows of the dataset."""
    raw = CodeRaw(source, dataset.obs_shape, CODE_HORIZON)
    reporter.say(f"The program runs in a sandbox of level {raw.sandbox.level}.")
    probation(raw.sandbox, _windows(dataset, _rows(dataset, 4096), CODE_HORIZON), seed)

    def save(folder: Path) -> tuple[list[str], dict[str, Any]]:
        atomic_write(folder / PROGRAM, source)
        return [PROGRAM], {"sandbox": raw.sandbox.level}

    return _Built("code", raw, save, {**facts, "sandbox": raw.sandbox.level})


def _read_preferences(config: TrainRmConfig, labels: Run, dataset: Dataset, reporter: Reporter) -> Callable[[], _Built]:
    from bkrl.potentials.controls import permuted
    from bkrl.potentials.preference.fit import Pairs, enough

    preferences = read_table(labels.file("preferences.parquet"), PREFERENCES)
    table = preferences.to_pydict()
    agreement = [agreement_of(row) for row in preferences.to_pylist()]
    labelled = [i for i, share in enumerate(agreement) if share is not None]
    if not labelled:
        raise InputError(f"{labels.path} has no usable label; look at its responses.parquet, and label again.")
    keep = [i for i in labelled if (agreement[i] or 0.0) >= config.min_agreement]
    if not keep:
        raise InputError(f"No pair of {labels.path} has answers that agree that far; lower --min-agreement.")
    disputed = {}
    if config.min_agreement > 0:
        disputed = {"min_agreement": config.min_agreement, "pairs_left_out": len(labelled) - len(keep)}
        reporter.say(
            f"{len(labelled) - len(keep):,} of {len(labelled):,} labelled pairs are left out: the share of their "
            f"commonest answer is below {config.min_agreement:g}."
        )
    length = _segment_length(labels, [table["length"][i] for i in keep])

    def ends(side: str) -> NDArray[np.int64]:
        segments = (Segment(table[f"{side}_episode_id"][i], table[f"{side}_start"][i], length) for i in keep)
        return np.array([dataset.rows(segment)[-1] for segment in segments], np.int64)

    values = np.array([table["label"][i] for i in keep], np.float64)
    if config.control == "shuffled":
        values = values[permuted(len(values), config.seed)]
    pairs = Pairs(
        dataset.windows(ends("a"), length),
        dataset.windows(ends("b"), length),
        values,
        np.array([(table["a_episode_id"][i], table["b_episode_id"][i]) for i in keep], np.int64),
    )
    enough(pairs)
    return lambda: _build_preference(config, pairs, length, disputed, dataset, reporter)


def _build_preference(
    config: TrainRmConfig,
    pairs: Pairs,
    length: int,
    disputed: dict[str, Any],
    dataset: Dataset,
    reporter: Reporter,
) -> _Built:
    from dataclasses import asdict

    from bkrl.potentials.preference import WEIGHTS, save_net
    from bkrl.potentials.preference.fit import fit

    with reporter.progress("train preference network", config.epochs * config.ensemble, "epochs") as update:
        raw, found = fit(
            pairs,
            _net_config(dataset, length),
            seed=config.seed,
            ensemble=config.ensemble,
            epochs=config.epochs,
            on_epoch=lambda done, accuracy: update(done, f"validation accuracy {percent(accuracy, 1)}"),
        )
    return _Built("preference", raw, lambda folder: ([WEIGHTS], save_net(raw, folder)), asdict(found) | disputed)


def _segment_length(labels: Run, lengths: Collection[int]) -> int:
    """The actions in a segment, which all labelled pairs must share; InputError where they do not."""
    found = sorted(set(lengths))
    if len(found) != 1:
        raise InputError(f"{labels.path} compares segments of several lengths ({found}); label again with one.")
    return int(found[0])


def _read_goals(config: TrainRmConfig, labels: Run, dataset: Dataset, reporter: Reporter) -> Callable[[], _Built]:
    from bkrl.potentials import goal

    table = read_table(labels.file("goals.parquet"), GOALS).to_pylist()
    texts: dict[int, str] = {}
    moments: dict[int, tuple[Segment, list[int]]] = {}
    for row in table:
        if row["goal"] is not None:
            texts.setdefault(row["goal_id"], row["goal"])
            segment = Segment(row["episode_id"], row["start"], row["length"])
            moments.setdefault(row["query_id"], (segment, []))[1].append(row["goal_id"])
    if not texts:
        raise InputError(f"{labels.path} has no goals; look at its responses.parquet, and label again.")
    place = {goal_id: number for number, goal_id in enumerate(sorted(texts))}
    goals = [texts[goal_id] for goal_id in place]
    suggested = [[place[goal_id] for goal_id in ids] for _, ids in moments.values()]
    if config.control == "shuffled":
        from bkrl.potentials.controls import permuted

        suggested = [suggested[i] for i in permuted(len(suggested), config.seed)]
    rows = np.array([dataset.rows(segment)[-1] for segment, _ in moments.values()], np.int64)
    said = {clause for caption in dataset.caption_texts for clause in goal.clauses(caption)}
    encoder = fit_encoder(config.encoder, said, goals)
    return lambda: _build_goal(config, encoder, goals, suggested, rows, len(said), dataset, reporter)


def _build_goal(
    config: TrainRmConfig,
    encoder: TextEncoder,
    goals: list[str],
    suggested: list[list[int]],
    rows: NDArray[np.int64],
    said: int,
    dataset: Dataset,
    reporter: Reporter,
) -> _Built:
    from bkrl.potentials import goal

    describe_views = captioner(dataset.env_id, _language(dataset))
    reporter.say(f"Embedding {said:,} distinct clauses and {len(goals):,} goals with {encoder.name}.")
    index = goal.build_index(
        goal.Texts(encoder, describe_views, dataset.action_names),
        number(dataset.windows(rows, goal.HORIZON)),
        suggested,
        goals,
    )
    raw = goal.GoalRaw(index, encoder, describe_views, dataset.action_names, 0.0)
    sample = number(_windows(dataset, _rows(dataset, _BATCH), goal.HORIZON))
    raw.threshold, figures = goal.calibrate(raw, sample, generator(config.seed, "goal", "threshold"))
    facts = {"encoder": encoder.name, "goals": len(goals), "moments": len(index.keys), **figures}

    def save(folder: Path) -> tuple[list[str], dict[str, Any]]:
        settings = goal.save_index(raw, folder)
        return [goal.INDEX, goal.ENCODER], {**settings, "language": _language(dataset)}

    return _Built("goal", raw, save, facts)


def _warnings(config: TrainRmConfig, report: dict[str, Any]) -> list[str]:
    """Sentences about what should be known before anybody trains with the potential; a control is meant to be so."""
    warnings = []
    if config.control == "none" and (found := doubts(report)):
        warnings.append(
            f"Φ may mislead: {'; '.join(found)}. Look at `bkrl potential report {config.run_dir}` before training."
        )
    if config.control != "zero" and advice_source(report["training"]) == EMPTY:
        warnings.append(
            "Its advice is empty (Ψ = 0): it says next to nothing about actions, and --shaping advice would be plain "
            "PPO."
        )
    return warnings


def _advice(
    config: TrainRmConfig, built: _Built, dataset: Dataset, reporter: Reporter
) -> tuple[Advice, advice.Fit, dict[str, Any]]:
    """What the potential, or its program, says about actions: Ψ, how it was found, and what else is known of it."""
    network = advice_network(world(dataset.env_id), derive_seed(config.seed, "advice"))
    if built.kind == "zero":
        return *advice.no_advice(network), {}
    rows = np.arange(min(len(dataset.ages), ADVICE_ROWS))
    record = advice.Record(dataset.observations[rows], dataset.actions[rows], dataset.ages[rows])
    if isinstance(built.raw, CodeRaw) and advice.advises(built.raw.source):
        wanted = [_told(built.raw.source, action, dataset, rows) for action in range(len(dataset.action_names))]
        psi, fit = advice.imitate(network, record, np.stack(wanted, 1), seed=config.seed)
    else:
        raw = _raw_values(built.raw, dataset, rows, reporter, "read what Φ says of actions")
        psi, fit = advice.decompose(network, record, raw, built.raw.horizon, seed=config.seed)
    if fit.empty:
        return psi, fit, {}
    reporter.say(
        f"Advice on actions from the {fit.source}: {percent(fit.actions_share, 1)} of its variance on unseen rows "
        f"is what was done, {percent(fit.explained, 1)} is explained in all."
    )
    if config.control != "constant":
        return psi, fit, {}
    fresh = advice_network(world(dataset.env_id), derive_seed(config.seed, "advice"))
    psi, fit, of_each = advice.constant(psi, fit, fresh, record.observations)
    told = {name: round(one, 3) for name, one in zip(dataset.action_names, of_each, strict=True)}
    reporter.say(f"In every state the same: {', '.join(f'{name} {one:.2f}' for name, one in told.items())}.")
    return psi, fit, {"in_every_state": told}


def _told(source: str, action: int, dataset: Dataset, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(R,) what a program's own `advice` says of one action."""
    raw = CodeRaw(advice.program_of_action(source, action), dataset.obs_shape, CODE_HORIZON)
    try:
        return _raw_values(raw, dataset, rows, Reporter(), "")
    finally:
        raw.close()


def _raw_values(
    raw: Raw, dataset: Dataset, rows: NDArray[np.int64], reporter: Reporter, title: str
) -> NDArray[np.float64]:
    """(R,) the raw potential of the windows that end at `rows`."""
    values = np.empty(len(rows))
    with reporter.progress(title, len(rows), "windows") as update:
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            values[start : start + len(part)] = raw(number(_windows(dataset, part, raw.horizon)))
            update(start + len(part))
    return values


def _store(
    config: TrainRmConfig,
    provenance: dict[str, Any],
    dataset: Dataset,
    built: _Built,
    result: Run,
    reporter: Reporter,
) -> tuple[Scaled, NDArray[np.float32]]:
    """Measure the scale, write the artefact, and read it back: what is stored must be what was measured."""
    rows = _rows(dataset, SCALE_WINDOWS)
    values = _raw_values(built.raw, dataset, rows, reporter, "measure the potential")
    scale = Scale(-1.0, 0.0) if built.kind == "zero" else Scale.measure(values, "The potential")
    files, settings = built.save(result.path)
    artefact = Artefact(
        kind=built.kind,
        horizon=built.raw.horizon,
        env_id=dataset.env_id,
        env_family=world(dataset.env_id).family,
        obs_shape=dataset.obs_shape,
        action_names=dataset.action_names,
        scale=scale,
        files=dict.fromkeys(files, ""),
        settings=settings,
        control=config.control,
        provenance=provenance,
    )
    artefact.write(result.path)
    built.close()
    potential = read_potential(result.path)
    phi = scale(values)
    check = rows[:: max(1, len(rows) // 256)]
    again = potential(_windows(dataset, check, potential.horizon))
    if not np.array_equal(again, phi[:: max(1, len(rows) // 256)]):
        raise InputError("The potential gives other values after it was stored and read back; run train-rm again.")
    return potential, phi


def _provenance(config: TrainRmConfig, variant: str, labels: Run, dataset: Dataset) -> dict[str, Any]:
    return {
        "variant": variant,
        "llm": labels.facts.get("llm"),
        "labels": labels.path.as_posix(),
        "dataset": dataset.path.as_posix(),
        "dataset_manifest_sha256": dataset.manifest_sha256,
        "seed": config.seed,
    }


def _rows(dataset: Dataset, limit: int) -> NDArray[np.int64]:
    """At most `limit` rows, evenly spaced over the whole dataset."""
    return end_to_end(int((dataset.lengths + 1).sum()), limit)


def _windows(dataset: Dataset, rows: NDArray[np.int64], horizon: int) -> Any:
    return dataset.windows(rows, horizon)


def _net_config(dataset: Dataset, horizon: int) -> Any:
    from bkrl.potentials.preference.net import NetConfig

    shape, actions = tuple(dataset.obs_shape), len(dataset.action_names)
    family = family_of(dataset.env_id)
    pointer = family.symbols(shape).pointer
    faced = (pointer[0], *pointer[1]) if pointer else ()
    return NetConfig(shape, actions, horizon, grid=family.grid, faced=faced)


def _language(dataset: Dataset) -> str:
    return str(dataset.run.config["config"].get("language", "en"))


def _summary(report: dict[str, Any]) -> list[str]:
    training = report["training"]
    sentences = []
    if "accuracy" in training:
        sentences.append(
            f"Test accuracy {percent(training['accuracy'], 1)} (95 % interval "
            f"{percents(training['accuracy_low'], training['accuracy_high'], 1)}, {training['pairs_test']} pairs of "
            "unseen episodes), calibration error "
            f"{training['calibration_error']:.3f} ({training['calibration_error_before']:.3f} without its temperature "
            f"of {training['temperature']:.2f}); trained on {training['pairs_train']} pairs for "
            f"{training['epochs']} epochs."
        )
    if training.get("disagreement") is not None:
        sentences.append(
            f"The {training['ensemble']} networks order {percent(training['disagreement'], 1)} of the test pairs "
            f"differently; their scores of a window spread by {training['spread']:.2f}."
        )
    if "threshold" in training:
        sentences.append(
            f"{training['goals']} goals for {training['moments']} moments; threshold {training['threshold']:.3f} with "
            f"encoder {training['encoder']}, and {percent(training['above'], 1)} of the windows above it."
        )
    above = "" if report["ordering"] is None else percent(report["ordering"], 1)
    sentences.append(
        f"Φ differs from its most frequent value in {percent(report['coverage'], 1)} of the windows"
        + (f", and puts ends in success above other windows {above} of the time." if above else ".")
    )
    return sentences
