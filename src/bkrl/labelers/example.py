"""Exactly what would be sent for one question about an env."""

from typing import Literal

import numpy as np

from bkrl import envs
from bkrl.core.seeds import generator
from bkrl.labelers import code, goals, preferences
from bkrl.labelers.material import SegmentText, env_card, layout_text
from bkrl.labelers.plan import LENGTH
from bkrl.text.prompts import open_prompts


def example_prompt(variant: Literal["code", "pref", "goal"], env_id: str, prompt: str | None = None) -> str:
    """The turns as text; two random segments stand for a dataset."""
    card = env_card(env_id, open_prompts(prompt))
    segments = _random_segments(card.env_id, LENGTH[variant])
    if variant == "pref":
        rendered = preferences.pair_prompt(card, *segments)
    elif variant == "goal":
        rendered = goals.goal_prompt(card, segments[0])
    else:
        rendered = code.code_prompt(card, layout_text(card), LENGTH["code"], segments)
    return "\n\n".join(f"[{role}]\n{text}" for role, text in rendered) + "\n"


def _random_segments(env_id: str, length: int) -> list[SegmentText]:
    """Two segments of random play in the env, always the same two."""
    rng = generator(0, "label", "example")
    env = envs.make(env_id, backend="reference")  # a moment's play is not worth compiling an engine
    caption = envs.captioner(env_id)
    names = envs.env_spec(env_id).action_names
    segments = []
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        captions = caption(np.asarray(observation)[None])
        actions: list[str] = []
        while len(actions) < length:
            action = int(rng.integers(len(names)))
            observation, _, terminated, truncated, _ = env.step(action)
            captions += caption(np.asarray(observation)[None])
            actions.append(names[action])
            if terminated or truncated:
                observation, _ = env.reset()
                captions, actions = caption(np.asarray(observation)[None]), []
        segments.append(SegmentText(tuple(captions), tuple(actions)))
    env.close()
    return segments
