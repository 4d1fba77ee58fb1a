"""Hyper-parameters of learners that only train-rs has; those that collect shares stand in `core.config`."""

from dataclasses import dataclass
from typing import Annotated

from bkrl.core.flags import Flag

_FIRST = Flag("ε falls from this  [default: 1; with --init-from 0.1]", least=0, most=1)


@dataclass(frozen=True)
class PQNConfig:
    """Hyper-parameters of PQN."""

    num_envs: Annotated[int, Flag("envs stepped side by side", least=1)] = 64
    num_steps: Annotated[int, Flag("steps of each env in a rollout", least=1)] = 32
    learning_rate: Annotated[float, Flag("learning rate of RAdam, falling to 0", least=0)] = 1e-3
    gamma: Annotated[float, Flag("discount", least=0, most=1)] = 0.99
    q_lambda: Annotated[float, Flag("λ of the targets", least=0, most=1)] = 0.65
    update_epochs: Annotated[int, Flag("passes over a rollout", least=1)] = 2
    num_minibatches: Annotated[int, Flag("minibatches of a pass", least=1)] = 2
    max_grad_norm: Annotated[float, Flag("gradients are clipped to this norm", least=0)] = 10.0
    epsilon_first: Annotated[float | None, _FIRST] = None
    epsilon_last: Annotated[float, Flag("ε falls to this", least=0, most=1)] = 0.02
    epsilon_share: Annotated[float, Flag("share of the training in which ε falls", least=0, most=1)] = 0.1
    hidden: Annotated[int, Flag("width of the network's layers", least=1)] = 128


@dataclass(frozen=True)
class DQNConfig:
    """Hyper-parameters of DQN; the defaults are published, but for the envs that are stepped side by side."""

    num_envs: Annotated[int, Flag("envs stepped side by side", least=1)] = 16
    num_steps: Annotated[int, Flag("steps of each env between updates", least=1)] = 4
    learning_rate: Annotated[float, Flag("learning rate of Adam", least=0)] = 6.25e-5
    gamma: Annotated[float, Flag("discount", least=0, most=1)] = 0.99
    n_step: Annotated[int, Flag("rewards that a target sums up", least=1)] = 3
    batch_size: Annotated[int, Flag("steps in an update", least=1)] = 64
    update_every: Annotated[int, Flag("env steps for each update", least=1)] = 4
    replay_size: Annotated[int, Flag("env steps kept", least=1)] = 1_000_000
    learning_starts: Annotated[int, Flag("env steps before the first update", least=0)] = 5_000
    target_every: Annotated[int, Flag("env steps between copies into the target network", least=1)] = 8_000
    epsilon_first: Annotated[float | None, _FIRST] = None
    epsilon_last: Annotated[float, Flag("ε falls to this", least=0, most=1)] = 0.01
    epsilon_steps: Annotated[int, Flag("env steps in which ε falls", least=1)] = 1_000_000
    hidden: Annotated[int, Flag("width of the network's layers", least=1)] = 128
    after_reward: Annotated[
        bool, Flag("neither learn nor lower ε before rewards add up to 1 (published for guided exploration)")
    ] = False
    raw_rewards: Annotated[bool, Flag("rewards as they are; otherwise they are clipped to [-1, 1]")] = False


@dataclass(frozen=True)
class ReplayConfig:
    """Q-learning from a memory of steps, with the defaults of the published DRRN (Carta et al. 2023)."""

    num_envs: Annotated[int, Flag("envs stepped side by side", least=1)] = 32
    num_steps: Annotated[int, Flag("steps of each env in an iteration", least=1)] = 32
    learning_rate: Annotated[float, Flag("Adam's step size", least=0)] = 1e-4
    gamma: Annotated[float, Flag("discount of the env's reward", least=0, most=1)] = 0.9
    max_grad_norm: Annotated[float, Flag("gradients are clipped to this norm", least=0)] = 5.0
    capacity: Annotated[int, Flag("newest steps of all envs that are remembered", least=1)] = 5_000_000
    batch_size: Annotated[int, Flag("remembered steps in an update", least=1)] = 64
    train_every: Annotated[int, Flag("steps of each env between updates", least=1)] = 4
    gradient_steps: Annotated[int, Flag("updates each time", least=1)] = 1
    learning_starts: Annotated[int, Flag("steps of all envs before the first update", least=0)] = 0
    n_step: Annotated[int, Flag("rewards that are added up before a value is trusted", least=1)] = 1
    target_every: Annotated[
        int, Flag("updates between copies of the network that says what comes next; 0: the network itself", least=0)
    ] = 0
