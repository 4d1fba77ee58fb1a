"""The situations at which a program is asked for its advice, and what it says there.

A program says something of any situation, and an explorer meets few of those that a good agent comes to. So a network
that is to say what a program says is shown more than the dataset: its rows with other things in the same places and
other numbers in hand, which need not be possible, and what is met where the advice is followed.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed, generator
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Windows
from bkrl.envs import env_spec, family, make_vec, memory_of
from bkrl.envs.symbols import Symbols
from bkrl.potentials.advice import SHARPNESS, Record, in_place
from bkrl.potentials.protocol import ActionTable, Raw

ROWS = 40_000
"""At most so many rows of the dataset, evenly spaced, are asked about; each of them twice more, varied."""
PLAYED_ENVS = 64
_BATCH = 8192
_FIELD = 32  # so many entries of the same categories are a field of cells, fewer are numbers
_SWAPS = 2
_PLACED = 0.06  # of the cells hold anything


def varied(observations: NDArray[np.uint8], symbols: Symbols, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(B, *obs_shape) uint8: in each row two pairs of kinds of cells have changed places, a few cells hold anything,
    and half of the numbers are others, one in two of them 0. Quantities stay. `symbols`: what the entries mean.
    """
    rows = observations.reshape(len(observations), -1).copy()
    sizes = np.array(symbols.sizes)
    for size in np.unique(sizes[sizes > 1]):
        entries = np.flatnonzero(sizes == size)
        found = rows[:, entries]
        drawn = rng.integers(0, size, found.shape, np.uint8)
        if len(entries) < _FIELD:
            drawn *= rng.random(found.shape) < 0.5
            found = np.where(rng.random(found.shape) < 0.5, drawn, found)
        else:
            for _ in range(_SWAPS):
                one, other = rng.integers(0, size, (2, len(rows), 1), np.uint8)
                found = np.where(found == one, other, np.where(found == other, one, found))
            found = np.where(rng.random(found.shape) < _PLACED, drawn, found)
        rows[:, entries] = found
    return rows.reshape(observations.shape)


def asked(
    table: ActionTable, raw: Raw, dataset: Dataset, play_steps: int, seed: int, reporter: Reporter
) -> tuple[Record, NDArray[np.float64]]:
    """Where a program was asked, R situations, and (R, A) what it said.

    Args:
        table: its advice.
        raw: its potential, for what it reads.
        dataset: of experience; its first R rows are the rows of this that were asked about.
        play_steps: env steps in which the advice is followed in new episodes of the dataset's env.
        seed: of what is varied, and of the play.
        reporter: where progress goes.
    """
    rows = end_to_end(len(dataset.ages), ROWS)
    said = [table(dataset.windows(part, raw.reads.horizon).numbered()) for part in _parts(rows)]
    twice = np.concatenate([rows, rows])
    symbols = family(env_spec(dataset.env_id).family).symbols(dataset.obs_shape, None)
    views = [dataset.observations[rows], varied(dataset.observations[twice], symbols, generator(seed, "varied"))]
    told = dataset.windows(twice, 0)
    missions = told.missions if raw.reads.mission else None
    memory = told.memory if raw.reads.memory else None
    words = [] if missions is None else [missions[: len(rows)], missions]
    shown = present(views[1], raw.reads.horizon, missions, memory)
    said += [table(shown[part]) for part in _parts(np.arange(len(twice)))]
    record = of_views(np.concatenate(views), np.concatenate(words) if words else None)
    if not play_steps:
        return record, np.concatenate(said)
    spread = in_place(np.concatenate(said[: len(_parts(rows))]))[1]

    def program(record: Record, told: NDArray[np.float64]) -> NDArray[np.float64]:
        del record
        return -SHARPNESS * ((told.max(1, keepdims=True) - told) / spread).clip(0.0, 1.0)

    met, answers = played(table, raw, dataset, play_steps, seed, program, reporter)
    return record.joined(met), np.concatenate([*said, answers])


def of_views(views: NDArray[np.uint8], missions: NDArray[np.object_] | None) -> Record:
    """A record of views without a past and of nothing that was done."""
    none = np.zeros(len(views), np.int64)
    return Record(views, none, none.astype(np.int32), missions)


def _parts(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]


def present(
    views: NDArray[np.uint8], horizon: int, missions: NDArray[np.object_] | None, memory: NDArray[np.uint8] | None
) -> Windows:
    """Windows of B views whose past is not known."""
    valid = np.zeros((len(views), horizon + 1), bool)
    valid[:, -1] = True
    index = np.where(valid, 1 + np.arange(len(views))[:, None], 0)
    actions = np.zeros((len(views), horizon), np.int64)
    return Windows(np.concatenate([np.zeros_like(views[:1]), views]), index, actions, valid, missions, memory)


def played(
    table: ActionTable,
    raw: Raw,
    dataset: Dataset,
    steps: int,
    seed: int,
    policy: Callable[[Record, NDArray[np.float64]], NDArray[np.floating]],
    reporter: Reporter,
) -> tuple[Record, NDArray[np.float64]]:
    """What is met in so many steps of a policy, and what the program said there.

    Args:
        table: the program's advice.
        raw: its potential, for what it reads.
        dataset: whose env is played.
        steps: env steps, rounded up to a multiple of `PLAYED_ENVS`.
        seed: of envs and actions.
        policy: (64, A) logits in 64 situations, and from what the program says there.
        reporter: where progress goes.
    """
    envs = make_vec(dataset.env_id, PLAYED_ENVS)
    rng = generator(seed, "played")
    fold = memory_of(dataset.env_id) if raw.reads.memory else None
    kept = np.zeros((PLAYED_ENVS, 0 if fold is None else fold.size), np.uint8)
    seen = envs.reset(seed=derive_seed(seed, "played"))[0].copy()
    views, words, answers = [], [], []
    with reporter.progress("ask the program on the way", steps) as update:
        for step in range(-(-steps // PLAYED_ENVS)):
            missions = envs.missions().copy() if raw.reads.mission else None
            memory = None if fold is None else kept[:, : len(fold.names)].copy()
            told = table(present(seen, raw.reads.horizon, missions, memory))
            views.append(seen)
            answers.append(told)
            words += [] if missions is None else [missions]
            actions = (rng.gumbel(size=told.shape) + policy(of_views(seen, missions), told)).argmax(1)
            after, _, terminated, truncated, _ = envs.step(actions)
            after = after.copy()
            if fold is not None:  # where an episode ends, what follows is of the next one, and all is forgotten
                fold.update(kept, seen, actions, after)
                kept[terminated | truncated] = 0
            seen = after
            update(min(steps, (step + 1) * PLAYED_ENVS))
    envs.close()
    return of_views(np.concatenate(views), np.concatenate(words) if words else None), np.concatenate(answers)
