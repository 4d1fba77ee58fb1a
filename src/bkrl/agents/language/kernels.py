"""What a T5 computes between its products with weights, for one processor core: attention, gates and norms.

Tokens stand in rows behind each other, and each prompt looks at itself alone. Prompts are short: a call of torch for
each costs more than what it computes, and one for all computes padding. Arrays are float32 and flat.
"""

import math
from typing import Any, Final

import numpy as np

from bkrl.agents.language.lanes import (
    LANES,
    add,
    add_product,
    alike,
    divide,
    exp,
    larger,
    load,
    multiply,
    spread,
    store,
    subtract,
    total,
)  # fmt: skip
from bkrl.core.jit import helper, kernel

_ROWS: Final = 4
_BLOCK: Final = 128  # so many queries at a time: what belongs to them stays in the cache
_0: Final = np.float32(0)
_1: Final = np.float32(1)
_FAR: Final = np.float32(1e30)


@helper
def _up(count: Any, unit: Any) -> Any:
    return (count + unit - 1) // unit * unit


@helper
def _products(C: Any, wide: Any, A: Any, down: Any, across: Any, B: Any, rows: Any, columns: Any, count: Any) -> Any:
    """C[r, x] += Σ_k A[r, k] B[k, x] for rows in fours and columns in sixteens.

    C and B have rows of `wide[0]` and `wide[1]` numbers; A[r, k] is A[r down + k across].
    """
    of_c, of_b = wide
    for r in range(0, rows, _ROWS):
        a, c = r * down, r * of_c
        for x in range(0, columns, LANES):
            total_0, total_1 = load(C, c + x), load(C, c + of_c + x)
            total_2, total_3 = load(C, c + 2 * of_c + x), load(C, c + 3 * of_c + x)
            for k in range(count):
                line, place = load(B, k * of_b + x), a + k * across
                total_0 = add_product(total_0, line, spread(A, place))
                total_1 = add_product(total_1, line, spread(A, place + down))
                total_2 = add_product(total_2, line, spread(A, place + 2 * down))
                total_3 = add_product(total_3, line, spread(A, place + 3 * down))
            store(C, c + x, total_0)
            store(C, c + of_c + x, total_1)
            store(C, c + 2 * of_c + x, total_2)
            store(C, c + 3 * of_c + x, total_3)


@helper
def _filled(to: Any, first: Any, last: Any, number: Any) -> None:
    """The same number from one place to before another, in sixteens."""
    for x in range(first, last, LANES):
        store(to, x, alike(number))


@helper
def _copied(to: Any, wide: Any, of: Any, at: Any, pitch: Any, rows: Any, count: Any) -> None:
    """Rows of `count` numbers into rows of `wide`; to the next four rows, and in what is wider, 0."""
    for r in range(rows):
        whole = count // LANES * LANES
        for x in range(0, whole, LANES):
            store(to, r * wide + x, load(of, at + r * pitch + x))
        for x in range(whole, count):
            to[r * wide + x] = of[at + r * pitch + x]
        for x in range(count, wide):
            to[r * wide + x] = _0
    _filled(to, rows * wide, _up(rows, _ROWS) * wide, _0)


@helper
def _scaled(to: Any, at: Any, of: Any, first: Any, factor: Any, count: Any) -> None:
    """`factor` times `count` numbers."""
    whole = count // LANES * LANES
    for x in range(0, whole, LANES):
        store(to, at + x, multiply(load(of, first + x), alike(factor)))
    for x in range(whole, count):
        to[at + x] = of[first + x] * factor


@helper
def _along(a: Any, b: Any, at: Any, count: Any) -> Any:
    """Σ a b of `count` numbers from the same place on."""
    whole, lanes = count // LANES * LANES, alike(_0)
    for x in range(at, at + whole, LANES):
        lanes = add_product(lanes, load(a, x), load(b, x))
    found = total(lanes)
    for x in range(at + whole, at + count):
        found += a[x] * b[x]
    return found


@helper
def _turned(to: Any, wide: Any, of: Any, at: Any, pitch: Any, rows: Any, count: Any) -> None:
    """The same rows as columns."""
    for x in range(count):
        for r in range(rows):
            to[x * wide + r] = of[at + r * pitch + x]
        for r in range(rows, _up(rows, LANES)):
            to[x * wide + r] = _0


@helper
def _biased(to: Any, wide: Any, bias: Any, at: Any, step: Any, keys: Any, columns: Any) -> None:
    """The bias of attention: of query i and key j number `at` + i + j `step`; 0 where there is none."""
    for j in range(_up(keys, _ROWS)):
        for x in range(0, columns, LANES):
            near = alike(_0)
            if len(bias) and j < keys:
                near = load(bias, at + x + j * step)
            store(to, j * wide + x, near)


@helper
def _softmax(S: Any, wide: Any, keys: Any, columns: Any, tops: Any, totals: Any) -> None:
    """Columns become e^(x − their largest number); sums of the columns."""
    for x in range(0, columns, LANES):
        top, whole = load(S, x), alike(_0)
        for j in range(1, keys):
            top = larger(top, load(S, j * wide + x))
        for j in range(keys):
            share = exp(subtract(load(S, j * wide + x), top))
            store(S, j * wide + x, share)
            whole = add(whole, share)
        store(tops, x, top)
        store(totals, x, whole)


@kernel
def attend(
    q: Any, k: Any, v: Any, pitches: Any, firsts: Any, span: Any, queries: Any, keys: Any, bias: Any, out: Any,
    logs: Any,
) -> None:  # fmt: skip
    """Attention of each prompt's queries to its own keys, of some of the prompts.

    With Q queries and K keys in all, H heads of width W:

    Args:
        q, k, v: rows one behind the other; they may be columns of one array.
        pitches: numbers from a row to the next, of q, of k and v, of out.
        firsts: where the first row of q, k and v begins, of k and v at one place only where they are the same; then two
            numbers m and d, for `bias`.
        span: the first prompt, the one behind the last, and the queries and keys before the first.
        queries, keys: of each prompt.
        bias: (H, ·), number m + i + j d is that of query i and key j; sixteen are read at a time. (H, 0) for none.
        out: (Q, H W), the means of values.
        logs: (H, Q), the logarithms of what the weights were divided by.
    """
    H, W = len(logs), pitches[2] // len(logs)
    columns, most, block = _up(W, LANES), _up(keys.max(), LANES), min(_BLOCK, _up(queries.max(), LANES))
    middle, step = firsts[3], firsts[4]
    S, Q, M = np.empty(most * block, np.float32), np.empty(W * block, np.float32), np.empty(block * columns, np.float32)
    K, same = np.empty(most * columns, np.float32), firsts[1] == firsts[2]
    V = K if same else np.empty(most * columns, np.float32)
    tops, totals = np.empty(block, np.float32), np.empty(block, np.float32)
    asks, answers = span[2], span[3]
    for prompt in range(span[0], span[1]):
        n, s = queries[prompt], keys[prompt]
        for h in range(H):
            near = bias[h]
            _copied(K, columns, k, firsts[1] + answers * pitches[1] + h * W, pitches[1], s, W)
            if not same:
                _copied(V, columns, v, firsts[2] + answers * pitches[1] + h * W, pitches[1], s, W)
            for first in range(0, n, block):
                count, row = min(block, n - first), asks + first
                wide = _up(count, LANES)
                _turned(Q, block, q, firsts[0] + row * pitches[0] + h * W, pitches[0], count, W)
                _biased(S, block, near, middle + first, step, s, wide)
                _products(S, (block, block), K, columns, 1, Q, _up(s, _ROWS), wide, W)
                _softmax(S, block, s, wide, tops, totals)
                _filled(M, 0, wide * columns, _0)
                _products(M, (columns, columns), S, 1, block, V, _up(count, _ROWS), columns, s)
                for i in range(count):
                    logs[h, row + i] = tops[i] + math.log(totals[i])
                    _scaled(out, (row + i) * pitches[2] + h * W, M, i * columns, _1 / totals[i], W)
        asks, answers = asks + n, answers + s


@kernel
def attend_back(
    q: Any, k: Any, v: Any, pitches: Any, firsts: Any, span: Any, queries: Any, keys: Any, bias: Any, out: Any,
    logs: Any, given: Any, of_q: Any, of_k: Any, of_v: Any, of_bias: Any,
) -> None:  # fmt: skip
    """Gradients of `attend`, laid out as what they belong to.

    Args:
        q, k, v, pitches, firsts, span, queries, keys, bias, out, logs: of `attend`.
        given: (Q, H W), the gradient of out.
        of_q, of_k, of_v: written; none of k and v where of_k is empty.
        of_bias: added to.
    """
    H, W = len(logs), pitches[2] // len(logs)
    columns, most, block = _up(W, LANES), _up(keys.max(), LANES), min(_BLOCK, _up(queries.max(), LANES))
    middle, step = firsts[3], firsts[4]
    P, D = np.empty(most * block, np.float32), np.empty(most * block, np.float32)
    Q, G, OQ = (np.empty(block * columns, np.float32), np.empty(block * columns, np.float32),
                np.empty(block * columns, np.float32))  # fmt: skip
    QT, GT = np.empty(W * block, np.float32), np.empty(W * block, np.float32)
    K, same = np.empty(most * columns, np.float32), firsts[1] == firsts[2]
    V = K if same else np.empty(most * columns, np.float32)
    OK, OV = np.empty(most * columns, np.float32), np.empty(most * columns, np.float32)
    means, scales = np.empty(block, np.float32), np.empty(block, np.float32)
    asks, answers = span[2], span[3]
    for prompt in range(span[0], span[1]):
        n, s = queries[prompt], keys[prompt]
        rows = _up(s, _ROWS)
        for h in range(H):
            near, of_near = bias[h], of_bias[h]
            at_k = firsts[1] + answers * pitches[1] + h * W
            at_v = firsts[2] + answers * pitches[1] + h * W
            _copied(K, columns, k, at_k, pitches[1], s, W)
            if not same:
                _copied(V, columns, v, at_v, pitches[1], s, W)
            _filled(OK, 0, rows * columns, _0)
            _filled(OV, 0, rows * columns, _0)
            for first in range(0, n, block):
                count, row = min(block, n - first), asks + first
                wide, at = _up(count, LANES), middle + first
                at_q, at_g = firsts[0] + row * pitches[0] + h * W, row * pitches[2] + h * W
                _copied(Q, columns, q, at_q, pitches[0], count, W)
                _turned(QT, block, q, at_q, pitches[0], count, W)
                _copied(G, columns, given, at_g, pitches[2], count, W)
                _turned(GT, block, given, at_g, pitches[2], count, W)
                for i in range(count):
                    means[i], scales[i] = -_along(given, out, at_g + i * pitches[2], W), logs[h, row + i]
                for i in range(count, wide):
                    means[i], scales[i] = _0, _FAR
                _biased(P, block, near, at, step, s, wide)
                _products(P, (block, block), K, columns, 1, QT, rows, wide, W)
                for j in range(rows):
                    _scaled(D, j * block, means, 0, _1, wide)
                _products(D, (block, block), V, columns, 1, GT, rows, wide, W)
                for j in range(s):
                    for x in range(0, wide, LANES):
                        place = j * block + x
                        share = exp(subtract(load(P, place), load(scales, x)))
                        store(P, place, share)
                        share = multiply(share, load(D, place))
                        store(D, place, share)
                        if len(near):
                            store(of_near, at + x + j * step, add(load(of_near, at + x + j * step), share))
                if len(of_k):
                    _products(OV, (columns, columns), P, block, 1, G, rows, columns, count)
                    _products(OK, (columns, columns), D, block, 1, Q, rows, columns, count)
                _filled(OQ, 0, wide * columns, _0)
                _products(OQ, (columns, columns), D, 1, block, K, _up(count, _ROWS), columns, s)
                for i in range(count):
                    _scaled(of_q, at_q + i * pitches[0], OQ, i * columns, _1, W)
            for j in range(s if len(of_k) else 0):
                _scaled(of_k, at_k + j * pitches[1], OK, j * columns, _1, W)
                _scaled(of_v, at_v + j * pitches[1], OV, j * columns, _1, W)
        asks, answers = asks + n, answers + s


_SLOPE: Final = np.float32(2 * math.sqrt(2 / math.pi))
_BEND: Final = np.float32(0.044715)
_BENT: Final = np.float32(3 * 0.044715)


@helper
def _open(a: Any) -> Any:
    """How far the gate of `gated` is open, 0 to 1: gelu(a) / a by tanh, which is a logistic function of 2 u."""
    cubed = multiply(multiply(a, a), a)
    twice = multiply(alike(_SLOPE), add_product(a, alike(_BEND), cubed))
    return divide(alike(_1), add(alike(_1), exp(subtract(alike(_0), twice))))


@kernel
def gated(both: Any, width: Any, out: Any) -> None:
    """gelu(a) b of rows that hold a and behind it b, each of `width` numbers, a multiple of 16; gelu as by tanh."""
    for row in range(len(out) // width):
        for x in range(0, width, LANES):
            a, b = load(both, 2 * row * width + x), load(both, (2 * row + 1) * width + x)
            store(out, row * width + x, multiply(multiply(a, _open(a)), b))


@kernel
def gated_back(both: Any, width: Any, given: Any, of_both: Any) -> None:
    """The gradient of `gated`, from that of out."""
    for row in range(len(given) // width):
        for x in range(0, width, LANES):
            at_a, at_b = 2 * row * width + x, (2 * row + 1) * width + x
            a, b, towards = load(both, at_a), load(both, at_b), load(given, row * width + x)
            share = _open(a)
            value = multiply(a, share)
            bent = multiply(alike(_SLOPE), add_product(alike(_1), alike(_BENT), multiply(a, a)))
            rise = add_product(share, multiply(value, subtract(alike(_1), share)), bent)
            store(of_both, at_a, multiply(multiply(towards, b), rise))
            store(of_both, at_b, multiply(towards, value))


@kernel
def normed(rows: Any, width: Any, epsilon: Any, out: Any, scales: Any) -> None:
    """Rows of `width` numbers, a multiple of 16, over the root of their mean square, and one over that root."""
    for row in range(len(scales)):
        squares = alike(_0)
        for x in range(row * width, (row + 1) * width, LANES):
            squares = add_product(squares, load(rows, x), load(rows, x))
        scales[row] = np.float32(1 / math.sqrt(total(squares) / width + epsilon))
        scale = spread(scales, row)
        for x in range(row * width, (row + 1) * width, LANES):
            store(out, x, multiply(load(rows, x), scale))


@kernel
def normed_back(out: Any, width: Any, scales: Any, given: Any, of_rows: Any) -> None:
    """The gradient of `normed`, from that of out."""
    for row in range(len(scales)):
        along = alike(_0)
        for x in range(row * width, (row + 1) * width, LANES):
            along = add_product(along, load(out, x), load(given, x))
        mean = alike(np.float32(total(along) / width))
        scale = spread(scales, row)
        for x in range(row * width, (row + 1) * width, LANES):
            part = subtract(load(given, x), multiply(load(out, x), mean))
            store(of_rows, x, multiply(part, scale))
