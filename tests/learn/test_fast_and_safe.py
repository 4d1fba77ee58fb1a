"""Looking at repeats once, bfloat16, other devices, weights of another run, full disks, and warnings."""

from __future__ import annotations

import errno
import json
import os
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import bkrl
from bkrl.agents import load_agent
from bkrl.agents.advised import Advice, AdvisedAgent
from bkrl.agents.build import new_agent, take_weights
from bkrl.agents.networks import ActorCritic
from bkrl.agents.networks.adam import Adam
from bkrl.agents.play import play
from bkrl.core.config import HardwareConfig, PPOConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.distinct import Repeats
from bkrl.envs import make_vec, toy
from bkrl.learn import checkpoint, hardware
from bkrl.learn.checkpoint import Checkpoints
from bkrl.learn.hardware import Hardware, choose
from bkrl.learn.loop import _warn, train
from bkrl.learn.ppo import PPO, Diverged
from bkrl.learn.rollout import Clock
from bkrl.methods import TrainRsConfig
from bkrl.rewards.streams import EnvReward
from bkrl.runs.record import Run
from bkrl.stages import train_rs
from tests.commands import bkrl as command_line
from tests.learn.kill_training import torture

CONFIG = PPOConfig(num_envs=16, num_steps=64, num_minibatches=4, learning_rate=3e-3)


def make(env_id: str = "Toy-Grid", steps: int = 30_000, config: PPOConfig = CONFIG, **options) -> PPO:
    envs = make_vec(env_id, config.num_envs)
    agent = new_agent("compact", envs, "symbolic", 1, 0)
    return PPO(envs, agent, [EnvReward()], config, total_steps=steps, **options)


@pytest.mark.parametrize("shape", [(3,), (8,), (7, 7, 3)])
def test_repeats_are_found_and_nothing_else(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    storage = np.zeros((20, 8, *shape), np.uint8)
    repeats = Repeats(storage)
    for _ in range(2):  # the second time after `clear`
        storage[:] = rng.integers(0, 2, storage.shape)
        storage[5:, ::2] = storage[:15, 1::2]
        repeats.clear()
        flat, seen = storage.reshape(160, -1), {}
        for t in range(20):
            before = len(seen)
            numbers, new = repeats.add(t)
            for n in range(8):
                assert numbers[n] == seen.setdefault(flat[t * 8 + n].tobytes(), len(seen))
            assert len(new) == len(seen) - before
            assert repeats.count == len(seen)
        assert np.array_equal(flat[repeats.origins], flat)


def test_looking_once_is_looking_at_all() -> None:
    """One iteration with and without: the same actions, and weights that agree but for rounding."""
    once, every = make(), make()
    every.collector.look_once = False
    for ppo in (once, every):
        for _ in range(2):
            ppo.iterate()
    assert len(np.unique(once.collector.repeats.origins)) < 0.1 * once.collector.repeats.origins.size
    assert np.array_equal(once.collector.rollout.actions, every.collector.rollout.actions)
    assert torch.allclose(once.collector.logits, every.collector.logits, atol=1e-4)
    for a, b in zip(once.parameters, every.parameters, strict=True):
        assert torch.allclose(a, b, atol=1e-3)


@pytest.mark.slow  # fast runs: tests/learn/test_ppo.py, and what bfloat16 changes below
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_learns_on_every_device_and_in_both_precisions(device: torch.device, precision: str) -> None:
    ppo = make(hardware=Hardware(device, precision))
    while not ppo.done:
        ppo.iterate()
    table = toy.table("Toy-Grid")
    q = toy.optimal_values(table, 0.99)
    acted = ~np.isin(np.arange(table.num_states), table.next_state[table.terminated])
    with torch.no_grad(), ppo.hardware.autocast():
        states = torch.arange(table.num_states, dtype=torch.uint8)[:, None].to(ppo.device)
        logits, values = ppo.agent.module(states)
    assert logits.dtype == torch.float32
    greedy = logits.argmax(1).cpu().numpy()
    assert np.isclose(q[np.arange(len(q)), greedy], q.max(1))[acted].all()
    assert np.abs(values[:, 0].cpu().numpy() - q.max(1))[acted].max() < 0.1


@pytest.mark.parametrize("greedy", [False, True])
def test_plays_the_same_episodes_on_every_device(tmp_path: Path, device: torch.device, greedy: bool) -> None:
    ppo = make(hardware=Hardware(device))
    ppo.iterate()
    ppo.agent.save(tmp_path)
    agents = [ppo.agent, load_agent(tmp_path)]
    here, there = (list(play(one, make_vec("Toy-Grid", 8), 12, seed=3, greedy=greedy, keep=True)) for one in agents)
    for a, b in zip(here, there, strict=True):
        assert np.array_equal(a.actions, b.actions)


def test_bf16_moves_a_ratio_by_little() -> None:
    """What was acted on and what is trained on agree in bfloat16 too, though their batches differ."""
    envs = make_vec("BabyAI-Text-GoToLocal-RedBall-S20", 8)
    agent = new_agent("paper", envs, "symbolic", 1, 0)
    config = PPOConfig(num_envs=8, num_steps=16, num_minibatches=1, update_epochs=1)
    kept = Hardware(torch.device("cpu"), "bf16")
    ppo = PPO(envs, agent, [EnvReward()], config, total_steps=10**6, hardware=kept)
    assert abs(ppo.iterate()["ppo/approx_kl"]) < 1e-5


def test_auto_is_made_definite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "multiplies_bf16", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose(HardwareConfig(), "paper") == Hardware(torch.device("cpu"), "bf16")
    assert choose(HardwareConfig(), "residual").precision == "bf16"
    assert choose(HardwareConfig(), "compact").precision == "fp32"
    assert choose(HardwareConfig(precision="fp32"), "paper").precision == "fp32"
    with pytest.raises(UsageError, match="no GPU"):
        choose(HardwareConfig(device="cuda"), "paper")
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"C\+\+ compiler"):
        choose(HardwareConfig(compile=True), "paper")


def test_weights_of_another_run(tmp_path: Path) -> None:
    policy = make(seed=1).agent
    policy.save(tmp_path)
    source, target = policy.module, make().agent.module
    with torch.no_grad():
        source.head.weight.add_(0)
        for parameter in target.parameters():
            parameter.zero_()
    take_weights(target, tmp_path / "policy.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))
    other = new_agent("compact", make_vec("Toy-Chain", 2), "symbolic", 2, 0).module
    with pytest.raises(InputError, match="another network"):
        take_weights(other, tmp_path / "policy.safetensors")
    with pytest.raises(InputError, match="no run and no file"):
        take_weights(target, tmp_path / "nothing")
    (tmp_path / "policy.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match="no whole safetensors"):
        take_weights(target, tmp_path / "policy.safetensors")


def test_divergence_is_diagnosed() -> None:
    ppo = make()
    ppo.streams[0].scale = np.inf
    ppo.collector.begin()
    ppo.collector.envs = _Paying(ppo.envs)
    with pytest.raises(Diverged, match=r"of minibatch 1 of 16 is not finite \(largest reward (inf|nan)"):
        ppo.iterate()


def test_of_several_the_first_cause_is_named() -> None:
    """A network that says nan breaks every loss and gradient: one is named."""
    ppo = make()
    with torch.no_grad():
        ppo.agent.module.head.bias.fill_(torch.nan)
    with pytest.raises(Diverged, match=r"the entropy of minibatch 1 of 16 is not finite \(largest reward"):
        ppo.iterate()


@pytest.mark.filterwarnings("error")
def test_rewards_beyond_float32_are_diagnosed_and_nothing_else_is_said() -> None:
    ppo = make()
    ppo.streams[0].scale = 1e308
    with pytest.raises(Diverged, match="value loss of minibatch 1 of 16 is not finite"):
        ppo.iterate()


@pytest.mark.parametrize(("rate", "what"), [(1e39, "weights after the update are not"), (1e30, "too large to learn")])
def test_a_last_step_that_breaks_the_network_ends_the_run(tmp_path: Path, rate: float, what: str) -> None:
    """Its losses were finite, for they were taken before it; nothing of it may be kept."""
    settings = PPOConfig(num_envs=16, num_steps=32, num_minibatches=1, update_epochs=1, learning_rate=rate)
    for steps in (512, 2048):  # it is the last step of the run, or a checkpoint comes next
        out = tmp_path / str(steps)
        config = TrainRsConfig(env="Toy-Grid", out=out, steps=steps, eval_episodes=4, checkpoint_every=1, ppo=settings)
        for _ in range(2):
            with pytest.raises(Diverged, match=f"diverged at step 512: .*{what}"):
                train_rs.run(config, Listening())
            assert [path.name for path in out.glob("checkpoints/step-*")] == ["step-000000000000"]
            assert not (out / "policy.safetensors").exists()


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    agent = make().agent
    silent = AdvisedAgent(agent, Advice(make(seed=1).agent.module, float("inf")), weight=1.0, until=10)
    silent.save(tmp_path, "silent")
    assert load_agent(tmp_path, "silent").advice.scale == torch.inf  # which is no fault
    with torch.no_grad():
        agent.module.head.bias[0] = torch.nan
    agent.save(tmp_path)
    with pytest.raises(InputError, match="weights that are not finite"):
        load_agent(tmp_path)
    with pytest.raises(InputError, match="--init-from: .* weights that are not finite"):
        take_weights(make().agent.module, tmp_path / "policy.safetensors")


@pytest.mark.parametrize(
    ("cause", "mend"),
    [(ImportError("a/b.main.so: file too short"), "Remove .*torchinductor"), ("no compiler", r"Install g\+\+")],
)
def test_what_the_compiler_of_torch_cannot_do_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception | str, mend: str
) -> None:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InvalidCxxCompiler

    class Failed(TorchDynamoException):
        inner_exception = InvalidCxxCompiler() if isinstance(cause, str) else cause

    def fail(observations: torch.Tensor) -> None:
        raise Failed

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torchinductor"))
    monkeypatch.setattr(ActorCritic, "compile", lambda self, dynamic: setattr(self, "forward", fail))
    ppo = make(hardware=Hardware(compile=True))
    run = Run.create(tmp_path / "run", stage="train-rs", config=PPOConfig())
    with pytest.raises(RunFailed, match=f"--compile: .*{mend}.* leave --compile out"):
        train(ppo, run, Listening(), title="", checkpoint_every=10**6, milestones=[], at_milestone=lambda *at: None)
    run.close()


class _Paying:
    def __init__(self, envs) -> None:
        self.envs = envs

    def step(self, actions):
        observations, rewards, *rest = self.envs.step(actions)
        return observations, rewards + 1, *rest


class Listening(Reporter):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def test_warnings_come_once_each() -> None:
    reporter, ppo = Listening(), make()
    calm = {"ppo/entropy": 1.0, "ppo/approx_kl": 0.01, "ppo/value_loss": 0.02, "rollout/success_rate": 0.1}
    progress: dict = {"warned": []}
    for _ in range(25):
        _warn(ppo, calm, progress, reporter)
    assert not reporter.warned
    for _ in range(2):
        for bad in ({"ppo/entropy": 1e-4}, {"ppo/approx_kl": 0.9}, {"ppo/value_loss": 50.0}):
            _warn(ppo, calm | bad, progress, reporter)
    assert [text.split(": ")[1].split("(")[0].strip() for text in reporter.warned] == [
        "the policy's entropy has collapsed",
        "an update moved the policy very far",
        "the value loss has exploded",
    ]
    assert all("--" in text for text in reporter.warned)  # each says what to do


@pytest.mark.parametrize(
    ("scale", "rate", "said"), [(1.0, 3e-3, None), (1.0, 1.0, "exploded"), (1e6, 3e-3, "rewards are so large")]
)
def test_values_out_of_reach_are_told_at_once(scale: float, rate: float, said: str | None) -> None:
    """What a critic that says 0 would lose is known from the first rollout on."""
    reporter, ppo = Listening(), make(config=PPOConfig(num_envs=16, num_steps=64, learning_rate=rate))
    ppo.streams[0].scale = scale
    progress: dict = {"warned": []}
    for _ in range(5):
        _warn(ppo, ppo.iterate(), progress, reporter)
    about = [text for text in reporter.warned if "value loss" in text]
    assert len(about) == (said is not None)
    assert said is None or (about[0].startswith("step 1,024") and said in about[0])


def test_rewards_that_are_found_late_are_no_explosion() -> None:
    """A critic that has only seen nothing loses, on the first large rewards, what one that says 0 would."""
    ppo = make()
    calm = {"ppo/entropy": 1.0, "ppo/approx_kl": 0.01, "ppo/value_loss": 1e-4}
    assert "value" in ppo.warnings(calm | {"ppo/value_loss": 3.0})
    ppo.collector.collect(Clock())
    ppo.rewards[:] = 1.0
    ppo.advantages()
    assert not ppo.warnings(calm | {"ppo/value_loss": 3.0})
    ppo.rewards[:] = 0.0  # and lost again: what was learnt of them is no explosion either
    ppo.advantages()
    assert not ppo.warnings(calm | {"ppo/value_loss": 3.0})


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path / "run", stage="train-rs", config=PPOConfig())
    run.log(1, loss=0.5)

    write = os.write  # of a disk that has room for ten more bytes
    monkeypatch.setattr(os, "write", lambda file, raw: write(file, raw[:10]))
    with pytest.raises(RunFailed, match=r"No space left.*run the same command again"):
        run.log(2, loss=0.25)
    monkeypatch.undo()
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1, "loss": 0.5}\n'

    checkpoints = Checkpoints(run.file("checkpoints"))
    checkpoints.save(1, {"a": np.arange(3)}, {})

    def full(path: Path, data: bytes | str) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "atomic_write", full)
    with pytest.raises(RunFailed, match="No space left"):
        checkpoints.save(2, {"a": np.arange(3)}, {})
    monkeypatch.undo()
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000000000001"]
    assert checkpoints.newest().step == 1


def test_a_vanished_folder_is_told(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", stage="train-rs", config=PPOConfig())
    run.log(1, loss=0.5)
    run.file("metrics.jsonl").unlink()
    with pytest.raises(RunFailed, match="was removed"):
        run.log(2, loss=0.5)


def test_half_written_files_of_a_kill_are_swept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", stage="train-rs", config=PPOConfig())
    half = run.file(".policy.safetensors.x7.tmp")
    half.write_bytes(b"half")
    run._lock.close()
    Run.create(tmp_path / "run", stage="train-rs", config=PPOConfig())
    assert not half.exists()


def test_killed_runs_end_with_the_same_bytes(tmp_path: Path) -> None:
    """A few kills of a small run; `kill_training.py` does the same to every stage at length."""
    arguments = ["train-rs", "--alg", "rnd", "--env", "Toy-Grid", "--steps", "3000", "--num-envs", "16"]
    arguments += ["--num-steps", "32", "--eval-every", "1500", "--eval-episodes", "8", "--checkpoint-every", "512"]
    outcome = torture(arguments, tmp_path / "whole", tmp_path / "killed", 3, random.Random(0))
    assert outcome.kills == 3
    assert not outcome.different
    assert json.loads((tmp_path / "killed" / "manifest.json").read_text())["facts"]["steps"] >= 3_000


def test_runs_in_another_order_are_the_same_bytes() -> None:
    """Nothing of a run hangs on what ran before it in the same process."""

    def weights(order: list[int]) -> dict[int, bytes]:
        found = {}
        for seed in order:
            ppo = make(seed=seed)
            ppo.iterate()
            found[seed] = b"".join(p.detach().numpy().tobytes() for p in ppo.parameters)
        return found

    forwards, backwards = weights([1, 2, 3]), weights([3, 2, 1])
    assert forwards == backwards
    assert len(set(forwards.values())) == 3


def test_training_loads_no_compiler_of_torch(tmp_path: Path) -> None:
    code = (
        "import sys, torch\nfrom tests.learn.test_fast_and_safe import make\nmake().iterate()\n"
        "from bkrl.agents.networks import check_fit\n"  # of weights that are drawn from a normal distribution, too
        "check_fit(lambda: torch.nn.Embedding(3, 4), {'weight': torch.zeros(3, 4)}, 'it')\n"
        "from bkrl.potentials.preference.net import NetConfig, PreferenceNet\n"  # numbers that are counted, too
        "flat = NetConfig((82,), 6, 1, grid=(9, 7), faced=(63, 30))\n"
        "check_fit(lambda: PreferenceNet(flat), PreferenceNet(flat).state_dict(), 'it')\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    (tmp_path / "train.py").write_text(code)
    assert command_line(tmp_path / "train.py").stdout.strip() == "[]"


def test_every_optimiser_is_our_adam() -> None:
    sources = sorted(Path(bkrl.__file__).parent.rglob("*.py"))
    assert [path.name for path in sources if "torch.optim.Adam" in path.read_text()] == ["adam.py"]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_our_adam_is_the_one_of_torch(decay: float) -> None:
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    found = []
    own = partial(Adam, decoupled_weight_decay=decay > 0)
    for made in (own, torch.optim.AdamW if decay else torch.optim.Adam):
        kind = partial(made, lr=0.1, eps=1e-5, weight_decay=decay, fused=decay == 0.0)
        weight = torch.nn.Parameter(start.clone())
        optimizer = kind([weight])
        for step in range(6):
            if step == 3:  # as from a checkpoint
                state = optimizer.state_dict()
                optimizer = kind([weight])
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        found.append(weight.detach())
    assert torch.equal(*found)
    assert not torch.equal(found[0], start)
