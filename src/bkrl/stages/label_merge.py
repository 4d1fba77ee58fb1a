"""label merge: join the shards of one labelling into the run that it would have been undivided."""

from __future__ import annotations

from dataclasses import replace

from bkrl.core.config import MergeConfig
from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.labelers import recorded
from bkrl.labelers.finish import finish
from bkrl.labelers.plan import Plan
from bkrl.labelers.tables import responses_of
from bkrl.labelers.variants import variant_of_plan
from bkrl.llm.kept import KeptAnswers, Speaker
from bkrl.runs.record import Run


def run(config: MergeConfig, reporter: Reporter) -> Run:
    """Make the undivided run: the same tables, byte for byte.

    Raises InputError when the shards do not belong together, or one is missing, given twice, unfinished or damaged.
    """
    runs = recorded.together(config.runs)
    whole = recorded.config_of(runs, config.out, config.dataset)
    data = Dataset.open(whole.dataset)
    if data.manifest_sha256 != runs[0].config["inputs"]["dataset"]["manifest_sha256"]:
        raise InputError(f"The shards labelled another dataset than {whole.dataset}; name it with --dataset.")
    sources = {"dataset": whole.dataset, **replace(config, runs=tuple(run.path for run in runs)).inputs}
    result = Run.create(config.out, stage="label", config=whole, inputs=sources)
    if result.complete:
        reporter.say(f"{result.path} is already complete.")
        return result
    rows = [row for run in runs for row in responses_of(run)]
    plan = Plan.of(whole, data)
    with KeptAnswers(Speaker(whole.llm, recorded.facts_of(runs[0])), rows=rows, reporter=reporter) as kept:
        done = variant_of_plan(plan).label(plan, kept)
    usage = recorded.summed([run.facts["usage"] for run in runs])
    merged = [run.path for run in runs]
    finish(result, plan, kept, done, reporter, usage, merged=merged)
    return result
