"""evaluate: a frozen policy on seeded episodes, sampled and greedy, with intervals and moving pictures."""

import shutil
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image

from bkrl.agents import load_agent
from bkrl.agents.build import check_acts_in, options_of
from bkrl.agents.play import MOST_AT_ONCE, Episode, Start, metrics_of, play
from bkrl.agents.protocol import Agent
from bkrl.core.config import EvaluateConfig
from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write, read_json, write_table
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter, percent, percents
from bkrl.envs import captioner, env_spec, family, make_vec
from bkrl.runs.inputs import files_of_envs
from bkrl.runs.record import Run
from bkrl.stages import to_do
from bkrl.stages.evaluate.conditions import env_of, path_of, read_conditions
from bkrl.stages.evaluate.inspect_log import inspect_log
from bkrl.stages.evaluate.matrix import POLICY, played, table
from bkrl.stats.intervals import t_interval, wilson_interval
from bkrl.stats.scores import score_interval

GIF_SIDE = 320
FRAME_MILLISECONDS = 120
SHOWN_METRICS = 3
COUNTS = "sampled: that policy was trained; its likeliest actions (greedy) are another, which may walk in circles"
"""Which of an evaluation's figures counts, and why."""
_WORK = ("time/env", "time/policy", "time/potential", "time/update")


@announced
def run(config: EvaluateConfig, reporter: Reporter) -> Run:
    """Play `config.episodes` episodes in each mode and write evaluation.json and the GIFs; of a language model also
    logs of inspect_ai.

    Raises:
        InputError: the policy is missing or damaged, or belongs to another family of envs.
    """
    folder = Path(config.policy)
    if (folder / "config.json").is_file() and (folder / "tokenizer_config.json").is_file():
        raise InputError(
            f"{config.policy} holds a language model and no run; `bkrl train-rs --alg zero-shot --lm {config.policy}` "
            "makes a run of it as it is, which can be evaluated."
        )
    source = Run.open(config.policy, "train-rs")
    agent = load_agent(source.path)
    if config.conditions is not None:
        return _under_conditions(config, source, agent, reporter)
    facts = env_spec(config.env or agent.env_id)
    env_id = facts.env_id
    check_acts_in(agent, facts, config.policy)
    envs = None
    if to_do(config):
        torch.set_num_threads(config.threads)
        envs = make_vec(env_id, min(config.episodes, MOST_AT_ONCE), backend=config.backend, **options_of(agent))
    result = Run.begin(config, "evaluate", {"policy": config.policy, **files_of_envs(env_id)}, reporter)
    if envs is None or result.complete:
        return result
    modes = ("sampled", "greedy") if config.mode == "both" else (config.mode,)
    document: dict[str, Any] = {
        "policy": config.policy,
        "alg": source.facts.get("alg"),
        "trained_in": agent.env_id,
        "trained_steps": source.facts.get("steps"),
        "env_id": env_id,
        "seed": config.seed,
        "modes": {},
    }
    outputs = ["evaluation.json"]
    start = Start(envs)  # greedy or not, the episodes are the same
    speaks = str(read_json(source.file("policy.json"))["network"]["name"]).endswith("language")
    with reporter.progress("evaluate", len(modes) * config.episodes, "episodes") as update:
        for number, mode in enumerate(modes):
            done = number * config.episodes
            episodes = list(
                play(
                    agent,
                    envs,
                    config.episodes,
                    seed=config.seed,
                    greedy=mode == "greedy",
                    keep=speaks,
                    frames=config.gifs,
                    start=start,
                    tick=lambda ended, done=done: update(done + ended),  # type: ignore[misc]
                )
            )
            outputs += _write_gifs(result, mode, [one for one in episodes[: config.gifs] if one.frames])
            document["modes"][mode] = scores = measure(episodes, family(facts.family).achievements)
            if speaks:
                header = {key: value for key, value in document.items() if key != "modes"}
                header |= {"mode": mode, "model": str(source.facts.get("lm") or document["alg"])}
                log = inspect_log(header, scores, episodes, captioner(env_id), facts.action_names)
                atomic_write(result.file(f"{mode}.eval"), log)
                outputs.append(f"{mode}.eval")
    envs.close()
    if config.gifs and len(outputs) == 1 and not speaks:
        reporter.warn(f"There are no GIFs: {env_id} gives no pictures, since its `render` returns none.")
    result.write_json("evaluation.json", document)
    shown = document["modes"]["sampled" if "sampled" in modes else modes[0]]
    columns = ["mode", "success rate", "95 % interval", "return", "length"]
    columns += ["achievements", "score"] if family(facts.family).achievements else []
    columns += _own(document["modes"])
    result.finish(
        outputs,
        env_id=env_id,
        alg=document["alg"],
        policy=config.policy,
        episodes=config.episodes,
        success_rate=shown["success_rate"]["mean"],
        episode_return=shown["return"]["mean"],
        episode_length=shown["length"]["mean"],
        modes={
            mode: {name: one for name, one in scores.items() if name != "episodes"}
            for mode, scores in document["modes"].items()
        },
        **({"counts": COUNTS} if len(modes) > 1 else {}),
        table={"header": columns, "rows": [_row(mode, scores) for mode, scores in document["modes"].items()]},
    )
    return result


def _under_conditions(config: EvaluateConfig, source: Run, agent: Agent, reporter: Reporter) -> Run:
    """All conditions of a set, in conditions.parquet (every episode), evaluation.json and a table."""
    assert config.conditions is not None
    conditions, path = read_conditions(config.conditions), path_of(config.conditions)
    for condition in conditions.conditions:
        facts = env_spec(env_of(condition, agent.env_id))
        if facts.family != agent.family:
            raise InputError(
                f"{config.policy} acts in {agent.family} envs, and the condition '{condition.name}' is in "
                f"{facts.env_id}, of {facts.family}; choose other conditions."
            )
        if conditions.measure != "success" and not family(facts.family).achievements:
            raise InputError(
                f"{path} measures {conditions.measure}, that of achievements, and {facts.env_id} has none; leave "
                "measure out."
            )
    torch.set_num_threads(config.threads)
    files = files_of_envs(*(env_of(condition, agent.env_id) for condition in conditions.conditions))
    result = Run.begin(config, "evaluate", {"policy": config.policy, "conditions": path, **files}, reporter)
    if result.complete:
        return result
    rows, episodes = played(agent, conditions, config, result, reporter)
    alg, steps = str(source.facts.get("alg")), source.facts.get("steps")
    clocks = [value for row in source.metrics() for key, value in row.items() if key in _WORK]
    seconds = sum(clocks) if clocks else None
    document = {
        "policy": config.policy, "alg": alg, "trained_in": agent.env_id, "trained_steps": steps, "seed": config.seed,
        "trained_seconds": seconds, "title": conditions.title, "note": conditions.note, "conditions": rows,
        "published": conditions.published,
    }  # fmt: skip
    result.write_json("evaluation.json", document)
    write_table(result.file("conditions.parquet"), pa.Table.from_pylist(episodes))
    own = [row for row in rows if row.agent == POLICY]
    for row in own:
        if row.refused and row.mode in ("sampled", config.mode):
            reporter.say(f"{row.condition}: no figure for {alg}, since {row.refused}.")
    shown = table(rows, conditions, alg, steps, seconds)
    if conditions.note:
        reporter.say(conditions.note)
    shutil.rmtree(result.file("cells"), ignore_errors=True)
    result.finish(
        ["evaluation.json", "conditions.parquet"],
        env_id=agent.env_id,
        alg=alg,
        policy=config.policy,
        episodes=config.episodes,
        conditions=own,
        measure=conditions.measure,
        table=shown,
    )
    return result


def measure(episodes: Sequence[Episode], names: Sequence[str] = ()) -> dict[str, Any]:
    """Means with 95 % intervals (Wilson for the success rate, Student's t for the others), and every episode.

    `names`: of achievements; then also their mean number, Crafter's score, and in what share of episodes each was
    unlocked.
    The intervals are over episodes of this one policy; how policies of other seeds differ is another question.
    """
    returns = np.array([e.episode_return for e in episodes])
    lengths = np.array([e.length for e in episodes], float)
    successes = sum(e.success for e in episodes)
    low, high = wilson_interval(successes, len(episodes))
    scores: dict[str, Any] = {"success_rate": {"mean": successes / len(episodes), "low": low, "high": high}}
    unlocked = np.array([e.unlocked for e in episodes])
    figures = {"return": returns, "length": lengths}
    if names:
        score = score_interval(unlocked)
        scores["score"] = {"mean": score.estimate, "low": score.low, "high": score.high}
        scores["unlocked"] = dict(zip(names, unlocked.mean(0).tolist(), strict=True))
        figures["achievements"] = unlocked.sum(1).astype(float)
    for name, values in figures.items():
        scores[name] = {**_mean(values), "std": float(values.std(ddof=1)) if len(values) > 1 else None}
    if own := metrics_of(episodes):
        known = {name: values for name, values in own.items() if len(values)}
        scores["metrics"] = {name: {**_mean(values), "episodes": len(values)} for name, values in known.items()}
    scores["episodes"] = [{**e.figures, "terminated": e.terminated, "truncated": e.truncated} for e in episodes]
    return scores


def _mean(values: NDArray[np.floating]) -> dict[str, float]:
    found = t_interval(values)
    return {"mean": found.estimate, "low": found.low, "high": found.high}


def write_gif(frames: Sequence[np.ndarray]) -> bytes:
    """A looping GIF of (H, W, 3) uint8 frames, no side longer than GIF_SIDE, its last frame held for a second.

    All frames share one palette, made from a few of them: a frame then costs what has changed in it, in time and bytes.
    """
    factor = -(-max(frames[0].shape[:2]) // GIF_SIDE)
    pictures = [Image.fromarray(frame).reduce(factor) if factor > 1 else Image.fromarray(frame) for frame in frames]
    width, height = pictures[0].size
    some = pictures[:: max(1, len(pictures) // 8)][:8]
    mosaic = Image.new("RGB", (width, height * len(some)))
    for row, picture in enumerate(some):
        mosaic.paste(picture, (0, row * height))
    palette = mosaic.quantize(128)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    buffer = BytesIO()
    pictures[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=[FRAME_MILLISECONDS] * (len(pictures) - 1) + [1000],
        loop=0,
        optimize=False,
    )
    return buffer.getvalue()


def _write_gifs(result: Run, mode: str, episodes: Sequence[Episode]) -> list[str]:
    names = []
    for number, episode in enumerate(episodes):
        result.file("gifs").mkdir(exist_ok=True)
        name = f"gifs/{mode}-{number}.gif"
        atomic_write(result.file(name), write_gif(episode.frames))
        names.append(name)
    return names


def _row(mode: str, scores: dict[str, Any]) -> list[str]:
    rate = scores["success_rate"]
    return [
        mode,
        percent(rate["mean"], 1),
        percents(rate["low"], rate["high"], 1),
        f"{scores['return']['mean']:.3f}",
        f"{scores['length']['mean']:.1f}",
        *([f"{scores['achievements']['mean']:.2f}", percent(scores["score"]["mean"], 1)] if "score" in scores else []),
        *(f"{one['mean']:.3f}" for one in list(scores.get("metrics", {}).values())[:SHOWN_METRICS]),
    ]


def _own(modes: Mapping[str, dict[str, Any]]) -> list[str]:
    """The first of the env's own metrics, which tables show; evaluation.json has them all."""
    first: dict[str, Any] = next(iter(modes.values())).get("metrics", {})
    return [name.replace("_", " ") for name in first][:SHOWN_METRICS]
