"""ELLM's published stack, written plainly on PyPI crafter: the slow side of `goals.py`.

Text observations are put together from the map in every step, goals are read off the sentences, an encoder turns goals
and deeds into vectors, each string once, and their cosine decides what is paid. The learner is the published DQN: one
env, a replay memory, an update of 64 for each four steps. Left out, in its favour: the 512×512 picture of every step.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.envs import env_spec, make
from bkrl.envs.crafter.layout import CELL_NAMES
from bkrl.envs.crafter.typed_actions import ACTION_SETS
from bkrl.text.encoders import HashEncoder

TYPED = "Crafter-Typed-Harder"
_NEEDS: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "eat plant": ({}, ("plant",)), "attack zombie": ({}, ("zombie",)), "attack skeleton": ({}, ("skeleton",)),
    "attack cow": ({}, ("cow",)), "eat cow": ({}, ("cow",)), "chop tree": ({}, ("tree",)),
    "mine stone": ({"wood_pickaxe": 1}, ("stone",)), "mine coal": ({"wood_pickaxe": 1}, ("coal",)),
    "mine iron": ({"stone_pickaxe": 1}, ("iron",)), "mine diamond": ({"iron_pickaxe": 1}, ("diamond",)),
    "drink water": ({}, ("water",)), "chop grass": ({}, ("grass",)), "sleep": ({}, ()),
    "place stone": ({"stone": 1}, ()), "place crafting table": ({"wood": 1}, ()), "place furnace": ({"stone": 4}, ()),
    "place plant": ({"sapling": 1}, ()), "make wood pickaxe": ({"wood": 1}, ("table",)),
    "make stone pickaxe": ({"stone": 1, "wood": 1}, ("table",)),
    "make iron pickaxe": ({"wood": 1, "coal": 1, "iron": 1}, ("table", "furnace")),
    "make wood sword": ({"wood": 1}, ("table",)), "make stone sword": ({"wood": 1, "stone": 1}, ("table",)),
    "make iron sword": ({"wood": 1, "coal": 1, "iron": 1}, ("table", "furnace")),
}  # fmt: skip


class PlainEnv:
    """One env with sentences, suggestions and what they pay."""

    def __init__(self, seed: int = 0, observation: str = "symbolic") -> None:
        self.env = make(TYPED, backend="reference", observation=observation)
        self.names = [action.deed for action in ACTION_SETS["harder"]]
        self.encoder = HashEncoder.fit(self.names)
        self.vectors: dict[str, NDArray[np.float32]] = {}
        self.begin(seed)

    def begin(self, seed: int | None = None) -> None:
        """The next episode."""
        self.seen, info = self.env.reset(seed=seed)
        self.achieved: set[str] = set()
        self.text = self.sentences(info)
        self.goals = self.suggest(info)

    def sentences(self, info: dict[str, Any]) -> str:
        """What is seen, held and felt."""
        game = self.env.unwrapped.game  # type: ignore[attr-defined]
        (x, y), area = info["player_pos"], info["semantic"]
        words = set()
        for i in range(x - 4, x + 5):
            for j in range(y - 3, y + 4):
                if 0 <= i < 64 and 0 <= j < 64:
                    words.add(CELL_NAMES[area[i, j]])
        words = {"crafting table" if word == "table" else word for word in words} - {"player", "sand", "arrow"}
        items = sorted(words)
        text = f"you see {', '.join([*items[:-1], 'and ' + items[-1]] if len(items) > 1 else items)}."
        material, thing = game._world[(x + game._player.facing[0], y + game._player.facing[1])]
        target = type(thing).__name__.lower() if thing else material
        if target and target not in ("path", "sand", "lava"):
            text += f" you are targeting {target}."
        held = [name for name, count in info["inventory"].items() if count][4:]
        if held:
            text += f" you have in your inventory {', '.join(held)}."
        low = zip(("hurt", "hungry", "thirsty", "sleepy"), ("health", "food", "drink", "energy"), strict=True)
        feels = [word for word, name in low if info["inventory"][name] < 9]
        return text + (f" you feel {', '.join(feels)}." if feels else "")

    def suggest(self, info: dict[str, Any]) -> list[str]:
        """The symbolic oracle of the release, on the sentences."""
        found = []
        for goal, (items, words) in _NEEDS.items():
            if goal == "sleep" and "sleepy" not in self.text:
                continue
            if goal == "place crafting table" and "crafting table" in self.text:
                continue
            if all(info["inventory"][name] >= n for name, n in items.items()) and all(w in self.text for w in words):
                found.append(goal)
        return [goal for goal in found if goal not in self.achieved]

    def vector(self, text: str) -> NDArray[np.float32]:
        """The encoder's, from its cache."""
        if text not in self.vectors:
            self.vectors[text] = self.encoder([text])[0]
        return self.vectors[text]

    def step(self, action: int) -> tuple[float, bool]:
        """One step: what was paid, and whether the episode has ended."""
        self.seen, _, terminated, truncated, info = self.env.step(action)
        paid, name = 0.0, self.names[action]
        if info["action_success"] and self.goals:
            own = self.vector(name)
            cosines = [float(own @ self.vector(goal)) for goal in self.goals]
            best = int(np.argmax(cosines))
            if cosines[best] > 0.99:
                paid = cosines[best]
                self.achieved.add(self.goals[best])
        self.text = self.sentences(info)
        self.goals = self.suggest(info)
        return paid, terminated or truncated


class Pixels(nn.Module):
    """The published network: four grey frames of 84×84, and 384 features of a text encoder that is frozen."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512),
        )  # fmt: skip
        self.words, self.both = nn.Linear(384, 512), nn.Linear(1024, 512)
        self.value = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
        self.rest = nn.Sequential(
            nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, num_actions)
        )

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        seen = torch.cat([self.convolutions(image.float() / 255), self.words(words)], 1)
        features = self.both(seen).relu()
        rest = self.rest(features)
        return self.value(features) + rest - rest.mean(1, keepdim=True)


class Symbolic(nn.Module):
    """The network of `ellm-dqn` by matrix products: two layers of 128 on one-hot symbols and goals, dueling."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        inputs = 63 * 20 + 4 + 16 * 10 + 2 + 1 + 20 + num_actions
        self.layers = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, num_actions + 1)

    def forward(self, symbols: Tensor, goals: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot
        cells, facing = symbols[:, :63].long(), symbols[:, 63].long()
        faced = cells.gather(1, torch.tensor([30, 32, 22, 40])[facing][:, None])
        parts = [
            one_hot(cells, 20).flatten(1), one_hot(facing, 4), one_hot(symbols[:, 64:80].long(), 10).flatten(1),
            one_hot(symbols[:, 80].long(), 2), symbols[:, 81:] / 255, one_hot(faced, 20).flatten(1), goals,
        ]  # fmt: skip
        out = self.head(self.layers(torch.cat([part.float() for part in parts], 1)))
        return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)


class PlainDQN:
    """The published loop: one env, ε-greedy, an update of 64 for each four steps, a target network, three-step returns.

    Args:
        pixels: pictures and text as published; otherwise the symbols and goals of ours.
    """

    def __init__(self, pixels: bool) -> None:
        self.pixels, self.env = pixels, PlainEnv(observation="image" if pixels else "symbolic")
        num_actions = len(env_spec(TYPED).action_names)
        self.net, self.target = ((Pixels if pixels else Symbolic)(num_actions) for _ in range(2))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=6.25e-5)
        self.frames: deque[NDArray[np.uint8]] = deque([np.zeros((84, 84), np.uint8)] * 4, 4)
        self.memory: deque[tuple[Any, ...]] = deque(maxlen=10_000)
        self.texts: dict[str, NDArray[np.float32]] = {}
        self.rng, self.steps = np.random.default_rng(0), 0
        self.now = self.look()

    def look(self) -> tuple[Any, Any]:
        """What the network reads of the present."""
        if not self.pixels:
            goals = np.zeros(len(self.env.names), np.float32)
            goals[[self.env.names.index(goal) for goal in self.env.goals]] = 1
            return self.env.seen.copy(), goals
        grey = torch.from_numpy(self.env.seen.mean(-1, dtype=np.float32))[None, None]
        frame = nn.functional.interpolate(grey, (84, 84), mode="bilinear")[0, 0]
        self.frames.append(frame.numpy().astype(np.uint8))
        text = f"{self.env.text} Your goal is: {' '.join(self.env.goals)}."
        if text not in self.texts:  # stands for the frozen encoder, whose answers are kept; here they cost nothing
            self.texts[text] = np.random.default_rng(len(self.texts)).normal(size=384).astype(np.float32)
        return np.stack(self.frames), self.texts[text]

    def act(self) -> None:
        """One step."""
        with torch.no_grad():
            values = self.net(*(torch.from_numpy(part)[None] for part in self.now))
        action = int(values.argmax()) if self.rng.random() > 0.5 else int(self.rng.integers(values.shape[1]))
        paid, ended = self.env.step(action)
        before = self.now
        if ended:
            self.env.begin()
        self.now = self.look()
        self.memory.append((before, action, paid, ended))
        self.steps += 1
        if self.steps % 4 == 0 and len(self.memory) > 128:
            self.update()

    def update(self) -> None:
        """64 steps that were drawn."""
        first = self.rng.integers(0, len(self.memory) - 4, 64)
        returns, discounts = np.zeros(64, np.float32), np.ones(64, np.float32)
        for i, start in enumerate(first):
            for k in range(3):
                returns[i] += discounts[i] * self.memory[start + k][2]
                discounts[i] *= 0.99 * (not self.memory[start + k][3])
        batch = [torch.from_numpy(np.stack([self.memory[i][0][part] for i in first])) for part in (0, 1)]
        after = [torch.from_numpy(np.stack([self.memory[i + 3][0][part] for i in first])) for part in (0, 1)]
        actions = torch.tensor([self.memory[i][1] for i in first])
        with torch.no_grad():
            best = self.net(*after).argmax(1, keepdim=True)
            value = self.target(*after).gather(1, best)[:, 0]
            targets = torch.from_numpy(returns) + torch.from_numpy(discounts) * value
        chosen = self.net(*batch).gather(1, actions[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(chosen, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
