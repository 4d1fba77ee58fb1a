"""NumPy's `RandomState` in machine code: the MT19937 stream and the three methods Crafter calls.

Matsumoto & Nishimura (1998), with the conventions of numpy's legacy generator: doubles of 53 bits from two words, and
`randint` by masked rejection. An env keeps its 624 words in `env.mt` and its place among them in `env.mt_pos`.
"""

from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, helper

WORDS: Final = 624
_SHIFT: Final = 397
_UPPER: Final = np.uint32(0x80000000)
_LOWER: Final = np.uint32(0x7FFFFFFF)
_MATRIX: Final = np.uint32(0x9908B0DF)


@helper
def seed_stream(env: Any, seed: Int) -> None:
    """`RandomState(seed)` for 0 <= seed < 2**32."""
    mt = env.mt
    word = np.uint32(seed)
    mt[0] = word
    for i in range(1, WORDS):
        word = np.uint32(np.uint64(1812433253) * np.uint64(word ^ (word >> np.uint32(30))) + np.uint64(i))
        mt[i] = word
    env.mt_pos = WORDS


@helper
def _mixed(upper: Int, lower: Int, far: Int) -> Int:
    y = (np.uint32(upper) & _UPPER) | (np.uint32(lower) & _LOWER)
    return np.uint32(far) ^ (y >> np.uint32(1)) ^ (np.uint32(0) - (y & np.uint32(1)) & _MATRIX)


@helper
def _twist(mt: Any) -> None:
    """The next 624 words. Three plain loops, so that the compiler can use vector instructions."""
    for k in range(WORDS - _SHIFT):
        mt[k] = _mixed(mt[k], mt[k + 1], mt[k + _SHIFT])
    for k in range(WORDS - _SHIFT, WORDS - 1):
        mt[k] = _mixed(mt[k], mt[k + 1], mt[k + _SHIFT - WORDS])
    mt[WORDS - 1] = _mixed(mt[WORDS - 1], mt[0], mt[_SHIFT - 1])


@helper
def _tempered(word: Int) -> Int:
    y = np.uint32(word)
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    return y ^ (y >> np.uint32(18))


@helper
def next_word(env: Any) -> Int:
    """32 random bits."""
    if env.mt_pos == WORDS:
        _twist(env.mt)
        env.mt_pos = 0
    word = _tempered(env.mt[env.mt_pos])
    env.mt_pos += 1
    return word


@helper
def _double(first: Int, second: Int) -> float:
    """A double in [0, 1) from two words: 27 bits of one and 26 of the other."""
    return (np.int64(first >> np.uint32(5)) * 67108864.0 + np.int64(second >> np.uint32(6))) / 9007199254740992.0


@helper
def uniform(env: Any) -> float:
    """`RandomState.uniform()`: a double in [0, 1)."""
    first = next_word(env)
    return _double(first, next_word(env))


@helper
def uniforms(env: Any, out: Any) -> None:
    """`RandomState.uniform(size=len(out))`; as one `uniform` after the other, by vector instructions."""
    words = np.empty(2 * len(out), np.uint32)
    done: Int = 0
    while done < len(words):
        if env.mt_pos == WORDS:
            _twist(env.mt)
            env.mt_pos = 0
        start = np.int64(env.mt_pos)
        block = min(WORDS - start, len(words) - done)
        for k in range(block):
            y = env.mt[np.uint64(start + k)]
            y ^= y >> np.uint32(11)
            y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
            y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
            words[np.uint64(done + k)] = y ^ (y >> np.uint32(18))
        env.mt_pos += block
        done += block
    for k in range(len(out)):
        high, low = np.int32(words[2 * k] >> np.uint32(5)), np.int32(words[2 * k + 1] >> np.uint32(6))
        out[k] = (high * 67108864.0 + low) / 9007199254740992.0


@helper
def randint(env: Any, stop: Int) -> Int:
    """`RandomState.randint(0, stop)` for 1 <= stop <= 2**32 - 1; draws nothing when stop is 1."""
    largest = np.uint32(stop - 1)
    if largest == 0:
        return np.int64(0)
    mask = largest
    mask |= mask >> np.uint32(1)
    mask |= mask >> np.uint32(2)
    mask |= mask >> np.uint32(4)
    mask |= mask >> np.uint32(8)
    mask |= mask >> np.uint32(16)
    while True:
        value = next_word(env) & mask
        if value <= largest:
            return np.int64(value)


@helper
def skip_words(env: Any, count: Int) -> None:
    """Move on by `count` words without looking at them: exactly the stream after that many `next_word`s."""
    position = env.mt_pos + count
    while position > WORDS:
        _twist(env.mt)
        position -= WORDS
    env.mt_pos = position
