"""What a method is, the table of all methods, and the settings that they share.

A method is one entry in this table: its class of settings, the function that builds its learner, and what lists and
reports say of it. Nothing else asks for a method's name. Modules with settings import nothing heavy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bkrl.core.config import Backend, Fresh, HardwareConfig, Seed, Threads, Track
from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag, flags_of, foreign
from bkrl.core.registry import load_plugins
from bkrl.core.settings import choose

if TYPE_CHECKING:
    from bkrl.agents.protocol import Agent
    from bkrl.learn.protocol import Learner
    from bkrl.llm.forecast import Outlook


class _OfMethod(type):
    """`TrainRsConfig(alg="rnd", …)` makes an instance of that method's class."""

    def __call__(cls, alg: str | None = None, **given: Any) -> Any:
        default = next(f.default for f in dataclasses.fields(cls) if f.name == "alg")  # type: ignore[arg-type]
        kind = choose(cls, {"alg": alg or default})
        defaults = {one.name: one.default for one in flags_of(TrainRsConfig)}
        useless = foreign(kind, given)
        for name, belongs in useless.items():
            if given[name] != defaults[name]:
                raise UsageError(f"{name} has no effect here, only with {belongs}; leave it out.")
        used = {name: value for name, value in given.items() if name not in useless}
        return type.__call__(kind, alg=alg or default, **used)


@dataclass(frozen=True)
class TrainRsConfig(metaclass=_OfMethod):
    """Train a policy by a method, such as PPO with a shaped reward; `bkrl train` is the same command."""

    alg: Annotated[str, Flag("the method; see `bkrl list algs`", pooled=True)] = "ppo"
    env: Annotated[str, Flag("task to learn, with options as in ID@num_dists=4; see `bkrl list envs`", pooled=True)] = (
        "BabyAI-Text-GoToLocal-RedBall-S20"
    )
    out: Annotated[Path | None, Flag("run directory  [default: logs/ALG-ENV-sSEED]", identity=False)] = None
    steps: Annotated[
        int, Flag("environment steps to train for; the last rollout is played to its end", least=1, pooled=True)
    ] = 1_000_000
    eval_every: Annotated[int, Flag("evaluate each time this many steps have been trained", least=1)] = 50_000
    eval_episodes: Annotated[int, Flag("seeded episodes in an evaluation", least=1)] = 50
    eval_greedy: Annotated[bool, Flag("evaluate the greedy policy each time, too")] = False
    checkpoint_every: Annotated[
        int, Flag("save a checkpoint each time this many steps have been trained", least=1, pooled=True)
    ] = 200_000
    seed: Seed = 1
    backend: Backend = "native"
    threads: Threads = 1
    track: Track = "none"
    fresh: Fresh = False
    hardware: HardwareConfig = field(default_factory=HardwareConfig)

    if TYPE_CHECKING:

        def __init__(self, alg: str = "ppo", **settings: Any) -> None: ...

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """Each method's class of settings, by the method's name."""
        return {name: method.settings for name, method in _METHODS.items()}

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        return self.out or Path("logs") / f"{self.alg}-{self.env}-s{self.seed}"


@dataclass
class Trainee:
    """A learner that has not begun, with what the run says of it.

    Attributes:
        learner: what the loop carries to its end.
        facts: for the manifest; `form` and `guarantee` say what the method does to the reward.
        warnings: sentences about what may make the run misleading; the manifest keeps them.
        notes: sentences to say before training begins.
        iteration_steps: env steps of an iteration: evaluations are made at multiples of it.
        opened: what the method has opened beside the learner, to be closed with it.
        measures: each gives figures that are logged with each evaluation, beside its scores.
    """

    learner: Learner
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    iteration_steps: int = 1
    opened: list[Any] = field(default_factory=list)
    measures: list[Callable[[], dict[str, float]]] = field(default_factory=list)

    def begin(self, folder: Path) -> None:
        """The run's folder is there; training begins or goes on."""

    def figures(self) -> dict[str, float]:
        """What is logged with each evaluation, beside its scores."""
        return {name: value for measure in self.measures for name, value in measure().items()}

    def result(self) -> Agent:
        """Who is saved when training is over."""
        return self.learner.agent

    def close(self) -> None:
        """Close the learner's envs, and what was opened beside them."""
        for one in (self.learner, *self.opened):
            one.close()


@dataclass(frozen=True)
class Method:
    """A published method.

    Attributes:
        name: what `--alg` takes.
        settings: a frozen dataclass that extends `TrainRsConfig`, with the settings that mean something to the method.
        build: makes the learner of a run with these settings, and writes nothing. UsageError and InputError refuse.
        help: one line for `bkrl list algs`.
        needs: what it needs beside an env, for the same list.
        variant: the kind of labels its potential is made from; "own" for one that no labels make, None without one.
        informed: whether it brings background knowledge, so that it is held against controls.
        baseline: the method it is compared with; its own name for one that others are compared with.
        form: its form of shaping where a run's manifest names none; a key of `rewards.shaping.FORMS`.
        learns: whether it does; if not, its curve is a flat line that reports carry on as far as those of the others.
        ranks: whether torchrun may run it over several processes.
        colour: the slot of its lines' colour in figures; None: the next free one.
        outlook: what a run would ask a language model, and what that costs, if the method asks one as it trains: for
            settings whose `dry_run` is set. It asks and writes nothing.
    """

    name: str
    settings: type[TrainRsConfig]
    build: Callable[[Any], Trainee]
    help: str
    needs: str = "none"
    variant: str | None = None
    informed: bool = False
    baseline: str = "ppo"
    form: str = "none"
    learns: bool = True
    ranks: bool = False
    colour: int | None = None
    outlook: Callable[[Any], Outlook] | None = None


_METHODS: dict[str, Method] = {}


def register_method(method: Method) -> None:
    """Make a method known, so that `train-rs --alg`, studies and reports take it.

    Raises:
        UsageError: the name is taken, or the class of settings does not extend `TrainRsConfig`.
    """
    if method.name in _METHODS:
        raise UsageError(f"There is a method '{method.name}' already; choose another name.")
    if method.settings is TrainRsConfig or not issubclass(method.settings, TrainRsConfig):
        raise UsageError(f"The settings of '{method.name}' must be a dataclass that extends TrainRsConfig.")
    _METHODS[method.name] = method


def methods() -> list[Method]:
    """All methods in the order of their registration, plugins' too."""
    load_plugins()
    return list(_METHODS.values())


def settings_of(name: str) -> set[str]:
    """The settings, by their dotted paths, in which runs of a method must agree, but for defects, which labels name."""
    method = find_method(name)
    found = [] if method is None else flags_of(method.settings)
    return {".".join(one.path) for one in found if one.flag.must_agree} - {"compat"}


def find_method(name: str) -> Method | None:
    """The method of a name; None where neither bkrl nor a plugin has one."""
    if name not in _METHODS:
        load_plugins()
    return _METHODS.get(name)
