"""What the single worlds have in common: `gymnasium.Env` that is over once it is closed."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.error import ClosedEnvironmentError


class WorldEnv(gymnasium.Env[Any, Any]):
    """One world as an ordinary environment; `info["success"]` of a step says whether it was solved just now."""

    closed = False

    def close(self) -> None:
        """No reset and no step from now on."""
        self.closed = True

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{what} after close(): make the world anew")
