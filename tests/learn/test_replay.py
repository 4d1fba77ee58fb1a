"""The memory of steps against a list of episodes; views that come back from their keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.data.views import ViewKeys, Views, pack_texts, unpack_texts
from bkrl.learn.replay import Replay


class Log:
    """Steps of N envs that end at random, each view a number of its own."""

    def __init__(self, seed, num_envs, capacity):
        self.rng, self.N = np.random.default_rng(seed), num_envs
        self.replay, self.steps, self.next_view = Replay(capacity, num_envs), [], 1
        self.seen = self._fresh(num_envs)

    def _fresh(self, count):
        self.next_view += count
        return np.arange(self.next_view - count, self.next_view)

    def step(self):
        after, rewards = self._fresh(self.N), self.rng.random(self.N).astype(np.float32)
        terminated, truncated = self.rng.random((2, self.N)) < 0.15
        actions = self.rng.integers(0, 5, self.N)
        row = [one.astype(np.uint32)[:, None].view(np.uint8) for one in (self.seen, after)]
        self.replay.add(row[0], actions, rewards, row[1], terminated, truncated)
        self.steps.append((self.seen, actions, rewards, after, terminated, truncated))
        self.seen = np.where(terminated | truncated, self._fresh(self.N), after)


@given(seed=st.integers(0, 2**32 - 1), num_envs=st.integers(1, 3), steps=st.integers(1, 30), n=st.integers(1, 4))
def test_what_is_drawn_is_what_happened(seed, num_envs, steps, n):
    log = Log(seed, num_envs, capacity=12)
    for _ in range(steps):
        log.step()
    kept = log.steps[-log.replay.rows :]
    assert log.replay.ready(n) == max(len(kept) - n + 1, 0) * num_envs
    if not log.replay.ready(n):
        return
    again = Replay(12, num_envs)
    again.restore(log.replay.state())
    batch = again.sample(again.ready(n), np.random.default_rng(0), gamma=0.9, num_steps=n)
    places = {int(step[0][env]): (t, env) for t, step in enumerate(kept) for env in range(num_envs)}
    drawn = [places[int(row)] for row in batch.seen.view(np.uint32)[:, 0]]
    assert sorted(drawn) == [(t, env) for t in range(len(kept) - n + 1) for env in range(num_envs)]  # each once
    for i, (t, env) in enumerate(drawn):
        total, discount = 0.0, 1.0
        for step in kept[t : t + n]:
            _, _, rewards, after, terminated, truncated = step
            total += discount * rewards[env]
            discount *= 0.9
            if terminated[env] or truncated[env]:
                discount = 0.0 if terminated[env] else discount
                break
        assert batch.actions[i] == kept[t][1][env]
        assert batch.after.view(np.uint32)[i, 0] == after[env]
        assert batch.returns[i] == pytest.approx(total, abs=1e-5)
        assert batch.discounts[i] == pytest.approx(discount, abs=1e-6)


def test_what_follows_a_break_is_no_part_of_the_episodes_before():
    log = Log(0, 3, 12)
    log.replay.cut()  # nothing is there yet
    for _ in range(14):
        log.step()
    log.replay.cut()
    log.step()
    batch = log.replay.sample(log.replay.ready(2), np.random.default_rng(0), gamma=0.9, num_steps=2)
    drawn = {int(row): i for i, row in enumerate(batch.seen.view(np.uint32)[:, 0])}
    for env in range(3):
        seen, _, rewards, after, terminated, _ = (one[env] for one in log.steps[-2])
        i = drawn[int(seen)]
        assert batch.returns[i] == rewards
        assert batch.after.view(np.uint32)[i, 0] == after
        assert batch.discounts[i] == pytest.approx(0.0 if terminated else 0.9)


def test_more_than_there_is_cannot_be_drawn():
    log = Log(0, 2, 10)
    log.step()
    with pytest.raises(ValueError, match="larger sample"):
        log.replay.sample(3, np.random.default_rng(0), gamma=0.9)


TEXTS = st.recursive(st.none() | st.text(max_size=3), lambda one: st.lists(one, max_size=3).map(tuple), max_leaves=8)


@given(st.lists(TEXTS, max_size=6))
def test_texts_come_back_from_arrays(values):
    assert unpack_texts(pack_texts(values)) == values


def test_views_come_back_from_their_keys():
    def objects(*values):
        return np.fromiter(values, object, len(values))

    text = objects(("a", "b"), None, ("a", "b"))
    history = np.empty((3, 2), object)
    history[0, 1] = history[2, 0] = (("c",), "go")
    goal = np.arange(6, dtype=np.float32).reshape(3, 2)
    views = Views(np.zeros((3, 1), np.uint8), text=text, mission=objects("x", "y", "x"), goal=goal, history=history)
    keys = ViewKeys(("text", "mission", "history", "goal"))
    rows = keys(views)
    again = ViewKeys(keys.wants)
    again(views[::-1])  # the same texts in another order, so that numbers differ
    again.restore(keys.state())
    for known in (keys, again):
        back = known.views(rows[[2, 0]])
        for name in ("text", "mission", "history", "goal"):
            assert getattr(back, name).tolist() == getattr(views, name)[[2, 0]].tolist()
        assert back.symbols.shape == (2, 0)
