"""Gymnasium's own tools take our envs: its registry, checker and vector wrappers, in every autoreset mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import gymnasium.wrappers.vector as wrappers
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorObservationWrapper
from gymnasium.wrappers import TimeAwareObservation, TransformReward

import bkrl.envs
from bkrl.core.errors import InputError, UsageError
from bkrl.envs.reference import ReferenceVectorEnv

RED_BALL = "BabyAI-Text-GoToLocal-RedBall-S20"
SHORT = 7  # steps of an episode, so that many end
MODES = list(AutoresetMode)

# One for each engine and way of making layouts; the last has no engine.
ENVS: list[tuple[str, dict[str, Any]]] = [
    (f"bkrl.envs:{RED_BALL}", {}),
    ("bkrl.envs:bkrl/BabyAI-GoToLocal-v0", {}),
    ("bkrl.envs:Crafter-Text-EatCow", {}),
    ("bkrl.envs:Crafter-Text-EatCow", {"observation": "image"}),
    ("bkrl.envs:Toy-Grid", {}),
    ("bkrl.envs:bkrl/MiniGrid-Fetch-5x5-N2-v0", {"backend": "reference"}),
]
IDS = sorted(name for name, spec in gym.registry.items() if spec.entry_point == "bkrl.envs:_entry")


def make_vec(env_spec: int, num_envs: int, **options: Any) -> Any:
    env_id, own = ENVS[env_spec]
    return gym.make_vec(env_id, num_envs, **{"max_episode_steps": SHORT, **own, **options})


def steps_of(envs: VectorEnv, steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """What `reset` and so many steps at random return; ended envs are reset by hand where autoreset is disabled."""
    rng = np.random.default_rng(seed)
    out: list[tuple[Any, ...]] = [envs.reset(seed=seed)]
    for _ in range(steps):
        out.append(copy.deepcopy(envs.step(rng.integers(0, envs.unwrapped.single_action_space.n, envs.num_envs))))
        done = out[-1][2] | out[-1][3]
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
            # the others' seeds are not looked at
            out.append(envs.reset(options={"reset_mask": done}))
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_spec", range(len(ENVS)))
def test_equal_to_gymnasiums_own_vector_environment(env_spec: int, mode: AutoresetMode) -> None:
    env_id, own = ENVS[env_spec]
    ours = make_vec(env_spec, 3, autoreset_mode=mode.value)
    theirs = SyncVectorEnv([lambda: gym.make(env_id, max_episode_steps=SHORT, **own)] * 3, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    for mine, other in zip(steps_of(ours, 40), steps_of(theirs, 40), strict=True):
        np.testing.assert_array_equal(mine[0], other[0])
        assert ours.observation_space.contains(mine[0])
        assert "episode" not in mine[-1]
        if len(mine) == 2:
            continue
        np.testing.assert_array_equal(mine[1], other[1].astype(np.float32))
        np.testing.assert_array_equal(mine[2], other[2])
        np.testing.assert_array_equal(mine[3], other[3])
        done = mine[2] | mine[3]
        if mode is AutoresetMode.SAME_STEP:
            assert ("final_obs" in mine[4]) == done.any()
            for i in np.flatnonzero(done):
                np.testing.assert_array_equal(mine[4]["final_obs"][i], other[4]["final_obs"][i])
                assert mine[4]["success"][i] == other[4]["final_info"]["success"][i]
        else:
            assert "final_obs" not in mine[4]
            np.testing.assert_array_equal(mine[4]["success"], other[4].get("success", np.zeros(3, bool)))
    assert ours.np_random_seed == (0, 1, 2)


def test_the_default_is_gymnasiums_outside_and_same_step_inside() -> None:
    assert gym.make_vec(RED_BALL, 2).metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert bkrl.envs.make_vec(RED_BALL, 2).metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    with pytest.raises(UsageError, match=r"no autoreset mode 'NextSteps'. Did you mean 'NextStep'\?"):
        gym.make_vec(RED_BALL, 2, autoreset_mode="NextSteps")


def test_an_ended_env_must_be_reset_where_autoreset_is_disabled() -> None:
    envs = make_vec(0, 2, autoreset_mode="Disabled")
    envs.reset(seed=0)
    for _ in range(SHORT):
        envs.step(np.zeros(2, int))
    before = envs.snapshot()
    with pytest.raises(RuntimeError, match=r"envs \[0, 1\] have ended.*reset_mask"):
        envs.step(np.zeros(2, int))
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(RuntimeError, match=r"envs \[1\] have ended"):
        envs.step(np.zeros(2, int))
    envs.restore(before)
    with pytest.raises(RuntimeError, match=r"envs \[0, 1\] have ended"):
        envs.step(np.zeros(2, int))
    with pytest.raises(InputError, match="another autoreset mode"):
        make_vec(0, 2, autoreset_mode="SameStep").restore(before)


@pytest.mark.parametrize("env_spec", [0, 1, 2, 4])
def test_snapshots_know_which_envs_wait_for_their_next_episode(env_spec: int) -> None:
    envs, other = make_vec(env_spec, 3), make_vec(env_spec, 3)
    steps_of(envs, SHORT)  # all have just ended
    other.restore(envs.snapshot())
    for _ in range(SHORT + 3):
        for mine, theirs in zip(envs.step(np.ones(3, int))[:4], other.step(np.ones(3, int))[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)


# ---------------------------------------------------------------------------------------------------------- wrappers


def flat_shape(envs: VectorEnv) -> tuple[int, ...]:
    return (int(np.prod(envs.single_observation_space.shape)),)


def bounded(envs: VectorEnv) -> VectorEnv:
    """The envs with actions as numbers, for wrappers of actions that want a Box."""
    space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    batch = gym.spaces.Box(-1.0, 1.0, (envs.num_envs, 1), np.float32)
    return wrappers.TransformAction(
        envs, lambda actions: (np.asarray(actions)[:, 0] > 0).astype(np.int64), batch, single_action_space=space
    )


class _Ones(gym.wrappers.TransformAction):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env, lambda action: 1 + 0 * action, env.action_space)


WRAP: dict[str, Callable[[Any, Any], VectorEnv]] = {
    "VectorizeTransformObservation": lambda e, _: wrappers.VectorizeTransformObservation(
        e, gym.wrappers.TransformObservation, func=lambda o: o, observation_space=e.single_observation_space
    ),
    "VectorizeTransformAction": lambda e, _: wrappers.VectorizeTransformAction(e, _Ones),
    "VectorizeTransformReward": lambda e, _: wrappers.VectorizeTransformReward(e, TransformReward, func=lambda r: -r),
    "DictInfoToList": lambda e, _: wrappers.DictInfoToList(e),
    "TransformObservation": lambda e, _: wrappers.TransformObservation(e, lambda o: o),
    "FilterObservation": lambda e, _: wrappers.FilterObservation(e, ["symbolic"]),
    "FlattenObservation": lambda e, _: wrappers.FlattenObservation(e),
    "GrayscaleObservation": lambda e, _: wrappers.GrayscaleObservation(e),
    "ResizeObservation": lambda e, _: wrappers.ResizeObservation(e, (10, 10)),
    "ReshapeObservation": lambda e, _: wrappers.ReshapeObservation(e, flat_shape(e)),
    "RescaleObservation": lambda e, _: wrappers.RescaleObservation(e, 0, 1),
    "DtypeObservation": lambda e, _: wrappers.DtypeObservation(e, np.float32),
    "NormalizeObservation": lambda e, _: wrappers.NormalizeObservation(e),
    "TransformAction": lambda e, _: wrappers.TransformAction(e, lambda a: a),
    "ClipAction": lambda e, _: wrappers.ClipAction(bounded(e)),
    "RescaleAction": lambda e, _: wrappers.RescaleAction(bounded(e), np.float32([0]), np.float32([1])),
    "TransformReward": lambda e, _: wrappers.TransformReward(e, lambda r: 2 * r),
    "ClipReward": lambda e, _: wrappers.ClipReward(e, -0.5, 0.5),
    "NormalizeReward": lambda e, _: wrappers.NormalizeReward(e),
    "RecordEpisodeStatistics": lambda e, _: wrappers.RecordEpisodeStatistics(e),
    "RecordVideo": lambda e, folder: wrappers.RecordVideo(e, str(folder), video_length=3),
    "HumanRendering": lambda e, _: wrappers.HumanRendering(e),
    "ArrayConversion": lambda e, _: wrappers.ArrayConversion(e, env_xp=np, target_xp=np),
    "JaxToNumpy": lambda e, _: wrappers.JaxToNumpy(e),
    "JaxToTorch": lambda e, _: wrappers.JaxToTorch(e),
    "NumpyToTorch": lambda e, _: wrappers.NumpyToTorch(e),
}
NEEDS = {
    "ResizeObservation": ["cv2"],
    "RecordVideo": ["moviepy"],
    "HumanRendering": ["pygame", "cv2"],
    "ArrayConversion": ["array_api_compat"],
    "NumpyToTorch": ["array_api_compat"],
}
FOR_OTHERS = {"JaxToNumpy", "JaxToTorch"}  # environments whose arrays are JAX's
OF_PICTURES = {"GrayscaleObservation", "ResizeObservation", "RecordVideo", "HumanRendering"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(set(wrappers.__all__) - FOR_OTHERS))
def test_every_vector_wrapper_takes_our_envs(
    name: str, mode: AutoresetMode, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in NEEDS.get(name, []):
        pytest.importorskip(module)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    for env_spec in [3] if name in OF_PICTURES else [2] if name == "FilterObservation" else range(len(ENVS)):
        options: dict[str, Any] = {"autoreset_mode": mode}
        if name == "FilterObservation":
            options["observation"] = "both"
        envs = make_vec(env_spec, 2, **options)
        allowed = [AutoresetMode.NEXT_STEP]
        if name != "NormalizeObservation":
            allowed.append(AutoresetMode.DISABLED)
        if issubclass(getattr(wrappers, name), VectorObservationWrapper) and mode not in allowed:
            with pytest.raises(ValueError, match="NEXT_STEP"):  # the wrapper itself refuses these modes
                WRAP[name](envs, tmp_path)
            continue
        wrapped = WRAP[name](envs, tmp_path)
        wrapped.action_space.seed(0)
        observations, _ = wrapped.reset(seed=1)
        ends = 0
        for _ in range(3 * SHORT):
            actions = wrapped.action_space.sample()
            if name == "NumpyToTorch":
                import torch

                actions = torch.from_numpy(actions)
            observations, rewards, terminated, truncated, infos = wrapped.step(actions)
            done = np.asarray(terminated | truncated)
            ends += int(done.sum())
            if name != "NumpyToTorch":
                assert wrapped.observation_space.contains(observations)
            assert len(rewards) == 2
            assert isinstance(infos, list if name == "DictInfoToList" else dict)
            if mode is AutoresetMode.DISABLED and done.any():
                wrapped.reset(options={"reset_mask": done})
        assert ends >= 4
        wrapped.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_spec", [0, 2, 4])
def test_our_episode_statistics_are_gymnasiums(env_spec: int, mode: AutoresetMode) -> None:
    ours = make_vec(env_spec, 3, autoreset_mode=mode, episode_statistics=True)
    theirs = wrappers.RecordEpisodeStatistics(make_vec(env_spec, 3, autoreset_mode=mode))
    ended = 0
    for mine, other in zip(steps_of(ours, 30), steps_of(theirs, 30), strict=True):
        assert ("episode" in mine[-1]) == ("episode" in other[-1])
        if "episode" in mine[-1]:
            ended += 1
            np.testing.assert_array_equal(mine[-1]["_episode"], other[-1]["_episode"])
            np.testing.assert_array_equal(mine[-1]["episode"]["l"], other[-1]["episode"]["l"])
            np.testing.assert_allclose(mine[-1]["episode"]["r"], other[-1]["episode"]["r"], atol=1e-6)
    assert ended >= 3


# ------------------------------------------------------------------------------------------------------- the registry


def test_every_id_is_registered_and_minigrids_own_stay_minigrids() -> None:
    assert {f"bkrl/{env_id}" for env_id in bkrl.envs.env_ids()} <= set(IDS)
    assert set(bkrl.envs.env_ids()) <= set(IDS)
    assert len(IDS) > 190
    assert str(gym.spec("BabyAI-GoToLocal-v0").entry_point).startswith("minigrid.")
    ours = gym.make_vec("bkrl.envs:bkrl/BabyAI-GoToLocal-v0", 2)
    assert type(ours).__name__ == "BabyAIVectorEnv"
    assert type(gym.make("bkrl.envs:bkrl/BabyAI-GoToLocal-v0").unwrapped).__name__ == "SingleEnv"
    assert ours.spec is not None
    again = gym.make_vec(ours.spec)
    np.testing.assert_array_equal(ours.reset(seed=3)[0], again.reset(seed=3)[0])
    read = gym.envs.registration.EnvSpec.from_json(gym.spec(f"bkrl/{RED_BALL}").to_json())
    assert (read.max_episode_steps, read.id) == (400, f"bkrl/{RED_BALL}")


def test_a_level_without_an_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    own = gym.envs.registration.EnvSpec(
        "MiniGrid-OwnFetch-v0", entry_point="minigrid.envs:FetchEnv", kwargs={"size": 6, "numObjs": 2}
    )
    monkeypatch.setitem(gym.registry, own.id, own)  # for this test: others list what is there
    with pytest.warns(UserWarning, match="OwnFetch-v0 has no native engine, so it is slow"):
        envs = bkrl.envs._vector_entry("MiniGrid-OwnFetch-v0", 2)
    assert isinstance(envs, ReferenceVectorEnv)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_step_that_begins_an_episode_tells_of_that_episode(backend: str) -> None:
    """With NextStep, the default, it told of the one before: another kind of mission, and a success counted twice."""
    envs = gym.make_vec("bkrl/BabyAI-MixedTrainLocal-v0", 6, max_episode_steps=3, backend=backend)
    envs.reset(seed=0)
    kinds, said = zip(
        *((envs.step(np.zeros(6, int))[4]["task_kind"].tolist(), envs.unwrapped.missions().tolist()) for _ in range(9)),
        strict=True,
    )
    assert said[2] != said[3] == said[4] == said[6]
    assert kinds[2] != kinds[3] == kinds[4] == kinds[6]
    typed = gym.make_vec("bkrl/Crafter-Typed-Full", 16, max_episode_steps=4, backend=backend)
    typed.reset(seed=0)
    rng = np.random.default_rng(0)
    steps = [typed.step(rng.integers(0, typed.single_action_space.n, 16)) for _ in range(5)]
    assert steps[3][3].all()
    assert not any(np.any(steps[4][4][name]) for name in ("action_success", "eval_success"))


@pytest.mark.parametrize("env_id", IDS)
def test_every_id_passes_gymnasiums_checker(env_id: str) -> None:
    if env_id.startswith("bkrl/MiniGrid-WFC-"):
        pytest.skip("needs pictures that minigrid's wheel does not bring")
    env = gym.make(env_id, render_mode="rgb_array")
    assert env.spec is not None
    assert env.spec.max_episode_steps == bkrl.envs.env_spec(env_id.removeprefix("bkrl/")).max_steps
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize(("env_id", "own"), ENVS)
def test_the_step_limit_is_in_the_spec(env_id: str, own: dict[str, Any]) -> None:
    timed = TimeAwareObservation(gym.make(env_id, **own))
    assert timed.reset(seed=0)[0][-1] == 0
    assert timed.step(0)[0][-1] == 1
    assert timed.max_timesteps == gym.make_vec(env_id, 1, **own).spec.max_episode_steps


@pytest.mark.parametrize("env_id", [RED_BALL, "BabyAI-GoToRedBallGrey-v0", "MiniGrid-DoorKey-5x5-v0"])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_babyai_envs_take_a_step_limit(env_id: str, backend: str) -> None:
    envs = gym.make_vec(f"bkrl/{env_id}", 2, max_steps=5, backend=backend)
    single = gym.make(f"bkrl/{env_id}", max_steps=5, backend=backend)
    envs.reset(seed=0)
    single.reset(seed=0)
    for step in range(5):
        truncated = envs.step(np.zeros(2, int))[3]
        assert truncated.tolist() == [step == 4] * 2
        assert single.step(0)[3] == (step == 4)
    with pytest.raises(UsageError, match="max_steps must be a whole number"):
        gym.make(f"bkrl/{env_id}", max_steps=0)
    with pytest.raises(UsageError, match="at least 1 and at most 2,147,483,647, not 2147483648"):
        bkrl.envs.make(env_id, max_steps=2**31, backend=backend)


def test_the_reward_shrinks_by_the_envs_own_step_limit() -> None:
    rewards = []
    for options in ({}, {"max_steps": 100}, {"max_episode_steps": 300}):
        env = gym.make(RED_BALL, **options)
        vector = gym.make_vec(RED_BALL, 1, **options)
        for seed in range(200):
            env.reset(seed=seed)
            vector.reset(seed=seed)
            first = env.step(2), vector.step(np.array([2]))
            if first[0][2]:  # one step away from the ball
                rewards.append(first[0][1])
                assert first[1][1] == np.float32(rewards[-1])
                break
    assert rewards == [1 - 0.9 / 400, 1 - 0.9 / 100, 1 - 0.9 / 400]


def test_an_env_longer_than_its_spec_says_that_gymnasium_cuts_it() -> None:
    for make in (gym.make, lambda *args, **options: gym.make_vec(*args, 1, **options)):
        with pytest.warns(UserWarning, match="max_steps=500 is beyond the 400 steps.*give max_episode_steps=500"):
            make(RED_BALL, max_steps=500)
    envs = gym.make_vec(RED_BALL, 1, max_steps=500, max_episode_steps=500)
    assert envs.unwrapped.env_spec.max_steps == 500


# -------------------------------------------------------------------------------------------------------- the details


@pytest.mark.parametrize(("env_id", "own"), ENVS)
def test_nothing_moves_after_close(env_id: str, own: dict[str, Any]) -> None:
    single, envs = gym.make(env_id, **own), gym.make_vec(env_id, 2, **own)
    single.reset(seed=0)
    envs.reset(seed=0)
    for env in (single, envs):
        env.close()
        env.close()
    for call in (lambda: envs.step(np.zeros(2, int)), envs.reset, lambda: single.step(0), single.reset):
        with pytest.raises(ClosedEnvironmentError, match=r"after close\(\)"):
            call()


@pytest.mark.parametrize("env_spec", range(len(ENVS)))
def test_seeds_are_known_and_bring_the_same_again(env_spec: int) -> None:
    envs = make_vec(env_spec, 3)
    drawn = envs.np_random_seed
    assert len(set(drawn)) == 3
    first = envs.reset()[0]
    assert envs.np_random_seed == drawn
    np.testing.assert_array_equal(make_vec(env_spec, 3).reset(seed=list(drawn))[0], first)
    envs.reset(seed=11)
    assert envs.np_random_seed == (11, 12, 13)
    envs.reset(seed=[None, 5, None], options={"reset_mask": np.array([False, True, True])})
    assert envs.np_random_seed == (11, 5, 13)
    env_id, own = ENVS[env_spec]
    single = gym.make(env_id, **own).unwrapped
    view = single.reset()[0]
    seed = single.np_random_seed
    np.testing.assert_array_equal(single.reset(seed=seed)[0], view)
    single.reset(seed=8)
    single.reset()
    assert single.np_random_seed == 8


@pytest.mark.parametrize("env_id", [RED_BALL, "CrafterReward-v1"])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_seed_that_is_refused_begins_nothing(env_id: str, backend: str) -> None:
    """Steps were taken in a world that was never made, and in episodes that were over."""
    env = bkrl.envs.make(env_id, backend=backend)
    with pytest.raises(gym.error.Error):
        env.reset(seed=np.int64(3))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="before reset"):
        env.step(0)
    with pytest.raises(TypeError):
        make_vec(env_id, 2, backend=backend).reset(seed=[3.9, 1])


def test_every_vector_environment_draws_its_envs() -> None:
    for env_spec in (0, 1, 2, 4):
        envs = make_vec(env_spec, 2)
        with pytest.raises(RuntimeError, match="before reset"):
            envs.render()
        envs.reset(seed=0)
        pictures = envs.render()
        assert len(pictures) == 2
        assert all(picture.dtype == np.uint8 and picture.shape[2] == 3 for picture in pictures)
    with pytest.raises(UsageError, match="'human' is not a render mode"):
        gym.make_vec(RED_BALL, 2, render_mode="human")


def test_a_single_crafter_env_pays_in_full_precision() -> None:
    env, reference = (bkrl.envs.make("CrafterReward-v1", backend=backend) for backend in ("native", "reference"))
    env.reset(seed=0)
    reference.reset(seed=0)
    env.envs.engine.envs["inventory"][0, 0] = 7  # type: ignore[attr-defined]
    reference.game._player.inventory["health"] = 7  # type: ignore[attr-defined]
    assert env.step(0)[1] == reference.step(0)[1] == -0.2


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_missions_are_one_array_until_an_episode_begins_and_those_of_each_env(backend: str) -> None:
    envs = bkrl.envs.make_vec("BabyAI-GoToLocal-v0", 3, backend=backend, max_episode_steps=SHORT)
    envs.reset(seed=4)
    singles = [bkrl.envs.make("BabyAI-GoToLocal-v0", backend="reference") for _ in range(3)]
    ages = [0] * 3
    for seed, env in enumerate(singles, 4):
        env.reset(seed=seed)
    actions, changes = np.random.default_rng(0).integers(0, 3, (4 * SHORT, 3)), 0
    for row in actions:
        before = envs.missions()
        _, _, terminated, truncated, _ = envs.step(row)
        for i, env in enumerate(singles):
            _, _, ended, _, _ = env.step(row[i])
            ages[i] += 1
            assert (ended or ages[i] == SHORT) == (terminated | truncated)[i]
            if ended or ages[i] == SHORT:
                env.reset()
                ages[i] = 0
        after = envs.missions()
        assert after.tolist() == [env.unwrapped.mission for env in singles]
        assert (after is before) == (not (terminated | truncated).any())
        changes += after is not before
    assert changes
    if backend == "native":
        state, now = envs.snapshot(), envs.missions()
        envs.reset(seed=90)
        assert envs.missions().tolist() != now.tolist()
        envs.restore(state)
        assert envs.missions().tolist() == now.tolist()


def test_sentences_are_the_captions_cut_at_their_full_stops() -> None:
    for env_id in (RED_BALL, "Crafter-Text-Reward", "Toy-Grid"):
        views, _ = bkrl.envs.make_vec(env_id, 5).reset(seed=1)
        read = bkrl.envs.sentences(env_id)(views)
        assert [" ".join(text) for text in read] == bkrl.envs.captioner(env_id)(views)
        assert all(sentence.endswith(".") and ". " not in sentence for text in read for sentence in text)
