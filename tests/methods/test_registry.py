"""Methods by name, and the settings that each of them has."""

import json
import pickle
import re
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of, option_name, without_effect
from bkrl.core.settings import build
from bkrl.methods import Method, TrainRsConfig, find_method, methods, register_method, settings_from
from bkrl.runs.identity import changed
from bkrl.runs.record import Run

OF_ALL = {"potential": None, "shaping": "pbrs", "shaping_coef": None, "advice_coef": 6.0, "int_coef": 0.1}
"""What earlier versions recorded of every run, whatever its method."""


def test_settings_are_those_of_the_method():
    rnd: Any = TrainRsConfig(alg="rnd", int_coef=0.3)
    assert (type(rnd).__name__, rnd.int_coef) == ("RNDSettings", 0.3)
    shaped: Any = TrainRsConfig(alg="bk-pref", potential="p", shaping="advice")
    assert (shaped.alg, shaped.shaping, hasattr(shaped, "int_coef")) == ("bk-pref", "advice", False)
    assert isinstance(shaped, TrainRsConfig)
    assert replace(shaped, seed=2) != shaped
    assert replace(shaped, seed=1) == shaped == pickle.loads(pickle.dumps(shaped))  # noqa: S301 - its own
    with pytest.raises(UsageError, match="potential has no effect here, only with --alg bk-code, bk-pref"):
        TrainRsConfig(potential=None)
    with pytest.raises(UsageError, match="pqn has no effect here, only with --alg pqn or ellm;"):
        TrainRsConfig(alg="dqn", pqn=None)
    with pytest.raises(UsageError, match="ShapedSettings are not the settings of 'ppo': make those by TrainRsConfig"):
        replace(shaped, alg="ppo")
    with pytest.raises(UsageError, match="There is no method 'bk-cod'. Did you mean 'bk-code'"):
        TrainRsConfig(alg="bk-cod")
    with pytest.raises(TypeError, match="There is no setting 'sede' in TrainRsConfig. Did you mean 'seed'"):
        TrainRsConfig(sede=1)


def test_a_table_that_methods_share_is_checked_whole_and_used_in_part():
    shared = {"int_coef": 0.3, "shaping_coef": 0.5, "ppo": {"num_envs": 8}, "pqn": {"num_envs": 4}}
    rnd: Any = settings_from(shared, "rnd", seed=3)
    assert (rnd.int_coef, rnd.ppo.num_envs, rnd.seed) == (0.3, 8, 3)
    with pytest.raises(UsageError, match="'shaping_coef' in train-rs must be at least 0"):
        settings_from(shared | {"shaping_coef": -1.0}, "rnd")
    with pytest.raises(UsageError, match="There is no setting 'int_cof' in train-rs. Did you mean 'int_coef'"):
        settings_from({"int_cof": 0.3}, "rnd")


VARIANTS = {
    "babyai-ppo", "bk-evolve", "bk-goal", "bk-online", "bk-own", "ellm-dqn", "ellm-ppo", "glam-published",
}  # fmt: skip
"""Methods whose flags are most of another's."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(one, marks=pytest.mark.slow) if one.name in VARIANTS else one for one in methods()],
    ids=lambda method: method.name,
)
def test_the_help_of_a_method_has_its_own_flags_on_one_page(method, capsys, monkeypatch):
    def page(*words, columns="80"):
        monkeypatch.setenv("COLUMNS", columns)
        assert run_command([*words]) == 0
        return capsys.readouterr().out

    pages = [page("train", method.name, "--help"), page("train", method.name, "--help-all")]
    wide = page("train", method.name, "--help", columns="120")
    assert page("train-rs", "--alg", method.name, "--help") == pages[0]
    short, whole, same = (re.findall(r"^│ (--[a-z-]+)", text, re.MULTILINE) for text in (*pages, wide))
    assert short == same
    assert len(short) <= 45
    for text in (*pages, wide):
        assert "…" not in text
        assert "[ |" not in text
    own = {option_name(one.path) for one in flags_of(method.settings)} - {"--alg"}
    assert set(short) < set(whole) == own | {"--lenient", "--json", "--help"}
    named = {f"--{name}" for name in re.findall(r"[a-z][a-z-]+", pages[0].partition("explains these")[2])}
    assert set(whole) - set(short) <= named


@pytest.mark.parametrize(
    ("alg", "flag", "text"),
    [
        ("drrn", "temperature", "values are divided by this before the softmax [default: 1.0]"),
        ("ellm", "temperature", "sampling temperature [default: 0.1]"),
        ("bk-online", "temperature", "sampling temperature [default: 0.5]"),
        ("drrn", "batch-size", "remembered steps in an update [default: 64]"),
        ("dqn", "batch-size", "steps in an update [default: 64]"),
        ("bc", "batch-size", "samples of a minibatch; with a memory, whole episodes of about so many [default: 2048]"),
        ("ppo", "reward-scale", "the env's reward is multiplied by this (published: 10) [default: 1.0]"),
        ("glam-published", "reward-scale", "the env's reward is multiplied by this (published: 20) [default: 20.0]"),
        ("rnd", "int-coef", "weight of the novelty reward [default: 0.1]"),
        ("pqn", "int-coef", "weight of the novelty reward [default: 1.0]"),
    ],
)
def test_a_flag_is_explained_in_the_words_of_its_method(alg, flag, text, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["train", alg, "--help-all"]) == 0
    said = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
    assert f" --{flag} {text} " in said


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
def test_every_method_describes_itself_and_its_settings(method):
    assert find_method(method.name) is method
    assert method.help
    assert find_method(method.baseline) is not None
    assert all(one.flag.help for one in flags_of(method.settings))
    assert without_effect(TrainRsConfig(alg=method.name), []) == {}


def test_a_run_of_an_earlier_version_that_recorded_all_settings_goes_on(tmp_path):
    config = TrainRsConfig(out=tmp_path / "run")
    Run.create(config.run_dir, stage="train-rs", config=config).log(1, x=1.0)
    path = tmp_path / "run" / "config.json"
    document = json.loads(path.read_text())
    document["config"] |= OF_ALL
    path.write_text(json.dumps(document))
    assert changed(tmp_path / "run", "train-rs", config) == []
    assert changed(tmp_path / "run", "train-rs", TrainRsConfig(alg="rnd")) == ["alg"]


def test_what_cannot_be_registered_is_refused():
    ppo = cast(Method, find_method("ppo"))
    with pytest.raises(UsageError, match="There is a method 'ppo' already"):
        register_method(ppo)
    with pytest.raises(UsageError, match="must be a dataclass that extends TrainRsConfig"):
        register_method(replace(ppo, name="x", settings=TrainRsConfig))


@dataclass(frozen=True)
class Small:
    """Settings whose group has other defaults than its class."""

    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(num_envs=3, num_steps=8))


def test_a_group_keeps_the_defaults_that_its_owner_gives_it():
    found = build(Small, {"ppo": {"num_minibatches": 3}}).ppo  # which 64 envs of 32 steps would not divide into
    assert found == PPOConfig(num_envs=3, num_steps=8, num_minibatches=3)
    assert {one.name: one.default for one in flags_of(Small)}["num_envs"] == 3
