"""The verbs. Each makes what can be refused before it makes its folder, so that a refusal leaves nothing behind."""

from __future__ import annotations

from typing import Any


def to_do(config: Any) -> bool:
    """Whether a stage has anything to make before it opens its run directory: not where a complete run is."""
    return config.fresh or not (config.run_dir / "manifest.json").exists()
