"""Checkpoints are whole or not there; a run that is stopped goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl.agents.advised import Advice, AdvisedAgent
from bkrl.agents.build import new_agent
from bkrl.agents.network import NetworkAgent
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.windows import Reads
from bkrl.envs import make_vec
from bkrl.learn.checkpoint import Checkpoints
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.loop import train
from bkrl.learn.ppo import PPO
from bkrl.learn.protocol import Saved
from bkrl.rewards.rnd import RND
from bkrl.rewards.streams import EnvReward
from bkrl.runs.record import Run
from tests.commands import Started, bkrl

TENSORS = {
    "a": torch.arange(6).view(2, 3),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), np.uint8),
    "flags": np.array([True, False]),
    "words": np.array([["go", "stop"], ["été", ""]]),
    "big": np.array([2**64 - 1], np.uint64),
}


def test_everything_comes_back(tmp_path: Path, device: torch.device) -> None:
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(12, TENSORS | {"a": TENSORS["a"].to(device)}, {"rng": 2**127, "best": None})
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 12
    assert found.facts == {"rng": 2**127, "best": None}
    for name, value in TENSORS.items():
        assert np.array_equal(found.tensors[name], np.asarray(value))
        assert found.tensors[name].dtype == np.asarray(value).dtype


def test_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(step, TENSORS, {}, best=step == 2)
    assert sorted(p.name[-1] for p in tmp_path.glob("step-*")) == ["2", "4", "5"]


def test_a_best_one_of_training_that_was_lost_is_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 5, 2, 3, 4):
        checkpoints.save(step, TENSORS, {}, best=step == 5)
    assert sorted(p.name[-1] for p in tmp_path.glob("step-*")) == ["3", "4"]


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
def test_a_damaged_one_is_named_and_the_one_before_it_used(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, TENSORS, {"x": 1})
    path = checkpoints.save(2, TENSORS, {"x": 2}) / name
    whole = path.read_bytes()
    for trial in range(20):
        raw = bytearray(whole)
        if trial % 2:
            raw = raw[: rng.integers(0, len(raw))]
        else:
            raw[rng.integers(0, len(raw))] ^= 1 << rng.integers(0, 8)
        path.write_bytes(bytes(raw))
        found = checkpoints.newest()
        assert found is not None
        if found.step == 1:
            assert "step-000000000002" in found.skipped[0]
            assert "damaged" in found.skipped[0]
        else:  # a flipped bit in the manifest's white space
            assert name == "manifest.json"
            assert found.facts == {"x": 2}
    path.unlink()
    assert checkpoints.newest().step == 1


def test_half_written_ones_are_not_seen_and_swept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, TENSORS, {})
    (tmp_path / ".step-000000000002.99.tmp").mkdir()
    (tmp_path / "step-000000000003").mkdir()
    found = checkpoints.newest()
    assert found.step == 1
    assert len(found.skipped) == 1
    checkpoints.sweep()
    assert not list(tmp_path.glob(".step*"))


def test_a_folder_that_is_gone_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="cannot be written"):
        Checkpoints(tmp_path / "gone" / "checkpoints").save(1, TENSORS, {})
    assert not (tmp_path / "gone").exists()


def plain(envs, seed: int) -> NetworkAgent:
    return new_agent("compact", envs, "symbolic", 2, seed)


def recurrent(envs, seed: int) -> NetworkAgent:
    return new_agent("recurrent", envs, "symbolic", 2, seed)


def advised(envs, seed: int, form: type[AdvisedAgent] = AdvisedAgent) -> NetworkAgent:
    return form(plain(envs, seed), Advice(plain(envs, seed + 1).module, 0.01), weight=3.0, until=1000)


class AskedEachTime(AdvisedAgent):
    """Advice that nobody keeps: it is asked for in every forward, as if it were learnt too."""

    def inputs(self, views):
        return self.base.inputs(views)

    def forward(self, inputs, state, started):
        logits, values, state = self.base.forward(inputs, state, started)
        return (logits + self.now * self.advice(inputs["seen"]) if self.now else logits), values, state


def make(seed: int = 3, network=plain, device: torch.device = CPU.device) -> PPO:
    torch.set_num_threads(1)
    envs = make_vec("Toy-Grid", 4)
    stream = EnvReward()
    stream.reads = Reads(2)
    streams = [stream, RND((1,), 4, seed=1, device=device)]
    config = PPOConfig(num_envs=4, num_steps=16, num_minibatches=2, update_epochs=2, anneal_lr=True)
    hardware = Hardware(device)
    return PPO(envs, network(envs, seed), streams, config, total_steps=1280, seed=seed, hardware=hardware)


class Stop(Exception):
    pass


class StopsAt(Reporter):
    """A reporter that dies when training has reached a step."""

    def __init__(self, step: float) -> None:
        self.at = step
        self.said: list[str] = []
        self.noted: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    warn = say

    def progress(self, title, total, unit="steps"):
        from contextlib import contextmanager

        @contextmanager
        def block():
            def update(completed: float, note: str = "") -> None:
                self.noted.append(note)
                if completed >= self.at:
                    raise Stop

            yield update

        return block()


def go(
    path: Path, stop: float = float("inf"), network=plain, device: torch.device = CPU.device
) -> tuple[PPO, list[str]]:
    run = Run.create(path, stage="train-rs", config=PPOConfig())
    ppo = make(network=network, device=device)
    reporter = StopsAt(stop)

    def judge(number: int, step: int) -> float:
        run.log(step, **{"eval/return": float(number % 3)})
        return float(number % 3)

    try:
        train(
            ppo,
            run,
            reporter,
            title="test",
            checkpoint_every=200,
            milestones=range(0, 1281, 320),
            at_milestone=judge,
        )
    except Stop:
        pass
    finally:
        run.close()
    return ppo, reporter.said


def test_progress_calls_what_was_evaluated_by_its_name(tmp_path: Path) -> None:
    """Milestones are scored by the return, which is no success rate: a slow success pays less than 1."""
    run = Run.create(tmp_path / "run", stage="train-rs", config=PPOConfig())
    reporter = StopsAt(64)
    with pytest.raises(Stop):
        train(
            make(), run, reporter, title="test", checkpoint_every=10_000, milestones=[0], at_milestone=lambda *at: 0.25
        )
    assert reporter.noted == ["return 0.25 when last evaluated"]
    run.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PPO]:
    """A plain run that nothing stopped."""
    path = tmp_path_factory.mktemp("plain") / "whole"
    return path, go(path)[0]


def timeless(path: Path) -> str:
    return "".join(line for line in (path / "metrics.jsonl").open() if '"time/' not in line)


def same_run(path: Path, ppo: PPO, whole: tuple[Path, PPO]) -> bool:
    """Whether what a run logged and learnt is that of another, to the byte."""
    weights = zip(whole[1].parameters, ppo.parameters, strict=True)
    return timeless(path) == timeless(whole[0]) and all(torch.equal(a, b) for a, b in weights)


def test_stopped_and_continued_is_byte_for_byte_the_same(tmp_path: Path, whole: tuple[Path, PPO]) -> None:
    for stop in (64, 448, 1024):
        go(tmp_path / "stopped", stop)
    ppo, said = go(tmp_path / "stopped")
    assert any("exactly where it was" in sentence for sentence in said)
    assert same_run(tmp_path / "stopped", ppo, whole)
    assert whole[1].collector.episodes == ppo.collector.episodes
    assert timeless(whole[0]).count("eval/return") == 5


@pytest.mark.slow
def test_a_recurrent_agent_goes_on_with_what_it_remembered(tmp_path: Path) -> None:
    whole, _ = go(tmp_path / "whole", network=recurrent)
    for stop in (448, 1024):
        go(tmp_path / "stopped", stop, network=recurrent)
    ppo, said = go(tmp_path / "stopped", network=recurrent)
    assert any("exactly where it was" in sentence for sentence in said)
    assert timeless(tmp_path / "stopped") == timeless(tmp_path / "whole")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters, ppo.parameters, strict=True))


@pytest.mark.parametrize("stops", [(), pytest.param((448, 1024), marks=pytest.mark.slow)])
def test_advice_kept_for_an_update_is_byte_for_byte_advice_asked_for_each_time(
    tmp_path: Path, whole: tuple[Path, PPO], stops: tuple[int, ...]
) -> None:
    """Also where the run is stopped in between; Ψ is evaluated once for an update, whatever its epochs."""
    each, _ = go(tmp_path / "each", network=partial(advised, form=AskedEachTime))
    for stop in stops:
        go(tmp_path / "kept", stop, network=advised)
    kept, said = go(tmp_path / "kept", network=advised)
    assert any("exactly where it was" in sentence for sentence in said) == bool(stops)
    assert timeless(tmp_path / "each") == timeless(tmp_path / "kept")
    assert timeless(tmp_path / "kept") != timeless(whole[0])
    for a, b in zip(each.parameters, kept.parameters, strict=True):
        assert torch.equal(a, b)


def test_advice_is_asked_for_once_in_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = make(network=advised)
    ppo.iterate()
    asked: list[int] = []
    evaluate = Advice.forward
    monkeypatch.setattr(
        Advice, "forward", lambda self, seen, *words: asked.append(len(seen)) or evaluate(self, seen, *words)
    )
    ppo.update(*ppo.advantages())
    assert asked == [len(np.unique(ppo.collector.repeats.origins))]


def test_a_damaged_checkpoint_costs_time_and_nothing_else(tmp_path: Path, whole: tuple[Path, PPO]) -> None:
    go(tmp_path / "stopped", 1024)
    newest = sorted((tmp_path / "stopped" / "checkpoints").glob("step-*"))[-1]
    state = newest / "state.safetensors"
    raw = bytearray(state.read_bytes())
    raw[len(raw) // 2] ^= 1
    state.write_bytes(bytes(raw))
    ppo, said = go(tmp_path / "stopped")
    assert newest.name in said[0]
    assert same_run(tmp_path / "stopped", ppo, whole)


def test_damaged_checkpoints_of_later_steps_do_not_push_out_what_is_written_now(
    tmp_path: Path, whole: tuple[Path, PPO]
) -> None:
    """All are damaged, so the run begins again, and is killed once more before it is as far as they were."""
    go(tmp_path / "stopped", 1024)
    for path in (tmp_path / "stopped" / "checkpoints").glob("step-*"):
        (path / "state.safetensors").write_bytes(b"half")
    _, said = go(tmp_path / "stopped", 448)
    assert sum("is damaged" in sentence for sentence in said) >= 2
    assert "begins again" in said[-1]
    ppo, said = go(tmp_path / "stopped")
    assert len(said) == 1
    assert "continuing at step 3" in said[0]
    assert same_run(tmp_path / "stopped", ppo, whole)


def test_metrics_that_a_checkpoint_counts_are_on_the_disk_and_missed_when_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync, save = [0], os.fsync, Checkpoints.save
    counted: list[tuple[int, int]] = []

    def note(descriptor: int) -> None:
        sync(descriptor)
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).name == "metrics.jsonl":
            synced[0] = os.fstat(descriptor).st_size

    def counts(self: Checkpoints, step: int, tensors, facts, **options) -> Path:
        counted.append((facts["metrics_bytes"], synced[0]))
        return save(self, step, tensors, facts, **options)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Checkpoints, "save", counts)
    go(tmp_path / "run", 448)
    assert counted[-1][0] > 0
    assert all(size == known for size, known in counted)
    metrics = tmp_path / "run" / "metrics.jsonl"
    before = metrics.read_bytes()
    metrics.write_bytes(before[:100])
    with pytest.raises(InputError, match="has 100 bytes and had"):
        go(tmp_path / "run")
    assert metrics.read_bytes() == before[:100]
    metrics.write_bytes(before)
    assert "continuing" in go(tmp_path / "run")[1][0]


@pytest.mark.parametrize("lost", ["killed before the checkpoint", "the checkpoint is damaged"])
def test_the_best_policy_is_not_one_of_a_branch_that_was_lost(tmp_path: Path, lost: str) -> None:
    """Envs that cannot be saved go on in another way, where the evaluation that was the best may never be."""
    run = Run.create(tmp_path / "run", stage="train-rs", config=PPOConfig())
    best = run.file("policy-best.json")

    def go_on(scores: list[float], stop: float = float("inf")) -> None:
        ppo = make()
        ppo.envs.snapshot = ppo.envs.restore = unsaved

        def keep() -> list[str]:
            best.write_text(f"step {ppo.step} of {scores}")
            if ppo.step == stop:
                raise Stop
            return [best.name]

        train(
            ppo,
            run,
            Reporter(),
            title="test",
            checkpoint_every=10_000,
            milestones=[0, 320, 640],
            at_milestone=lambda number, step: scores[number],
            at_best=keep,
        )

    def unsaved(*state: object) -> None:
        raise NotImplementedError

    first, other = [0.0, 0.5, 1.0], [0.0, -1.0, -1.0]
    with pytest.raises(Stop):
        go_on(first, stop=640)
    assert best.read_text() == f"step 640 of {first}"
    kept = 320
    if lost == "the checkpoint is damaged":
        (run.file("checkpoints") / "step-000000000320" / "state.json").write_text("")
        kept = 0
    go_on(other)
    assert best.read_text() == f"step {kept} of {first}"
    run.close()


@pytest.mark.parametrize(
    "network", [advised, *(pytest.param(one, marks=pytest.mark.slow) for one in (plain, recurrent))]
)
def test_goes_on_where_it_was_on_every_device(tmp_path: Path, device: torch.device, network) -> None:
    """On a GPU the same figures are promised, not the same bytes."""
    whole, _ = go(tmp_path / "whole", network=network, device=device)
    go(tmp_path / "stopped", 448, network=network, device=device)
    ppo, said = go(tmp_path / "stopped", network=network, device=device)
    assert any("exactly where it was" in sentence for sentence in said)
    assert whole.collector.episodes == ppo.collector.episodes
    for a, b in zip(whole.parameters, ppo.parameters, strict=True):
        torch.testing.assert_close(a, b)
    assert ppo.collector.noise.get_state().equal(whole.collector.noise.get_state())


def test_other_threads_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tmp_path / "run", 448)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    _, said = go(tmp_path / "run", 832)
    assert said[0] == (
        "this run computed on cpu, fp32, threads: 1 and goes on with cpu, fp32, threads: 2: its last digits will "
        "differ."
    )


def test_generators_of_another_kind_of_device_begin_anew() -> None:
    """The state of a GPU's generator means nothing to a processor's, and the other way round."""
    tensors, counters, _ = make().state()
    kept = {name: np.asarray(torch.as_tensor(tensor).detach()) for name, tensor in tensors.items()}
    kept |= {"rng.actions": np.zeros(16, np.uint8), "rng.minibatches": np.zeros(16, np.uint8)}
    first, second = make(), make()
    for ppo in (first, second):
        ppo.restore(Saved(kept, counters | {"step": 64}, exact=True))
        ppo.iterate()
    assert torch.equal(first.collector.logits, second.collector.logits)
    assert np.array_equal(first.collector.rollout.actions, second.collector.rollout.actions)


def test_the_checkpoint_matters(tmp_path: Path, whole: tuple[Path, PPO]) -> None:
    """The equality above is no accident: without the envs' state the continuation differs."""
    go(tmp_path / "stopped", 448)
    for path in (tmp_path / "stopped" / "checkpoints").glob("step-*"):
        found = Checkpoints(path.parent)
        loaded = found.newest()
        tensors = {k: v for k, v in loaded.tensors.items() if not k.startswith("worlds.")}
        found.save(loaded.step, tensors, loaded.facts | {"exact": False})
        break
    _, said = go(tmp_path / "stopped")
    assert "fresh episodes" in said[0]
    assert timeless(tmp_path / "stopped") != timeless(whole[0])


ARGUMENTS = ["train-rs", "--env", "Toy-Grid", "--steps", "30000", "--num-envs", "16", "--num-steps", "32"]
ARGUMENTS += ["--eval-every", "15000", "--eval-episodes", "8", "--checkpoint-every", "4096"]


@pytest.mark.slow  # a fast run that Ctrl-C ends and that goes on: tests/test_tenants.py
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_signals(tmp_path: Path, number: int, code: int) -> None:
    command = [*ARGUMENTS, "--out", tmp_path / "run"]
    process = Started(command)
    process.wait_for("checkpoints/step-*/manifest.json", tmp_path / "run")
    process.send_signal(number)
    ended = process.done()
    assert ended.returncode == code, ended.stderr
    assert not (tmp_path / "run" / "manifest.json").exists()
    if number != signal.SIGKILL:
        assert "run the same command again to continue" in ended.stderr
    assert "continuing at step" in bkrl(*command).stderr
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["facts"]["steps"] >= 30_000


@pytest.mark.parametrize("trials", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_any_file_of_an_interrupted_run_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """By a refusal, or by a sentence where what was damaged is put back or not needed."""
    monkeypatch.setattr(sys, "argv", ["bkrl"])  # else the bits that are turned depend on how the tests were started

    def go_on(path: Path, stop: float) -> list[str]:
        run = Run.create(path, stage="train-rs", config=PPOConfig())
        reporter = StopsAt(stop)

        def judge(number: int, step: int) -> float:
            run.file(f"kept-{number}.json").write_text(f"the policy at step {step}")
            return float(number == 1)

        def best() -> list[str]:
            run.file("policy-best.json").write_text(f"the best policy of {path.name}")
            return ["policy-best.json"]

        options = {"checkpoint_every": 200, "at_milestone": judge, "at_best": best}
        try:
            train(
                make(), run, reporter, title="", milestones=(0, 320, 900), kept=lambda n: [f"kept-{n}.json"], **options
            )
        except Stop:
            pass
        finally:
            run.close()
            run.release()
        return reporter.said

    go_on(tmp_path / "whole", 896)
    names = sorted(str(file.relative_to(tmp_path / "whole")) for file in (tmp_path / "whole").rglob("*.js*"))
    names += sorted(str(file.relative_to(tmp_path / "whole")) for file in (tmp_path / "whole").rglob("*.safetensors"))
    assert len([name for name in names if name.endswith("state.json")]) == 3  # the two newest and the best
    assert {"config.json", "kept-0.json", "kept-1.json", "metrics.jsonl", "policy-best.json"} < set(names)
    counted = Checkpoints(tmp_path / "whole" / "checkpoints").newest().facts["metrics_bytes"]
    rng = np.random.default_rng(0)
    assert [said for said in go_on(copied(tmp_path, "whole"), 0) if "continuing" not in said] == []
    for name in names:
        for _ in range(trials):
            path = copied(tmp_path, "whole")
            raw = bytearray((path / name).read_bytes())
            raw[rng.integers(0, counted if name == "metrics.jsonl" else len(raw))] ^= 1 << rng.integers(0, 8)
            if name.endswith("manifest.json") and json_of(raw) == json_of((path / name).read_bytes()):
                continue  # its white space says nothing
            (path / name).write_bytes(raw)
            try:
                said = go_on(path, 0)
            except (InputError, UsageError) as problem:  # a setting that reads as another one is a run that differs
                said = [str(problem).replace("holds a run", "config.json")]
            part = name.split("/")[1] if "/" in name else name
            assert any(part in sentence for sentence in said), (name, said)


def copied(folder: Path, name: str) -> Path:
    """A fresh copy of a run, in place of the last one."""
    shutil.rmtree(folder / "copy", ignore_errors=True)
    return shutil.copytree(folder / name, folder / "copy")


def json_of(raw: bytes | bytearray) -> object:
    try:
        return json.loads(raw)
    except ValueError:
        return None
