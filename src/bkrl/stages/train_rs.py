"""train-rs: a policy for one task, with PPO, its reward shaped by a potential or not.

Whatever the algorithm, the loop is the same; `--alg` only chooses the reward streams. Evaluation is always by the
world's own reward, on episodes seeded apart from training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from bkrl.agents.advised import AdvisedAgent
from bkrl.agents.build import new_agent, observation_options, take_weights
from bkrl.agents.network import NetworkAgent
from bkrl.agents.play import MOST_AT_ONCE, Start, play, summarise
from bkrl.agents.protocol import Agent
from bkrl.core.config import ADVISED, TrainRsConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.envs import World, make_vec, missions_vary, world
from bkrl.envs.vector import WorldVectorEnv
from bkrl.inspect.report import doubts_of
from bkrl.learn.hardware import choose
from bkrl.learn.loop import finished, train
from bkrl.learn.ppo import PPO
from bkrl.potentials import EMPTY, advice, load_potential
from bkrl.potentials.protocol import Scaled
from bkrl.rewards.bonus import MOST_OWED, Bonus, InvariantBonus
from bkrl.rewards.rnd import RND
from bkrl.rewards.shaped import ShapedReward
from bkrl.rewards.shaping import FORMS
from bkrl.rewards.streams import EnvReward, RewardStream
from bkrl.rewards.upstream import PublishedReward, guarantee, named, parse, spoilt
from bkrl.runs.record import Run
from bkrl.runs.tracking import check_tracker, tracked
from bkrl.stages import UNSEEN, to_do

BEST = ("policy-best.safetensors", "policy-best.json")


@announced
def run(config: TrainRsConfig, reporter: Reporter) -> Run:
    """Train, evaluating as it goes; the last policy is the result, the best one is kept beside it.

    Raises:
        UsageError: an algorithm and a potential that do not belong together, or settings that cannot work.
        InputError: the potential is missing, damaged or made for another family of worlds.
        Diverged: a loss, or the network after an update, is not finite; the last good checkpoint is kept.
    """
    facts = world(config.env)
    check_tracker(config.track)
    variant = _variant(config)
    defects = parse(config.compat, variant, facts.family)
    inputs = {"potential": config.potential} if config.potential is not None else {}
    if config.init_from is not None and config.init_from.exists():  # what is wrong with it, its reader says
        inputs["init_from"] = config.init_from
    _check_form(config, defects)
    potential = _potential(config, facts, variant)  # before the run's folder is made: a refusal leaves nothing behind
    if potential is not None:
        potential = spoilt(potential, defects)
    try:
        made = None
        if to_do(config):
            torch.set_num_threads(config.threads)
            made = learner(config, potential, defects)
        result = Run.create(config.run_dir, stage="train-rs", config=config, inputs=inputs, fresh=config.fresh)
        if made is None or result.complete:
            reporter.say(f"{result.path} is already complete.")
            return result
        warnings = _warnings(config, made.ppo.agent)
        for warning in warnings:
            reporter.warn(warning)
        if potential is not None:
            reporter.say(f"Shaping with {config.shaping}; its risk: {FORMS[config.shaping].risk}.")
        with tracked(config.track, result, reporter):
            return _train(config, made, potential, defects, warnings, result, reporter)
    finally:
        if potential is not None:
            potential.close()


class Learner(NamedTuple):
    """Who learns, and the worlds in which it is judged."""

    ppo: PPO
    judged: WorldVectorEnv


def learner(config: TrainRsConfig, potential: Scaled | None = None, defects: frozenset[str] = frozenset()) -> Learner:
    """Who learns, untrained.

    Args:
        config: of the run.
        potential: Φ, where `config.alg` wants one.
        defects: of the published code, to train with.

    Raises:
        UsageError: settings that cannot work.
        InputError: the weights to start from are missing, damaged or another network's.
    """
    facts = world(config.env)
    hardware = choose(config.hardware, config.network)
    options, view = observation_options(facts, config.network, config.view)
    envs = make_vec(config.env, config.ppo.num_envs, backend=config.backend, **options)
    streams = _streams(config, facts, potential, defects, hardware.device)
    agent = new_agent(config.network, envs, view, len(streams), derive_seed(config.seed, "weights"))
    if config.init_from is not None:
        take_weights(agent.module, config.init_from)
    ppo = PPO(
        envs,
        _advised(config, potential, agent),
        streams,
        config.ppo,
        total_steps=config.steps,
        bootstrap_truncated="b10" not in defects,
        seed=config.seed,
        hardware=hardware,
    )
    judged = make_vec(config.env, min(config.eval_episodes, MOST_AT_ONCE), backend=config.backend, **options)
    return Learner(ppo, judged)


def _train(
    config: TrainRsConfig,
    made: Learner,
    potential: Scaled | None,
    defects: frozenset[str],
    warnings: list[str],
    result: Run,
    reporter: Reporter,
) -> Run:
    ppo, judged = made
    agent: Any = ppo.agent
    start = Start(judged)

    def judge(number: int, step: int) -> float:
        del number
        scores = evaluate(
            agent, judged, config.eval_episodes, derive_seed(config.seed, "evaluation"), config.eval_greedy, start
        )
        if isinstance(agent, AdvisedAgent):
            scores["shaping/advice_weight"] = agent.now
        result.log(step, **scores)
        return scores["eval/return"]

    rollout_size = config.ppo.num_envs * config.ppo.num_steps
    train(
        ppo,
        result,
        reporter,
        title=f"{config.alg} {config.env} s{config.seed}",
        checkpoint_every=config.checkpoint_every,
        milestones=whole_rollouts(
            range(0, config.steps + config.eval_every, config.eval_every), config.steps, rollout_size
        ),
        at_milestone=judge,
        at_best=lambda: agent.save(result.path, "policy-best"),
    )
    ppo.close()
    judged.close()
    form = config.shaping if potential is not None else "none"
    said: dict[str, Any] = {"form": form, "guarantee": FORMS[form].guarantee}
    if defects:
        said |= {"compat": named(defects), "guarantee": guarantee(defects)}
    if potential is not None and _unadvised(config, agent):
        said["advice"] = EMPTY
    if warnings:
        said["warnings"] = warnings
    if isinstance(agent, AdvisedAgent) and agent.now == 0.0:
        agent = agent.base  # nothing of the advice is left
    outputs = agent.save(result.path)
    rows = [row for row in result.metrics() if "eval/return" in row]
    top = max(rows, key=lambda row: row["eval/return"])
    result.finish(
        [*outputs, *(name for name in BEST if result.file(name).exists())],
        alg=config.alg,
        env_id=config.env,
        view=agent.view,
        steps=ppo.step,
        **ppo.facts(),
        success_rate=rows[-1]["eval/success_rate"],
        episode_return=rows[-1]["eval/return"],
        best_success_rate=top["eval/success_rate"],
        best_step=top["step"],
        **said,
    )
    finished(result)
    return result


def evaluate(
    agent: Agent,
    envs: WorldVectorEnv,
    episodes: int,
    seed: int,
    also_greedy: bool = False,
    start: Start | None = None,
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


def whole_rollouts(steps: Sequence[int] | range, last: int, rollout_size: int) -> list[int]:
    """The distinct ends of rollouts at or after each of `steps` (none beyond the one that reaches `last`)."""
    return sorted({-(-min(step, last) // rollout_size) * rollout_size for step in steps})


def _streams(
    config: TrainRsConfig, facts: World, potential: Scaled | None, defects: frozenset[str], device: torch.device
) -> list[RewardStream]:
    gamma, scale, form = config.ppo.gamma, config.reward_scale, config.shaping
    coef = _coef(config)
    if potential is not None and defects:
        return [PublishedReward(potential, gamma, defects, reward_scale=scale, shaping_coef=coef)]
    same: dict[str, Any] = {"reward_scale": scale, "shift": config.shaping_shift}
    if potential is not None and form in ("pbrs", "pbrs+advice"):
        return [ShapedReward(potential, gamma, shaping_coef=coef, **same)]
    if potential is not None and form == "pbim":
        return [InvariantBonus(potential, gamma, num_envs=config.ppo.num_envs, bonus_coef=coef, **same)]
    if potential is not None and form in ("decay", "additive"):
        until = config.decay_steps if form == "decay" else 0
        return [Bonus(potential, gamma, bonus_coef=coef, until=until, **same)]
    streams: list[RewardStream] = [EnvReward(gamma=gamma, scale=config.reward_scale)]
    if config.alg == "rnd":
        seed = derive_seed(config.seed, "rnd")
        streams.append(RND(facts.obs_shape, config.ppo.num_envs, coef=config.int_coef, seed=seed, device=device))
    return streams


def _coef(config: TrainRsConfig) -> float:
    """The factor of Φ."""
    return FORMS[config.shaping].coef if config.shaping_coef is None else config.shaping_coef


def _check_form(config: TrainRsConfig, defects: frozenset[str]) -> None:
    if config.shaping != "pbrs" and config.potential is None:
        raise UsageError(f"--shaping {config.shaping} says how a potential is used; --alg {config.alg} has none.")
    if config.shaping != "pbrs" and defects:
        raise UsageError("The published code has one form of shaping: use --compat with --shaping pbrs.")
    if config.alg == "bk-own" and config.shaping in ADVISED:
        raise UsageError("A potential of your own says nothing about actions: use --shaping pbrs, decay or additive.")
    if config.shaping == "pbim":
        coef, shift, gamma = _coef(config), config.shaping_shift, config.ppo.gamma
        largest = coef * max(abs(shift), abs(shift - 1.0))  # of a bonus, for Φ lies in [-1, 0]
        if gamma == 0.0 or largest / gamma > MOST_OWED:
            raise UsageError(
                "--shaping pbim takes back later what it paid before, divided by --gamma for each step in between, and "
                f"--gamma {gamma:g} makes that too large to pay after a single step: choose a --gamma nearer to 1, "
                "such as 0.99, or --shaping pbrs."
            )


def _advised(config: TrainRsConfig, potential: Scaled | None, agent: NetworkAgent) -> NetworkAgent:
    """The agent with the potential's advice on its logits, if that is the form of shaping."""
    if potential is None or config.shaping not in ADVISED:
        return agent
    if agent.view != "symbolic":
        raise UsageError(
            f"--shaping {config.shaping} reads symbols, and this policy sees pictures; use --network compact without "
            "--view image, or --shaping pbrs."
        )
    psi = advice.load(potential.artefact.folder, potential.artefact.settings)
    if psi is None or psi.empty:
        _check_empty(config, potential)
    return agent if psi is None else AdvisedAgent(agent, psi, config.advice_coef, config.decay_steps)


def _check_empty(config: TrainRsConfig, potential: Scaled) -> None:
    """Refuse advice that is empty, unless that was asked for: of Φ = 0, or by a switch."""
    if config.allow_empty_advice or potential.artefact.control == "zero":
        return
    plain = "plain PPO" if config.shaping == "advice" else "--shaping pbrs"
    raise UsageError(
        f"The advice of {config.potential} is empty (Ψ = 0: it says next to nothing about actions), so --shaping "
        f"{config.shaping} would be {plain} under another name; use --shaping pbrs or another potential, or pass "
        "--allow-empty-advice."
    )


def _unadvised(config: TrainRsConfig, agent: Agent) -> bool:
    """Whether the form of shaping is one with advice and there is none to take."""
    return config.shaping in ADVISED and not (isinstance(agent, AdvisedAgent) and not agent.advice.empty)


def _warnings(config: TrainRsConfig, agent: Agent) -> list[str]:
    """Sentences about what may make this run misleading; its manifest keeps them."""
    warnings = []
    if missions_vary(config.env):
        warnings.append(UNSEEN.format(env=config.env, who="the policy"))
    if config.potential is not None:
        if doubted := doubts_of(Run.open(config.potential, "train-rm", verify=False)):
            warnings.append(
                f"Φ of {config.potential} may mislead: {'; '.join(doubted)}; see `bkrl potential report "
                f"{config.potential}`."
            )
        if _unadvised(config, agent):
            plain = "plain PPO" if config.shaping == "advice" else "exact shaping alone"
            warnings.append(f"The advice of {config.potential} is empty (Ψ = 0), so this run is {plain}.")
    return warnings


def _variant(config: TrainRsConfig) -> str | None:
    """Which kind of potential the algorithm wants, if any; UsageError when --potential does not fit that."""
    variant = config.alg.removeprefix("bk-") if config.alg.startswith("bk-") else None
    if variant is not None and config.potential is None:
        made = "that bkrl.write_potential made" if variant == "own" else f"of `bkrl train-rm` on {variant} labels"
        raise UsageError(f"--alg {config.alg} needs --potential RUN, a run {made}.")
    if variant is None and config.potential is not None:
        raise UsageError(f"--alg {config.alg} uses no potential; leave --potential out, or choose a bk- algorithm.")
    return variant


def _potential(config: TrainRsConfig, facts: World, variant: str | None) -> Scaled | None:
    if config.potential is None:
        return None
    found: Any = Run.open(config.potential, "train-rm", verify=False).facts.get("variant")
    if found is not None and found != variant:
        what = "is a potential of your own" if found == "own" else f"was built from {found} labels"
        raise UsageError(f"{config.potential} {what}; use --alg bk-{found}.")
    potential = load_potential(config.potential)
    artefact = potential.artefact
    if artefact.control == "constant" and config.shaping != "advice":
        potential.close()
        raise UsageError(
            f"{config.potential} is the control `constant`, which has advice alone (Φ = 0); use --shaping advice."
        )
    same_family = artefact.env_family == facts.family and artefact.obs_shape == facts.obs_shape
    if not same_family or artefact.action_names != facts.action_names:
        potential.close()
        what = "observations" if not same_family else "actions"
        raise InputError(
            f"{config.potential} was built in {artefact.env_id} ({artefact.env_family}), and {config.env} "
            f"({facts.family}) has other {what}; collect and label in such a world, or choose another --potential."
        )
    return potential
