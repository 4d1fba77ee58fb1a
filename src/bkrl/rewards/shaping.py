"""Exact potential-based reward shaping on a rollout (Ng, Harada & Russell 1999).

F_t = γ Φ(h_{t+1}) - Φ(h_t) is paid for action t.  Φ(terminal) = 0 (Grześ 2017).  Where a time limit ends the episode,
h_{t+1} is the window that ends in the true final observation, and the value is bootstrapped there.  Windows never
reach across an episode's start, so nothing is paid for an autoreset.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.data.windows import Rollout


class Form(NamedTuple):
    """A way in which a potential can take part in learning: what is added to what, what that keeps, the factor it has
    unless it is given another, and what may go wrong all the same.
    """

    added: str
    guarantee: str
    coef: float
    risk: str = ""


FORMS = {
    "none": Form("nothing", "nothing is shaped", 0.0),
    "pbrs": Form(
        "γΦ(h') - Φ(h) is added to the reward",
        "optimal policies are kept, exactly (potential-based shaping on the process whose states are histories)",
        1.0,
        "what is optimal is kept, but learning may not find it: what Φ says and the critic cannot see is noise to the "
        "critic, and a Φ that knows little of this task can stop learning altogether",
    ),
    "advice": Form(
        "βΨ(s, a) is added to the policy's logits, β falling to 0",
        "no reward is changed, and the optimal policy stays within reach for every β",
        6.0,
        "advice against the one action that pays can keep the policy from trying it while β is large",
    ),
    "pbrs+advice": Form(
        "γΦ(h') - Φ(h) is added to the reward, and βΨ(s, a) to the policy's logits, β falling to 0",
        "optimal policies are kept, exactly, and stay within reach for every β",
        1.0,
        "that of pbrs and that of advice",
    ),
    "decay": Form(
        "cΦ(h') is added to the reward, c falling to 0",
        "the world's own objective alone at the end of the decay; before, another one",
        0.02,
        "what is learnt before c is 0 may be wrong for the env's own reward",
    ),
    "progress": Form(
        "c(Φ(h') - Φ(h)) is added to the reward, with Φ of the true last history at every end, c falling to 0",
        "the world's own objective alone at the end of the decay; before, the bonuses of an episode sum to at most c",
        0.5,
        "what is learnt before c is 0 may be wrong for the env's own reward",
    ),
    "start": Form(
        "the first policy is softmax βΨ(s, ·): advice stands in its weights, and nothing is added later",
        "no reward is changed, and every policy stays within reach",
        0.0,
        "where the advice is wrong and never tries what pays, neither may the agent",
    ),
    "progress+start": Form(
        "c(Φ(h') - Φ(h)) is added to the reward, c falling to 0; the first policy is softmax βΨ(s, ·)",
        "the world's own objective alone at the end of the decay; before, the bonuses of an episode sum to at most c; "
        "every policy stays within reach",
        0.5,
        "that of progress and that of start",
    ),
    "pbim": Form(
        "cΦ(h') is added to the reward and taken back where the episode terminates",
        "every terminated episode's discounted bonuses sum to 0, so optimal policies are kept on histories",
        0.02,
        "at a time limit the bonuses are left to the critic's value, which knows little of them",
    ),
    "additive": Form(
        "cΦ(h') is added to the reward, for ever", "none: another task is learnt", 0.02, "another task is learnt"
    ),
    "dynamic": Form(
        "γΦ_t'(h') - Φ_t(h) is added to the reward, Φ_t being what is learnt of the annotator by then",
        "optimal policies are kept, exactly: both terms that use a visit take its potential of that time (dynamic "
        "potential-based shaping on the process whose states are histories)",
        1.0,
        "that of pbrs; and whenever Φ is fitted anew, the critic has to learn another difference",
    ),
    "novelty": Form(
        "a bonus for novelty is added to the reward", "none: what is optimal may change while the bonus lasts", 0.0
    ),
    "goals": Form("what reached goals pay is added to the reward", "none: reaching goals is another task", 1.0),
    "goals-potential": Form(
        "γG' - G is added to the reward, G being what the goals of the episode have paid so far",
        "optimal policies are kept, exactly: G is a function of the history (potential-based shaping)",
        1.0,
    ),
}
"""The forms of `train-rs --shaping`, and what methods without a potential do to the reward."""


def shaping_rewards(
    rollout: Rollout, phi: NDArray[np.floating], phi_final: NDArray[np.floating], gamma: float
) -> NDArray[np.float32]:
    """F of every step, (T, N) float32, computed in double precision.

    Args:
        rollout: T steps of N envs.
        phi: (T+1, N), Φ of the windows at rows 0..T; row t+1 after an episode's end belongs to the next episode.
        phi_final: (K,), Φ of the windows that end in the final observations.
        gamma: the discount of the learner; another one would change which policies are optimal.

    Raises:
        ValueError: shapes that do not belong to the rollout, or values that are not finite.
    """
    steps, envs = rollout.rewards.shape
    if phi.shape != (steps + 1, envs) or phi_final.shape != rollout.final_index.shape:
        raise ValueError(
            f"phi must be {(steps + 1, envs)} and phi_final {rollout.final_index.shape}, not {phi.shape} and "
            f"{phi_final.shape}"
        )
    after = next_potentials(rollout, phi, phi_final)
    shaping = gamma * after - phi[:-1].astype(np.float64)
    if not np.isfinite(shaping).all():
        raise ValueError("a potential must be finite")
    return shaping.astype(np.float32)


def next_potentials(
    rollout: Rollout, phi: NDArray[np.floating], phi_final: NDArray[np.floating]
) -> NDArray[np.float64]:
    """(T, N) Φ of the state each action led to: 0 where it is terminal, the final window's where it was truncated."""
    after = phi[1:].astype(np.float64)
    ended = np.where(rollout.terminated.ravel()[rollout.final_index], 0.0, phi_final)
    after.reshape(-1)[rollout.final_index] = ended
    return after
