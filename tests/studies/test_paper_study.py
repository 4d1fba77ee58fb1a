"""studies/paper.toml: the published grid and its controls, counted cell by cell, without running any."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bkrl.envs import env_spec
from bkrl.studies.study import Study, load_study

SEEDS, METHODS = 10, 15
SIZES = [f"BabyAI-Text-GoToLocal-{target}-S{size}" for target in ("RedBall", "PurpleKey") for size in (23, 25, 28, 30)]
BABYAI = [
    *(f"BabyAI-Text-GoToLocal-{target}-S20" for target in ("RedBall", "RedKey", "PurpleBall", "PurpleKey")),
    *SIZES,
    "BabyAI-Text-GoTo-RedBallBlueBox-S20",
    "BabyAI-Text-GoTo-PurpleBallGreenKey-S20",
    "BabyAI-Text-PickUp-RedBall-S20",
    "BabyAI-Text-PickUp-PurpleKey-S20",
]
CRAFTER = [f"Crafter-Text-{task}" for task in ("PlaceCraftingTable", "MakeWoodPickAxe", "CollectDrink", "EatCow")]


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study("paper", Path("logs/paper"))


def test_every_published_task_with_every_method_and_seed(study: Study) -> None:
    cells = Counter((cell.config.env, cell.config.seed) for cell in study.training)
    assert set(cells) == {(env, seed) for env in (*BABYAI, *CRAFTER) for seed in range(1, SEEDS + 1)}
    assert set(cells.values()) == {METHODS}
    assert len(study.training) == len(study.evaluation) == (16 + 4) * SEEDS * METHODS == 3000
    assert len({cell.run_dir for cell in study.cells}) == len(study.cells)


def test_every_env_exists(study: Study) -> None:
    for env in (*BABYAI, *CRAFTER, *{cell.config.env for cell in study.preparation if cell.stage == "collect"}):
        assert env_spec(env).family == ("crafter" if env.startswith("Crafter") else "babyai")


def test_budgets_are_the_published_ones(study: Study) -> None:
    assert {cell.steps for cell in study.training if cell.config.env in BABYAI} == {5_000_000}
    assert {cell.steps for cell in study.training if cell.config.env in CRAFTER} == {2_000_000}


def test_all_controls_are_there(study: Study) -> None:
    controls = {
        family: Counter(
            (cell.config.labels.name.removeprefix("label-"), cell.config.control)
            for cell in study.preparation
            if cell.stage == "train_rm" and cell.run_dir.parent.name == family
        )
        for family in ("babyai", "crafter")
    }
    expected = {(variant, control) for variant in ("code", "pref", "goal") for control in ("none", "random", "zero")}
    expected |= {("pref", "shuffled"), ("goal", "shuffled"), ("bk-pref-coin", "none"), ("bk-pref-return", "none")}
    assert set(controls["babyai"]) == set(controls["crafter"]) == expected
    assert set(controls["babyai"].values()) == {1}
    coin = [c.config.llm for c in study.preparation if c.stage == "label" and c.run_dir.name == "label-bk-pref-coin"]
    assert coin == ["random", "random"]
    collected = [cell.config.env for cell in study.preparation if cell.stage == "collect"]
    assert collected == ["BabyAI-Text-GoToLocal-Pretraining-S20", "Crafter-Text-Reward"]
