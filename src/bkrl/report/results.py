"""From comparisons to the values that are shown and kept: rows of the results tables, and results.json."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bkrl.core.config import ReportConfig
from bkrl.core.reporter import percent, percents
from bkrl.envs.sets import SETS, set_of_all
from bkrl.llm import UNINFORMED
from bkrl.report import findings as words
from bkrl.report.comparison import Comparison
from bkrl.report.costs import costs
from bkrl.report.evaluations import Played, evaluated
from bkrl.report.groups import Trained
from bkrl.report.model import FORMAT, Curves, EnvResults, FormUse, GoalRow, Results, Said
from bkrl.report.plots.figures import Figure, styles_of
from bkrl.report.runs import annotator_of, answered, env_facts, facts_of_answers
from bkrl.rewards.shaping import FORMS
from bkrl.runs.provenance import Chain, Node
from bkrl.stats.crossings import StepsRatio


def results_of(
    config: ReportConfig,
    chain: Chain,
    trained: Sequence[Trained],
    compared: Sequence[tuple[Comparison, Sequence[Figure]]],
    played: Sequence[Played],
    problems: Sequence[str],
    goals: Sequence[GoalRow] = (),
) -> Results:
    """Everything of a report that does not change when the same study is run again."""
    comparisons, threshold = [comparison for comparison, _ in compared], config.threshold
    instead = "" if config.measure == ReportConfig.measure else f"{config.measure} of the evaluations, in its place."
    held = set_of_all((one.env, one.seed) for one in trained)
    by_truth = any(one.facts.get("llm", one.config.get("llm")) == "votes" for one in chain.of("label"))
    said = [f"All runs are of the {held} set of tasks and seeds: {SETS[held].use} (docs/studies.md)."] if held else []
    said += [_TRUTH] if by_truth else []
    told = {annotator_of(one): facts_of_answers(one) for one in chain.nodes.values() if answered(one)}
    told = {name: facts for name, facts in told.items() if name not in ("", *UNINFORMED)}
    said += [*_models(told, comparisons), *problems]
    by_rules = told.keys() <= {"rules"} and any(map(_by_rules, filter(answered, chain.nodes.values())))
    found = words.findings(comparisons, threshold, by_rules, said)
    return Results(
        format=FORMAT,
        title=config.title,
        headline=words.headline(comparisons),
        findings=[Said(one.tone, words.TONES[one.tone], one.text, ", ".join(one.envs)) for one in found],
        problems=problems,
        threshold=threshold,
        envs=[results_in(comparison, figures, instead) for comparison, figures in compared],
        forms=_forms_of(trained),
        evaluated=evaluated(played),
        evaluations=[one.row for one in played],
        costs=costs(chain),
        task_set=held,
        goals=goals,
    )


_TRUTH = (
    "Labels of the votes annotator are the truth that success is judged by: an upper bound, and no knowledge that an "
    "agent could have."
)


def _models(told: Mapping[str, Mapping[str, Any]], comparisons: Sequence[Comparison]) -> list[str]:
    """Whose knowledge each method carries, where a local language model was asked, or others beside the rules; else
    nothing. `told`: what is known of each who answered, but for controls.
    """
    hashes = {name: str(facts["model_sha256"]) for name, facts in told.items() if "model_sha256" in facts}
    methods: dict[str, dict[str, None]] = {}
    for row in (row for comparison in comparisons for row in comparison.rows if row.group.is_method):
        methods.setdefault(row.group.runs[0].annotator, {})[row.group.name] = None
    if not (hashes.keys() & methods.keys() or {"rules"} < told.keys()):
        return []
    who = {"rules": "hand-written heuristics, not a language model"}
    who |= {name: f"a language model, SHA-256 {found[:12]}…" for name, found in hashes.items()}
    return [
        f"What {', '.join(names)} knows is from {annotator}" + (f" ({who[annotator]})." if annotator in who else ".")
        for annotator, names in methods.items()
        if annotator
    ]


def _by_rules(labels: Node) -> bool:
    annotator = str(labels.facts.get("annotator", ""))
    return labels.facts.get("llm", labels.config.get("llm")) == "rules" or "not a language model" in annotator


def _forms_of(trained: Sequence[Trained]) -> list[FormUse]:
    """One entry for each form and guarantee on the page, with the methods that use it."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in trained:
        found.setdefault((run.form, run.guarantee), set()).add(run.alg)
    order = list(FORMS)
    known = sorted(found, key=lambda one: (order.index(one[0]) if one[0] in order else len(order), one))
    added = {form: facts.added for form, facts in FORMS.items()}
    return [
        FormUse(form, sorted(found[form, kept]), added.get(form, ""), kept, kept.lower().startswith("none"))
        for form, kept in known
    ]


def results_in(comparison: Comparison, figures: Sequence[Figure], instead: str = "") -> EnvResults:
    """All methods of one env; `instead`: what stands in the place of success."""
    facts = env_facts(comparison.env)
    styles = styles_of([row.group for row in comparison.rows])
    return EnvResults(
        env=comparison.env,
        solved=instead or facts.get("solved", ""),
        rules=facts.get("rules", ""),
        horizon=comparison.horizon,
        rows=[replace(row, **vars(styles[row.group.label])) for row in comparison.rows],
        curves=[Curves(f.title, f.panel, [one.label for one in f.legend], f.lines) for f in figures],
        measure=comparison.measure,
    )


def text_table(envs: Sequence[EnvResults], threshold: float) -> Mapping[str, Any]:
    """The results table as text, for a terminal: `header` and `rows` of strings and numbers."""
    goal = percent(threshold)
    header = [
        "env", "method", "form", "n", "success", "95 % interval", f"reached {goal}", f"steps to {goal}",
        "x PPO's steps", "verdict",
    ]  # fmt: skip
    rows = [
        [
            results.env,
            row.label,
            row.form_text,
            row.n,
            percent(row.final.estimate),
            percents(row.final.low, row.final.high),
            f"{row.reached} of {row.n}",
            row.steps_text,
            ratio_cell(row.ratio),
            row.verdict or "–",
        ]
        for results in envs
        for row in results.rows
    ]
    return {"header": header, "rows": rows}


def ratio_cell(ratio: StepsRatio | None) -> str:
    """A ratio of steps with its interval: "at least 1.42 (1.20 to 1.62)"."""
    return "–" if ratio is None else f"{ratio}" if ratio.known else f"{ratio} (no interval)"
