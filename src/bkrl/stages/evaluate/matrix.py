"""One policy under many conditions: each kind of task is played equally often, on the same seeds everywhere.

A cell is one agent in one condition, mode and kind of task. Its episodes are written when they are played, so a run
that is stopped goes on with the cells that are missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.agents.bot import BotAgent
from bkrl.agents.build import options_of
from bkrl.agents.play import MOST_AT_ONCE, play
from bkrl.agents.protocol import Agent
from bkrl.agents.random import RandomAgent
from bkrl.core.config import EvaluateConfig
from bkrl.core.errors import BkrlError, UsageError
from bkrl.core.files import atomic_write, plain, read_json, to_json
from bkrl.core.reporter import Reporter, percent, percents
from bkrl.envs import bot_of, env_spec, family, make_vec, options
from bkrl.runs.record import Run
from bkrl.stages.evaluate.conditions import Condition, Conditions, Measure, env_of, kinds_of, knows, with_options
from bkrl.stats.intervals import t_interval, wilson_interval
from bkrl.stats.scores import score_interval
from bkrl.text.wording import Wording

POLICY = "policy"


@dataclass(frozen=True)
class MatrixCell:
    """What is played: the episodes of `seed`, `seed` + 1, … in `env`."""

    agent: str
    condition: str
    mode: str
    kind: str
    env: str
    wording: dict[str, Any]
    seed: int
    episodes: int


@dataclass(frozen=True)
class MatrixRow:
    """One agent in one condition and mode.

    Attributes:
        refused: why there is no figure; "" where there is one.
        kinds: success rate of each kind of task.
        success, low, high: the mean over kinds of what is measured, and its 95 % interval.
        unlocked: of each achievement, in how many episodes it was unlocked.
        first_finished: what it would be of the first episodes to finish in envs that draw their kinds, which counts
            short tasks more often: Σ (s_k / l_k) / Σ (1 / l_k) for success s_k and mean length l_k of kind k.
        episodes: of all kinds.
        length: mean over kinds.
    """

    agent: str
    condition: str
    mode: str
    env: str
    refused: str = ""
    kinds: dict[str, float] | None = None
    success: float | None = None
    low: float | None = None
    high: float | None = None
    first_finished: float | None = None
    episodes: int = 0
    length: float | None = None
    unlocked: dict[str, float] | None = None


def fitted(name: str, policy: Agent, condition: Condition, env_id: str) -> Agent:
    """The agent of a name, made ready for a condition; UsageError, in a sentence, where it cannot be."""
    facts = env_spec(env_id)
    if name == "bot":
        if bot_of(facts.env_id) is None:
            raise UsageError(f"there is no bot in {env_id}")
        return BotAgent.of(facts.env_id)
    if name == "random" or isinstance(policy, RandomAgent):
        return RandomAgent(facts.env_id, facts.family, facts.action_names)
    reworded = policy.reworded(condition.wording if condition.reworded else policy.wording, facts.env_id)
    if reworded is not None:
        return reworded
    if condition.reworded and condition.wording != Wording(family(facts.family).mission_language(facts)):
        if "text" in policy.wants:
            raise UsageError("it cannot be given other words")
        what = "it reads its missions in the words of its training" if "mission" in policy.wants else "it reads no text"
        raise UsageError(f"{what}, so other words say nothing of it")
    if len(facts.action_names) != len(policy.action_names):
        chosen = options.split(facts.env_id)[1].get("actions", "")
        how = f"; train it in an env with @actions={chosen}" if chosen else ""
        raise UsageError(f"it has {len(policy.action_names)} actions, and there are {len(facts.action_names)}{how}")
    return policy


def played(
    policy: Agent, conditions: Conditions, config: EvaluateConfig, result: Run, reporter: Reporter
) -> tuple[list[MatrixRow], list[dict[str, Any]]]:
    """A row for each agent, condition and mode, and every episode."""
    modes = ("sampled", "greedy") if config.mode == "both" else (config.mode,)
    work: list[tuple[MatrixRow, Agent | None, list[MatrixCell]]] = []
    for condition in conditions.conditions:
        wording = condition.wording.to_json()
        for name in (POLICY, *conditions.beside):
            env_id = env_of(condition, policy.env_id)
            if name == "bot" and "actions" in knows(env_id):  # it plans with all of them
                env_id = with_options(env_id, {"actions": "all"})
            for mode in modes if name == POLICY else ("sampled",):  # random play is not greedy
                row = MatrixRow(name, condition.name, mode, env_id)
                try:
                    agent = fitted(name, policy, condition, env_id)
                except BkrlError as problem:
                    work.append((replace(row, refused=str(problem)), None, []))
                    continue
                cells = [
                    MatrixCell(name, condition.name, mode, kind, env, wording, config.seed, config.episodes)
                    for kind, env in kinds_of(env_id).items()
                ]
                work.append((row, agent, cells))
    rows: list[MatrixRow] = []
    every: list[dict[str, Any]] = []
    total, done = sum(len(cells) for _, _, cells in work) * config.episodes, 0
    with reporter.progress("evaluate", total, "episodes") as update:
        for row, who, cells in work:
            found: dict[str, list[dict[str, Any]]] = {}
            for cell in cells:
                assert who is not None
                path = result.file("cells") / f"{done:08d}.json"
                found[cell.kind] = _cell(cell, who, path, config, lambda ended, done=done: update(done + ended))  # type: ignore[misc]
                labels = {name: vars(cell)[name] for name in ("agent", "condition", "mode", "kind", "env")}
                every += [{**labels, **episode} for episode in found[cell.kind]]
                done += config.episodes
                update(done, f"{row.condition}, {row.mode}")
            rows += [row] if row.refused else _rows(row, found, conditions)
    return rows, every


def _cell(
    cell: MatrixCell, agent: Agent, path: Path, config: EvaluateConfig, tick: Callable[[int], None]
) -> list[dict[str, Any]]:
    """The episodes of a cell: those that an earlier start of this run has played, or played now."""
    described = plain(asdict(cell))
    if path.is_file() and (kept := read_json(path)).get("cell") == described:
        return list(kept["episodes"])
    names = family(env_spec(cell.env).family).achievements
    envs = make_vec(cell.env, min(cell.episodes, MOST_AT_ONCE), backend=config.backend, **options_of(agent))
    try:
        episodes: list[dict[str, Any]] = [
            {**e.figures, "unlocked": [names[i] for i in np.flatnonzero(e.unlocked)]}
            for e in play(agent, envs, cell.episodes, seed=cell.seed, greedy=cell.mode == "greedy", tick=tick)
        ]
    finally:
        envs.close()
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, to_json({"cell": described, "episodes": episodes}))
    return episodes


def _rows(row: MatrixRow, found: dict[str, list[dict[str, Any]]], conditions: Conditions) -> list[MatrixRow]:
    also_first, names = conditions.also_first, family(env_spec(row.env).family).achievements
    summary = partial(summarised, names=names, measure=conditions.measure)
    rows = [summary(row, found)]
    if also_first and also_first < min(map(len, found.values())):
        first = {kind: episodes[:also_first] for kind, episodes in found.items()}
        rows.append(summary(replace(row, mode=f"{row.mode}, first {also_first} of each kind"), first))
    return rows


def summarised(
    row: MatrixRow, found: dict[str, list[dict[str, Any]]], names: Sequence[str] = (), measure: Measure = "success"
) -> MatrixRow:
    """A row's figures from the episodes of each kind, of which there are equally many.

    `names`: of the achievements. Kinds and what finishes first are told of success alone.
    """
    every = [e for episodes in found.values() for e in episodes]
    unlocked = np.array([[name in e.get("unlocked", ()) for name in names] for e in every])
    if measure != "success":
        interval = t_interval(unlocked.mean(1)).clipped() if measure == "progress" else score_interval(unlocked)
        return replace(
            row,
            success=interval.estimate,
            low=interval.low,
            high=interval.high,
            episodes=len(every),
            length=float(np.mean([e["length"] for e in every])),
            unlocked=dict(zip(names, unlocked.mean(0).tolist(), strict=True)),
        )
    success = {kind: float(np.mean([e["success"] for e in episodes])) for kind, episodes in found.items()}
    lengths = np.array([np.mean([e["length"] for e in episodes]) for episodes in found.values()])
    rates, count = np.array(list(success.values())), len(every)
    low, high = wilson_interval(sum(e["success"] for e in every), count)
    return replace(
        row,
        kinds=success,
        success=float(rates.mean()),
        low=low,
        high=high,
        first_finished=float((rates / lengths).sum() / (1 / lengths).sum()),
        episodes=count,
        length=float(lengths.mean()),
    )


def table(rows: Sequence[MatrixRow], conditions: Conditions, alg: str, steps: int | None, seconds: float | None) -> Any:
    """Header and rows for people: ours, then what was published."""
    published = {one.name: one.published for one in conditions.conditions}
    header = ["agent", "condition", "mode", conditions.measure, "95 % interval", "first finished", "by kind"]
    header += ["episodes", "length", "env steps", "seconds"] + (["published"] if any(published.values()) else [])
    lines = []
    for row in rows:
        own = row.agent == POLICY
        line = [alg if own else row.agent, row.condition, row.mode]
        if row.refused:
            line += [row.refused, *[""] * (len(header) - 4)]
        else:
            kinds = ", ".join(f"{kind} {percent(rate)}" for kind, rate in (row.kinds or {}).items() if kind)
            line += [percent(row.success, 1), percents(row.low, row.high, 1)]
            line += ["" if row.first_finished is None else percent(row.first_finished, 1)]
            line += [kinds, str(row.episodes), f"{row.length:.1f}"]
            line += [f"{steps or 0:,}" if own else "0", f"{seconds:,.0f}" if own and seconds is not None else "0"]
            if "published" in header:
                line.append(", ".join(f"{who} {percent(rate)}" for who, rate in published[row.condition].items()))
        lines.append(line)
    for name, success, error in conditions.published:
        given = percent(success, 1) + ("" if error is None else f" ± {100 * error:.1f}")
        lines.append([name, "second-hand", "", given, *[""] * (len(header) - 4)])
    return {"header": header, "rows": lines}
