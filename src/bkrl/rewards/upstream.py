"""The published code's defects, each behind a switch of its own, so that what each one does can be measured.

Everything here is wrong on purpose, and is used only where `bkrl train-rs --compat` asks for it.  With all of its
switches on, a rollout is paid as the published loop pays it (its potential is that of the run, on bkrl's fixed scale):

    line  = [carried row, Φ(h_0), …, Φ(h_{T-1})]         the carried row is the last rollout's last, divided already
    σ²    = running variance of f_j = γ f_{j-1} + line_j, over all rollouts and envs, f never reset
    F_t   = γ line_{t+1} / σ - line_t / σ                 added to the reward of a_t, whatever ended in between

`PublishedShaping` is this arithmetic, `PublishedReward` the reward stream around it; the functions between them change
what Φ sees.  docs/compat.md says what every switch reproduces, and where it has to deviate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.flags import words
from bkrl.core.registry import did_you_mean
from bkrl.data.windows import Rollout, Windows
from bkrl.potentials.code import CodeRaw
from bkrl.potentials.goal import GoalRaw
from bkrl.potentials.protocol import Potential, Raw, Scale, Scaled
from bkrl.rewards.shaped import ShapedReward

ALL = "upstream"
DIVISORS = (10, 5, 3)  # what the published wrapper divides kind, colour and state by
HARD_THRESHOLD = 0.85
_ANY = ("code", "pref", "goal")
_VALUES = ("values", "published")
_OTHERS = {
    "text": "Q-learning by an agent that reads",
    "lm": "a policy that is a language model",
    "values": "agents that value actions",
    "goals": "PPO with goals",
    "published": "--sees published",
}


@dataclass(frozen=True)
class Defect:
    """One published defect.

    Attributes:
        says: what goes wrong, one clause.
        variants: the kinds of potential it concerns; "" stands for algorithms without one, "text" for values of agents
            that read, "lm" for policies that are language models, "values" for other values of actions, "goals" for
            PPO with goals.
        families: the envs it concerns, () for all.
    """

    says: str
    variants: tuple[str, ...] = _ANY
    families: tuple[str, ...] = ()


DEFECTS: Mapping[str, Defect] = {
    "b1": Defect("programs see observations divided by 10, 5 and 3", ("code",), ("babyai",)),
    "b2": Defect("shaping is paid one step late"),
    "b3": Defect("shaping runs on from one episode into the next, and the potential of an end is never 0"),
    "b4": Defect("the preference potential does not see the current observation", ("pref",)),
    "b5": Defect("the last world's clock counts for all worlds", ("pref",)),
    "b6": Defect("the row carried between rollouts is divided by the running spread once more than the others"),
    "b7": Defect("Φ is divided by the running spread of its own discounted sum"),
    "b8": Defect("an episode's first windows are filled with its first observation and the action about to be taken"),
    "b9": Defect("the critic sees the current observation alone, Φ a history (so it is without --compat, too)"),
    "b10": Defect(
        "a time limit counts as a true end: no bootstrap, Φ = 0", ("", "text", "lm", "goals", *_VALUES, *_ANY)
    ),
    "b30": Defect(f"Φ of goals jumps at a fixed similarity of {HARD_THRESHOLD}", ("goal",)),
    "g4": Defect(
        "captions are those of the published captioner: 'a open red door', walls vanish behind objects",
        ("text", "lm"),
        ("babyai",),
    ),
    "g7": Defect(
        "each value is held against the returns of all steps of its minibatch, so it learns their mean", ("lm",)
    ),
    "e1": Defect("untrained action values are as far from 0 as learnt ones", _VALUES),
    "e5": Defect("all layers before the heads are shared with the target network", ("published",)),
    "e6": Defect("the names of goals follow each other without a comma", ("published",)),
    "e7": Defect("all layers are trained, whatever --trains says", (*_VALUES, "goals")),
}


def parse(compat: str, variant: str | None, family: str) -> frozenset[str]:
    """The defects that `--compat` names, "upstream" being all that concern this algorithm and env.

    Args:
        compat: names joined by commas, or nothing.
        variant: one of `Defect.variants`; None for an algorithm without a potential.
        family: of the env.

    Raises:
        UsageError: a name that is unknown, or a defect that this algorithm or env cannot have.
    """
    here = {
        name
        for name, defect in DEFECTS.items()
        if (variant or "") in defect.variants and (not defect.families or family in defect.families)
    }
    chosen: set[str] = set()
    for name in filter(None, (part.strip().lower() for part in compat.split(","))):
        if name == ALL:
            chosen |= here
        elif name not in DEFECTS:
            known = (ALL, *DEFECTS)
            raise UsageError(f"--compat knows no '{name}'.{did_you_mean(name, known)} There are: {', '.join(known)}.")
        elif name not in here:
            kinds = [one for one in DEFECTS[name].variants if one in _ANY]
            others = [_OTHERS[one] for one in DEFECTS[name].variants if one in _OTHERS]
            what = words([*([f"potentials of {words(kinds)} labels"] if kinds else []), *others])
            where = f" in {' or '.join(DEFECTS[name].families)} envs" if DEFECTS[name].families else ""
            raise UsageError(
                f"{name} ({DEFECTS[name].says}) concerns {what}{where}; leave it out of --compat, or write {ALL} for "
                "all that concern this run."
            )
        else:
            chosen.add(name)
    return frozenset(chosen)


def named(defects: frozenset[str]) -> list[str]:
    """The defects in the order of their numbers."""
    return [name for name in DEFECTS if name in defects]


def guarantee(defects: frozenset[str]) -> str:
    """What manifest and report say of such a run."""
    return f"none: published defects {', '.join(named(defects))}"


def with_defects(potential: Scaled, defects: frozenset[str]) -> Scaled:
    """The potential with the defects that are its own (b1, b30); the same object when there are none.

    UsageError for one that reads what no published potential read.
    """
    raw, reads = potential.raw, potential.artefact.reads
    own = ("b1" in defects and isinstance(raw, CodeRaw)) or ("b30" in defects and isinstance(raw, GoalRaw))
    if own and reads:
        name = "b1" if isinstance(raw, CodeRaw) else "b30"
        raise UsageError(
            f"{name} ({DEFECTS[name].says}) concerns potentials as they were published, and this one reads the "
            f"{words(reads)}; leave {name} out of --compat, or take labels made without --with-{reads[0]}."
        )
    if "b1" in defects and isinstance(raw, CodeRaw):
        divided = CodeRaw(raw.source, raw.obs_shape, raw.reads.horizon, DIVISORS)
        return Scaled(divided, potential.artefact)
    if "b30" in defects and isinstance(raw, GoalRaw):
        # values are 0 or in (0.85, 1]; one less, so that the best states have Φ = 0 as everywhere
        return Scaled(HardThreshold(raw), replace(potential.artefact, scale=Scale(0.0, 1.0)))
    return potential


class HardThreshold(Raw):
    """b30: the similarity itself where it is above 0.85, else 0; neither graded nor calibrated."""

    def __init__(self, raw: GoalRaw) -> None:
        self.raw = raw
        self.reads = raw.reads

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        similarity = self.raw.similarity(windows)
        return np.where(similarity > HARD_THRESHOLD, similarity, 0.0)


def blind(windows: Windows) -> Windows:
    """b4: the current observation is replaced by the one before, or by nothing where there is none."""
    symbols, empty = np.concatenate([windows.symbols, np.zeros_like(windows.symbols[:1])]), len(windows.symbols)
    index = windows.index.copy()
    index[:, -1] = np.where(windows.valid[:, -2], index[:, -2], empty) if index.shape[1] > 1 else empty
    return replace(windows, symbols=symbols, index=index)


def one_clock(windows: Windows, rollout: Rollout) -> Windows:
    """b5: which rows of a window count as this episode's is read off the last env, for all envs.

    `windows` are those of `Rollout.numbered_windows`: rows 0..T of every env, then the final ones.
    """
    envs = rollout.num_envs
    rows = (rollout.num_steps + 1) * envs
    length = windows.valid.shape[1]
    valid = windows.valid.copy()
    by_row = valid[:rows].reshape(-1, envs, length)
    by_row[:] = by_row[:, -1:]
    clock = rollout.ages[rollout.final_index // envs, -1] + 1
    valid[rows:] = clock[:, None] >= np.arange(length)[::-1]
    return replace(windows, valid=valid)


def filled(windows: Windows, rollout: Rollout) -> Windows:
    """b8: rows before the episode's start show its first observation and first action, and count as real.

    At the first observation that action is yet to be taken; in the last row of a rollout nobody knows it, and 0 stands
    for it (the late shaping of b2, with which the published code does this, never looks there).
    """
    horizon = windows.actions.shape[1]
    if horizon == 0:
        return windows
    here = np.arange(len(windows))
    first = windows.valid.argmax(axis=1)
    coming = np.zeros(len(windows), np.int64)
    coming[: rollout.num_steps * rollout.num_envs] = rollout.actions.ravel()
    action = np.where(first < horizon, windows.actions[here, np.minimum(first, horizon - 1)], coming)
    index = np.where(windows.valid, windows.index, windows.index[here, first][:, None])
    actions = np.where(windows.valid[:, :-1], windows.actions, action[:, None])
    return replace(windows, index=index, actions=actions, valid=np.ones_like(windows.valid))


class PublishedShaping:
    """F of consecutive rollouts with b2, b3, b6, b7 and b10 as chosen; with none of them, exact shaping.

    A call takes the place of `shaping_rewards`.  It has state (the carried row, the filter, the running variance), so
    rollouts must come in order.

    Without b2 the row carried between rollouts is Φ of the observation the last one ended with, which is also this
    one's first; with b2 it is Φ of the observation before that.
    """

    def __init__(self, defects: frozenset[str]) -> None:
        self.defects = defects
        self.carried = np.zeros(0)  # (N,) the last row of the last rollout's line, before any division
        self.filter = np.zeros(0)  # (N,) discounted sum of all rows so far
        self.moments = np.array([0.0, 1.0, 1e-4])  # mean, variance and weight, as running statistics usually begin

    def __call__(
        self, rollout: Rollout, phi: NDArray[np.floating], phi_final: NDArray[np.floating], gamma: float
    ) -> NDArray[np.float32]:
        """(T, N) float32; arguments as in `shaping_rewards`."""
        late, through = "b2" in self.defects, "b3" in self.defects
        begun, spread = len(self.carried) > 0, self.spread
        rows, ends = phi.astype(np.float64), phi_final.astype(np.float64)
        if not begun:
            self.carried, self.filter = np.zeros_like(rows[0]), np.zeros_like(rows[0])
        line = np.concatenate([self.carried[None], rows[:-1]]) if late else rows
        self.carried = line[-1].copy()
        if "b6" in self.defects:
            line[0] = line[0] / spread if begun else 0.0
        if {"b6", "b7"} & self.defects:
            self._measure(line, gamma)
        if "b7" in self.defects:
            line, ends = line / self.spread, ends / self.spread
        before, after = line[:-1].copy(), line[1:].copy()
        if late and not through:
            before[rollout.ages[:-1] == 0] = 0.0
        elif not through:
            over = rollout.ends(cut="b10" in self.defects)
            after.reshape(-1)[rollout.final_index] = np.where(over.ravel()[rollout.final_index], 0.0, ends)
        return (gamma * after - before).astype(np.float32)

    @property
    def spread(self) -> float:
        """σ, the running standard deviation."""
        return float(np.sqrt(self.moments[1]))

    def _measure(self, line: NDArray[np.float64], gamma: float) -> None:
        """Take a rollout's discounted sums into the running mean and variance (Chan et al.'s parallel update)."""
        sums = np.empty_like(line)
        for row, value in zip(sums, line, strict=True):
            self.filter = gamma * self.filter + value
            row[:] = self.filter
        mean, variance, weight = self.moments
        difference, total = sums.mean() - mean, weight + sums.size
        squares = variance * weight + sums.var() * sums.size + difference**2 * weight * sums.size / total
        self.moments = np.array([mean + difference * sums.size / total, squares / total, total])

    def state(self) -> dict[str, NDArray[np.float64]]:
        return {"carried": self.carried.copy(), "filter": self.filter.copy(), "moments": self.moments.copy()}

    def restore(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        self.carried, self.filter, self.moments = (state[name].copy() for name in ("carried", "filter", "moments"))


class PublishedReward(ShapedReward):
    """reward_scale · r_t + shaping_coef · F_t, where F and what Φ sees have the chosen defects.

    b1 and b30 are the potential's (`with_defects`), b9 is how every run is, and b10 concerns PPO too. Arguments as for
    `ShapedReward`, and names from `DEFECTS`.
    """

    whole = "The published code shapes a rollout at a time"

    def __init__(self, potential: Potential, gamma: float, defects: frozenset[str], **factors: float) -> None:
        super().__init__(potential, gamma, **factors)
        self.potential, self.defects, self.shaping = potential, defects, PublishedShaping(defects)

    def rewards(self, rollout: Rollout) -> NDArray[np.float32]:
        rewards = super().rewards(rollout)
        if {"b6", "b7"} & self.defects:
            self._metrics["shaping/spread"] = self.shaping.spread
        return rewards

    def paid(self, rollout: Rollout, phi: NDArray[np.float32], phi_final: NDArray[np.float32]) -> NDArray[np.floating]:
        return self.shaping_coef * self.shaping(rollout, phi, phi_final, self.gamma)

    def potentials(self, rollout: Rollout) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        windows = rollout.numbered_windows(self.reads.horizon)
        if "b8" in self.defects:
            windows = filled(windows, rollout)  # every window is full now, so b5 has nothing left to say
        elif "b5" in self.defects:
            windows = one_clock(windows, rollout)
        if "b4" in self.defects:
            windows = blind(windows)
        if isinstance(self.potential, Scaled):
            values = self.potential.of_numbered(windows)
        else:
            values = self.potential(windows)
        rows = (rollout.num_steps + 1) * rollout.num_envs
        return values[:rows].reshape(-1, rollout.num_envs), values[rows:]

    def state(self) -> dict[str, NDArray[np.float64]]:
        return self.shaping.state()

    def restore(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        self.shaping.restore(state)
