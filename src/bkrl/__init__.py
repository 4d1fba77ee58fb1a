"""bkrl: a language model's background knowledge, as a potential that makes reinforcement learning faster.

The pipeline is six verbs, in `bkrl.stages`: collect, label, train_rm, train_rs, evaluate, report.
"""

__version__ = "0.1.0"
