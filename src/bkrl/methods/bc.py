"""bc: behavioural cloning of a dataset, whoever acted in it (Pomerleau 1989).

dagger: cloning of a bot in the states that the learner itself meets (Ross et al. 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bkrl.core.config import MISSION
from bkrl.core.errors import UsageError
from bkrl.core.flags import AppliesWhen, Flag
from bkrl.core.reporter import percent
from bkrl.methods.glam import LM, LMConfig, going_on, hardware_of, like_its_source, lm_facts, reads, starting_agent
from bkrl.methods.ppo import reads_missions
from bkrl.methods.registry import Method, Training, register_method
from bkrl.methods.settings import StartingWeights, form_facts

if TYPE_CHECKING:
    from bkrl.learn.bc import Cloning
    from bkrl.learn.dagger import Dagger

_BARE = AppliesWhen("a network of its own, without --lm", lambda c: None if (lm := reads(c)) is None else not lm)
_SCORED = AppliesWhen(
    "--lm, --score-rule logprob and neither --action-head nor --normalise unconditional",
    lambda c: reads(c) and c.lm.score_rule == "logprob" and not c.lm.action_head and c.lm.normalise != "unconditional",
)


BatchSize = Annotated[int, Flag("samples of a minibatch; with a memory, whole episodes of about so many", least=1)]


@dataclass(frozen=True)
class ClonedLM(LMConfig):
    """A language model that clones, if one is named."""

    lm: LM = ""


@dataclass(frozen=True)
class ClonesConfig(StartingWeights):
    """Settings of what clones; `env` is where the clone is evaluated."""

    held_out: Annotated[float, Flag("share of the episodes that only show how well it learns", least=0, most=0.9)] = 0.1
    batch_size: BatchSize = 2048
    clone_learning_rate: Annotated[
        float, Flag("Adam's step size; 0: 1e-3, and for a model of your own 5e-5, or 5e-4 with adapters", least=0)
    ] = 0.0
    network: Annotated[
        Literal["compact", "paper", "recurrent"],
        Flag(
            "compact: made for these envs; recurrent: that with a memory; paper: the published convolutional network",
            only=(_BARE,),
        ),
    ] = "compact"
    mission: Annotated[Literal["auto", "on", "off"], replace(MISSION, only=(_BARE,))] = "auto"
    clone_loss: Annotated[
        Literal["actions", "tokens"],
        Flag(
            "the loss: cross-entropy over actions (actions) or, as language models are usually cloned, over tokens of "
            "the action's name (tokens)",
            only=(_SCORED,),
        ),
    ] = "actions"
    lm: ClonedLM = field(default_factory=ClonedLM)


@dataclass(frozen=True)
class CloningSettings(ClonesConfig):
    """Settings of bc. A step is a sample, one recorded action."""

    data: Annotated[Path | None, Flag("the dataset to clone, a collect run", pooled=True, reads=True)] = None
    only_successes: Annotated[bool, Flag("learn from successful episodes alone")] = False


@dataclass(frozen=True)
class DaggerSettings(ClonesConfig):
    """Settings of dagger. A step is one of an env."""

    steps: Annotated[
        int, Flag("environment steps to train for; the last round is played to its end", least=1, pooled=True)
    ] = 50_000
    batch_size: BatchSize = 256
    episodes_per_round: Annotated[int, Flag("episodes played before the clone learns again", least=2)] = 50
    mixing: Annotated[
        float,
        Flag("chance that the bot acts, to the power of the round (from 0; from 1 with --init-from)", least=0, most=1),
    ] = 0.5
    passes: Annotated[
        int, Flag("after a round, so many times as many samples are learnt from as it brought", least=1)
    ] = 4


def _agent(settings: ClonesConfig, missions: Sequence[str], taken: dict[str, Any]) -> tuple[Any, str, dict[str, Any]]:
    """Who clones, what it sees, and what the manifest says of it; it knows the words of `missions`."""
    from bkrl.agents.build import new_agent, observation_options, take_weights, teach
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import env_spec, make_vec

    if settings.lm.lm:
        reader = starting_agent(settings)
        return reader, "text", lm_facts(reader, settings.init_from, taken)
    options, view = observation_options(env_spec(settings.env), settings.network, "symbolic")
    envs = make_vec(settings.env, 64, backend=settings.backend, **options)
    reads, seed = reads_missions(settings), derive_seed(settings.seed, "weights")
    agent = new_agent(settings.network, envs, view, 1, seed, reads)
    if settings.init_from is not None:
        take_weights(agent.module, settings.init_from)
    teach(agent, envs)
    envs.close()
    if agent.vocabulary is not None:
        agent.vocabulary.add(missions)
    return agent, view, {}


def _cloning(settings: ClonesConfig, agent: Any, data: Any, total_steps: int) -> Cloning:
    """What learns."""
    from bkrl.learn.bc import Cloning
    from bkrl.learn.hardware import choose

    rate = 1e-3
    if settings.lm.lm and not agent.lm.small:
        rate = 5e-4 if agent.settings.training.train == "lora" else 5e-5
    return Cloning(
        agent,
        data,
        batch_size=settings.batch_size,
        learning_rate=settings.clone_learning_rate or rate,
        max_grad_norm=1.0,
        total_steps=total_steps,
        seed=settings.seed,
        hardware=hardware_of(settings, agent) if settings.lm.lm else choose(settings.hardware, settings.network),
        score_temperature=settings.lm.score_temperature if settings.clone_loss == "tokens" else None,
    )


def build(settings: CloningSettings) -> Training:
    """A policy that is cloned from demonstrations."""
    from bkrl.data.dataset import Dataset
    from bkrl.envs import env_spec
    from bkrl.learn.bc import MINIBATCHES, demonstrations

    if settings.data is None:
        raise UsageError("--alg bc needs --data RUN, a dataset of `bkrl collect`.")
    dataset, facts = Dataset.open(settings.data), env_spec(settings.env)
    settings, taken = like_its_source(settings)
    agent, view, said = _agent(settings, dataset.text("mission")[1], taken)
    parts = demonstrations(
        dataset, agent, only_successes=settings.only_successes, held_out=settings.held_out, seed=settings.seed
    )
    learner = _cloning(settings, agent, parts, settings.steps)
    made = Training(
        learner,
        {
            **form_facts("none"),
            "view": view,
            "mission": "mission" in agent.wants,
            "data": dataset.path.as_posix(),
            "data_env_id": dataset.env_id,
            "explorer": dataset.explorer,
            "samples_train": len(parts[0]),
            "samples_held_out": len(parts[1]),
            **said,
        },
        iteration_steps=MINIBATCHES * settings.batch_size,
        notes=going_on(settings, taken),
    )
    if dataset.env_id != facts.env_id:
        made.warnings.append(
            f"What was done in {dataset.env_id} is cloned, and evaluated in {facts.env_id}, which may ask for "
            "something else."
        )
    if settings.batch_size >= len(parts[0]):
        made.warnings.append(
            f"--batch-size {settings.batch_size:,} takes all {len(parts[0]):,} samples at once, so an epoch is one "
            "update; a smaller one makes more of them."
        )
    if "random" in dataset.explorers:
        made.warnings.append(
            f"{dataset.path} holds random play, and a clone learns to play like it ({percent(dataset.success.mean())} "
            "of the episodes succeed); use --explorer bot, or --only-successes."
        )
    return made


@dataclass
class _DaggerTraining(Training):
    learner: Dagger

    def begin(self, folder: Path) -> None:
        self.learner.folder = folder / "data"


def build_dagger(settings: DaggerSettings) -> Training:
    """A policy that is cloned from a bot, in the states that it meets itself."""
    from bkrl.learn.dagger import Dagger

    settings, taken = like_its_source(settings)
    agent, view, said = _agent(settings, (), taken)
    learner = Dagger(_cloning(settings, agent, None, 2**62), settings)
    facts = {
        **form_facts("none"),
        "view": view,
        "mission": "mission" in agent.wants,
        "data": "data/round-NNNN, one dataset for each round",
        **said,
    }
    return _DaggerTraining(learner, facts, notes=going_on(settings, taken))


register_method(
    Method(
        "bc", CloningSettings, build, "behavioural cloning of a dataset: no env is stepped", needs="a dataset (--data)"
    )
)
register_method(
    Method(
        "dagger",
        DaggerSettings,
        build_dagger,
        "cloning of the env's bot, which labels what the learner itself meets",
        needs="an env with a bot",
    )
)
