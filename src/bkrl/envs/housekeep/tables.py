"""Housekeep's data: what people said about where things belong, fourteen floor plans, 5,000 episodes.

The tables lie in `data/` beside this file, with their licence (MIT) and `SOURCE.md`, which says where each comes from.
Nothing is read before it is asked for; a file that is not as it was shipped is refused.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json
from bkrl.core.registry import did_you_mean

DATA: Final = Path(__file__).with_name("data")
ANNOTATORS: Final = 10
RIGHT_VOTES: Final = 6
"""Of ten votes: so many positive ones make a place right, so many negative ones a place typical of untidy houses."""
SPLITS: Final = ("train", "val", "test")


def words(name: str) -> str:
    """A name as people write it: "top_cabinet" → "top cabinet"."""
    return name.replace("_", " ")


def table(name: str, folder: Path = DATA) -> dict[str, list[Any]]:
    """The columns of one table, as plain values; InputError where the file is missing or not as it was shipped."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"{name}.parquet"
    try:
        found: dict[str, list[Any]] = pq.read_table(pa.BufferReader(_read(path))).to_pydict()
    except pa.ArrowException as wrong:
        raise InputError(f"Housekeep's {path.name} cannot be read ({wrong}); install bkrl again.") from None
    return found


def _read(path: Path) -> bytes:
    known = read_json(path.with_name("sha256.json"), dict[str, str])
    try:
        data = path.read_bytes()
    except OSError:
        raise InputError(f"Housekeep's {path.name} is missing; install bkrl again.") from None
    if hashlib.sha256(data).hexdigest() != known.get(path.name):
        raise InputError(f"Housekeep's {path.name} is damaged: it is not as it was shipped; install bkrl again.")
    return data


class Votes(NamedTuple):
    """What ten annotators said of each pair of a kind of receptacle in a kind of room and a class of objects.

    Attributes:
        types: (T,) "room-receptacle" names: kitchen-fridge.
        objects: (O,) names of classes.
        splits: (O,) "train", "val" or "test".
        positive: (T, O) uint8, how many would put it there in a tidy house.
        negative: (T, O) uint8, how many expect to find it there in an untidy house.
        ranks: (T, O, 10) int8. r > 0: the r-th best place of this room; r < 0: the |r|-th likeliest one when it is
            untidy; 0: neither.
    """

    types: tuple[str, ...]
    objects: tuple[str, ...]
    splits: tuple[str, ...]
    positive: NDArray[np.uint8]
    negative: NDArray[np.uint8]
    ranks: NDArray[np.int8]


@cache
def votes() -> Votes:
    """The votes."""
    objects, receptacles, cells, ranks = (table(name) for name in ("objects", "receptacles", "votes", "ranks"))
    pairs = zip(receptacles["room"], receptacles["receptacle"], strict=True)
    types, shape = tuple(f"{room}-{name}" for room, name in pairs), (128, 269)
    return Votes(
        types,
        tuple(objects["object"]),
        tuple(objects["split"]),
        np.array(cells["positive"], np.uint8).reshape(shape),
        np.array(cells["negative"], np.uint8).reshape(shape),
        np.array([ranks[f"rank_{i}"] for i in range(ANNOTATORS)], np.int8).T.reshape(*shape, ANNOTATORS),
    )


class Scene(NamedTuple):
    """The receptacles of one house, R of them. Metres; x to the right, y up, z towards the viewer.

    Attributes:
        name: "Rs_int".
        split: of the scene.
        keys: (R,) names of the instances: "kitchen_0 fridge_40".
        kinds: (R,) names that votes are looked up by: "kitchen-fridge".
        shown: (R,) names that captions use: "kitchen fridge".
        categories: (R,) "fridge".
        dropped: (R,) bool, absent in the reduced layout.
        x, y, z: (R,) position: the middle of the receptacle.
        top: (R,) height on which objects rest; NaN where it is not known.
        base: (R, 2) x and z of the middle of the footprint.
        half: (R, 2) half its sides along x and z; NaN where it is not known.
        nav: (R, 2) x and z of the nearest corner of the floor that can be walked on.
    """

    name: str
    split: str
    keys: tuple[str, ...]
    kinds: tuple[str, ...]
    shown: tuple[str, ...]
    categories: tuple[str, ...]
    dropped: NDArray[np.bool_]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    z: NDArray[np.float64]
    top: NDArray[np.float64]
    base: NDArray[np.float64]
    half: NDArray[np.float64]
    nav: NDArray[np.float64]


@cache
def _scenes() -> dict[str, Scene]:
    columns = table("scenes")
    found = {}
    for name in dict.fromkeys(columns["scene"]):
        rows = [i for i, scene in enumerate(columns["scene"]) if scene == name]
        mine = {key: [column[i] for i in rows] for key, column in columns.items()}
        rooms, kinds = ([one or "" for one in mine[key]] for key in ("room", "room_type"))

        def numbers(*keys: str, mine: dict[str, list[Any]] = mine) -> NDArray[np.float64]:
            return np.array([mine[key] for key in keys], np.float64).T

        found[name] = Scene(
            name,
            mine["split"][0],
            tuple(f"{room} {own.removesuffix('_0')}".strip() for room, own in zip(rooms, mine["name"], strict=True)),
            tuple(f"{room}-{category}" for room, category in zip(kinds, mine["category"], strict=True)),
            tuple(words(f"{room} {own}".strip()) for room, own in zip(kinds, mine["category"], strict=True)),
            tuple(mine["category"]),
            np.array(mine["dropout"], bool),
            numbers("x")[:, 0],
            numbers("y")[:, 0],
            numbers("z")[:, 0],
            numbers("top_y")[:, 0],
            numbers("base_x", "base_z"),
            numbers("half_x", "half_z"),
            numbers("nav_x", "nav_z"),
        )
    return found


def scene_names() -> tuple[str, ...]:
    """The fourteen scenes."""
    return tuple(_scenes())


def scene(name: str) -> Scene:
    """One scene; UsageError where there is none of this name."""
    known = _scenes()
    if name not in known:
        raise UsageError(f"Housekeep has no scene '{name}'.{did_you_mean(name, known)} It has {', '.join(known)}.")
    return known[name]


class Floor(NamedTuple):
    """The floor of a scene: convex polygons, P of them, which share edges.

    Attributes:
        corners: (P, V, 2) x and z, those beyond a polygon's own repeat its last one.
        sides: (P,) number of corners.
        neighbours: (P, V) the polygon behind the edge from corner k to k + 1; -1: a wall.
        main: (P,) bool, on the island where agents live.
        height: y of the main island.
    """

    corners: NDArray[np.float64]
    sides: NDArray[np.int64]
    neighbours: NDArray[np.int64]
    main: NDArray[np.bool_]
    height: float


@cache
def floor(name: str) -> Floor:
    """The floor of a scene, roofs left out."""
    columns = table("navigation")
    rows = [i for i, scene in enumerate(columns["scene"]) if scene == name and columns["floor"][i]]
    number = {columns["polygon"][i]: p for p, i in enumerate(rows)} | {-1: -1}
    sides = np.array([len(columns["neighbours"][i]) for i in rows])
    corners = np.zeros((len(rows), int(sides.max()), 2))
    neighbours = np.full(corners.shape[:2], -1)
    for p, i in enumerate(rows):
        own = np.array(columns["vertices"][i]).reshape(-1, 2)
        corners[p] = own[-1]
        corners[p, : len(own)] = own
        neighbours[p, : len(own)] = [number.get(other, -1) for other in columns["neighbours"][i]]
    main = np.array([columns["main"][i] for i in rows], bool)
    return Floor(corners, sides, neighbours, main, float(columns["y"][rows[int(main.argmax())]]))


class Models(NamedTuple):
    """The M object models: (M,) each; sizes of the upright model in metres.

    Attributes:
        object: number of the class.
        long, short: sides of the footprint.
        height: of the model.
    """

    object: NDArray[np.int64]
    long: NDArray[np.float64]
    short: NDArray[np.float64]
    height: NDArray[np.float64]


@cache
def models() -> Models:
    """The object models of the episodes."""
    columns, number = table("models"), {name: i for i, name in enumerate(votes().objects)}
    sizes = (np.array(columns[key], np.float64) for key in ("size_long", "size_short", "height"))
    return Models(np.array([number[name] for name in columns["object"]]), *sizes)


@cache
def priors() -> dict[str, dict[str, dict[str, float]]]:
    """Prior → object class → room → how well they fit.

    `roberta_cm` and `glove_cm` know the votes of the train classes; only `zs_mlm` is a fair prior.
    """
    columns = table("priors")
    rooms = [key for key in columns if key not in ("prior", "object")]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for i, (prior, name) in enumerate(zip(columns["prior"], columns["object"], strict=True)):
        found.setdefault(prior, {})[name] = {room: columns[room][i] for room in rooms}
    return found


def tasks() -> list[tuple[str, ...]]:
    """The object classes of ELLM's four tasks in Rs_int, as recalled from the paper."""
    known: dict[str, Any] = read_json(DATA / "tasks.json")
    return [tuple(task["objects"]) for task in known["tasks"]]
