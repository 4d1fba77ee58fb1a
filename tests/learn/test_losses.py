"""PPO's losses: the kernel against torch, with gradients, and what becomes of what is no number."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from bkrl.learn.losses import StepBatch, Weights, by_torch, losses

S, B, A, K = 90, 40, 5, 2


def given(spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, StepBatch, torch.Tensor]:
    """Logits and values that have moved since the steps were taken, some further than the clip allows."""
    torch.manual_seed(0)
    actions, mb = torch.randint(A, (S,)), torch.randperm(S)[:B]
    before, logits = torch.randn(S, A).log_softmax(-1), torch.empty(B, A)
    logits[:] = before[mb] + 0.3 * spread * torch.randn(B, A) + torch.randn(B, 1)
    logits[0] = before[mb[0]]  # a ratio of 1
    taken = StepBatch(
        actions, before.gather(1, actions[:, None])[:, 0], torch.randn(S), torch.randn(S, K), torch.randn(S, K)
    )
    return logits, taken.values[mb] + 0.3 * spread * torch.randn(B, K), taken, mb


@pytest.mark.parametrize(("spread", "clip_value"), [*product([0.0, 1.0, 5.0], [None, 0.2])])
def test_losses_and_their_gradients_are_those_of_torch(spread: float, clip_value: float | None) -> None:
    logits, values, taken, mb = given(spread)
    weights = Weights(0.2, clip_value, 0.5, 0.01)
    found = []
    for compute in (losses, by_torch):
        said = logits.clone().requires_grad_(), values.clone().requires_grad_()
        loss, figures = compute(*said, taken, mb, weights)
        assert not figures.requires_grad
        found.append((loss, figures, *torch.autograd.grad(3 * loss, said)))
    assert found[0][1][4] > 0 or spread < 1, "some ratios are clipped"
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_slices_are_read_as_whole_arrays_are() -> None:
    logits, values, taken, mb = given()
    together = torch.cat([logits, values], 1)
    weights = Weights(0.2, None, 0.5, 0.01)
    apart = losses(logits, values, taken, mb, weights)
    sliced = losses(*together.split([A, K], 1), taken, mb, weights)
    assert torch.equal(apart[0], sliced[0])
    assert torch.equal(apart[1], sliced[1])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", range(4))
def test_what_is_no_number_is_not_hidden(where: int, bad: float) -> None:
    """Otherwise a run that is lost would go on."""
    logits, values, taken, mb = given()
    (logits[0], values[0], taken.log_probs[mb[0]], taken.returns[mb[0]])[where].fill_(bad)
    for clip_value in (None, 0.2):
        weights = Weights(0.2, clip_value, 0.5, 0.01)
        (loss, figures), (wanted, others) = (one(logits, values, taken, mb, weights) for one in (losses, by_torch))
        assert torch.equal(figures.isfinite(), others.isfinite())
        assert loss.isfinite() == wanted.isfinite()
        assert not torch.cat([loss[None], figures]).isfinite().all()
