"""Where a network computes and in which precision: the processor or a GPU, float32 or bfloat16, compiled or not."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from bkrl.agents.networks.layers import multiplies_bf16
from bkrl.core.config import CONVOLUTIONAL, HardwareConfig
from bkrl.core.errors import RunFailed, UsageError

LANGUAGE = "language model"
"""What `choose` is told of one that is not small."""


@dataclass(frozen=True)
class Hardware:
    """How the networks of one run are computed.

    Attributes:
        device: where weights and rollout storage lie.
        precision: `fp32`, or `bf16`: layers compute in bfloat16, weights, optimiser and losses stay float32.
        compile: whether `torch.compile` translates the network.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "fp32"
    compile: bool = False

    def __str__(self) -> str:
        """All that the last digits of a run hang on, apart from its settings."""
        compiled = ", compiled" if self.compile else ""
        threads = f", threads: {torch.get_num_threads()}" if self.device.type == "cpu" else ""
        return f"{self.device.type}, {self.precision}{compiled}{threads}"

    def facts(self, parameters: Iterable[torch.Tensor]) -> dict[str, Any]:
        """What a manifest says of it, and how many numbers are trained with it."""
        count = sum(p.numel() for p in parameters)
        return {"device": self.device.type, "precision": self.precision, "parameters": count}

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the network runs. Weights are converted once in it, so it should hold many calls."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Where a compiled network runs; it is compiled at its first calls, so what that needs is missed only there.

        Raises:
            RunFailed: torch has no compiler that works, or cannot load what it keeps of an earlier run.
        """
        if not self.compile:
            yield
            return
        from torch._dynamo.exc import TorchDynamoException  # compiling loads it anyway
        from torch._inductor.codecache import cache_dir  # type: ignore[attr-defined]
        from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

        try:
            yield
        except (TorchDynamoException, CppCompileError, InvalidCxxCompiler) as error:
            cause = getattr(error, "inner_exception", error)
            reason = (str(cause).strip() or type(cause).__name__).splitlines()[0].rstrip(".:")
            mend = f"Remove {cache_dir()}, where a run that was killed may have left half a file"
            if isinstance(cause, InvalidCxxCompiler):
                mend = "Install g++"
            raise RunFailed(
                f"--compile: {reason}. {mend}, and run the same command again; or leave --compile out."
            ) from None


CPU = Hardware()


def choose(config: HardwareConfig, network: str) -> Hardware:
    """Settings as a user writes them, made definite on this machine.

    Args:
        config: `auto` as a device is a GPU if there is one and the network is large, otherwise the processor; as a
            precision it is bfloat16 on a GPU, and for the paper and residual networks on a processor, where the
            hardware multiplies it, otherwise float32: around a language model conversions cost a processor more than
            products save.
        network: its name, or `LANGUAGE` for a language model; others are too small to gain from a GPU or from bfloat16.

    Raises:
        UsageError: there is no such device here, or no compiler, or what is asked for gains this network nothing.
    """
    large, unlike = network in (*CONVOLUTIONAL, LANGUAGE), network == "drrn" or LANGUAGE in network
    device, precision = config.device, config.precision
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here; use --device cpu, or auto.")
    chosen = "cuda" if device == "cuda" or (device == "auto" and large and torch.cuda.is_available()) else "cpu"
    if precision == "auto":
        precision = "bf16" if large and multiplies_bf16(chosen) and (chosen, network) != ("cpu", LANGUAGE) else "fp32"
    if precision == "bf16" and LANGUAGE in network and not multiplies_bf16(chosen):
        raise UsageError(
            "--precision bf16: this processor has no instructions for products in bfloat16, and a language model would "
            "be slower with it than in float32; leave --precision out."
        )
    if config.compile and unlike:
        raise UsageError("--compile: batches of texts are all of another shape, so nothing is compiled; leave it out.")
    if precision == "bf16" and network == "drrn":
        raise UsageError("--precision bf16: DRRN computes in float32; leave it out.")
    if config.compile and chosen == "cpu" and not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise UsageError("--compile needs a C++ compiler and finds none here; install g++, or leave --compile out.")
    return Hardware(torch.device(chosen), precision, config.compile)
