"""Names of arrays in a checkpoint: each part's begin with a prefix of its own."""

from collections.abc import Mapping
from typing import Any


def under(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Those whose names begin with a prefix, by what follows it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
