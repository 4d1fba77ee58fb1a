"""The study file: what its tables mean, what is shared, and what is refused before anything runs."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from bkrl.cli.main import run_command
from bkrl.core.errors import InputError, UsageError
from bkrl.envs import env_spec
from bkrl.studies.cells import needs
from bkrl.studies.executors import shell
from bkrl.studies.study import load_study, plan, presets


def study(text, out):
    return plan(tomllib.loads(text), out)


SECTION = """
[[world]]
name = "w"
seeds = [1, 2]
"""


def test_studies_are_shipped():
    assert {"smoke", "laptop"} <= set(presets())


@pytest.mark.parametrize(
    "preset",
    # tests/studies/test_paper_study.py and test_planning.py read the first two in the fast run; houses take long
    [pytest.param(one, marks=pytest.mark.slow) if one in ("paper", "hard", "housekeep") else one for one in presets()],
)
def test_every_shipped_study_is_well_formed(preset, tmp_path):
    study = load_study(preset, tmp_path)
    assert all(cell.run_dir.is_relative_to(tmp_path) for cell in study.cells)
    assert study.training
    for cell in study.training:
        shaped = cell.config.alg.startswith("bk-") or "+pbrs" in cell.run_dir.name or "+advice" in cell.run_dir.name
        assert bool(getattr(cell.config, "potential", None)) == shaped


def test_a_control_is_trained_like_its_method_on_its_own_potential(tmp_path):
    env_spec = {"name": "w", "variants": ["pref"], "algs": ["ppo", "bk-pref", "bk-pref:shuffled"], "seeds": [1]}
    study = plan({"title": "", "minutes": 1, "world": [env_spec]}, tmp_path)
    made = {c.config.run_dir: c.config.control for c in study.preparation if c.stage == "train_rm"}
    assert made == {tmp_path / "w" / "rm-pref": "none", tmp_path / "w" / "rm-pref-shuffled": "shuffled"}
    plain, pref, shuffled = (cell.config for cell in study.training)
    assert not hasattr(plain, "potential")
    assert pref.potential == tmp_path / "w" / "rm-pref"
    assert (shuffled.alg, shuffled.potential) == ("bk-pref", tmp_path / "w" / "rm-pref-shuffled")
    assert shuffled.run_dir == tmp_path / "w" / "bk-pref-shuffled-s1"


def test_a_misspelt_setting_is_named(tmp_path):
    env_spec = {"name": "w", "variants": [], "algs": ["ppo"], "seeds": [1], "collect": {}, "train_rs": {"stepz": 3}}
    with pytest.raises(UsageError, match="'stepz' in train-rs. Did you mean 'steps'"):
        plan({"title": "", "minutes": 1, "world": [env_spec]}, tmp_path)
    with pytest.raises(UsageError, match="no 'colect'. Did you mean 'collect'"):
        plan({"title": "", "minutes": 1, "world": [env_spec | {"colect": {}}]}, tmp_path)


def test_entries_with_settings_of_their_own_share_a_potential(tmp_path):
    found = study(
        SECTION
        + """
algs = ["bk-pref", { name = "bk-pref+fast", alg = "bk-pref", train_rs = { ppo = { learning_rate = 0.01 } } },
        { name = "zero", alg = "bk-pref", control = "zero" },
        { name = "coin", alg = "bk-pref", label = { llm = "random" } }]
train_rs = { steps = 9, ppo = { num_envs = 8, learning_rate = 0.5 } }
""",
        tmp_path,
    )
    root = tmp_path / "w"
    assert [c.run_dir.name for c in found.preparation] == [
        "data", "label-pref", "rm-pref", "rm-pref-zero", "label-coin", "rm-coin"
    ]  # fmt: skip
    by_name = {c.run_dir.name: c.config for c in found.training}
    assert by_name["bk-pref+fast-s2"].potential == by_name["bk-pref-s1"].potential == root / "rm-pref"
    assert by_name["zero-s1"].potential == root / "rm-pref-zero"
    assert by_name["coin-s1"].potential == root / "rm-coin"
    fast, plain = by_name["bk-pref+fast-s1"], by_name["bk-pref-s1"]
    assert (fast.steps, fast.ppo.num_envs, fast.ppo.learning_rate) == (9, 8, 0.01)
    assert (plain.steps, plain.ppo.num_envs, plain.ppo.learning_rate) == (9, 8, 0.5)
    llms = {c.run_dir.name: c.config.llm for c in found.preparation if c.stage == "label"}
    assert llms == {"label-pref": "rules", "label-coin": "random"}


def test_draws_of_labels_are_crossed_with_seeds_and_plain_ppo_is_not_repeated(tmp_path):
    found = study(SECTION + 'algs = ["ppo", "bk-goal"]\nlabel_seeds = [4, 5]\n', tmp_path)
    assert {c.run_dir.name: c.config.seed for c in found.preparation} == {
        "data": 1, "label-goal-l4": 4, "rm-goal-l4": 4, "label-goal-l5": 5, "rm-goal-l5": 5
    }  # fmt: skip
    trained = {c.run_dir.name: c.config for c in found.training}
    assert set(trained) == {"ppo-s1", "ppo-s2", "bk-goal-l4-s1", "bk-goal-l4-s2", "bk-goal-l5-s1", "bk-goal-l5-s2"}
    assert trained["bk-goal-l5-s2"].potential.name == "rm-goal-l5"
    assert trained["bk-goal-l5-s2"].seed == 2
    assert {c.config.policy for c in found.evaluation} == {c.run_dir for c in found.training}


def test_datasets_are_crossed_with_draws_of_labels_and_seeds(tmp_path):
    text = SECTION + 'algs = ["ppo", "bk-goal", "bk-goal:zero"]\ncollect_seeds = [8, 9]\nlabel_seeds = [4, 5]\n'
    found = study(text, tmp_path)
    made = {c.run_dir.name: c.config for c in found.preparation}
    assert {name: config.seed for name, config in made.items() if "zero" not in name} == {
        "data-d8": 8, "label-goal-d8-l4": 4, "rm-goal-d8-l4": 4, "label-goal-d8-l5": 5, "rm-goal-d8-l5": 5,
        "data-d9": 9, "label-goal-d9-l4": 4, "rm-goal-d9-l4": 4, "label-goal-d9-l5": 5, "rm-goal-d9-l5": 5,
    }  # fmt: skip
    assert made["label-goal-d9-l4"].dataset.name == "data-d9"
    assert made["rm-goal-zero-d9-l5"].dataset.name == "data-d9"
    assert made["rm-goal-zero-d9-l5"].labels.name == "label-goal-d9-l5"
    trained = {c.run_dir.name: c.config for c in found.training}
    assert len(trained) == 2 + 2 * 2 * 2 * 2  # ppo once for each seed
    assert trained["bk-goal-d9-l5-s2"].potential.name == "rm-goal-d9-l5"
    assert trained["bk-goal-d9-l5-s2"].seed == 2


def test_constant_advice_is_an_entry_like_any_control(tmp_path):
    trained = study(SECTION + 'algs = ["bk-pref:constant", "bk-pref:zero"]\n', tmp_path).training
    assert {c.run_dir.name: (c.config.potential.name, c.config.shaping) for c in trained if c.config.seed == 1} == {
        "bk-pref-constant-s1": ("rm-pref-constant", "advice"),
        "bk-pref-zero-s1": ("rm-pref-zero", "pbrs"),
    }


def test_a_potential_of_ones_own_is_named_by_its_entry(tmp_path):
    entry = '{ name = "ball", alg = "bk-own", train_rs = { potential = "logs/ball" } }'
    planned = study(SECTION + f"algs = [{entry}]\n", tmp_path)
    assert planned.preparation == []
    assert {str(cell.config.potential) for cell in planned.training} == {"logs/ball"}


def test_pictures_are_drawn_for_the_first_seed_of_each_entry_alone(tmp_path):
    text = SECTION + 'algs = ["ppo", "bk-pref"]\nlabel_seeds = [1, 2]\nevaluate = { gifs = 3 }\n'
    drawn = {cell.run_dir.name: cell.config.gifs for cell in study(text, tmp_path).evaluation}
    assert {name for name, gifs in drawn.items() if gifs} == {"eval-ppo-s1", "eval-bk-pref-l1-s1"}
    assert drawn["eval-ppo-s1"] == 3
    assert len(drawn) == 6


def test_several_tasks_stand_on_one_collection_and_one_labelling(tmp_path):
    found = study(
        SECTION
        + """
algs = ["ppo", "bk-pref"]
train_rs = { steps = 5, env = "A" }

[[world.task]]
name = "red"

[[world.task]]
name = "key"
algs = ["bk-pref", "bk-goal"]
seeds = [7]
train_rs = { env = "B" }
evaluate = { episodes = 3 }
""",
        tmp_path,
    )
    root = tmp_path / "w"
    assert [c.stage for c in found.preparation] == ["collect", "label", "train_rm", "label", "train_rm"]
    where = {c.run_dir.relative_to(root).as_posix(): (c.config.env, c.config.steps) for c in found.training}
    assert where == {
        "red/ppo-s1": ("A", 5), "red/bk-pref-s1": ("A", 5), "red/ppo-s2": ("A", 5), "red/bk-pref-s2": ("A", 5),
        "key/bk-pref-s7": ("B", 5), "key/bk-goal-s7": ("B", 5),
    }  # fmt: skip
    assert {getattr(c.config, "potential", None) for c in found.training} == {None, root / "rm-pref", root / "rm-goal"}
    assert [c.config.episodes for c in found.evaluation if c.run_dir.parent.name == "key"] == [3, 3]


def test_an_env_of_plain_ppo_needs_no_dataset(tmp_path):
    assert study(SECTION + 'algs = ["ppo"]\n', tmp_path).preparation == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('algs = ["bk-prf"]', "Did you mean 'bk-pref'"),
        ('algs = ["bk-pref:shufled"]', "Did you mean 'shuffled'"),
        ('algs = ["ppo:zero"]', "ppo uses no labels"),
        ('algs = ["bk-own"]', "'bk-own' needs a potential of your own"),
        ('algs = ["bk-own:zero"]', "needs a potential of your own"),
        ('algs = ["ppo", "ppo"]', "'ppo' stands twice in algs"),
        ('algs = ["ppo", { name = "PPO", alg = "ppo" }]', "'PPO' stands twice"),
        ('algs = [{ name = "../x", alg = "ppo" }]', "of the entry of algs will not do for a folder"),
        ('algs = [{ name = "nul", alg = "ppo" }]', "will not do for a folder"),
        ('algs = [{ alg = "ppo" }]', "will not do for a folder"),
        ('algs = [{ name = "a", alg = "ppo", trainrs = {} }]', "Did you mean 'train_rs'"),
        ('algs = [3]', "a name or a table, not 3"),
        ('algs = "ppo"', "needs algs = "),
        ('algs = ["bk-goal"]\nvariants = ["pref"]', "add \"goal\" to the variants"),
        ('algs = ["ppo"]\nvariants = ["prefs"]', "Did you mean 'pref'"),
        ('algs = ["ppo"]\nlabel_seeds = [1, 1]', "'1' stands twice in label_seeds"),
        ('algs = ["ppo"]\ncollect_seeds = 2', "collect_seeds must be a list of seeds"),
        ('algs = ["ppo"]\nlabel_seeds = 2', "list of seeds"),
        ('algs = ["bk-pref"]\ncollect_shards = 2', "leave collect_shards out"),
        ('algs = ["bk-pref"]\nlabel_shards = 2', "leave label_shards out"),
        ('algs = ["ppo"]\ntrain_rs = 3', "Settings are a table"),
        ('algs = ["ppo"]\n[[world]]\nname = "v"', "The section v needs algs"),
        ('algs = ["ppo"]\ntrain_rs = { steps = "many" }', "must be of type int, not 'many'"),
        ('algs = ["ppo"]\ntrain_rs = { steps = 0 }', "at least 1, not 0"),
        ('algs = ["ppo"]\ntrain_rs = { seed = 3 }', "decided by the study"),
        ('algs = ["ppo"]\ntrain_rs = { network = "compakt" }', "Did you mean 'compact'"),
        ('algs = ["ppo"]\ntrain_rs = { ppo = { gama = 1 } }', "'gama' in ppo. Did you mean 'gamma'"),
        ('algs = ["ppo"]\n[[world.task]]\nname = "ppo-s1"\n[[world.task]]\nname = "ppo-S1"', "stands twice"),
        ('algs = ["bk-pref"]\n[[world.task]]\nname = "data"', "would lie inside another run"),
        ('algs = ["ppo"]\n[[world.task]]\nname = "a"\nsteps = 3', "A task has no 'steps'"),
        ('algs = ["ppo"]\nvariants = 3', "are a list"),
        ('algs = ["ppo"]\ntrain_rs = { reward_scale = nan }', "must be a finite number, not nan"),
        ('algs = ["ppo"]\ntrain_rs = { pref = { steps = 3 } }', "There is no setting 'pref'"),
        ('algs = ["bk-code"]\nlabel = { nmu = 3 }', "There is no setting 'nmu' in label. Did you mean 'num'"),
        ('algs = ["ppo"]\ntrain_rs = { fresh = true }', "'fresh' of train_rs is decided by the study"),
        ('algs = ["bk-pref"]\nlabel = { dry_run = true }', "'dry_run' of label is decided by the study"),
        ('algs = [{ name = "a", alg = "bk-pref", label = { num = 1979-01-01 } }]', "must be of type int"),
        ('algs = ["ppo"]\n[[world]]\nname = "sweep"\nalgs = ["ppo"]\nseeds = [1]', "would lie inside another run"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_before_anything_runs(tmp_path, text, sentence):
    with pytest.raises(UsageError) as caught:
        study(SECTION + text + "\n", tmp_path)
    assert sentence in str(caught.value)


def test_study_files_that_are_not_there_or_not_toml(tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'smoke'"):
        load_study("smok", tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_study(str(tmp_path / "none.toml"), tmp_path)
    (tmp_path / "bad.toml").write_text("title = ")
    with pytest.raises(InputError, match="is not TOML"):
        load_study(str(tmp_path / "bad.toml"), tmp_path)
    (tmp_path / "bad.toml").write_bytes('title = "Φ"'.encode("utf-16"))
    with pytest.raises(InputError, match="is not text in UTF-8"):
        load_study(str(tmp_path / "bad.toml"), tmp_path)
    (tmp_path / "marked.toml").write_bytes((SECTION + 'algs = ["ppo"]').encode("utf-8-sig"))
    assert load_study(str(tmp_path / "marked.toml"), tmp_path).cells


def test_what_a_study_says_of_itself_is_checked_too(tmp_path):
    for line, said in (
        ("title = 3", "title must be of type str, not 3"),
        ('minutes = "many"', "minutes must be of type float, not 'many'"),
        ("minutes = nan", "minutes must be a finite number, not nan"),
        ("minutes = 1e308", "minutes must be at most 1e\\+07, not"),
        ('slurm = "yes"', "slurm must be a table, not 'yes'"),
    ):
        with pytest.raises(UsageError, match=f"A study's {said}"):
            study(line + SECTION + 'algs = ["ppo"]', tmp_path)
    with pytest.raises(UsageError, match="at least one"):
        study("", tmp_path)


@pytest.mark.parametrize("stage", ["collect", "train_rs", "evaluate"])
def test_an_env_that_does_not_exist_is_said_before_anything_runs(tmp_path, capsys, stage):
    name = "BabyAI-Text-GoToLocal-RedBal-S20"
    text = SECTION + f'algs = ["ppo"]\nvariants = ["code"]\n[world.{stage}]\nenv = "{name}"\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(UsageError, match=rf"{stage} in .*'{name}'\. Did you mean 'BabyAI-Text-GoToLocal-RedBall-S20'"):
        load_study(str(tmp_path / "s.toml"), tmp_path)
    for flags in (["--dry-run"], ["--executor", "print"], []):
        assert run_command(["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o"), *flags]) == 2
        assert "Did you mean" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_what_is_printed_is_json_where_that_is_asked_for(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(SECTION + 'algs = ["ppo"]\n')
    words = ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o"), "--executor", "print"]
    assert run_command(words) == 0
    printed = capsys.readouterr().out
    assert "bkrl train" in printed
    assert run_command([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"script": printed}


def test_an_annotator_that_does_not_exist_is_said_before_anything_runs(tmp_path, capsys):
    for llm, said in (("rulez", "There is no llm 'rulez'. Did you mean 'rules'"), ("local:x", "There is no model 'x'")):
        text = SECTION + f'algs = ["bk-code"]\nlabel = {{ llm = "{llm}" }}\n'
        (tmp_path / "s.toml").write_text(text)
        with pytest.raises(UsageError, match=f"label in .*: {said}"):
            load_study(str(tmp_path / "s.toml"), tmp_path)
    assert run_command(["reproduce", "--llm", "local:x", "--out", str(tmp_path / "o")]) == 2
    assert "There is no model 'x' in the catalogue" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("algs", "changed", "there"),
    [
        ('["bk-code"]', {"collect": "Crafter-Text-CollectCoal"}, "train_rs in .*Crafter-Text-CollectCoal .crafter."),
        ('["bc"]', {"demonstrations": "Crafter-Text-CollectCoal"}, "train_rs in .*Crafter-Text-CollectCoal .crafter."),
        ('["ppo"]', {"evaluate": "Crafter-Text-CollectCoal"}, "evaluate in .*GoToLocal-RedBall-S20 .babyai."),
    ],
)
def test_envs_of_two_kinds_in_one_chain_are_said_before_anything_runs(tmp_path, algs, changed, there):
    text = SECTION + f"algs = {algs}\n" + "".join(f'{stage} = {{ env = "{env}" }}\n' for stage, env in changed.items())
    (tmp_path / "s.toml").write_text(text + 'train_rs = { env = "BabyAI-Text-GoToLocal-RedBall-S20" }\n')
    with pytest.raises(UsageError, match=f"{there}, whose observations or actions are others"):
        load_study(str(tmp_path / "s.toml"), tmp_path)


def test_the_envs_that_docs_name_exist():
    text = Path("docs/studies.md").read_text()
    named = set(re.findall(r'env = "([^"]+)"', text))
    assert len(named) > 2
    for env in named:
        env_spec(env)


LANGUAGE = """
[[world]]
name = "w"
seeds = [3]
collect = { env = "BabyAI-MixedTrainLocal-v0@task_kinds=goto", explorer = "random" }
demonstrations = { explorer = "bot", episodes = 7 }
lm_make = { size = "d32" }
models = [{ name = "P0", steps = 0 }, { name = "P2", clone = true, clone_episodes = 5 }]
methods = { glam = { lm = { window = 1 }, steps = 5 } }
train_rs = { env = "BabyAI-MixedTrainLocal-v0@task_kinds=goto", steps = 9 }
"""


def test_a_study_makes_its_language_models_and_what_starts_from_them(tmp_path):
    entries = """algs = [
        { name = "clone", alg = "bc", lm = "P0" }, { name = "cloned", alg = "glam", lm = "P0", after = "clone" },
        { name = "shaped", alg = "glam", lm = "P2", potential = "pref", train_rs = { steps = 4 } }, "random"]"""
    found, root = study(LANGUAGE.replace("seeds", entries + "\nseeds"), tmp_path), tmp_path / "w"
    cells = {cell.run_dir.name: cell for cell in found.cells}
    made = {name: cells[f"lm-{name}"].config for name in ("P0", "P2")}
    assert (made["P0"].steps, made["P0"].size, made["P0"].clone) == (0, "d32", None)
    assert (made["P2"].clone, made["P2"].clone_episodes) == (root / "demonstrations", 5)
    assert made["P2"].from_ == (root / "data", root / "demonstrations")
    shown = cells["demonstrations"].config
    assert (shown.explorer, shown.episodes, shown.language) == ("bot", 7, "en")  # as its run records it
    clone, cloned, shaped = (cells[f"{name}-s3"].config for name in ("clone", "cloned", "shaped"))
    assert (clone.data, clone.lm.lm) == (root / "demonstrations", f"{root}/lm-P0")
    assert (cloned.init_from, cloned.potential, cloned.steps, cloned.lm.window) == (root / "clone-s3", None, 5, 1)
    assert (shaped.init_from, shaped.potential, shaped.steps) == (None, root / "rm-pref", 4)
    assert cells["random-s3"].config.steps == 9
    needed = needs(found.cells)
    assert set(needed[root / "cloned-s3"]) == {root / "clone-s3", root / "lm-P0"}
    assert set(needed[root / "shaped-s3"]) == {root / "rm-pref", root / "lm-P2"}
    assert set(needed[root / "lm-P2"]) == {root / "data", root / "demonstrations"}
    commands = shell.script(found.cells, needed)
    assert f"bkrl lm make --from {root}/data --from {root}/demonstrations --out {root}/lm-P2" in commands
    assert f"--init-from {root}/clone-s3" in commands


EXPLORED = """
[[world]]
name = "explore"
algs = [{ name = "free", alg = "ellm" }]
seeds = [1, 2]

[[world]]
name = "task"
algs = [
    { name = "tuned", alg = "ellm", after = "explore/free" },
    { name = "led", alg = "ellm", guide = "explore/free" },
]
seeds = [2]
"""


def test_an_entry_after_one_with_a_potential_goes_on_from_its_run_of_the_same_draw():
    drawn = """[[world]]
name = "w"
seeds = [1]
collect_seeds = [1, 2]
label_seeds = [3]
collect = { env = "Toy-Chain" }
train_rs = { env = "Toy-Chain" }
algs = [
    { name = "a", alg = "glam", potential = "pref" }, { name = "b", alg = "glam", potential = "pref", after = "a" },
    { name = "c", alg = "glam", after = "a" },
]
"""
    trained = study(drawn, Path("out")).training
    assert {cell.run_dir.name: cell.config.init_from and cell.config.init_from.name for cell in trained} == {
        "a-d1-l3-s1": None, "b-d1-l3-s1": "a-d1-l3-s1", "c-s1": "a-d1-l3-s1",
        "a-d2-l3-s1": None, "b-d2-l3-s1": "a-d2-l3-s1",
    }  # fmt: skip


def test_a_policy_may_start_from_one_of_another_env_or_be_guided_by_it(tmp_path):
    found, free = study(EXPLORED, tmp_path), tmp_path / "explore" / "free-s2"
    cells = {cell.run_dir.name: cell.config for cell in found.training}
    assert (cells["tuned-s2"].init_from, cells["tuned-s2"].guide) == (free, None)
    assert (cells["led-s2"].init_from, cells["led-s2"].guide) == (None, free)
    needed = needs(found.cells)
    assert all(free in needed[tmp_path / "task" / name] for name in ("tuned-s2", "led-s2"))
    for other in (
        EXPLORED.replace("seeds = [1, 2]", "seeds = [1]"),
        EXPLORED.replace('"explore/free"', '"later/free"'),
    ):
        with pytest.raises(UsageError, match="no entry above it has such a run"):
            study(other, tmp_path)


@pytest.mark.parametrize("after", ["w/two/a", "w/one/b", "w/a", "w/one/c", "w/two/c"])
def test_an_entry_begins_with_none_of_its_own_section_that_is_not_above_it(after: str, tmp_path: Path):
    """SECTION/NAME of the own section was not looked at: of none, of itself or of one below, all cells were blocked."""
    train = {"env": "BabyAI-Text-GoToLocal-RedBall-S20", "steps": 2048}
    own = [{"name": "b", "alg": "ppo", "after": after}, "ppo", {"name": "c", "alg": "ppo"}]
    tasks = [{"name": "one", "algs": [{"name": "a", "alg": "ppo"}]}, {"name": "two", "algs": own}]
    world = {"name": "w", "seeds": [1, 2], "train_rs": train, "task": tasks}
    with pytest.raises(UsageError, match=rf"w/two/b-s1 begins with .*{after}-s1, and no entry above it has such a run"):
        plan({"world": [world]}, tmp_path)
    own[0]["after"] = "w/one/a"
    (begun,) = [cell for cell in plan({"world": [world]}, tmp_path).training if cell.run_dir.name == "b-s2"]
    assert begun.config.init_from == tmp_path / "w" / "one" / "a-s2"


def test_a_policy_from_before_may_lie_in_the_folder_of_the_study():
    """With --out logs those already in logs were taken for runs of the study that are missing."""
    begins = {"name": "b", "alg": "ppo", "train_rs": {"init_from": "logs/before-s1"}}
    world = {"name": "w", "seeds": [1], "train_rs": {"env": "BabyAI-Text-GoToLocal-RedBall-S20"}, "algs": [begins]}
    (cell,) = plan({"world": [world]}, Path("logs")).training
    assert cell.config.init_from == Path("logs/before-s1")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"label": {"nosuch": 1}}, "There is no setting 'nosuch' in label"),
        ({"label": {"goal": {"nmu": 3}}}, "There is no setting 'nmu'"),
        ({"train_rm": {"epochs": "many"}}, "'epochs' in train-rm"),
        ({"lm_make": {"size": "d999"}}, "'size' in lm-make"),
        ({"methods": {"bk-code": {"shapign": "x"}}}, "There is no setting 'shapign'"),
    ],
)
def test_a_table_that_no_entry_uses_is_checked_too(table, said):
    """A wrong setting was found when somebody added the entry that needs it."""
    world = {"name": "w", "seeds": [1], "train_rs": {"env": "BabyAI-Text-GoToLocal-RedBall-S20"}, "algs": ["ppo"]}
    with pytest.raises(UsageError, match=said):
        plan({"world": [world | table]}, Path("logs"))


def test_sections_may_share_their_tasks(tmp_path):
    task = [{"name": name, "train_rs": {"env": f"BabyAI-Text-GoToLocal-{name}-S20"}} for name in ("RedBall", "RedKey")]
    first, second = ({"name": name, "algs": ["ppo"], "seeds": [1]} for name in ("first", "second"))
    twice = plan({"world": [first | {"task": task}, second | {"task": task}]}, tmp_path)
    assert plan({"world": [first | {"tasks": "second"}, second | {"task": task}]}, tmp_path) == twice
    with pytest.raises(UsageError, match="tasks of first is 'secnd'. Did you mean 'second'"):
        plan({"world": [first | {"tasks": "secnd"}, second | {"task": task}]}, tmp_path)
    with pytest.raises(UsageError, match="first has tasks of its own, and those of second"):
        plan({"world": [first | {"task": task, "tasks": "second"}, second | {"task": task}]}, tmp_path)
    with pytest.raises(UsageError, match="The name None of the world will not do for a folder"):
        plan({"world": [{"task": task, "tasks": "second"}, second | {"task": task}]}, tmp_path)
    with pytest.raises(UsageError, match=r"The name \['second'\] of the world will not do for a folder"):
        plan({"world": [first | {"tasks": "second"}, second | {"name": ["second"], "task": task}]}, tmp_path)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ('{ name = "a", alg = "glam", after = "b" }', "begins after 'b', so an entry of that name must stand above"),
        ('{ name = "a", alg = "glam", lm = "P7" }', "lm of 'a' is 'P7'."),
        ('{ name = "a", alg = "drrn", lm = "P0" }', "drrn takes no 'lm' in a study"),
        ('{ name = "a", alg = "bk-pref", potential = "pref" }', "bk-pref takes no 'potential' in a study"),
        ('{ name = "a", alg = "glam", potential = "prof" }', "potential of 'a' is 'prof'. Did you mean 'pref'?"),
        ('{ name = "a", alg = "glam", after = 3 }', "The after of 'a' is text in quotes, not 3"),
        ('{ name = "a", alg = "glam", lm = ["P0"] }', "The lm of 'a' is text in quotes, not ['P0']"),
        ('{ name = "a", alg = "bc", train_rs = 3 }', "Settings are a table, not 3"),
        ('{ name = "a", alg = "bk-own", train_rs = 3 }', "Settings are a table, not 3"),
    ],
)
def test_what_an_entry_cannot_start_from_is_named(tmp_path, entry, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)):
        study(LANGUAGE.replace("seeds", f"algs = [{entry}]\nseeds"), tmp_path)


@pytest.mark.parametrize("name", ["rnd-d64", "rnd-l2", "rnd-s1-d3"])
def test_no_entry_ends_as_a_draw_does(name: str, tmp_path: Path):
    """Reports know an entry by its runs without draw and seed: rnd-d64 lost its title, or had that of rnd."""
    train = {"env": "BabyAI-Text-GoToLocal-RedBall-S20", "steps": 2048}
    entry = {"name": name, "alg": "rnd", "title": "small"}
    world = {"name": "w", "seeds": [1], "train_rs": train, "algs": ["rnd", entry]}
    with pytest.raises(UsageError, match=f"The name '{name}' ends as those of runs on several draws do"):
        plan({"world": [world]}, tmp_path)
    for other in ("rnd-64", "rnd-s2", "d64", "rnd-d64x"):
        assert plan({"world": [world | {"algs": [entry | {"name": other}]}]}, tmp_path).training


def test_an_entry_says_what_its_report_calls_it(tmp_path: Path):
    entry = {"name": "g", "alg": "rnd", "title": "novelty alone"}
    env_spec = {"name": "w", "algs": ["ppo", entry], "seeds": [1]}
    env_spec["train_rs"] = {"env": "BabyAI-Text-GoToLocal-RedBall-S20", "steps": 2048}
    assert plan({"world": [env_spec]}, tmp_path).report.config.titles == ("g=novelty alone",)
    assert plan({"world": [env_spec | {"algs": [entry | {"title": " "}]}]}, tmp_path).report.config.titles == ()
    with pytest.raises(UsageError, match="The title of 'g' is text in quotes, not 3"):
        plan({"world": [env_spec | {"algs": [entry | {"title": 3}]}]}, tmp_path)


@pytest.mark.parametrize("other", [{"title": "novelty of pictures"}, {}, {"title": " "}])
def test_entries_of_one_name_have_one_title(tmp_path: Path, other: dict[str, str]):
    """The last title of a name won in every section and task, also over an entry that had none."""
    entry = {"name": "g", "alg": "rnd", "title": "novelty alone"}
    namesake = {"name": "g", "alg": "rnd"} | other
    train = {"env": "BabyAI-Text-GoToLocal-RedBall-S20", "steps": 2048}
    world = {"name": "w", "algs": [entry], "seeds": [1], "train_rs": train}
    tasks = {"name": "w", "seeds": [1], "train_rs": train}
    tasks["task"] = [{"name": "a", "algs": [namesake]}, {"name": "b", "algs": [entry]}]
    for worlds in ([world, world | {"name": "v", "algs": [namesake]}], [tasks]):
        with pytest.raises(UsageError, match="Entries named 'g' differ in their title; give them one title, or rename"):
            plan({"world": worlds}, tmp_path)
    again = world | {"name": "v"}
    assert plan({"world": [world, again]}, tmp_path).report.config.titles == ("g=novelty alone",)
