"""Strips: the right moments, texts escaped, pictures where an env can be drawn."""

from __future__ import annotations

import base64
import io
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from bkrl.envs import make_vec
from bkrl.report.plots.draw import COLOURS
from bkrl.report.plots.strips import Strip, moments, pictures


def strip(phi: list[float], **changes) -> Strip:
    values = {
        "title": "An episode", "first_step": 3, "phi": phi, "captions": [f"caption {i}" for i in range(len(phi))],
        "actions": ["left"] * (len(phi) - 1), "pictures": [""] * len(phi),
    }  # fmt: skip
    return Strip(**{**values, **changes})


def test_moments_hold_both_ends_and_the_greatest_changes():
    phi = [-1.0] * 40
    phi[17:] = [-0.2] * 23
    phi[30] = -0.9
    chosen = moments(phi)
    assert chosen[0] == 0
    assert chosen[-1] == 39
    assert {17, 30, 31} <= set(chosen)
    assert len(chosen) == 8
    assert moments([-0.5]) == [0]
    assert moments([-0.5, -0.4]) == [0, 1]


def test_a_strip_is_an_svg_whose_texts_are_escaped():
    evil = "<script>alert(1)</script> \x1b& a very long caption that has to be broken into several lines"
    drawn = strip([-1.0, -0.5, 0.0], captions=[evil] * 3).svg()
    assert "<script" not in drawn
    root = ElementTree.fromstring(drawn)
    texts = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    assert "step 4, Φ -0.50" in texts
    assert any("alert(1)" in text for text in texts)
    line = next(node for node in root.iter() if COLOURS[1] in node.get("style", ""))
    heights = [float(place) for place in line.attrib["d"].split()[2::3]]
    assert len(heights) == 3
    assert heights == sorted(heights, reverse=True)


def test_a_long_action_stays_in_its_column():
    name = "put the washing-up liquid of the kitchen on the shelf beside the sink"
    root = ElementTree.fromstring(strip([-1.0, -0.5], actions=[name]).svg())
    texts = [node.text or "" for node in root.iter() if node.tag.endswith(("text", "tspan"))]
    start = next(place for place, text in enumerate(texts) if text.startswith("→"))
    shown = texts[start : next(place for place, text in enumerate(texts) if text.endswith("sink")) + 1]
    assert " ".join(shown) == f"→ {name}"
    assert max(map(len, shown)) <= 21


@pytest.mark.parametrize(
    ("family", "env_id"), [("babyai", "BabyAI-Text-GoToLocal-RedBall-S20"), ("crafter", "Crafter-Text-Reward")]
)
def test_observations_become_pictures(family, env_id):
    envs = make_vec(env_id, 2)
    observations, _ = envs.reset(seed=0)
    envs.close()
    for uri in pictures(family, observations):
        kind, data = uri.split(",")
        assert kind == "data:image/png;base64"
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
        assert min(picture.shape[:2]) >= 49
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 3
    assert pictures("toy", np.zeros((2, 1), np.uint8)) == ["", ""]
