"""From a raw potential to a stored one: what it says of actions, its scale, and the artefact it is kept as."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.advised import Advice
from bkrl.agents.build import advice_network
from bkrl.agents.networks import POLICY_HIDDEN
from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter, percent
from bkrl.core.seeds import derive_seed
from bkrl.core.spacing import end_to_end
from bkrl.envs import env_spec
from bkrl.potentials import advice, read_potential
from bkrl.potentials.asked import asked, played
from bkrl.potentials.kinds import Fitted
from bkrl.potentials.protocol import Artefact, Raw, Scale, Scaled

SCALE_WINDOWS = 40_000
"""At most so many windows, evenly spaced over the dataset, are what lo and hi are measured on."""
ADVICE_ROWS = 100_000
"""At most so many rows, from the beginning of the dataset, are what advice is learnt from."""
_BATCH = 8192
_EPOCHS_ON_THE_WAY = 5
"""Passes of a network that is to show where it leads, and is learnt anew."""


def learn_advice(
    fitted: Fitted,
    seed: int,
    reporter: Reporter,
    *,
    same_everywhere: bool = False,
    play_steps: int = 0,
    play_rounds: int = 0,
    told: tuple[advice.Record, NDArray[np.float64]] | None = None,
) -> tuple[Advice, dict[str, Any]]:
    """What a potential, or its program itself, says about actions: Ψ, and what is known of it as plain values.

    Args:
        fitted: the potential; of "zero" Ψ = 0.
        seed: of the network and of the order of batches.
        reporter: where progress goes.
        same_everywhere: Ψ(a) for Ψ(s, a), the mean over the dataset; see `advice.constant`.
        play_steps: env steps in which a program's own advice is followed, to ask it what it says on the way.
        play_rounds: so often the network then plays as many steps as it says itself, the program is asked what it says
            there, and the network learns all anew (DAgger, Ross et al. 2011).
        told: rows, and (R, A) advice there from elsewhere, in the place of what the potential says.
    """
    raw, dataset = fitted.raw, fitted.dataset
    facts = env_spec(dataset.env_id)
    missions = dataset.text("mission")[1] if raw.reads.mission else ()
    fresh = partial(advice_network, facts, derive_seed(seed, "advice"))
    imitate = partial(advice.imitate, seed=seed, reporter=reporter)
    if told is not None:
        record, wanted = told
        psi, fit = imitate(fresh((), POLICY_HIDDEN), record, wanted, source="model")
    elif fitted.kind == "zero":
        psi, fit = advice.no_advice(fresh(missions))
        return psi, fit.facts()
    elif (table := raw.advises(len(facts.action_names))) is not None:
        try:
            record, wanted = asked(table, raw, dataset, play_steps, seed, reporter)
            for number in range(play_rounds):
                fast, _ = imitate(fresh(missions, POLICY_HIDDEN), record, wanted, epochs=_EPOCHS_ON_THE_WAY)
                policy = advice.followed(fast.network)
                met, answers = played(
                    table, raw, dataset, play_steps, derive_seed(seed, f"round {number}"), policy, reporter
                )
                record, wanted = record.joined(met), np.concatenate([wanted, answers])
        finally:
            table.close()
        psi, fit = imitate(fresh(missions, POLICY_HIDDEN), record, wanted)
    else:
        rows = np.arange(min(len(dataset.ages), ADVICE_ROWS))
        record = advice.Record.of(dataset, rows, raw.reads.mission)
        values = raw_values(fitted, rows, reporter, "read what Φ says of actions")
        psi, fit = advice.decompose(fresh(missions), record, values, raw.reads.horizon, seed=seed)
    if fit.empty:
        return psi, fit.facts()
    reporter.say(
        f"Advice on actions from the {fit.source}: {percent(fit.actions_share, 1)} of its variance on unseen rows "
        f"is what was done, {percent(fit.explained, 1)} is explained in all."
    )
    if not same_everywhere:
        return psi, fit.facts()
    rows = np.arange(min(len(dataset.ages), ADVICE_ROWS))  # not what it was fitted to, which may be no part of it
    psi, fit, of_each = advice.constant(psi, fit, advice.Record.of(dataset, rows, record.missions is not None))
    mean = {name: round(one, 3) for name, one in zip(facts.action_names, of_each, strict=True)}
    reporter.say(f"In every state the same: {', '.join(f'{name} {one:.2f}' for name, one in mean.items())}.")
    return psi, {**fit.facts(), "in_every_state": mean}


def store(
    folder: Path, fitted: Fitted, psi: Advice, reporter: Reporter, *, control: str, provenance: Mapping[str, Any]
) -> tuple[Scaled, NDArray[np.float32]]:
    """Measure the scale, write the artefact, and read it back: what is stored must be what was measured.

    Returns:
        The stored potential, and (M,) Φ of evenly spaced windows of the dataset. The raw potential is closed.

    Raises:
        InputError: the potential is constant or not finite, or gives other values once it was read back.
    """
    raw, dataset = fitted.raw, fitted.dataset
    rows = end_to_end(len(dataset.actions), SCALE_WINDOWS)
    values = raw_values(fitted, rows, reporter, "measure the potential")
    scale = scale_of(raw, values)
    files, settings = raw.save(folder)
    advice_files, advice_settings = advice.save(psi, folder)
    Artefact(
        kind=fitted.kind,
        horizon=raw.reads.horizon,
        env_id=dataset.env_id,
        env_family=env_spec(dataset.env_id).family,
        obs_shape=dataset.obs_shape,
        action_names=dataset.action_names,
        scale=scale,
        files=dict.fromkeys([*files, *advice_files], ""),
        settings={**settings, **advice_settings},
        control=control,
        provenance=provenance,
        reads=raw.reads.views,
    ).write(folder)
    raw.close()
    potential, phi = read_potential(folder), scale(values)
    some = slice(None, None, max(1, len(rows) // 256))
    if not np.array_equal(potential(dataset.windows(rows[some], potential.reads.horizon)), phi[some]):
        raise InputError("The potential gives other values after it was stored and read back; run train-rm again.")
    return potential, phi


def scale_of(raw: Raw, values: NDArray[np.float64]) -> Scale:
    """The scale that a raw potential has by its making, or else that of (B,) values of evenly spaced windows.

    Raises:
        InputError: it is to be measured, and the values are constant or not finite.
    """
    return Scale.measure(values) if raw.bounds is None else Scale(*raw.bounds)


def raw_values(fitted: Fitted, rows: NDArray[np.int64], reporter: Reporter, title: str) -> NDArray[np.float64]:
    """(R,) the raw potential of the windows that end at `rows` of its dataset."""
    raw, dataset, values = fitted.raw, fitted.dataset, np.empty(len(rows))
    with reporter.progress(title, len(rows), "windows") as update:
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            values[start : start + len(part)] = raw(dataset.windows(part, raw.reads.horizon).numbered())
            update(start + len(part))
    return values
