"""Which flags have no effect beside which others: what a person gave in vain is refused, not ignored.

Study files share settings between methods, and so do the commands that `bkrl sweep --executor print` writes
(`--lenient`); there a setting that concerns another method is left alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bkrl.core.config import ADVISED, CollectConfig, LabelConfig, SweepConfig, TrainRmConfig, TrainRsConfig
from bkrl.core.errors import BkrlError


@dataclass(frozen=True)
class Belongs:
    """Settings that have an effect only where `holds` says so; None: that cannot be known yet. `to`: what has one."""

    names: tuple[str, ...]
    to: str
    holds: Callable[[Any], bool | None]


def _variant(config: TrainRmConfig) -> str | None:
    """The variant of the labels; None when there are none, which the stage has words for."""
    from bkrl.runs.record import Run

    try:
        run = Run.open(config.labels, "label", verify=False)
    except BkrlError:
        return None
    return str(run.facts.get("variant", run.config["config"].get("variant")))


def _labels(config: TrainRmConfig, variant: str) -> bool | None:
    found = _variant(config)
    return None if found is None else found == variant


_LABELS_READ = ("none", "shuffled", "constant")
_BONUS = ("decay", "pbim", "additive")
_PAID = ("pbrs", "pbrs+advice", *_BONUS)
_PREFERENCE, _GOAL = ("epochs", "ensemble", "min_agreement"), ("encoder",)
_SHAPING = ("shaping", "shaping_coef", "shaping_shift", "advice_coef", "allow_empty_advice", "shaping_until")
_ASKING = (
    *("prompt", "votes", "temperature", "max_tokens", "effort"),
    *("max_requests", "max_cost", "concurrency", "rpm", "tpm"),
)

BELONGS: dict[type, tuple[Belongs, ...]] = {
    CollectConfig: (Belongs(("int_gamma",), "an --int-coef above 0", lambda c: c.int_coef > 0),),
    LabelConfig: (
        Belongs(("body", "header"), "--llm openai:MODEL", lambda c: c.llm.startswith("openai:")),
        Belongs(("length",), "--variant pref or goal", lambda c: c.variant != "code"),
        Belongs(_ASKING, "an --llm that is asked (this one is a control)", lambda c: c.llm not in ("random", "return")),
    ),
    TrainRmConfig: (
        Belongs(
            (*_PREFERENCE, *_GOAL),
            f"--control {', '.join(_LABELS_READ[:-1])} or {_LABELS_READ[-1]}, which read the labels",
            lambda c: c.control in _LABELS_READ,
        ),
        Belongs(_PREFERENCE, "preference labels, made with --variant pref (bk-pref)", lambda c: _labels(c, "pref")),
        Belongs(_GOAL, "goal labels, made with --variant goal (bk-goal)", lambda c: _labels(c, "goal")),
    ),
    TrainRsConfig: (
        Belongs(_SHAPING, "--alg bk-code, bk-pref, bk-goal or bk-own", lambda c: c.alg.startswith("bk-")),
        Belongs(("int_coef",), "--alg rnd", lambda c: c.alg == "rnd"),
        Belongs(
            ("advice_coef", "allow_empty_advice"), f"--shaping {' or '.join(ADVISED)}", lambda c: c.shaping in ADVISED
        ),
        Belongs(
            ("shaping_until",),
            f"--shaping {', '.join(ADVISED)} or decay",
            lambda c: c.shaping in (*ADVISED, "decay"),
        ),
        Belongs(
            ("shaping_coef", "shaping_shift"),
            f"--shaping {', '.join(_PAID[:-1])} or {_PAID[-1]}",
            lambda c: c.shaping in _PAID,
        ),
        Belongs(("shaping_shift",), "training without --compat", lambda c: not c.compat),
    ),
    SweepConfig: (Belongs(("partition", "time", "mem"), "--executor slurm", lambda c: c.executor == "slurm"),),
}


def in_vain(config: Any, given: Iterable[str], sure: bool = True) -> list[tuple[str, str]]:
    """The settings among `given` without effect, each with what it belongs to.

    Args:
        config: the settings of a verb.
        given: names of the settings that somebody gave; a nested one goes by its own name.
        sure: leave out those of which it cannot be known yet.
    """
    names, refused = list(given), (False,) if sure else (False, None)
    found: dict[str, str] = {}
    for rule in BELONGS.get(type(config), ()):
        wanted = [name for name in names if name in rule.names and name not in found]
        if wanted and rule.holds(config) in refused:
            found |= dict.fromkeys(wanted, rule.to)
    return list(found.items())


def changed(config: Any) -> list[str]:
    """The settings of a config that differ from their defaults; a nested one goes by its own name."""
    names: list[str] = []
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        if dataclasses.is_dataclass(value):
            names += changed(value)
        elif one.default is not dataclasses.MISSING and value != one.default:
            names.append(one.name)
    return names
