"""The same seeds give the same bytes in a new process, whose hashes have another seed."""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

PROGRAMS = {
    "a table": """
envs = make_vec("Toy-Grid", 5)
digest = hashlib.sha256(envs.reset(seed=3)[0].tobytes())
rng = np.random.default_rng(0)
for _ in range(200):
    digest.update(envs.step(rng.integers(0, 4, 5))[0].tobytes())
print(digest.hexdigest())
""",
    "mixed levels": """
envs = make_vec("BabyAI-MixedTrainLocalFrench-v0", 3, max_steps=9)
digest = hashlib.sha256(envs.reset(seed=4)[0].tobytes())
rng = np.random.default_rng(0)
for _ in range(60):
    views, rewards, *_, infos = envs.step(rng.integers(7, size=3))
    digest.update(views.tobytes() + rewards.tobytes() + repr((envs.missions(), infos["task_kind"])).encode())
print(digest.hexdigest())
""",
    "Crafter's reference": """
env = make("Crafter-Text-Reward", backend="reference", observation="both", length=400)
rng = np.random.default_rng(5)
digest = hashlib.sha256()
obs, _ = env.reset(seed=11)
for _ in range(700):
    obs, reward, terminated, truncated, info = env.step(rng.integers(20))
    digest.update(obs["image"].tobytes() + obs["symbolic"].tobytes() + info["semantic"].tobytes())
    if terminated or truncated:
        env.reset()
print(digest.hexdigest())
""",
    "BabyAI's reference": """
env = make("BabyAI-Text-GoToLocal-Pretraining-S20", backend="reference")
rng, digest = np.random.default_rng(3), hashlib.sha256(env.reset(seed=11)[0].tobytes())
for i in range(300):
    view, *rest = env.step(int(rng.integers(6)))
    digest.update(view.tobytes() + repr(rest).encode() + env.mission.encode())
    if rest[1] or rest[2] or i % 100 == 99:
        digest.update(env.reset()[0].tobytes() + env.mission.encode())
print(digest.hexdigest())
""",
    "goals": """
from bkrl.envs import situations
from bkrl.goals.suggesters import Noisy, Oracle
known, envs = situations("Crafter-Typed-Harder"), make_vec("Crafter-Typed-Harder", 64)
keys = np.unique(known.keys(envs.reset(seed=3)[0])).tolist()
rates = {"bad_timing": 0.3, "nonsense": 0.3, "impossible": 0.3}
said = [known.text(key) for key in keys], Oracle(known).suggest(keys), Noisy(known, rates, 1).suggest(keys)
print(hashlib.sha256(repr((known.possible, known.same, said)).encode()).hexdigest())
""",
    "weights": """
import torch
torch.set_num_threads(1)
from bkrl.core.config import PPOConfig
from bkrl.agents.build import new_agent
from bkrl.learn.ppo import PPO
from bkrl.rewards.rnd import RND
from bkrl.rewards.streams import EnvReward
envs = make_vec("Toy-Grid", 8)
config = PPOConfig(num_envs=8, num_steps=32, num_minibatches=4)
for seed in (5, 6):
    agent = new_agent("compact", envs, "symbolic", 2, 3)
    ppo = PPO(envs, agent, [EnvReward(), RND((1,), 8, seed=4)], config, total_steps=10**6, seed=seed)
    for _ in range(4): ppo.iterate()
    digest = hashlib.sha256()
    for tensor in agent.module.state_dict().values(): digest.update(tensor.numpy().tobytes())
    print(digest.hexdigest())
""",
    "Housekeep": """
envs = make_vec("Housekeep-Symbolic-Original@scene=Pomaria_2_int,things=all", 8)
observations, _ = envs.reset(seed=3)
rng, digest = np.random.default_rng(0), hashlib.sha256()
captions = [captioner("Housekeep-Symbolic-Task1", language) for language in (None, "ellm")]
for _ in range(60):
    observations, rewards, *_ = envs.step(rng.integers(0, 6, 8))
    digest.update(observations.tobytes() + rewards.tobytes())
digest.update(repr([list(caption(observations)) for caption in captions]).encode())
print(digest.hexdigest())
""",
}
BEGIN = "import hashlib\nimport numpy as np\nfrom bkrl.envs import captioner, make, make_vec\n"


@pytest.mark.parametrize("names", [("mixed levels", "goals"), pytest.param(tuple(PROGRAMS), marks=pytest.mark.slow)])
def test_the_same_seeds_give_the_same_bytes_in_another_process(tmp_path: Path, names: tuple[str, ...]) -> None:
    script = tmp_path / "programs.py"
    script.write_text(BEGIN + "".join(f'print("{name}:", end=" ")\n{PROGRAMS[name]}' for name in names))
    with redirect_stdout(io.StringIO()) as here:
        runpy.run_path(str(script))
    new = {**os.environ, "PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=new)
    said = here.getvalue()
    assert there.stdout == said
    assert re.findall(r"^(.+): [0-9a-f]{64}$", said, re.M) == list(names)
    digests = re.findall("[0-9a-f]{64}", said)
    assert len(set(digests)) == len(digests) == len(names) + ("weights" in names)  # weights of two seeds
