"""Opening the weights of a causal language model: a transformers folder, or a GGUF file."""

import struct
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError
from bkrl.core.hub import quiet, read_model, read_tokenizer, reason
from bkrl.core.models import checked, fetched, find

_HEAD_BYTES = 64 * 2**20
"""All that a GGUF file says of itself stands before its tensors; vocabularies take a few MiB."""
_UNREADABLE = (
    OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError, ImportError, NotImplementedError, struct.error,
)  # fmt: skip
"""What transformers raises of files that are damaged or not supported."""


def gguf_file(name: str) -> Path:
    """The GGUF file of a path, or of a name in the catalogue. InputError when it is not here, cannot be read, or is not
    the file that the catalogue names: what it answers would be kept under that one's hash for ever.
    """
    path = Path(name) if name.endswith(".gguf") else fetched(name)
    if not path.is_file():
        raise InputError(f"There is no GGUF file {path}; name one, or a model of `bkrl lm list`.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError(f"{path} is not a GGUF file; name one, or fetch a model with `bkrl lm fetch`.")
    if lacks := [package for package in ("gguf", "accelerate") if find_spec(package) is None]:
        raise InputError(f"GGUF files need the package {lacks[0]}; run `pip install 'bkrl[local]'`.")
    return path if name.endswith(".gguf") else checked(find(name))


def chat_template_in(path: Path) -> bool:
    """Whether a model folder, or a GGUF file, holds a chat template; cheap, for nothing is parsed."""
    if path.is_dir():
        config = path / "tokenizer_config.json"
        inside = config.is_file() and b'"chat_template"' in config.read_bytes()
        return inside or any(path.glob("chat_template*")) or (path / "additional_chat_templates").is_dir()
    with path.open("rb") as file:
        return b"tokenizer.chat_template" in file.read(_HEAD_BYTES)


def _read_once() -> AbstractContextManager[Any]:
    """Read a GGUF file once: transformers reads its vocabulary three times, each word of it through numpy.memmap."""
    from unittest.mock import patch

    import gguf
    import numpy as np

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

    return patch.multiple(gguf, GGUFReader=cache(Reader), get_tensor_name_map=cache(gguf.get_tensor_name_map))


def load(path: Path, dtype: Any = "auto") -> tuple[Any, Any]:
    """A causal model in evaluation mode and its tokenizer, from a folder or a GGUF file, which is dequantised.

    What comes of a GGUF file can be saved and trained like any other model. InputError when it cannot be loaded.
    """
    from transformers import AutoModelForCausalLM
    from transformers import modeling_gguf_pytorch_utils as reader

    folder, here = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
    reader.tqdm = lambda tensors, **_: tensors  # a bar of its own, which no setting turns off
    try:
        with quiet(Warning), _read_once() if path.is_file() else nullcontext():
            tokenizer = read_tokenizer(str(path), folder, **here)
            model = read_model(AutoModelForCausalLM, folder, dtype=dtype, **here)
    except _UNREADABLE as error:
        raise InputError(f"The model {path} cannot be loaded ({reason(error)}); fetch or copy it again.") from None
    if path.is_file():  # transformers refuses to save what it thinks is quantised
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
    return model.eval(), tokenizer


def to_bfloat16(model: Any) -> Any:
    """The same model, whose linear layers multiply in bfloat16, in place; all between them stays as it is.

    Twice as fast on processors that multiply bfloat16 (products by themselves 2.2 times, with AVX-512 BF16).
    """
    import torch
    from torch.nn.functional import linear

    class Half(torch.nn.Module):
        def __init__(self, of: torch.nn.Linear) -> None:
            super().__init__()
            self.weight, self.bias = of.weight.data.bfloat16(), of.bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = linear(x.bfloat16(), self.weight).to(x.dtype)
            return y if self.bias is None else y + self.bias

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and child is not model.get_output_embeddings():
                setattr(module, name, Half(child))
    return model
