"""What can be asked of a Housekeep env when it is made, and the episodes that come of it."""

from typing import Any, Final, NamedTuple

from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag, Setting
from bkrl.core.registry import did_you_mean
from bkrl.envs.housekeep.state import Rules
from bkrl.envs.housekeep.tables import SPLITS, scene
from bkrl.envs.options import unknown
from bkrl.envs.vector import checked_steps

ORIGINAL: Final = "Housekeep-Symbolic-Original"
TASKS: Final = tuple(f"Housekeep-Symbolic-Task{i}" for i in range(1, 5))
LENGTH: Final = 1000
ANY: Final = -1
REWARDS: Final = {
    "env": (2.5, -0.25, -0.2, 0.0),
    "clipped": (1.0, -0.25, -0.2, 0.0),
    "sparse": (0.0, 0.0, 0.0, 1.0),
    "none": (0.0, 0.0, 0.0, 0.0),
}
"""A right first pick or place, a wrong one, one that fails, and all being tidy."""
CONTROLS: Final = ("low", "high")
THINGS: Final = ("misplaced", "all")
PICTURES: Final = ("none", "raster")


class Chosen(NamedTuple):
    """The options of an env, checked."""

    scene: str
    split: str
    episode: int
    file: str
    control: str
    things: str
    reward: str
    picture: str
    length: int

    def rules(self) -> Rules:
        """What the engine needs of them."""
        return Rules(self.control == "high", self.picture == "raster", self.length, *REWARDS[self.reward])


def settings(env_id: str) -> list[Setting]:
    own = [
        Setting(("scene",), str, Flag("house of the episodes; without it, all of the split"), ""),
        Setting(("split",), str, Flag("train, val or test scenes"), "train"),
        Setting(("episode",), int, Flag("number of the one episode of the scene that is played; -1: any"), ANY),
        Setting(("file",), str, Flag("episodes of `bkrl data make-episodes` instead"), ""),
    ]
    both = [
        Setting(("control",), str, Flag("low (move, turn, tilt, grab) or high (goto, pick, place)"), "low"),
        Setting(("things",), str, Flag("misplaced, or all: also those that lie right"), "misplaced"),
        Setting(("reward",), str, Flag("env, clipped (1 for 2.5), sparse (1 when all is tidy) or none"), "env"),
        Setting(("picture",), str, Flag("none, or raster: a map of what was seen from where the agent stands"), "none"),
        Setting(("length",), int, Flag("low-level steps after which an episode is truncated"), LENGTH),
    ]
    return [*(own if env_id == ORIGINAL else []), *both]


def chosen(env_id: str, **options: Any) -> Chosen:
    """The options as they are meant; UsageError for what cannot be."""
    values = {one.name: one.default for one in settings(env_id)}
    if others := sorted(options.keys() - values.keys()):
        raise unknown(env_id, others[0], values)
    values |= options
    words = {"control": CONTROLS, "things": THINGS, "reward": tuple(REWARDS), "picture": PICTURES, "split": SPLITS}
    for name, known in words.items():
        if (value := values.setdefault(name, known[0])) not in known:
            near = did_you_mean(str(value), known)
            raise UsageError(f"{env_id} has no {name} '{value}'.{near} Use {', '.join(known)}.")
    values["length"] = checked_steps(f"The length of {env_id}", values["length"])
    if env_id != ORIGINAL:
        values |= {"scene": "Rs_int", "split": "train", "episode": ANY, "file": ""}
        return Chosen(**{name: values[name] for name in Chosen._fields})
    found = Chosen(**{name: values[name] for name in Chosen._fields})
    if found.file and options.get("split"):
        raise UsageError(f"All episodes of {found.file} are played, of any split; leave split out.")
    if found.scene:
        scene(found.scene)
        if not found.file:
            found = found._replace(split=_split_of(found.scene, options.get("split")))
    elif found.episode != ANY and not found.file:
        raise UsageError("An episode is one of a scene: give scene=NAME too.")
    elif found.control == "high":
        raise UsageError(
            "High-level control names the receptacles of one house: give scene=NAME, such as scene=Pomaria_2_int."
        )
    return found


def _split_of(name: str, split: Any) -> str:
    from bkrl.envs.housekeep.episodes import scenes_with_episodes

    if name not in scenes_with_episodes():
        others = ", ".join(scenes_with_episodes())
        raise UsageError(
            f"The source does not hold the episodes of {name}. It holds those of {others}; `bkrl data make-episodes` "
            "makes others, and Housekeep-Symbolic-Task1 to Task4 play in Rs_int."
        )
    own = scene(name).split
    if split not in (None, own):
        raise UsageError(f"{name} is of the split '{own}', not '{split}'; leave split out.")
    return own
