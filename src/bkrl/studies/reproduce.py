"""The whole chain from a shipped study: collect → label → train-rm → train-rs → evaluate → report."""

from bkrl.core.config import ReproduceConfig, SweepConfig
from bkrl.core.errors import RunFailed
from bkrl.core.reporter import Reporter
from bkrl.runs.record import Run
from bkrl.studies import sweep
from bkrl.studies.executors import cores
from bkrl.studies.study import load_study


def run(config: ReproduceConfig, reporter: Reporter) -> Run | None:
    """Run a preset to its report; what is complete already is skipped, what failed before is tried again.

    Raises:
        RunFailed: some cells failed; each is named with its reason, the others are finished.
    """
    reporter.say(f"preset {config.preset}, everything under {config.folder}")
    if config.dry_run:
        study = load_study(config.preset, config.folder, config.llm)
        sweep.announce(study, study.cells, config.jobs or cores(), reporter)
        return None
    whole = SweepConfig(
        study=config.preset, out=config.folder, jobs=config.jobs, llm=config.llm, retry_failed=True, report=True
    )
    outcome = sweep.run(whole, reporter)
    if outcome.report is None:
        raise RunFailed(f"{sweep.failures(outcome)} Run the same command to retry.")
    reporter.say(f"report: {outcome.report.path / 'report.html'}")
    return outcome.report
