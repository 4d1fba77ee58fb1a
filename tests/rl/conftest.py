"""Small networks are fastest on one thread, and results are the same bytes only on the same number of threads."""

import torch

torch.set_num_threads(1)
