"""What a method is, the table of all methods, and the settings that they share.

A method is one entry in this table: its class of settings, the function that builds its learner, and what lists and
reports say of it. Nothing else asks for a method's name. Modules with settings import nothing heavy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bkrl.core.config import Backend, Fresh, HardwareConfig, Seed, Threads, Track
from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag, flags_of, words
from bkrl.core.registry import did_you_mean, load_plugins
from bkrl.core.settings import build

if TYPE_CHECKING:
    from bkrl.agents.protocol import Agent
    from bkrl.learn.protocol import Learner
    from bkrl.llm.forecast import Outlook


@dataclass(frozen=True)
class TrainRsConfig:
    """The settings of every method. Those of one method extend it: `TrainRsConfig(alg="rnd", int_coef=0.3)` makes them.

    Raises:
        UsageError: there is no such method, or a setting belongs to others.
    """

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
        int, Flag("save a checkpoint each time this many steps have been trained", least=1, pooled=True, seldom=True)
    ] = 200_000
    seed: Seed = 1
    backend: Backend = "native"
    threads: Threads = 1
    track: Track = "none"
    fresh: Fresh = False
    hardware: HardwareConfig = field(default_factory=HardwareConfig)

    if TYPE_CHECKING:

        def __init__(self, alg: str = "ppo", **settings: Any) -> None: ...

    else:

        def __new__(cls, alg="ppo", **settings):
            """An instance of the method's class; its `__init__` is the next to be called."""
            own = method_of(alg).settings if cls is TrainRsConfig else cls
            if settings and method_of(alg).settings is not own:
                raise UsageError(
                    f"{own.__name__} are not the settings of '{alg}': make those by TrainRsConfig(alg='{alg}', …)."
                )
            known = {one.name for one in dataclasses.fields(own)}
            for name in settings.keys() - known:
                if owners := with_setting(name):
                    raise UsageError(f"{name} has no effect here, only with --alg {words(owners)}; leave it out.")
                raise TypeError(f"There is no setting '{name}' in TrainRsConfig.{did_you_mean(name, known)}")
            return super().__new__(own)

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        return self.out or Path("logs") / f"{self.alg}-{self.env}-s{self.seed}"

    @property
    def defects(self) -> frozenset[str]:
        """The published defects that a run is to have: none, but for `PublishedDefects`."""
        return frozenset()


@dataclass
class Training:
    """An untrained learner with the facts, notes and warnings for its manifest.

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
        colour: the slot of its lines' colour in figures; None: the next free one.
        outlook: what a run would ask a language model, and what that costs, if the method asks one as it trains: for
            settings whose `dry_run` is set. It asks and writes nothing.
    """

    name: str
    settings: type[TrainRsConfig]
    build: Callable[[Any], Training]
    help: str
    needs: str = "none"
    variant: str | None = None
    informed: bool = False
    baseline: str = "ppo"
    form: str = "none"
    learns: bool = True
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


def method_of(name: str) -> Method:
    """The method of a name.

    Raises:
        UsageError: there is none.
    """
    if (method := find_method(name)) is None:
        raise UsageError(f"There is no method '{name}'.{did_you_mean(name, _METHODS)} Known: {', '.join(_METHODS)}.")
    return method


def with_setting(name: str) -> list[str]:
    """The methods that have a setting of their own of this name; groups go by the names of what is in them, too."""
    shared = {part for one in flags_of(TrainRsConfig) for part in one.path}
    return [
        method.name
        for method in methods()
        if name not in shared and any(name in one.path for one in flags_of(method.settings))
    ]


def settings_from(table: Mapping[str, Any], alg: str, **fixed: Any) -> TrainRsConfig:
    """A method's settings from a table that other methods share: what belongs to them is checked and left alone.

    Raises:
        UsageError: see `core.settings.build`.
    """
    own = {one.name for one in dataclasses.fields(method_of(alg).settings)}
    for name in table.keys() - own:
        if owners := with_setting(name):
            build(method_of(owners[0]).settings, {name: table[name]}, alg=owners[0])
    used = {name: value for name, value in table.items() if name in own or not with_setting(name)}
    made: TrainRsConfig = build(method_of(alg).settings, used, alg=alg, **fixed)
    return made


def settings_of(name: str) -> set[str]:
    """The settings, by their dotted paths, in which runs of a method must agree, but for defects, which labels name."""
    method = find_method(name)
    found = () if method is None else flags_of(method.settings)
    return {".".join(one.path) for one in found if one.flag.must_agree} - {"compat"}


def find_method(name: str) -> Method | None:
    """The method of a name; None where neither bkrl nor a plugin has one."""
    if name not in _METHODS:
        load_plugins()
    return _METHODS.get(name)
