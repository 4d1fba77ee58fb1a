"""The agent of ELLM's release: its network, its text, its pictures, and that it is kept and trained like any other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bkrl.agents import load_agent
from bkrl.agents.published_q import FRAME_BYTES, FRAMES, SIDE, PublishedAgent, PublishedNetwork, grey
from bkrl.core.errors import UsageError
from bkrl.core.reporter import Reporter
from bkrl.learn.replay import Replay
from bkrl.learn.settings import DQNConfig
from bkrl.methods import TrainRsConfig, find_method
from bkrl.stages import train_rs
from bkrl.text.encoders import _loaded
from tests.potentials.test_goal import tiny_encoder

SMALL = DQNConfig(num_envs=2, num_steps=2, learning_starts=8, batch_size=4, update_every=8, replay_size=64)
ENV = "Crafter-Typed-Easier@length=6"


def learner(dqn=SMALL, **more):
    given = {"env": ENV, "sees": "published", "dqn": dqn, "steps": 1_000, **more}
    training = find_method("ellm-dqn").build(TrainRsConfig("ellm-dqn", **given))
    assert training.facts["view"] == "image"
    return training.learner


def test_the_number_of_weights_is_the_published_one():
    """3.53 million with 139 actions and texts of 384, as counted in the release."""
    network = PublishedNetwork(139, 384)
    assert sum(p.numel() for p in network.parameters()) == 3_528_492
    network.initialise(0)
    pictures, text = torch.randint(0, 256, (3, FRAMES, SIDE, SIDE), dtype=torch.uint8), torch.randn(3, 384)
    values = network(pictures, text)
    assert values.shape == (3, 139)
    assert float(values.detach().abs().max()) < 0.05  # untrained values are near 0


def test_grey_is_the_mean_of_colours_at_84():
    flat = np.broadcast_to(np.array([30, 60, 90], np.uint8), (2, 64, 64, 3))
    assert (grey(flat) == 60).all()
    assert grey(flat).shape == (2, SIDE, SIDE)
    half = np.zeros((1, 64, 64, 3), np.uint8)
    half[:, :, 32:] = 200
    made = grey(half)[0]
    assert (made[:, :40] == 0).all()
    assert (made[:, 44:] == 200).all()


@pytest.mark.parametrize(("compat", "said"), [("", "chop tree, sleep."), ("e6", "chop tree sleep.")])
def test_the_text_is_what_is_seen_and_the_goals(compat, said):
    agent = learner(compat=compat).agent
    goals = np.array([deed in ("chop tree", "sleep") for deed in agent._known.deeds], np.uint8)
    symbols = np.zeros(82, np.uint8)
    assert agent.text(symbols, goals).startswith("you see ")
    assert agent.text(symbols, goals).endswith(f" your goal is: {said}")


def test_it_acts_on_the_last_four_pictures_and_forgets_at_the_end_of_an_episode():
    agent = learner().agent
    agent.epsilon = 0.0
    rng = np.random.default_rng(0)
    frames = torch.from_numpy(rng.integers(0, 256, (6, 2, 1, SIDE, SIDE), dtype=np.uint8))
    text = torch.zeros(1, 2, agent.encoder.size)
    state = agent.begin(2)
    for t in range(6):
        started = torch.tensor([[t == 0, t in (0, 4)]])
        values, state = agent.forward({"pictures": frames[t][None], "text": text}, state, started)[1:]
        for env, first in enumerate((0, 4 if t >= 4 else 0)):
            wanted = torch.stack([frames[max(first, t - back), env, 0] for back in (3, 2, 1, 0)])[None]
            best = agent.module(wanted, text[0, :1]).max()
            torch.testing.assert_close(values[0, env, 0], best, rtol=1e-4, atol=1e-6)


def test_what_is_drawn_has_the_pictures_of_its_own_episode():
    """One env; the third step ends an episode, so the fourth begins with its own picture alone."""
    memory = Replay(8, 1, picture_bytes=1, pictures=3)
    for t, end in enumerate((False, False, True, False, False)):
        row, after = np.array([[10 + t, 100 + t]], np.uint8), np.array([[50 + t, 100 + t]], np.uint8)
        memory.add(row, np.array([0]), np.zeros(1, np.float32), after, np.array([end]), np.array([False]))
    batch = memory.sample(5, np.random.default_rng(0), gamma=1.0)
    found = {
        int(seen[-1]): (seen[:-1].tolist(), after.tolist()) for seen, after in zip(batch.seen, batch.after, strict=True)
    }
    assert found == {
        100: ([10, 10, 10], [10, 10, 50, 100]),
        101: ([10, 10, 11], [10, 11, 51, 101]),
        102: ([10, 11, 12], [11, 12, 52, 102]),
        103: ([13, 13, 13], [13, 13, 53, 103]),
        104: ([13, 13, 14], [13, 14, 54, 104]),
    }


def test_it_learns_from_rows_and_goes_on_from_a_checkpoint_and_a_file(tmp_path):
    whole, stopped = learner(), learner()
    for one in (whole, stopped):
        for _ in range(8):
            one.iterate()
    saved, other = stopped.state(), learner()
    other.restore(saved._replace(tensors={name: np.asarray(one).copy() for name, one in saved.tensors.items()}))
    for _ in range(4):
        whole.iterate()
        other.iterate()
    assert whole.updates == other.updates > 1
    for ours, theirs in zip(whole.agent.module.parameters(), other.agent.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert whole.replay._columns["seen"].shape[-1] == FRAME_BYTES + 82 + 27
    whole.agent.save(tmp_path)
    kept = load_agent(tmp_path)
    assert isinstance(kept, PublishedAgent)
    views, state = whole.collector.views[2], whole.agent.begin(2)
    acted = [agent.act(views, state, np.ones(2, bool), None).logits for agent in (whole.agent, kept)]
    np.testing.assert_array_equal(*acted)


def test_a_policy_with_a_text_encoder_of_transformers_can_be_opened_again(tmp_path):
    """Its weights were checked where no encoder can be loaded: runs trained to their end and were lost."""
    tiny_encoder(tmp_path / "encoder")
    whole = learner(text_encoder=f"hf:{tmp_path / 'encoder'}")
    whole.agent.save(tmp_path)
    _loaded.cache_clear()  # as in a new process
    kept = load_agent(tmp_path)
    np.testing.assert_array_equal(kept.encoder(["red ball"]), whole.agent.encoder(["red ball"]))
    whole.collector.begin()
    views, state = whole.collector.views[whole.collector.num_steps], whole.agent.begin(2)
    acted = [agent.act(views, state, np.ones(2, bool), None).logits for agent in (whole.agent, kept)]
    np.testing.assert_array_equal(*acted)


def test_a_guide_reads_the_texts_that_the_agent_reads(tmp_path):
    """Another encoder was taken: of the same size its vectors meant nothing to the guide, of another it broke off."""
    for name in ("one", "other"):
        tiny_encoder(tmp_path / name)
    same = {"text_encoder": f"hf:{tmp_path / 'one'}"}
    config = TrainRsConfig(
        "ellm-dqn", env=ENV, sees="published", dqn=SMALL, steps=16, eval_episodes=1, out=tmp_path / "run", **same
    )
    guide = train_rs.run(config, Reporter()).path
    assert learner(guide=guide, **same).agent.guide is not None
    for other in ({"text_encoder": f"hf:{tmp_path / 'other'}"}, {"text_encoder": "hash"}, {**same, "compat": "e6"}):
        with pytest.raises(UsageError, match="sees or does other things"):
            learner(guide=guide, **other)


def test_a_guide_is_for_training_alone():
    """It chose among the actions of evaluations too."""
    learns, guide = learner(), learner(seed=2)
    learns.collector.begin()
    agent, views = learns.agent, learns.collector.views[learns.collector.num_steps]
    alone = agent.act(views, agent.begin(2), np.ones(2, bool), None).logits
    agent.guide, agent.guide_share = guide.agent, 0.5
    np.testing.assert_array_equal(agent.act(views, agent.begin(2), np.ones(2, bool), None).logits, alone)
    assert agent.guide is guide.agent


def test_published_defects_come_back_by_their_names():
    shared = learner(compat="e5")
    assert shared.target.joined is shared.agent.module.joined
    assert shared.target.value is not shared.agent.module.value
    assert learner().target.joined is not learner().agent.module.joined
    first = learner(compat="e1").agent.module
    assert float(first.value[-1].weight.detach().norm()) > 0.9
    frozen, undone = learner(trains="last").agent, learner(trains="last", compat="e7").agent
    assert {name.rpartition(".")[0] for name, one in frozen.module.named_parameters() if one.requires_grad} == {
        "value.4", "advantage.4",
    }  # fmt: skip
    assert all(one.requires_grad for one in undone.module.parameters())


def test_it_needs_pictures_and_deeds():
    with pytest.raises(UsageError, match="no effect"):
        TrainRsConfig("ellm", sees="published")
    with pytest.raises(UsageError, match="no pictures or no deeds"):
        learner(env="Housekeep-Symbolic-Task1")
