"""Q(λ) against a naive reference, and agents that value actions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bkrl.agents.q import QAgent, QNetwork
from bkrl.data.views import Views
from bkrl.envs import env_spec, family, make_vec
from bkrl.learn.pqn import PQN, RectifiedAdam, q_lambda_targets
from bkrl.learn.settings import PQNConfig
from bkrl.rewards.streams import EnvReward


def naive(rewards, next_values, carried, gamma, lam):
    """The λ-return of each step as a weighted sum of its n-step returns, written out from the definition."""
    T, N = rewards.shape
    out = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            last = t
            while last < T - 1 and carried[last, n]:
                last += 1
            total, weight = 0.0, 1.0
            for end in range(t, last + 1):
                discounted = sum(gamma ** (k - t) * rewards[k, n] for k in range(t, end + 1))
                n_step = discounted + gamma ** (end - t + 1) * next_values[end, n]
                total += (weight if end == last else (1 - lam) * weight) * n_step
                weight *= lam
            out[t, n] = total
    return out


@pytest.mark.parametrize("lam", [0.0, 0.65, 1.0])
def test_targets_are_the_lambda_returns_by_definition(lam):
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=(7, 5)), rng.normal(size=(7, 5))
    carried = rng.random((7, 5)) < 0.7
    values[rng.random((7, 5)) < 0.2] = 0
    found = q_lambda_targets(*map(torch.from_numpy, (rewards, values, carried)), 0.9, lam)
    np.testing.assert_allclose(found.numpy(), naive(rewards, values, carried, 0.9, lam), rtol=1e-12)


def test_the_bootstrap_is_the_state_that_the_next_transition_begins_in():
    """By hand: two steps, nothing learnt yet of the last one. The value of the state before (7) never enters."""
    rewards, next_values = torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0], [20.0]])
    found = q_lambda_targets(rewards, next_values, torch.ones(2, 1, dtype=torch.bool), 0.5, 0.5)
    assert found[1, 0] == 2 + 0.5 * 20
    assert found[0, 0] == 1 + 0.5 * (0.5 * 10 + 0.5 * 12)


def test_rectified_adam_steps_as_radam_does_once_the_variance_is_known():
    torch.manual_seed(0)
    ours, theirs = torch.zeros(50, requires_grad=True), torch.zeros(50, requires_grad=True)
    quick = RectifiedAdam([ours], lr=0.01, fused=True)
    plain = torch.optim.RAdam([theirs], lr=0.01)
    for step in range(1, 12):
        ours.grad = torch.randn(50)
        theirs.grad = ours.grad.clone()
        before = ours.detach().clone(), theirs.detach().clone()
        quick.step()
        plain.step()
        moved, wanted = ours.detach() - before[0], theirs.detach() - before[1]
        if step > 5:
            torch.testing.assert_close(moved, wanted, rtol=1e-4, atol=1e-7)
        else:
            assert not moved.any()
    assert quick.param_groups[0]["lr"] == 0.01


def agent(env_id="Toy-TwoExits", **settings):
    facts = env_spec(env_id)
    symbols = family(facts.family).symbols(facts.obs_shape)
    made = {"hidden": 16, "layer_norm": True, "dueling": False, **settings}
    network = QNetwork(symbols, len(facts.action_names), **made)
    network.initialise(3)
    return QAgent(network, facts.env_id, facts.family, facts.action_names)


def test_an_epsilon_greedy_policy_in_logarithms():
    made = agent()
    made.epsilon = 0.3
    views = Views(make_vec("Toy-TwoExits", 4).reset(seed=0)[0])
    inputs = made.inputs(views)
    logits, values, _ = made.forward(inputs, {}, None)
    q, A = made.q_values(inputs), len(made.action_names)
    chosen = logits.exp().gather(1, q.argmax(1, keepdim=True))
    torch.testing.assert_close(chosen, torch.full_like(chosen, 0.7 + 0.3 / A))
    torch.testing.assert_close(logits.exp().sum(1), torch.ones(4))
    torch.testing.assert_close(values[:, 0], q.max(1).values)


def test_a_guide_chooses_its_share_of_the_random_actions():
    made, guide = agent(), agent()
    with torch.no_grad():
        guide.module.head.bias[1] += 100
    made.guide, made.guide_share, made.epsilon = guide, 0.5, 0.4
    logits = made.forward(made.inputs(Views(make_vec("Toy-TwoExits", 4).reset(seed=0)[0])), {}, None)[0]
    assert (logits[:, 1].exp() >= 0.2).all()
    torch.testing.assert_close(logits.exp().sum(1), torch.ones(4))


def test_dueling_heads_are_the_published_sum():
    made = agent(dueling=True)
    seen = made.inputs(Views(make_vec("Toy-TwoExits", 4).reset(seed=0)[0]))["seen"]
    features = made.module.layers(seen)
    weight, bias = made.module.head.weight, made.module.head.bias
    value, advantage = features @ weight[:1].T + bias[:1], features @ weight[1:].T + bias[1:]
    torch.testing.assert_close(made.module(seen), value + advantage - advantage.mean(1, keepdim=True))


def test_off_policy_actions_and_new_goals_cut_the_return():
    envs = make_vec("Toy-TwoExits", 8)
    learner = PQN(envs, agent(), [EnvReward()], PQNConfig(num_envs=8, num_steps=16, q_lambda=1.0), total_steps=1)
    learner.iterate()
    c = learner.collector
    next_values, ended = learner.next_values(True)
    greedy = (c.logits.argmax(-1) == torch.from_numpy(c.rollout.actions)).numpy()
    carried = ~ended[:, :, 0].numpy()
    carried[:-1] &= greedy[1:]
    expected = naive(learner.rewards[:, :, 0].numpy(), next_values[:, :, 0].numpy(), carried, 0.99, 1.0)
    np.testing.assert_allclose(learner.targets().numpy(), expected, rtol=1e-4, atol=1e-5)
    assert 0 < carried.mean() < 1


def test_a_rollout_of_one_step_has_no_earlier_goals():
    """`--num-steps 1` ended with goals in an error of shapes."""
    config = PQNConfig(num_envs=8, num_steps=1)
    learner = PQN(make_vec("Toy-TwoExits", 8), agent(), [EnvReward()], config, total_steps=1)
    learner.iterate()
    c = learner.collector
    c.views = replace(c.views, goal=np.zeros((2, 8, 3), bool))
    c.final_views = replace(c.final_views, goal=np.zeros((len(c.final_views), 3), bool))
    assert learner.targets().shape == (1, 8)


def test_the_action_of_a_guide_is_not_taken_for_the_best_one():
    """While ε is large the guide's action is the likeliest, and returns went on where it was taken."""
    learner = PQN(
        make_vec("Toy-TwoExits", 8), agent(), [EnvReward()], PQNConfig(num_envs=8, num_steps=16), total_steps=1000
    )
    learner.agent.guide, learner.agent.guide_share = agent(), 0.9
    with torch.no_grad():
        learner.agent.module.head.bias[0] += 100
        learner.agent.guide.module.head.bias[1] += 100
    learner.learn = lambda: {}
    learner.iterate()
    c = learner.collector
    next_values, ended = learner.next_values(True)
    best = (c.rollout.actions == 0)[1:]
    carried = ~ended[:, :, 0].numpy()
    carried[:-1] &= best
    assert best.mean() < 0.5 < (c.rollout.actions == 1).mean()
    expected = naive(learner.rewards[:, :, 0].numpy(), next_values[:, :, 0].numpy(), carried, 0.99, 0.65)
    np.testing.assert_allclose(learner.targets().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_untrained_values_are_near_0_however_many_actions_there_are():
    """Values of gain 1 began near 1.8 with 139 actions: learning was bootstrapped from them for 100,000 steps."""
    made = agent("Crafter-Typed-Harder", hidden=128)
    values = made.q_values(made.inputs(Views(make_vec("Crafter-Typed-Harder", 4).reset(seed=0)[0])))
    assert values.shape == (4, 139)
    assert float(values.detach().abs().max()) < 0.05


def test_it_learns_the_better_exit():
    envs = make_vec("Toy-TwoExits", 16)
    config = PQNConfig(num_envs=16, num_steps=16, learning_rate=3e-3, epsilon_share=0.5)
    learner = PQN(envs, agent(), [EnvReward()], config, total_steps=20_000)
    while not learner.done:
        metrics = learner.iterate()
    assert metrics["rollout/return"] > 0.8
