"""What the rules annotator knows of BabyAI: approach and face things, look around, do not waste actions.

Everything is read from captions. Weights are round numbers chosen by thought, not fitted to any task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from bkrl.core.errors import InputError
from bkrl.envs.babyai import grammar
from bkrl.envs.babyai.constants import ACTION_NAMES, ACTION_SETS, DONE
from bkrl.llm.rules.segment import ReadSegment, unknown_caption

FAR = 14
"""Actions to face the farthest visible thing, and a little more."""
FACING = 0.3
"""Share of the closeness that is only given for standing in front of a thing and facing it."""
PORTABLE = ("key", "ball", "box")
NOTHING = ("", "You see nothing.")
PASSABLE = ("floor", "goal")
_PLAIN = {name: ACTION_NAMES[min(n, DONE)] for names in ACTION_SETS.values() for n, name in enumerate(names)}
"""Other names of actions → the plain ones."""

_WHERE = r"(?:(\d+) steps? (left|right))?(?: and )?(?:(\d+) steps? forward)?"
_WALL = re.compile(rf"You see a wall {_WHERE}")
_THING = re.compile(rf"You see (?:an? )?(?:(open|closed|locked) )?(?:(\w+) )?(\w+?)(?: tile)? {_WHERE}")
_CARRY = re.compile(r"You carry an? (?:(\w+) )?(\w+)")


@dataclass(frozen=True)
class SeenThing:
    """An object in view, `right` and `ahead` squares from the agent (left is negative)."""

    kind: str
    colour: str
    state: str
    right: int
    ahead: int

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}".strip()

    @property
    def cost(self) -> int:
        """Least number of actions until the agent faces it with one step between them, in an open room."""
        turns = 1 if self.right else 0
        return abs(self.right) + self.ahead - 1 + turns


@dataclass(frozen=True)
class View:
    """One caption, understood."""

    things: tuple[SeenThing, ...]
    walls: tuple[tuple[str, int], ...]
    carries: str

    @property
    def front(self) -> str:
        """What is on the square ahead: "wall", a thing's kind (an open door is "", one can walk in), or ""."""
        if ("forward", 1) in self.walls:
            return "wall"
        thing = self.faced
        return "" if thing is None or thing.state == "open" or thing.kind in PASSABLE else thing.kind

    @property
    def faced(self) -> SeenThing | None:
        return next((thing for thing in self.things if thing.right == 0 and thing.ahead == 1), None)

    def nearest(self, step: MissionStep | None = None) -> SeenThing | None:
        """The thing that takes the fewest actions to face, floor tiles and lava aside; of those that a step needs."""
        worth = [thing for thing in self.things if thing.kind not in ("floor", "lava")]
        worth = [thing for thing in worth if step is None or step.means(thing.kind, thing.colour)]
        return min(worth, key=lambda thing: thing.cost, default=None)

    def closeness(self, step: MissionStep | None = None) -> float:
        """0: nothing (that the step needs) in view … 1: facing it."""
        thing = self.nearest(step)
        if thing is None:
            return 0.0
        return (1.0 - FACING) * (1.0 - thing.cost / FAR) + (FACING if thing.cost == 0 else 0.0)


@dataclass(frozen=True)
class MissionStep:
    """One thing to do for a mission: "face", "take" or "open" a thing, or put the last one "beside" it."""

    what: str
    thing: grammar.Thing

    def means(self, kind: str, colour: str) -> bool:
        """Whether an object is such a thing."""
        return kind == self.thing.noun or self.thing.noun == "object" if self.thing.color in ("", colour) else False

    @property
    def goal(self) -> str:
        """In words."""
        name = f"{self.thing.color} {self.thing.noun}".strip()
        return f"{_VERBS[self.what]} the {name}"


_VERBS = {"face": "go to", "take": "pick up", "open": "open", "beside": "put it next to"}


@lru_cache(maxsize=4096)
def steps_of(mission: str) -> tuple[MissionStep, ...]:
    """What a mission asks for, in order; () where it cannot be read."""
    try:
        read = grammar.read_mission(mission)
    except InputError:
        return ()
    tasks = (*read.others, *read.tasks) if read.order == "after" else (*read.tasks, *read.others)
    steps: list[MissionStep] = []
    for task in tasks:
        first = {"go to": "face", "pick up": "take", "open": "open", "put": "take"}[task.verb]
        steps.append(MissionStep(first, task.thing))
        if task.beside is not None:
            steps.append(MissionStep("beside", task.beside))
    return tuple(steps)


def next_step(view: View, steps: tuple[MissionStep, ...]) -> MissionStep | None:
    """The step that a view leaves to do: the one after what is carried, as far as one view tells."""
    colour, _, kind = view.carries.rpartition(" ")
    for step, following in pairwise(steps):
        if step.what == "take" and view.carries and step.means(kind, colour):
            return following
    if steps and steps[0].what == "open":
        return _key_of(view, steps[0]) or steps[0]
    return steps[0] if steps else None


def _key_of(view: View, step: MissionStep) -> MissionStep | None:
    """Taking the key first, where a door to be opened is seen locked, or is not in view and a key of its colour is."""
    door = view.nearest(step)
    colour = step.thing.color if door is None else door.colour
    if view.carries == f"{colour} key" or (door is not None and door.state != "locked"):
        return None
    key = MissionStep("take", grammar.Thing("the", colour, "key"))
    return key if door is not None or (colour and view.nearest(key) is not None) else None


@lru_cache(maxsize=65_536)
def understand(caption: str) -> View:
    """Read a caption; sentences of another form are passed over. Raises Fault when there is no other."""
    things, walls, carries = [], [], ""
    for sentence in caption.rstrip(".").split(". "):
        if found := _CARRY.fullmatch(sentence):
            carries = f"{found[1]} {found[2]}" if found[1] else found[2]
        elif found := _WALL.fullmatch(sentence):
            aside, side, ahead = found.groups()
            walls.append((side, int(aside)) if side else ("forward", int(ahead or 0)))
        elif found := _THING.fullmatch(sentence):
            state, colour, kind, aside, side, ahead = found.groups()
            right = int(aside or 0) * (1 if side == "right" else -1)
            things.append(SeenThing(kind, colour or "", state or "", right, int(ahead or 0)))
    if not (things or walls or carries) and caption not in NOTHING:
        raise unknown_caption(caption)
    return View(tuple(things), tuple(walls), carries)


def judge(segment: ReadSegment) -> tuple[float, str]:
    """Score of a segment, and what the agent does in it."""
    views = [understand(caption) for caption in segment.captions]
    actions = tuple(_PLAIN.get(name, name) for name in segment.actions)
    waste, reasons = _waste(views, actions)
    start, end = views[0], views[-1]
    steps = steps_of(segment.mission)
    wanted = next_step(end, steps)
    nearest = end.nearest(wanted)
    known = {thing.name for thing in start.things}
    seen = (thing for view in views for thing in view.things)
    found = {one.name for one in seen if not steps or any(step.means(one.kind, one.colour) for step in steps)} - known
    moved = sum(action == "forward" and not view.front for view, action in zip(views, actions))
    gain = end.closeness(wanted) - start.closeness(next_step(start, steps))
    opened = sum(_opens(view, action) for view, action in zip(views, actions))
    # A thing in hand is no longer in view; without this, taking it would look like turning away from it.
    taken = sum(_taken(before, after, steps) for before, after in pairwise(views))
    score = 2.0 * gain + end.closeness(wanted) + 0.3 * min(len(found), 3) + 0.1 * moved
    score += 3.0 * opened + 2.0 * taken - 0.6 * waste
    if nearest is not None and nearest.cost == 0:
        reasons.insert(0, f"ends facing the {nearest.name}")
    elif gain > 0.05 and nearest is not None:
        reasons.insert(0, f"gets closer to the {nearest.name}")
    elif gain < -0.05:
        reasons.insert(0, "turns away from what it saw")
    if found:
        reasons.append("sees something new")
    return score, " and ".join(reasons[:2]) or "changes little"


def _taken(before: View, after: View, steps: tuple[MissionStep, ...]) -> int:
    """1 for a thing that was picked up; with a mission, -1 for one that is not to be."""
    if before.carries or not after.carries:
        return 0
    colour, _, kind = after.carries.rpartition(" ")
    asked = (*steps, next_step(before, steps))
    return 1 if not steps or any(one and one.what == "take" and one.means(kind, colour) for one in asked) else -1


def goals(segment: ReadSegment) -> list[str]:
    """What is worth doing from the end of the segment, nearest first; with a mission, what that needs next."""
    view = understand(segment.captions[-1])
    step = next_step(view, steps_of(segment.mission))
    if step is not None:
        near = ["go to" + step.goal.removeprefix(_VERBS[step.what])] if step.what != "face" else []
        return [step.goal.replace(" it ", f" the {view.carries} ") if view.carries else step.goal, *near]
    things: dict[str, SeenThing] = {}
    for thing in sorted(view.things, key=lambda thing: thing.cost):
        if thing.kind not in ("floor", "lava"):
            things.setdefault(thing.name, thing)
    suggested: list[str] = []
    for name, thing in list(things.items())[:4]:
        if thing.kind == "door" and thing.state != "open":
            unlocks = segment.done is not None and thing.state == "locked" and view.carries.endswith(" key")
            suggested.append(f"unlock the {name}" if unlocks else f"open the {name}")
        suggested.append(f"go to the {name}")
        if thing.kind in PORTABLE and not view.carries:
            suggested.append(f"pick up the {name}")
        elif view.carries and thing.kind in PORTABLE:
            suggested.append(f"put the {view.carries} next to the {name}")
    return suggested[:8] or ["look around for things", "explore the room"]


def programs(prompt: str) -> list[str]:
    """Potentials from simple to rich. A view's layout is fixed; the words of missions are numbered in the prompt."""
    from bkrl.llm.rules.programs import BABYAI, of_missions

    found = re.search(r"^Words of missions are numbers: (.*)\.$", prompt, re.MULTILINE)
    if found is None:
        return list(BABYAI)
    words = {word: int(number) for number, word in re.findall(r'(\d+) "(\w+)"', found[1])}
    return [of_missions(program, words) for program in BABYAI]


def _waste(views: list[View], actions: tuple[str, ...]) -> tuple[float, list[str]]:
    """How much of the segment was wasted, in actions, and the reasons in words."""
    wasted, reasons = 0.0, []
    for index, (view, action) in enumerate(zip(views, actions)):
        cost, reason = _cost(view, action)
        following = actions[index + 1] if index + 1 < len(actions) else ""
        if {action, following} == {"left", "right"}:
            cost, reason = cost + 1.0, "turns back and forth"
        if actions[index : index + 3] in (("left",) * 3, ("right",) * 3):
            cost, reason = cost + 0.5, "turns round on the spot"
        wasted += cost
        if reason and reason not in reasons:
            reasons.append(reason)
    return wasted, reasons


def _cost(view: View, action: str) -> tuple[float, str]:
    front = view.front
    if action == "done":
        return 1.0, "does nothing"
    if action == "forward" and front:
        return (3.0, "walks into lava") if front == "lava" else (1.0, f"walks against a {front}")
    if action == "pickup":
        if front in PORTABLE and not view.carries:
            return 0.25, f"picks up a {front}"
        return 1.0, "tries to pick up nothing"
    if action == "drop":
        return (
            (0.5, "drops what it carries") if view.carries and not front and not view.faced else (1.0, "drops nothing")
        )
    if action == "toggle" and not _opens(view, action):
        return (0.5, "opens a box") if front == "box" else (1.0, "toggles nothing useful")
    return 0.0, ""


def _opens(view: View, action: str) -> bool:
    thing = view.faced
    if action != "toggle" or thing is None or thing.kind != "door":
        return False
    return thing.state == "closed" or (thing.state == "locked" and view.carries == f"{thing.colour} key")
