"""ECHO's loss against cross-entropies one by one, and what it is taken of."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError
from bkrl.envs import make_vec, sentences
from bkrl.learn.echo import Echo
from bkrl.learn.ppo import PPO
from bkrl.rewards.streams import EnvReward

ENV = "BabyAI-GoToLocal-v0@max_steps=3,actions=restricted"
CONFIG = PPOConfig(num_envs=4, num_steps=4, num_minibatches=2, update_epochs=1, learning_rate=1e-3)


def learner(name, weight=0.5):
    agent = LanguageAgent(open_language_model(name), ENV, 1, LanguageSettings(head_sizes=(8,), observations=1))
    return PPO(
        make_vec(ENV, 4), agent, [EnvReward()], CONFIG, total_steps=10**6, seed=1, auxiliaries=[Echo(agent, weight)]
    )


def alone(lm, given, said, skipped):
    """The summed cross-entropy of what is said beyond `skipped` tokens, and their number."""
    if lm.kind == "seq2seq":
        fed = torch.tensor([[lm.start, *said[:-1]]])
        logits = lm.model(input_ids=torch.tensor([given]), decoder_input_ids=fed).logits[0]
    else:
        logits = lm.model(input_ids=torch.tensor([[*given, *said]])).logits[0, len(given) - 1 : -1]
    return cross_entropy(logits[skipped:], torch.tensor(said)[skipped:], reduction="sum"), len(said) - skipped


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-causal"])
def test_it_is_the_cross_entropy_of_what_is_seen_next(name):
    ppo = learner(name)
    ppo.iterate()
    ppo.auxiliaries[0].begin(ppo.collector)
    lm, collector = ppo.agent.lm, ppo.collector
    rollout, names = collector.rollout, ppo.agent.scorer.names
    ends = dict(zip(rollout.final_index.tolist(), range(len(rollout.final_index)), strict=True))
    assert len(ends) >= 4  # of 3 steps each
    losses = []
    for step in range(16):
        t, env = divmod(step, 4)
        prompts, index = ppo.agent.prompts(collector.views[t])
        symbols = collector.final_views.symbols[ends[step]] if step in ends else collector.views[t + 1].symbols[env]
        seen = ", ".join(one.removesuffix(".") for one in sentences(ENV)(symbols[None])[0])
        space = "" if lm.kind == "seq2seq" else " "
        name_of = lm.tokenizer(space + names[rollout.actions[t, env]])["input_ids"]
        said = [*name_of, *lm.tokenizer(space + seen)["input_ids"], lm.tokenizer.eos_token_id]
        loss, number = alone(lm, lm.tokens(prompts[index[env]]), said, len(name_of))
        losses.append(loss / number)
    wanted = torch.stack(losses).mean()
    torch.testing.assert_close(ppo.auxiliaries[0].loss(torch.arange(16), torch.zeros(16, 6)), 0.5 * wanted)
    assert ppo.auxiliaries[0].metrics()["ppo/echo_loss"] == pytest.approx(float(wanted.detach()), rel=1e-5)


def test_its_weight_is_that_of_the_gradient_and_it_falls():
    ppo = learner("tiny-t5", weight=1.0)
    losses = [ppo.iterate()["ppo/echo_loss"] for _ in range(4)]
    assert losses[-1] < losses[0] - 0.1
    doubled = Echo(ppo.agent, 2.0)
    doubled.begin(ppo.collector)
    ppo.auxiliaries[0].begin(ppo.collector)
    plain = ppo.auxiliaries[0].loss(torch.arange(4), torch.zeros(4, 6))
    torch.testing.assert_close(doubled.loss(torch.arange(4), torch.zeros(4, 6)), 2 * plain)


def test_more_than_the_model_reads_is_refused():
    ppo = learner("tiny-causal")
    ppo.agent.lm.model.config.max_position_embeddings = 160
    with pytest.raises(InputError, match="A prompt with what is seen after it has up to"):
        ppo.iterate()
