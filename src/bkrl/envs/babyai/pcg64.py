"""NumPy's PCG64 and its bounded integers, on the state kept in an env's record.

PCG XSL RR 128/64 (O'Neill 2014) with NumPy's 32-bit buffering, and Lemire's bounded integers (2019) as in
`numpy/random/src/distributions`: the draws are those of `numpy.random.Generator(PCG64(seed)).integers(low, high)`.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import helper

# The 128-bit multiplier, and masks and shifts as unsigned integers: numba makes a float of int64 with uint64.
_MULTIPLIER_HIGH: Final = np.uint64(0x2360ED051FC65DA4)
_MULTIPLIER_LOW: Final = np.uint64(0x4385DF649FCCF645)
_LOW_32: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)
_58: Final = np.uint64(58)
_63: Final = np.uint64(63)
_64: Final = np.uint64(64)
_WORD: Final = (1 << 64) - 1


@helper
def _product_high(a: Any, b: Any) -> Any:
    """The upper 64 bits of a 64 × 64 bit product."""
    a_low, a_high, b_low, b_high = a & _LOW_32, a >> _32, b & _LOW_32, b >> _32
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    cross = a_low * b_high + (middle & _LOW_32)
    return a_high * b_high + (middle >> _32) + (cross >> _32)


@helper
def _next_64(env: Any) -> Any:
    """Advance the stream and return 64 random bits."""
    low = env.rng_low * _MULTIPLIER_LOW
    high = _product_high(env.rng_low, _MULTIPLIER_LOW) + env.rng_high * _MULTIPLIER_LOW + env.rng_low * _MULTIPLIER_HIGH
    env.rng_low = low + env.rng_increment_low
    carry = np.uint64(1) if env.rng_low < low else np.uint64(0)
    env.rng_high = high + env.rng_increment_high + carry
    folded = env.rng_high ^ env.rng_low
    turn = env.rng_high >> _58
    return (folded >> turn) | (folded << ((_64 - turn) & _63))


@helper
def _next_32(env: Any) -> Any:
    """32 random bits as uint64; every second call uses the half left over by the one before."""
    if env.rng_has_spare:
        env.rng_has_spare = 0
        return np.uint64(env.rng_spare)
    bits = _next_64(env)
    env.rng_has_spare = 1
    env.rng_spare = np.uint32(bits >> _32)
    return bits & _LOW_32


@helper
def integer_below(env: Any, bound: int) -> int:
    """A uniform integer in [0, bound), as `Generator.integers(0, bound)` for bounds up to 2**32 - 1."""
    if bound == 1:
        return 0  # NumPy draws nothing
    size = np.uint64(bound)
    product = _next_32(env) * size
    if (product & _LOW_32) < size:
        threshold = (_LOW_32 - (size - np.uint64(1))) % size
        while (product & _LOW_32) < threshold:
            product = _next_32(env) * size
    drawn: Any = np.int64(product >> _32)
    return drawn


@helper
def shuffle(env: Any, values: Any) -> None:
    """`Generator.shuffle` of a list, whose bounded integers are not Lemire's: too large ones are drawn again."""
    for i in range(len(values) - 1, 0, -1):
        mask = 1
        while mask < i:
            mask = 2 * mask + 1
        j: Any = i + 1
        while j > i:
            j = np.int64(_next_32(env)) & mask
        values[i], values[j] = values[j], values[i]


@helper
def fraction(env: Any) -> float:
    """A uniform number in [0, 1), as `Generator.random()`."""
    return np.int64(_next_64(env) >> np.uint64(11)) / 9007199254740992.0  # 2**53


def write_stream(env: Any, generator: np.random.Generator) -> None:
    """Copy the state of a NumPy generator into an env's record."""
    state: Any = generator.bit_generator.state
    for name, value in (("rng", state["state"]["state"]), ("rng_increment", state["state"]["inc"])):
        env[f"{name}_high"], env[f"{name}_low"] = value >> 64, value & _WORD
    env["rng_has_spare"], env["rng_spare"] = state["has_uint32"], state["uinteger"]
    env["seeded"] = 1


def read_stream(env: Any, generator: np.random.Generator) -> None:
    """Give a NumPy generator the state of an env's stream."""
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {
            "state": int(env["rng_high"]) << 64 | int(env["rng_low"]),
            "inc": int(env["rng_increment_high"]) << 64 | int(env["rng_increment_low"]),
        },
        "has_uint32": int(env["rng_has_spare"]),
        "uinteger": int(env["rng_spare"]),
    }
