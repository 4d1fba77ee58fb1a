"""Kernels of language models, with their gradients, against the same written out in torch."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu, rms_norm

from bkrl.agents.language import rows
from bkrl.agents.language.lanes import LANES, exp, load, store
from bkrl.core.jit import kernel


@kernel
def exponentials(numbers, out):
    for at in range(0, len(numbers), LANES):
        store(out, at, exp(load(numbers, at)))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def held(made, wanted, *inputs):
    """What is made, and its gradients."""
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-5)
    towards = torch.randn(made.shape, generator=torch.Generator().manual_seed(9))
    found, right = (torch.autograd.grad(one, inputs, towards, retain_graph=True) for one in (made, wanted))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def attention(q, k, v, bias):
    return (q @ k.mT + bias).softmax(-1) @ v


def heads(qkv, H):
    return qkv.unflatten(-1, (3, H, -1)).permute(1, 2, 0, 3)


def test_powers_of_e():
    numbers = np.concatenate([np.linspace(-87, 88, 4096, dtype=np.float32), np.zeros(16, np.float32)])
    out = np.empty_like(numbers)
    exponentials(numbers, out)
    np.testing.assert_allclose(out, np.exp(numbers.astype(np.float64)), rtol=5e-7)
    odd = np.array([-math.inf, -1e30, math.inf, math.nan] * 4, np.float32)
    exponentials(odd, out)
    assert out[0] == out[1] < 1e-37
    assert out[2] > 1e38
    assert math.isnan(out[3])  # or a network that is no longer finite would go on


@pytest.fixture
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.parametrize(("H", "W"), [(2, 4), (4, 16), (1, 20)])
def test_attention_of_each_prompt_to_itself(threads, H, W):
    lengths = [7, 150, 1, 16, 3]  # one is longer than what is computed at a time
    qkv, slopes = drawn(sum(lengths), 3 * H * W), drawn(H, 2 * 151 + LANES, seed=1)
    wanted = []
    for part in qkv.split(lengths):
        places = torch.arange(len(part))
        bias = slopes[:, 151 + places[:, None] - places]
        wanted.append(attention(*heads(part, H), bias).transpose(0, 1).flatten(1))
    held(rows.to_itself(qkv, slopes, np.array(lengths)), torch.cat(wanted), qkv, slopes)


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
def test_attention_of_queries_to_prompts(threads):
    lengths, (B, L, D) = [5, 40, 1, 17], (4, 6, 24)
    queries, states = drawn(B, L, D), drawn(sum(lengths), D, seed=1)
    parts = zip(queries, states.split(lengths), strict=True)
    wanted = torch.stack([attention(asked, part, part, torch.zeros(())) for asked, part in parts])
    held(rows.to_prompts(queries, states, np.array(lengths)), wanted, queries, states)
    held(rows.to_prompts(queries, states.detach(), np.array(lengths)), wanted, queries)  # of a frozen encoder


def test_attention_in_a_tree():
    B, L, (H, W) = 3, 18, (2, 8)
    qkv, bias = drawn(B, L, 3 * H * W), drawn(H, L, L, seed=1)
    near = bias.masked_fill(~torch.ones(L, L, dtype=torch.bool).tril(), -math.inf)
    wanted = torch.stack([attention(*heads(row, H), near).transpose(0, 1).flatten(1) for row in qkv])
    held(rows.in_tree(qkv, near), wanted, qkv, bias)


def test_gates():
    both = torch.cat([torch.linspace(-12, 12, 160).view(5, 32), drawn(5, 32).detach()], 1).requires_grad_()
    a, b = both.chunk(2, 1)
    held(rows.gated(both), gelu(a, approximate="tanh") * b, both)


def test_norms():
    numbers = drawn(4, 3, 48)
    held(rows.normed(numbers, 1e-6), rms_norm(numbers, (48,), eps=1e-6), numbers)


def test_what_is_given_in_bfloat16_is_computed_in_float32_and_said_in_bfloat16():
    both = drawn(2, 64).detach().bfloat16().requires_grad_()
    made, wanted = rows.gated(both), rows.gated(both.detach().float())
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made, wanted.bfloat16())
    made.sum().backward()
    assert both.grad.dtype == torch.bfloat16


def test_what_is_no_number_stays_none():
    qkv = drawn(4, 48).detach()
    qkv[2, 3] = math.nan
    assert rows.to_itself(qkv, torch.zeros(1, 8 + LANES), np.array([4])).isnan().any()
