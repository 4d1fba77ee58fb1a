"""Methods by name, and the settings that each of them has."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of, without_effect
from bkrl.core.settings import build
from bkrl.methods import Method, TrainRsConfig, find_method, methods, register_method
from bkrl.runs.identity import changed
from bkrl.runs.record import Run

OF_ALL = {"potential": None, "shaping": "pbrs", "shaping_coef": None, "advice_coef": 6.0, "int_coef": 0.1}
"""What earlier versions recorded of every run, whatever its method."""


def test_settings_are_those_of_the_method():
    rnd: Any = TrainRsConfig(alg="rnd", int_coef=0.3)
    assert (type(rnd).__name__, rnd.int_coef) == ("RNDSettings", 0.3)
    shaped: Any = replace(rnd, alg="bk-pref", int_coef=0.1, potential="p", shaping="advice")
    assert (shaped.alg, shaped.shaping, hasattr(shaped, "int_coef")) == ("bk-pref", "advice", False)
    assert isinstance(shaped, TrainRsConfig)
    assert replace(shaped, seed=2) != shaped
    assert TrainRsConfig(alg="ppo", potential=None, shaping="pbrs") == TrainRsConfig()  # defaults say nothing
    with pytest.raises(UsageError, match="potential has no effect here, only with --alg bk-code, bk-pref"):
        replace(shaped, alg="ppo")
    with pytest.raises(TypeError, match="no_such"):
        TrainRsConfig(no_such=1)


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
