"""A language model as an agent: trained by PPO, resumed exactly, saved in files that other libraries open."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bkrl.agents import load_agent
from bkrl.agents.language.adapters import ENCODER, LINEAR, Trainable, by_size
from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.heads import Head
from bkrl.agents.language.scorer import Scoring
from bkrl.agents.play import LookOnce, play
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.envs import make_vec
from bkrl.envs.babyai.constants import ACTION_SETS
from bkrl.learn.ppo import PPO
from bkrl.learn.protocol import Saved
from bkrl.rewards.streams import EnvReward
from bkrl.text.wording import Wording
from tests.llm.tiny_model import without

ENV = "BabyAI-GoToLocal-v0"
CONFIG = PPOConfig(num_envs=4, num_steps=4, num_minibatches=2, update_epochs=2, learning_rate=1e-3)
SMALL = LanguageSettings(Scoring(normalise="token"), head_sizes=(16,), observations=1)
TRAININGS = {
    "all": ("tiny-t5", Trainable()),
    "frozen encoder": ("tiny-t5", Trainable(frozen=ENCODER)),
    "lower layers of the encoder": ("tiny-t5", Trainable(frozen=1)),
    "adapters in the decoder": ("tiny-t5", Trainable("lora", ENCODER, rank=2)),
    "adapters in upper layers": ("tiny-causal", Trainable("lora", 2, rank=2)),
    "adapters on all linear layers": ("tiny-t5", Trainable("lora", 1, rank=2, targets=LINEAR)),
    "frozen layers": ("tiny-causal", Trainable(frozen=2)),
    "layers in bfloat16": ("tiny-causal", Trainable("lora", 2, rank=2, half=True)),
    "heads": ("tiny-causal", Trainable("heads")),
}
QUICK = {"adapters in the decoder", "heads"}


def agent_of(name="tiny-t5", settings=SMALL, seed=0, **more):
    return LanguageAgent(open_language_model(name, seed=seed), ENV, 1, settings, seed=seed, **more)


def learner(agent, config=CONFIG):
    return PPO(make_vec(ENV, config.num_envs), agent, [EnvReward()], config, total_steps=10**6, seed=1)


def some_views(agent, count=4):
    ppo = learner(agent, replace(CONFIG, num_envs=count))
    ppo.collector.begin()
    return ppo.collector.views[CONFIG.num_steps]


def said(agent, views):
    return agent.act(views, {}, np.zeros(len(views), bool), None)


def untimed(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


@pytest.mark.parametrize(
    "kind", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in TRAININGS]
)
def test_training_goes_on_exactly_where_it_stopped(kind, tmp_path):
    name, training = TRAININGS[kind]
    settings = replace(SMALL, training=training, action_head=kind == "heads")
    first = learner(agent_of(name, settings))
    first.iterate()
    state = first.state()
    arrays = {
        key: value.detach().numpy().copy() if isinstance(value, torch.Tensor) else np.array(value)
        for key, value in state.tensors.items()
    }
    trained = [key for key in arrays if key.startswith("network.")]
    assert len(trained) == sum(map(len, first.agent.groups().values()))  # what is frozen is in no checkpoint
    said(first.agent, first.collector.views[0])  # as an evaluation does, of which a process that goes on knows nothing
    again = learner(agent_of(name, settings))
    again.restore(Saved(arrays, state.counters, state.exact))
    assert untimed(again.iterate()) == untimed(first.iterate())
    for one, other in zip(first.agent.module.parameters(), again.agent.module.parameters(), strict=True):
        assert torch.equal(one, other)

    files = first.agent.save(tmp_path)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == sorted(files)
    views = first.collector.views[0]
    opened, kept = said(load_agent(tmp_path), views), said(first.agent, views)
    np.testing.assert_array_equal(opened.logits, kept.logits)
    np.testing.assert_array_equal(opened.values, kept.values)


def test_frozen_layers_read_a_prompt_once_in_an_iteration(monkeypatch):
    agent = agent_of("tiny-causal", replace(SMALL, training=Trainable(frozen=2)))
    read, whole = [], agent.scorer.lower
    monkeypatch.setattr(agent.scorer, "lower", lambda prompts: read.extend(prompts.tokens.tolist()) or whole(prompts))
    ppo = learner(agent)
    ppo.iterate()
    views = ppo.collector.views
    distinct = {text for row in range(CONFIG.num_steps + 1) for text in agent.prompts(views[row])[0]}
    assert len(distinct) <= len(read) <= len(distinct) + len(ppo.collector.final_views)
    assert not agent.lower
    inputs = agent.inputs(views[0])
    count = len(read)
    again = agent.inputs(views[0])
    assert len(read) == count
    assert all(torch.equal(inputs[name], again[name]) for name in inputs)
    monkeypatch.setattr("bkrl.agents.language.agent._KEPT_BYTES", 0)  # prompts that do not fit are read each time
    large = agent.inputs(views[0])
    assert len(read) > count
    last = inputs["lengths"].min()
    torch.testing.assert_close(large["states"][:, :last], inputs["states"][:, :last], rtol=1e-5, atol=1e-5)


def test_the_first_minibatch_finds_the_policy_that_acted():
    for name in ("tiny-t5", "tiny-causal"):
        metrics = learner(agent_of(name), replace(CONFIG, num_minibatches=1, update_epochs=1)).iterate()
        assert abs(metrics["ppo/approx_kl"]) < 1e-5
        assert metrics["ppo/clip_fraction"] == 0


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-causal"])
def test_a_large_model_learns_from_few_tokens_at_once_what_it_learns_from_all(name, monkeypatch):
    config, settings = replace(CONFIG, num_envs=8, num_minibatches=1), replace(SMALL, most_tokens=32 * 250)
    whole = learner(agent_of(name, settings), config)
    said = whole.iterate()
    monkeypatch.setattr("bkrl.agents.language.models.LARGE", 0)
    parted = learner(agent_of(name, settings), config)
    read, score = [], parted.agent.scorer._score
    monkeypatch.setattr(
        parted.agent.scorer,
        "_score",
        lambda prompts, lower: (torch.is_grad_enabled() and read.append(prompts), score(prompts, lower))[1],
    )
    in_parts = parted.iterate()
    texts = [tuple(row[:length]) for one in read for row, length in zip(one.tokens.tolist(), one.lengths, strict=True)]
    assert len(read) > 2 * config.update_epochs
    assert len(texts) == config.update_epochs * len(set(texts))  # equal prompts are in one part
    if name == "tiny-t5":  # of a causal model only new tokens count
        assert max(one.tokens.numel() for one in read) <= 250
    ppo = [key for key in said if key.startswith("ppo/")]
    assert [in_parts[key] for key in ppo] == pytest.approx([said[key] for key in ppo], rel=1e-3, abs=1e-5)
    for one, other in zip(whole.parameters, parted.parameters, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_a_policy_opens_as_a_folder_of_transformers(tmp_path):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    agent = agent_of("tiny-t5")
    agent.save(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "policy").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    prompt = "Goal of the agent: go to the red ball"
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    place = agent.action_names.index("forward")
    candidate = tokenizer(agent.scorer.names[place], add_special_tokens=False).input_ids
    with torch.no_grad():
        before = torch.tensor([[0, *candidate[:-1]]])
        said = model(input_ids=ids, decoder_input_ids=before).logits[0].log_softmax(1)
        scored = agent.scorer(agent.scorer.prompts([prompt])).scores[0]
    torch.testing.assert_close(scored[place], said.gather(1, torch.tensor(candidate)[:, None]).mean())


def test_adapters_open_in_peft_outside(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    open_language_model("tiny-causal", seed=5).save(base)
    agent = LanguageAgent(open_language_model(str(base)), ENV, 1, replace(SMALL, training=Trainable("lora")), seed=1)
    with torch.no_grad():
        for parameter in agent.groups()["policy"]:
            parameter.add_(0.1)
    agent.save(tmp_path / "run")
    assert not list((tmp_path / "run/policy").glob("model*"))
    document = json.loads((tmp_path / "run/policy/adapter_config.json").read_text())
    assert document["base_model_name_or_path"] == str(base)
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "run/policy").eval()
    ids = torch.tensor([agent.lm.tokens("go to the red ball")])
    with torch.no_grad():
        last = plain(input_ids=ids).logits[0, -1].log_softmax(0)
        scored = agent.scorer(agent.scorer.prompts(["go to the red ball"])).scores[0]
    place = agent.action_names.index("toggle")
    torch.testing.assert_close(scored[place], last[agent.scorer.candidates[place][0]])
    (base / "generation_config.json").write_text("{}")
    with pytest.raises(InputError, match="is another model than the policy was trained on"):
        load_agent(tmp_path / "run")


def test_heads_alone_and_action_heads_leave_the_model_alone():
    agent = agent_of("tiny-t5", replace(SMALL, training=Trainable("heads"), action_head=True))
    before = {name: tensor.clone() for name, tensor in agent.lm.model.state_dict().items()}
    assert list(agent.groups()) == ["heads"]
    views = some_views(agent)
    first = said(agent, views).logits
    learner(agent).iterate()
    assert not np.array_equal(said(agent, views).logits, first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.lm.model.state_dict().items())


def test_values_do_not_depend_on_the_candidates():
    agent = agent_of("tiny-causal")
    views = some_views(agent)
    before = said(agent, views)
    agent.wording = Wording(actions=("turn left", "turn right", "go forward", "pick up", "put down", "use", "wait"))
    after = said(agent, views)
    assert not np.allclose(after.logits, before.logits)
    prompts = agent.scorer.prompts(["go to the red ball"])
    agent.wording = Wording()
    torch.testing.assert_close(agent.scorer(prompts).hidden, agent_of("tiny-causal").scorer(prompts).hidden)


def test_published_heads():
    agent = agent_of(settings=LanguageSettings())
    sizes = [tuple(layer.weight.shape) for layer in agent.module.heads["value"] if hasattr(layer, "weight")]
    assert sizes == [(1024, 64), (1024, 1024), (1, 1024)]
    assert [type(layer).__name__ for layer in agent.module.heads["value"]][1::2] == ["Sigmoid", "Sigmoid"]
    head = Head(3, 2, (4,), "relu", torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        assert head(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype == torch.float32


IDLE = ("sleep",)
FRENCH = ("tourner à gauche", "tourner à droite", "aller tout droit", "attraper", "lâcher", "basculer", "dormir")
WORDINGS = [
    Wording(),
    Wording(language="fr", actions=FRENCH),
    Wording(words="invented-words"),
    Wording(words="nouns", actions=(*ACTION_SETS["synonyms-1"], *IDLE)),
    Wording(goal_label="speaker", actions=(*ACTION_SETS["canonical"], *IDLE)),
]


def test_a_form_that_shows_the_present_only_asks_for_no_history():
    """Moments that differ in their history alone made equal prompts, each of which was read."""
    played, read = [], []
    for count in (1, 3):
        agent = agent_of(settings=replace(SMALL, form="lamorel", observations=count))
        episodes = play(agent, make_vec(f"{ENV}@max_steps=24", 3), 3, seed=3)
        played.append([(one.seed, one.length, one.success) for one in episodes])
        read.append(agent.counted["prompts"])
        assert agent.observations == count
    assert played[0] == played[1]
    assert read[0] == read[1]


@pytest.mark.parametrize("wording", WORDINGS)
def test_whole_episodes_in_any_wording(wording):
    """Every wording of the generalisation tests runs to the end, from the prompt to the last action."""
    env = f"{ENV}@max_steps=6"
    agent = LanguageAgent(open_language_model("tiny-t5"), env, 1, replace(SMALL, observations=3), wording)
    assert agent.wants == ("text", "mission", "history")
    episodes = list(play(agent, make_vec(env, 2), 2, seed=0))
    assert len(episodes) == 2


def test_damaged_policies_are_refused(tmp_path):
    agent_of().save(tmp_path)
    weights = tmp_path / "policy/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + b"\0\0\0\0")
    with pytest.raises(InputError, match="was changed after it was written"):
        load_agent(tmp_path)
    weights.unlink()
    with pytest.raises(InputError, match="is missing"):
        load_agent(tmp_path)


def test_a_policy_that_replaces_another_leaves_none_of_its_files(tmp_path):
    agent_of().save(tmp_path)
    files = agent_of(settings=replace(SMALL, training=Trainable("lora"))).save(tmp_path)
    assert {path.name for path in (tmp_path / "policy").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert "policy/model.safetensors" not in files
    load_agent(tmp_path)


# ------------------------------------------------------------------------------------------------------------ bad input


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="There is no model folder"):
        open_language_model("./nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="cannot be opened as a language model .*; name the folder of a whole one"):
        open_language_model(str(tmp_path / "empty"))
    open_language_model("tiny-t5").save(tmp_path / "t5")
    (tmp_path / "t5/model.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match="cannot be opened as a language model"):
        open_language_model(str(tmp_path / "t5"))
    open_language_model("tiny-t5").save(tmp_path / "part")
    without(tmp_path / "part/model.safetensors", "decoder.block.0.layer.0")
    with pytest.raises(InputError, match=r"its weights have no decoder.block.0.*; name the folder of a whole one"):
        open_language_model(str(tmp_path / "part"))  # the rest was drawn, anew in each process
    open_language_model("tiny-t5").save(tmp_path / "mute")
    for file in (tmp_path / "mute").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match="mute holds no tokenizer; put the model's tokenizer.json"):
        open_language_model(str(tmp_path / "mute"))
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/config.json").write_text('{"model_type": "bert", "architectures": ["BertForMaskedLM"]}')
    with pytest.raises(InputError, match="holds a BertForMaskedLM, which writes no text"):
        open_language_model(str(tmp_path / "bert"))


def test_a_model_without_sdpa_is_refused(tmp_path, monkeypatch):
    from transformers import LlamaPreTrainedModel

    open_language_model("tiny-causal").save(tmp_path)
    monkeypatch.setattr(LlamaPreTrainedModel, "_supports_sdpa", False)
    with pytest.raises(InputError, match="cannot compute attention in the way that packing needs .SDPA."):
        open_language_model(str(tmp_path))


def test_adapters_without_peft_and_too_many_frozen_layers_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="tiny-causal has no encoder to freeze"):
        agent_of("tiny-causal", replace(SMALL, training=Trainable(frozen=ENCODER)))
    with pytest.raises(UsageError, match="tiny-t5 has 2 layers to freeze, and 3 are asked for"):
        agent_of("tiny-t5", replace(SMALL, training=Trainable(frozen=3)))
    with pytest.raises(UsageError, match="has no layers named wq"):
        agent_of("tiny-t5", replace(SMALL, training=Trainable("lora", targets=("wq",))))
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(UsageError, match="Low-rank adapters need peft; run `pip install 'bkrl.lm.'`"):
        agent_of("tiny-t5", replace(SMALL, training=Trainable("lora")))


def test_a_large_model_gets_adapters_on_all_linear_layers_of_its_top_quarter(monkeypatch):
    small = open_language_model("tiny-causal")
    assert by_size(small, 1) == Trainable("all", 1)
    count = sum(parameter.numel() for parameter in small.model.parameters())
    monkeypatch.setattr("bkrl.agents.language.models.LARGE", count - 1)
    monkeypatch.setattr("bkrl.agents.language.adapters.multiplies_bf16", lambda device: True)
    assert by_size(small).half
    assert by_size(small).text.endswith(" frozen layers, in bfloat16")
    assert not by_size(small, exact=True).half
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("bkrl.agents.language.adapters.multiplies_bf16", lambda device: device == "cuda")
    assert by_size(small).half
    assert not by_size(small, device="cpu").half
    monkeypatch.setattr("bkrl.agents.language.adapters.multiplies_bf16", lambda device: False)
    chosen = by_size(small)
    layers = small.model.config.num_hidden_layers
    assert (chosen.train, chosen.frozen, chosen.alpha) == ("lora", layers - 1, 32)
    assert chosen.text == f"adapters of rank 8, alpha 32, on all linear layers above {layers - 1} frozen layers"
    agent = agent_of("tiny-causal", replace(SMALL, training=chosen))
    adapted = {name.partition(".lora_")[0] for name, one in agent.lm.model.named_parameters() if one.requires_grad}
    kinds = {name.rpartition(".")[2] for name in adapted}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert all(f".{layers - 1}." in name for name in adapted)
    assert by_size(small, 1).frozen == 1


def test_new_weights_may_keep_embeddings(tmp_path):
    open_language_model("tiny-t5", seed=4).save(tmp_path)
    old = open_language_model(str(tmp_path))
    assert (old.level, old.kind) == ("P3", "seq2seq")
    new, kept = (open_language_model(str(tmp_path), pretrained=False, embeddings=one, seed=9) for one in (False, True))
    shared = [one.model.shared.weight for one in (old, new, kept)]
    layers = [one.model.encoder.block[0].layer[0].SelfAttention.q.weight for one in (old, new, kept)]
    assert torch.equal(shared[0], shared[2])
    assert not torch.equal(shared[0], shared[1])
    assert not torch.equal(layers[0], layers[2])
    assert torch.equal(layers[1], layers[2])
    assert (new.level, kept.level) == ("P0", "P0")


def test_an_evaluation_reads_each_prompt_once_however_few_episodes_are_left(monkeypatch):
    agent = agent_of()

    def played():
        before = agent.counted["prompts"]
        episodes = [(e.seed, e.length, e.success) for e in play(agent, make_vec(f"{ENV}@max_steps=24", 3), 6, seed=3)]
        return episodes, agent.counted["prompts"] - before

    once, read = played()
    monkeypatch.setattr(LookOnce, "act", lambda self, *views: self.agent.act(*views))
    again, read_again = played()
    assert once == again
    assert read < read_again / 2
