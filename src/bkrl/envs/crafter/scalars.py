"""Types of numbers in kernels."""

from __future__ import annotations

from typing import Any, TypeAlias

Int: TypeAlias = Any
"""An integer: an int64 or smaller in machine code. To a type checker NumPy's integers are no ints, hence Any."""
