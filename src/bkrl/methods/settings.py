"""Settings that several methods share; each of their classes of settings extends those that mean something to it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bkrl.core.flags import Flag
from bkrl.methods.registry import TrainRsConfig


@dataclass(frozen=True)
class StartingWeights(TrainRsConfig):
    """What a policy begins as."""

    init_from: Annotated[
        Path | None, Flag("start from these weights: a train-rs run, or a .safetensors file of a policy", reads=True)
    ] = None


@dataclass(frozen=True)
class PublishedDefects(TrainRsConfig):
    """Where the published code departs from its paper: which of that a run is to have."""

    compat: Annotated[
        str,
        Flag(
            "reproduce defects of the published code: names divided by commas, or upstream for all that concern the "
            "run (docs/compat.md); no guarantee holds then",
            seldom=True,
        ),
    ] = ""

    @property
    def defects(self) -> frozenset[str]:
        """The defects that `compat` names; UsageError for those that cannot be had here."""
        from bkrl.envs import env_spec
        from bkrl.rewards.upstream import parse

        return parse(self.compat, self._concerned, env_spec(self.env).family)

    @property
    def _concerned(self) -> str | None:
        """What has the defects, as `rewards.upstream.Defect.variants` names it; None: what is of no variant."""
        return None


def learning(settings: TrainRsConfig, hardware: Any) -> dict[str, Any]:
    """What a learner on rollouts is told of every run."""
    how = {"total_steps": settings.steps, "seed": settings.seed, "hardware": hardware}
    return how | {"bootstrap_truncated": "b10" not in settings.defects}


def defect_facts(defects: frozenset[str]) -> dict[str, Any]:
    """What the manifest says of a run with these defects; {} without."""
    from bkrl.rewards.upstream import guarantee, named

    return {"compat": named(defects), "guarantee": guarantee(defects)} if defects else {}


def form_facts(form: str) -> dict[str, Any]:
    """What the manifest says of a form of shaping: a key of `FORMS`, and what that guarantees."""
    from bkrl.rewards.shaping import FORMS

    return {"form": form, "guarantee": FORMS[form].guarantee}
