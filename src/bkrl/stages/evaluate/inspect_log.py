"""Episodes of a language model as a log of inspect_ai (https://inspect.aisi.org.uk), which `inspect view` shows.

A `.eval` file is a zip: header.json, summaries.json, and one file for each sample under samples/. Here a sample is an
episode; its messages are the caption of each observation, with the mission before the first one and where it changes,
and the action that was taken.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl import __version__
from bkrl.agents.play import Episode
from bkrl.core.files import plain, to_json


def inspect_log(
    header: Mapping[str, Any],
    scores: Mapping[str, Any],
    episodes: Sequence[Episode],
    caption: Callable[[NDArray[np.uint8]], list[str]],
    action_names: Sequence[str],
) -> bytes:
    """The bytes of a `.eval` file.

    Args:
        header: `env_id`, `alg`, `policy`, `model`, `mode` and `seed`.
        scores: as `measure` gives them: a score for each figure with an interval, whose metrics are mean, low and high.
        episodes: with what they saw and did.
        caption: of observations, (B, *obs_shape) uint8.
        action_names: of the env.
    """
    samples = [_sample(number, one, caption, action_names) for number, one in enumerate(episodes, start=1)]
    ids = [one["id"] for one in samples]
    spec = {
        "created": "1980-01-01T00:00:00+00:00",  # as the files in a zip without a date: the same run, the same bytes
        "task": f"{header['env_id']} ({header['mode']})",
        "dataset": {"name": header["env_id"], "samples": len(samples), "sample_ids": ids},
        "model": header["model"],
        "config": {},
        "packages": {"bkrl": __version__},
        "metadata": dict(header),
    }
    figures = {name: one for name, one in plain(scores).items() if isinstance(one, dict) and "low" in one}
    found = [
        {"name": name, "scorer": "bkrl", "metrics": {
            key: {"name": key, "value": one[key]} for key in ("mean", "low", "high") if one[key] is not None
        }}
        for name, one in figures.items()
    ]  # fmt: skip
    results = {"total_samples": len(samples), "completed_samples": len(samples), "scores": found}
    said = BytesIO()
    with zipfile.ZipFile(said, "w", zipfile.ZIP_DEFLATED) as file:
        for one in samples:
            file.writestr(zipfile.ZipInfo(f"samples/{one['id']}_epoch_1.json"), to_json(one), zipfile.ZIP_DEFLATED)
        summaries = [{key: value for key, value in one.items() if key != "messages"} for one in samples]
        whole = {"version": 2, "status": "success", "eval": spec, "results": results}
        for name, document in (("summaries", [{**one, "completed": True} for one in summaries]), ("header", whole)):
            file.writestr(zipfile.ZipInfo(f"{name}.json"), to_json(document), zipfile.ZIP_DEFLATED)
    return said.getvalue()


def _sample(
    number: int, episode: Episode, caption: Callable[[NDArray[np.uint8]], list[str]], action_names: Sequence[str]
) -> dict[str, Any]:
    seen, told = list(caption(episode.observations)), ""
    for at, mission in enumerate(episode.missions or [episode.mission]):
        if mission not in ("", told):
            told, seen[at] = mission, f"{mission}\n\n{seen[at]}"
    first = seen[0]
    messages = [{"role": "user", "content": first}]
    for action, text in zip(episode.actions.tolist(), seen[1:], strict=True):
        messages += [{"role": "assistant", "content": action_names[action]}, {"role": "user", "content": text}]
    end = "terminated" if episode.terminated else "truncated"
    return {
        "id": number,
        "epoch": 1,
        "input": first,
        "target": "",
        "messages": messages,
        "scores": {
            "success_rate": {"value": float(episode.success), "explanation": end},
            "return": {"value": episode.episode_return},
            "length": {"value": episode.length},
        },
        "metadata": {"seed": episode.seed, "task_kind": episode.task_kind},
    }
