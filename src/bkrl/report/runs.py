"""From verified run directories to the training runs of a comparison, with every setting that must agree."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.core.errors import UsageError
from bkrl.core.files import plain, to_json
from bkrl.core.flags import flags_of, without_effect
from bkrl.inspect.report import doubts_of
from bkrl.labelers.config import LabelConfig
from bkrl.llm import LOCAL_MODELS, UNINFORMED, USUALLY_CLOSED
from bkrl.methods import find_method, with_setting
from bkrl.methods.shaped import ADVISED, FADING
from bkrl.potentials import EMPTY, advice_source
from bkrl.potentials.protocol import FILE
from bkrl.report.groups import NO_EFFECT, SUCCESS, Trained
from bkrl.rewards.shaping import FORMS
from bkrl.runs.provenance import Chain, Node, paid_once
from bkrl.stats.curves import series_of
from bkrl.verbs import VERBS

_COUNTED = ("collect", "label", "train-rm", "train-rs")  # stages that may take env steps before a policy is trained
_SHORT = {"train-rm": "rm", "label": "label", "collect": "collect"}


def training_runs(
    chain: Chain, nodes: Sequence[Node], measure: str = "success_rate"
) -> tuple[list[Trained], list[str]]:
    """The sound train-rs runs among `nodes`, and sentences about those that hold no evaluation.

    `measure`: of the evaluations, which stands in the place of success.

    Raises:
        UsageError: it is not a share.
    """
    found, problems = [], []
    same, spelt = _made_alike(chain), dict[str, str]()  # an env goes by the first of its spellings here
    for node in nodes:
        if node.run is None or not node.sound or node.stage != "train-rs":
            continue
        series = series_of(node.run.metrics())
        if (key := f"eval/{measure}") not in series or not np.isfinite(series[key][1]).any():
            what = "no evaluation" if measure == "success_rate" else f"no {measure} of an evaluation"
            problems.append(f"{node.key} holds {what} and is left out of every number on this page.")
            continue
        if not np.isfinite(series[key][1][-1]) or series[key][0][-1] < series.get(SUCCESS, series[key])[0][-1]:
            problems.append(f"{node.key} has no {measure} in its last evaluation and is left out of every number here.")
            continue
        low, high = np.nanmin(series[key][1]), np.nanmax(series[key][1])
        if measure != "success_rate" and (low < 0 or high > 1):
            raise UsageError(f"--measure takes a share, and {measure} of {node.key} goes from {low:g} to {high:g}.")
        one = _trained(chain, node, {**series, SUCCESS: series[key]}, same)
        found.append(replace(one, env=spelt.setdefault(str(node.facts.get("env_id", one.env)), one.env)))
    return found, problems


def _made_alike(chain: Chain) -> dict[str, str]:
    """For the hash of each run: the least one of those that made the same bytes from the same inputs and settings.

    A study whose cells were run in two folders has its dataset, labels and potentials twice. They are one draw.
    """
    content: dict[str, str] = {}
    alike: dict[str, list[str]] = {}
    for node in sorted(chain.nodes.values(), key=lambda node: len(chain.ancestors(node))):  # each after its inputs
        if node.run is None or not node.sound or node.stage not in VERBS:
            continue
        # potential.json names where its inputs lie, and metrics hold clocks; what else a run made is in other files.
        outputs = node.run.manifest["outputs"].items()
        made = {name: one["sha256"] for name, one in outputs if name not in (FILE, "metrics.jsonl")}
        rests_on = [content.get(link.found or "", link.sha256) for link in node.links]
        settings = _flat(_config(node), node.stage, "") | {"seed": str(node.config.get("seed"))}
        content[node.key] = hashlib.sha256(to_json([node.stage, settings, made, rests_on]).encode()).hexdigest()
        alike.setdefault(content[node.key], []).append(node.sha256)
    return {one: min(hashes) for hashes in alike.values() for one in hashes}


def _trained(chain: Chain, node: Node, series: Mapping[str, Any], same: Mapping[str, str]) -> Trained:
    """`same`: see `_made_alike`."""
    settings, ancestors = node.config, chain.ancestors(node)
    made = chain.input(node, "potential")
    dataset, potential = _origin(chain, node, same)
    alg = str(settings.get("alg", node.facts.get("alg")))
    told = [node, *chain.ancestors(node, explorers=False)]
    answers, form = [a for a in told if answered(a)], _form_of(alg, node.facts)
    if form in ("advice", "start"):  # where a model told the advice, it does not matter who made Φ
        answers = [a for a in answers if a.stage == "train-rm"] or answers
    return Trained(
        key=node.key,
        env=str(settings.get("env", node.facts.get("env_id"))),
        alg=alg,
        seed=int(settings.get("seed", 0)),
        settings=_settings(node, ancestors),
        series=series,
        control=_control(told, answers),
        annotator=" + ".join(dict.fromkeys(map(annotator_of, answers))),
        collect_steps=sum(a.steps for a in paid_once(ancestors) if a.stage in _COUNTED),
        dataset=dataset,
        potential=potential,
        doubts=tuple(doubts_of(made.run)) if made is not None and made.run is not None and made.sound else (),
        form=form,
        guarantee=_guarantee_of(form, node.facts),
        empty=form in ADVISED
        and EMPTY in (node.facts.get("advice"), made and advice_source(made.facts.get("training", {}))),
    )


def _config(node: Node) -> Mapping[str, Any]:
    """A run's settings, its env as its manifest spells it: the options of an env may be given in any order."""
    env = node.facts.get("env_id") if node.config.get("env") else None
    return {**node.config, "env": env} if env else node.config


def _origin(chain: Chain, node: Node, same: Mapping[str, str]) -> tuple[str, str]:
    """Dataset and potential of a run: its own, else those of the policy that it begins as, or is guided by."""
    data = _hash(node, "data")
    dataset, potential = _hash(chain.input(node, "potential"), "dataset") or data, _hash(node, "potential") or data
    dataset, potential = same.get(dataset, dataset), same.get(potential, potential)
    starts = [start for name in ("init_from", "guide") if (start := chain.input(node, name)) is not None]
    if starts and not (dataset and potential):
        of_start = _origin(chain, starts[0], same)  # "as": what began as a clone is none
        dataset, potential = dataset or of_start[0], potential or (of_start[1] and f"as {of_start[1]}")
    return dataset, potential


def _form_of(alg: str, facts: Mapping[str, Any]) -> str:
    """The form of shaping of a run; its method's where an early manifest names none."""
    method = find_method(alg)
    found = str(facts.get("form", "none"))
    return method.form if method is not None and found == "none" else found


def _guarantee_of(form: str, facts: Mapping[str, Any]) -> str:
    """What a form keeps, as the run's manifest says."""
    said = facts.get("guarantee") if facts.get("form") == form else None
    return str(said or (FORMS[form].guarantee if form in FORMS else ""))


def _hash(node: Node | None, name: str) -> str:
    """The hash of one of a run's inputs; "" where it has no such input."""
    return next((link.sha256 for link in node.links if link.name == name), "") if node is not None else ""


def _control(told: Sequence[Node], answers: Sequence[Node]) -> str:
    """Which control a potential is: its own kind, what was done to labels that were asked for in training, or labels
    made without knowledge; "none" for the real thing.
    """
    for node in told:
        if (dealt := node.config.get("label_control", "none")) != "none":
            return str(dealt)
        if node.stage == "train-rm" and node.facts.get("control", "none") != "none":
            return str(node.facts["control"])
        if node in answers and (llm := annotator_of(node)) in UNINFORMED:
            return f"{llm} {'advice' if node.stage == 'train-rm' else 'labels'}"
    return "none"


def answered(node: Node) -> bool:
    """Whether answers were given to a run: labels, advice on actions, or what a method asked as it trained."""
    if node.stage == "train-rs":
        return "llm" in node.config and node.config.get("alg") in with_setting("llm")
    return node.stage == "label" or bool(node.stage == "train-rm" and node.config.get("advice"))


def facts_of_answers(node: Node) -> dict[str, Any]:
    """What a run's manifest says of who answered."""
    if node.stage == "train-rs":
        return {**node.facts.get("live", {}), "llm": node.config["llm"]}
    return dict(node.facts if node.stage == "label" else node.facts["training"]["advice"]["asked"])


def annotator_of(node: Node) -> str:
    """Who gave a run's answers: a local model by its name, however it was asked, else as `--llm` names it.

    All draws of `random` are one annotator, whose draws are pooled; a replay is that of the model which answered. Where
    it was asked in another way than is usual for it, its name says so.
    """
    facts = facts_of_answers(node)
    llm, ask = str(facts.get("llm", "")), node.config.get("ask")
    kind = llm.partition(":")[0]
    if kind in UNINFORMED:
        return kind
    local = kind in LOCAL_MODELS
    usual = {None, "default"} | ({"closed"} if kind in (*USUALLY_CLOSED, "replay") else {"open"})
    name = str(facts.get("replay_of") or (facts.get("model") if local else "") or llm)
    return name if ask in usual else f"{name} {ask}"


def _settings(node: Node, ancestors: Sequence[Node]) -> dict[str, str]:
    """Every setting that must agree for runs to be pooled, nested ones with a dot, those of inputs with a prefix.

    Of several inputs of a stage, as a dataset and the one that it is a part of, all values that there are.
    """
    flat, told = _flat(node.config, node.stage, ""), dict[str, set[str]]()
    for one in ancestors:
        if one.stage in _SHORT:
            for name, value in _flat(_config(one), one.stage, f"{_SHORT[one.stage]}.").items():
                told.setdefault(name, set()).add(value)
    flat |= {name: ", ".join(sorted(values)) for name, values in told.items()}
    falling = "pqn.epsilon_share" in flat or flat.get("ppo.anneal_lr") == "True"
    fading = node.facts.get("form") in FADING and flat.get("shaping_until") == "0"
    taught = flat.get("imitate") and flat.get("imitate_until") == "0"
    if falling or fading or taught:  # what falls to the end: where it is
        flat["steps"] = str(node.config.get("steps"))
    return flat | {name: _entry_of(node, flat[name]) for name in ("init_from", "guide") if name in flat}


def _entry_of(node: Node, recorded: str) -> str:
    """What a run begins as, or is guided by, without an ending, as its path is where the study is read from now.

    Where run s of a study begins as policy s of an entry, NAME-sS or of the same draws NAME-dD-lL-sS, the runs are one
    method's.
    """
    was, now, place = Path(str(node.config.get("out"))), Path(node.key), Path(recorded)
    while was.name and was.name == now.name:  # up to the folder that was moved, or is named in full or not
        was, now = was.parent, now.parent
    if place.is_relative_to(was):
        place = now / place.relative_to(was)
    place = place.absolute()
    place = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
    seed = f"-s{node.config.get('seed')}"
    drawn = re.search(rf"((-d\d+)?(-l\d+)?){seed}$", Path(node.key).name)
    return re.sub(f"({drawn[1] if drawn else ''})?{seed}$", "", place.as_posix())


def _flat(config: Mapping[str, Any], stage: str, prefix: str) -> dict[str, str]:
    """None is left out: a run of before there was a setting has it at its default too.

    So is what an earlier version recorded of other methods' settings, which had no effect.
    """
    method = find_method(str(config.get("alg"))) if stage == "train-rs" else None
    own = flags_of(VERBS[stage] if method is None else method.settings)
    if stage == "collect" and "seed" not in config:  # made of other datasets: it explored by no settings
        own = []
    values = {".".join(one.path): plain(one.of(config)) for one in own if one.flag.must_agree}
    if stage == "label":  # open questions have no criteria
        asked = LabelConfig(**{one.name: one.of(config) for one in own})
        values |= dict.fromkeys(without_effect(asked, values), NO_EFFECT)
    others = config.keys() - {one.path[0] for one in own}
    values |= {name: config[name] for name in others if stage != "train-rs" or not with_setting(name)}
    return {f"{prefix}{name}": str(value) for name, value in values.items() if value is not None}


def family_mismatches(chain: Chain, nodes: Sequence[Node]) -> list[str]:
    """Potentials and policies used in an env of another family than the one they were made in."""
    problems = []
    for node in nodes:
        here = env_facts(str(node.facts.get("env_id", node.config.get("env", "")))).get("family", "")
        for other in chain.ancestors(node):
            there = env_facts(str(other.facts.get("env_id", ""))).get("family", "")
            if here and there and here != there:
                problems.append(
                    f"{node.key} is a {here} run but rests on {other.key}, which was made in a {there} env."
                )
    return problems


def env_facts(env_id: str) -> dict[str, str]:
    """Family, rules and success of an env, in words; empty for one this version does not know."""
    from bkrl.envs import env_spec

    try:
        known = env_spec(env_id)
    except UsageError:
        return {}
    return {"family": known.family, "rules": known.rules, "solved": known.solved}
