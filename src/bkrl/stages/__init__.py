"""The verbs. Each makes what can be refused before it makes its folder, so that a refusal leaves nothing behind."""

from typing import Any

MISSION_NOT_VISIBLE = (
    "The missions of {env} change between episodes, and {who} does not see them: it can learn only what serves them "
    "all, and its success may stay low however long it learns."
)
"""The warning about an agent that is paid for missions which it cannot read."""


def to_do(config: Any) -> bool:
    """Whether a stage has anything to make before it opens its run directory: not where a complete run is."""
    return config.fresh or not (config.run_dir / "manifest.json").exists()
