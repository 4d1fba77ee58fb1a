"""Programs that know a task of the published levels: minus the steps to the nearest target in sight."""

from __future__ import annotations

from bkrl.envs.babyai.levels import LEVELS, Level

_PROGRAM = '''"""Knows the task: be near a target that is in sight."""

FAR = 14


def potential(observations, actions, valid):
    now = observations[:, -1]
    steps = np.abs(np.arange(7) - 3)[:, None] + (6 - np.arange(7))[None, :]
    wanted = np.zeros(now.shape[:3], dtype=bool)
{targets}
    wanted[:, 3, 6] = False
    return -np.where(wanted, steps, FAR).min(axis=(1, 2)).astype(float)
'''


def oracles() -> dict[str, str]:
    """Task → program."""
    return {env_id: _PROGRAM.format(targets="\n".join(_marks(level))) for env_id, level in LEVELS.items()}


def _marks(level: Level) -> list[str]:
    return [
        f"    wanted = wanted | ((now[..., 0] == {kind}) & (now[..., 1] == {colour}))"
        for target in level.targets
        for kind in target.kinds
        for colour in target.colors
    ]
