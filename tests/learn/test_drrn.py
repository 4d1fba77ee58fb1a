"""The network that reads: its arithmetic, its files, its learning, its continuation."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from bkrl.agents import load_agent
from bkrl.agents.drrn import DRRNNetwork, Reading, new_drrn
from bkrl.agents.networks.reader import read
from bkrl.agents.play import play
from bkrl.agents.viewer import Viewer
from bkrl.core.errors import InputError, UsageError
from bkrl.envs import make_vec
from bkrl.learn.settings import ReplayConfig
from bkrl.methods import TrainRsConfig, find_method
from bkrl.text.tokenizer import Tokenizer
from bkrl.text.wording import Wording

EASY = "BabyAI-GoToObjS4-v0@actions=restricted"


def learner_of(env=EASY, steps=1000, compat="", **replay):
    torch.set_num_threads(1)
    config = ReplayConfig(**{"num_envs": 4, "num_steps": 8, "batch_size": 8, "learning_rate": 1e-3, **replay})
    how = {"form": "lamorel", "observations": 1} if not compat else {}
    settings = TrainRsConfig(alg="drrn", env=env, steps=steps, compat=compat, replay=config, **how)
    return find_method("drrn").build(settings).learner


def test_the_number_of_weights_is_the_published_one():
    def count(vocabulary):
        return sum(weight.numel() for weight in DRRNNetwork.empty(vocabulary).parameters())

    assert count(8_000) == 1_255_169
    assert count(300) == 231_169 + 128 * 300


@pytest.mark.parametrize("lengths", [[3, 7, 1, 7], [1], [5, 5], list(range(1, 40))])
def test_reading_is_torchs_unit_on_packed_sequences(lengths):
    torch.manual_seed(len(lengths))
    unit, embedding = nn.GRU(6, 6, batch_first=True), nn.Embedding(9, 6)
    lengths = torch.tensor(lengths)
    tokens = torch.randint(0, 9, (len(lengths), int(lengths.max()) + 2))
    weight = torch.randn(len(lengths), 6)

    def naive():
        packed = nn.utils.rnn.pack_padded_sequence(embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        return unit(packed)[1][0]

    found = []
    for form in (lambda: read(unit, embedding, tokens, lengths), naive):
        nn.ModuleList([unit, embedding]).zero_grad()
        out = form()
        (out * weight).sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in (*unit.parameters(), *embedding.parameters()))])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(read(unit, embedding, tokens, lengths), found[0][0])


def test_worth_is_the_published_layers_on_state_and_action_side_by_side():
    network = DRRNNetwork.empty(20)
    network.initialise(torch.Generator().manual_seed(0))
    states, actions = torch.randint(1, 20, (3, 5)), torch.randint(1, 20, (4, 2))
    lengths = torch.tensor([5, 2, 3]), torch.tensor([2, 1, 2, 2])
    worth = network(states, lengths[0], actions, lengths[1])
    of_state = read(network.state_reader, network.embedding, states, lengths[0])
    of_action = read(network.action_reader, network.embedding, actions, lengths[1])
    for b in range(3):
        for a in range(4):
            both = torch.cat([of_state[b], of_action[a]])
            torch.testing.assert_close(worth[b, a], network.worth(network.hidden(both).relu())[0])


def test_a_tokenizer_knows_every_text_and_comes_back():
    tokenizer = Tokenizer.trained(["go to the red ball", "go to the red box"] * 3, 300)
    assert tokenizer.to_json() == Tokenizer.trained(["go to the red ball", "go to the red box"] * 3, 300).to_json()
    assert tokenizer.size <= 300
    tokens, lengths = tokenizer(["go to the red ball", "dax, à gauche", ""])
    assert lengths.tolist()[0] < len(["go", "to", "the", "red", "ball"]) + 3
    assert lengths.min() == 1
    assert (tokens[0, lengths[0] :] == 0).all()
    again = Tokenizer.of_json(tokenizer.to_json())
    np.testing.assert_array_equal(again(["dax, à gauche"])[0], tokenizer(["dax, à gauche"])[0])


def test_an_agent_reads_each_prompt_once_and_comes_back(tmp_path):
    envs = make_vec("BabyAI-MixedTrainLocal-v0@actions=canonical,num_dists=1", 2)
    agent = new_drrn(envs, 400, Reading(observations=2), Wording(words="nouns"), seed=3)
    assert agent.action_names[0] == "turn left"
    view = Viewer(envs, agent)
    views = view(envs.reset(seed=0)[0], np.ones(2, bool))[[0, 0, 1]]
    read_rows = []
    agent.module.register_forward_pre_hook(lambda module, args: read_rows.append(len(args[0])))
    values = agent.values(views)
    assert read_rows == [2]
    assert torch.equal(values[0], values[1])
    files = agent.save(tmp_path)
    assert (tmp_path / "policy-tokenizer.json").is_file()
    again = load_agent(tmp_path)
    assert again.wording == agent.wording
    assert torch.equal(again.values(views), values)
    (tmp_path / files[1]).write_text("{}")
    with pytest.raises(InputError, match="policy-tokenizer.json was changed"):
        load_agent(tmp_path)


@pytest.mark.slow
def test_it_learns_an_easy_level():
    learner = learner_of(
        steps=3_000, num_envs=16, num_steps=32, train_every=2, batch_size=64, target_every=20, n_step=3
    )

    def steps_needed():
        return np.mean([episode.length for episode in play(learner.agent, make_vec(EASY, 64), 64, seed=9)])

    before = steps_needed()
    while not learner.done:
        metrics = learner.iterate()
    assert metrics["rollout/success_rate"] > 0.9
    assert steps_needed() < 0.7 * before


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"target_every": 2, "n_step": 2, "capacity": 40},
        pytest.param({"compat": "upstream"}, marks=pytest.mark.slow),
    ],
)
def test_it_goes_on_exactly_where_it_was(options):
    one = learner_of(max_env(options), **options)
    for _ in range(2):
        one.iterate()
    saved = one.state()
    assert saved.exact
    tensors = {name: np.asarray(value).copy() for name, value in saved.tensors.items()}
    again = learner_of(max_env(options), **options)
    again.restore(replace_tensors(saved, tensors))
    for _ in range(2):
        a, b = one.iterate(), again.iterate()
        assert {k: v for k, v in a.items() if "time/" not in k} == {k: v for k, v in b.items() if "time/" not in k}
    first, second = one.state(), again.state()
    assert first.counters == second.counters == {"step": 128, "episodes": one.episodes, "updates": one.updates}
    assert one.episodes > 3
    assert one.updates > 3
    for name, value in first.tensors.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(second.tensors[name]), err_msg=name)


def test_steps_that_are_remembered_end_their_episodes_where_fresh_ones_begin():
    one, again = learner_of(), learner_of()
    one.iterate()
    saved = one.state()
    tensors = {name: np.asarray(value).copy() for name, value in saved.tensors.items()}
    again.restore(replace_tensors(saved, tensors)._replace(exact=False))
    assert not one.replay.state()["truncated"][-1].all()
    assert again.replay.state()["truncated"][-1].all()


def max_env(options):
    """Episodes short enough that some end by their limit."""
    return EASY + ",max_steps=6" if "capacity" in options else "BabyAI-GoToLocal-v0@actions=restricted,max_steps=6"


def replace_tensors(saved, tensors):
    return saved._replace(tensors=tensors, counters=json.loads(json.dumps(saved.counters)))


def test_the_target_of_an_update_by_hand():
    learner = learner_of(EASY + ",max_steps=5", gamma=0.5, batch_size=20)
    learner.iterate()
    batch = learner.replay.sample(20, np.random.default_rng(0), gamma=0.5)
    worth = learner.agent.values(learner.keys.views(batch.after)).amax(1).detach().numpy()
    targets = learner._targets(batch).numpy()
    np.testing.assert_allclose(targets, batch.returns + batch.discounts * worth, rtol=1e-6)
    assert set(np.unique(batch.discounts)) <= {np.float32(0), np.float32(0.5)}
    assert (targets[batch.discounts == 0] == batch.returns[batch.discounts == 0]).all()


def test_published_defects_come_back_by_their_names():
    published = learner_of(compat="b10")
    for _ in range(5):
        published.iterate()
    state = {name: published.replay.state()[name] for name in ("terminated", "truncated")}
    assert state["truncated"].any()
    assert (state["truncated"] <= state["terminated"]).all()
    with pytest.raises(
        UsageError, match="g4 .* concerns Q-learning by an agent that reads or a policy that is a language model"
    ):
        find_method("ppo").build(TrainRsConfig(alg="ppo", env=EASY, steps=10, compat="g4"))


@pytest.mark.parametrize("small", [{"capacity": 4}, {"capacity": 16, "learning_starts": 32}, {"train_every": 9}])
def test_settings_by_which_nothing_would_be_learnt_are_refused(small):
    with pytest.raises(UsageError, match="Nothing would ever be learnt"):
        learner_of(**small)


@pytest.mark.parametrize(
    ("most", "more"),
    [({}, 0), ({"train_every": 3}, 8), ({"n_step": 3}, 8), ({"learning_starts": 64, "batch_size": 8}, 0)],
)
def test_a_run_that_is_over_before_the_first_update_is_refused(most, more):
    """It ran to its end, and saved an untrained network without a word."""
    given = {"batch_size": 64 - more, **most}
    learner = learner_of(steps=33, **given)  # an iteration has 32 steps
    while not learner.done:
        learner.iterate()
    assert (learner.step, learner.updates) == (64, 1)
    for few in ({"steps": 32}, {"batch_size": 65 - more}):
        with pytest.raises(UsageError, match="Nothing would ever be learnt: --steps or --capacity is too small"):
            learner_of(**{"steps": 33, **given, **few})
