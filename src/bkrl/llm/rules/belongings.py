"""Where things belong in a tidy house: what anyone knows of rooms and kinds of things, written down by hand.

It is fitted to nothing: a kind of thing has the places where we would put it away ourselves, and nothing was changed
after it was first measured. It reads no votes (`tests/llm/test_rules_housekeep.py`), but whoever wrote it had once seen
a table of votes of the 19 things in the paper's tasks: how good it is, the other things tell.
"""

import re
from functools import lru_cache
from typing import Final

_SAME_ROOM: Final = {
    "pantry room": "kitchen",
    "television room": "living room",
    "playroom": "childs room",
    "corridor": "lobby",
    "garage": "storage room",
    "utility room": "storage room",
    "closet": "storage room",
}
"""Rooms that are used as another one is."""
_SAME_PLACE: Final = {
    "console table": "table",
    "stove": "cooktop",
    "sofa chair": "sofa",
    "office chair": "chair",
    "stool": "chair",
    "loudspeaker": "speaker",
    "speaker system": "speaker",
}
_CUPBOARDS: Final = "bottom cabinet, top cabinet, shelf"

KINDS: Final[dict[str, tuple[str, str]]] = {
    "dry food": (
        "cake mix, candy, candy bar, cereal, chocolate, chocolate box, chocolate milk pods, chocolate powder, "
        "coffee beans, coffee pods, condiment, cracker box, donut, fondant, fruit snack, gelatin box, master chef can, "
        "heavy master chef can, peppermint, potted meat can, pudding box, snack cake, sugar box, sugar sprinkles, "
        "tea can pack, tea pods, tomato soup can, xylitol sweetener, salt shaker, snack dispenser, can, food",
        f"kitchen: {_CUPBOARDS}",
    ),
    "food that is kept cool": (
        "herring fillets, mustard bottle, pepsi can pack, sparkling water, water bottle, butter dish",
        "kitchen: fridge, bottom cabinet, top cabinet",
    ),
    "fruit": (
        "apple, banana, lemon, orange, peach, pear, plum, strawberry",
        "kitchen: fridge, counter, table; dining room: table",
    ),
    "cookware": (
        "bundt pan, cake pan, casserole dish, dutch oven, pan, saute pan, skillet, skillet lid, pressure cooker, "
        "parchment sheet, sushi mat, chopping board",
        f"kitchen: {_CUPBOARDS}, oven, cooktop",
    ),
    "tableware": (
        "bowl, canister, cup, drink coaster, jar, mug, pitcher base, plate, ramekin, saucer, stacking cups, teapot, "
        "tray, tumbler, butter dish",
        f"kitchen: {_CUPBOARDS}, dishwasher; dining room: bottom cabinet",
    ),
    "kitchen tools": (
        "can opener, fork, honey dipper, knife, knife block, lime squeezer, spatula, spoon, spoon rest, "
        "utensil holder, dispensing closure, lunch box, lunch bag",
        "kitchen: bottom cabinet, top cabinet, counter",
    ),
    "kitchen machines": (
        "blender jar, coffeemaker, milk frother, stand mixer, toaster",
        "kitchen: counter, bottom cabinet, top cabinet",
    ),
    "cleaning": (
        "bleach cleanser, cloth, dish drainer, dishtowel, dustpan and brush, sponge, sponge dish, surface saver ring, "
        "waste basket, laundry box, paper bag",
        "kitchen: sink, bottom cabinet; bathroom: bottom cabinet; storage room: bottom cabinet, shelf, sink",
    ),
    "bathing": (
        "bath sheet, electric toothbrush, soap dish, soap dispenser, toothbrush holder, toothbrush pack, towel, "
        "washcloth, hair conditioner",
        "bathroom: sink, counter, shelf, bottom cabinet, top cabinet",
    ),
    "care of the body": (
        "beard color gel, beauty pack, diaper pack, face moisturizer, hair color, hair dryer, hair straightener, "
        "incontinence pads, lipstick, mascara, sanitary pads, skin care product, skin moisturizer, tampons, "
        "wipe warmer",
        f"bathroom: counter, {_CUPBOARDS}; bedroom: bottom cabinet",
    ),
    "medicine": (
        "antidepressant, dietary supplement, laxative, medicine, pet food supplement, weight loss guide",
        "bathroom: top cabinet, bottom cabinet; kitchen: top cabinet, bottom cabinet",
    ),
    "sport": (
        "baseball, dumbbell, dumbbell rack, golf ball, helmet, mini soccer ball, racquetball, softball, tennis ball, "
        "toy basketball, ball, fitness tracker wristband",
        "storage room: shelf, bottom cabinet; childs room: shelf, chest, bottom cabinet; bedroom: bottom cabinet; "
        "lobby: bottom cabinet, chest",
    ),
    "toys": (
        "action figure, android figure, balancing cactus, colored wood blocks, dollhouse toy, easter basket, "
        "foam brick, lego duplo, nine hole peg test, peg and hammer toy, sidewalk chalk, sorting toy, stacking cups, "
        "stuffed toy, toy airplane, toy animal, toy basketball, toy bowling set, toy construction set, toy fishing, "
        "toy food, toy furniture set, toy instrument, toy kitchen set, toy tool kit, toy vehicle, whale whistle, "
        "fingerpaint, crayon, clay, paint bottle set, paint maker, toy",
        "childs room: shelf, chest, bottom cabinet, table",
    ),
    "games and films": (
        "board game, card game, jenga, movie dvd, nintendo switch, puzzle game, rubiks cube, video game, "
        "virtual reality viewer, game",
        "living room: shelf, bottom cabinet, coffee table; childs room: shelf, bottom cabinet, chest",
    ),
    "ornaments": (
        "candle holder, clock, lantern, picture frame, plant, plant container, plant saucer, string lights, vase, "
        "hand bell",
        "living room: shelf, table, coffee table, bottom cabinet; bedroom: shelf, table, bottom cabinet; "
        "dining room: table, bottom cabinet; lobby: table, bottom cabinet; home office: shelf",
    ),
    "lamps": (
        "lamp, table lamp",
        "living room: table, coffee table, bottom cabinet, shelf; bedroom: table, bottom cabinet; "
        "home office: table, bottom cabinet; lobby: table",
    ),
    "computing": (
        "electronic adapter, electronic cable, graphics card, hard drive, hard drive case, ink cartridge, keyboard, "
        "laptop, laptop cover, laptop stand, motherboard, mouse, mouse pad, multiport hub, router, shredder, "
        "software cd, tablet, tablet holder, tablet stand, thermal laminator, usb drive, wireless accessory, "
        "phone stand, desk caddy, battery",
        "home office: table, shelf, bottom cabinet, counter; living room: bottom cabinet, shelf; "
        "bedroom: bottom cabinet, table",
    ),
    "sound and pictures": (
        "camera, headphones, instant camera, portable speaker, remote control, set-top box, guitar, phone armband case",
        "living room: shelf, bottom cabinet, table, coffee table; bedroom: shelf, bottom cabinet",
    ),
    "paper and pens": (
        "book, bookend, file sorter, folder, invitation card, labeling tape, large marker, letter holder, "
        "magnifying glass, pencil case, scissors, cube storage box",
        "home office: shelf, bottom cabinet, table; living room: shelf, bottom cabinet; bedroom: shelf; "
        "childs room: shelf",
    ),
    "tools": (
        "adjustable wrench, anti slip tape, chain, clamp, duct tape, flashlight, flat screwdriver, hammer, "
        "light bulb, measuring tape, padlock, phillips screwdriver, power drill, vinyl tape, heavy duty gloves",
        "storage room: shelf, bottom cabinet; lobby: bottom cabinet",
    ),
    "clothes and bags": (
        "backpack, carrying case, gloves, handbag, hat, jewelry box, shoe, shoe box, storage bin, umbrella, box",
        "storage room: shelf, bottom cabinet; bedroom: bottom cabinet, shelf, chest; lobby: bottom cabinet, chest",
    ),
    "cushions": ("cushion, neck rest, pillow", "bedroom: bed; living room: sofa; childs room: bed, sofa"),
    "heaters": ("electric heater", "storage room: shelf, bottom cabinet; bedroom: bottom cabinet"),
    "pets": ("dog bowl, dog chew toy", "storage room: shelf, bottom cabinet; kitchen: bottom cabinet"),
}
"""kind → (things of this kind, "room: place, place; room: …")."""


@lru_cache(maxsize=1)
def _tables() -> tuple[dict[str, tuple[str, ...]], dict[str, frozenset[tuple[str, str]]]]:
    """Kinds of each thing, and (room, place) of each kind."""
    kinds: dict[str, tuple[str, ...]] = {}
    spots: dict[str, frozenset[tuple[str, str]]] = {}
    for kind, (things, places) in KINDS.items():
        for thing in things.split(", "):
            kinds[thing] = (*kinds.get(thing, ()), kind)
        rooms = [part.split(": ") for part in places.split("; ")]
        spots[kind] = frozenset((room, place) for room, listed in rooms for place in listed.split(", "))
    return kinds, spots


def kinds_of(thing: str) -> tuple[str, ...]:
    """The kinds of a thing: by its name, or by the longest end of its name that is known ("red toy box": box).

    () for a thing of which nothing is known.
    """
    kinds, _ = _tables()
    words = thing.split(" ")
    return next((kinds[name] for start in range(len(words)) if (name := " ".join(words[start:])) in kinds), ())


@lru_cache(maxsize=1 << 16)
def belongs(thing: str, place: str) -> bool:
    """Whether a thing ("golf ball") is put away in a place ("living room shelf")."""
    room, receptacle = split_place(re.sub(r" no top$", "", place))
    room, receptacle = _SAME_ROOM.get(room, room), _SAME_PLACE.get(receptacle, receptacle)
    _, spots = _tables()
    return any((room, receptacle) in spots[kind] for kind in kinds_of(thing))


def place_for(thing: str) -> str:
    """The first place that comes to mind for a thing, "" for one of which nothing is known."""
    kinds = kinds_of(thing)
    if not kinds:
        return ""
    room, places = KINDS[kinds[0]][1].split("; ")[0].split(": ")
    return f"{room} {places.split(', ')[0]}"


ROOMS: Final = (
    "bathroom", "bedroom", "childs room", "closet", "corridor", "dining room", "exercise room", "garage",
    "home office", "kitchen", "living room", "lobby", "pantry room", "playroom", "storage room",
    "television room", "utility room",
)  # fmt: skip


def split_place(place: str) -> tuple[str, str]:
    """("living room", "shelf") of "living room shelf"; the room is "" where none is named."""
    room = next((room for room in ROOMS if place.startswith(f"{room} ")), "")
    return room, place[len(room) :].strip()
