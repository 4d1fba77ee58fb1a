"""Climb the tech tree, stay well, be near and face what is useful now, and do not idle."""

CELL = {'water': 1, 'stone': 3, 'tree': 6, 'lava': 7, 'coal': 8, 'iron': 9, 'diamond': 10, 'table': 11, 'furnace': 12, 'cow': 14, 'zombie': 15, 'skeleton': 16, 'ripe_plant': 19}
ITEM = {'health': 64, 'food': 65, 'drink': 66, 'energy': 67, 'sapling': 68, 'wood': 69, 'stone': 70, 'coal': 71, 'iron': 72, 'diamond': 73, 'wood_pickaxe': 74, 'stone_pickaxe': 75, 'iron_pickaxe': 76, 'wood_sword': 77, 'stone_sword': 78, 'iron_sword': 79}
VIEW = 63  # cells in sight, 9 in a row
FAR = 8


def count(now, name, most):
    """How many of an item the agent has, at most `most`."""
    return np.minimum(now[:, ITEM[name]], most)


def sight(now, name):
    return (now[:, :VIEW] == CELL[name]).any(axis=1)


def progress(now):
    """How far the tech tree has been climbed; the materials a step costs are always worth less than it gives."""
    stock = 0.08 * count(now, "wood", 5) + 0.08 * count(now, "stone", 5) + 0.03 * count(now, "sapling", 1)
    stock = stock + 0.12 * count(now, "coal", 2) + 0.20 * count(now, "iron", 2) + 0.60 * count(now, "diamond", 1)
    wooden = 0.25 * count(now, "wood_pickaxe", 1) + 0.20 * count(now, "wood_sword", 1)
    stony = 0.35 * count(now, "stone_pickaxe", 1) + 0.30 * count(now, "stone_sword", 1)
    iron = 0.70 * count(now, "iron_pickaxe", 1) + 0.60 * count(now, "iron_sword", 1)
    table = sight(now, "table") | (wooden + stony + iron > 0)
    furnace = sight(now, "furnace") | (iron > 0)
    return stock + wooden + stony + iron + 0.30 * table + 0.40 * furnace


def comfort(now):
    """0 when nothing is lacking; the lower something is, the more a little of it is worth."""
    lack = -0.02 * (9 - now[:, ITEM["health"]]) - 0.03 * np.maximum(0, 5 - now[:, ITEM["health"]])
    for name in ("food", "drink", "energy"):
        lack = lack - 0.01 * (9 - now[:, ITEM[name]]) - 0.02 * np.maximum(0, 6 - now[:, ITEM[name]])
    return lack


def near(now, name):
    """1 next to the nearest of its kind, falling to 0 where none is in sight."""
    index = np.arange(VIEW)
    steps = np.abs(index % 9 - 9 // 2) + np.abs(index // 9 - 7 // 2)
    nearest = np.where(now[:, :VIEW] == CELL[name], steps, FAR + 1).min(axis=1)
    return np.clip(1.0 - (nearest - 1) / FAR, 0.0, 1.0)


def useful(now):
    """Nearness to the most useful thing in sight, given what the agent owns and lacks."""
    wood = now[:, ITEM["wood"]] > 0
    stone = now[:, ITEM["stone"]] > 0
    first = now[:, ITEM["wood_pickaxe"]] > 0
    second = now[:, ITEM["stone_pickaxe"]] > 0
    third = now[:, ITEM["iron_pickaxe"]] > 0
    make_first = wood & ~(first & (now[:, ITEM["wood_sword"]] > 0))
    make_second = wood & stone & ~(second & (now[:, ITEM["stone_sword"]] > 0))
    ready = wood & (now[:, ITEM["coal"]] > 0) & (now[:, ITEM["iron"]] > 0)
    best = near(now, "tree") * np.where(now[:, ITEM["wood"]] < 5, 0.8, 0.2)
    for name, worth in (
        ("water", np.where(now[:, ITEM["drink"]] < 6, 0.9, 0.4)),
        ("cow", np.where(now[:, ITEM["food"]] < 6, 0.9, 0.4)),
        ("ripe_plant", np.where(now[:, ITEM["food"]] < 6, 0.9, 0.5)),
        ("table", 0.9 * (make_first | make_second | ready)),
        ("furnace", 0.9 * ready),
        ("stone", 0.7 * first),
        ("coal", 0.8 * first),
        ("iron", 0.9 * second),
        ("diamond", 1.0 * third),
    ):
        best = np.maximum(best, near(now, name) * worth)
    return best


def danger(now):
    """0 when safe; rises as monsters come close or lava is underfoot's neighbour."""
    close = np.maximum(near(now, "zombie"), near(now, "skeleton")) > 0.8
    lava = near(now, "lava") >= 1.0
    return 0.5 * close + 0.5 * lava


def faces(now):
    """Whether the agent faces something it can use."""
    rows = np.arange(len(now))
    ahead = np.array([30, 32, 22, 40])[np.clip(now[:, 63], 0, 3)]
    cell = now[rows, ahead]
    first = now[:, ITEM["wood_pickaxe"]] > 0
    second = now[:, ITEM["stone_pickaxe"]] > 0
    third = now[:, ITEM["iron_pickaxe"]] > 0
    good = (cell == CELL["tree"]) | (cell == CELL["water"]) | (cell == CELL["cow"]) | (cell == CELL["ripe_plant"])
    good = good | (((cell == CELL["stone"]) | (cell == CELL["coal"])) & first)
    return good | ((cell == CELL["iron"]) & second) | ((cell == CELL["diamond"]) & third)


def idle(observations, actions, valid):
    """Share of the remembered actions after which nothing in sight or in hand had changed."""
    same = (observations[:, 1:, : 81] == observations[:, :-1, : 81]).all(axis=2)
    return (same & valid[:, :-1]).mean(axis=1)


def potential(observations, actions, valid):
    now = observations[:, -1]
    parts = {
        "progress": progress(now),
        "comfort": comfort(now),
        "useful": 0.06 * useful(now),
        "facing": 0.02 * faces(now),
        "danger": -0.05 * danger(now),
        "idle": -0.02 * idle(observations, actions, valid),
    }
    return sum(parts.values()), parts
