"""Goal potentials from a label run: the index of what was suggested when, and the threshold for its env."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter, percent
from bkrl.core.seeds import generator
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.distinct import distinct_rows
from bkrl.data.windows import Windows
from bkrl.envs import captioner
from bkrl.labelers.tables import labels_of, memory_names, mission_words
from bkrl.potentials.goal import HORIZON, TOP, GoalIndex, GoalRaw, load
from bkrl.potentials.goal.reached import measure
from bkrl.potentials.goal.texts import Texts, clauses, on_grid
from bkrl.potentials.kinds import Fitted, LabelledKind, Maker, Shuffle, permuted
from bkrl.runs.record import Run
from bkrl.text.encoders import fit_encoder

_MEASURED = 8192  # windows of the dataset that the threshold is measured on


def read(labels: Run, dataset: Dataset, *, shuffle: Shuffle | None, encoder: str) -> Maker:
    """The goals of a label run, and an encoder for them and the dataset's captions: the index is made of these, and the
    threshold measured.

    Raises:
        InputError: there is no goal, or the encoder's model is not there.
        UsageError: there is no such encoder.
    """
    rows = [row for row in labels_of(labels) if row["goal"] is not None]
    if not rows:
        raise InputError(f"{labels.path} has no goals; look at its responses.parquet, and label again.")
    texts: dict[int, str] = {}
    moments: dict[int, tuple[Segment, list[int]]] = {}
    for row in rows:
        texts.setdefault(row["goal_id"], row["goal"])
        segment = Segment(row["episode_id"], row["start"], row["length"])
        moments.setdefault(row["query_id"], (segment, []))[1].append(row["goal_id"])
    place = {goal_id: number for number, goal_id in enumerate(sorted(texts))}
    goals = [texts[goal_id] for goal_id in place]
    suggested = [[place[goal_id] for goal_id in ids] for _, ids in moments.values()]
    if shuffle is not None:
        suggested = [suggested[i] for i in permuted(len(suggested), shuffle)]
    ends = np.array([dataset.rows(segment)[-1] for segment, _ in moments.values()], np.int64)
    said = {clause for caption in dataset.caption_texts for clause in clauses(caption)}
    reads, memory = mission_words(labels, dataset) is not None, memory_names(labels, dataset)
    embed = fit_encoder(encoder, said, goals)

    def make(seed: int, reporter: Reporter) -> Fitted:
        describe = captioner(dataset.env_id, dataset.language)
        reporter.say(f"Embedding {len(said):,} distinct clauses and {len(goals):,} goals with {embed.name}.")
        texts = Texts(embed, describe, dataset.action_names)
        index = build_index(texts, dataset.windows(ends, HORIZON).numbered(), suggested, goals, reads)
        reached = measure(goals, embed, dataset, memory, shuffle) if memory else None
        raw = GoalRaw(
            index,
            embed,
            describe,
            dataset.action_names,
            0.0,
            language=dataset.language,
            reads_missions=reads,
            reached=reached,
        )
        sample = dataset.windows(end_to_end(len(dataset.actions), _MEASURED), HORIZON).numbered()
        found = calibrate(raw, sample, generator(seed, "goal", "threshold"))
        raw.threshold = found.threshold
        reporter.say(
            f"{len(goals)} goals for {len(index.keys)} moments; threshold {found.threshold:.3f} with encoder "
            f"{embed.name}, and {percent(found.above, 1)} of the windows above it."
        )
        counts = {"encoder": embed.name, "goals": len(goals), "moments": len(index.keys)}
        if reached is None:
            return Fitted("goal", raw, dataset, {**counts, **asdict(found)})
        how = "goals mean" if shuffle is None else "there are drawn, as many as goals mean,"
        reporter.say(f"Of what memory counts {how} {', '.join(reached.names)}.")
        return Fitted("goal", raw, dataset, {**counts, **asdict(found), "reached": reached.names})

    return make


def build_index(
    texts: Texts, moments: Windows, suggested: Sequence[Sequence[int]], goals: list[str], reads_missions: bool = False
) -> GoalIndex:
    """Keys from the windows that end each asked segment; `suggested[k]` numbers the goals of moment k."""
    matrix = np.zeros((len(moments), len(goals)), bool)
    for row, numbers in zip(matrix, suggested, strict=True):
        row[list(numbers)] = True
    vectors = on_grid(np.concatenate([texts.encoder([goal]) for goal in goals]))
    keys = on_grid(texts.window_vectors(texts.compared(moments, texts.rows_of(moments), reads_missions)))
    # moments that read the same are one key with the goals of all of them
    first, inverse = distinct_rows(keys)
    merged = np.zeros((len(first), len(goals)), bool)
    np.logical_or.at(merged, inverse, matrix)
    return GoalIndex(keys[first], goals, vectors, merged)


@dataclass(frozen=True)
class GoalCalibration:
    """The threshold for an encoder and an env, and the figures behind it.

    Attributes:
        threshold: the similarity from which a window counts.
        unrelated_quantile, retrieved_median: what it is the lesser of.
        retrieved_p99: what similarity with retrieved goals is seldom above.
        above: share of windows above the threshold.
        similarity_retrieved, similarity_unrelated: percentiles of similarities, by their numbers.
    """

    threshold: float
    unrelated_quantile: float
    retrieved_median: float
    retrieved_p99: float
    above: float
    similarity_retrieved: dict[str, float]
    similarity_unrelated: dict[str, float]


def calibrate(raw: GoalRaw, windows: Windows, rng: np.random.Generator, quantile: float = 0.9) -> GoalCalibration:
    """The threshold: the similarity that goals of *unrelated* moments stay below in `quantile` of the windows.

    What is above has to do with the moment, and not just with the words of this env.  Where unrelated goals reach as
    high as the retrieved ones nearly everywhere (few distinct goals), the median of the retrieved ones keeps a quarter
    of the range alive.
    """
    found = raw.similarity(windows)
    others = rng.integers(0, len(raw.index.keys), (len(windows), min(TOP, len(raw.index.keys))))
    unrelated = raw.similarity(windows, others)
    by_null, by_median = float(np.quantile(unrelated, quantile)), float(np.quantile(found, 0.5))
    threshold = min(by_null, by_median, 0.98)
    return GoalCalibration(
        threshold=threshold,
        unrelated_quantile=by_null,
        retrieved_median=by_median,
        retrieved_p99=float(np.quantile(found, 0.99)),
        above=float((found > threshold).mean()),
        similarity_retrieved=_percentiles(found),
        similarity_unrelated=_percentiles(unrelated),
    )


def _percentiles(values: NDArray[np.float64]) -> dict[str, float]:
    return {str(q): float(np.percentile(values, q)) for q in (5, 25, 50, 75, 95)}


KINDS = (LabelledKind("goal", load, read, ("encoder",), variant="goal", horizon=lambda labels: HORIZON),)
