"""bkrl: a language model's background knowledge, as a potential that makes reinforcement learning faster.

The verbs of the command line are functions here. Each takes the settings of its verb and returns the run it made:

    data = bkrl.collect(bkrl.CollectConfig(env="BabyAI-Text-GoToLocal-Pretraining-S20", steps=50_000))
    labels = bkrl.label(bkrl.LabelConfig(data.path, variant="pref"))
    potential = bkrl.train_rm(bkrl.TrainRmConfig(labels.path))
    policy = bkrl.train_rs(bkrl.TrainRsConfig(alg="bk-pref", potential=potential.path, shaping="advice"))
    scores = bkrl.evaluate(bkrl.EvaluateConfig(policy.path)).facts

docs/python.md has the whole of it. A name is imported when it is first used, so `import bkrl` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bkrl.agents.trl import to_trl_environment
    from bkrl.api import collect, evaluate, label, make_report, train_rm, train_rs
    from bkrl.core.config import CollectConfig, EvaluateConfig, PPOConfig, ReportConfig
    from bkrl.core.errors import BkrlError
    from bkrl.data.dataset import Dataset
    from bkrl.envs import make, make_vec
    from bkrl.envs.own import register_env
    from bkrl.goals.suggesters import register_suggester
    from bkrl.labelers.config import LabelConfig
    from bkrl.llm import register_annotator
    from bkrl.methods import Method, Training, TrainRsConfig, register_method
    from bkrl.potentials import load_potential, register_potential
    from bkrl.potentials.config import TrainRmConfig
    from bkrl.potentials.own import write_potential
    from bkrl.runs.record import Run

__version__ = "0.1.0"

__all__ = [
    "BkrlError",
    "CollectConfig",
    "Dataset",
    "EvaluateConfig",
    "LabelConfig",
    "Method",
    "PPOConfig",
    "ReportConfig",
    "Run",
    "TrainRmConfig",
    "TrainRsConfig",
    "Training",
    "collect",
    "evaluate",
    "label",
    "load_potential",
    "make",
    "make_report",
    "make_vec",
    "register_annotator",
    "register_env",
    "register_method",
    "register_potential",
    "register_suggester",
    "to_trl_environment",
    "train_rm",
    "train_rs",
    "write_potential",
]

_HOMES = {
    "BkrlError": "core.errors",
    "Dataset": "data.dataset",
    "LabelConfig": "labelers.config",
    "Method": "methods",
    "Run": "runs.record",
    "TrainRmConfig": "potentials.config",
    "load_potential": "potentials",
    "make": "envs",
    "make_vec": "envs",
    "TrainRsConfig": "methods",
    "Training": "methods",
    "register_annotator": "llm",
    "register_env": "envs.own",
    "register_method": "methods",
    "register_potential": "potentials",
    "register_suggester": "goals.suggesters",
    "to_trl_environment": "agents.trl",
    "write_potential": "potentials.own",
}


def __getattr__(name: str) -> Any:
    if name == "Trainee":  # as plugins have called it
        name = "Training"
    if name not in __all__:
        raise AttributeError(f"module 'bkrl' has no attribute '{name}'")
    home = _HOMES.get(name, "core.config" if name.endswith("Config") else "api")
    return getattr(import_module(f"bkrl.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
