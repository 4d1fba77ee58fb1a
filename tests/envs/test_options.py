"""Options of an env stand in its id, and everything that knows the env by its id has them."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl import envs
from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of
from bkrl.envs.babyai.glam import GlamLevel

MIXED = "BabyAI-MixedTrainLocal-v0"


def test_an_id_with_options_makes_the_env_that_the_options_make() -> None:
    named = envs.make_vec(f"{MIXED}@task_kinds=goto+open,room_size=6,num_dists=3", 4)
    given = envs.make_vec(MIXED, 4, num_dists=3, room_size=6, task_kinds=("goto", "open"))
    np.testing.assert_array_equal(named.reset(seed=3)[0], given.reset(seed=3)[0])
    assert list(named.missions()) == list(given.missions())
    assert named.env_spec == given.env_spec
    assert named.env_spec.env_id == f"{MIXED}@num_dists=3,room_size=6,task_kinds=goto+open"  # in order
    assert named.env_spec.max_steps == 2 * 6**2


def test_options_that_change_nothing_leave_the_id_as_it_is() -> None:
    assert envs.env_spec(f"{MIXED}@num_dists=8,task_mix=per-episode").env_id == MIXED
    assert envs.make_vec(MIXED, 1, num_dists=8, threads=1).env_spec.env_id == MIXED
    assert envs.env_spec(envs.env_spec(f"{MIXED}@num_dists=0").env_id) == envs.env_spec(f"{MIXED}@num_dists=0")


def test_an_option_given_apart_goes_before_the_one_in_the_id() -> None:
    assert envs.make_vec(f"{MIXED}@num_dists=0", 1, num_dists=2).env_spec.env_id == f"{MIXED}@num_dists=2"


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_all_that_knows_an_env_by_its_id_takes_options(backend: str) -> None:
    env = envs.make(f"{MIXED}@num_dists=0,task_kinds=pickup,max_steps=5", backend=backend)  # type: ignore[arg-type]
    _, info = env.reset(seed=0)
    assert info["task_kind"] == "pickup"
    assert [env.step(6)[3] for _ in range(5)] == [False] * 4 + [True]
    assert envs.mission_is_hidden(f"{MIXED}@num_dists=0")
    assert envs.captioner(f"{MIXED}@num_dists=0")(np.zeros((1, 7, 7, 3), np.uint8)) == ["You see nothing."]
    assert envs.env_spec("CrafterReward-v1@length=50").max_steps == 50
    assert envs.make_vec("CrafterReward-v1@length=50", 1, backend=backend).env_spec.max_steps == 50  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(("actions", "count"), [("restricted", 3), ("canonical", 6), ("augmented", 9)])
def test_actions_can_be_fewer_or_more_which_do_nothing(backend: str, actions: str, count: int) -> None:
    env_id = f"BabyAI-GoToLocal-v0@actions={actions}"
    named = envs.make_vec(env_id, 2, backend=backend)  # type: ignore[arg-type]
    single = envs.make(env_id, backend=backend)  # type: ignore[arg-type]
    plain = envs.make_vec("BabyAI-GoToLocal-v0", 2)
    assert named.env_spec.action_names == envs.env_spec(env_id).action_names
    assert named.single_action_space.n == single.action_space.n == len(named.env_spec.action_names) == count
    assert named.env_spec.action_names[2] == "go forward"
    for made in (named, plain, single):
        made.reset(seed=0)
    for action in np.random.default_rng(0).integers(0, count, 90).tolist():
        seen = named.step(np.array([action, action]))
        wanted = plain.step(np.array([min(action, 6)] * 2))
        for a, b in zip(seen[:4], wanted[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        if not single.unwrapped._over:  # type: ignore[attr-defined]
            single.step(action)


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        (f"{MIXED}@", "options are written ID@NAME=VALUE"),
        (f"{MIXED}@num_dists", "has 'num_dists'"),
        (f"{MIXED}@num_dists=1,num_dists=2", "names an option twice"),
        (f"{MIXED}@dists=1", "no option 'dists'; it knows num_dists"),
        (f"{MIXED}@num_dists=many", "must be a whole number, not 'many'"),
        (f"{MIXED}@num_dists=-1", "at least 0, not -1"),
        (f"{MIXED}@task_kinds=goto+opne", "Did you mean 'open'"),
        (f"{MIXED}@held_out=no", "mission-only or also-distractors"),
        ("BabyAI-GoToLocal-v0@num_dists=1", "it knows actions, max_steps"),
        ("BabyAI-GoToLocal-v0@actions=canonic", "no actions 'canonic'. Did you mean 'canonical'"),
        ("MiniGrid-Dynamic-Obstacles-5x5-v0@actions=canonical", "has actions of its own"),
        ("MiniGrid-GoToDoor-5x5-v0@actions=augmented", "done ends an episode of .*; leave the option actions out"),
        ("MiniGrid-GoToObject-6x6-N2-v0@actions=canonical", "done ends an episode"),
        ("CrafterReward-v1@length=0", "at least 1"),
        ("CrafterReward-v1@length=10000001", "at most 10,000,000, not 10000001"),
        ("BabyAI-GoToLocal-v0@max_steps=2147483648", "at most 2,147,483,647"),
        ("Toy-Corridor@a=1", "There is no env"),
        ("BabyAI-MixedTrianLocal-v0@num_dists=1", "Did you mean"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_a_sentence(env_id: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        envs.env_spec(env_id)


@pytest.mark.parametrize(("given", "said"), [("contol", "knows control"), ("scene", "no option 'scene'")])
def test_an_option_of_housekeep_that_is_none_is_not_passed_over(given: str, said: str) -> None:
    for make in (envs.make, lambda env_id, **options: envs.make_vec(env_id, 1, **options)):
        with pytest.raises(UsageError, match=said):
            make("Housekeep-Symbolic-Task1", **{given: "high"})


def test_every_option_says_what_it_is() -> None:
    for env_id in envs.env_ids():
        facts = envs.env_spec(env_id)
        for one in envs.family(facts.family).options(facts):
            assert one.flag.help, one.name
    declared = {one.name for one in flags_of(GlamLevel) if one.flag.help}
    assert declared == {"num_dists", "room_size", "language", "task_kinds", "held_out", "task_mix"}
