"""What networks are put together from: layers whose weights are not drawn twice, pictures as numbers, products in
float32.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

CELL_SIDE = 7
"""Crafter's pictures of 64×64 pixels are 9×9 squares of this side, the map's cells above the inventory's, and a rim."""


def is_image(obs_shape: Sequence[int]) -> bool:
    """Whether observations of this shape are pictures rather than symbols."""
    return len(obs_shape) == 3 and min(obs_shape[0], obs_shape[1]) >= 16


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """The array as a tensor there. A GPU fetches it from memory that stays in its place while the processor goes on."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Pixels(nn.Module):
    """(B, H, W, C) uint8 → (B, C, H, W) float32, each channel divided by its own scale."""

    scale: Tensor

    def __init__(self, scale: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(list(scale)).view(1, -1, 1, 1), persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        # In place: a minibatch of pictures is tens of megabytes, and new memory costs more than the division.
        return observations.permute(0, 3, 1, 2).float().div_(self.scale)


def in_float32(tensor: Tensor) -> AbstractContextManager[object]:
    """The last products stay in float32 under autocast: a logit rounded to 8 bits would move ratios by percents.

    Without autocast there is nothing to enter, which takes a tenth of an acting step.
    """
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """Several threads share a sum out in another way: what is learnt, or measured, would have other last digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def multiplies_bf16(device: str) -> bool:
    """Whether the hardware has instructions for bfloat16 products; without them they are slower than float32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Absent in some versions of torch and on other processors: then the answer is no.
    tests = (vars(torch.cpu).get(name) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return any(test() for test in tests if test is not None)


class Linear(nn.Linear):
    """A layer whose weights are not written: torch would draw throw-away ones from its global generator.

    `nn.utils.skip_init` does the same by way of a part of torch that takes half a second to load.
    """

    def reset_parameters(self) -> None:
        """Nothing."""


class _Conv2d(nn.Conv2d):
    """The same for convolutions."""

    def reset_parameters(self) -> None:
        """Nothing."""


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = Linear(inputs, outputs)
    nn.init.zeros_(layer.bias)
    return layer


def conv(inputs: int, outputs: int, kernel: int, stride: int, padding: int = 0) -> nn.Conv2d:
    layer = _Conv2d(inputs, outputs, kernel, stride=stride, padding=padding)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def num_features(encoder: nn.Module, obs_shape: Sequence[int]) -> int:
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.zeros_(module.weight)
    with torch.no_grad():
        return encoder(torch.zeros(1, *obs_shape, dtype=torch.uint8)).shape[1]
