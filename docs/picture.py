"""Draw docs/images/envs.png: two envs as people see them, and under each what an agent's caption says of it.

python docs/picture.py
"""

from __future__ import annotations

import io
import textwrap
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bkrl.core.files import atomic_write
from bkrl.envs import captioner, make_vec

ENVS = {"MiniGrid-KeyCorridorS3R3-v0": 6, "CrafterReward-v1": 46}
"""Ids, and the seed of the episode that is shown."""
SIDE, GAP, TEXT, LINE = 320, 24, 100, 15


def main() -> None:
    """Write the picture."""
    page = Image.new("RGB", (2 * SIDE + 3 * GAP, SIDE + 2 * GAP + TEXT + LINE), "white")
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(12)
    for i, (env_id, seed) in enumerate(ENVS.items()):
        left, top = GAP + i * (SIDE + GAP), GAP
        envs = make_vec(env_id, 1)
        seen, _ = envs.reset(seed=seed)
        frame = Image.fromarray(envs.render()[0]).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        page.paste(frame, (left, top))
        [said] = captioner(env_id)(np.asarray(seen))
        draw.text((left, top + SIDE + 4), env_id, fill="black", font=font)
        for number, line in enumerate(textwrap.wrap(said, 52)[: TEXT // LINE]):
            draw.text((left, top + SIDE + 4 + (number + 1) * LINE), line, fill="#555555", font=font)
        envs.close()
    buffer = io.BytesIO()
    page.save(buffer, "PNG", optimize=True)
    atomic_write(Path(__file__).parent / "images" / "envs.png", buffer.getvalue())


if __name__ == "__main__":
    main()
