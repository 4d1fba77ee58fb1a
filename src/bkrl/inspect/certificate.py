"""The certificate: executable checks of what a potential and its shaping keep.

Each check tests one promise and is known to fail on the published defect it is there for (the tests feed it those):

* telescoping, terminal: Σ γ^t F_t over a terminated episode is -Φ(h_0), over a truncated one γ^T Φ(h_T) - Φ(h_0), on
  rollouts of recorded episodes with terminations, truncations and autoresets.
* policies: tabular envs solved exactly with and without shaping keep their optimal policies, the two-exit chain among
  them.
* constant: Φ = c adds (γ - 1) c at every step inside an episode and makes no spike between rollouts.
* envs: an env's Φ does not change when the other envs of the rollout are exchanged.
* present: Φ depends on the current observation.
* units: Φ is not the same when observations are divided as the published code divides them (10, 5, 3).
* finite: Φ is finite and within [-1, 0] over the dataset.
* batches: Φ is the same bit for bit for one window and for many, in any order.

A check that a potential cannot be put to is named as not applicable, with the reason; it does not count as passed.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset
from bkrl.data.views import Views
from bkrl.data.windows import Rollout, Windows
from bkrl.envs import toy
from bkrl.potentials.protocol import Potential
from bkrl.rewards.shaped import PotentialOfRollout
from bkrl.rewards.shaping import shaping_rewards

CERTIFICATE = "certificate.json"
GAMMA = 0.99
Shaping = Callable[[Rollout, NDArray[np.float32], NDArray[np.float32], float], NDArray[np.floating]]


@dataclass(frozen=True)
class Check:
    """One promise: whether it holds, and the figure that says so."""

    name: str
    passed: bool
    detail: str = ""


class Document(TypedDict):
    """certificate.json."""

    checks: list[Check]
    not_applicable: NotRequired[dict[str, str]]


@dataclass(frozen=True)
class Certificate:
    """All checks of one potential, and by name why others do not apply to it."""

    checks: list[Check]
    not_applicable: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(check.passed for check in self.checks)

    def summary(self) -> str:
        """One clause: how many hold, which do not, and which do not apply. Checks of form are no praise."""
        failed = [check.name for check in self.checks if not check.passed]
        holds = f"{len(self.checks) - len(failed)} of {len(self.checks)} checks of form hold"
        holds += f", not {', '.join(failed)}" if failed else ""
        return holds + (f" (not applicable: {', '.join(self.not_applicable)})" if self.not_applicable else "")

    def to_json(self) -> dict[str, Any]:
        """Plain values for certificate.json."""
        checks = [{**asdict(check), "passed": bool(check.passed)} for check in self.checks]
        return {"passed": self.passed, "checks": checks, "not_applicable": dict(self.not_applicable)}


def certify(potential: Potential, dataset: Dataset, seed: int = 0, num_envs: int = 6, steps: int = 200) -> Certificate:
    """Run every check on a potential and the dataset it was built from."""
    rollouts = replay(dataset, potential.reads.horizon, num_envs, steps, seed)
    rows = generator(seed, "certificate", "rows").permutation(int((dataset.lengths + 1).sum()))[:3000]
    sample = dataset.windows(np.sort(rows), potential.reads.horizon)
    constant = bool(np.ptp(potential(sample)) == 0)
    checks = [
        telescoping(potential, rollouts, shaping_rewards),
        policies(shaping_rewards),
        constant_potential(rollouts, shaping_rewards),
        no_leak(potential, rollouts[0], seed),
        finite(potential, sample),
        batches(potential, sample, seed),
    ]
    if constant:  # as Φ = 0, the control, is
        flat = "Φ has one value on all sampled windows, so it depends on nothing there"
        return Certificate(checks, {"present": flat, "units": flat})
    checks.append(present(potential, sample, seed))
    blank = sample.showing(np.zeros_like(sample.observations))
    if potential.reads.memory and np.array_equal(potential(blank), potential(sample)):
        return Certificate(checks, {"units": "Φ depends on the memory of episodes, and on no observation"})
    return Certificate([*checks, units(potential, sample)])


def telescoping(potential: Potential, rollouts: list[Rollout], shaping: Shaping) -> Check:
    """Discounted shaping over every complete episode, against its closed form, to 1e-4 of float32 sums."""
    worst, episodes, cut_off = 0.0, 0, 0
    total = discount = started = None
    for rollout in rollouts:
        phi, phi_final = PotentialOfRollout(potential)(rollout)  # anew: as if no rollout had been before
        rewards = shaping(rollout, phi, phi_final, GAMMA).astype(np.float64)
        finals = {int(i): float(v) for i, v in zip(rollout.final_index, phi_final, strict=True)}
        if total is None or discount is None or started is None:
            total, discount = np.zeros(rollout.num_envs), np.ones(rollout.num_envs)
            started = np.where(rollout.ages[0] == 0, phi[0], np.nan).astype(np.float64)
        for t in range(rollout.num_steps):
            total += discount * rewards[t]
            discount *= GAMMA
            for n in np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]):
                end = 0.0 if rollout.terminated[t, n] else finals[t * rollout.num_envs + int(n)]
                if np.isfinite(started[n]):
                    off = abs(total[n] - (discount[n] * end - started[n]))
                    worst = float(np.maximum(worst, off))  # which keeps NaN
                    episodes += 1
                    cut_off += not rollout.terminated[t, n]
                total[n], discount[n], started[n] = 0.0, 1.0, phi[t + 1, n]
    if episodes == 0:
        return Check("telescoping", True, "no complete episode in the sample: nothing to compare")
    ends = f"{episodes} episodes, {cut_off} of them cut off"
    return Check("telescoping", worst < 1e-4, f"largest difference {worst:.2g} over {ends}")


def policies(shaping: Shaping, potentials: int = 20) -> Check:
    """Random potentials on the toy tables and on random ones: the same optimal actions in every state."""
    rng = np.random.Generator(np.random.PCG64(7))
    tables = [toy.table(name) for name in ("Toy-Chain", "Toy-TwoExits", "Toy-Grid")]
    tables += [_random_table(rng) for _ in range(5)]
    changed = 0
    for table in tables:
        plain = _optimal_actions(toy.optimal_values(table, GAMMA), table)
        for _ in range(potentials):
            phi = rng.uniform(-1, 0, table.num_states) * 10.0
            shaped = toy.optimal_values(table, GAMMA, _tabular(table, phi, shaping))
            changed += not np.array_equal(plain, _optimal_actions(shaped, table))
    total = len(tables) * potentials
    return Check(
        "policies", changed == 0, f"optimal actions changed for {changed} of {total} potentials on {len(tables)} worlds"
    )


def constant_potential(rollouts: list[Rollout], shaping: Shaping, value: float = -0.7) -> Check:
    """Φ = c: every step that does not end an episode pays exactly (γ - 1) c, at rollout boundaries too."""
    worst = 0.0
    for rollout in rollouts:
        phi = np.full((rollout.num_steps + 1, rollout.num_envs), value, np.float32)
        rewards = shaping(rollout, phi, np.full(len(rollout.final_index), value, np.float32), GAMMA)
        expected = np.where(rollout.terminated, -value, (GAMMA - 1) * value)
        worst = float(np.maximum(worst, np.abs(rewards - expected).max()))  # which keeps NaN
    return Check("constant", worst < 1e-5, f"largest difference {worst:.2g}")


def no_leak(potential: Potential, rollout: Rollout, seed: int) -> Check:
    """Φ of every env, alone and with the other envs in another order."""
    phi, _ = PotentialOfRollout(potential)(rollout)
    order = generator(seed, "certificate", "worlds").permutation(rollout.num_envs)
    moved, _ = PotentialOfRollout(potential)(_reordered(rollout, order))
    same = np.array_equal(phi[:, order], moved)
    return Check(
        "worlds", same, "exchanging worlds exchanges their Φ" if same else "a world's Φ depends on other worlds"
    )


def present(potential: Potential, windows: Windows, seed: int) -> Check:
    """Replacing only the current observation, and the memory, by another window's changes Φ somewhere."""
    order = generator(seed, "certificate", "present").permutation(len(windows))
    changed = windows.observations.copy()
    changed[:, -1] = windows.observations[order, -1]
    memory = None if windows.memory is None else windows.memory[order]
    other = potential(replace(windows.showing(changed), memory=memory))
    share = float((other != potential(windows)).mean())
    return Check("present", share > 0.01, f"Φ changes in {share:.1%} of the windows when the present does")


def units(potential: Potential, windows: Windows) -> Check:
    """Raw integers do not all look the same to Φ, nor like the published code's divided ones."""
    divided = (windows.observations // np.array([10, 5, 3], np.uint8)) if windows.observations.shape[-1] == 3 else None
    raw = potential(windows)
    levels = len(np.unique(raw))
    if divided is None:
        return Check("units", levels > 1, f"{levels} distinct values on raw integers")
    other = potential(windows.showing(divided))
    share = float((raw != other).mean())
    fine = share > 0.01 and levels > 1
    return Check("units", fine, f"{levels} distinct values on raw integers; dividing them changes {share:.1%}")


def finite(potential: Potential, windows: Windows) -> Check:
    """Finite, within [-1, 0], float32, one value a window."""
    phi = potential(windows)
    fine = phi.shape == (len(windows),) and phi.dtype == np.float32 and bool(np.isfinite(phi).all())
    fine = fine and bool((phi >= -1).all() and (phi <= 0).all())
    return Check("finite", fine, f"Φ in [{phi.min():.3g}, {phi.max():.3g}] on {len(windows)} windows")


def batches(potential: Potential, windows: Windows, seed: int) -> Check:
    """Many windows, a few, one at a time and shuffled: the same bits."""
    whole = potential(windows)
    order = generator(seed, "certificate", "batches").permutation(len(windows))
    fine = np.array_equal(potential(windows[order]), whole[order])
    fine = fine and np.array_equal(potential(windows[:7]), whole[:7])
    singles = order[:5]
    fine = fine and all(potential(windows[i : i + 1])[0] == whole[i] for i in singles)
    return Check("batches", fine, "the same bits for one window and for many" if fine else "Φ depends on the batch")


def replay(dataset: Dataset, horizon: int, num_envs: int, steps: int, seed: int) -> list[Rollout]:
    """Two consecutive rollouts of recorded episodes, end to end, as `num_envs` envs with SAME_STEP autoreset.

    Of a long episode only the last steps are played, so that every kind of end occurs within `steps`.
    """
    rng = generator(seed, "certificate", "replay")
    length = 2 * steps + 1
    shape = dataset.obs_shape
    observations = np.zeros((horizon + length, num_envs, *shape), np.uint8)
    actions = np.zeros((horizon + length, num_envs), np.int64)
    ages = np.zeros((length, num_envs), np.int32)
    terminated, truncated = np.zeros((length, num_envs), bool), np.zeros((length, num_envs), bool)
    finals = np.zeros((length, num_envs, *shape), np.uint8)
    missions = np.full((length, num_envs), "", object)
    counts = np.zeros((len(dataset.observations), 0), np.uint8) if dataset.memory is None else dataset.memory
    memory, final_memory = (np.zeros((length, num_envs, counts.shape[1]), np.uint8) for _ in range(2))
    for n in range(num_envs):
        t = 0
        while t < length:
            episode = int(rng.integers(dataset.num_episodes))
            whole = min(int(dataset.lengths[episode]), max(1, steps // 3))
            played = min(whole, length - t)
            end = int(dataset.first_row[episode] + dataset.lengths[episode])
            rows = end - whole + np.arange(played)
            observations[horizon + t : horizon + t + played, n] = dataset.observations[rows]
            actions[horizon + t : horizon + t + played, n] = dataset.actions[rows]
            ages[t : t + played, n] = np.arange(played)
            missions[t : t + played, n] = dataset.row_missions[rows]
            memory[t : t + played, n] = counts[rows]
            t += played
            if played == whole:
                (terminated if dataset.terminated[episode] else truncated)[t - 1, n] = True
                finals[t - 1, n] = dataset.observations[end]
                final_memory[t - 1, n] = counts[end]
    rollouts = []
    seen, last = Views(observations[horizon:], mission=missions, memory=memory), Views(finals, memory=final_memory)
    for start in (0, steps):
        now = slice(start, start + steps)
        ended = np.flatnonzero((terminated | truncated)[now])
        rollouts.append(
            Rollout(
                views=seen[start : start + steps + 1],
                final_views=last[now].flat()[ended],
                final_index=ended,
                actions=actions[horizon:][now],
                ages=ages[start : start + steps + 1],
                rewards=np.zeros((steps, num_envs), np.float32),
                terminated=terminated[now],
                truncated=truncated[now],
                past=observations[start : start + horizon],
                past_actions=actions[start : start + horizon],
            )
        )
    return rollouts


def _reordered(rollout: Rollout, order: NDArray[np.int64]) -> Rollout:
    place = np.argsort(order)
    t, n = np.divmod(rollout.final_index, rollout.num_envs)
    index = t * rollout.num_envs + place[n]
    sort = np.argsort(index)
    moved = {name: values[:, order] for name, values in vars(rollout).items() if not name.startswith("final")}
    return Rollout(**moved, final_views=rollout.final_views[sort], final_index=index[sort])


def _tabular(table: toy.Table, phi: NDArray[np.float64], shaping: Shaping) -> NDArray[np.float64]:
    """(S, A) shaping of every transition, by running the shaping itself on rollouts of one step."""
    states, actions = table.next_state.shape
    count = states * actions
    terminated = table.terminated.reshape(1, count)
    final = np.flatnonzero(terminated[0])
    now = np.repeat(phi, actions)
    # after a terminal step row 1 shows the next episode's first state, which must not matter
    after = np.where(terminated[0], phi[0], phi[table.next_state.ravel()])
    nothing = np.zeros((0, count, 1), np.uint8)
    rollout = Rollout(
        views=Views(np.zeros((2, count, 1), np.uint8)),
        final_views=Views(np.zeros((len(final), 1), np.uint8)),
        final_index=final.astype(np.int64),
        actions=np.zeros((1, count), np.int64),
        ages=np.zeros((2, count), np.int32),
        rewards=np.zeros((1, count), np.float32),
        terminated=terminated,
        truncated=np.zeros((1, count), bool),
        past=nothing,
        past_actions=nothing[:, :, 0].astype(np.int64),
    )
    values = np.stack([now, after]).astype(np.float32)
    ends = phi[table.next_state.ravel()[final]].astype(np.float32)
    return np.asarray(shaping(rollout, values, ends, GAMMA), np.float64).reshape(states, actions)


def _optimal_actions(q: NDArray[np.float64], table: toy.Table) -> NDArray[np.bool_]:
    """(S, A) which actions are optimal, to 1e-4; places that are never acted in do not count."""
    acted = ~(table.next_state == np.arange(table.num_states)[:, None]).all(1) | table.terminated.any(1)
    return (q > q.max(1, keepdims=True) - 1e-4)[acted]


def _random_table(rng: np.random.Generator, states: int = 12, actions: int = 3) -> toy.Table:
    next_state = rng.integers(0, states, (states, actions))
    terminated = rng.random((states, actions)) < 0.15
    reward = rng.normal(size=(states, actions)).astype(np.float32)
    return toy.Table(next_state, reward, terminated, terminated.copy(), np.full(states, 1 / states), states)
