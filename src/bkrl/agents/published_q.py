"""ELLM's own agent: values of actions from four grey pictures of 84×84 and from a text, encoded by a frozen encoder.

Source: Du et al. 2023 (arXiv 2302.06692) and its code release. Its text is what ELLM's observation says, and the goals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from bkrl.agents.networks.layers import conv, linear
from bkrl.agents.protocol import Inputs, State
from bkrl.agents.q import QAgent
from bkrl.core.documents import typed
from bkrl.core.flags import Flag
from bkrl.data.views import ViewName, Views
from bkrl.envs import env_spec, family, situations
from bkrl.text.encoders import EncoderSettings, TextEncoder, open_encoder

SIDE, FRAMES, HIDDEN = 84, 4, 512
FRAME_BYTES = SIDE * SIDE


class PublishedNetwork(nn.Module):
    """(B, F, 84, 84) uint8 pictures, the newest last, and (B, E) texts → (B, A) action values.

    Args:
        num_actions: A.
        text_size: E.
    """

    readers = ("pictures", "picture_features", "text_features", "joined")
    first, last = ("pictures.", "picture_features.", "text_features."), ("value.4.", "advantage.4.")
    sees: Any = None  # which texts, as its agent says

    def __init__(self, num_actions: int, text_size: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        layers = [conv(FRAMES, 32, 8, 4), nn.ReLU(), conv(32, 64, 4, 2), nn.ReLU(), conv(64, 64, 3, 1), nn.ReLU()]
        self.pictures = nn.Sequential(*layers, nn.Flatten())
        self.picture_features, self.text_features = linear(64 * 7 * 7, HIDDEN), linear(text_size, HIDDEN)
        self.joined = nn.Sequential(linear(2 * HIDDEN, HIDDEN), nn.ReLU())
        self.value, self.advantage = _head(1), _head(num_actions)

    def initialise(self, seed: int, gain_of_values: float = 0.01) -> None:
        """Orthogonal weights: gain √2 in convolutions, 1 in layers, `gain_of_values` in the last ones; biases 0."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                last = module in (self.value[-1], self.advantage[-1])
                gain = math.sqrt(2) if isinstance(module, nn.Conv2d) else gain_of_values if last else 1.0
                nn.init.orthogonal_(module.weight, gain, generator=generator)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, pictures: Tensor, text: Tensor) -> Tensor:
        seen = self.picture_features(normalize(self.pictures(pictures.float().div_(255)), dim=1))
        features = self.joined(torch.cat([seen, self.text_features(text)], 1))
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(1, keepdim=True)


def _head(size: int) -> nn.Sequential:
    inner = [linear(HIDDEN, HIDDEN), nn.ReLU(), linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*inner, linear(HIDDEN, size))


class _Spec(TypedDict):
    """What a `PublishedAgent` is built from."""

    num_actions: Annotated[int, Flag("", least=1, most=2**20)]
    encoder: EncoderSettings
    run_on: bool


def grey(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(..., H, W, 3) → (..., 84, 84): the mean of the colours, resized bilinearly."""
    axes = pictures.shape[:-3]
    flat = torch.from_numpy(np.ascontiguousarray(pictures)).reshape(-1, *pictures.shape[-3:])
    mean = flat.float().mean(-1)[:, None]
    resized = interpolate(mean, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return resized.round_().to(torch.uint8).numpy().reshape(*axes, SIDE, SIDE)


class PublishedAgent(QAgent):
    """A `QAgent` that sees what ELLM's sees. Its memory is the three pictures before the present one.

    Args:
        network: of action values.
        who: env_id, family, action_names and view.
        encoder: of texts; frozen.
        run_on: whether the names of goals follow each other without a comma (published).
    """

    sees_goals = True
    remembered = (FRAME_BYTES, FRAMES)

    def __init__(self, network: PublishedNetwork, *who: Any, encoder: TextEncoder, run_on: bool = False) -> None:
        super().__init__(network, *who)
        self.encoder, self.run_on = encoder, run_on
        network.sees = (encoder.settings(), run_on)
        self._known = situations(self.env_id)
        self._symbols = math.prod(env_spec(self.env_id).obs_shape)
        self._texts: dict[bytes, NDArray[np.float32]] = {}

    @property
    def wants(self) -> tuple[ViewName, ...]:
        return (*super().wants, "image")

    @property
    def spec(self) -> dict[str, Any]:
        source = self.goals.to_json() if self.goals is not None else None
        own = {"num_actions": self.module.num_actions, "encoder": self.encoder.settings(), "run_on": self.run_on}
        return {"name": "published-q", **own, "goals": source}

    @classmethod
    def build(cls, spec: Mapping[str, Any], *who: Any) -> PublishedAgent:
        given = typed(_Spec, {name: spec.get(name) for name in _Spec.__annotations__})
        encoder = open_encoder(given["encoder"])
        network = PublishedNetwork(given["num_actions"], encoder.size)
        agent = cls(network, *who, encoder=encoder, run_on=given["run_on"])
        agent.take_goals(spec)
        return agent

    def rows(self, views: Views) -> NDArray[np.uint8]:
        """(..., W): a grey picture, the symbols, and a byte for each deed that is a goal."""
        if views.image is None or views.goal is None:
            raise ValueError("views without pictures or goals")
        axes = views.goal.shape[:-1]
        parts = (grey(views.image), views.symbols, views.goal)
        return np.concatenate([one.reshape(*axes, -1) for one in parts], axis=-1)

    def of_rows(self, rows: NDArray[np.uint8]) -> Inputs:
        """Pictures (B, F, 84, 84), the newest last, and texts (B, E), of rows with F pictures at their beginning."""
        start = rows.shape[1] - self._symbols - len(self._known.deeds)
        pictures = np.ascontiguousarray(rows[:, :start]).reshape(len(rows), -1, SIDE, SIDE)
        inputs = {"pictures": torch.from_numpy(pictures), "text": torch.from_numpy(self._encoded(rows[:, start:]))}
        return {name: one.to(self.device) for name, one in inputs.items()}

    def _encoded(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, E) of symbols and goals (B, ...): each text is encoded once."""
        shape = env_spec(self.env_id).obs_shape
        symbols = np.ascontiguousarray(rows[:, : self._symbols]).reshape(len(rows), *shape)
        vectors = np.empty((len(rows), self.encoder.size), np.float32)
        for i, (key, goals) in enumerate(zip(self._known.keys(symbols), rows[:, self._symbols :], strict=True)):
            name = key.tobytes() + np.packbits(goals).tobytes()
            if name not in self._texts:
                self._texts[name] = self.encoder([self.text(symbols[i], goals)])[0]
            vectors[i] = self._texts[name]
        return vectors

    def text(self, symbols: NDArray[np.uint8], goals: NDArray[np.uint8]) -> str:
        """What is read of symbols (*obs_shape) and goals (D,): "you see tree. … your goal is: chop tree, sleep."."""
        told = family(self.family).caption(symbols[None], self._known.wording)[0]
        named = (" " if self.run_on else ", ").join(self._known.deeds[i] for i in np.flatnonzero(goals).tolist())
        return f"{told} your goal is: {named}."

    def begin(self, num_envs: int) -> State:
        return {"pictures": torch.zeros(num_envs, FRAMES - 1, SIDE, SIDE, dtype=torch.uint8, device=self.device)}

    def forward(self, inputs: Inputs, state: State, started: Any) -> tuple[Tensor, Tensor, State]:
        now = inputs["pictures"][0]  # (N, 1, 84, 84)
        before = torch.where(started[0, :, None, None, None], now, state["pictures"])
        seen = {"pictures": torch.cat([before, now], 1), "text": inputs["text"][0]}
        logits, values, _ = super().forward(seen, {}, None)
        return logits[None], values[None], {"pictures": seen["pictures"][:, 1:]}
