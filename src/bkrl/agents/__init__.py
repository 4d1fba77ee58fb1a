"""Who acts: the contract of an agent, agents with networks, and how episodes are played."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from bkrl.core.errors import InputError
from bkrl.core.files import read_json
from bkrl.core.registry import Registry, load_plugins

if TYPE_CHECKING:
    from bkrl.agents.protocol import Agent

FORMAT = 1

AGENTS: Registry[Any] = Registry("agent")
"""Classes with `load(folder, name) → Agent`, by the name that stands in policy.json under network.name."""
for _name in ("compact", "paper", "residual", "recurrent", "film"):
    AGENTS.add(_name, "bkrl.agents.network:NetworkAgent")
AGENTS.add("advised", "bkrl.agents.advised:AdvisedAgent")
AGENTS.add("goal", "bkrl.agents.goal:GoalAgent")
AGENTS.add("q", "bkrl.agents.q:QAgent")
AGENTS.add("published-q", "bkrl.agents.published_q:PublishedAgent")
AGENTS.add("bot", "bkrl.agents.bot:BotAgent")
AGENTS.add("advised-language", "bkrl.agents.language.advised:AdvisedLanguageAgent")
AGENTS.add("language", "bkrl.agents.language.agent:LanguageAgent")
AGENTS.add("drrn", "bkrl.agents.drrn:DRRNAgent")
AGENTS.add("random", "bkrl.agents.random:RandomAgent")


class _Document(TypedDict):
    """What all policy files have in common."""

    network: dict[str, Any]


def load_agent(folder: Path, name: str = "policy") -> Agent:
    """The agent that `Agent.save` wrote; InputError when it is missing, damaged or of another format."""
    path = folder / f"{name}.json"
    if read_json(path).get("format") != FORMAT:
        raise InputError(f"{path} has another format than this bkrl reads ({FORMAT}); train the policy again.")
    document: _Document = read_json(path, _Document)
    kind = document["network"].get("name")
    if kind not in AGENTS.names():
        load_plugins()
    if kind not in AGENTS.names():
        raise InputError(f"{path} describes an agent '{kind}'; this bkrl knows {', '.join(AGENTS.names())}.")
    agent: Agent = AGENTS.get(kind).load(folder, name)
    return agent
