"""glam: a language model learns by PPO, with and without a potential, goes on exactly, and begins from a clone."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bkrl.agents import load_agent
from bkrl.agents.advised import Advice
from bkrl.agents.build import advice_network
from bkrl.agents.language.agent import LanguageAgent
from bkrl.agents.language.probes import Probes, _moments
from bkrl.agents.random import RandomAgent
from bkrl.agents.viewer import Viewer
from bkrl.core.config import CollectConfig, EvaluateConfig, HardwareConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import without_effect
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.data.dataset import Dataset
from bkrl.envs import make_vec
from bkrl.learn.bc import demonstrations
from bkrl.learn.hardware import CPU, LANGUAGE, choose
from bkrl.learn.on_rollouts import Diverged
from bkrl.methods import TrainRsConfig, find_method
from bkrl.methods.bc import ClonedLM
from bkrl.methods.glam import GlamPPO, LMConfig, language_agent
from bkrl.methods.shaped import advise
from bkrl.runs.folder import locate
from bkrl.stages import collect, evaluate, train_rs
from bkrl.text.wording import Wording
from tests.stages.interrupted import the_same_when_killed

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=0,actions=restricted"
SHORT = f"{ENV},max_steps=16"  # a policy that has learnt little walks to the limit
PPO = GlamPPO(num_envs=4, num_steps=8, num_minibatches=2, update_epochs=1)
TINY = LMConfig("tiny-t5", window=2, head_size=16)


def settings(out: Path, **changes: Any) -> TrainRsConfig:
    given = {"env": SHORT, "steps": 128, "eval_every": 32, "eval_episodes": 4, "checkpoint_every": 32, "seed": 1}
    return TrainRsConfig(**{"alg": "glam", **given, "lm": TINY, "ppo": PPO, "out": out, **changes})


def facts(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())["facts"]
    return found


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = the_same_when_killed(settings(tmp_path / "whole", imitate="bot"), monkeypatch)
    files = sorted(file.name for file in (tmp_path / "whole" / "policy").iterdir())
    for name in files:
        one, other = (tmp_path / run / "policy" / name for run in ("whole", "stopped"))
        assert one.read_bytes() == other.read_bytes()
    rollouts = [row for row in map(json.loads, lines) if "ppo/loss" in row]
    assert all(0 < row["rollout/prompts"] <= 32 for row in rollouts)
    assert all(row["rollout/tokens"] > 10 * row["rollout/prompts"] for row in rollouts)
    assert rollouts[0]["ppo/learning_rate"] == 1e-3
    said = facts(tmp_path / "whole")
    assert (said["lm"], said["level"], said["form"], said["view"]) == ("tiny-t5", "P0", "none", "text")
    assert said["lm_is"].startswith("random weights")
    agent = load_agent(tmp_path / "stopped")
    assert isinstance(agent, LanguageAgent)
    assert agent.observations == 2
    judged = evaluate.run(
        EvaluateConfig(policy=str(tmp_path / "stopped"), out=tmp_path / "judged", episodes=4), Reporter()
    )
    assert judged.facts["episodes"] == 4


def test_a_large_model_with_random_weights_is_trained_as_one_that_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bkrl.agents.language.models.LARGE", 0)
    asked: list[str] = []
    monkeypatch.setattr("bkrl.learn.hardware.choose", lambda config, network: asked.append(network) or CPU)
    data = collect.run(CollectConfig(env=ENV, explorer="bot", episodes=3, out=tmp_path / "bot"), Reporter()).path
    for alg, kind, rate in (("bc", ClonedLM, 5e-4), ("glam", LMConfig, 1e-4)):
        how = {"data": data} if alg == "bc" else {"ppo": PPO}
        lm = kind("tiny-causal", window=1, head_size=16)
        config = TrainRsConfig(alg=alg, env=ENV, steps=32, lm=lm, **how)
        made = find_method(alg).build(config)
        assert made.facts["level"] == "P0"
        assert made.learner.agent.settings.training.train == "lora"
        learner = made.learner
        rates = learner.rates.values() if alg == "glam" else [learner.optimizer.param_groups[0]["lr"]]
        assert set(rates) == {rate}
    assert asked == [LANGUAGE, LANGUAGE]


def test_a_potential_shapes_it(tmp_path: Path) -> None:
    env = "BabyAI-Text-GoToLocal-RedBall-S20@max_steps=20"
    how = {"env": env, "steps": 32, "potential": locate(Path("sample:bk-code-minigrid")), "eval_episodes": 1}
    lm = replace(TINY, train="heads", action_head=True)
    run = train_rs.run(settings(tmp_path / "run", **how, lm=lm), Reporter()).path
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("shaping/reward" in key for row in rows for key in row)
    assert facts(run)["form"] == "pbrs"
    assert not facts(run)["guarantee"].startswith("none")


def test_advice_shifts_its_logits_and_is_kept_in_files_of_its_own(tmp_path: Path) -> None:
    env = "BabyAI-Text-GoToLocal-RedBall-S20@max_steps=20"
    how = {"env": env, "steps": 32, "potential": locate(Path("sample:bk-code-minigrid")), "eval_episodes": 1}
    lm = replace(TINY, train="heads", action_head=True)
    run = train_rs.run(
        settings(tmp_path / "run", **how, lm=lm, shaping="pbrs+advice", shaping_until=64), Reporter()
    ).path
    assert facts(run)["form"] == "pbrs+advice"
    assert "--shaping-until 64 lies beyond --steps 32: its weight still is 50 %" in facts(run)["warnings"][0]
    assert facts(run)["view"] == "text"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["shaping/advice_weight"] for row in rows if "shaping/advice_weight" in row] == [6.0, 3.0]
    agent: Any = load_agent(run)
    assert (agent.now, agent.until) == (3.0, 64)
    assert (run / "policy/model.safetensors").is_file()  # a plain folder of transformers, as without advice
    envs = make_vec(env, 3)
    observations, _ = envs.reset(seed=1)
    views = Viewer(envs, agent)(observations, np.ones(3, bool))
    said, plain = (one.act(views, {}, np.ones(3, bool), None).logits for one in (agent, agent.base))
    shift = agent.advice(torch.from_numpy(views.symbols)).numpy()
    np.testing.assert_allclose(said - plain, 3.0 * shift, atol=1e-5)
    assert shift.min() < -0.1
    french: Any = agent.reworded(Wording("fr"), env)
    assert (french.wording.language, french.now, agent.wording.language) == ("fr", 3.0, "")
    on: Any = find_method("glam").build(settings(tmp_path / "on", **how, lm=lm, init_from=run))  # type: ignore[union-attr]
    assert isinstance(on.learner.agent, LanguageAgent)  # it was refused as if this were no language model
    for name, one in agent.base.module.state_dict().items():
        torch.testing.assert_close(on.learner.agent.module.state_dict()[name], one, msg=name)
    on.close()
    weights = run / "policy.advice.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    with pytest.raises(InputError, match="advice.safetensors was changed"):
        load_agent(run)


def test_it_trains_in_other_words_and_with_published_defects(tmp_path: Path) -> None:
    lm = replace(TINY, language="fr", words="invented-words", goal_label="agent", window=1)
    run = train_rs.run(
        settings(tmp_path / "run", lm=lm, steps=32, eval_every=32, compat="upstream", ppo=PPO), Reporter()
    ).path
    said = facts(run)
    assert said["compat"] == ["b10", "g4", "g7"]
    assert not load_agent(run).settings.own_critic  # type: ignore[attr-defined]
    assert said["guarantee"].startswith("none: published defects")
    assert said["wording"]["language"] == "fr"
    agent: Any = load_agent(run)
    assert agent.scorer.names == ("tourner à gauche", "tourner à droite", "aller tout droit")
    envs = make_vec(ENV, 2)
    observations, _ = envs.reset(seed=1)
    prompts, _ = agent.prompts(Viewer(envs, agent)(observations, np.ones(2, bool)))
    assert "Tu dois faire: aller à" in prompts[0]
    with pytest.raises(UsageError, match="leaves nothing of this policy to train: add --action-head"):
        train_rs.run(settings(tmp_path / "no", lm=replace(TINY, train="heads")), Reporter())
    own = language_agent(settings(tmp_path, lm=replace(TINY, action_words="rotate left, rotate right, run")), ENV, 1)
    assert own.scorer.names == ("rotate left", "rotate right", "run")
    with pytest.raises(UsageError, match="has 3 actions here, and 6 names are given"):
        language_agent(settings(tmp_path, lm=replace(TINY, action_words="synonyms-1")), ENV, 1)


def test_a_model_that_is_no_longer_finite_stops_the_run(tmp_path: Path) -> None:
    made: Any = find_method("glam").build(settings(tmp_path, steps=32))  # type: ignore[union-attr]
    made.learner.iterate()
    with torch.no_grad():
        made.learner.agent.lm.model.shared.weight[5] = float("nan")
    with pytest.raises(Diverged, match=r"Training diverged at step 64: .* is not finite"):
        made.learner.iterate()
    made.close()


@pytest.mark.parametrize("kind", [pytest.param("clone", marks=pytest.mark.slow), "one env"])
def test_a_clone_and_a_run_with_one_env_are_the_same_in_every_repetition(tmp_path: Path, kind: str) -> None:
    how: dict[str, Any] = {"steps": 48, "eval_every": 24, "eval_episodes": 1, "env": SHORT, "seed": 3}
    if kind == "clone":
        shown = collect.run(CollectConfig(env=ENV, explorer="bot", episodes=12, out=tmp_path / "bot"), Reporter()).path
        lm = ClonedLM("tiny-t5", window=1, head_size=16)
        how |= {"alg": "bc", "data": shown, "lm": lm, "batch_size": 24}
    else:
        how |= {"alg": "glam", "lm": TINY, "ppo": replace(PPO, num_envs=1, num_minibatches=2)}
    made = []
    for number in range(2):
        out = tmp_path / f"run{number}"
        train_rs.run(TrainRsConfig(out=out, **how), Reporter())
        made.append(weights(out))
    first, second = made
    assert len(first) > 2
    assert first == second


def weights(run: Path) -> dict[str, bytes]:
    """What a run has learnt, and its figures, by the names of files."""
    found = {path.name: path.read_bytes() for path in [*run.glob("policy*.safetensors"), *run.glob("policy*/model*")]}
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return found | {"metrics": "\n".join(line for line in lines if '"time/' not in line).encode()}


def test_a_model_that_cannot_read_the_prompts_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "short"
    language_agent(settings(tmp_path, lm=replace(TINY, lm="tiny-causal")), ENV, 1).lm.save(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16}))
    for alg in ("glam", "zero-shot"):
        how = {"alg": alg, "env": ENV, "lm": replace(TINY, lm=str(folder)), "out": tmp_path / "run"}
        with pytest.raises(InputError, match="A prompt has .* tokens with its answers, and .*short reads 16"):
            train_rs.run(TrainRsConfig(**how), Reporter())
    shown = collect.run(CollectConfig(env=ENV, explorer="bot", episodes=4, out=tmp_path / "bot"), Reporter()).path
    clone = {"alg": "bc", "env": ENV, "lm": ClonedLM(str(folder), window=2, head_size=16), "data": shown}
    with pytest.raises(InputError, match="A prompt has .* tokens with its answers, and .*short reads 16"):
        train_rs.run(TrainRsConfig(**clone, out=tmp_path / "run"), Reporter())
    assert not (tmp_path / "run").exists()


def test_probes_hold_the_policy_against_the_bot(tmp_path: Path) -> None:
    agent = language_agent(settings(tmp_path), ENV, 1)
    probes = Probes.of(agent)
    assert probes is not None
    again = Probes.of(agent)
    assert again is not None
    assert np.array_equal(probes.actions, again.actions)
    prompts, _ = agent.prompts(probes.views)
    assert len(prompts) > 40  # of 64: they are no few moments
    policy = agent.forward(agent.inputs(probes.views), {}, None)[0].double().softmax(1).detach().numpy()
    figures = probes.figures(agent)
    assert figures["probe/agreement"] == np.mean(policy.argmax(1) == probes.actions)
    assert figures["probe/probability"] == pytest.approx(policy[np.arange(64), probes.actions].mean())
    assert figures["probe/entropy"] == pytest.approx(-(policy * np.log(policy)).sum(1).mean())
    crafter = language_agent(settings(tmp_path, lm=replace(TINY, window=1)), "Crafter-Text-Reward", 1)
    assert Probes.of(crafter) is None


def test_what_names_score_after_any_prompt_is_taken_off(tmp_path: Path) -> None:
    """A model may prefer one name whatever is seen: SmolLM2 was below chance."""
    how = {"steps": 1, "eval_every": 1, "eval_episodes": 1, "lm": TINY, "env": ENV}
    made = train_rs.run(TrainRsConfig("zero-shot", **how, bias_prompts=40, out=tmp_path / "zero"), Reporter())
    plain = train_rs.run(TrainRsConfig("zero-shot", **how, out=tmp_path / "plain"), Reporter())
    agent, without = load_agent(made.path), load_agent(plain.path)
    moments = _moments(without, RandomAgent(agent.env_id, agent.family, agent.action_names), 40)
    assert len(set(moments.actions.tolist())) == len(agent.action_names), "it is random play"
    same = np.zeros(40, bool)
    logits, before = (one.act(moments.views, {}, same, None).logits for one in (agent, without))
    assert logits == pytest.approx(before - before.astype(np.float64).mean(0), abs=1e-5)
    assert np.abs(before.mean(0)).max() > 0.01
    other = Wording(actions=("rotate left", "rotate right", "move ahead"))
    with pytest.raises(UsageError, match="its --bias-prompts were read with other names of actions"):
        agent.reworded(other, agent.env_id)
    assert agent.reworded(Wording(goal_label="speaker"), agent.env_id).settings.scoring.bias
    with pytest.raises(InputError, match="has --bias-prompts, which are not taken over; name its model as --lm"):
        train_rs.run(settings(tmp_path / "on", init_from=made.path), Reporter())


def test_layers_of_a_large_model_are_in_bfloat16_unless_float32_is_asked_for(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bkrl.agents.language.models.LARGE", 0)
    monkeypatch.setattr("bkrl.agents.language.adapters.multiplies_bf16", lambda device: True)
    for precision in ("auto", "fp32"):
        given = settings(tmp_path, lm=replace(TINY, lm="tiny-causal"), hardware=HardwareConfig(precision=precision))
        made = language_agent(given, ENV, 1).settings.training
        assert made.half == (precision == "auto")
        assert made.text.endswith(", in bfloat16") == made.half


@pytest.mark.parametrize(
    ("alg", "hardware", "sentence"),
    [
        ("zero-shot", {"device": "cuda"}, "--device cuda: torch finds no GPU here"),
        ("glam", {"compile": True}, "--compile: batches of texts are all of another shape"),
        ("drrn", {"compile": True}, "--compile: batches of texts are all of another shape"),
        ("drrn", {"precision": "bf16"}, "--precision bf16: DRRN computes in float32"),
    ],
)
def test_hardware_that_would_go_unused_is_refused(
    alg: str, hardware: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    lm = {} if alg == "drrn" else {"lm": TINY}
    config = TrainRsConfig(alg=alg, env=ENV, steps=32, hardware=HardwareConfig(**hardware), **lm)
    with pytest.raises(UsageError, match=sentence):
        find_method(alg).build(config)  # type: ignore[union-attr]


def test_advice_on_missions_needs_the_words_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_vec(ENV, 4)
    envs.reset(seed=0)
    psi = Advice(advice_network(envs.env_spec, 0, envs.missions()), 1.0)
    opened: Any = SimpleNamespace(psi=psi, trust=(1.0, ""))
    for language, refused in (("en", False), ("fr", True)):
        config: Any = settings(
            Path("run"), potential=Path("phi"), shaping="advice", lm=replace(TINY, language=language)
        )
        agent = language_agent(config, ENV, 1)
        with pytest.raises(UsageError, match="reads missions as the env words them") if refused else nullcontext():
            advised: Any = advise(config, opened, agent)
    with pytest.raises(UsageError, match="its advice reads missions as the env words them"):
        advised.reworded(Wording("fr"), ENV)
    advised.schedule(config.decay_steps)  # the advice has had its time
    assert advised.reworded(Wording("fr"), ENV).now == 0


def test_bfloat16_is_refused_where_it_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bkrl.learn.hardware.multiplies_bf16", lambda device: False)
    with pytest.raises(UsageError, match="--precision bf16: this processor has no instructions"):
        train_rs.run(settings(tmp_path / "no", hardware=HardwareConfig(precision="bf16")), Reporter())
    assert not (tmp_path / "no").exists()
    monkeypatch.setattr("bkrl.learn.hardware.multiplies_bf16", lambda device: True)
    assert choose(HardwareConfig(), LANGUAGE).precision == "fp32"
    assert choose(HardwareConfig(), "paper").precision == "bf16"
    assert choose(HardwareConfig(), f"small {LANGUAGE}").precision == "fp32"
    made: Any = find_method("glam").build(  # type: ignore[union-attr]
        settings(tmp_path, hardware=HardwareConfig(precision="bf16"))
    )
    made.learner.iterate()
    views = made.learner.collector.views[0]
    with torch.no_grad():
        plain = made.learner.agent.forward(made.learner.agent.inputs(views), {}, None)[0]
        with made.learner.hardware.autocast():
            rounded = made.learner.agent.forward(made.learner.agent.inputs(views), {}, None)[0]
    assert rounded.dtype == torch.float32
    assert 0 < float((plain - rounded).abs().max()) < 0.05
    made.close()


def test_a_model_is_evaluated_as_it_is_under_every_condition(tmp_path: Path) -> None:
    """The generalisation matrix, with two episodes in each cell of a small level of its own."""
    run = train_rs.run(
        TrainRsConfig(alg="zero-shot", env=f"{ENV},max_steps=6", lm=TINY, steps=10, eval_every=10, eval_episodes=2,
                      out=tmp_path / "run"), Reporter(),
    ).path  # fmt: skip
    assert facts(run)["learns"] is False
    with pytest.raises(InputError, match="holds a language model and no run; `bkrl train-rs --alg zero-shot --lm"):
        evaluate.run(EvaluateConfig(policy=locate(Path("sample:lm-t5")) / "model", out=tmp_path / "no"), Reporter())
    assert facts(run)["lm"] == "tiny-t5"
    shown = [
        {"name": "no change"},
        {"name": "nouns", "words": "nouns"},
        {"name": "invented", "words": "invented-words"},
        {"name": "label", "goal_label": "speaker"},
        {"name": "French", "language": "fr"},
        {"name": "own names", "actions": ["rotate left", "rotate right", "move ahead"]},
        {
            "name": "six actions",
            "env": f"{ENV},max_steps=6".replace("restricted", "canonical"),
            "actions": "synonyms-1",
        },
        {"name": "nine actions", "env": f"{ENV},max_steps=6".replace("restricted", "augmented")},
        {"name": "one env", "env": "BabyAI-GoToObj-v0@max_steps=6,actions=restricted"},
    ]
    lines = ['title = "cells"', 'beside = ["random", "bot"]']
    for one in shown:
        lines += ["[[condition]]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in one.items())]
    path = tmp_path / "cells.toml"
    path.write_text("\n".join(lines))
    judged = evaluate.run(
        EvaluateConfig(policy=run, conditions=str(path), episodes=2, mode="sampled", out=tmp_path / "judged"),
        Reporter(),
    )
    rows = judged.facts["conditions"]
    assert [row["condition"] for row in rows] == [one["name"] for one in shown]
    assert not any(row["refused"] for row in rows)


@pytest.mark.parametrize(("episodes", "steps"), [(30, 1200), pytest.param(80, 2400, marks=pytest.mark.slow)])
def test_it_clones_a_bot_and_goes_on_from_there(tmp_path: Path, episodes: int, steps: int) -> None:
    bot = CollectConfig(env=SHORT, explorer="bot", episodes=episodes, out=tmp_path / "bot")
    shown = collect.run(bot, Reporter()).path
    lm = ClonedLM("tiny-t5", window=1, head_size=16)
    how = {"alg": "bc", "env": SHORT, "data": shown, "lm": lm, "steps": steps, "eval_every": steps, "eval_episodes": 4}
    clone = train_rs.run(TrainRsConfig(**how, batch_size=50, out=tmp_path / "clone"), Reporter())
    rows = [row for row in clone.metrics() if "bc/loss" in row]
    actions = Dataset.open(shown).actions
    shares = np.bincount(actions[actions >= 0]) / np.count_nonzero(actions >= 0)
    frequencies = -(shares * np.log(shares)).sum()  # the loss of a clone that sees nothing
    assert rows[-1]["bc/loss"] < 0.6 * frequencies
    assert clone.facts["lm_is"].startswith("random weights")

    agent = language_agent(settings(tmp_path), ENV, 1)  # which sees two observations
    data, _ = demonstrations(Dataset.open(shown), agent, only_successes=False, held_out=0.0, seed=1)
    history: Any = data.views.history
    text: Any = data.views.text
    for first, last in zip(data.starts[:3].tolist(), data.starts[1:4].tolist(), strict=True):
        names = [agent.scorer.names[action] for action in data.actions[first:last].tolist()]
        wanted = [None, *zip(text[first:last].tolist(), names, strict=True)][:-1]
        assert history[first:last, 0].tolist() == wanted

    tokens: Any = find_method("bc").build(  # type: ignore[union-attr]
        TrainRsConfig(**how, clone_loss="tokens", batch_size=8, only_successes=True, held_out=0.0)
    )
    learner = tokens.learner
    chosen = torch.arange(8)
    loss, _, _ = learner._figures(learner.data, chosen)
    data, _ = demonstrations(Dataset.open(shown), learner.agent, only_successes=True, held_out=0.0, seed=1)
    one_by_one = []
    for step in chosen.tolist():
        prompts, _ = learner.agent.prompts(data.views[step : step + 1])
        said = torch.tensor(learner.agent.scorer.candidates[data.actions[step]])
        model = learner.agent.lm.model
        fed = torch.tensor([[learner.agent.lm.start, *said[:-1].tolist()]])
        logits = model(input_ids=torch.tensor([learner.agent.lm.tokens(prompts[0])]), decoder_input_ids=fed).logits[0]
        one_by_one.append(torch.nn.functional.cross_entropy(logits, said))
    torch.testing.assert_close(loss, torch.stack(one_by_one).mean())
    tokens.close()
    heads = replace(lm, action_head=True)
    told = without_effect(TrainRsConfig(**{**how, "lm": heads}, clone_loss="tokens"), ["clone_loss"])
    assert "neither --action-head" in told["clone_loss"]

    before: Any = load_agent(clone.path)
    ppo = replace(PPO, learning_rate=1e-9, num_envs=2, num_steps=2, num_minibatches=1)
    small = {"ppo": ppo, "steps": 4, "eval_every": 4}
    run = train_rs.run(settings(tmp_path / "on", **small, init_from=clone.path), Reporter())
    after: Any = load_agent(run.path)
    for (name, one), other in zip(after.module.named_parameters(), before.module.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6), name
    assert run.facts["lm_is"].startswith("a policy that was trained here; before that, random weights")
    zero = {"env": SHORT, "steps": 1, "eval_every": 1, "eval_episodes": 1, "lm": LMConfig(str(clone.path), window=1)}
    read = train_rs.run(TrainRsConfig("zero-shot", **zero, out=tmp_path / "zero"), Reporter())
    assert read.facts["lm_is"] == run.facts["lm_is"]  # of the clone it said that it had read nothing
    alike = train_rs.run(settings(tmp_path / "alike", **small, init_from=clone.path, lm=LMConfig()), Reporter())
    assert alike.facts["lm_settings_of_init_from"] == {"window": 1, "head_size": 16}
    taken: Any = load_agent(alike.path)
    assert (taken.observations, taken.settings.head_sizes) == (1, (16, 16))
    other_lm = replace(TINY, action_head=True)
    with pytest.raises(InputError, match="another than this one"):
        train_rs.run(settings(tmp_path / "no", **small, init_from=clone.path, lm=other_lm), Reporter())
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("action_head", [False, True])
def test_a_clone_has_no_say_in_the_critic_of_what_goes_on_from_it(tmp_path: Path, action_head: bool) -> None:
    """glam-published took the critic and the sizes of heads that a clone has by default and never trained."""
    shown = collect.run(CollectConfig(env=SHORT, explorer="bot", episodes=4, out=tmp_path / "bot"), Reporter()).path
    lm = ClonedLM("tiny-t5", window=1, action_head=action_head)
    how: dict[str, Any] = {"env": SHORT, "steps": 8, "eval_every": 8, "eval_episodes": 1}
    clone = train_rs.run(
        TrainRsConfig("bc", **how, data=shown, lm=lm, batch_size=8, out=tmp_path / "clone"), Reporter()
    )

    def built(alg: str, **given: Any) -> Any:
        config = TrainRsConfig(alg, **how, init_from=clone.path, out=tmp_path / "on", **given)
        made: Any = find_method(alg).build(config)  # type: ignore[union-attr]
        made.close()
        return made

    def heads(made: Any) -> tuple[Any, ...]:
        found = made.learner.agent.settings
        return found.own_critic, found.head_sizes, found.head_activation, found.action_head, found.observations

    here = ((64, 64), "relu") if action_head else ((1024, 1024), "sigmoid")  # a trained head keeps its size
    for alg, name, value, only in (
        ("glam", "vf_coef", 0.9, "--critic shared, or --compat g7"),
        ("glam-published", "critic_first", 9, "--critic own"),
    ):
        given = {name: value} if name == "critic_first" else {"ppo": replace(PPO, **{name: value})}
        told = without_effect(TrainRsConfig(alg, **how, init_from=clone.path, **given), [name])
        assert told[name].startswith(only)  # nothing was said where --init-from left open which critic there would be
        later = TrainRsConfig(alg, **how, init_from=tmp_path / "later", **given)
        assert bool(without_effect(later, [name])) == (alg == "glam-published")
    made = built("glam-published")
    assert heads(made) == (False, *here, action_head, 1)
    before: Any = load_agent(clone.path)
    for name, one in before.lm.model.state_dict().items():
        torch.testing.assert_close(made.learner.agent.lm.model.state_dict()[name], one, msg=name)
    published = find_method("glam-published").settings().lm  # type: ignore[union-attr]
    assert heads(built("glam-published", lm=replace(published, critic="own"))) == (True, *here, action_head, 1)
    same = built("glam")
    assert heads(same) == (True, (64, 64), "relu", action_head, 1)
    for name, one in before.module.state_dict().items():
        torch.testing.assert_close(same.learner.agent.module.state_dict()[name], one, msg=name)


@pytest.mark.parametrize("how", [{"frozen": -1}, {"train": "lora"}, {"train": "heads", "action_head": True}])
def test_what_is_frozen_goes_on_with_another_seed(tmp_path: Path, how: dict[str, Any]) -> None:
    """Trained parts were put on the random model of the new seed, without a word: a clone fell from 100 % to 58 %."""
    lm, small = replace(TINY, **how), {"steps": 4, "eval_every": 4, "eval_episodes": 1}
    small["ppo"] = replace(PPO, num_envs=2, num_steps=2, num_minibatches=1, learning_rate=1e-12)
    start = train_rs.run(settings(tmp_path / "start", **small, lm=lm), Reporter())
    source: Any = load_agent(start.path)
    config = settings(tmp_path / "on", **small, lm=lm, seed=2, init_from=start.path, critic_learning_rate=0.0)
    run = train_rs.run(config, Reporter())
    for agent in (find_method("glam").build(config).learner.agent, load_agent(run.path)):  # type: ignore[union-attr]
        found = dict(agent.lm.model.named_parameters())
        for name, one in source.lm.model.named_parameters():
            torch.testing.assert_close(found[name], one, msg=name)

    other = language_agent(settings(tmp_path, seed=3), ENV, 1).lm
    other.save(tmp_path / "other")
    config = replace(config, out=tmp_path / "no", lm=replace(lm, lm=str(tmp_path / "other")))
    with pytest.raises(InputError, match="what is frozen of the policy of .* the model that it was trained on"):
        train_rs.run(config, Reporter())
    assert not (tmp_path / "no").exists()


def test_what_goes_on_twice_keeps_the_settings_of_the_first_run(tmp_path: Path) -> None:
    """The second time those were taken that the run before had by default, and not those that it took itself."""
    small = {"ppo": replace(PPO, num_envs=2, num_steps=2, num_minibatches=1), "steps": 4, "eval_every": 4}
    first = LMConfig("tiny-t5", window=1, prompt="lamorel", head_size=16)
    path = train_rs.run(settings(tmp_path / "0", **small, lm=first), Reporter()).path
    for number in (1, 2):
        config = settings(tmp_path / str(number), **small, lm=LMConfig(), seed=number + 1, init_from=path)
        run = train_rs.run(config, Reporter())
        taken, path = run.facts["lm_settings_of_init_from"], run.path
        assert taken == {"window": 1, "prompt": "lamorel", "head_size": 16}, number
    spec = json.loads((path / "policy.json").read_text())["network"]
    assert (spec["settings"]["observations"], spec["settings"]["form"]) == (1, "lamorel")
    assert spec["lm"]["seed"] == derive_seed(3, "weights"), "where all is trained the model's seed is the run's own"


def test_it_goes_on_where_layers_compute_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was trained in float32 was refused where layers compute in bfloat16, and the other way round."""
    monkeypatch.setattr("bkrl.agents.language.models.LARGE", 0)
    monkeypatch.setattr("bkrl.agents.language.adapters.multiplies_bf16", lambda device: False)
    lm, small = replace(TINY, lm="tiny-causal", window=1), {"steps": 4, "eval_every": 4, "eval_episodes": 1}
    small["ppo"] = replace(PPO, num_envs=2, num_steps=2, num_minibatches=1)
    start = train_rs.run(settings(tmp_path / "start", **small, lm=lm), Reporter()).path
    monkeypatch.setattr("bkrl.agents.language.adapters.multiplies_bf16", lambda device: True)
    made: Any = find_method("glam").build(settings(tmp_path / "on", lm=lm, init_from=start))  # type: ignore[union-attr]
    assert made.learner.agent.settings.training.half
    made.close()
    with pytest.raises(InputError, match="another than this one"):
        find_method("glam").build(  # type: ignore[union-attr]
            settings(tmp_path / "no", lm=replace(lm, frozen=1), init_from=start)
        )


def test_a_fall_below_the_start_is_said_and_ends_training_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = train_rs.run(settings(tmp_path / "start", steps=32), Reporter())
    rates = iter([0.9, 0.85, 0.75])

    def judged(self: Any, agent: Any) -> dict[str, float]:
        rate = next(rates)
        return {"eval/success_rate": rate, "eval/return": rate, "eval/length": 1.0}

    class Said(Reporter):
        def warn(self, text: str) -> None:
            lines.append(text)

    def killed(*given: Any) -> None:
        raise RuntimeError("killed")

    lines: list[str] = []
    monkeypatch.setattr(train_rs.Evaluation, "__call__", judged)
    config = settings(tmp_path / "on", init_from=start.path, steps=320, stop_on_fall=True)
    with monkeypatch.context() as patch:
        patch.setattr(train_rs, "_finish", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train_rs.run(config, Said())
    run = train_rs.run(config, Said())  # it is over, and stays so
    assert run.facts["steps"] == 64
    assert (run.facts["success_rate"], run.facts["best_success_rate"], run.facts["best_step"]) == (0.75, 0.9, 0)
    assert sum("success fell from 90 % to 75 %: training makes it worse" in line for line in lines) == 1
    assert next(rates, None) is None


def test_another_policy_can_teach_it(tmp_path: Path) -> None:
    teacher = train_rs.run(settings(tmp_path / "teacher", steps=32), Reporter())
    run = train_rs.run(settings(tmp_path / "run", steps=64, imitate=str(teacher.path), imitate_coef=2.0), Reporter())
    rows = [json.loads(line) for line in run.file("metrics.jsonl").read_text().splitlines()]
    weights = [row["imitate/weight"] for row in rows if "imitate/weight" in row]
    assert weights == [2.0, 1.0]
    assert all(0 <= row["imitate/kl"] < 1 for row in rows if "imitate/kl" in row)
    assert run.manifest["inputs"]["imitate"]["path"] == teacher.path.as_posix()
    with pytest.raises(InputError, match="nowhere"):
        train_rs.run(settings(tmp_path / "no", imitate="nowhere"), Reporter())
    with pytest.raises(UsageError, match="has no bot"):
        train_rs.run(settings(tmp_path / "no", env="Crafter-Text-Reward", imitate="bot"), Reporter())
