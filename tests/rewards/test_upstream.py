"""Every published defect by numbers worked out by hand, and all of them together against the published loop, slowly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bkrl.agents.networks import ActorCritic
from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads, Rollout, Windows
from bkrl.envs import make_vec, toy
from bkrl.inspect import certificate
from bkrl.learn.ppo import PPO
from bkrl.potentials.code import CodeRaw
from bkrl.potentials.goal import GoalRaw
from bkrl.potentials.protocol import Artefact, Scale, Scaled
from bkrl.rewards.shaped import ShapedReward
from bkrl.rewards.shaping import shaping_rewards
from bkrl.rewards.upstream import (
    DEFECTS,
    PublishedReward,
    PublishedShaping,
    blind,
    filled,
    guarantee,
    named,
    one_clock,
    parse,
    with_defects,
)
from tests.experience import write_dataset
from tests.learn.agents import agent_of
from tests.potentials.rollouts import HashPotential, history, random_rollouts, rollout_of


def one_env(ages: list[int], terminated: list[int] = (), truncated: list[int] = ()) -> Rollout:  # type: ignore[assignment]
    """A rollout of one env of which only the clock and the ends matter; `ages` has one row more than steps."""
    steps = len(ages) - 1
    ends = np.zeros((2, steps, 1), bool)
    ends[0, list(terminated)] = True
    ends[1, list(truncated)] = True
    index = np.flatnonzero(ends.any(axis=0))
    return rollout_of(
        0,
        np.zeros((steps + 1, 1, 1), np.uint8),
        np.zeros((steps, 1), np.int64),
        np.array(ages, np.int32)[:, None],
        np.zeros((steps, 1), np.float32),
        ends[0],
        ends[1],
        index.astype(np.int64),
        np.zeros((len(index), 1), np.uint8),
    )


def paid(defects: str, rollout: Rollout, phi: list[float], final: list[float] = (), gamma: float = 0.5) -> list[float]:  # type: ignore[assignment]
    shaping = PublishedShaping(frozenset(defects.split()))
    return shaping(rollout, np.array(phi)[:, None], np.array(final), gamma)[:, 0].tolist()


# Φ of four observations of one episode, γ = ½ throughout
FALLING = [-0.8, -0.4, -0.2, -0.1]
# the same, but action 1 ends the episode in a state of Φ = -0.2, and the next episode begins with Φ = -0.9
ENDING = [-0.8, -0.4, -0.9, -0.6]


def test_without_defects_it_is_exact_shaping():
    # ½·-0.4 + 0.8, ½·-0.2 + 0.4, ½·-0.1 + 0.2
    assert paid("", one_env([0, 1, 2, 3]), FALLING) == pytest.approx([0.6, 0.3, 0.15])
    # a true end: 0 + 0.4; a time limit: ½·-0.2 + 0.4
    assert paid("", one_env([0, 1, 0, 1], terminated=[1]), ENDING, [-0.2]) == pytest.approx([0.6, 0.4, 0.6])
    assert paid("", one_env([0, 1, 0, 1], truncated=[1]), ENDING, [-0.2]) == pytest.approx([0.6, 0.3, 0.6])
    for rollout in random_rollouts(2, 3, 8, 3, 0.3):
        stream, exact = (
            kind(HashPotential(3), 0.99) for kind in (lambda p, g: PublishedReward(p, g, frozenset()), ShapedReward)
        )
        np.testing.assert_allclose(stream.rewards(rollout), exact.rewards(rollout), atol=1e-6)


def test_b2_pays_each_difference_one_step_late():
    # a_0: ½·-0.8 - 0; a_1 what a_0 earned: ½·-0.4 + 0.8; a_2: ½·-0.2 + 0.4
    assert paid("b2", one_env([0, 1, 2, 3]), FALLING) == pytest.approx([-0.4, 0.6, 0.3])
    # nothing is carried into the new episode: its first action gets ½·-0.9 - 0
    assert paid("b2", one_env([0, 1, 0, 1], terminated=[1]), ENDING, [-0.2]) == pytest.approx([-0.4, 0.6, -0.45])
    # the next rollout goes on where this one ended: its first action gets ½·-0.1 + 0.2, not ½·-0.1 + 0.1
    shaping = PublishedShaping(frozenset({"b2"}))
    shaping(one_env([0, 1, 2, 3]), np.array(FALLING)[:, None], np.zeros(0), 0.5)
    assert shaping(one_env([3, 4]), np.array([[-0.1], [-0.6]]), np.zeros(0), 0.5)[0, 0] == pytest.approx(0.15)


def test_b3_pays_the_next_episodes_beginning():
    # a_1: ½·-0.9 + 0.4 for an action that ended the episode, whether it terminated or was cut off
    for how in ("terminated", "truncated"):
        rollout = one_env([0, 1, 0, 1], **{how: [1]})
        assert paid("b3", rollout, ENDING, [-0.2]) == pytest.approx([0.6, -0.05, 0.6])
        # together with b2: the new episode's first action pays for the old one's last state, ½·-0.9 + 0.4
        assert paid("b2 b3", rollout, ENDING, [-0.2]) == pytest.approx([-0.4, 0.6, -0.05])


def test_b6_divides_the_carried_row_once_more():
    # Φ = -1.  The first rollout carries 0, so its line is 0, -1, -1 and its discounted sums 0, -1, -1.5:
    # variance ((5/6)² + (1/6)² + (4/6)²) / 3 = 0.3889, σ = 0.6236 (the prior weighs 1e-4)
    shaping = PublishedShaping(frozenset({"b6"}))
    constant = np.full((3, 1), -1.0)
    first = shaping(one_env([0, 1, 2]), constant, np.zeros(0), 0.5)[:, 0]
    assert first.tolist() == pytest.approx([-0.5 - 0.0, -0.5 + 1.0])
    assert shaping.spread == pytest.approx(0.6236, abs=1e-3)
    # the second carries -1 / 0.6236 = -1.6036, and a constant Φ pays a spike: -0.5 + 1.6036
    second = shaping(one_env([2, 3, 4]), constant, np.zeros(0), 0.5)[:, 0]
    assert second.tolist() == pytest.approx([1.1036, 0.5], abs=2e-3)


def test_b7_rescales_as_it_goes():
    # Φ = -1: discounted sums -1, -1.5, -1.75, variance 0.09722, σ = 0.3118; every step pays (-0.5 + 1) / σ
    shaping = PublishedShaping(frozenset({"b7"}))
    constant = np.full((3, 1), -1.0)
    first = shaping(one_env([0, 1, 2]), constant, np.zeros(0), 0.5)[:, 0]
    assert first.tolist() == pytest.approx([1.6036, 1.6036], abs=2e-3)
    # the filter goes on and the carried row counts twice: -1.875, -1.9375, -1.96875; the variance of all six sums is
    # 17.4580 / 6 - 1.671875² = 0.11450, σ = 0.33838.  An episode's end between them changes nothing about that.
    second = shaping(one_env([2, 0, 1], terminated=[0]), constant, np.array([-1.0]), 0.5)[:, 0]
    assert shaping.spread == pytest.approx(0.33838, abs=1e-3)
    assert second.tolist() == pytest.approx([(0 + 1) / 0.33838, 0.5 / 0.33838], abs=1e-2)
    # Φ of a true last observation is divided by the same σ: one rollout, cut off at its first step, Φ = -1 there too
    cut = PublishedShaping(frozenset({"b7"}))(one_env([0, 0, 1], truncated=[0]), constant, np.array([-1.0]), 0.5)
    assert cut[:, 0].tolist() == pytest.approx([1.6036, 1.6036], abs=2e-3)


def test_b10_takes_a_time_limit_for_an_end():
    # 0 + 0.4, where exact shaping pays ½·-0.2 + 0.4
    assert paid("b10", one_env([0, 1, 0, 1], truncated=[1]), ENDING, [-0.2]) == pytest.approx([0.6, 0.4, 0.6])


@pytest.mark.parametrize(("bootstrap", "expected"), [(True, 0.8), (False, -1.0)])
def test_b10_leaves_out_the_bootstrap(bootstrap, expected):
    """V = 2 everywhere, γ = 0.9, λ = 0, "work" pays 1: 1 + 0.9·2 - 2 with the bootstrap, 1 - 2 without."""

    class Certain(ActorCritic):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, observations):
            logits = torch.tensor([[-50.0, 50.0]]).expand(len(observations), 2)
            return logits + 0 * self.unused, torch.full((len(observations), 1), 2.0) + 0 * self.unused

    config = PPOConfig(num_envs=2, num_steps=25, num_minibatches=1, gamma=0.9, gae_lambda=0.0, learning_rate=0.0)
    stream = ShapedReward(HashPotential(0), 0.9, shaping_coef=0.0)
    envs, agent = make_vec("Toy-Endless", 2), agent_of(Certain(), "Toy-Endless")
    ppo = PPO(envs, agent, [stream], config, total_steps=1, bootstrap_truncated=bootstrap)
    ppo.iterate()
    advantages = ppo.advantages()[0][:, :, 0].numpy()
    cut = ppo.collector.rollout.truncated
    assert cut.sum() == 2
    np.testing.assert_allclose(advantages[cut], expected, atol=1e-5)
    np.testing.assert_allclose(advantages[~cut], 0.8, atol=1e-5)


def test_b9_a_critic_that_does_not_see_what_phi_sees_takes_it_for_noise():
    """The default, so there is nothing to switch: two histories, Φ = -0.2 and -0.8, lead to one state, and to its end.

    Both actions earn 0.  Shaping pays 0.2 and 0.8; the best value that knows the state alone is their mean, 0.5, so the
    advantages are ∓0.3 where the truth is 0.  A critic that sees the history knows -Φ, and they vanish.
    """
    rollouts = [one_env([1, 0], terminated=[0])] * 2
    pays = [paid("b9", r, [phi, -0.9], [-0.5])[0] for r, phi in zip(rollouts, (-0.2, -0.8), strict=True)]
    assert pays == pytest.approx([0.2, 0.8])
    assert [pay - np.mean(pays) for pay in pays] == pytest.approx([-0.3, 0.3])
    assert [pay - -phi for pay, phi in zip(pays, (-0.2, -0.8), strict=True)] == pytest.approx([0, 0], abs=1e-6)


# --------------------------------------------------------------------------------------------- what the potential sees

EMPTY, S0, S1, S2 = 0, 10, 11, 12  # observations of one number


def window(*rows: int, actions: tuple[int, ...], valid: tuple[int, ...]) -> Windows:
    return Windows.of(np.array([rows], np.uint8)[..., None], np.array([actions]), np.array([valid], bool)).numbered()


def seen(windows: Windows) -> list[tuple[list[int], list[int], list[bool]]]:
    plain = windows
    return [
        (o[:, 0].tolist(), a.tolist(), v.tolist())
        for o, a, v in zip(plain.observations, plain.actions, plain.valid, strict=True)
    ]


def test_b4_replaces_the_present_by_the_past():
    assert seen(blind(window(S0, S1, S2, actions=(4, 5), valid=(1, 1, 1)))) == [([S0, S1, S1], [4, 5], [True] * 3)]
    # at an episode's first observation there is nothing before
    assert seen(blind(window(EMPTY, EMPTY, S0, actions=(0, 0), valid=(0, 0, 1)))) == [
        ([EMPTY] * 3, [0, 0], [False, False, True])
    ]
    assert seen(blind(window(S0, actions=(), valid=(1,)))) == [([EMPTY], [], [True])]


def young_and_old() -> Rollout:
    """Two steps of two envs, H = 2: env 0 begins an episode at row 1, env 1 one at row 0.

    Env 0 sees 20, 21 | 30, 31; env 1 sees 40, 41, 42 after an old 39.  Actions are 1 and 2 in env 0, 3 and 4 in
    env 1.
    """
    observations = np.array([[19, 38], [20, 39], [21, 40], [30, 41], [31, 42]], np.uint8)[..., None]
    return rollout_of(
        2,
        observations,
        np.array([[7, 7], [8, 8], [1, 3], [2, 4]]),
        np.array([[5, 0], [0, 1], [1, 2]], np.int32),
        np.zeros((2, 2), np.float32),
        np.array([[True, False], [False, False]]),
        np.zeros((2, 2), bool),
        np.array([0]),
        np.array([[22]], np.uint8),
    )


def test_b8_fills_a_new_episode_with_its_first_observation_and_action():
    rollout = young_and_old()
    full = [True] * 3
    assert seen(filled(rollout.numbered_windows(2), rollout)) == [
        ([19, 20, 21], [7, 8], full),  # env 0, row 0: an old episode
        ([40, 40, 40], [3, 3], full),  # env 1, row 0: s_0 thrice, and twice the action 3, about to be taken
        ([30, 30, 30], [2, 2], full),  # env 0, row 1: a new episode, about to do 2
        ([40, 40, 41], [3, 3], full),  # env 1, row 1: one action in the past, one filled in
        ([30, 30, 31], [2, 2], full),
        ([40, 41, 42], [3, 4], full),
        ([20, 21, 22], [8, 1], full),  # the final window of env 0's old episode
    ]


def test_b5_reads_the_clock_of_the_last_env():
    rollout = young_and_old()
    clocks = [valid for _, _, valid in seen(one_clock(rollout.numbered_windows(2), rollout))]
    young, middle, old = [False, False, True], [False, True, True], [True, True, True]
    # env 1 is 0, 1 and 2 actions old at rows 0, 1 and 2; env 0 in truth is 5, 0 and 1
    assert clocks == [young, young, middle, middle, old, old, middle]
    own = [valid for _, _, valid in seen(rollout.numbered_windows(2))]
    assert own == [old, young, young, middle, middle, old, old]
    assert clocks[1::2][:3] == own[1::2][:3]  # the last env keeps its own
    rows = [
        (observations, actions) for observations, actions, _ in seen(one_clock(rollout.numbered_windows(2), rollout))
    ]
    assert rows == [(observations, actions) for observations, actions, _ in seen(rollout.numbered_windows(2))]


@pytest.mark.parametrize(("defects", "changed"), [("b4", [0, 1]), ("b5", [0]), ("b8", [0, 1]), ("b5 b8", [0, 1])])
def test_the_stream_shows_phi_the_spoilt_windows(defects, changed):
    rollout = young_and_old()
    right, _ = PublishedReward(HashPotential(2), 0.99, frozenset()).potentials(rollout)
    stream = PublishedReward(HashPotential(2), 0.99, frozenset(defects.split()))
    phi, final = stream.potentials(rollout)
    assert np.flatnonzero((phi != right).any(axis=0)).tolist() == changed
    windows = rollout.numbered_windows(2)
    spoil = {"b4": blind, "b5": lambda w: one_clock(w, rollout), "b8": lambda w: filled(w, rollout)}
    # full windows leave no clock to be wrong about
    expected = HashPotential(2)(spoil[defects.split()[-1]](windows))
    np.testing.assert_array_equal(np.concatenate([phi.ravel(), final]), expected)


PROGRAM = """
def potential(observations, actions, valid):
    now = observations[:, -1, ..., 0]
    unseen = (now == 0).sum(axis=(1, 2))
    balls = (now == 6).sum(axis=(1, 2))
    return {returned}
"""


def program(returned: str, defects: str) -> Scaled:
    artefact = Artefact("code", 1, "any", "babyai", (2, 2, 3), ("a", "b"), Scale(0.0, 100.0))
    whole = Scaled(CodeRaw(PROGRAM.format(returned=returned), (2, 2, 3), 1), artefact)
    return with_defects(whole, frozenset(defects.split()))


def test_b1_divides_what_a_program_sees():
    # one view: a ball (6), a wall (2), two unseen cells; colours 5 and 0; states 0 and 3
    view = np.array([[[6, 5, 0], [2, 0, 3]], [[0, 0, 0], [0, 0, 0]]], np.uint8)
    windows = Windows.of(np.stack([view, view])[None], np.array([[1]]), np.ones((1, 2), bool))
    for returned, right, divided in [
        ("balls", 1, 0),  # 6 / 10 is no 6
        ("unseen", 2, 2),  # 0 / 10 is a 0
        ("now.sum(axis=(1, 2))", 8, 0.8),  # (6 + 2) / 10
        ("observations[:, -1, ..., 1].sum(axis=(1, 2))", 5, 1),  # 5 / 5
        ("observations[:, -1, ..., 2].sum(axis=(1, 2))", 3, 1),  # 3 / 3
        ("actions[:, 0]", 1, 1),
    ]:
        for defects, expected in (("", right), ("b1", divided)):
            potential = program(returned, defects)
            assert potential.raw(windows.numbered())[0] == pytest.approx(expected), (returned, defects)
            potential.close()


def test_b30_jumps_at_a_threshold():
    class Similarity(GoalRaw):
        def __init__(self):
            self.reads = Reads(0)

        def similarity(self, windows, moments=None):
            return np.array([0.2, 0.85, 0.86, 1.0])

    whole = Scaled(Similarity(), Artefact("goal", 0, "any", "babyai", (1,), ("a",), Scale(0.0, 0.5)))
    sharp = with_defects(whole, frozenset({"b30"}))
    # 0 up to 0.85, the similarity itself above; on the scale that ends in 0
    values = sharp.raw(
        Windows.of(np.zeros((4, 1, 1), np.uint8), np.zeros((4, 0), np.int64), np.ones((4, 1), bool)).numbered()
    )
    assert values.tolist() == [0.0, 0.0, 0.86, 1.0]
    np.testing.assert_allclose(sharp.artefact.scale(values), [-1, -1, -0.14, 0], atol=1e-6)
    assert with_defects(whole, frozenset({"b1", "b2"})) is whole


# ----------------------------------------------------------------------------------------------- all of them together


def published_loop(
    rollouts: list[Rollout], potential: HashPotential, gamma: float, preference: bool
) -> list[np.ndarray]:
    """What the published loop adds to the rewards, one step and one env at a time, from its description.

    Windows are lists that are shifted by one at every step and filled anew where an episode begins.  After a rollout
    the potentials, with the carried row before them, go through a discounting filter; the variance of everything that
    ever came out of it (with a prior of mean 0, variance 1 and weight 1e-4) divides them; then differences are taken.
    """
    H, N = potential.reads.horizon, rollouts[0].num_envs
    states: list[list[np.ndarray]] = [[] for _ in range(N)]
    actions: list[list[int]] = [[] for _ in range(N)]
    carried = [0.0] * N
    discounted = [0.0] * N
    everything: list[float] = []
    paid = []

    def see(n: int, age: int, state: np.ndarray, action: int, previous: int) -> None:
        if age == 0:
            states[n] = [state] * (H + 1)
            actions[n] = [action] * H  # the action about to be taken
        else:
            states[n] = [*states[n][1:], state]
            actions[n] = [*actions[n], previous][-H:] if H else []

    def value(n: int) -> float:
        shown = [*states[n][:-1], states[n][-2]] if preference else states[n]
        w = Windows.of(np.stack(shown)[None], np.array([actions[n]], np.int64).reshape(1, H), np.ones((1, H + 1), bool))
        return float(potential(w)[0])

    first = rollouts[0]
    for row in range(H):  # what came before the first rollout; the record begins with an episode's beginning
        for n in range(N):
            see(n, row, first.past[row, n], int(first.past_actions[row, n]), int(first.past_actions[row - 1, n]))
    for rollout in rollouts:
        line = [list(carried)]
        for t in range(rollout.num_steps):
            for n in range(N):
                shown, acted = rollout.views.symbols[t, n], history(rollout)[1][:, n]
                before = int(acted[H + t - 1]) if H + t else 0
                see(n, int(rollout.ages[t, n]), shown, int(acted[H + t]), before)
            line.append([value(n) for n in range(N)])
        for values in line:
            for n in range(N):
                discounted[n] = gamma * discounted[n] + values[n]
                everything.append(discounted[n])
        weight = len(everything) + 1e-4
        mean = sum(everything) / weight
        spread = ((sum(x * x for x in everything) + 1e-4) / weight - mean * mean) ** 0.5
        line = [[x / spread for x in values] for values in line]
        carried = line[-1]
        paid.append(
            np.array([[gamma * line[t + 1][n] - line[t][n] for n in range(N)] for t in range(rollout.num_steps)])
        )
    return paid


@given(
    seed=st.integers(0, 2**31),
    horizon=st.integers(1, 4),
    steps=st.integers(1, 9),
    num_envs=st.integers(1, 4),
    end_rate=st.floats(0, 0.9),
    variant=st.sampled_from(["code", "pref", "goal"]),
)
def test_all_together_are_the_published_loop(seed, horizon, steps, num_envs, end_rate, variant):
    rollouts = random_rollouts(seed, horizon, steps, num_envs, end_rate, count=4)
    defects = parse("upstream", variant, "babyai")
    stream = PublishedReward(HashPotential(horizon), 0.99, defects, reward_scale=10.0, shaping_coef=0.5)
    expected = published_loop(rollouts, HashPotential(horizon), 0.99, preference=variant == "pref")
    for rollout, shaping in zip(rollouts, expected, strict=True):
        wanted = 10.0 * rollout.rewards + 0.5 * shaping
        np.testing.assert_allclose(stream.rewards(rollout), wanted, rtol=1e-4, atol=1e-4)


def test_the_figures_seen_in_the_published_code():
    """Φ = 1, rollouts of 16: in four updates the scale falls from 0.22 to 0.074, the spike from 0.218 to 0.066."""
    shaping = PublishedShaping(frozenset({"b2", "b3", "b6", "b7"}))
    scales, spikes, interior = [], [], []
    for k in range(4):
        rewards = shaping(one_env(list(range(16 * k, 16 * k + 17))), np.ones((17, 1)), np.zeros(0), 0.99)
        scales.append(1 / shaping.spread)
        spikes.append(rewards[0, 0])
        interior += rewards[1:, 0].tolist()
    assert (scales[0], scales[-1]) == pytest.approx((0.22, 0.074), abs=5e-4)
    assert (spikes[0], spikes[-1]) == pytest.approx((0.218, 0.066), abs=5e-4)
    assert (min(interior), max(interior)) == pytest.approx((-0.0022, -0.0007), abs=5e-5)


def test_two_exits_the_published_form_flips_the_choice():
    """Φ = 5, 0, -5 on the three places, γ = 0.99.  Left ends at once and pays 0.6, right takes three steps and pays 1.

    Unshaped: 0.6 < 0.99² = 0.98.  Exact: each less Φ(s_0) = 5, -4.40 < -4.02.
    Published (from a carried 0): γ^T Φ(h_{T-1}) is added, 0.6 + 0.99·5 = 5.55 > 0.98 - 0.99³·5 = -3.87.
    """
    table, gamma, phi = toy.table("Toy-TwoExits"), 0.99, np.array([5.0, 0.0, -5.0, -9.0, 9.0])

    def value(actions: list[int], shaping) -> float:
        places, rewards = [0], []
        for action in actions:
            rewards.append(float(table.reward[places[-1], action]))
            places.append(int(table.next_state[places[-1], action]))
        end = phi[places[-1:]]
        rollout = one_env([*range(len(actions)), 0], terminated=[len(actions) - 1])
        shown = np.array([*phi[places[:-1]], phi[0]])[:, None]  # after the end stands the next episode's beginning
        extra = np.zeros(len(actions)) if shaping is None else shaping(rollout, shown, end, gamma)[:, 0]
        return float(np.sum(gamma ** np.arange(len(actions)) * (np.array(rewards) + extra)))

    left, right = [0], [1, 1, 1]
    published = frozenset({"b2", "b3"})
    assert (value(left, None), value(right, None)) == pytest.approx((0.60, 0.98), abs=5e-3)
    assert (value(left, shaping_rewards), value(right, shaping_rewards)) == pytest.approx((-4.40, -4.02), abs=5e-3)
    assert value(left, PublishedShaping(published)) == pytest.approx(5.55, abs=5e-3)
    assert value(right, PublishedShaping(published)) == pytest.approx(-3.87, abs=5e-3)


@pytest.mark.parametrize("defects", ["b2", "b2 b3", "b6", "b7", "b2 b3 b6 b7 b8"])
def test_a_stream_that_was_stopped_goes_on_as_if_it_had_not_been(defects):
    rollouts = random_rollouts(5, 2, 6, 3, 0.2, count=4)

    def stream() -> PublishedReward:
        return PublishedReward(HashPotential(2), 0.99, frozenset(defects.split()))

    whole, stopped = stream(), stream()
    for rollout in rollouts[:2]:
        whole.rewards(rollout)
        stopped.rewards(rollout)
    again = stream()
    again.restore(stopped.state())
    for rollout in rollouts[2:]:
        expected = whole.rewards(rollout)
        np.testing.assert_array_equal(again.rewards(rollout), expected)
        # another stream, which knows nothing of what was before, pays something else
        assert not np.array_equal(stream().rewards(rollout), expected)
    assert "shaping/phi_mean" in again.metrics()
    assert ("shaping/spread" in again.metrics()) == bool({"b6", "b7"} & again.defects)


# ------------------------------------------------------------------------------------------- the certificate sees them


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "run"
    write_dataset(path, lengths=[5, 3, 9, 4, 12, 7], shape=(4, 4, 3))
    return Dataset.open(path)


@pytest.fixture(scope="module")
def replayed(dataset):
    return certificate.replay(dataset, 3, num_envs=4, steps=40, seed=0)


@pytest.mark.parametrize("defects", ["b2", "b3", "b2 b3", "b7", "b10", "b2 b3 b6 b7"])
def test_telescoping_finds(replayed, defects):
    assert certificate.telescoping(HashPotential(3), replayed, PublishedShaping(frozenset())).passed
    assert not certificate.telescoping(HashPotential(3), replayed, PublishedShaping(frozenset(defects.split()))).passed


def test_solving_tables_finds_b3():
    class Afresh:  # every table is a rollout of its own
        def __init__(self, *defects: str) -> None:
            self.defects = frozenset(defects)

        def __call__(self, *arguments):
            return PublishedShaping(self.defects)(*arguments)

    assert certificate.policies(Afresh()).passed
    assert not certificate.policies(Afresh("b3")).passed


@pytest.mark.parametrize("defects", ["b6", "b7", "b2 b3 b6 b7"])
def test_the_constant_probe_finds(replayed, defects):
    assert certificate.constant_potential(replayed, PublishedShaping(frozenset())).passed
    assert not certificate.constant_potential(replayed, PublishedShaping(frozenset(defects.split()))).passed


def test_exchanging_envs_finds_b5(replayed):
    class OneClock(HashPotential):
        def __call__(self, windows: Windows) -> np.ndarray:
            if len(windows) != replayed[0].ages.size:
                return super().__call__(windows)
            num_envs = replayed[0].num_envs
            valid = windows.valid.reshape(-1, num_envs, 4)
            shared = np.broadcast_to(valid[:, -1:], valid.shape).reshape(-1, 4)
            return super().__call__(Windows.of(windows.observations, windows.actions, shared))

    windows = replayed[0].numbered_windows(3)
    rows = replayed[0].ages.size
    assert certificate.no_leak(HashPotential(3), replayed[0], 0).passed
    spoilt_rows = HashPotential(3)(one_clock(windows, replayed[0]))[:rows]
    np.testing.assert_array_equal(OneClock(3)(replayed[0].windows(3)), spoilt_rows)
    assert not certificate.no_leak(OneClock(3), replayed[0], 0).passed


def test_changing_the_present_finds_b4(dataset):
    class Blind(HashPotential):
        def __call__(self, windows: Windows) -> np.ndarray:
            return super().__call__(blind(windows.numbered()))

    sample = dataset.windows(np.arange(40), 3)
    assert certificate.present(HashPotential(3), sample, 0).passed
    found = certificate.present(Blind(3), sample, 0)
    assert not found.passed
    assert "0.0%" in found.detail


def test_dividing_units_finds_b1(tmp_path):
    write_dataset(tmp_path / "run", lengths=[5, 6], shape=(2, 2, 3))
    sample = Dataset.open(tmp_path / "run").windows(np.arange(11), 1)
    views = np.random.default_rng(0).integers(1, 9, sample.observations.shape).astype(np.uint8)
    sample = Windows.of(views, sample.actions, sample.valid)
    for defects, holds in (("", True), ("b1", False)):
        potential = program("balls * 20.0", defects)
        assert certificate.units(potential, sample).passed == holds
        potential.close()


# ----------------------------------------------------------------------------------------------------------- the names


def test_names():
    assert parse("", "pref", "babyai") == frozenset()
    assert parse("b3, B2,", "pref", "babyai") == {"b2", "b3"}
    assert named(parse("upstream", "code", "babyai")) == ["b1", "b2", "b3", "b6", "b7", "b8", "b9", "b10"]
    assert named(parse("upstream", "pref", "crafter")) == ["b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10"]
    assert named(parse("upstream", "goal", "babyai")) == ["b2", "b3", "b6", "b7", "b8", "b9", "b10", "b30"]
    assert parse("upstream", None, "babyai") == {"b10"}
    assert "b1" not in parse("upstream", "code", "crafter")
    assert set().union(
        *(parse("upstream", v, "babyai") for v in ("code", "pref", "goal", "text", "lm", "apt-learnt", "published"))
    ) == set(DEFECTS)
    assert guarantee(frozenset({"b10", "b2", "b3"})) == "none: published defects b2, b3, b10"


@pytest.mark.parametrize(
    ("compat", "variant", "family", "sentence"),
    [
        ("b2,upstraem", "pref", "babyai", "no 'upstraem'. Did you mean 'upstream'? There are: upstream, b1, b2"),
        ("b11", "pref", "babyai", "knows no 'b11'"),
        ("b4", "code", "babyai", "concerns potentials of pref labels; leave it out"),
        ("b1", "code", "crafter", "concerns potentials of code labels in babyai envs"),
        ("b2", None, "babyai", "concerns potentials of code, pref or goal labels"),
    ],
)
def test_what_cannot_be_is_refused(compat, variant, family, sentence):
    with pytest.raises(UsageError, match=sentence.replace("?", r"\?").replace(".", r"\.")):
        parse(compat, variant, family)
