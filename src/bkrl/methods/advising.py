"""What the forms of shaping with advice do to an agent: advice on its logits, or in its first weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bkrl.core.errors import UsageError

if TYPE_CHECKING:
    from bkrl.agents.protocol import TrainableAgent
    from bkrl.potentials.protocol import Artefact

STARTED = ("start", "progress+start")
"""The forms of shaping in which a policy begins as a potential's advice."""
ADVISED = ("advice", "pbrs+advice", *STARTED)
"""The forms of shaping that take a potential's advice on actions."""
WITHOUT_ADVICE = {
    "advice": "plain PPO",
    "pbrs+advice": "exact shaping alone",
    "start": "plain PPO",
    "progress+start": "progress alone",
}
"""What a run of each of them is where the advice is empty."""


def advise(settings: Any, artefact: Artefact, agent: TrainableAgent) -> TrainableAgent:
    """The agent with the potential's advice on its logits, if that is the form of shaping."""
    if settings.shaping not in ADVISED:
        return agent
    from bkrl.agents.advised import AdvisedAgent
    from bkrl.potentials import advice

    if agent.view == "image":
        raise UsageError(
            f"--shaping {settings.shaping} reads symbols, and this policy sees pictures; use --network compact without "
            "--view image, or --shaping pbrs."
        )
    psi = advice.load(artefact.folder, artefact.settings)
    if (psi is None or psi.empty) and not settings.allow_empty_advice and artefact.control != "zero":
        paid, _, with_advice = settings.shaping.partition("+")
        plain = f"--shaping {paid}" if with_advice else "plain PPO"
        raise UsageError(
            f"The advice of {settings.potential} is empty (Ψ = 0: it says next to nothing about actions), so --shaping "
            f"{settings.shaping} would be {plain} under another name; use --shaping pbrs or another potential, or pass "
            "--allow-empty-advice."
        )
    if psi is None:
        return agent
    if settings.shaping in STARTED:
        return _begun(settings, psi, agent)
    if agent.view == "text":
        from bkrl.agents.language.advised import AdvisedLanguageAgent as AdvisedAgent  # type: ignore[assignment]
    return AdvisedAgent(agent, psi, settings.advice_coef, settings.decay_steps)


def is_empty(artefact: Artefact) -> bool:
    """Whether a potential says nothing of actions."""
    from bkrl.potentials import advice

    psi = advice.load(artefact.folder, artefact.settings)
    return psi is None or psi.empty


def _begun(settings: Any, psi: Any, agent: Any) -> TrainableAgent:
    """The agent with the advice in its weights."""
    from bkrl.agents.advised import begin_as

    if not psi.empty:
        try:
            begin_as(agent.module, psi, settings.advice_coef)
        except ValueError as error:
            raise UsageError(
                f"--shaping {settings.shaping} gives the policy the weights of the advice of {settings.potential}, and "
                f"{error}: use --network compact, which sees symbols alone, and a program that has an `advice` of its "
                "own; or --shaping advice."
            ) from None
    return agent
