"""The published methods, each with its settings, how it is built and what reports say of it.

`--alg NAME` is looked up here. A method of your own is registered in the same way (docs/python.md).
"""

from bkrl.methods import babyai_ppo, baselines, bc, curiosity, drrn, ellm, glam, online, ppo, shaped, values
from bkrl.methods.registry import (
    Method,
    Training,
    TrainRsConfig,
    find_method,
    method_of,
    methods,
    register_method,
    settings_from,
    settings_of,
    with_setting,
)

__all__ = [
    "Method",
    "TrainRsConfig",
    "Training",
    "babyai_ppo",
    "baselines",
    "bc",
    "curiosity",
    "drrn",
    "ellm",
    "find_method",
    "glam",
    "method_of",
    "methods",
    "online",
    "ppo",
    "register_method",
    "settings_from",
    "settings_of",
    "shaped",
    "values",
    "with_setting",
]
