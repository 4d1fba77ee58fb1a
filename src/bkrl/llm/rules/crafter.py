"""What the rules annotator knows of Crafter: stay alive, climb the tech tree, go to what is useful with what one has.

Everything is read from captions. Weights are round numbers chosen by thought, not fitted to any task.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from bkrl.llm.protocol import Fault
from bkrl.llm.rules.segment import ReadSegment, unknown_caption

WORTH = {
    "sapling": 0.3,
    "wood": 0.5,
    "stone": 0.4,
    "coal": 1.0,
    "iron": 1.5,
    "diamond": 4.0,
    "wood pickaxe": 3.0,
    "wood sword": 2.0,
    "stone pickaxe": 4.0,
    "stone sword": 3.0,
    "iron pickaxe": 6.0,
    "iron sword": 5.0,
}
"""Value of owning one of each; more than `ENOUGH` of a raw material adds nothing."""
ENOUGH = 5
PLACED = {"place_table": 3.0, "place_furnace": 3.5, "place_plant": 1.0, "place_stone": 0.5}
"""Value of having placed one; the materials it took are lost from the inventory."""
ACTING = ("do", "collect", "eat", "drink", "attack")
MOVES = {"move_left": "left", "move_right": "right", "move_up": "up", "move_down": "down"}
VITALS = ("health", "food", "drink", "energy")
FAR = 8

_FACE = re.compile(r"You face (\w+), towards (?:an? )?([^.]+)\.")
_SEE = re.compile(r"You see ([^.]+)\.")
_SEEN = re.compile(r"(?:an? )?(.+?) ((?:\d+ steps? \w+)(?: and \d+ steps? \w+)?)")
_VITAL = re.compile(r"\b(health|food|drink|energy) (\d)/9", re.IGNORECASE)
_CARRY = re.compile(r"You carry ([^.]+)\.")


@dataclass(frozen=True)
class CrafterState:
    """One caption, understood. `distance`: steps to the nearest of each kind of thing in view."""

    facing: str = ""
    faced: str = ""
    distance: dict[str, int] = field(default_factory=dict)
    vitals: dict[str, int] = field(default_factory=dict)
    owns: dict[str, int] = field(default_factory=dict)
    asleep: bool = False
    dead: bool = False
    night: bool = False

    def has(self, item: str) -> int:
        return self.owns.get(item, 0)

    @property
    def progress(self) -> float:
        """Worth of what it owns."""
        return sum(WORTH.get(item, 0.0) * min(count, ENOUGH) for item, count in self.owns.items())

    @property
    def comfort(self) -> float:
        """How far it is from dying: 0 when nothing is low."""
        if self.dead:
            return -10.0
        low = sum(max(0, 6 - self.vitals.get(name, 9)) for name in VITALS)
        return -0.3 * low - 0.5 * max(0, 4 - self.vitals.get("health", 9))


@lru_cache(maxsize=65_536)
def understand(caption: str) -> CrafterState:
    """Read a caption; sentences of another form are passed over. Raises Fault when there is no other."""
    face, see, carry = _FACE.search(caption), _SEE.search(caption), _CARRY.search(caption)
    if not (face or see or carry):
        raise unknown_caption(caption)
    distance: dict[str, int] = {}
    for phrase in see[1].split(", ") if see else []:
        if found := _SEEN.fullmatch(phrase):
            steps = sum(int(count) for count in re.findall(r"\d+", found[2]))
            distance[found[1]] = min(steps, distance.get(found[1], steps))
    owns = (
        {item: int(count) for count, item in re.findall(r"(\d+) ([a-z ]+?)(?=,| and \d|$)", carry[1])} if carry else {}
    )
    return CrafterState(
        face[1] if face else "",
        face[2] if face else "",
        distance,
        {name.lower(): int(amount) for name, amount in _VITAL.findall(caption)},
        owns,
        "You are asleep" in caption,
        "You are dead" in caption,
        "It is night" in caption,
    )


def needs(state: CrafterState) -> dict[str, float]:
    """How useful it would be to reach each kind of thing, with what the agent has now."""
    wood, stone = state.has("wood"), state.has("stone")
    pickaxes = [state.has(f"{material} pickaxe") > 0 for material in ("wood", "stone", "iron")]
    useful = {
        "tree": 1.0 if wood < ENOUGH else 0.2,
        "water": 1.0 if state.vitals.get("drink", 9) < 6 else 0.4,
        "cow": 1.0 if state.vitals.get("food", 9) < 6 else 0.4,
        "ripe plant": 1.0 if state.vitals.get("food", 9) < 6 else 0.6,
    }
    if (wood and not all(state.has(f"wood {tool}") for tool in ("pickaxe", "sword"))) or (
        wood and stone and not all(state.has(f"stone {tool}") for tool in ("pickaxe", "sword"))
    ):
        useful["crafting table"] = 1.1
    if pickaxes[0]:
        useful |= {"stone": 0.9 if stone < ENOUGH else 0.3, "coal": 1.1 if state.has("coal") < 2 else 0.3}
    if pickaxes[1]:
        useful["iron"] = 1.3 if state.has("iron") < 2 else 0.4
    if pickaxes[2]:
        useful["diamond"] = 1.6
    if wood and state.has("coal") and state.has("iron"):
        useful["furnace"] = useful["crafting table"] = 1.3
    return useful


def closeness(state: CrafterState) -> tuple[float, str]:
    """0 … about 2: how near the agent is to the most useful thing in view, best when it faces it; and what that is."""
    best, thing = 0.0, ""
    for name, weight in needs(state).items():
        if name in state.distance:
            near = weight * (max(0.0, 1.0 - (state.distance[name] - 1) / FAR) + (0.3 if state.faced == name else 0.0))
            if near > best:
                best, thing = near, name
    return best, thing


def danger(state: CrafterState) -> float:
    """How threatening what is near is."""
    threat = 0.6 if state.distance.get("zombie", 9) <= 2 else 0.0
    threat += 0.4 if state.distance.get("skeleton", 9) <= 4 else 0.0
    threat += 0.4 if state.distance.get("arrow", 9) <= 2 else 0.0
    return threat + (0.6 if state.faced == "lava" else 0.0)


def judge(segment: ReadSegment) -> tuple[float, str]:
    """Score of a segment, and what the agent does in it."""
    states = [understand(caption) for caption in segment.captions]
    start, end = states[0], states[-1]
    waste, effect, reasons = 0.0, 0.0, []
    for before, action, after in zip(states, segment.actions, states[1:]):
        cost, gain, reason = _outcome(before, action, after)
        waste, effect = waste + cost, effect + gain
        if reason and reason not in reasons:
            reasons.append(reason)
    near_start, near_end = closeness(start)[0], closeness(end)[0]
    score = end.progress - start.progress + effect + 1.5 * (near_end - near_start) + 0.7 * near_end
    score += 0.15 * end.progress + (end.comfort - start.comfort) + 0.3 * end.comfort - danger(end) - 0.4 * waste
    if end.dead:
        reasons.insert(0, "dies")
    elif near_end > near_start + 0.1:
        reasons.append(f"gets closer to {closeness(end)[1]}")
    return score, " and ".join(reasons[:2]) or "changes little"


def _outcome(before: CrafterState, action: str, after: CrafterState) -> tuple[float, float, str]:
    """Waste (in actions), gain beyond the inventory's worth, and the reason in words."""
    if before.asleep:
        return (0.2, 0.0, "sleeps on") if before.vitals.get("energy", 9) > 7 else (0.0, 0.1, "sleeps")
    changed = before.owns != after.owns
    if action in ACTING:
        gained = [item for item in after.owns if after.has(item) > before.has(item)]
        fed = [name for name in ("food", "drink") if after.vitals.get(name, 9) > before.vitals.get(name, 9)]
        if gained:
            return 0.0, _collected(gained[0], before), f"collects {gained[0]}"
        if fed:
            return (0.0, 2.2, "eats") if fed[0] == "food" else (0.0, 1.2, "drinks")
        if before.faced in ("zombie", "skeleton"):
            return 0.0, 0.8, f"fights the {before.faced}"
        if before.faced in ("cow", "ripe plant"):
            return 0.0, 0.4, f"acts on the {before.faced}"
        return (0.4, 0.0, "") if before.faced == "grass" else (1.0, 0.0, f"acts on {before.faced} to no effect")
    if action.startswith("place_"):
        return (0.0, PLACED.get(action, 0.5), f"places a {action[6:]}") if changed else (1.0, 0.0, "places nothing")
    if action.startswith("make_"):
        return (0.0, 1.0, f"makes a {action[5:].replace('_', ' ')}") if changed else (1.0, 0.0, "makes nothing")
    if action in MOVES:
        stuck = before.facing == after.facing == MOVES[action] and before.distance == after.distance
        blocked = stuck and before.faced not in ("grass", "sand", "path")
        return (1.0, 0.0, f"walks against {before.faced}") if blocked else (0.0, 0.05, "")
    if action == "sleep":
        tired = before.vitals.get("energy", 9) < 4 or before.asleep
        return (0.0, 0.3, "sleeps") if tired else (0.8, 0.0, "sleeps without need")
    return 0.5, 0.0, "waits"


def _collected(item: str, before: CrafterState) -> float:
    """What collecting is worth beyond owning: more than being near the source, which may be gone after it."""
    if item == "sapling":
        return 0.8
    return 2.5 if before.has(item) < ENOUGH else 0.5


def goals(segment: ReadSegment) -> list[str]:
    """What is worth doing from the end of the segment, most useful first."""
    state = understand(segment.captions[-1])
    wanted: list[tuple[float, str]] = []
    for name, weight in needs(state).items():
        if name in state.distance and name in _DO:
            wanted.append((weight * (1.3 - state.distance[name] / FAR), _DO[name]))
    if "zombie" in state.distance:
        wanted.append((0.8 if state.has("wood sword") or state.has("stone sword") else 0.5, "defeat the zombie"))
    if "skeleton" in state.distance:
        wanted.append((0.5, "defeat the skeleton"))
    for item, ingredients, near in _MAKE:
        ready = all(state.has(need) >= count for need, count in ingredients.items())
        if ready and not state.has(item) and all(place in state.distance for place in near):
            wanted.append((1.5, f"make a {item}"))
    if state.has("wood") >= 2 and "crafting table" not in state.distance:
        wanted.append((1.2, "place a crafting table"))
    if state.has("stone") >= 4 and "crafting table" in state.distance and "furnace" not in state.distance:
        wanted.append((1.2, "place a furnace"))
    if state.has("sapling"):
        wanted.append((0.7, "place a plant"))
    if state.has("stone") and not state.has("sapling"):
        wanted.append((0.3, "place a stone"))
    if state.vitals.get("energy", 9) < 4:
        wanted.append((1.4, "sleep"))
    if "grass" in state.distance and not state.has("sapling"):
        wanted.append((0.25, "collect a sapling from grass"))
    ordered = [goal for _, goal in sorted(wanted, key=lambda item: (-item[0], item[1]))]
    return ordered[:8] or ["explore the world", "find trees"]


_DO = {
    "tree": "collect wood from a tree",
    "water": "drink water",
    "cow": "eat a cow",
    "ripe plant": "eat the ripe plant",
    "stone": "collect stone",
    "coal": "collect coal",
    "iron": "collect iron",
    "diamond": "collect a diamond",
}
_MAKE: tuple[tuple[str, dict[str, int], tuple[str, ...]], ...] = (
    ("wood pickaxe", {"wood": 1}, ("crafting table",)),
    ("wood sword", {"wood": 1}, ("crafting table",)),
    ("stone pickaxe", {"wood": 1, "stone": 1}, ("crafting table",)),
    ("stone sword", {"wood": 1, "stone": 1}, ("crafting table",)),
    ("iron pickaxe", {"wood": 1, "coal": 1, "iron": 1}, ("crafting table", "furnace")),
    ("iron sword", {"wood": 1, "coal": 1, "iron": 1}, ("crafting table", "furnace")),
)


def programs(prompt: str) -> list[str]:
    """Potentials from simple to rich, with the observation's layout as the prompt describes it. Raises Fault if it
    does not.
    """
    from bkrl.llm.rules.programs import crafter_programs

    return crafter_programs(layout_of(prompt))


def layout_of(prompt: str) -> dict[str, Any]:
    """`columns`, `rows`, `cells`, `facing`, `faced`, `items` and `actions` as the prompt numbers them. Raises Fault if
    it does not.
    """
    shape = re.search(r"view of (\d+) columns and (\d+) rows.*?index (\d+)\)", prompt, re.DOTALL)
    cells = re.search(r"^Value of a cell: (.+)\.$", prompt, re.MULTILINE)
    facing = re.search(r"^Index (\d+): where the agent faces.*?is then ([\d, ]+)\.$", prompt, re.MULTILINE)
    items = re.search(r"^What the agent has.*?by index: (.+)\.$", prompt, re.MULTILINE)
    names = re.search(r"^Actions are numbers: (.+)\.$", prompt, re.MULTILINE)
    if not (shape and cells and facing and items and names):
        raise Fault(
            "stop", "unknown prompt", "The rules annotator does not find the observation's layout in this prompt."
        )
    return {
        "columns": int(shape[1]),
        "rows": int(shape[2]),
        "cells": _numbered(cells[1]),
        "facing": int(facing[1]),
        "faced": [int(number) for number in facing[2].split(", ")],
        "items": _numbered(items[1]),
        "actions": _numbered(names[1]),
    }


def _numbered(text: str) -> dict[str, int]:
    return {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", text)}


_TOOL_FOR = {"stone": "wood_pickaxe", "coal": "wood_pickaxe", "iron": "stone_pickaxe", "diamond": "iron_pickaxe"}
_AT_SIGHT = {
    "cow": "eat cow",
    "zombie": "attack zombie",
    "skeleton": "attack skeleton",
    "plant": "eat plant",
    "water": "drink water",
    "tree": "chop tree",
    "grass": "chop grass",
}


def deeds(text: str) -> list[str]:
    """What to do now, given ELLM's text observation, which tells neither counts nor distances.

    Unlike the rules of the env it cannot know whether the stone held is enough for a furnace: it tries.
    """
    parts = {name: re.search(rf"{name} ([^.]*)\.", text, re.IGNORECASE) for name in ("see", "inventory", "feel")}
    seen, held, feels = (
        set(re.split(r",? and |, ", part[1].strip().removeprefix("and "))) if part else set() for part in parts.values()
    )
    found = [deed for thing, deed in _AT_SIGHT.items() if thing in seen]
    found += [f"mine {thing}" for thing, tool in _TOOL_FOR.items() if thing in seen and tool in held]
    found += ["sleep"] if "sleepy" in feels else []
    if "wood" in held and "crafting table" not in seen:
        found.append("place crafting table")
    if "stone" in held and "furnace" not in seen:
        found.append("place furnace")
    found += ["place plant"] if "plant" in held else []
    if "crafting table" in seen and "wood" in held:
        kinds = ["wood"] + ["stone"] * ("stone" in held) + ["iron"] * ({"furnace"} <= seen and {"coal", "iron"} <= held)
        tools = (f"{kind}_{tool}" for kind in kinds for tool in ("pickaxe", "sword"))
        found += [f"make {tool.replace('_', ' ')}" for tool in tools if tool not in held]
    return found
