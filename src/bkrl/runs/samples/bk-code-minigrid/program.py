"""Be near something and face it; do not waste actions on what has no effect."""

FAR = 14  # actions to face the farthest visible thing, and a little more


def nearest(view):
    """Actions to face the nearest door, key, ball, box or goal of views (B, 7, 7, 3); FAR where none is in sight."""
    side = np.abs(np.arange(7) - 3)[:, None]
    ahead = (6 - np.arange(7))[None, :]
    to_face = side + ahead - 1 + (side > 0)
    kind = view[..., 0]
    thing = (kind >= 4) & (kind <= 8)
    thing[:, 3, 6] = False  # carried, not lying in the room
    return np.where(thing, to_face, FAR).min(axis=(1, 2))


def wasted(observations, actions, valid):
    """How many of the remembered actions could do nothing useful, by kind of waste."""
    kind = observations[..., 0]
    front = kind[:, :-1, 3, 5]
    door_open = observations[:, :-1, 3, 5, 2] == 0
    carried = kind[:, :-1, 3, 6]
    carries = (carried >= 5) & (carried <= 7)
    portable = (front >= 5) & (front <= 7)
    free = (front == 1) | (front == 3) | (front == 8) | ((front == 4) & door_open)
    bump = (actions == 2) & ~free
    useless = (
        ((actions == 3) & ~(portable & ~carries))
        | ((actions == 4) & ~(carries & (front == 1)))
        | ((actions == 5) & ~((front == 4) & ~door_open))
        | (actions == 6)
    )
    known = valid[:, :-1]
    back = np.zeros(actions.shape, dtype=bool)
    undone = ((actions[:, :-1] == 0) & (actions[:, 1:] == 1)) | ((actions[:, :-1] == 1) & (actions[:, 1:] == 0))
    back[:, 1:] = undone & known[:, :-1]
    return (bump & known).sum(axis=1), (useless & known).sum(axis=1), (back & known).sum(axis=1)


def potential(observations, actions, valid):
    steps = nearest(observations[:, -1])
    near = 1.0 - steps / FAR
    facing = (steps == 0).astype(float)
    bump, useless, back = wasted(observations, actions, valid)
    parts = {
        "near": 0.7 * near,
        "facing": 0.3 * facing,
        "bump": -0.03 * bump,
        "useless": -0.03 * useless,
        "back_and_forth": -0.02 * back,
    }
    return sum(parts.values()), parts
