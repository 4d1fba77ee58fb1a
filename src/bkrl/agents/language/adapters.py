"""What of a language model is trained: all of it, the layers above some frozen ones, low-rank adapters, or no weight.

Adapters are peft's (`pip install bkrl[lm]`), and so are their files: peft opens them on the same model elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from bkrl.agents.language.models import LanguageModel, quiet
from bkrl.core.errors import InputError, UsageError
from bkrl.core.hub import reason

Train = Literal["all", "lora", "heads"]
ENCODER = -1


@dataclass(frozen=True)
class Training:
    """What is trained beside the heads.

    Attributes:
        train: `all` weights, low-rank adapters (`lora`, Hu et al. 2021) or `heads`: none.
        frozen: so many lower layers stay as they are, and embeddings with them; -1: the whole encoder. Their states are
            kept (`Scorer.can_split`).
        rank, alpha: of adapters; their product with the input is scaled by alpha / rank.
        targets: names of the layers that get adapters; () for those that peft chooses, such as queries and values.
    """

    train: Train = "all"
    frozen: int = 0
    rank: int = 8
    alpha: int = 8
    targets: tuple[str, ...] = ()


def prepare(lm: LanguageModel, training: Training, seed: int, adapter: Path | None = None) -> Any:
    """Freeze what is not trained, and add adapters.

    Args:
        lm: changed in place.
        training: what is trained.
        seed: of new adapters.
        adapter: a folder with those of an earlier run.

    Returns:
        peft's wrapper of the model, which saves the adapters; None without them.

    Raises:
        UsageError: peft is not installed, or the model has fewer layers than are to be frozen.
        InputError: the adapters there are damaged or another model's.
    """
    layers = _layers(lm)
    count = len(layers) if training.frozen == ENCODER else training.frozen
    if (training.frozen == ENCODER and lm.kind == "causal") or count > len(layers):
        has = "no encoder" if training.frozen == ENCODER else f"{len(layers)} layers"
        raise UsageError(f"{lm.name} has {has} to freeze, and {training.frozen} are asked for; freeze at most so many.")
    if training.train != "all":
        lm.model.requires_grad_(False)
    if training.train == "lora":
        return _with_adapters(lm, training, count, seed, adapter)
    if training.train == "all" and count:
        frozen = [lm.model.get_input_embeddings(), *layers[:count]]
        if training.frozen == ENCODER:
            frozen.append(lm.model.get_encoder())
        for module in frozen:
            module.requires_grad_(False)
    return None


def _layers(lm: LanguageModel) -> Sequence[Any]:
    """The layers that prompts go through first."""
    stack = lm.model.get_encoder() if lm.kind == "seq2seq" else lm.model.get_decoder()
    found: Sequence[Any] = next((getattr(stack, name) for name in ("block", "layers", "h") if hasattr(stack, name)), ())
    return found


def _with_adapters(lm: LanguageModel, training: Training, count: int, seed: int, adapter: Path | None) -> Any:
    try:
        from peft import LoraConfig, PeftModel, get_peft_model
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as CHOICES
    except ImportError:
        raise UsageError("Low-rank adapters need peft; run `pip install 'bkrl[lm]'`, or train all weights.") from None
    if adapter is not None:
        try:
            with quiet():
                return PeftModel.from_pretrained(lm.model, adapter, is_trainable=True)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{adapter} holds no adapters for {lm.name} ({reason(error)}).") from None
    chosen = training.targets or tuple(CHOICES.get(lm.model.config.model_type, ()))
    names = _above(lm, chosen, training.frozen, count)
    if not names:
        raise UsageError(
            f"{lm.name} has no layers named {', '.join(chosen) or 'as peft expects'} above those that are frozen; name "
            "others."
        )
    config = LoraConfig(
        r=training.rank,
        lora_alpha=training.alpha,
        target_modules=names,
        task_type="SEQ_2_SEQ_LM" if lm.kind == "seq2seq" else "CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        made = get_peft_model(lm.model, config)
    return made.eval()


def _above(lm: LanguageModel, chosen: Sequence[str], frozen: int, count: int) -> list[str]:
    """Full names of the linear layers that are named so and stand above the frozen ones."""
    below = {id(module) for layer in _layers(lm)[:count] for module in layer.modules()}
    if frozen == ENCODER:
        below |= {id(module) for module in lm.model.get_encoder().modules()}
    return [
        name
        for name, module in lm.model.named_modules()
        if name.rpartition(".")[2] in chosen and id(module) not in below
    ]
