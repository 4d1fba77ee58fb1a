"""The weights of networks: in files, which are read back only as they were written, and in checkpoints."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bkrl.core.errors import InputError
from bkrl.core.files import atomic_write
from bkrl.core.prefixes import under


def write_weights(path: Path, module: nn.Module) -> None:
    tensors = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    atomic_write(path, safetensors.torch.save(tensors))


def read_weights(path: Path) -> dict[str, Tensor]:
    """What `write_weights` wrote; InputError where it is damaged."""
    try:
        return safetensors.torch.load(path.read_bytes())
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); train the policy again.") from None


def load_weights(module: nn.Module, saved: Mapping[str, np.ndarray], prefix: str) -> None:
    """Give a module the weights that stand in a checkpoint behind a prefix."""
    module.load_state_dict({name: torch.from_numpy(array) for name, array in under(saved, prefix).items()})


def finite(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Whether all parameters are; buffers need not be (advice that says nothing has an infinite scale)."""
    return all(bool(tensors[name].isfinite().all()) for name, _ in module.named_parameters())
