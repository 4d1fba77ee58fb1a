"""train-rs: a policy for one task, by the method that `--alg` names.

The method makes the learner; the loop is the same for all. Evaluation is by the env's own reward, on episodes seeded
apart from training.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bkrl.agents.build import options_of
from bkrl.agents.play import MOST_AT_ONCE, Start, play, summarise
from bkrl.agents.protocol import Agent
from bkrl.core.errors import UsageError
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.envs import make_vec, missions_vary, world
from bkrl.envs.vector import WorldVectorEnv
from bkrl.learn import ranks
from bkrl.learn.loop import finished, train
from bkrl.methods import Trainee, TrainRsConfig, find_method, methods
from bkrl.report.sets import set_of
from bkrl.runs.inputs import read_by
from bkrl.runs.record import Run
from bkrl.runs.tracking import check_tracker, tracked
from bkrl.stages import UNSEEN, to_do

if TYPE_CHECKING:
    from bkrl.llm.forecast import Outlook


@announced
def run(config: TrainRsConfig, reporter: Reporter) -> Run:
    """Train, evaluating as it goes; the last policy is the result, the best one is kept beside it.

    Under torchrun, rank 0 alone writes the run; the others keep what they would write in a folder that they remove.

    Raises:
        UsageError: settings that cannot work.
        InputError: what the method reads is missing, damaged or made for another family of envs.
        Diverged: a loss, or the network after an update, is not finite; the last good checkpoint is kept.
    """
    with ranks.joined():
        if ranks.number() == 0:
            result = _run(config, reporter)
            ranks.wait()
            return result
        with tempfile.TemporaryDirectory() as place:
            _run(config, Reporter(), Path(place) / "run")
        ranks.wait()
    return Run.open(config.run_dir, verify=False)


def _run(config: TrainRsConfig, reporter: Reporter, apart: Path | None = None) -> Run:
    """`apart`: where a rank that does not write the run keeps what it would write."""
    world(config.env)
    check_tracker(config.track)
    method = find_method(config.alg)
    assert method is not None, config.alg  # a config is of a method's class
    if ranks.count() > 1 and not method.ranks:
        known = ", ".join(one.name for one in methods() if one.ranks)
        raise UsageError(f"--alg {config.alg} runs in one process; start it without torchrun, which is for {known}.")
    if getattr(config, "dry_run", False):
        raise UsageError("--dry-run makes no run; use it with `bkrl train-rs`.")
    made = result = None
    if to_do(config):  # before the run's folder is made: a refusal leaves nothing behind
        torch.set_num_threads(config.threads)
        made = method.build(config)
    try:
        inputs = read_by(config)
        where = apart or config.run_dir
        result = Run.create(where, stage="train-rs", config=config, inputs=inputs, fresh=config.fresh and not apart)
        if made is None or result.complete:
            reporter.say(f"{result.path} is already complete.")
            return result
        if method.learns and missions_vary(config.env) and "mission" not in made.learner.agent.wants:
            made.warnings.insert(0, UNSEEN.format(env=config.env, who="the policy"))
        for warning in made.warnings:
            reporter.warn(warning)
        for note in made.notes:
            reporter.say(note)
        made.begin(result.path)
        with tracked("none" if apart else config.track, result, reporter):
            _train(config, made, result, reporter, config.run_dir if apart else None)
    finally:
        if made is not None:
            made.close()
        if result is not None:
            result.release()
    if apart is None:
        finished(result)
    return result


def outlook(config: TrainRsConfig) -> Outlook:
    """What a run would ask a language model while it trains, for methods that do. Asks and writes nothing."""
    world(config.env)
    method = find_method(config.alg)
    assert method is not None
    assert method.outlook is not None
    return method.outlook(config)


def _train(config: TrainRsConfig, made: Trainee, result: Run, reporter: Reporter, follows: Path | None) -> None:
    learner, seed = made.learner, derive_seed(config.seed, "evaluation")
    count = min(config.eval_episodes, MOST_AT_ONCE)
    envs = make_vec(config.env, count, backend=config.backend, **options_of(learner.agent))
    start = Start(envs)

    def judge(number: int, step: int) -> float:
        del number
        scores = evaluate(learner.agent, envs, config.eval_episodes, seed, config.eval_greedy, start)
        result.log(step, **scores, **made.figures())
        return scores["eval/return"]

    train(
        learner,
        result,
        reporter,
        title=f"{config.alg} {config.env} s{config.seed}",
        checkpoint_every=config.checkpoint_every,
        milestones=milestones(config.eval_every, config.steps, made.iteration_steps),
        at_milestone=judge,
        at_best=lambda: learner.agent.save(result.path, "policy-best"),
        follows=follows,
    )
    envs.close()
    if follows is not None:
        return
    rows = [row for row in result.metrics() if "eval/return" in row]
    top = max(rows, key=lambda row: row["eval/return"])
    found = [*result.path.glob("policy-best.*"), *result.path.glob("policy-best/*")]
    best = sorted(file.relative_to(result.path).as_posix() for file in found)
    result.finish(
        [*made.result().save(result.path), *best],
        alg=config.alg,
        env_id=envs.world.env_id,
        steps=learner.step,
        **learner.facts(),
        success_rate=rows[-1]["eval/success_rate"],
        episode_return=rows[-1]["eval/return"],
        best_success_rate=top["eval/success_rate"],
        best_step=top["step"],
        **made.facts,
        **({"task_set": held} if (held := set_of(config.env, config.seed)) else {}),
        **({"warnings": made.warnings} if made.warnings else {}),
    )


def evaluate(
    agent: Agent, envs: WorldVectorEnv, episodes: int, seed: int, also_greedy: bool = False, start: Start | None = None
) -> dict[str, float]:
    """Success rate, return and length on seeded episodes, of the sampled policy and, if asked, of the greedy one.

    The sampled policy is the one that counts: a policy without memory, made greedy, often walks in circles.
    """
    scores: dict[str, float] = {}
    kinds = [("eval/greedy_", True), ("eval/", False)] if also_greedy else [("eval/", False)]
    for prefix, greedy in kinds:
        played = list(play(agent, envs, episodes, seed=seed, greedy=greedy, start=start))
        scores |= summarise(played, prefix)
    return scores


def milestones(every: int, last: int, iteration: int) -> list[int]:
    """The distinct ends of iterations at or after each multiple of `every`, the end of training included.

    With every 50, last 120 and iterations of 32 steps: 0, 64, 128 (for 100, and for the end at 120).
    """
    return sorted({-(-min(step, last) // iteration) * iteration for step in range(0, last + every, every)})
