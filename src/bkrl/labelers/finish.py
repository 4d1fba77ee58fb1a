"""The end of a label run: its tables and manifest are written, and what came out is said."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bkrl.core.errors import RunFailed
from bkrl.core.files import write_table
from bkrl.core.reporter import Reporter
from bkrl.data.schema import RESPONSES
from bkrl.labelers import quality
from bkrl.labelers.plan import LabelResult, Plan
from bkrl.labelers.tables import TABLES
from bkrl.labelers.variants import variant_of_plan
from bkrl.llm.session import AskSession
from bkrl.runs.record import Run


def finish(
    run: Run,
    plan: Plan,
    session: AskSession,
    done: LabelResult,
    reporter: Reporter,
    outputs: Sequence[str] = (),
    **more: Any,
) -> None:
    """Write everything and say what came out. `outputs`: further files that were written; `more`: facts.

    Raises RunFailed when there is not one usable label; the tables are left for a look.
    """
    file, schema = TABLES[plan.variant]
    tables = {file: pa.Table.from_pylist(done.table, schema=schema), **done.more}
    facts = session.backend.facts()
    if done.responses is not None:
        tables = {"responses.parquet": pa.Table.from_pylist(done.responses, schema=RESPONSES), **tables}
        templates = variant_of_plan(plan).files(plan.card)
        asked = {"prompts": plan.card.prompts.fingerprint(templates), "usage": session.facts()}
        more = {**asked, **more}
    for name, table in tables.items():
        write_table(run.file(name), table)
    if not done.usable:
        raise RunFailed(_why_unusable(done))
    run.finish(
        [*tables, *outputs],
        variant=plan.variant,
        env_id=plan.dataset.env_id,
        llm=session.backend.name,
        **facts,
        **({"reads": list(plan.card.reads)} if plan.card.reads else {}),
        **more,
        quality=done.quality,
        table=quality.as_table(done.quality),
    )
    if done.responses is not None:
        _say(session, reporter)
    reporter.say(quality.in_words(done.quality))
    if doubted := quality.at_chance(done.quality):
        reporter.warn(
            f"These labels may be at chance: {'; '.join(doubted)}. See docs/labels.md before training on them."
        )


def _why_unusable(done: LabelResult) -> str:
    table, responses = done.table, done.responses or []
    if done.quality.get("calibration", {}).get("known"):
        return "After --calibrate rules no goal is likelier than not at any moment; leave it out, or ask another --llm."
    if any(row.get("score") is not None for row in table):
        return "Every program that worked gives the same value everywhere; ask again with another --seed or --llm."
    last = responses[-1] if responses else {"reason": "nothing was asked", "reply": None}
    error = table[-1].get("error") if table else None
    reason = error or last["reason"] or f"the last reply begins {str(last['reply'])[:80]!r}"
    return f"Not one usable answer came back ({reason}); look at responses.parquet in the run's folder."


def _say(session: AskSession, reporter: Reporter) -> None:
    usage = session.usage
    if usage.failed:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(usage.reasons.items()))
        reporter.warn(
            f"{usage.failed:,} of {usage.asked:,} requests brought no answer ({reasons}); they carry no label."
        )
    if session.backend.identity is not None:
        cost = usage.cost_in_words()
        batches = session.budget.requests - session.budget.sent
        sent = f"{session.budget.sent:,} sent" + (f", {batches:,} in batches" if batches else "")
        reporter.say(f"{usage.asked:,} requests: {usage.cached:,} from the store, {sent}; {cost}.")
