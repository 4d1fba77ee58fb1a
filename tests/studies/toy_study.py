"""A whole study in a toy env, small enough to be done in a test again and again."""

import json

TOY = """
title = "toy"
[[world]]
name = "chain"
algs = ["ppo", "bk-pref"]
seeds = [1]

[world.collect]
env = "Toy-Chain"
steps = 512
checkpoints = 1
episodes_per_checkpoint = 20
ppo = { num_envs = 8, num_steps = 32 }

[world.label]
llm = "return"
num = 120
length = 2

[world.train_rm]
epochs = 1

[world.train_rs]
env = "Toy-Chain"
steps = 4096
eval_every = 2048
eval_episodes = 4
checkpoint_every = 512
ppo = { num_envs = 8, num_steps = 32 }

[world.evaluate]
episodes = 4
gifs = 0
"""


def toy(tmp_path, text=TOY):
    path = tmp_path / "toy.toml"
    path.write_text(text)
    return path


def contents(out):
    """Every result of a study as bytes; left out are lines with a clock, and manifests, which say who asked where."""
    found = {}
    for manifest in sorted(out.glob("chain/*/manifest.json")):
        for name in json.loads(manifest.read_text())["outputs"]:
            raw = (manifest.parent / name).read_bytes()
            if name.endswith((".json", ".jsonl")):
                raw = b"\n".join(
                    line for line in raw.split(b"\n") if b'"time/' not in line and b"manifest_sha256" not in line
                )
            found[f"{manifest.parent.name}/{name}"] = raw
    return found
