"""Random streams by name: the same seed and names give the same numbers in every process, whatever else draws."""

import hashlib

import numpy as np


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed in [0, 2**31) for one purpose, e.g. `derive_seed(7, "evaluate", 3)`; independent of Python's hash."""
    text = "\x1f".join([str(int(seed)), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A PCG64 generator on `derive_seed(seed, *names)`: one independent stream for each purpose."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *names)))
