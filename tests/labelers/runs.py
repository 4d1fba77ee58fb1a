"""Finished label runs of scripted models, small, on envs with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bkrl import envs
from bkrl.core.files import write_table
from bkrl.data.dataset import Dataset
from bkrl.data.schema import GOALS, PREFERENCES, PROGRAMS, RESPONSES
from bkrl.data.writer import DatasetWriter
from bkrl.labelers import code, goals, preferences, quality
from bkrl.labelers.asking import Responses, Sampling
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.material import env_card
from bkrl.runs.record import Run
from tests.experience import Config
from tests.labelers.scripted import Script, asker, plan_of

BABYAI = "BabyAI-Text-GoToLocal-RedBall-S20"


def babyai(path: Path, episodes: int = 6, length: int = 30) -> Dataset:
    """Views of a nearly empty room, whose captions nearly all differ."""
    rng = np.random.default_rng(1)
    run = Run.create(path, stage="collect", config=Config())
    actions = envs.env_spec(BABYAI).action_names
    writer = DatasetWriter(run, env_id=BABYAI, obs_shape=(7, 7, 3), action_names=actions, info={"language": "en"})
    caption = envs.captioner(BABYAI)
    for episode in range(episodes):
        views = np.zeros((length + 1, 7, 7, 3), np.uint8)
        views[..., 0] = 1
        views[:, 6, :, 0] = 0
        for number, (x, y) in enumerate(rng.integers(0, 6, (length + 1, 2))):
            views[number, x, y] = (rng.integers(5, 8), rng.integers(0, 6), 0)
        rewards = np.zeros(length, np.float32)
        rewards[-1] = episode % 2
        writer.add_episode(
            views,
            rng.integers(0, len(actions), length),
            rewards,
            caption(views),
            mission="go to the red ball",
            terminated=bool(episode % 2),
            truncated=not episode % 2,
            success=bool(episode % 2),
            seed=episode,
            checkpoint_step=0,
        )
    writer.close()
    run.finish(writer.outputs)
    return Dataset.open(path)


def finish(
    path: Path, dataset: Dataset, variant: str, table: list[dict[str, Any]], responses: Responses, facts: dict[str, Any]
) -> Path:
    name, schema = {
        "pref": ("preferences.parquet", PREFERENCES),
        "goal": ("goals.parquet", GOALS),
        "code": ("programs.parquet", PROGRAMS),
    }[variant]
    config = LabelConfig(dataset.path, variant=variant, out=path, llm="openai:scripted")  # type: ignore[arg-type]
    run = Run.create(path, stage="label", config=config, inputs={"dataset": dataset.path})
    write_table(run.file("responses.parquet"), pa.Table.from_pylist(responses.rows, schema=RESPONSES))
    write_table(run.file(name), pa.Table.from_pylist(table, schema=schema))
    run.finish(
        ["responses.parquet", name],
        variant=variant,
        env_id=dataset.env_id,
        llm="openai:scripted",
        quality=facts,
        table=quality.as_table(facts),
    )
    return path


def pref_run(path: Path, dataset: Dataset, script: Script, pairs: int, swap: str = "none", votes: int = 1) -> Path:
    card = env_card(dataset.env_id)
    drawn = preferences.draw_pairs(dataset, pairs, 3, seed=0)
    questions = preferences.questions_of(dataset, drawn, swap, votes)  # type: ignore[arg-type]
    answers = preferences.ask_pairs(asker(script), dataset, card, drawn, questions, Sampling())
    responses = Responses()
    table = preferences.rows(drawn, questions, answers, responses)
    facts = quality.of_pairs(dataset, card, table, responses.rows, by_rules=False)
    return finish(path, dataset, "pref", table, responses, facts)


def goal_run(path: Path, dataset: Dataset, script: Script, queries: int) -> Path:
    card = env_card(dataset.env_id)
    drawn = goals.draw_queries(dataset, queries, 2, 0)
    answers = goals.ask_goals(asker(script), dataset, card, drawn, 1, Sampling())
    responses = Responses()
    table = goals.rows(dataset, drawn, answers, responses)
    return finish(path, dataset, "goal", table, responses, quality.of_goals(table, responses.rows))


def code_run(path: Path, dataset: Dataset, script: Script, check: code.Checker, rounds: int) -> Path:
    validation = code.validation_set(dataset, 5, 0)
    plan = plan_of(dataset, rounds, card=env_card(dataset.env_id))
    candidates = code.write_programs(asker(script), plan, validation, check)
    responses = Responses()
    table = code.rows(validation, candidates, responses)
    return finish(path, dataset, "code", table, responses, quality.of_programs(table))
