"""One thread, as the stages themselves ask for."""

import torch

torch.set_num_threads(1)
