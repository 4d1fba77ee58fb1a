"""What of a language model is trained: all of it, the layers above some frozen ones, low-rank adapters, or no weight.

Adapters are peft's (`pip install bkrl[lm]`), and so are their files: peft opens them on the same model elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from bkrl.agents.language.models import LanguageModel
from bkrl.agents.networks.layers import multiplies_bf16
from bkrl.core.errors import InputError, UsageError
from bkrl.core.hub import quiet, reason

Train = Literal["all", "lora", "heads"]
ENCODER = -1
ALPHA = 32
"""Of adapters that are the default."""
LINEAR = ("*",)
"""Targets: all linear layers."""


@dataclass(frozen=True)
class Trainable:
    """What of a language model is trained beside its heads.

    Attributes:
        train: `all` weights, low-rank adapters (`lora`, Hu et al. 2021) or `heads`: none.
        frozen: so many lower layers stay as they are, and embeddings with them; -1: the whole encoder. Their states are
            kept (`Scorer.can_split`).
        rank, alpha: of adapters; their product with the input is scaled by alpha / rank.
        targets: names of the layers that get adapters; () for those that peft chooses, such as queries and values;
            `LINEAR` for all linear ones.
        half: layers compute in bfloat16, from which the scores of names differ by a hundredth; weights stay float32.
    """

    train: Train = "all"
    frozen: int = 0
    rank: int = 8
    alpha: int = 8
    targets: tuple[str, ...] = ()
    half: bool = False

    @property
    def partial(self) -> bool:
        """Whether some of the model stays as it is."""
        return self.train != "all" or self.frozen != 0

    @property
    def text(self) -> str:
        """What is trained, in words."""
        if self.train == "heads":
            return "heads alone"
        above = " above the encoder" if self.frozen == ENCODER else f" above {self.frozen} frozen layers"
        where = "all linear layers" if self.targets == LINEAR else ", ".join(self.targets) or "queries and values"
        what = "all weights" if self.train == "all" else f"adapters of rank {self.rank}, alpha {self.alpha}, on {where}"
        return what + (above if self.frozen else "") + ", in bfloat16" * self.half


def by_size(lm: LanguageModel, frozen: int = 0, exact: bool = False, device: str = "auto") -> Trainable:
    """All weights of a small model; of a large one adapters on all linear layers of its top quarter.

    Layers compute in bfloat16 where the hardware multiplies it, unless they have to be `exact`.

    Args:
        frozen: as in `Trainable`; 0 leaves the choice to the size.
        device: where they compute; auto: on a GPU, if there is one.
    """
    if not lm.large:
        return Trainable("all", frozen)
    count = len(_layers(lm))
    half = not exact and multiplies_bf16("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    return Trainable("lora", frozen or count - max(1, count // 4), alpha=ALPHA, targets=LINEAR, half=half)


def prepare(lm: LanguageModel, training: Trainable, seed: int, adapter: Path | None = None) -> Any:
    """Freeze what is not trained, and add adapters.

    Args:
        lm: changed in place.
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
    return _of_stack(lm.model.get_encoder() if lm.kind == "seq2seq" else lm.model.get_decoder())


def _of_stack(stack: Any) -> Sequence[Any]:
    children = dict(stack.named_children())
    return next((children[name] for name in ("block", "layers", "h") if name in children), ())


def _with_adapters(lm: LanguageModel, training: Trainable, count: int, seed: int, adapter: Path | None) -> Any:
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
    if tuple(chosen) == LINEAR:
        decoder = _of_stack(lm.model.get_decoder()) if lm.kind == "seq2seq" else ()
        stack = {id(module) for layer in (*_layers(lm), *decoder) for module in layer.modules()} - below
        return [name for name, one in lm.model.named_modules() if id(one) in stack and isinstance(one, torch.nn.Linear)]
    return [
        name
        for name, module in lm.model.named_modules()
        if name.rpartition(".")[2] in chosen and id(module) not in below
    ]
