"""kill -9 at random moments of every stage that computes, and what it must leave behind: the same bytes.

    python tests/learn/kill_training.py [--kills 20] [--seed 0] [--folder DIR]

Each stage runs once untouched. Then it runs again and is killed at a random moment, over and over until so many kills
have been, each time continuing with the same command; then it may finish. The outputs named in its manifest must have
the hashes of the untouched run, and metrics.jsonl the same lines, those with a clock in them aside. Stages: collect,
label and train-rm for code, pref and goal, and train-rs shaped by each of the three. Prints one line a stage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

# Imported before the forks, all of it, so that a kill falls on work and not on imports.
import torch

import bkrl.stages.collect
import bkrl.stages.label
import bkrl.stages.train_rm
import bkrl.stages.train_rs  # noqa: F401
from bkrl.cli.main import run_command

CONTINUED = "continuing at step"


@dataclass
class Outcome:
    """What killing one stage showed.

    Attributes:
        kills: how often it was killed at work.
        continued: how often it went on from a checkpoint.
        different: names of outputs whose bytes differ; empty when all is well.
    """

    kills: int = 0
    continued: int = 0
    different: list[str] = field(default_factory=list)


class Process:
    """The command line at work in a process of its own, forked from this one so that the imports are paid once."""

    def __init__(self, arguments: list[str], out: Path) -> None:
        self.said = Path(f"{out}.said")
        self.said.parent.mkdir(parents=True, exist_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.argv = ["bkrl", *arguments, "--out", str(out)]
            code = 70
            try:
                code = run_command(sys.argv[1:])
            finally:
                os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None when it is still at work after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                return None
            time.sleep(0.002)

    def kill(self) -> None:
        """SIGKILL, to it and to what it started."""
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def finish(arguments: list[str], out: Path) -> tuple[float, str]:
    """Run to the end; the seconds it took, and what it said."""
    start = time.monotonic()
    process = Process(arguments, out)
    code = process.wait(float("inf"))
    if code != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with {code}:\n{process.said.read_text()}")
    return time.monotonic() - start, process.said.read_text()


def fingerprint(run: Path) -> dict[str, str]:
    """Hashes of a run's outputs; metrics without the lines that hold a clock."""
    recorded = json.loads((run / "manifest.json").read_text())["outputs"]
    found = {name: facts["sha256"] for name, facts in recorded.items() if name != "metrics.jsonl"}
    metrics = run / "metrics.jsonl"
    if metrics.exists():
        found["metrics.jsonl"] = "".join(line for line in metrics.open() if '"time/' not in line)
    return found


def differences(whole: Path, killed: Path) -> list[str]:
    """The outputs whose bytes are not the same in both."""
    expected, found = fingerprint(whole), fingerprint(killed)
    return sorted(name for name in expected | found if expected.get(name) != found.get(name))


def torture(arguments: list[str], whole: Path, killed: Path, kills: int, rng: random.Random) -> Outcome:
    """Run `arguments` untouched into `whole`, and killed `kills` times into `killed`; compare."""
    seconds, _ = finish(arguments, whole)
    outcome = Outcome()
    while outcome.kills < kills:
        process = Process(arguments, killed)
        code = process.wait(rng.uniform(0.0, 0.6) * seconds)
        if code is None:
            process.kill()
            outcome.kills += 1
            outcome.continued += CONTINUED in process.said.read_text()
        elif code != 0:
            raise SystemExit(f"{' '.join(arguments)} ended with {code} after a kill:\n{process.said.read_text()}")
        elif outcome.kills < kills:  # done, and more kills are wanted: once more from the start
            outcome.different += differences(whole, killed)
            shutil.rmtree(killed)
    _, said = finish(arguments, killed)
    outcome.continued += CONTINUED in said
    outcome.different += differences(whole, killed)
    return outcome


def stages(folder: Path, scale: int) -> list[tuple[str, list[str]]]:
    """Every stage's command line; each reads what an untouched earlier one wrote. `scale` 1 takes seconds a stage."""
    env = "BabyAI-Text-GoToLocal-Pretraining-S20"
    whole = folder / "whole"

    def words(text: str) -> list[str]:
        return text.split()

    listed = [("collect", words(f"collect --env {env} --steps {65_536 * scale} --checkpoints 3"))]
    listed[0][1].extend(words(f"--episodes-per-checkpoint {4 * scale}"))
    for variant in ("code", "pref", "goal"):
        listed.append((f"label-{variant}", words(f"label {whole}/collect --variant {variant} --cache {folder}/cache")))
        listed.append((f"train-rm-{variant}", words(f"train-rm {whole}/label-{variant}")))
    for variant in ("code", "pref", "goal"):
        shaped = words(f"train-rs --alg bk-{variant} --potential {whole}/train-rm-{variant} --steps {65_536 * scale}")
        pace = words(f"--eval-every {16_384 * scale} --eval-episodes 8 --checkpoint-every 8192")
        listed.append((f"train-rs-{variant}", shaped + pace))
    return listed


def main() -> None:
    """Torture every stage; exit code 1 when one of them differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of each stage")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--scale", type=int, default=2, help="size of the runs")
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default: a temporary folder")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    torch.set_num_threads(1)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="bkrl-kill-"))
    failed = False
    for name, arguments in stages(folder, args.scale):
        start = time.monotonic()
        outcome = torture(arguments, folder / "whole" / name, folder / "killed" / name, args.kills, rng)
        verdict = "the same bytes" if not outcome.different else f"DIFFERENT: {', '.join(outcome.different)}"
        print(
            f"{name:16} killed {outcome.kills:3}, continued from a checkpoint {outcome.continued:3}, {verdict} "
            f"({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        failed |= bool(outcome.different)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
