"""The symbolic observation of Housekeep: what the agent knows of the house, as 294 bytes.

| bytes | what |
|---|---|
| 0–120 | a map of what was seen so far, seen from above, 11 rows (far to near) of 11 squares (left to right) of half a metre; the agent stands in the middle of the nearest row and looks up the page |
| 121 | the scene: 1 + its number |
| 122 | where the camera points: 0 is 30 degrees down, 3 ahead, 6 is 30 degrees up |
| 123 | where the agent looks: its yaw in steps of 10 degrees |
| 124 | what it holds: 1 + the thing's slot; 0 nothing |
| 125 | high-level control: 1 + the receptacle where it stands; 0 none |
| 126–165 | ten slots of things, four bytes each: its class (1 + number, low and high byte), 0 unseen or 1 seen before or 2 in view or 3 held, and 1 + the receptacle on which it was seen last |
| 166–293 | each receptacle of the scene: 0 unseen or absent, 1 seen before, 2 in view |

The map is the agent's picture. With `picture=none`, which is the default, all of it is 0: then the agent has what a text
would tell it, and no more. A square of the map holds 0 for what was not seen or is no floor, 1 for floor, 2 + number for a receptacle by its
category (`CATEGORIES`), `THING` for a thing. Of things and receptacles that were not seen yet nothing is told.
"""  # noqa: E501

from typing import Final

ROWS: Final = 11
COLUMNS: Final = 11
SQUARE: Final = 0.5
MAP: Final = slice(0, ROWS * COLUMNS)

SCENE: Final = MAP.stop
TILT: Final = SCENE + 1
YAW: Final = TILT + 1
HELD: Final = YAW + 1
AT: Final = HELD + 1
THINGS: Final = AT + 1
SLOTS: Final = 10
SLOT_BYTES: Final = 4
CLASS_LOW, CLASS_HIGH, STATUS, ON = range(SLOT_BYTES)
RECEPTACLES: Final = THINGS + SLOTS * SLOT_BYTES
MOST_RECEPTACLES: Final = 128
SIZE: Final = RECEPTACLES + MOST_RECEPTACLES
OBS_SHAPE: Final = (SIZE,)

UNSEEN, BEFORE, IN_VIEW, IN_HAND = range(4)

CATEGORIES: Final = (
    "basket", "bathtub", "bed", "bottom_cabinet", "carpet", "chair", "chest", "coffee_machine", "coffee_table",
    "console_table", "cooktop", "counter", "dishwasher", "dryer", "fridge", "loudspeaker", "microwave", "office_chair",
    "oven", "piano", "shelf", "sink", "sofa", "sofa_chair", "speaker_system", "stool", "stove", "table", "toilet",
    "top_cabinet", "treadmill", "washer", "other",
)  # fmt: skip
"""Kinds of receptacles on the map; "other" is what nobody was asked about, as doors and windows."""
FLOOR: Final = 1
FIRST_CATEGORY: Final = 2
THING: Final = FIRST_CATEGORY + len(CATEGORIES)
SQUARE_NAMES: Final = ("unseen", "floor", *CATEGORIES, "thing")
"""Name of each code of the map."""
LOW_LEVEL: Final = ("move forward", "turn left", "turn right", "look up", "look down", "grab or release")
"""Actions of low-level control."""
TILTS: Final = 7
YAWS: Final = 36
