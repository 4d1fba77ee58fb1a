"""evaluate --conditions: every cell runs, is played once, and what a policy cannot read is said in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bkrl.core.config import CollectConfig, EvaluateConfig, PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.reporter import Reporter
from bkrl.envs import env_spec
from bkrl.learn.settings import ReplayConfig
from bkrl.methods import TrainRsConfig
from bkrl.stages import collect, evaluate, train_rs
from bkrl.stages.evaluate import matrix, run
from bkrl.stages.evaluate.conditions import (
    SHIPPED,
    Condition,
    Conditions,
    env_of,
    kinds_of,
    read_conditions,
    with_options,
)
from bkrl.stages.evaluate.matrix import MatrixRow, summarised, table

MINE = """
title = "mine"
env = "BabyAI-MixedTrainLocal-v0@num_dists=0,room_size=5,task_kinds=goto+pickup,max_steps=8"
beside = ["random", "bot"]
also_first = 1
[[condition]]
name = "plain"
published = { somebody = 0.5 }
[[condition]]
name = "French"
language = "fr"
words = "invented-nouns"
[[condition]]
name = "nine"
env = "BabyAI-MixedTrainLocal-v0@num_dists=0,room_size=5,task_kinds=goto,max_steps=8,actions=augmented"
[[published]]
name = "them"
success = 0.75
"""


def trained(tmp_path_factory, alg: str, env: str, **settings) -> Path:
    out = tmp_path_factory.mktemp(alg) / alg
    how = {"steps": 64, "eval_every": 64, "eval_episodes": 1, **settings}
    return train_rs.run(TrainRsConfig(alg=alg, env=env, out=out, **how), Reporter()).path


@pytest.fixture(scope="module")
def symbolic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ppo = PPOConfig(num_envs=8, num_steps=8, num_minibatches=1)
    return trained(tmp_path_factory, "ppo", "BabyAI-GoToObjS4-v0", ppo=ppo)


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = "BabyAI-GoToObjS4-v0@actions=canonical"
    replay = ReplayConfig(num_envs=4, num_steps=4, batch_size=8)
    return trained(tmp_path_factory, "drrn", env, form="lamorel", observations=1, steps=16, replay=replay)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = "BabyAI-MixedTrainLocal-v0@actions=canonical"
    config = CollectConfig(env=env, explorer="bot", episodes=20, out=tmp_path_factory.mktemp("data") / "data")
    data = collect.run(config, Reporter()).path
    return trained(tmp_path_factory, "bc", env, data=data, network="recurrent", batch_size=16)


def rows_of(result) -> dict[tuple[str, str, str], dict]:
    rows = json.loads(result.file("evaluation.json").read_text())["conditions"]
    return {(row["agent"], row["condition"], row["mode"]): row for row in rows}


def test_a_policy_that_reads_is_measured_everywhere_and_goes_on_where_it_was(
    tmp_path: Path, reading: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    config = EvaluateConfig(policy=reading, conditions=str(file), out=tmp_path / "a", episodes=2)
    asked: list[str] = []
    play = matrix.play

    def counted(agent, envs, *how, **more):
        asked.append(envs.env_spec.env_id)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return play(agent, envs, *how, **more)

    monkeypatch.setattr(matrix, "play", counted)
    with pytest.raises(KeyboardInterrupt):
        run(config, Reporter())
    result = run(config, Reporter())
    cells = 3 * 2 * 2 - 2  # policy: conditions, modes and kinds; the last condition has one kind
    assert len(asked) == 1 + cells + 2 * (2 + 2 + 1)  # what was stopped was played again, and nothing else
    rows = rows_of(result)
    assert rows["policy", "French", "sampled"]["env"] == rows["policy", "plain", "sampled"]["env"]
    assert "actions=canonical" in rows["policy", "plain", "sampled"]["env"]
    assert rows["bot", "nine", "sampled"]["success"] == 1
    assert set(rows["policy", "plain", "greedy"]["kinds"]) == {"goto", "pickup"}
    assert rows["random", "plain", "sampled, first 1 of each kind"]["episodes"] == 2
    assert all(not row["refused"] for row in rows.values())
    episodes = pq.read_table(result.file("conditions.parquet")).to_pylist()
    assert len(episodes) == 2 * (len(asked) - 1)
    missions = {
        (row["seed"], row["mission"]) for row in episodes if row["kind"] == "goto" and row["condition"] != "nine"
    }
    assert len(missions) == 2  # the same episodes in all conditions, modes and for all agents
    header = result.facts["table"]["header"]
    assert result.facts["table"]["rows"][0][header.index("published")] == "somebody 50 %"
    assert result.facts["table"]["rows"][-1][:4] == ["them", "second-hand", "", "75.0 %"]
    assert not result.file("cells").exists()


def test_what_a_policy_cannot_read_is_said_in_a_sentence(tmp_path: Path, symbolic: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    config = EvaluateConfig(policy=symbolic, conditions=str(file), out=tmp_path / "a", episodes=1, mode="greedy")
    rows = rows_of(run(config, Reporter()))
    assert rows["policy", "plain", "greedy"]["success"] is not None
    assert rows["policy", "French", "greedy"]["refused"].endswith("so other words say nothing of it")
    refused = rows["policy", "nine", "greedy"]["refused"]
    assert refused == "it has 7 actions, and there are 9; train it in an env with @actions=augmented"
    modes = {mode for agent, _, mode in rows if agent == "random"}
    assert modes == {"sampled"}, "greedy random play took its first action for ever"


def test_shipped_conditions_have_the_published_axes() -> None:
    assert SHIPPED == ("balrog", "balrog-crafter", "crafter-score", "glam", "glam-goto")
    crafter = read_conditions("balrog-crafter")
    assert (crafter.measure, crafter.also_first) == ("progress", 10)
    assert env_of(crafter.conditions[0], "CrafterReward-v1") == "CrafterReward-v1@length=2000"
    assert env_of(crafter.conditions[0], "Crafter-Typed-Harder") == "Crafter-Typed-Original@length=2000"
    assert env_of(crafter.conditions[0], "Crafter-Typed-Easier") == "CrafterReward-v1@length=2000"  # has other actions
    glam = {one.name: one for one in read_conditions("glam").conditions}
    kinds = kinds_of(env_of(glam["no change"], "BabyAI-GoToLocal-v0@actions=canonical"))
    assert list(kinds) == ["goto", "pickup", "open", "putnext", "seq"]
    assert kinds["open"] == "BabyAI-MixedTrainLocal-v0@task_kinds=open,actions=canonical"
    assert env_of(glam["9 actions, go to"], "BabyAI-GoToLocal-v0@actions=canonical").endswith("actions=augmented")
    assert read_conditions("balrog").also_first == 10
    balrog = env_spec(env_of(read_conditions("balrog").conditions[0], "BabyAI-GoToLocal-v0"))
    assert balrog.env_id == "BabyAI-MixedTrainLocal-v0@num_dists=0,actions=canonical"
    assert balrog.action_names == ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["reading", "clone"])
def test_every_cell_of_glams_tests_runs(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Two episodes of each kind under each of its conditions, cut off after eight steps; random and bot beside."""
    conditions = read_conditions("glam")
    short = tuple(
        replace(
            one, envs=(with_options(env_of(one, "BabyAI-MixedTrainLocal-v0@actions=canonical"), {"max_steps": "8"}),)
        )
        for one in conditions.conditions
    )
    monkeypatch.setattr(evaluate, "read_conditions", lambda name: replace(conditions, conditions=short))
    run_dir = request.getfixturevalue(policy)
    config = EvaluateConfig(run_dir, conditions="glam", out=tmp_path / "a", episodes=2, mode="sampled")
    rows = rows_of(run(config, Reporter()))
    assert {condition for _, condition, _ in rows} == {one.name for one in short}
    for (agent, condition, _), row in rows.items():
        named = {one.name: one for one in short}[condition]
        cannot = agent == "policy" and policy == "clone" and (named.reworded or "actions=" in named.envs[0])
        if row["refused"]:
            assert cannot, (agent, condition, row["refused"])
        else:
            assert row["episodes"] == 2 * len(kinds_of(row["env"]))
    assert sum(not row["refused"] for row in rows.values()) > 2 * len(short)  # random, the bot, and more


def test_first_finished_counts_short_tasks_more_often() -> None:
    """The published random policy: 0.105 where kinds count alike, 0.136 of the first to finish."""
    measured = {"goto": (0.278, 53.8), "pickup": (0.14, 59.4), "open": (0.005, 127.6), "putnext": (0.013, 127.1),
                "seq": (0.087, 123.3)}  # fmt: skip
    found = {
        kind: [{"success": i < 1000 * rate, "length": length} for i in range(1000)]
        for kind, (rate, length) in measured.items()
    }
    row = summarised(MatrixRow("random", "", "sampled", ""), found)
    assert row.success == pytest.approx(0.105, abs=1e-3)
    assert row.first_finished == pytest.approx(0.141, abs=1e-3)


def test_a_share_of_achievements_has_an_interval_within_0_and_1_and_one_episode_has_none() -> None:
    """The table said "-6.3 to 16.3 %" of ten episodes, and "nan to –" of one."""
    episodes = [{"success": False, "length": 9, "unlocked": ["wood"] if i == 0 else []} for i in range(10)]
    rows = [
        summarised(MatrixRow("policy", "a", "sampled", ""), {"": some}, ["wood", "coal"], "progress")
        for some in (episodes, episodes[:1])
    ]
    assert rows[0].low == 0
    shown = table(rows, Conditions("t", (Condition("a"),), measure="progress"), "ppo", 1, None)
    assert [line[4] for line in shown["rows"]] == ["0.0 to 16.3 %", "–"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title = ", "is not TOML"),
        (f"title = {'[' * 3000}{']' * 3000}", "is not TOML"),
        ('\ufefftitle = "x"', "condition"),  # as an editor on Windows saves it
        ('title = "x"', "condition"),
        ('title = "x"\n[[conditions]]\nname = "a"', "'conditions' means nothing there. Did you mean 'condition'"),
        ('title = "x"\ncondition = []', "has no .*condition"),
        ('title = "x"\n[[condition]]\nname = "a"\n[[condition]]\nname = "a"', "names two conditions 'a'; each"),
        ('title = "x"\n[[condition]]\nname = "a"\nwords = "noun"', "condition 'a': There are no words 'noun'"),
        ('title = "x"\n[[condition]]\nname = "a"\nenv = "BabyAI-Nowhere"', "condition 'a': There is no"),
        ('title = "x"\n[[condition]]\nname = "a"\ncolour = "red"', "colour"),
        ('title = "x"\nbeside = ["ppo"]\n[[condition]]\nname = "a"', "random, bot, each once, not 'ppo'"),
        ('title = "x"\nbeside = ["bot", "bot"]\n[[condition]]\nname = "a"', "each once, not 'bot'"),
        ('title = "x"\n[[condition]]\nname = "a"\nenv = "Toy-Grid"', "is in Toy-Grid, of toy"),
        ('title = "x"\nmeasure = "progress"\n[[condition]]\nname = "a"', "has none; leave measure out"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(tmp_path: Path, symbolic: Path, text: str, says: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    config = EvaluateConfig(policy=symbolic, conditions=str(file), out=tmp_path / "a", episodes=1)
    with pytest.raises(InputError, match=says):
        run(config, Reporter())
    assert not (tmp_path / "a").exists()


def test_a_set_that_does_not_exist_is_refused(tmp_path: Path, symbolic: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'glam'"):
        run(EvaluateConfig(policy=symbolic, conditions="glma", out=tmp_path / "a"), Reporter())


def test_achievements_are_measured_where_a_set_asks_for_them(tmp_path):
    ppo = PPOConfig(num_envs=8, num_steps=8, num_minibatches=1)
    how = {"steps": 64, "eval_every": 64, "eval_episodes": 1, "ppo": ppo}
    config = TrainRsConfig(alg="ppo", env="CrafterReward-v1@length=40", out=tmp_path / "ppo", **how)
    policy = train_rs.run(config, Reporter()).path
    for measure in ("progress", "score"):
        path = tmp_path / f"{measure}.toml"
        path.write_text(
            f'title = "t"\nenv = "CrafterReward-v1@length=40"\nmeasure = "{measure}"\nalso_first = 2\n'
            'beside = ["bot"]\n[[condition]]\nname = "short"\n[[published]]\nname = "them"\nsuccess = 0.5\n'
        )
        done = run(EvaluateConfig(policy, out=tmp_path / measure, episodes=6, conditions=str(path)), Reporter())
        every = pq.read_table(done.path / "conditions.parquet").to_pylist()
        bot = json.loads((done.path / "evaluation.json").read_text())["conditions"][-1]
        assert bot["refused"] == "there is no bot in CrafterReward-v1@length=40"
        rows = {row["mode"]: row for row in done.facts["conditions"]}
        for mode in ("sampled", "greedy"):
            rates = rows[mode]["unlocked"]
            own = [one["unlocked"] for one in every if one["mode"] == mode]
            assert len(own) == rows[mode]["episodes"] == 6
            assert rates["collect_wood"] == sum("collect_wood" in names for names in own) / 6
            if measure == "progress":
                assert rows[mode]["success"] == pytest.approx(sum(map(len, own)) / 6 / 22)
        assert rows["sampled, first 2 of each kind"]["episodes"] == 2
        assert done.facts["table"]["header"][3] == measure
    plain = run(EvaluateConfig(policy, out=tmp_path / "plain", episodes=3, gifs=0), Reporter())
    assert plain.facts["modes"]["sampled"]["achievements"]["mean"] <= 22
    assert "score" in plain.facts["table"]["header"]


def test_the_language_in_which_a_policy_read_its_missions_is_no_other_words(tmp_path: Path, symbolic: Path) -> None:
    """`language = "en"`, written out, refused every policy that reads no text, as if English were new to it."""
    file = tmp_path / "mine.toml"
    file.write_text(MINE.replace('language = "fr"\nwords = "invented-nouns"', 'language = "en"'))
    config = EvaluateConfig(policy=symbolic, conditions=str(file), out=tmp_path / "a", episodes=1, mode="greedy")
    rows = rows_of(run(config, Reporter()))
    plain, english = rows["policy", "plain", "greedy"], rows["policy", "French", "greedy"]
    assert {**english, "condition": "plain"} == plain
