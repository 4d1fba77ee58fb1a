"""The commands about many runs: sweep, evolve."""

from bkrl.cli import console, progress
from bkrl.cli.commands.shown import show_result, show_run
from bkrl.core.config import SweepConfig
from bkrl.core.errors import InputError, RunFailed
from bkrl.labelers.config import EvolveConfig


def sweep(settings: SweepConfig, as_json: bool) -> None:
    """Do a study; --dry-run and --executor print only read it."""
    from bkrl.studies import sweep
    from bkrl.studies.cells import chosen, needs, report_on, state_of
    from bkrl.studies.executors import cores
    from bkrl.studies.planning import outlook
    from bkrl.studies.study import load_study

    if settings.dry_run or settings.executor == "print":
        study = load_study(settings.study, settings.folder, settings.llm)
        cells = chosen(study, settings.folder, settings.only)
        if settings.dry_run:
            measured = settings.measured or settings.folder
            if not (said := outlook(cells, settings.folder, measured, settings.jobs or cores())) and settings.measured:
                raise InputError(f"{measured} holds no run that was timed; name the folder of a study.")
            console.print_rows(("cell", "stage", "steps", "state"), sweep.listed(cells, settings.folder), as_json)
            if said:
                progress.reporter().say(said)
            return
        from bkrl.studies.executors.shell import script

        left = [cell for cell in cells if state_of(cell) != "done"]
        last = [report_on(cells, study)] if settings.report else []
        text = script([*left, *last], needs([*cells, *last]))
        return console.print_json({"script": text}) if as_json else console.print_text(text)
    outcome = sweep.run(settings, progress.reporter())
    if as_json:
        report = outcome.report.path.as_posix() if outcome.report is not None else None
        console.print_json({**outcome._asdict(), "out": outcome.out.as_posix(), "report": report})
    else:
        rows: list[tuple[str, str]] = list(outcome.failed.items())
        rows += [(name, "needs one that is not done") for name in outcome.blocked]
        console.print_table("", ("", ""), [(str(outcome.out), f"{sweep.runs(len(outcome.done))} done"), *rows])
        if outcome.report is not None:
            show_run(outcome.report, False)
    if outcome.failed:
        raise RunFailed(f"{sweep.runs(len(outcome.failed))} failed; --retry-failed tries again.")
    if outcome.blocked:
        raise RunFailed(f"{sweep.runs(len(outcome.blocked))} wait for each other; mend what their settings name.")


def evolve(settings: EvolveConfig, as_json: bool) -> None:
    """Hold a tournament of programs; --dry-run says what it would take."""
    from bkrl.studies import evolve

    run = evolve.outlook if settings.dry_run else evolve.run
    show_result(run(settings, progress.reporter()), as_json)
