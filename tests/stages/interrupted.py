"""A training run that is killed at its fourth evaluation and continued, beside one that never was."""

from dataclasses import replace

import pytest

from bkrl.agents.play import Evaluation
from bkrl.agents.protocol import Agent
from bkrl.core.reporter import Reporter
from bkrl.methods import TrainRsConfig
from bkrl.runs.record import Run
from bkrl.stages import train_rs


def the_same_when_killed(
    whole: TrainRsConfig, monkeypatch: pytest.MonkeyPatch, shared_cache: bool = False
) -> list[str]:
    """Run `whole` untouched and, beside it, killed and continued: the same bytes and facts, but what asking took where
    both read one cache. Its metrics but for the clocks.
    """
    train_rs.run(whole, Reporter())
    evaluate, calls = Evaluation.__call__, iter(range(100))

    def dies_at_the_fourth(self: Evaluation, agent: Agent) -> dict[str, float]:
        if next(calls) == 3:
            raise RuntimeError("killed")
        return evaluate(self, agent)

    monkeypatch.setattr(Evaluation, "__call__", dies_at_the_fourth)
    stopped = replace(whole, out=whole.run_dir.parent / "stopped")
    if hasattr(whole, "cache") and not shared_cache:
        stopped = replace(stopped, cache=whole.run_dir.parent / "other cache")
    with pytest.raises(RuntimeError, match="killed"):
        train_rs.run(stopped, Reporter())
    assert list((stopped.run_dir / "checkpoints").glob("step-*"))
    train_rs.run(stopped, Reporter())
    texts = [
        [line for line in (path / "metrics.jsonl").open() if '"time/' not in line]
        for path in (whole.run_dir, stopped.run_dir)
    ]
    assert texts[0] == texts[1]
    facts = [Run.open(path, "train-rs").facts for path in (whole.run_dir, stopped.run_dir)]
    for one in facts if shared_cache else []:
        del one["usage"]
    assert facts[0] == facts[1]
    for name in ("policy.safetensors", "policy-best.safetensors"):
        assert (whole.run_dir / name).read_bytes() == (stopped.run_dir / name).read_bytes()
    return texts[0]
