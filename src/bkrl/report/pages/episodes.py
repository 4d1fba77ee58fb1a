"""Episodes step by step on one page: pictures, captions, missions, rewards, Φ and advice; the page of `bkrl play`."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl import envs
from bkrl.core.errors import UsageError
from bkrl.core.files import atomic_write, read_json
from bkrl.data.dataset import Dataset
from bkrl.potentials import load_potential
from bkrl.report.pages import html
from bkrl.report.plots.pictures import png_uri, stitched
from bkrl.runs.folder import CONFIG, MANIFEST
from bkrl.runs.record import Manifest, Run

PAGE = "episodes.html"
MOST_STEPS = 5_000
"""On a page; further episodes are left out."""


def page(title: str, meta: str, data: Mapping[str, Any], guarantee: str = "") -> str:
    """The document. `data`: pictures, action names and episodes, each with its frames; see `frame`."""
    known = {"title": title, "meta": meta, "guarantee": guarantee, "data": html.embed(data)}
    return html.render("play", {**known, "live": data["live"], "policy": data.get("policy", False)})


def frame(picture: int | str | None, caption: str, mission: str, **more: Any) -> dict[str, Any]:
    """What is shown of one moment.

    Args:
        picture: its number among the page's pictures, a data URI, or None.
        more: `action` that led here and the `reward` for it, `phi`, `shaping`, `advice` and `policy` (a number for each
            action), `end`: how the episode ended.
    """
    names = ("action", "reward", "phi", "shaping", "advice", "policy", "end")
    return {"picture": picture, "caption": caption, "mission": mission, **dict.fromkeys(names), **more}


def ending(terminated: bool, success: bool) -> str:
    """How an episode ended, as a frame's `end`."""
    how = "terminated" if terminated else "cut off by the time limit"
    return f"{how}, {'a success' if success else 'no success'}"


class Advising:
    """What a potential says of actions."""

    def __init__(self, potential: Any) -> None:
        from bkrl.potentials import advice

        found = advice.load(potential.artefact.folder, potential.artefact.settings)
        self._advice = None if found is None or found.empty else found

    def __call__(self, symbols: NDArray[np.uint8], missions: Sequence[str]) -> list[list[float]] | None:
        """(B, *obs_shape), (B,) → for each moment the advice on every action; None where there is none."""
        import torch

        if self._advice is None:
            return None
        vocabulary = self._advice.vocabulary
        words = None if vocabulary is None else torch.from_numpy(vocabulary.tokens(np.array(missions, object)))
        return [[round(x, 3) for x in row] for row in self._advice(torch.from_numpy(symbols), words).tolist()]


def write(
    dataset: Dataset, out: Path | None = None, episodes: Sequence[int] = (), potential: Path | None = None
) -> Path:
    """Write the page of some episodes of a dataset, by default of the first ones, to `out` or beside the dataset.

    Raises:
        UsageError: there is no such episode, or see `place`.
    """
    path = place(dataset.run, out, PAGE)
    if wrong := [number for number in episodes if not 0 <= number < dataset.num_episodes]:
        raise UsageError(f"{dataset.path} has episodes 0 to {dataset.num_episodes - 1}, and no {wrong[0]}.")
    chosen = fitting(dataset, episodes)
    rows = np.concatenate([dataset.first_row[one] + np.arange(dataset.lengths[one] + 1) for one in chosen])
    pictures, numbers = _pictures(dataset, rows)
    said = _said(dataset, rows, potential)
    shown, at = [], 0
    for number in chosen:
        frames = []
        for step in range(int(dataset.lengths[number]) + 1):
            row = rows[at]
            more = {name: each[at] for name, each in said.items()}
            if step:
                more |= {"action": int(dataset.actions[row - 1]), "reward": float(dataset.rewards[row - 1])}
            frames.append(frame(numbers[at], dataset.caption(row), dataset.row_missions[row], **more))
            at += 1
        frames[-1]["end"] = ending(dataset.terminated[number], dataset.success[number])
        shown.append({"name": f"{number}: {dataset.missions[number]}".rstrip(": "), "number": number, "frames": frames})
    left = dataset.num_episodes - len(chosen)
    meta = f"{dataset.env_id}; {len(chosen):,} episodes" + (f", {left:,} more are not shown" if left else "")
    data = {"live": False, "pictures": pictures, "actions": list(dataset.action_names), "episodes": shown}
    atomic_write(path, page(f"Episodes of {dataset.path.name}", meta, data))
    return path


def place(run: Run, out: Path | None, name: str) -> Path:
    """Where a page of a run is written: `out`, or the file of a name in its folder.

    Raises:
        UsageError: that is a folder or a file of a run, or its folder is not there.
    """
    path = out or run.path / name
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file with --out.")
    real = path.resolve()
    for folder in real.parents:
        if not (folder / CONFIG).is_file():
            continue
        if (folder / MANIFEST).is_file():
            named = (*read_json(folder / MANIFEST, Manifest)["outputs"], MANIFEST, CONFIG)
            taken = real in {(folder / name).resolve() for name in named}
        else:  # a run at work: whatever lies there is its own
            taken = real.exists()
        if taken:
            whose = "the run" if folder == run.path.resolve() else f"the run {folder}"
            raise UsageError(f"{path} is part of {whose}; name another file with --out.")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is no folder; make it first, or name another --out.")
    return path


def fitting(dataset: Dataset, episodes: Sequence[int] = ()) -> list[int]:
    """The first of these episodes, or of all, that one page holds."""
    within = np.cumsum(dataset.lengths[list(episodes)] if episodes else dataset.lengths) <= MOST_STEPS
    return [*(episodes or range(dataset.num_episodes))][: max(1, int(within.sum()))]


def _pictures(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[list[str], Sequence[int | None]]:
    """The distinct views at these rows as data URIs, and which each row has."""
    drawn = envs.family_of(dataset.env_id).tile_maps(dataset.observations[rows])
    if drawn is None:
        return [], [None] * len(rows)
    maps, tiles = drawn
    distinct, number = np.unique(maps, axis=0, return_inverse=True)
    return [png_uri(one) for one in stitched(distinct, tiles)], number.ravel().tolist()


def _said(dataset: Dataset, rows: NDArray[np.int64], run: Path | None) -> dict[str, list[Any]]:
    """Φ and advice at each row, where a potential is given."""
    if run is None:
        return {}
    with closing(load_potential(run)) as potential:
        potential.artefact.check_fits(run, dataset)
        phi = potential(dataset.windows(rows, potential.reads.horizon)).round(4).tolist()
        advice = Advising(potential)(dataset.observations[rows], dataset.row_missions[rows].tolist())
    return {"phi": phi} | ({} if advice is None else {"advice": advice})
