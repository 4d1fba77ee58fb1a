"""data merge: join datasets of one kind of env into one."""

from __future__ import annotations

from bkrl.core.config import MergeConfig
from bkrl.core.reporter import Reporter
from bkrl.data.derive import merge
from bkrl.runs.record import Run


def run(config: MergeConfig, reporter: Reporter) -> Run:
    """Make the joined dataset. Raises what `merge` raises."""
    return merge(config.runs, config.out, reporter)
