"""What can be asked of a Crafter env when it is made; one place for both backends."""

from typing import Any, Final

import numpy as np
from gymnasium import spaces

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.crafter import layout
from bkrl.envs.vector import checked_steps

OBSERVATIONS: Final = ("symbolic", "image", "both")
IMAGE_SHAPE: Final = (64, 64, 3)
FRAME_SCALE: Final = 4
"""Frames for people are the 64×64 picture enlarged this many times."""


def observation_space(observation: str) -> spaces.Space[Any]:
    """The space of one env's observation; UsageError for an unknown kind."""
    symbolic = spaces.Box(0, 255, layout.OBS_SHAPE, np.uint8)
    image = spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)
    if observation == "symbolic":
        return symbolic
    if observation == "image":
        return image
    if observation == "both":
        return spaces.Dict({"symbolic": symbolic, "image": image})
    near = did_you_mean(str(observation), OBSERVATIONS)
    raise UsageError(f"Crafter has no observation '{observation}'.{near} Use symbolic, image or both.")


def checked_length(length: int) -> int:
    """`length` when it can be an episode's; UsageError otherwise."""
    return checked_steps("The length of a Crafter episode", length, 10_000_000)  # the light of each step is worked out
