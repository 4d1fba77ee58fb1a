"""train-rs: every algorithm runs, shaping leaves the answer alone, and what does not fit is refused in a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl.agents import build as agents
from bkrl.agents import load_agent
from bkrl.agents.advised import Advice
from bkrl.agents.build import advice_network
from bkrl.agents.networks import POLICY_HIDDEN
from bkrl.cli.main import run_command
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import sha256, to_json
from bkrl.core.reporter import Reporter
from bkrl.envs import env_spec, make_vec, toy
from bkrl.inspect.report import REPORT
from bkrl.learn import hardware
from bkrl.learn.hardware import Hardware
from bkrl.learn.loop import milestones
from bkrl.methods import TrainRsConfig, find_method
from bkrl.potentials import advice
from bkrl.potentials.code import PROGRAM
from bkrl.potentials.protocol import Artefact, Scale
from bkrl.report.tracing import lines, trace
from bkrl.rewards import rnd
from bkrl.rewards.bonus import MAX_DEBT
from bkrl.runs.provenance import follow
from bkrl.runs.record import Run
from bkrl.stages.train_rs import run
from tests.stages.interrupted import the_same_when_killed

SMALL = PPOConfig(num_envs=16, num_steps=32, num_minibatches=4, learning_rate=3e-3)
MISLEADING = "def potential(observations, actions, valid):\n    return -observations[:, -1, 0].astype(float)\n"

AHEAD = MISLEADING.replace("0]", "3, 5, 0]")
"""The same in views of MiniGrid."""


def settings(out: Path, **changes) -> TrainRsConfig:
    base = {"env": "Toy-TwoExits", "steps": 15_000, "eval_every": 5_000, "eval_episodes": 8, "checkpoint_every": 4_000}
    return TrainRsConfig(**{**base, "out": out, "ppo": SMALL, **changes})


def potential_run(
    path: Path,
    env_id: str = "Toy-TwoExits",
    variant: str | None = "code",
    source: str = MISLEADING,
    scale: float = 1.0,
    control: str = "none",
    report: dict | None = None,
    hidden: int = 64,
    missions: Iterable[str] = (),
    **more: object,
) -> Path:
    made = Run.create(path, stage="train-rm", config=PPOConfig())
    made.file(PROGRAM).write_text(source)
    facts = env_spec(env_id)
    files, told = advice.save(Advice(advice_network(facts, 1, missions, hidden), scale), made.path)
    artefact = Artefact(
        kind="code",
        horizon=2,
        env_id=env_id,
        env_family=facts.family,
        obs_shape=facts.obs_shape,
        action_names=facts.action_names,
        scale=Scale(-4.0, 0.0),
        files=dict.fromkeys([PROGRAM, *files], ""),
        settings=told,
        control=control,
    )
    artefact.write(made.path)
    if report is not None:
        made.file(REPORT).write_text(to_json(report))
    outputs = ["potential.json", PROGRAM, *files, *([REPORT] if report is not None else [])]
    made.finish(outputs, variant=variant, control=control, **more)
    return path


def greedy(path: Path) -> np.ndarray:
    policy = load_agent(path)
    places = torch.arange(toy.table("Toy-TwoExits").num_states, dtype=torch.uint8)[:, None]
    return policy.module(places)[0].argmax(1).numpy()


def rows(path: Path, key: str) -> list[dict]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").open()]
    return [line for line in lines if key in line]


@pytest.mark.parametrize("alg", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("ppo", "rnd")), "bk-code"])
def test_learns_the_better_exit(tmp_path: Path, alg: str) -> None:
    """Also under a potential that says the wrong thing: exact shaping leaves the best policy what it was."""
    shaped = {"potential": potential_run(tmp_path / "rm")} if alg == "bk-code" else {}
    result = run(settings(tmp_path / "run", alg=alg, **shaped), Reporter())
    assert result.complete
    assert greedy(result.path)[:3].tolist() == [1, 1, 1]
    assert result.facts["success_rate"] > 0.9
    evaluations = rows(result.path, "eval/success_rate")
    assert [row["step"] for row in evaluations] == [0, 5_120, 10_240, 15_360]
    assert {"eval/return", "eval/length", "eval/success_rate"} <= set(evaluations[0])
    assert not rows(result.path, "eval/greedy_success_rate")
    assert rows(result.path, "ppo/entropy")
    assert rows(result.path, "time/sps")
    assert bool(rows(result.path, "rnd/novelty")) == (alg == "rnd")
    assert bool(rows(result.path, "shaping/phi_mean")) == (alg == "bk-code")
    assert not (result.path / "checkpoints").exists()
    assert Run.open(result.path, "train-rs").manifest["outputs"]["policy-best.safetensors"]


@pytest.mark.parametrize(
    "form",
    [
        *("pbrs", "advice", "additive"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("progress", "pbrs+advice", "decay", "pbim")),
    ],
)
def test_every_form_of_shaping_says_what_it_guarantees(tmp_path: Path, form: str) -> None:
    config = settings(
        tmp_path / "run", alg="bk-code", potential=potential_run(tmp_path / "rm"), shaping=form, steps=3_000
    )
    result = run(config, Reporter())
    assert result.facts["form"] == form
    assert result.facts["guarantee"].startswith("none") == (form == "additive")
    weights = [row["shaping/advice_weight"] for row in rows(result.path, "shaping/advice_weight")]
    assert (weights[0], weights[-1]) == (6.0, 0.0) if "advice" in form else weights == []
    assert bool(rows(result.path, "shaping/phi_mean")) == (form != "advice")
    # Whatever took part in learning, what is kept in the end is a plain policy.
    assert load_agent(result.path).spec["name"] == "compact"


@pytest.mark.parametrize(
    "form", ["pbrs", *(pytest.param(one, marks=pytest.mark.slow) for one in ("progress", "advice"))]
)
def test_trust_follows_the_accuracy_of_the_potential(tmp_path: Path, form: str) -> None:
    def weights(name: str, **changes) -> bytes:
        made = run(settings(tmp_path / name, steps=512, **changes), Reporter())
        return (made.path / "policy.safetensors").read_bytes()

    def potential(name: str, **facts) -> Path:
        return potential_run(tmp_path / name, **facts)

    shaped = {"alg": "bk-code", "shaping": form}
    known = potential("known", exact_accuracy={"rate": 1.0}, training={"accuracy": 0.5})
    whole = weights("whole", potential=known, **shaped)
    assert weights("sure", potential=known, trust="auto", **shaped) == whole
    chance = potential("chance", training={"accuracy": 0.5}, labels_at_chance=["all alike"])
    plain = weights("ppo", alg="ppo")
    assert weights("off", potential=chance, trust="auto", **shaped) == plain != whole
    below = potential("below", training={"accuracy": 0.3})
    assert weights("wrong", potential=below, trust="auto", **shaped) == plain
    half = potential("half", training={"accuracy": 0.75})
    by_hand = {"shaping_coef": 0.5 * settings(Path(), alg="bk-code", shaping=form).coef} if form != "advice" else {}
    by_hand |= {"advice_coef": 3.0} if form == "advice" else {}
    assert weights("half-run", potential=half, trust="auto", **shaped) == weights(
        "hand", potential=half, **shaped, **by_hand
    )
    assert Run.open(tmp_path / "half-run", "train-rs").facts["trust"] == 0.5
    with pytest.raises(InputError, match="leave --trust out"):
        run(settings(tmp_path / "none", potential=potential("unmeasured"), trust="auto", **shaped), Reporter())
    assert not (tmp_path / "none").exists()


def test_a_part_of_a_potential_is_not_trusted_for_the_accuracy_of_the_whole(tmp_path: Path) -> None:
    """A part that orders pairs at chance weighed as much as the whole, which had learnt its labels."""
    of_whole = {"accuracy": 0.86, "part": "rest"}
    config = settings(tmp_path / "run", alg="bk-code", shaping="pbrs", trust="auto", steps=512)
    with pytest.raises(InputError, match=r"other labels and parts where .* leave --trust out"):
        run(replace(config, potential=potential_run(tmp_path / "part", training=of_whole)), Reporter())
    scored = potential_run(tmp_path / "scored", training=of_whole, exact_accuracy={"rate": 0.75})  # of the part itself
    assert run(replace(config, potential=scored), Reporter()).facts["trust"] == 0.5


@pytest.fixture
def begins(tmp_path: Path) -> TrainRsConfig:
    """A run that begins as the advice of a network as wide as a policy."""
    env = "MiniGrid-Empty-5x5-v0"
    made = potential_run(tmp_path / "rm", env, source=AHEAD, hidden=POLICY_HIDDEN, scale=2.0)
    given = {"env": env, "potential": made, "advice_coef": 3.0, "steps": 2_000, "eval_episodes": 2}
    return settings(tmp_path / "run", alg="bk-code", shaping="start", **given)


def test_a_policy_begins_as_the_advice_and_keeps_its_own_values(begins: TrainRsConfig) -> None:
    method = find_method("bk-code")
    assert method is not None
    begun, plain = (method.build(one).learner for one in (begins, replace(begins, shaping="pbrs", advice_coef=6.0)))
    told = advice.load(begins.potential, Artefact.read(begins.potential).settings)
    seen = torch.randint(0, 4, (5, 7, 7, 3), generator=torch.Generator().manual_seed(0)).byte()
    with torch.no_grad():
        torch.testing.assert_close(begun.agent.module(seen)[0], 3.0 / 2.0 * told.network(seen)[0])
    for layer in ("head.weight", "head.bias"):  # the last row is the value's
        assert torch.equal(begun.agent.module.state_dict()[layer][-1], plain.agent.module.state_dict()[layer][-1])
    # Without any trust in it (--trust auto at chance) nothing is left of it, in the layers before the head either.
    nothing = method.build(replace(begins, advice_coef=0.0)).learner
    for layer, one in plain.agent.module.state_dict().items():
        assert torch.equal(nothing.agent.module.state_dict()[layer], one)
    begun.close(), plain.close(), nothing.close()


def test_advice_leaves_a_policy_its_words_and_does_not_read_for_it(tmp_path: Path) -> None:
    """Advice made where there are red balls alone made "the blue key" and "the green box" one mission to the policy."""
    few, env = "BabyAI-GoToRedBall-v0", "BabyAI-GoToLocal-v0"
    envs = make_vec(few, 4)
    envs.reset(seed=0)
    made = potential_run(tmp_path / "rm", few, source=AHEAD, hidden=POLICY_HIDDEN, missions=envs.missions())
    given = settings(tmp_path / "run", alg="bk-code", env=env, potential=made, shaping="start", steps=2_000)
    method = find_method("bk-code")
    assert method is not None
    begun, plain = (method.build(one).learner for one in (given, replace(given, shaping="pbrs")))
    words, own = begun.agent.vocabulary, plain.agent.vocabulary
    assert words.known.numbers.keys() == own.known.numbers.keys()
    keys, boxes = (words.tokens([f"go to the {thing}"]).tolist() for thing in ("blue key", "green box"))
    assert keys != boxes
    assert 1 not in keys[0] + boxes[0]  # a word that is not known
    loaded = type(words)(len(words.words))
    loaded.load_state_dict(words.state_dict())
    assert loaded.known.numbers == words.known.numbers
    begun.close(), plain.close()
    for form in ("pbrs", "advice"):  # the policy itself reads no missions, whatever its advice reads
        one = replace(given, shaping=form, mission="off", out=tmp_path / form, steps=512, allow_empty_advice=True)
        said = Said()
        assert run(one, said).facts["mission"] is False
        assert any("mission" in warning for warning in said.warnings)


@pytest.mark.parametrize("network", ["compact", "recurrent"])
def test_advice_that_weighs_nothing_leaves_no_digit_changed(tmp_path: Path, network: str) -> None:
    made = potential_run(tmp_path / "rm", "BabyAI-GoToRedBall-v0", source=AHEAD)
    given = {"env": "BabyAI-GoToLocal-v0", "network": network, "steps": 1_024, "eval_episodes": 2}
    weights = [
        run(settings(tmp_path / name, **given, **more), Reporter()).file("policy.safetensors").read_bytes()
        for name, more in (
            ("ppo", {"alg": "ppo"}),
            ("none", {"alg": "bk-code", "potential": made, "shaping": "advice", "advice_coef": 0.0}),
        )
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("form", ["start", "progress+start"])
def test_a_run_that_began_as_the_advice_says_its_guarantee(begins: TrainRsConfig, form: str) -> None:
    result = run(replace(begins, shaping=form), Reporter())
    assert result.facts["form"] == form
    assert "every policy stays within reach" in result.facts["guarantee"]
    assert bool(rows(result.path, "shaping/phi_mean")) == (form != "start")
    assert load_agent(result.path).spec["name"] == "compact"


def test_a_policy_that_is_another_network_cannot_begin_as_the_advice(tmp_path: Path, begins: TrainRsConfig) -> None:
    with pytest.raises(UsageError, match="its layers are others: use --network compact"):
        run(replace(begins, network="recurrent"), Reporter())
    narrow = potential_run(tmp_path / "narrow", begins.env)
    with pytest.raises(UsageError, match="its layers are others"):
        run(replace(begins, potential=narrow), Reporter())
    with pytest.raises(UsageError, match="both say what the policy begins as"):
        run(replace(begins, init_from=Path(tmp_path / "policy.safetensors")), Reporter())
    assert not (tmp_path / "run").exists()


def test_forms_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    code = potential_run(tmp_path / "rm")
    with pytest.raises(UsageError, match="shaping has no effect here, only with --alg bk-code"):
        run(settings(tmp_path / "a", shaping="advice"), Reporter())
    with pytest.raises(UsageError, match="use --compat with --shaping pbrs"):
        run(settings(tmp_path / "b", alg="bk-code", potential=code, shaping="decay", compat="b2"), Reporter())
    assert [path.name for path in tmp_path.iterdir()] == ["rm"]


class Said(Reporter):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.parametrize(
    ("form", "plain"),
    [("advice", "plain PPO"), ("pbrs+advice", "--shaping pbrs"), ("progress+start", "--shaping progress")],
)
def test_empty_advice_is_refused_and_leaves_nothing_behind(tmp_path: Path, form: str, plain: str) -> None:
    config = settings(tmp_path / "run", alg="bk-code", shaping=form)
    config = replace(config, potential=potential_run(tmp_path / "rm", scale=float("inf")))
    with pytest.raises(UsageError, match=f"is empty .* would be {re.escape(plain)} under another name"):
        run(config, Reporter())
    told = ["--potential", str(config.potential), "--shaping", form, "--out", str(config.out), "--env", config.env]
    assert run_command(["train-rs", "--alg", "bk-code", *told]) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stored", ["as nothing", "as a network"])
def test_empty_advice_that_was_asked_for_is_plain_ppo_and_says_so(tmp_path: Path, stored: str, monkeypatch) -> None:
    if stored == "as a network":  # what potentials of before hold
        monkeypatch.setattr(Advice, "empty", False)
    potential = potential_run(tmp_path / "rm", scale=float("inf"))
    monkeypatch.undo()
    plain = run(settings(tmp_path / "ppo", steps=1_000), Reporter())
    config = settings(tmp_path / "run", steps=1_000, alg="bk-code", potential=potential, shaping="advice")
    said = Said()
    advised = run(replace(config, allow_empty_advice=True), said)
    assert advised.file("policy.safetensors").read_bytes() == plain.file("policy.safetensors").read_bytes()
    assert said.warnings == [f"The advice of {potential} is empty (Ψ = 0), so this run is plain PPO."]
    assert advised.facts["warnings"] == said.warnings
    assert advised.facts["advice"] == "empty"
    assert not {"advice", "warnings"} & set(plain.facts)
    # what is done is not refused afterwards
    assert run(config, Reporter()).complete


def test_a_control_of_zero_needs_no_switch(tmp_path: Path) -> None:
    potential = potential_run(tmp_path / "rm", scale=float("inf"), control="zero")
    config = settings(tmp_path / "run", alg="bk-code", potential=potential, shaping="advice", steps=1_000)
    assert run(config, Reporter()).facts["advice"] == "empty"


def test_constant_advice_is_for_advice_alone(tmp_path: Path) -> None:
    potential = potential_run(tmp_path / "rm", control="constant")
    config = settings(tmp_path / "run", alg="bk-code", potential=potential, steps=1_000)
    for form in ("pbrs", "pbrs+advice", "additive"):
        with pytest.raises(UsageError, match="has advice alone .* use --shaping advice"):
            run(replace(config, shaping=form), Reporter())
    assert run(replace(config, shaping="advice"), Reporter()).complete


def test_a_potential_that_its_own_report_doubts_is_used_with_a_word(tmp_path: Path) -> None:
    said = Said()
    potential = potential_run(tmp_path / "rm", report={"ordering": 0.27, "segments": {}, "training": {}})
    config = settings(tmp_path / "run", alg="bk-code", potential=potential, steps=1_000)
    result = run(config, said)
    assert len(said.warnings) == 1
    assert "ends in success above other windows in 27 % of cases, where chance is 50 %" in said.warnings[0]
    assert f"bkrl potential report {potential}" in said.warnings[0]
    assert result.facts["warnings"] == said.warnings
    control = potential_run(tmp_path / "control", control="shuffled", report={"ordering": 0.27, "training": {}})
    assert "warnings" not in run(replace(config, potential=control, out=tmp_path / "other"), Reporter()).facts


def test_a_potential_of_labels_at_chance_is_refused_unread_unless_it_is_wanted(tmp_path: Path, monkeypatch) -> None:
    potential = potential_run(tmp_path / "rm", labels_at_chance=["the segment shown first is preferred in 99 %"])
    config = settings(tmp_path / "run", alg="bk-code", potential=potential, steps=1_000)
    with monkeypatch.context() as patched:
        patched.setattr("bkrl.potentials.load_potential", None)
        with pytest.raises(UsageError, match=r"at chance \(the .* 99 %\); --allow-chance"):
            run(config, Reporter())
    assert not config.run_dir.exists()
    assert run(replace(config, allow_chance=True), Reporter()).complete


@pytest.mark.parametrize(("env", "warned"), [("BabyAI-GoToLocal-v0", True), ("MiniGrid-Empty-5x5-v0", False)])
def test_missions_that_change_and_are_not_seen_are_warned_of(tmp_path: Path, env: str, warned: bool) -> None:
    said = Said()
    small = PPOConfig(num_envs=4, num_steps=8, num_minibatches=2)
    blind = settings(tmp_path / "run", env=env, steps=32, eval_every=32, eval_episodes=1, ppo=small, mission="off")
    result = run(blind, said)
    assert bool(said.warnings) == warned
    assert result.facts.get("warnings", []) == said.warnings
    assert all(f"The missions of {env} change between episodes, and the policy" in one for one in said.warnings)


@pytest.mark.parametrize("steps", [1_000, pytest.param(15_000, marks=pytest.mark.slow)])
def test_a_shifted_potential_pays_another_reward_and_keeps_the_answer(tmp_path: Path, steps: int) -> None:
    code = potential_run(tmp_path / "rm")
    shifted = settings(tmp_path / "run", alg="bk-code", potential=code, shaping_shift=1.0, steps=steps)
    result = run(shifted, Reporter())
    assert steps < 15_000 or greedy(result.path)[:3].tolist() == [1, 1, 1]
    assert rows(result.path, "shaping/phi_mean")
    assert all(row["shaping/phi_mean"] >= 0 for row in rows(result.path, "shaping/phi_mean"))


def test_the_greedy_policy_is_evaluated_when_asked(tmp_path: Path) -> None:
    result = run(settings(tmp_path / "run", steps=1_000, eval_greedy=True), Reporter())
    assert all(
        {"eval/success_rate", "eval/greedy_success_rate"} <= set(row) for row in rows(result.path, "eval/return")
    )


def test_complete_runs_are_left_alone_and_another_config_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path / "run", steps=1_000)
    run(config, Reporter())
    stamp = (tmp_path / "run" / "policy.safetensors").stat().st_mtime_ns
    assert run(config, Reporter()).complete
    assert (tmp_path / "run" / "policy.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(UsageError, match="holds a run that differs in seed"):
        run(replace(config, seed=2), Reporter())
    run(replace(config, seed=2, fresh=True), Reporter())


@pytest.mark.parametrize(
    ("env_id", "alg"),
    [
        ("Toy-TwoExits", "bk-code"),
        pytest.param("Toy-TwoExits", "bk-code pbim", marks=pytest.mark.slow),
        pytest.param("Toy-TwoExits", "bk-code advice", marks=pytest.mark.slow),
        pytest.param("BabyAI-Text-GoToLocal-RedBall-S20", "ppo", marks=pytest.mark.slow),
        pytest.param("BabyAI-Text-PickUp-RedBall-S20", "rnd", marks=pytest.mark.slow),
    ],
)
def test_interrupted_is_byte_for_byte_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str, alg: str
) -> None:
    alg, _, form = alg.partition(" ")
    shaped = {"potential": potential_run(tmp_path / "rm"), "shaping": form or "pbrs"} if alg == "bk-code" else {}
    whole = settings(
        tmp_path / "whole", alg=alg, env=env_id, steps=3_000, eval_every=600, checkpoint_every=900, **shaped
    )
    the_same_when_killed(whole, monkeypatch)


@pytest.mark.parametrize("form", ["pbrs", "advice"])
def test_advice_alone_is_no_potential_of_ones_own(tmp_path: Path, form: str) -> None:
    """Of a collect run only advice is made; it was told that it says nothing about actions."""
    told = potential_run(tmp_path / "rm", variant=None)
    with pytest.raises(UsageError, match="has advice alone; use --alg bk-code"):
        run(settings(tmp_path / "run", alg="bk-own", potential=told, shaping=form), Reporter())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    code = potential_run(tmp_path / "rm")
    with pytest.raises(UsageError, match="bk-pref needs --potential"):
        run(settings(tmp_path / "a", alg="bk-pref"), Reporter())
    with pytest.raises(UsageError, match="potential has no effect here, only with --alg bk-code"):
        run(settings(tmp_path / "a", alg="ppo", potential=code), Reporter())
    with pytest.raises(UsageError, match="use --alg bk-code"):
        run(settings(tmp_path / "b", alg="bk-pref", potential=code), Reporter())
    with pytest.raises(UsageError, match="Did you mean 'Toy-Grid'"):
        run(settings(tmp_path / "c", env="Toy-Gird"), Reporter())
    with pytest.raises(InputError, match=r"Toy-TwoExits \(toy\), and Toy-Grid \(toy\) has other actions"):
        run(settings(tmp_path / "d", alg="bk-code", potential=code, env="Toy-Grid"), Reporter())
    babyai = "BabyAI-Text-GoToLocal-RedBall-S20"
    with pytest.raises(InputError, match="other observations"):
        run(settings(tmp_path / "e", alg="bk-code", potential=code, env=babyai), Reporter())
    with pytest.raises(InputError, match="nowhere"):
        run(settings(tmp_path / "f", alg="bk-code", potential=tmp_path / "nowhere"), Reporter())
    (code / PROGRAM).write_text("changed")
    with pytest.raises(InputError, match=r"program.py has 7 bytes, the manifest says"):
        run(settings(tmp_path / "g", alg="bk-code", potential=code), Reporter())
    assert [path.name for path in tmp_path.iterdir()] == ["rm"]  # a refusal leaves no folder behind


def test_weights_that_do_not_fit_leave_nothing_behind(tmp_path: Path) -> None:
    potential_run(tmp_path / "rm")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half.safetensors").write_bytes(b"half")
    before = sorted(tmp_path.iterdir())
    for source, match in (
        ("rm", "is a 'train-rm' run; a 'train-rs' run is needed here"),
        ("empty", "is not a bkrl run"),
        ("none", "there is no run and no file at"),
        ("half.safetensors", "holds no whole safetensors file"),
        ("rm/advice.safetensors", "are those of another network"),
    ):
        with pytest.raises(InputError, match=match):
            run(settings(tmp_path / "run", init_from=tmp_path / source), Reporter())
        assert sorted(tmp_path.iterdir()) == before, source


@pytest.mark.parametrize(("gamma", "shift"), [(0.0, 0.0), (1e-300, 0.0), (1e-30, 0.0), (1e-16, 9.0)])
def test_the_invariant_bonus_needs_a_discount(tmp_path: Path, gamma: float, shift: float) -> None:
    blind = replace(SMALL, gamma=gamma)
    rm = potential_run(tmp_path / "rm")
    pbim = settings(tmp_path / "run", alg="bk-code", potential=rm, shaping="pbim", shaping_shift=shift, ppo=blind)
    with pytest.raises(UsageError, match=f"--gamma {gamma:g} makes that too large .* choose a --gamma nearer to 1"):
        run(pbim, Reporter())
    assert [path.name for path in tmp_path.iterdir()] == ["rm"]


def test_the_invariant_bonus_stays_finite_under_a_small_discount(tmp_path: Path) -> None:
    """Debts of up to 48 steps at γ = 0.01 would be of the order of 10⁹⁶."""
    rm = potential_run(tmp_path / "rm")
    short = replace(SMALL, gamma=0.01)
    pbim = settings(tmp_path / "run", alg="bk-code", potential=rm, shaping="pbim", steps=4_000, ppo=short)
    result = run(pbim, Reporter())
    largest = [row["shaping/reward_max_abs"] for row in rows(result.path, "shaping/reward_max_abs")]
    assert 1e6 < max(largest) <= MAX_DEBT


def test_the_file_that_weights_come_from_is_recorded(tmp_path: Path) -> None:
    short = {"steps": 512, "eval_every": 512, "eval_episodes": 2}
    run(settings(tmp_path / "first", **short), Reporter())
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes((tmp_path / "first" / "policy.safetensors").read_bytes())
    second = run(settings(tmp_path / "second", init_from=weights, **short), Reporter())
    recorded = second.manifest["inputs"]["init_from"]
    assert recorded == {"path": weights.as_posix(), "sha256": sha256(weights)}
    chain = follow([second.path])
    assert [node.key for node in chain.nodes.values()] == [second.path.as_posix()]
    assert chain.problems == []
    assert f"init_from: {weights.as_posix()} {recorded['sha256'][:12]}  ✓" in "".join(lines(trace(second.path)))
    weights.write_bytes(b"other")
    (problem,) = follow([second.path]).problems
    assert "was made again since" in problem


def test_evaluations_are_made_at_ends_of_iterations() -> None:
    assert milestones(50, 100, 64) == [0, 64, 128]
    assert milestones(10, 10, 64) == [0, 64]
    assert milestones(50, 120, 32) == [0, 64, 128]
    assert milestones(50, 120, 1) == [0, 50, 100, 120]


def test_novelty_is_learnt_on_the_device_of_the_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def network_is_made(*arguments: object) -> None:
        raise Enough

    made: list[torch.device] = []
    novelty = rnd.RND
    monkeypatch.setattr(
        rnd,
        "RND",
        lambda *args, **options: made.append(torch.device(options["device"])) or novelty(*args, **options),
    )
    monkeypatch.setattr(hardware, "choose", lambda *args: Hardware(torch.device("meta")))
    monkeypatch.setattr(agents, "new_agent", network_is_made)
    with pytest.raises(Enough):
        run(TrainRsConfig(alg="rnd", env="Toy-Grid", out=tmp_path / "run"), Reporter())
    assert made == [torch.device("meta")]


def test_a_weight_that_does_not_fall_to_0_in_time_guarantees_nothing_and_is_said(
    tmp_path: Path, begins: TrainRsConfig
) -> None:
    code = potential_run(tmp_path / "code")
    config = settings(
        tmp_path / "late", alg="bk-code", potential=code, shaping="decay", shaping_until=10**8, steps=3_000
    )
    made = run(config, Reporter())
    assert made.facts["guarantee"].startswith("none: its weight still is 100 % of the first at the end")
    began = find_method("bk-code").build(replace(begins, shaping="progress+start", shaping_until=4_000))  # type: ignore[union-attr]
    assert began.facts["guarantee"].startswith("none: its weight still is 50 % of the first at the end")
    began.close()
    assert any("--shaping-until 100,000,000 lies beyond --steps" in one for one in made.facts["warnings"])
