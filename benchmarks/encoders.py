"""How well a text encoder knows which goals fit a caption, and what helps it.

    python benchmarks/encoders.py [--encoder minilm] [--labels RUN ...] [--json] [--quick]

Captions are of random play, in BabyAI (`BabyAI-MixedTrainLocal-v0`; goals: go to, pick up or open each thing of each
colour; a goal fits where its thing is in view) and in typed Crafter (goals: its deeds; a deed fits where the rules of
the env find it sensible). A caption is as near to a goal as the nearest of its clauses, as in BK-Goal. For each seed:

* `auc`: the share of pairs of a goal that fits and one that does not, of one caption, in which the first is nearer.
* `first`: the share of captions whose nearest goal fits.

What is measured: the encoder as it is; whole captions in place of clauses; without "you see"; without numbers and
directions; goals worded as captions ("you see a red ball"); the mean of clauses and that of goals subtracted, or one
mean of both; directions of little spread stretched (whitening, 32 directions); other pooling. Means and directions are
measured on captions of another seed. `hash` is measured beside it, its words weighed on the same captions; with
--quick it alone, which needs no model.

With --labels: what the encoder makes of BK-Goal's Φ, for label runs of `--variant goal`, instead.

* `above`: how often the mean Φ of the last moments before success is above that of moments of failed episodes.
* `ordering`: how often Φ at a success is above Φ of any moment. Both stand in the report of `bkrl train-rm`.

"Without their means": clauses less the mean of the dataset's, goals less the mean of those that were suggested. Figures
are means with 95 % t intervals over label runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from bkrl.core.reporter import Reporter
from bkrl.core.spacing import end_to_end
from bkrl.envs import family, make_vec, situations
from bkrl.inspect.quality import segments
from bkrl.labelers.tables import dataset_of
from bkrl.potentials.build import SCALE_WINDOWS, raw_values, scale_of
from bkrl.potentials.goal import kind as goal
from bkrl.potentials.goal.texts import clauses
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run
from bkrl.stats.intervals import t_interval
from bkrl.stats.ranks import area_under_curve
from bkrl.text.encoders import HashEncoder, TextEncoder, fit_encoder
from command_line import parser_of

BABYAI, CRAFTER = "BabyAI-MixedTrainLocal-v0", "Crafter-Typed-Harder"
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
VERBS = {"ball": "pick up the", "box": "go to the", "key": "pick up the", "door": "open the"}
Cases = list[tuple[str, NDArray[np.bool_]]]
"""Captions, and which goals fit each."""
Encode = Callable[[Sequence[str]], NDArray[np.float32]]


def babyai(seed: int, most: int) -> tuple[list[str], Cases]:
    """Goals, and cases."""
    pairs = [(colour, kind) for colour in COLOURS for kind in VERBS]
    said = played(BABYAI, seed, most, lambda seen: family("babyai").caption(seen))
    fits = [np.array([f"{colour} {kind} " in one + " " for colour, kind in pairs]) for one in said]
    return [f"{VERBS[kind]} {colour} {kind}" for colour, kind in pairs], list(zip(said, fits, strict=True))


def crafter(seed: int, most: int) -> tuple[list[str], Cases]:
    """Goals, and cases."""
    known = situations(CRAFTER)
    goals = [deed for deed in known.possible if not deed.startswith(("move", "do "))]
    keys = played(CRAFTER, seed, most, lambda seen: known.keys(seen).tolist())
    fits = [np.isin(goals, known.sensible(key)) for key in keys]
    return goals, [(" ".join(known.text(key)), one) for key, one in zip(keys, fits, strict=True)]


def played(env_id: str, seed: int, most: int, read: Callable) -> list:
    """Distinct readings of random play, spread over it."""
    envs = make_vec(env_id, 32)
    rng, found = np.random.default_rng(seed), {}
    seen = envs.reset(seed=seed)[0]
    for _ in range(200):
        seen = envs.step(rng.integers(0, int(envs.single_action_space.n), 32))[0]
        found |= dict.fromkeys(read(seen))
    return list(found)[:: max(1, len(found) // most)][:most]


def scored(near: NDArray[np.float64], fits: NDArray[np.bool_]) -> tuple[float, float]:
    """(C, G) nearness and truth → AUC within captions, share of captions whose nearest goal fits."""
    some = fits.any(1) & ~fits.all(1)
    areas = [
        ((n[f][:, None] > n[~f]) + 0.5 * (n[f][:, None] == n[~f])).mean()
        for n, f in zip(near[some], fits[some], strict=True)
    ]
    return float(np.mean(areas)), float(fits[some][np.arange(some.sum()), near[some].argmax(1)].mean())


def plain(text: str) -> str:
    return text


def unseen(text: str) -> str:
    """Without "you see a", "you have in your inventory" and the like."""
    return re.sub(r"^(you (see|are targeting|have in your inventory|feel)|and) (an? |and )?|^and ", "", text)


def placeless(text: str) -> str:
    """Without numbers and directions as well."""
    return re.sub(r" (and )?\d+ steps? (left|right|forward|back\w*)", "", unseen(text))


def as_caption(goal: str) -> str:
    """ "pick up the red ball" → "you see a red ball"; "chop tree" → "you see tree"."""
    thing = re.sub(r"^(pick up|go to|open|\w+)( the)? ", "a " if " the " in goal else "", goal)
    return f"you see {thing}"


def without_mean(reference: NDArray[np.float32]) -> Callable[[NDArray], NDArray]:
    """Vectors less the mean of some, at length 1."""
    mean = reference.mean(0)
    return lambda vectors: unit(vectors - mean)


def whitened(reference: NDArray[np.float32], size: int = 32) -> Callable[[NDArray], NDArray]:
    """Vectors in the directions of largest spread, each divided by its spread (Su et al. 2021), at length 1."""
    mean = reference.mean(0)
    _, spread, directions = np.linalg.svd(reference - mean, full_matrices=False)
    kernel = directions[:size].T / np.maximum(spread[:size], 1e-6)
    return lambda vectors: unit((vectors - mean) @ kernel)


def unit(vectors: NDArray) -> NDArray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def pooled(encoder: Any) -> dict[str, Encode]:
    """The encoder with other pooling: `cls`, or `inner` (the mean without the marks of begin and end)."""
    import torch

    @cache
    def both(text: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.no_grad():
            last = encoder._model(**encoder._tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return last[0].numpy(), last[1:-1].mean(0).numpy()

    return {
        name: lambda texts, which=which: unit(np.stack([both(text)[which] for text in texts]))
        for which, name in enumerate(("cls", "inner"))
    }


def measure(encode: Encode, goals: list[str], cases: Cases, others: Cases, **how: Any) -> tuple[float, float]:
    """AUC and share of first ones that fit. `part`, `goal` reword; `fit` makes a change of vectors from reference ones;
    `joint`: one change for both kinds of texts; `whole`: captions are not divided."""
    part, goal = how.get("part", plain), how.get("goal", plain)

    def parts(caption: str) -> list[str]:
        return [part(one) for one in ([caption.lower()] if how.get("whole") else clauses(caption))] or [""]

    wanted = encode([goal(one) for one in goals])
    change_parts: Any = lambda vectors: vectors  # noqa: E731
    change_goals = change_parts
    if "fit" in how:
        reference = encode(list(dict.fromkeys(one for caption, _ in others for one in parts(caption))))
        if how.get("joint"):
            goals_as_often = np.resize(wanted, (len(reference), wanted.shape[1]))
            change_parts = change_goals = how["fit"](np.concatenate([reference, goals_as_often]))
        else:
            change_parts, change_goals = how["fit"](reference), how["fit"](wanted)
            if how["fit"] is whitened:
                change_goals = change_parts
    wanted = change_goals(wanted)
    near = np.stack([(change_parts(encode(parts(caption))) @ wanted.T).max(0) for caption, _ in cases])
    return scored(near, np.stack([fits for _, fits in cases]))


class Centred:
    """An encoder whose vectors are less the mean of their kind (goals, or all other texts), at length 1."""

    def __init__(self, encoder: TextEncoder, clauses: Sequence[str], goals: Sequence[str]) -> None:
        self.name, self.size, self.settings, self._encoder = encoder.name, encoder.size, encoder.settings, encoder
        self._goals, self._means = set(goals), [encoder(texts).mean(0) for texts in (clauses, goals)]

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        means = np.stack([self._means[text in self._goals] for text in texts])
        return unit(self._encoder(texts) - means).astype(np.float32)


def centred(name: str, said: Set[str], goals: Sequence[str]) -> Centred:
    """An encoder by its name, less the means of what is said and of goals."""
    return Centred(fit_encoder(name, said, goals), sorted(said), goals)


class Raw:
    """Φ of a potential that is not stored."""

    def __init__(self, raw: Any, scale: Any) -> None:
        self.reads, self.close, self._raw, self._scale = raw.reads, raw.close, raw, scale

    def __call__(self, windows: Any) -> NDArray[np.float32]:
        return self._scale(self._raw(windows.numbered()))


def worth(labels: Path, encoder: str, found: dict[str, Any]) -> None:
    """Add `above` and `ordering` of Φ to each variant."""
    run = Run.open(labels, "label")
    data = dataset_of(run, dataset_at(run))
    rows = end_to_end(len(data.actions), SCALE_WINDOWS)
    for variant in ("as it is", "without their means", "hash"):
        with patch.object(goal, "fit_encoder", centred if variant == "without their means" else fit_encoder):
            make = goal.read(run, data, shuffle=None, encoder="hash" if variant == "hash" else encoder)
        fitted = make(1, Reporter())
        values = raw_values(fitted, rows, Reporter(), "")
        scale = scale_of(fitted.raw, values)
        potential: Any = Raw(fitted.raw, scale)
        ends = data.first_row[data.success] + data.lengths[data.success]
        solved = potential(data.windows(ends, potential.reads.horizon))
        ordering = area_under_curve(solved, scale(values)[:: max(1, len(values) // 2000)])
        found.setdefault(variant, {}).setdefault("labels", []).append((segments(potential, data)["above"], ordering))
        potential.close()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--encoder", default="minilm", help="minilm or hf:PATH")
    parser.add_argument("--labels", type=Path, nargs="+", default=[], help="label runs")
    args = parser.parse_args()
    seeds, most = range(1, 2 if args.quick else 6), 20 if args.quick else 50
    variants: dict[str, dict[str, Any]] = {
        "as it is": {},
        "whole captions": {"whole": True},
        "without 'you see'": {"part": unseen},
        "without places": {"part": placeless},
        "goals as captions": {"goal": as_caption},
        "goals as captions, without places": {"goal": lambda one: unseen(as_caption(one)), "part": placeless},
        "without their means": {"fit": without_mean},
        "without one mean": {"fit": without_mean, "joint": True},
        "without places and means": {"part": placeless, "fit": without_mean},
        "whitened": {"fit": whitened},
        "first token": {"pool": "cls"},
        "inner tokens": {"pool": "inner"},
        "inner tokens, without means": {"pool": "inner", "fit": without_mean},
        "hash": {"hash": True},
    }
    if args.quick:
        variants = {"hash": variants["hash"]}
    encoder: Any = None if args.quick or args.labels else fit_encoder(args.encoder)
    pools = pooled(encoder) if encoder else {}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in args.labels:
        worth(one, args.encoder, found)
    for name, collect in () if args.labels else (("babyai", babyai), ("crafter", crafter)):
        for seed in seeds:
            (goals, cases), (_, others) = collect(seed, most), collect(seed + 100, most)
            for variant, how in variants.items():
                encode: Encode = encoder
                if "hash" in how:
                    encode = HashEncoder.fit([one for text, _ in others for one in clauses(text)], goals)
                elif "pool" in how:
                    encode = pools[how["pool"]]
                rest = {key: value for key, value in how.items() if key not in ("hash", "pool")}
                found.setdefault(variant, {}).setdefault(name, []).append(measure(encode, goals, cases, others, **rest))
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps(found))
        return
    for variant, envs in found.items():
        cells = []
        for runs in envs.values():
            for column in zip(*runs, strict=True):
                whole = t_interval(np.array(column))
                cells.append(f"{whole.estimate:.3f} ± {whole.estimate - whole.low:.3f}")
        print(f"| {variant} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
