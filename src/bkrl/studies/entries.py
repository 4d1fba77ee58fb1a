"""Entries of `algs` in a study file: methods as the study lists them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of
from bkrl.core.settings import choices
from bkrl.labelers.config import LabelConfig
from bkrl.methods import method_of, methods
from bkrl.potentials.config import TrainRmConfig
from bkrl.studies.tables import check_choice, check_keys, check_unique, name_of_folder, on_top

_ENTRY_KEYS = {"name", "title", "alg", "control", "lm", "after", "guide", "potential", "label", "train_rm", "train_rs"}
VARIANTS = choices(LabelConfig, "variant")


@dataclass(frozen=True)
class Entry:
    """A method as a study lists it: under which name, on which potential, with which settings of its own.

    Attributes:
        variant: the kind of labels its potential is made from; None for a method without labels.
        lm: the section's language model that it starts from, and "" for none.
        after: the entry whose policy it starts from, of its task, or of another section as SECTION/NAME; "" for none.
        guide: the entry whose policy chooses some of its actions, named alike; "" for none.
        clones: whether it clones the section's demonstrations.
        title: what reports call it; "" for the label that they make of its settings.
    """

    name: str
    alg: str
    variant: str | None
    control: str = "none"
    lm: str = ""
    after: str = ""
    guide: str = ""
    clones: bool = False
    title: str = ""
    label: Mapping[str, Any] = field(default_factory=dict)
    train_rm: Mapping[str, Any] = field(default_factory=dict)
    train_rs: Mapping[str, Any] = field(default_factory=dict)


def entries_of(listed: Any, section: str) -> list[Entry]:
    """The methods of a section or task; "bk-pref:shuffled" stands for one on a control of its potential."""
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"The section {section} needs algs = [...], in itself or in each of its tasks.")
    entries = [_entry(item) for item in listed]
    check_unique(names := [entry.name for entry in entries], "algs")
    for place, entry in enumerate(entries):
        for other in (entry.after, entry.guide):
            if other and "/" not in other and other not in names[:place]:
                raise UsageError(
                    f"'{entry.name}' begins after '{other}', so an entry of that name must stand above it."
                )
    return entries


def _entry(item: Any) -> Entry:
    if isinstance(item, str):
        alg, _, control = item.partition(":")
        item = {"name": item.replace(":", "-"), "alg": alg} | ({"control": control} if control else {})
    if not isinstance(item, Mapping):
        raise UsageError(f"An entry of algs is a name or a table, not {item!r}.")
    check_keys(item, _ENTRY_KEYS, "An entry of algs")
    name = name_of_folder(item, "entry of algs")
    if re.search(r"-[dl]\d+$", name):  # a report would take its end for the run's
        raise UsageError(f"The name '{name}' ends as those of runs on several draws do (-d2, -l2); choose another.")
    check_choice(item.get("alg"), [one.name for one in methods()], f"alg of '{name}'")
    method = method_of(item["alg"])
    for key in ("title", "lm", "after", "guide"):
        if not isinstance(item.get(key, ""), str):
            raise UsageError(f"The {key} of '{name}' is text in quotes, not {item[key]!r}.")
    own = on_top({}, item.get("train_rs", {}))
    settings = {one.name for one in flags_of(method.settings)}
    variant = method.variant if method.variant in VARIANTS else None
    given = {key: value for key, value in item.items() if key != "potential"}
    for key, setting in (("potential", "potential"), ("lm", "lm"), ("after", "init_from"), ("guide", "guide")):
        if key in item and (setting not in settings or (key == "potential" and method.variant)):
            raise UsageError(f"'{name}': {item['alg']} takes no '{key}' in a study; leave it out.")
    if "potential" in item:
        check_choice(variant := item["potential"], VARIANTS, f"potential of '{name}'")
    given |= {"variant": variant, "control": item.get("control") or "none"}
    entry = Entry(**given, clones="data" in settings and "data" not in own)
    if entry.control == "constant":  # which has advice alone
        entry = replace(entry, train_rs=on_top({"shaping": "advice"}, entry.train_rs))
    check_choice(entry.control, choices(TrainRmConfig, "control"), f"control of '{name}'")
    if method.variant and method.variant not in VARIANTS and "potential" not in own:
        raise UsageError(f"'{name}' needs {method.needs}: name its run, train_rs = {{ potential = \"…\" }}.")
    if entry.variant is None and (entry.control != "none" or entry.label or entry.train_rm):
        raise UsageError(f"'{name}': {entry.alg} uses no labels, so it has no control, label or train_rm.")
    return entry
