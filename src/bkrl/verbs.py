"""The verbs of the command line, each with the class of its settings."""

from bkrl.core.config import CollectConfig, EvaluateConfig, ReportConfig, ReproduceConfig, SweepConfig
from bkrl.labelers.config import EvolveConfig, LabelConfig
from bkrl.methods import TrainRsConfig
from bkrl.potentials.config import TrainRmConfig

VERBS: dict[str, type] = {
    "collect": CollectConfig,
    "label": LabelConfig,
    "train-rm": TrainRmConfig,
    "train-rs": TrainRsConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
    "reproduce": ReproduceConfig,
}
"""The pipeline in order: the command line, docs/cli.md, studies and reports find the settings of a verb here."""
MANY: dict[str, type] = {"sweep": SweepConfig, "evolve": EvolveConfig}
"""Commands about many runs, with flags made in the same way."""
