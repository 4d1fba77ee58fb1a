"""PPO's update against the formulas written out, and its settings: what each of them changes, and what it does not."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from bkrl.agents.build import new_agent, teach
from bkrl.agents.network import NetworkAgent
from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of
from bkrl.envs import make_vec
from bkrl.learn.losses import value_loss
from bkrl.learn.ppo import PPO
from bkrl.learn.protocol import Saved
from bkrl.learn.rollout import Clock
from bkrl.rewards.apt import LearntAPT
from bkrl.rewards.deir import DEIR
from bkrl.rewards.icm import ICM
from bkrl.rewards.rnd import RND, NovelD
from bkrl.rewards.streams import EnvReward, RewardStream

CONFIG = PPOConfig(num_envs=4, num_steps=8, num_minibatches=1, update_epochs=3, learning_rate=0.02)


def make(config: PPOConfig = CONFIG, network: str = "compact", streams=None, env_id: str = "Toy-Grid") -> PPO:
    torch.set_num_threads(1)
    envs = make_vec(env_id, config.num_envs)
    streams = streams or [EnvReward(), EnvReward(gamma=0.9, coef=0.5)]
    agent = new_agent(network, envs, "symbolic", len(streams), 0)
    with torch.no_grad():
        agent.module.head.weight.mul_(20)  # an opinion: values that move further than the clip allows
    return PPO(envs, agent, streams, config, total_steps=10**6, seed=3)


def naive_update(ppo: PPO, advantages: torch.Tensor, returns: torch.Tensor) -> torch.nn.Module:
    """The formulas of Schulman et al. (2017), one step after the other, on a copy of the network."""
    c, r = ppo.config, ppo.collector.rollout
    network = copy.deepcopy(ppo.agent.module)
    optimizer = torch.optim.Adam(network.parameters(), lr=c.learning_rate, eps=1e-5)
    steps = [(t, n) for t in range(c.num_steps) for n in range(c.num_envs)]
    old = {(t, n): ppo.collector.logits[t, n].softmax(0)[r.actions[t, n]].item() for t, n in steps}
    weighted = {(t, n): sum(ppo.coef[k].item() * advantages[t, n, k].item() for k in range(2)) for t, n in steps}
    if c.norm_adv:
        mean, spread = np.mean(list(weighted.values())), np.std(list(weighted.values()), ddof=1)
        weighted = {at: (value - mean) / (spread + 1e-8) for at, value in weighted.items()}
    for _ in range(c.update_epochs):
        policy, value, entropy = [], [], []
        for t, n in steps:
            logits, values = network(torch.from_numpy(r.views.symbols[t, n])[None])
            chances = logits[0].softmax(0)
            ratio = chances[r.actions[t, n]] / old[t, n]
            bounded = ratio.clamp(1 - c.clip_coef, 1 + c.clip_coef)
            policy.append(-torch.minimum(weighted[t, n] * ratio, weighted[t, n] * bounded))
            errors = []
            for k in range(2):
                before, target = ppo.collector.values[t, n, k], returns[t, n, k]
                error = (values[0, k] - target) ** 2
                if c.clip_vloss:
                    near = before + (values[0, k] - before).clamp(-c.clip_coef, c.clip_coef)
                    error = torch.maximum(error, (near - target) ** 2)
                errors.append(error)
            value.append(0.5 * sum(errors))
            entropy.append(-(chances * chances.log()).sum())
        loss = sum(policy) + c.vf_coef * sum(value) - c.ent_coef * sum(entropy)
        optimizer.zero_grad()
        (loss / len(steps)).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), c.max_grad_norm)
        optimizer.step()
    return network


@pytest.mark.parametrize("changes", [{}, {"clip_vloss": True}, {"norm_adv": False}])
def test_an_update_is_what_the_formulas_say(changes: dict[str, bool]) -> None:
    ppo = make(replace(CONFIG, **changes))
    ppo.collector.collect(Clock())
    ppo.pay()
    ppo.rewards.add_(torch.randn(ppo.rewards.shape, generator=torch.Generator().manual_seed(0)))
    advantages, returns = ppo.advantages()
    wanted = naive_update(ppo, advantages, returns)
    ppo.update(advantages, returns)
    for got, want in zip(ppo.agent.module.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-3)


def after(ppo: PPO, iterations: int = 2) -> list[torch.Tensor]:
    for _ in range(iterations):
        metrics = ppo.iterate()
    assert np.isfinite(list(metrics.values())).all()
    return [p.detach().clone() for p in ppo.parameters]


def differs(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return not all(torch.allclose(x, y, atol=1e-4) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("setting", ["norm_adv", "clip_vloss"])
def test_a_setting_changes_what_is_learnt(setting: str) -> None:
    config = replace(CONFIG, **{setting: not getattr(CONFIG, setting)})
    assert differs(after(make()), after(make(config)))


@pytest.mark.parametrize("network", ["compact", "recurrent"])
@pytest.mark.parametrize("parts", [2, 3])
def test_a_minibatch_in_parts_is_the_minibatch_at_once(network: str, parts: int) -> None:
    config = replace(CONFIG, num_minibatches=2, clip_vloss=True)
    whole, parted = make(config, network), make(replace(config, accumulate=parts), network)
    one, other = whole.iterate(), parted.iterate()
    assert {k: v for k, v in one.items() if k[:4] == "ppo/"} == pytest.approx(
        {k: v for k, v in other.items() if k[:4] == "ppo/"}, rel=1e-3, abs=1e-5
    )
    for a, b in zip(whole.parameters, parted.parameters, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("model", [RND, NovelD, DEIR, ICM, LearntAPT])
def test_the_help_of_accumulate_names_the_models_that_learn_otherwise_in_parts(model) -> None:
    """It said that the gradient is the same, of the models of novelty too."""
    told = next(one.flag.help for one in flags_of(PPOConfig) if one.name == "accumulate")
    how = {"seed": 1} if issubclass(model, RND) else {"seed": 1, "num_actions": 4}
    learners = [
        make(replace(CONFIG, update_epochs=1, accumulate=parts), streams=[EnvReward(), model((1,), 4, **how)])
        for parts in (1, 2)
    ]
    for one in learners:
        one.iterate()
    (policy, own), (same, other) = ([[p.grad for p in owner] for owner in one.owners] for one in learners)
    for a, b in zip(policy, same, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert differs(own, other) == (model.name in told.partition("not that of")[2])


def test_groups_of_weights_have_learning_rates_of_their_own() -> None:
    def made(rates: str) -> PPO:
        return make(replace(CONFIG, group_learning_rates=rates), streams=[EnvReward(), RND((1,), 4, seed=1)])

    same, slow = made(""), made("rnd=0")
    before = [p.detach().clone() for p in slow.parameters]
    policy = len(slow.owners[0])
    changed = [not torch.equal(a, b) for a, b in zip(before, after(slow, 1), strict=True)]
    assert all(changed[:policy])
    assert not any(changed[policy:])
    assert all(torch.equal(a, b) for a, b in zip(after(same, 1)[:policy], slow.parameters[:policy], strict=True))
    assert slow.iterate()["ppo/learning_rate"] == CONFIG.learning_rate
    with pytest.raises(UsageError, match=r"no group 'polcy'\. Did you mean 'policy'\? Known: policy, rnd"):
        made("polcy=1e-3")
    with pytest.raises(UsageError, match="'rnd' is not NAME=RATE, such as rnd=1e-4"):
        made("rnd")
    for rate in ("-1e-3", "nan", "inf"):
        with pytest.raises(UsageError, match=f"'rnd={rate}' is not NAME=RATE, such as rnd=1e-4"):
            made(f"rnd={rate}")


def test_of_a_costly_agent_steps_of_one_view_stand_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, num_steps=64, num_minibatches=8, update_epochs=2)
    looked, epochs = {}, []
    for costly in (False, True):
        monkeypatch.setattr(NetworkAgent, "costly", costly)
        ppo = make(config)
        ppo.collector.collect(Clock())
        ppo.pay()
        numbers, seen = torch.from_numpy(ppo.collector.repeats.numbers).flatten(), []
        steps = ppo._steps()

        def noted(mb: torch.Tensor, seen=seen, steps=steps):
            seen.append(mb)
            return steps[1](mb)

        monkeypatch.setattr(ppo, "_steps", lambda noted=noted, steps=steps: (steps[0], noted, steps[2]))
        ppo.update(*ppo.advantages())
        epochs = [torch.cat(seen[first : first + 8]) for first in (0, 8)]
        assert [one.sort().values.tolist() for one in epochs] == [list(range(256))] * 2  # each step once an epoch
        looked[costly] = sum(len(numbers[mb].unique()) for mb in seen[:16])
    runs = 1 + int((numbers[epochs[0]].diff() != 0).sum())
    assert runs == len(numbers.unique())
    assert looked[True] <= 2 * (runs + 7) < looked[False]
    assert epochs[0].tolist() != epochs[1].tolist()


def test_novelty_learns_from_all_steps_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """RND trains on the first quarter of a minibatch, which of sequences were their first steps alone."""
    ppo = make(replace(CONFIG, num_envs=16), "recurrent", streams=[EnvReward(), RND((1,), 16, seed=1)])
    given, loss = [], ppo.streams[1].loss
    monkeypatch.setattr(ppo.streams[1], "loss", lambda index: given.append(index) or loss(index))
    ppo.iterate()
    assert len(given) == CONFIG.update_epochs
    for index in given:
        assert sorted(index.tolist()) == [*range(16 * CONFIG.num_steps)]
        assert (index[: len(index) // 4] // 16).max() >= CONFIG.num_steps // 2


def test_a_new_learner_has_not_touched_its_envs() -> None:
    envs = make_vec("Toy-Grid", 4)
    envs.reset = lambda **how: pytest.fail("reset")
    PPO(envs, new_agent("compact", envs, "symbolic", 1, 0), [EnvReward()], CONFIG, total_steps=10)


@pytest.mark.parametrize("iterations", [1, 3])
def test_log_probabilities_of_a_recurrent_agent_are_computed_again_as_they_were(iterations: int) -> None:
    """From what it remembered before the rollout; from nothing they would be others, wherever an episode goes on."""
    ppo = make(network="recurrent")
    after(ppo, iterations)
    ppo.collector.collect(Clock())
    assert (ppo.collector.rollout.ages[0] > 0).any()
    envs = torch.tensor([2, 0, 3])

    def computed_again() -> tuple[torch.Tensor, torch.Tensor]:
        _, look, _ = ppo._sequences()
        with torch.no_grad():
            where, logits, values = look(envs)
        then = ppo.collector.logits.flatten(0, 1)[where], ppo.collector.values.flatten(0, 1)[where]
        assert torch.allclose(values, then[1], atol=1e-5) == torch.allclose(logits, then[0], atol=1e-5)
        return logits, then[0]

    assert torch.allclose(*computed_again(), atol=1e-5)
    ppo.collector.first_state = ppo.agent.begin(4)
    assert not torch.allclose(*computed_again(), atol=1e-3)


def test_first_minibatch_of_a_recurrent_agent_has_ratio_1() -> None:
    ppo = make(replace(CONFIG, update_epochs=1), "recurrent")
    ppo.iterate()
    ppo.config = replace(ppo.config, learning_rate=0.0)
    metrics = ppo.iterate()
    assert abs(metrics["ppo/approx_kl"]) < 1e-6
    assert metrics["ppo/clip_fraction"] == 0.0


def test_sequences_are_shared_out_among_minibatches_by_env() -> None:
    with pytest.raises(UsageError, match="whole sequences, and 4 of them do not divide into 8 minibatches"):
        make(replace(CONFIG, num_minibatches=8), "recurrent")
    after(make(replace(CONFIG, num_minibatches=4), "recurrent"))
    after(make(replace(CONFIG, num_minibatches=8, recurrence=4), "recurrent"))
    with pytest.raises(UsageError, match="8 steps does not divide into sequences of 3"):
        replace(CONFIG, recurrence=3)


READERS = {"recurrent": {}, "pieces": {"recurrence": 4}, "film": {"recurrence": 4}, "compact": {}}


def reader(name: str, **changes: float) -> PPO:
    """PPO with an agent that reads missions, in an env whose missions change; episodes of at most 5 steps."""
    torch.set_num_threads(1)
    envs = make_vec("BabyAI-MixedTrainLocal-v0", 4, max_steps=5)
    network = {"pieces": "recurrent"}.get(name, name)
    agent = new_agent(network, envs, "symbolic", 1, 0, missions=True)
    teach(agent, envs)
    config = replace(CONFIG, **READERS[name] | changes)
    return PPO(envs, agent, [EnvReward()], config, total_steps=10**6, seed=3)


def test_an_agent_with_a_memory_that_looks_once_does_what_one_does_that_looks_at_all() -> None:
    once, every = reader("recurrent"), reader("recurrent")
    every.collector.look_once = False
    for ppo in (once, every):
        for _ in range(2):
            ppo.iterate()
    assert len(np.unique(once.collector.repeats.origins)) < once.collector.repeats.origins.size
    assert np.array_equal(once.collector.rollout.actions, every.collector.rollout.actions)
    assert torch.allclose(once.collector.logits, every.collector.logits, atol=1e-4)
    for a, b in zip(once.parameters, every.parameters, strict=True):
        assert torch.allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("name", READERS)
def test_what_an_agent_learns_from_is_what_it_said_when_it_acted(name: str) -> None:
    """Sequences begin with what was remembered there, in the middle of an episode too; each row has its own mission."""
    ppo = reader(name)
    for _ in range(3):
        ppo.iterate()
    ppo.collector.collect(Clock())
    count, look, _ = ppo._sequences() if ppo.memory else ppo._steps()
    assert count == (8 if "recurrence" in READERS[name] else 4 if ppo.memory else 32)
    with torch.no_grad():
        steps, logits, values = look(torch.randperm(count))
    assert sorted(steps.tolist()) == list(range(32))
    assert torch.allclose(logits, ppo.collector.logits.flatten(0, 1)[steps], atol=1e-5)
    assert torch.allclose(values, ppo.collector.values.flatten(0, 1)[steps], atol=1e-5)
    ppo.config = replace(ppo.config, learning_rate=0.0, update_epochs=1)
    for group in ppo.optimizer.param_groups:
        group["lr"] = 0.0
    metrics = ppo.iterate()
    assert abs(metrics["ppo/approx_kl"]) < 1e-5
    assert metrics["ppo/clip_fraction"] == 0.0


def test_nothing_of_an_episode_reaches_the_next_one() -> None:
    """After the start of an episode an agent says what one says that has just begun, whatever was before."""
    for name in ("recurrent", "film"):
        ppo = reader(name)
        ppo.collector.collect(Clock())
        c = ppo.collector
        t, n = (int(one[0]) for one in np.nonzero(c.rollout.ages[1:8] == 0))
        agent, view, first = ppo.agent, c.views[t + 1, [n]], np.ones(1, bool)
        fresh = agent.act(view, agent.begin(1), first, None).logits
        assert np.allclose(c.logits[t + 1, [n]].numpy(), fresh, atol=1e-6)
        full = {name: memory.normal_() for name, memory in agent.begin(1).items()}
        assert np.allclose(agent.act(view, full, first, None).logits, fresh, atol=1e-6)
        assert not np.allclose(agent.act(view, full, ~first, None).logits, fresh, atol=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow) if one == "film" else one for one in READERS]
)
def test_a_reader_goes_on_with_the_same_bytes(name: str) -> None:
    """Words, memories and gathered statistics included."""
    whole = reader(name)
    for _ in range(2):
        whole.iterate()
    saved = whole.state()
    arrays = {key: np.asarray(one).copy() for key, one in saved.tensors.items()}
    again = reader(name, learning_rate=0.02)
    again.restore(Saved(arrays, saved.counters, saved.exact))
    for ppo in (whole, again):
        ppo.iterate()
    others = again.state().tensors
    for name, one in whole.state().tensors.items():
        assert np.array_equal(np.asarray(one), np.asarray(others[name])), name


def test_truncated_ends_are_valued_from_what_was_remembered_there() -> None:
    """Toy-Endless is cut every 20 steps: V(last observation) of an agent with a memory depends on the memory."""
    ppo = make(replace(CONFIG, num_steps=50), "recurrent", env_id="Toy-Endless")
    ppo.collector.collect(Clock())
    c = ppo.collector
    assert len(c.final_views) == 8
    got = c.last_values(np.ones(8, bool))[4:]
    state, wanted = c.first_state, {}
    for t in range(50):
        acted = ppo.agent.act(c.views[t], state, c.rollout.ages[t] == 0, None)
        state = acted.state
        for place, index in enumerate(c.rollout.final_index):
            if index // 4 == t:
                row = {"hidden": state["hidden"][index % 4][None]}
                wanted[place] = ppo.agent.act(c.final_views[place : place + 1], row, np.zeros(1, bool), None).values[0]
    assert np.allclose(got.numpy(), np.stack([wanted[place] for place in range(8)]), atol=1e-5)


class Goaled(NetworkAgent):
    """An agent without memory that sees its goal beside its observation."""

    wants = ("symbols", "goal")

    def inputs(self, views):
        return {"seen": torch.from_numpy(np.concatenate([views.symbols, views.goal], 1))}


class Goals(RewardStream):
    """A goal for each episode, 0 or 1, drawn at random; its stream pays for the action that the goal names."""

    name, gamma, coef, episodic = "goals", 0.5, 1.0, True

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.now = np.zeros((8, 1), np.uint8)

    def __call__(self, views, started):
        self.now[started] = self.rng.integers(0, 2, (int(started.sum()), 1))
        return self.now.copy()

    def happened(self, actions, infos, after):
        pass

    def rewards(self, rollout):
        reached = rollout.actions == rollout.views.goal[:-1, :, 0]
        return reached.astype(np.float32)

    def state(self):
        return {"now": self.now}

    def restore(self, state):
        self.now = np.array(state["now"])


def goaled(seed: int = 0) -> PPO:
    from bkrl.agents.networks import build_network
    from bkrl.envs.symbols import Symbols

    config = PPOConfig(num_envs=8, num_steps=32, num_minibatches=4, learning_rate=3e-3)
    network = build_network(
        "compact", obs_shape=(2,), num_actions=2, num_values=1, symbols=Symbols.of_sizes([2, 2]), seed=seed
    )
    agent, goals = Goaled(network, "Toy-Endless", "toy", ("idle", "work")), Goals()
    return PPO(make_vec("Toy-Endless", 8), agent, [goals], config, total_steps=10**6, goals=goals)


def test_goals_reach_the_agent_and_its_rewards() -> None:
    ppo = goaled()
    for _ in range(15):
        ppo.iterate()
    views, rollout = ppo.collector.views, ppo.collector.rollout
    assert {0, 1} == set(np.unique(views.goal))
    assert ppo.streams[0].rewards(rollout).mean() > 0.95
    ended = np.flatnonzero(rollout.truncated.any(1))
    t = int(ended[0])
    assert np.array_equal(ppo.collector.final_views.goal[:8], views.goal[t])  # the goal of the episode that ended
    assert (ppo.collector.repeats.origins[: 32 * 8].reshape(32, 8)[:, 0] <= np.arange(32) * 8).all()
    distinct = {(int(s), int(g)) for s, g in zip(views.symbols[:32].ravel(), views.goal[:32].ravel(), strict=True)}
    assert len(np.unique(ppo.collector.repeats.origins)) == len(distinct)


def test_goals_come_back_with_a_checkpoint() -> None:
    whole = goaled()
    whole.iterate()
    saved = whole.state()
    arrays = {name: torch.as_tensor(tensor).detach().numpy().copy() for name, tensor in saved.tensors.items()}
    again = goaled(seed=1)
    again.restore(saved._replace(tensors=arrays))
    assert np.array_equal(again.streams[0].now, whole.streams[0].now)
    assert np.array_equal(again.collector.views.goal[-1], whole.collector.views.goal[-1])


def test_each_value_learns_its_own_return_and_with_g7_the_mean_of_all():
    """Published: (B, 1) values against (B,) returns, whose gradient is 2/B (V_i - mean R); meant: 2/B (V_i - R_i)."""
    returns = torch.tensor([[1.0], [4.0], [-2.0], [9.0]])
    for broadcast, towards in ((False, returns), (True, returns.mean().expand(4, 1))):
        values = torch.tensor([[0.5], [1.0], [3.0], [-1.0]], requires_grad=True)
        loss = 2 * value_loss(
            values, torch.zeros(4, 1), returns, broadcast=broadcast
        )  # published without the factor 1/2
        (gradient,) = torch.autograd.grad(loss, values)
        torch.testing.assert_close(gradient, 2 / 4 * (values.detach() - towards))
    values, before = torch.randn(2, 5, 1, generator=torch.Generator().manual_seed(0))
    returns = torch.linspace(-2, 2, 5)[:, None]
    squares = torch.zeros(5, 5)  # as it stands in the published code, element by element
    for i in range(5):
        for j in range(5):
            clipped = before[j] + (values[i] - before[j]).clamp(-0.2, 0.2)
            squares[i, j] = torch.maximum((values[i] - returns[j]) ** 2, (clipped - returns[j]) ** 2)
    torch.testing.assert_close(value_loss(values, before, returns, 0.2, broadcast=True), 0.5 * squares.mean())


def test_the_published_value_loss_is_not_computed_in_parts():
    envs = make_vec("Toy-Grid", 4)
    agent = new_agent("compact", envs, "symbolic", 1, 0)
    parts = replace(CONFIG, accumulate=2)
    with pytest.raises(UsageError, match="--compat g7 .* leave out --accumulate"):
        PPO(envs, agent, [EnvReward()], parts, total_steps=1, broadcast_values=True)
