"""The programs that the rules annotator writes for Housekeep: three potentials of how tidy what is known is.

They hold a table of what belongs where (`belongings`, or another one), in the numbers that the prompt gives. They run
only in the sandbox.
"""

import re
from collections.abc import Callable, Sequence

from bkrl.llm.protocol import Fault
from bkrl.llm.rules.belongings import belongs

_HEAD = '''
# For each kind of receptacle: 45 classes of things in a number, whose bit i is 1 where the i-th is put away there
BELONGS = {belongs}
# Kind of each receptacle of each house, -1 for what holds nothing
PLACES = {places}


def table():
    """right[1 + class, 1 + kind of receptacle]: whether things belong there; row and column 0 stand for nothing."""
    right = np.zeros(({classes} + 1, {kinds} + 1), dtype=bool)
    for spot in range({kinds}):
        for thing in range({classes}):
            right[thing + 1, spot + 1] = BELONGS[spot][thing // 45] >> thing % 45 & 1
    return right


def spots():
    """spot[1 + house, 1 + receptacle]: 1 + its kind, 0 for none."""
    spot = np.zeros((len(PLACES) + 1, {receptacles} + 1), dtype=int)
    for house in range(len(PLACES)):
        for number in range(len(PLACES[house])):
            spot[house + 1, number + 1] = PLACES[house][number] + 1
    return spot


def read(now):
    """Of B observations: classes (B, slots), status, spots where things lie, and what each spot is to each thing."""
    slots = now[:, {things}:{end}].reshape(len(now), {slots}, {width}).astype(int)
    kind = np.minimum(slots[:, :, 0] + 256 * slots[:, :, 1], {classes})
    house = np.minimum(now[:, {scene}].astype(int), len(PLACES))
    on = np.minimum(slots[:, :, 3], {receptacles})
    place = spots()[house[:, None], on]
    lies = (kind > 0) & (place > 0) & (slots[:, :, 2] != {hand})
    right = lies & table()[kind, place]
    held = np.where(slots[:, :, 2] == {hand}, kind, 0).max(axis=1)
    return house, kind, slots[:, :, 2], lies, right, held
'''

_SEES = '''

def sees(now, house, held):
    """Whether a place where the held thing belongs is in view; whether it was seen at all."""
    status = now[:, {end}:{end} + {receptacles}]
    fits = table()[held[:, None], spots()[house][:, 1:]] & (held > 0)[:, None]
    return (fits & (status == {view})).any(axis=1), (fits & (status > 0)).any(axis=1)
'''

_FIRST = """

def potential(observations, actions, valid):
    house, kind, status, lies, right, held = read(observations[:, -1])
    parts = {{"right": 0.2 * right.sum(axis=1), "held": 0.1 * (held > 0)}}
    return sum(parts.values()), parts
"""

_SECOND = """

def potential(observations, actions, valid):
    house, kind, status, lies, right, held = read(observations[:, -1])
    parts = {{
        "right": 0.2 * right.sum(axis=1),
        "held": 0.1 * (held > 0),
        "found": 0.03 * (status > 0).sum(axis=1),
    }}
    return sum(parts.values()), parts
"""

_THIRD = """

def potential(observations, actions, valid):
    now = observations[:, -1]
    house, kind, status, lies, right, held = read(now)
    in_view, known = sees(now, house, held)
    wrong_in_view = (lies & ~right & (status == {view})).any(axis=1)
    parts = {{
        "right": 0.2 * right.sum(axis=1),
        "held": 0.1 * (held > 0),
        "found": 0.03 * (status > 0).sum(axis=1),
        "goal": 0.04 * in_view + 0.02 * known,
        "near": 0.03 * (wrong_in_view & (held == 0)),
    }}
    return sum(parts.values()), parts
"""


def programs(prompt: str, belongs: Callable[[str, str], bool] = belongs) -> list[str]:
    """Potentials from simple to rich, with the names and numbers of the layout that the prompt gives; `belongs` says
    whether a thing belongs in a place. Raises Fault if the prompt gives no layout.
    """
    classes, kinds = (_numbered(prompt, what) for what in ("Classes of things", "Kinds of receptacles"))
    houses = re.findall(r"^Kinds of the receptacles of house \d+, [^:]*: ([-\d ]+)\.$", prompt, re.MULTILINE)
    scene = re.search(r"^Index (\d+): 1 \+ the number of the house", prompt, re.MULTILINE)
    slots = re.search(r"^Index (\d+) to (\d+): (\d+) slots of things, (\d+) numbers each", prompt, re.MULTILINE)
    status = re.search(r"(\d+) in view, (\d+) in the hand", prompt)
    shown = re.search(r"^Index (\d+) to (\d+): the receptacles of the house", prompt, re.MULTILINE)
    if not (classes and kinds and houses and scene and slots and status and shown):
        raise Fault(
            "stop", "unknown prompt", "The rules annotator does not find the observation's layout in this prompt."
        )
    numbers = {
        "belongs": _belongs(classes, kinds, belongs),
        "places": "[\n" + "".join(f"    [{', '.join(house.split())}],\n" for house in houses) + "]",
        "classes": len(classes),
        "kinds": len(kinds),
        "receptacles": int(shown[2]) - int(shown[1]) + 1,
        "things": int(slots[1]),
        "end": int(slots[2]) + 1,
        "slots": int(slots[3]),
        "width": int(slots[4]),
        "scene": int(scene[1]),
        "view": int(status[1]),
        "hand": int(status[2]),
    }
    head, sees, first, second, third = (text.format(**numbers) for text in (_HEAD, _SEES, _FIRST, _SECOND, _THIRD))
    return [
        '"""Things lie where they belong; holding one is half the way."""\n' + head + first,
        '"""Things are found, and lie where they belong."""\n' + head + second,
        '"""Things are found and lie where they belong; what is to be done next is in view."""\n' + head + sees + third,
    ]


def _belongs(classes: Sequence[str], kinds: Sequence[str], belongs: Callable[[str, str], bool]) -> str:
    """Numbers for each kind of receptacle, as source: of 45 bits, since the sandbox takes no integers beyond 2**53. The
    votes as lists of numbers of classes would be too long for a program.
    """
    text = ""
    for place in kinds:
        bits = [belongs(thing, place) << number % 45 for number, thing in enumerate(classes)]
        text += f"    [{', '.join(str(sum(bits[first : first + 45])) for first in range(0, len(bits), 45))}],\n"
    return f"[\n{text}]"


def _numbered(prompt: str, what: str) -> list[str]:
    """The names of a line "WHAT: 0 this, 1 that."."""
    line = re.search(rf"^{what}: (.+)\.$", prompt, re.MULTILINE)
    return [] if line is None else [item.partition(" ")[2] for item in line[1].split(", ")]
