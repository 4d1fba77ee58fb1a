"""Several ranks against one: the same scores and gradients, one run on disk, and an end when one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.scorer import Scoring
from bkrl.cli.main import run_command
from bkrl.core.config import PPOConfig
from bkrl.envs import make_vec
from bkrl.learn import ranks
from bkrl.learn.ppo import PPO
from bkrl.learn.rollout import Clock
from bkrl.rewards.streams import EnvReward

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=1,actions=restricted"
# 9 steps and rollouts of 3 views do not divide by 2.
CONFIG = PPOConfig(num_envs=3, num_steps=3, num_minibatches=1, update_epochs=1, learning_rate=1e-3, clip_vloss=True)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked here, so that imports are paid once")


def start(work: Callable[[], object], said: Path, number: int, count: int, port: int) -> int:
    """A rank in a process of its own; what it says on stdout and stderr is in the file `said`."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(number)}
        os.environ |= place | {"RANK": str(number), "WORLD_SIZE": str(count)}
        code = int(work() or 0)
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:  # noqa: BLE001 - what a rank dies of is in its file
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ranked(work: Callable[[], object], folder: Path, count: int = 2) -> list[int]:
    """Ranks 0 to `count` - 1, started; their process ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [start(work, folder / f"rank{number}.txt", number, count, port) for number in range(count)]


def ended(pids: list[int], seconds: float = 600.0) -> list[int]:
    """Exit codes, once all have ended; those that do not end are killed, and the test fails."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in set(pids) - set(codes):
            if (found := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(found[1])
        time.sleep(0.02)
    for pid in set(pids) - set(codes):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(codes) == len(pids), "a rank did not end"
    return [codes[pid] for pid in pids]


def update(accumulate: int) -> dict[str, np.ndarray]:
    """What one iteration scores, the gradient of its minibatch before it is clipped, and the figures of its update."""
    torch.set_num_threads(1)
    settings = LanguageSettings(Scoring(normalise="token"), head_sizes=(16,), observations=1)
    agent = LanguageAgent(open_language_model("tiny-t5", seed=0), ENV, 1, settings, seed=0)
    config = PPOConfig(**{**vars(CONFIG), "accumulate": accumulate, "max_grad_norm": 1e9})
    with ranks.joined():
        ppo = PPO(make_vec(ENV, config.num_envs), agent, [EnvReward(scale=20.0)], config, total_steps=99, seed=5)
        ppo.collector.collect(Clock())
        ppo.rewards.normal_(generator=torch.Generator().manual_seed(0))
        found = {"logits": ppo.collector.logits.clone(), "values": ppo.collector.values.clone()}
        figures = ppo.update(*ppo.advantages())
        found |= {f"gradient {name}": p.grad for name, p in agent.module.named_parameters() if p.grad is not None}
        found["figures"] = torch.tensor([figures[name] for name in sorted(figures)])
        assert not ranks.agreed(False, ppo.parameters, ppo.step)  # or it would raise
    return {name: tensor.numpy() for name, tensor in found.items()}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_ranks_score_and_learn_as_one_does(tmp_path, accumulate):
    def work() -> None:
        found = update(accumulate)
        np.savez(tmp_path / f"{ranks.number()}.npz", **found)

    one = update(1)  # first, so that imports and compiled kernels are there when ranks are forked
    codes = ended(ranked(work, tmp_path))
    assert codes == [0, 0], (tmp_path / "rank0.txt").read_text() + (tmp_path / "rank1.txt").read_text()
    two = [np.load(tmp_path / f"{number}.npz") for number in range(2)]
    assert set(two[0].files) == set(one)
    assert sum(np.abs(one[name]).sum() > 0 for name in one if name.startswith("gradient")) > 20
    for name, expected in one.items():
        np.testing.assert_array_equal(two[0][name], two[1][name])
        np.testing.assert_allclose(two[0][name], expected, rtol=1e-4, atol=1e-6)


def train(out: Path, alg: str = "glam") -> Callable[[], int]:
    words = f"train-rs --alg {alg} --env {ENV} --steps 60 --eval-every 30 --eval-episodes 3 --checkpoint-every 6"
    words += f" --num-envs 3 --num-steps 2 --num-minibatches 2 --out {out}"
    return lambda: run_command([*words.split(), *(["--window", "1", "--head-size", "8"] if alg == "glam" else [])])


def lines(run: Path) -> list[str]:
    return [line for line in (run / "metrics.jsonl").read_text().splitlines() if "time/" not in line]


def test_a_killed_rank_ends_the_run_and_the_same_command_goes_on(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert ended(ranked(train(whole), tmp_path)) == [0, 0]
    assert "continuing" not in (tmp_path / "rank0.txt").read_text()
    pids = ranked(train(cut), tmp_path)
    deadline = time.monotonic() + 600
    while not list(cut.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(pids[1], signal.SIGKILL)
    assert ended(pids) == [1, -signal.SIGKILL]
    assert "Rank 0 of 2 has lost another rank, which was killed" in (tmp_path / "rank0.txt").read_text()
    assert not (cut / "manifest.json").exists()
    assert ended(ranked(train(cut), tmp_path)) == [0, 0]
    assert "continuing at step" in (tmp_path / "rank0.txt").read_text()
    assert lines(cut) == lines(whole)
    outputs = [json.loads((run / "manifest.json").read_text())["outputs"] for run in (whole, cut)]
    weights = [{name: one for name, one in found.items() if name.endswith(".safetensors")} for found in outputs]
    assert weights[0] == weights[1] != {}


def test_what_runs_in_one_process_is_refused_by_one_rank(tmp_path):
    codes = ended(ranked(train(tmp_path / "ppo", "ppo"), tmp_path))
    assert codes[0] == 2
    assert (
        "--alg ppo runs in one process; start it without torchrun, which is for glam"
        in (tmp_path / "rank0.txt").read_text()
    )
    assert "bkrl:" not in (tmp_path / "rank1.txt").read_text()
    assert not (tmp_path / "ppo").exists()
