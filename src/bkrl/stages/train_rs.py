"""train-rs: a policy for one task, by the method that `--alg` names.

The method makes the learner; the loop is the same for all. Evaluation is by the env's own reward, on episodes seeded
apart from training.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bkrl.agents.build import options_of
from bkrl.agents.play import MOST_AT_ONCE, Evaluation
from bkrl.core.activity import doing
from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter, percent
from bkrl.core.seeds import derive_seed
from bkrl.envs import env_spec, make_vec, mission_is_hidden
from bkrl.envs.sets import set_of
from bkrl.learn.loop import Fallen, finished, milestones, train
from bkrl.methods import Training, TrainRsConfig, find_method
from bkrl.runs.inputs import read_by
from bkrl.runs.record import Run
from bkrl.runs.tracking import check_tracker, tracked
from bkrl.stages import MISSION_NOT_VISIBLE, to_do

FALL = 0.1
"""Success may fall so far below that of the policy that training began with, before it is said."""

if TYPE_CHECKING:
    from bkrl.llm.forecast import Outlook


@announced
def run(config: TrainRsConfig, reporter: Reporter) -> Run:
    """Train, evaluating as it goes; the last policy is the result, the best one is kept beside it.

    Raises:
        UsageError: settings that cannot work.
        InputError: what the method reads is missing, damaged or made for another family of envs.
        Diverged: a loss, or the network after an update, is not finite; the last good checkpoint is kept.
    """
    with _of_a_plugin(config):
        return _run(config, reporter)


@contextmanager
def _of_a_plugin(config: TrainRsConfig) -> Iterator[None]:
    """RunFailed says where a method from outside went wrong; Python's API shows the traceback, too."""
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        method = find_method(config.alg)
        if method is None or method.settings.__module__.startswith("bkrl."):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [one for one in frames if one.filename == inspect.getfile(method.settings)] or frames
        raise RunFailed(
            f"--alg {config.alg}, a plugin, fails in {config.env}: {type(error).__name__} ({error}), at line "
            f"{own[-1].lineno} of {Path(own[-1].filename).name}. Choose an env that it was made for, or mend it; "
            "bkrl.train_rs in Python shows the whole traceback."
        ) from error


def _run(config: TrainRsConfig, reporter: Reporter) -> Run:
    env_spec(config.env)
    check_tracker(config.track)
    method = find_method(config.alg)
    assert method is not None, config.alg  # a config is of a method's class
    if vars(config).get("dry_run"):
        raise UsageError("--dry-run makes no run; use it with `bkrl train-rs`.")
    made = result = None
    if to_do(config):  # before the run's folder is made: a refusal leaves nothing behind
        torch.set_num_threads(config.threads)
        with doing("preparing"):
            made = method.build(config)
    try:
        result = Run.create(config.run_dir, stage="train-rs", config=config, inputs=read_by(config), fresh=config.fresh)
        if made is None or result.complete:
            reporter.say(f"{result.path} is already complete.")
            return result
        reads = made.facts.get("mission", "mission" in made.learner.agent.wants)  # a policy's own, without advice
        if method.learns and mission_is_hidden(config.env) and not reads:
            made.warnings.insert(0, MISSION_NOT_VISIBLE.format(env=config.env, who="the policy"))
        for warning in made.warnings:
            reporter.warn(warning)
        for note in made.notes:
            reporter.say(note)
        made.begin(result.path)
        learner = made.learner
        episodes = config.eval_episodes
        chosen = vars(config)
        goes_on, stops = chosen.get("init_from") is not None, chosen.get("stop_on_fall", False)
        envs = make_vec(config.env, min(episodes, MOST_AT_ONCE), backend=config.backend, **options_of(learner.agent))
        evaluate = Evaluation(envs, episodes, derive_seed(config.seed, "evaluation"), config.eval_greedy)

        @cache  # an iteration as long as a round of DAgger's passes several milestones
        def judge(step: int) -> float:
            scores = evaluate(learner.agent)
            result.log(step, **scores, **made.figures())
            if (goes_on or stops) and fell(scores["eval/success_rate"], step) and stops:
                raise Fallen(scores["eval/return"])
            return scores["eval/return"]

        def fell(success: float, step: int) -> bool:
            """Whether it is `FALL` below that of the start; said the first time."""
            rates = [row["eval/success_rate"] for row in result.metrics() if "eval/success_rate" in row]
            low = [rate < rates[0] - FALL for rate in rates]
            if low[-1] and sum(low) == 1:
                reporter.warn(
                    f"step {step:,}: success fell from {percent(rates[0])} to {percent(success)}: training makes it "
                    f"worse. The best weights are kept in policy-best{'; it ends here' if stops else ''}."
                )
            return low[-1]

        with tracked(config.track, result, reporter):
            train(
                learner,
                result,
                reporter,
                title=f"{config.alg} {config.env} s{config.seed}",
                checkpoint_every=config.checkpoint_every,
                milestones=milestones(config.eval_every, config.steps, made.iteration_steps),
                at_milestone=lambda _, step: judge(step),
                at_best=lambda: learner.agent.save(result.path, "policy-best"),
            )
            envs.close()
            _finish(result, made, envs.env_spec.env_id, set_of(config.env, config.seed))
    finally:
        if made is not None:
            made.close()
        if result is not None:
            result.release()
    finished(result)
    return result


def outlook(config: TrainRsConfig) -> Outlook:
    """What a run would ask a language model while it trains, for methods that do. Asks and writes nothing."""
    env_spec(config.env)
    method = find_method(config.alg)
    assert method is not None
    assert method.outlook is not None
    return method.outlook(config)


def _finish(result: Run, made: Training, env_id: str, task_set: str) -> None:
    """Write the last policy and the manifest; the best one is there already."""
    rows = [row for row in result.metrics() if "eval/return" in row]
    top = max(rows, key=lambda row: row["eval/return"])
    unlocked = {"achievements": rows[-1]["eval/achievements"]} if "eval/achievements" in top else {}
    found = [*result.path.glob("policy-best.*"), *result.path.glob("policy-best/*")]
    best = sorted(file.relative_to(result.path).as_posix() for file in found)
    result.finish(
        [*made.result().save(result.path), *best],
        alg=result.config["config"]["alg"],
        env_id=env_id,
        steps=made.learner.step,
        **made.learner.facts(),
        **unlocked,
        success_rate=rows[-1]["eval/success_rate"],
        episode_return=rows[-1]["eval/return"],
        best_success_rate=top["eval/success_rate"],
        best_step=top["step"],
        **made.facts,
        **({"task_set": task_set} if task_set else {}),
        **({"warnings": made.warnings} if made.warnings else {}),
    )
