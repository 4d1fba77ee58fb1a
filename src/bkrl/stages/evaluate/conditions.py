"""Conditions under which a policy is evaluated: other envs, other words, other actions. They are data, in TOML.

Sets that ship with bkrl: `glam`, the generalisation tests of Carta et al. (2023); `glam-goto`, a part of them for three
actions; `balrog` and `balrog-crafter`, the protocols of BALROG (Paglieri et al. 2024); `crafter-score`, Crafter's own
(Hafner 2021). docs/training.md says how a file of your own is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from bkrl.core.documents import Mismatch, parse_toml, typed
from bkrl.core.errors import BkrlError, InputError, UsageError
from bkrl.core.flags import Flag
from bkrl.core.registry import did_you_mean
from bkrl.envs import env_spec, family, options
from bkrl.text.wording import Wording

FOLDER = Path(__file__).parent
SHIPPED: Final = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
BESIDE: Final = ("random", "bot")
Measure = Literal["success", "progress", "score"]
"""Of episodes: the share that succeed; the mean share of achievements; Crafter's score (`stats.scores`)."""
_Share = Annotated[float, Flag("", least=0, most=1)]


class _Condition(TypedDict):
    """One [[condition]] of a file."""

    name: str
    env: NotRequired[str | list[str]]
    language: NotRequired[str]
    words: NotRequired[str | dict[str, str]]
    actions: NotRequired[str | list[str]]
    goal_label: NotRequired[str]
    published: NotRequired[dict[str, _Share]]


class _Published(TypedDict):
    """One [[published]] of a file: a figure of somebody else's, to stand beside ours."""

    name: str
    success: _Share
    error: NotRequired[_Share]


class _File(TypedDict):
    """A file of conditions."""

    title: str
    condition: list[_Condition]
    env: NotRequired[str | list[str]]
    note: NotRequired[str]
    beside: NotRequired[list[str]]
    also_first: NotRequired[Annotated[int, Flag("", least=1)]]
    measure: NotRequired[Measure]
    published: NotRequired[list[_Published]]


@dataclass(frozen=True)
class Condition:
    """One condition.

    Attributes:
        name: what the table calls it.
        envs: ids with options, of which the first that has the policy's actions is played, or else the first; () for
            the env of the policy.
        wording: in which agents read.
        published: success rates by who had them.
    """

    name: str
    envs: tuple[str, ...] = ()
    wording: Wording = field(default_factory=Wording)
    published: dict[str, float] = field(default_factory=dict)

    @property
    def reworded(self) -> bool:
        """Whether words are others than the env's own."""
        return self.wording != Wording()


@dataclass(frozen=True)
class Conditions:
    """A set of conditions.

    Attributes:
        title: of the table.
        conditions: in their order; changes are counted from the first.
        note: where published figures come from.
        beside: other agents that are evaluated too, of `BESIDE`.
        also_first: a second row for the first so many episodes of each kind of task; 0: none.
        published: (name, its figure, the error or None).
        measure: what is measured.
    """

    title: str
    conditions: tuple[Condition, ...]
    note: str = ""
    beside: tuple[str, ...] = ()
    also_first: int = 0
    published: tuple[tuple[str, float, float | None], ...] = ()
    measure: Measure = "success"


def path_of(name: str) -> Path:
    """The file of a shipped set, or the one that is named; UsageError where there is neither."""
    if name in SHIPPED:
        return FOLDER / f"{name}.toml"
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            f"--conditions: there is no file {name} and no set of that name.{did_you_mean(name, SHIPPED)} Shipped: "
            f"{', '.join(SHIPPED)}."
        )
    return path


def read_conditions(name: str) -> Conditions:
    """The conditions of a shipped set or of a file.

    Raises:
        UsageError: there is none.
        InputError: the file is not TOML, or one of its entries is invalid.
    """
    path = path_of(name)
    try:
        document = parse_toml(path.read_text(encoding="utf-8-sig"))
    except (Mismatch, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML ({error}).") from None
    _check_keys(path, document, _File)  # before what is missing: that may stand there under another name
    try:
        found: _File = typed(_File, document, str(path))
    except Mismatch as problem:
        raise InputError(f"{problem}.") from None
    for one in found["condition"]:
        _check_keys(path, one, _Condition)
    for figure in found.get("published", []):
        _check_keys(path, figure, _Published)
    if not (names := [one["name"] for one in found["condition"]]):
        raise InputError(f"{path} has no [[condition]].")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path} names two conditions '{twice[0]}'; each needs a name of its own.")
    beside = tuple(found.get("beside", []))
    for other in beside:
        if other not in BESIDE or beside.count(other) > 1:
            raise InputError(f"{path}: beside is some of {', '.join(BESIDE)}, each once, not '{other}'.")
    return Conditions(
        found["title"],
        tuple(_condition(path, one, found.get("env", [])) for one in found["condition"]),
        found.get("note", ""),
        beside,
        found.get("also_first", 0),
        tuple((one["name"], one["success"], one.get("error")) for one in found.get("published", [])),
        found.get("measure", "success"),
    )


def _check_keys(path: Path, entry: Mapping[str, Any], kind: type) -> None:
    """InputError for the first key of a table that is none of its kind."""
    for key in entry.keys() - kind.__annotations__.keys():
        known = ", ".join(kind.__annotations__)
        raise InputError(
            f"{path}: '{key}' means nothing there.{did_you_mean(key, kind.__annotations__)} Known: {known}."
        )


def _condition(path: Path, entry: _Condition, envs: str | list[str]) -> Condition:
    actions = entry.get("actions", ())
    try:
        wording = Wording(
            entry.get("language", ""),
            entry.get("words", ""),
            actions if isinstance(actions, str) else tuple(actions),
            entry.get("goal_label", ""),
        )
        envs = entry.get("env", envs)
        envs = [envs] if isinstance(envs, str) and envs else envs
        for env in envs:
            env_spec(env)
    except BkrlError as problem:
        raise InputError(f"{path}, condition '{entry['name']}': {problem}") from None
    return Condition(entry["name"], tuple(envs), wording, dict(entry.get("published", {})))


def env_of(condition: Condition, trained_in: str) -> str:
    """The env of a condition, with the actions of the env that the policy was trained in, unless it says others."""
    if not condition.envs:
        return trained_in
    acts = env_spec(trained_in).action_names
    chosen = next((one for one in condition.envs if env_spec(one).action_names == acts), condition.envs[0])
    trained, own = options.split(trained_in)[1], options.split(chosen)[1]
    inherited = {} if "actions" in own or "actions" not in trained else {"actions": trained["actions"]}
    return with_options(chosen, inherited)


def with_options(env_id: str, more: dict[str, str]) -> str:
    """An id with further options, which go before its own."""
    bare, chosen = options.split(env_id)
    chosen |= more
    text = ",".join(f"{name}={value}" for name, value in chosen.items())
    return env_spec(f"{bare}@{text}" if text else bare).env_id


def knows(env_id: str) -> dict[str, Any]:
    """The options that an env knows, with their defaults."""
    bare = env_spec(options.split(env_id)[0])
    return {one.name: one.default for one in family(bare.family).options(bare)}


def kinds_of(env_id: str) -> dict[str, str]:
    """The env of each kind of task of an env, by the kind; the env itself, by "", where it has no kinds."""
    chosen, known = options.split(env_id)[1], knows(env_id)
    if "task_kinds" not in known:
        return {"": env_id}
    kinds = chosen["task_kinds"].split("+") if "task_kinds" in chosen else known["task_kinds"]
    return {kind: with_options(env_id, {"task_kinds": kind}) for kind in kinds}
