"""What `bkrl list` shows: the names that flags take, each with a line about it."""

from pathlib import Path
from typing import Any

_CONTROLS = ("random, return", "nothing", "controls for preferences: a coin, or the env's own reward")
_POTENTIALS = (
    ("code", "--variant code", "a sandboxed program over raw observations; horizon 5"),
    ("pref", "--variant pref", "a preference transformer; horizon as long as a segment, 5 by default"),
    ("goal", "--variant goal", "similarity of the latest caption to retrieved goals; horizon 4"),
    ("control", "train-rm --control", "zero, a random network, shuffled labels, constant advice"),
)
_EVERYWHERE, _TYPED, _HOUSE = "typed Crafter, Housekeep", "typed Crafter", "Housekeep"
_ASKS = "answers come beside training and are kept; --max-cost and --max-requests bound them"
_SUGGESTERS = (
    ("oracle", _EVERYWHERE, "the env's own rules; in Housekeep people's votes: the best that knowledge could give"),
    ("noisy", _EVERYWHERE, "the oracle with stated shares of errors"),
    ("rules", _EVERYWHERE, "hand-written rules, not a language model; in typed Crafter the same goals as oracle"),
    ("words", _TYPED, "nothing: the deeds of which a word stands in the text, within another too (sleep in sleepy)"),
    ("novelty, uniform", _EVERYWHERE, "nothing: every deed, paid once an episode or every time"),
    ("openai:MODEL", _EVERYWHERE, f"a language model behind an endpoint; {_ASKS}"),
    ("local:NAME, gguf:PATH, hf:PATH", _EVERYWHERE, f"a language model on this machine; {_ASKS}"),
    ("replay:RUN", _TYPED, "the goals of another run that asked"),
    ("progress:SUGGESTER", _TYPED, "those of its goals whose success changes; without a name those of oracle"),
    ("task", _TYPED, "the env's own mission; pays nothing itself"),
    ("zs_mlm", _HOUSE, "a masked language model's prior of what belongs where"),
    ("random, equal", _EVERYWHERE, "controls: answers drawn at random, and the same answer to every question"),
)


def catalogue(what: str) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Tables (title, header, rows) of one kind of names, as `bkrl list` takes them."""
    if what == "algs":
        from bkrl.methods import methods

        return [("", ["alg", "needs", "what it is"], [[one.name, one.needs, one.help] for one in methods()])]
    if what == "llms":
        from bkrl.llm import SPECS, annotators

        known, ours = annotators(), {spec.partition(":")[0] for spec, *_ in SPECS}
        others = [(name, "a plugin", known.help(name)) for name in known.names() if name not in ours]
        return [("", ["llm", "needs", "what it is"], [list(row) for row in (*SPECS, _CONTROLS, *others)])]
    if what == "potentials":
        kinds = ("", ["kind", "made by", "what it is"], [list(row) for row in _POTENTIALS])
        header = ["path", "kind", "made in", "labels by", "advice from"]
        return [kinds, ("Samples that ship with bkrl", header, _samples())]
    if what == "suggesters":
        from bkrl.goals.suggesters import own_suggesters

        own = own_suggesters()
        suggesters = [*_SUGGESTERS, *((name, _TYPED, own.help(name)) for name in own.names())]
        return [("Values of --suggester", ["suggester", "in", "what it knows"], [list(row) for row in suggesters])]
    if what == "studies":
        title = "Studies that ship with bkrl; `bkrl sweep STUDY --dry-run` lists the runs of one"
        return [(title, ["study", "what it asks", "trains", "on two cores", "command"], _studies())]
    if what == "conditions":
        title, header = "Sets for `bkrl evaluate RUN --conditions SET`", ["set", "what it is", "conditions", "measures"]
        return [(title, header, _sets())]
    from bkrl.envs import env_ids, env_spec, family

    specs = [env_spec(env_id) for env_id in env_ids()]
    if what == "options":
        having: dict[tuple[str, str], list[str]] = {}
        for w in specs:
            for one in family(w.family).options(w):
                having.setdefault((one.name, one.flag.help), []).append(w.env_id)
        rows: list[list[Any]] = [
            [*about, ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"] for about, ids in having.items()
        ]
        return [("Options of envs, written as ID@NAME=VALUE,NAME=VALUE", ["option", "what it is", "of"], rows)]
    by_rules: dict[str, list[list[Any]]] = {}
    for w in specs:
        by_rules.setdefault(w.rules, []).append([w.env_id, w.family, len(w.action_names), w.max_steps, w.solved])
    header = ["env", "family", "actions", "max steps", "solved when"]
    return [(f"Rules: {rules}", header, rows) for rules, rows in by_rules.items()]


def _studies() -> list[list[Any]]:
    """The shipped studies: what each asks, which methods it trains, how long it took, and the command that does it."""
    from bkrl.core.reporter import duration
    from bkrl.studies.study import presets, shipped

    rows: list[list[Any]] = []
    for name in presets():
        document = shipped(name)
        parts = [part for section in document["world"] for part in (section, *section.get("task", ()))]
        entries = [entry for part in parts for entry in part.get("algs", ())]
        algs = [entry.partition(":")[0] if isinstance(entry, str) else entry["alg"] for entry in entries]
        took = duration(60 * document["minutes"])
        rows.append([name, document["title"], ", ".join(dict.fromkeys(algs)), took, f"bkrl sweep {name}"])
    return rows


def _sets() -> list[list[Any]]:
    """The shipped sets of conditions."""
    from bkrl.stages.evaluate.conditions import SHIPPED, read_conditions

    read = [(name, read_conditions(name)) for name in SHIPPED]
    return [[name, one.title, len(one.conditions), one.measure] for name, one in read]


def _samples() -> list[list[Any]]:
    """The ready-made runs, usable wherever a path of such a run is: `--potential sample:bk-code-minigrid`."""
    from bkrl.potentials import advice_source
    from bkrl.runs.record import Run
    from bkrl.runs.samples import samples

    rows = []
    for name in samples():
        run = Run.open(Path(name), verify=False)
        if run.stage == "lm":  # what reads, and is no potential
            continue
        kind = run.facts.get("kind", "dataset" if run.stage == "collect" else run.stage)
        source = advice_source(run.facts.get("training", {})) or "–"
        rows.append([name, kind, run.facts.get("env_id"), run.facts.get("llm") or "–", source])
    return rows
