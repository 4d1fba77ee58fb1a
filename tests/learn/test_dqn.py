"""DQN: its targets by hand, its schedule, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bkrl.core.errors import UsageError
from bkrl.envs import make_vec
from bkrl.learn.dqn import DQN, double_targets
from bkrl.learn.replay import Replay
from bkrl.learn.settings import DQNConfig
from bkrl.rewards.streams import EnvReward
from tests.learn.test_pqn import agent


def learner(total_steps=10_000, **settings):
    config = DQNConfig(
        **{
            "num_envs": 8,
            "learning_starts": 200,
            "batch_size": 32,
            "target_every": 400,
            "epsilon_steps": 3000,
            **settings,
        }
    )
    return DQN(make_vec("Toy-TwoExits", 8), agent(dueling=True), [EnvReward()], config, total_steps=total_steps)


def test_targets_of_three_steps_by_hand():
    """One env, five steps: the third ends truly, the fifth is cut off."""
    memory = Replay(8, 1)
    rewards, ends, cuts = [1.0, 2, 4, 8, 16], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]
    for t in range(5):
        seen, after = np.array([[t]], np.uint8), np.array([[t + 1]], np.uint8)
        flags = np.array([ends[t]], bool), np.array([cuts[t]], bool)
        memory.add(seen, np.array([0]), np.array([rewards[t]], np.float32), after, *flags)
    batch = memory.sample(3, np.random.default_rng(0), gamma=0.5, num_steps=3)
    best, values = torch.ones(3, dtype=torch.int64), torch.tensor([[0.0, 100.0]]).repeat(3, 1)
    found = dict(zip(batch.seen[:, 0].tolist(), double_targets(batch, best, values).tolist(), strict=True))
    assert found == {0: 1 + 1 + 1, 1: 2 + 2, 2: 4}


def test_a_truncated_end_is_bootstrapped_and_a_true_one_is_not():
    memory = Replay(8, 2)
    nothing, ones = np.zeros((2, 1), np.uint8), np.ones((2, 1), np.uint8)
    memory.add(
        nothing, np.zeros(2, int), np.zeros(2, np.float32), ones, np.array([True, False]), np.array([False, True])
    )
    batch = memory.sample(2, np.random.default_rng(0), gamma=0.5, num_steps=1)
    assert sorted(batch.discounts.tolist()) == [0, 0.5]


def test_updates_come_as_often_as_the_settings_say_and_the_target_is_copied():
    made = learner(update_every=4)
    first = made.target.state_dict()["head.weight"].clone()
    while made.step < 416:
        made.iterate()
    assert made.updates == (416 - 200) // 4
    assert not torch.equal(first, made.target.state_dict()["head.weight"])
    assert made.agent.epsilon == 1.0 + (0.01 - 1.0) * 416 / 3000


def paid(made, amount):
    """From now on every step pays so much."""

    def pay():
        made.rewards.fill_(amount)
        return {}

    made.pay = pay


def test_it_can_wait_for_the_first_reward():
    made = learner(after_reward=True, learning_starts=0)
    paid(made, 0.0)
    while made.step < 200:
        made.iterate()
    assert (made.updates, made.agent.epsilon) == (0, 1.0)
    paid(made, 0.5)
    begun = made.step
    made.iterate()
    assert made.updates > 0
    assert made.agent.epsilon == 1.0 + (0.01 - 1.0) * (made.step - begun) / 3000
    saved, other = made.state(), learner(after_reward=True)
    other.restore(saved._replace(tensors={name: np.asarray(one).copy() for name, one in saved.tensors.items()}))
    assert (other.earned, other.agent.since) == (made.earned, begun)


def test_once_enough_is_earned_learning_goes_on_whatever_is_lost_again():
    """Crafter takes a tenth for damage: below a sum of 1 learning stopped, and ε jumped back to where it began."""
    made = learner(after_reward=True, learning_starts=0)
    paid(made, 0.5)
    while made.updates == 0:
        made.iterate()
    updates, epsilon = made.updates, made.agent.epsilon
    paid(made, -0.5)
    for _ in range(3):
        made.iterate()
    assert made.updates > updates
    assert made.agent.epsilon < epsilon


def test_it_goes_on_from_a_checkpoint_to_the_same_weights():
    whole, stopped = learner(), learner()
    while whole.step < 416:  # it learns, and its target was copied once
        whole.iterate()
        stopped.iterate()
    saved, other = stopped.state(), learner()
    other.restore(saved._replace(tensors={name: np.asarray(one).copy() for name, one in saved.tensors.items()}))
    for _ in range(5):
        whole.iterate()
        other.iterate()
    for ours, theirs in zip(whole.agent.module.parameters(), other.agent.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert whole.step == other.step


@pytest.mark.parametrize("exact", [True, False])
def test_steps_that_are_remembered_end_their_episodes_where_fresh_ones_begin(exact):
    stopped, other = learner(), learner()
    for _ in range(5):
        stopped.iterate()
    saved = stopped.state()
    tensors = {name: np.asarray(one).copy() for name, one in saved.tensors.items()}
    other.restore(saved._replace(tensors=tensors, exact=exact))
    flags = [one.replay.state()["truncated"] for one in (stopped, other)]
    np.testing.assert_array_equal(flags[1][:-1], flags[0][:-1])
    assert not flags[0][-1].all()
    assert flags[1][-1].all() == (not exact)


@pytest.mark.slow
def test_it_learns_the_better_exit():
    made = learner(learning_rate=2e-3)
    while made.step < 6_000:
        metrics = made.iterate()
    while "rollout/return" not in metrics:
        metrics = made.iterate()
    assert metrics["rollout/return"] > 0.8


@pytest.mark.parametrize("small", [{"replay_size": 24}, {"replay_size": 40, "n_step": 3}])
def test_a_memory_without_room_for_an_update_is_refused(small):
    with pytest.raises(UsageError, match="--replay-size is too small for .*--batch-size"):
        learner(**small)
    assert learner(replay_size=48, n_step=3).replay.rows == 6


@pytest.mark.parametrize(
    ("steps", "settings", "updates"),
    [
        (192, {}, 0),
        (193, {}, 6),  # an iteration has 32 steps: the last ends at 224
        (193, {"learning_starts": 224}, 0),
        (193, {"update_every": 32, "learning_starts": 192}, 1),
        (193, {"update_every": 225}, 0),
        (32, {"learning_starts": 0, "n_step": 1}, 8),
        (32, {"learning_starts": 0, "n_step": 2}, 0),
        (96, {"learning_starts": 0, "update_every": 50, "batch_size": 64, "n_step": 1}, 1),
        (96, {"learning_starts": 0, "update_every": 50, "batch_size": 65, "n_step": 1}, 0),
    ],
)
def test_a_run_that_is_over_before_the_first_update_is_refused(steps, settings, updates):
    """It ran to its end, and saved an untrained network without a word."""
    if not updates:
        with pytest.raises(UsageError, match="Nothing would ever be learnt: --steps or --replay-size is too small"):
            learner(steps, **settings)
        return
    made = learner(steps, **settings)
    while not made.done:
        made.iterate()
    assert made.updates == updates


def test_an_update_lies_where_the_network_does():
    """`--device cuda` ended in an error of torch; torch's `meta` stands for a GPU, in shapes alone."""
    made, away = learner(), torch.device("meta")
    while made.step < 100:
        made.iterate()
    made.device = made.agent.device = away
    for module in (made.agent.module, made.target):
        module.to(away)
    made.optimizer = torch.optim.SGD(made.agent.module.parameters(), lr=0.1)
    assert made._update().device == away


def test_a_guide_goes_where_the_agent_goes():
    one = agent()
    one.guide = agent()
    one.prepare(torch.device("meta"), compile=False)
    assert {p.device.type for p in (*one.module.parameters(), *one.guide.module.parameters())} == {"meta"}
