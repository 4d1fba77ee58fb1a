"""Agents for tests: those of bkrl's networks, and those of networks that a test brings along."""

from __future__ import annotations

from typing import Any

from bkrl.agents.network import NetworkAgent
from bkrl.envs import env_spec


def agent_of(network: Any, env_id: str) -> NetworkAgent:
    """An agent with a network of the test's own, which sees symbols."""
    facts = env_spec(env_id)
    return NetworkAgent(network, env_id, facts.family, facts.action_names)
