"""One run over several processes: ranks divide the scoring and the gradients, and are the same in all else.

Each rank steps the same envs with the same seeds, draws the same noise and the same minibatches. What costs time is
divided: without gradients, a rank scores its part of the views and gets the rest from the others; with them, it
computes its part of a minibatch, and gradients are added up. So all ranks hold the same weights, which every iteration
checks. Rank 0 alone writes the run. `torchrun` starts the processes and tells them in the environment who they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from bkrl.core.errors import BkrlError, RunFailed

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another that is alive, such as one that writes a checkpoint."""
_LAST_WORDS = 10.0
"""Seconds that the other ranks leave rank 0 to say what is wrong."""


class RankLost(RunFailed):
    """Another rank has ended."""


def count() -> int:
    """How many ranks there are; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def number() -> int:
    """Which one this is, from 0."""
    return int(os.environ.get("RANK", "0")) if count() > 1 else 0


@contextmanager
def joined() -> Iterator[None]:
    """The ranks find each other, and part at the end. An error that all ranks meet is left to rank 0 to tell.

    Raises:
        RankLost: they do not find each other, or one has ended since.
    """
    if count() == 1:
        yield
        return
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with _watched():
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=PATIENCE)
    wait()  # a rank that fails at once must not be gone before another has found it
    try:
        yield
    except BkrlError as problem:
        if number() == 0 or isinstance(problem, RankLost):
            raise
        time.sleep(_LAST_WORDS)  # torchrun ends all ranks as soon as one has ended
        raise SystemExit(problem.exit_code) from None
    torch.distributed.destroy_process_group()


@contextmanager
def _watched() -> Iterator[None]:
    """RankLost for what torch says when it waits for a rank that is no longer there."""
    try:
        yield
    except RuntimeError as error:  # the backends have no errors of their own
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RankLost(
            f"Rank {number()} of {count()} has lost another rank, which was killed or has failed ({said}). The same "
            "command goes on from the last checkpoint."
        ) from None


def wait() -> None:
    """Until all ranks are here."""
    agreed(False, (), 0)


def agreed(flag: bool, parameters: Sequence[Tensor], step: int) -> bool:
    """Whether the flag is set on any rank.

    Raises:
        RunFailed: ranks are at different steps, or have different weights.
    """
    if count() == 1:
        return flag
    with torch.no_grad():
        weights = sum(float(parameter.double().sum()) for parameter in parameters)
    ends = torch.tensor([float(flag), weights, -weights, step, -step], dtype=torch.float64)
    with _watched():
        torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX)
    if ends[1] != -ends[2] or ends[3] != -ends[4]:
        raise RunFailed(
            f"Ranks differ in their weights or in their step, which is {step:,} here: they are not the same program on "
            "the same kind of machine, or this is a bug to report. The same command goes on from the last checkpoint."
        )
    return bool(ends[0])


def share(agent: Any) -> None:
    """Divide among the ranks what an agent without memory computes without gradients."""
    if count() == 1:
        return
    alone = agent.forward

    def forward(inputs: dict[str, Tensor], state: Any, started: Any) -> tuple[Tensor, Tensor, Any]:
        if torch.is_grad_enabled():
            return alone(inputs, state, started)  # type: ignore[no-any-return]
        # With 5 rows and 2 ranks: rows 0, 1, 2 and 3, 4, 4, for all parts must be of one size.
        total = len(next(iter(inputs.values())))
        each = -(-total // count())
        first = number() * each
        rows = torch.arange(first, first + each).clamp(max=total - 1)
        part = {name: tensor.index_select(0, rows.to(tensor.device)) for name, tensor in inputs.items()}
        logits, values, state = alone(part, state, started)
        own = torch.cat([logits, values], 1).contiguous()
        everything = own.new_empty(each * count(), own.shape[1])
        with _watched():
            torch.distributed.all_gather(list(everything.split(each)), own)
        logits, values = everything[:total].split([logits.shape[1], values.shape[1]], 1)
        return logits, values, state

    agent.forward = forward


def mine(rows: Tensor) -> Tensor:
    """This rank's part of rows, one of nearly equal ones; it may be empty."""
    return rows.tensor_split(count())[number()]


def summed(parameters: Sequence[nn.Parameter], figures: Tensor) -> Tensor:
    """Add up the gradients of all ranks, in place, and figures."""
    if count() == 1:
        return figures
    for parameter in parameters:
        if parameter.grad is None:  # on a rank without a part
            parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([*(grad.flatten() for grad in grads), figures])
    with _watched():
        torch.distributed.all_reduce(flat)
    *parts, total = flat.split([*(grad.numel() for grad in grads), len(figures)])
    for grad, part in zip(grads, parts, strict=True):
        grad.copy_(part.view_as(grad))
    return total
