"""drrn: Q-learning by a network that reads captions, missions and the names of actions (He et al. 2016).

The defaults are those with which GLAM's authors trained it beside theirs (Carta et al. 2023), but for what went wrong
there, which `--compat` brings back.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from bkrl.core.flags import Flag
from bkrl.learn.settings import ReplayConfig
from bkrl.methods.registry import Method, Training, register_method
from bkrl.methods.settings import PublishedDefects, defect_facts, learning


@dataclass(frozen=True)
class DRRNSettings(PublishedDefects):
    """Settings of drrn."""

    form: Annotated[Literal["glam", "lamorel"], Flag("prompts: GLAM's, or the shorter ones of Lamorel's examples")] = (
        "glam"
    )
    observations: Annotated[int, Flag("observations in a prompt, the present one included", least=1)] = 3
    language: Annotated[
        Literal["", "en", "fr"], Flag("language of captions, missions and actions  [default: the env's own]")
    ] = ""
    vocabulary: Annotated[int, Flag("most tokens of the tokenizer, which is trained on the env's texts", least=257)] = (
        8_000
    )
    temperature: Annotated[float, Flag("values are divided by this before the softmax", least=0.001)] = 1.0
    reward_scale: Annotated[float, Flag("the env's reward is multiplied by this", least=0)] = 20.0
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    @property
    def _concerned(self) -> str:
        return "text"


def build(settings: DRRNSettings) -> Training:
    """Q-learning of texts and of the names of actions, from a memory of steps."""
    from bkrl.agents.drrn import Reading, new_drrn
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import make_vec
    from bkrl.learn.drrn import DRRN
    from bkrl.learn.hardware import choose
    from bkrl.rewards.streams import EnvReward
    from bkrl.text.wording import Wording

    defects = settings.defects
    reading = Reading(settings.form, settings.observations, settings.temperature)
    wording = Wording(settings.language, compat=defects & {"g4"})
    envs = make_vec(settings.env, settings.replay.num_envs, backend=settings.backend)
    agent = new_drrn(envs, settings.vocabulary, reading, wording, derive_seed(settings.seed, "weights"))
    learner = DRRN(
        envs,
        agent,
        EnvReward(gamma=settings.replay.gamma, scale=settings.reward_scale),
        settings.replay,
        **learning(settings, choose(settings.hardware, "drrn")),
    )
    facts = {"form": "none", "tokens": agent.tokenizer.size, **defect_facts(defects)}
    return Training(learner, facts, iteration_steps=settings.replay.num_envs * settings.replay.num_steps)


register_method(Method("drrn", DRRNSettings, build, "Q-learning by a network that reads (published beside GLAM)"))
