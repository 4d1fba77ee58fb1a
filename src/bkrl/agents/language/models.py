"""Language models that can be policies: transformers folders, GGUF files, or names for tiny ones that are drawn here.

Nothing is downloaded. P0 is a model with random weights, P1 one that has read this project's captions, missions and
prompts, P2 a P1 that has seen a bot act; both are made by `bkrl lm make`. P3 is any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError
from torch import nn

from bkrl.agents.language.packing import Tokens
from bkrl.core.errors import InputError
from bkrl.core.files import sha256
from bkrl.core.hub import HERE, content, model_folder, quiet, read_model, read_tokenizer, reason
from bkrl.llm.weights import load
from bkrl.text.policy_prompts import Chat

Kind = Literal["seq2seq", "causal"]
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
LARGE = 50_000_000
"""Parameters from which on a model is large: it gets adapters, and a GPU if there is one."""
TINY: Mapping[str, Kind] = {"tiny-t5": "seq2seq", "tiny-causal": "causal"}


@dataclass(frozen=True)
class Origin:
    """What opens the same model again.

    Attributes:
        where: what the user called it.
        chat: use the chat template of a causal model that has one.
        pretrained: take the weights that are there; otherwise new ones are drawn for the same architecture.
        embeddings: where weights are drawn, keep those of tokens (published as `load_embedding`).
        seed: of weights that are drawn.
        content: a hash of what was read; "" where all was drawn.
    """

    where: str
    chat: bool = True
    pretrained: bool = True
    embeddings: bool = False
    seed: int = 0
    content: str = ""


@dataclass(frozen=True)
class LanguageModel:
    """A transformers model and its tokenizer.

    Attributes:
        model: in evaluation mode, on the processor, float32: dropout would move the ratios of PPO away from 1.
        tokenizer: of `AutoTokenizer`.
        kind: an encoder with a decoder, or a decoder alone.
        origin: what opens it again.
        level: P0 to P3, see the module.
        chat: whether prompts go through the tokenizer's chat template.
    """

    model: Any
    tokenizer: Any
    kind: Kind
    origin: Origin
    level: str
    chat: bool = False

    @property
    def name(self) -> str:
        """What the user called it."""
        return self.origin.where

    @property
    def large(self) -> bool:
        """Whether it has more than `LARGE` parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters()) > LARGE

    @property
    def small(self) -> bool:
        """Made or drawn here, and not large: it has a step size of its own, and a GPU gains it nothing."""
        return self.level != "P3" and not self.large

    @property
    def width(self) -> int:
        """D."""
        return int(self.model.config.hidden_size)

    @property
    def pad(self) -> int:
        """Fills short rows; masks keep it out of everything, so any token will do."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def start(self) -> int:
        """The token that a decoder begins with."""
        return int(self.model.config.decoder_start_token_id)

    @property
    def nothing(self) -> list[int]:
        """The prompt that says nothing."""
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return [int(token)]
        return [self.pad]

    @property
    def limit(self) -> int | None:
        """Tokens that it reads; None where positions are relative."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return None if limit is None or self.kind == "seq2seq" else int(limit)

    def tokens(self, prompt: str | Chat) -> list[int]:
        """A prompt, at least one token. InputError where the chat template refuses it."""
        if self.chat:
            turns = [("user", prompt)] if isinstance(prompt, str) else prompt
            text, special = self._templated(turns), False
        else:
            parts = () if isinstance(prompt, str) else (*(f"{role}:\n{said}" for role, said in prompt), "assistant:\n")
            text = prompt if isinstance(prompt, str) else "\n\n".join(parts)
            special = self.kind == "causal"
            if special:
                text = text.rstrip(" ")  # the space belongs to the answer, as in the texts that such models have read
        found = list(self.tokenizer(text, add_special_tokens=special)["input_ids"])
        if special and found[-1:] == [self.tokenizer.eos_token_id]:
            found.pop()  # what ends would not be answered
        return found or self.nothing

    def candidates(self, names: Sequence[str], eos: bool) -> list[Tokens]:
        """Answers as tokens, with the end of the text or without.

        Raises:
            InputError: one becomes no token, or two become the same.
        """
        space = " " if self.kind == "causal" and not self.chat else ""
        unknown = self.tokenizer.unk_token_id
        found: dict[Tokens, str] = {}
        for name in names:
            tokens = tuple(self.tokenizer(space + name, add_special_tokens=False)["input_ids"])
            if not tokens or set(tokens) == {unknown}:
                raise InputError(f"The action '{name}' becomes no token that {self.name} knows; give it another name.")
            if tokens in found:
                raise InputError(
                    f"The actions '{found[tokens]}' and '{name}' are the same tokens to {self.name}; give one of them "
                    "another name."
                )
            found[tokens] = name
        if not eos:
            return list(found)
        if self.tokenizer.eos_token_id is None:
            raise InputError(f"{self.name} has no token for the end of a text; leave the end out of scores.")
        return [(*tokens, int(self.tokenizer.eos_token_id)) for tokens in found]

    def _templated(self, turns: Sequence[tuple[str, str]]) -> str:
        said = [{"role": role, "content": text} for role, text in turns]
        try:
            return str(self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise InputError(
                f"The chat template of {self.name} cannot take the prompt ({reason(error)}); leave the template out, "
                "or choose another model."
            ) from None

    def save(self, folder: Path) -> None:
        """Write a plain transformers folder."""
        with quiet():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def open_model(
    where: str,
    folder: Path | None = None,
    *,
    chat: bool = True,
    pretrained: bool = True,
    embeddings: bool = False,
    seed: int = 0,
    level: str = "P3",
) -> LanguageModel:
    """A model from a GGUF file, a folder of transformers, or a name in the local cache of Hugging Face.

    Args:
        where: what the user called it.
        folder: where it lies; None: `where` says so.
        chat, pretrained, embeddings, seed: see `Origin`.
        level: see the module.

    Raises:
        InputError: there is no model, or none that can score answers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    folder = folder or model_folder(where)
    attention = {"attn_implementation": "sdpa", "dtype": torch.float32}
    kind: Kind
    try:
        with quiet():
            if folder.is_file():
                model, tokenizer = load(folder, torch.float32)
                config, kind = model.config, "causal"
            else:
                config = AutoConfig.from_pretrained(folder, **HERE)
                names = config.architectures or []
                if names and not any(name.endswith(_WRITERS) for name in names):
                    raise InputError(
                        f"{where} holds a {names[0]}, which writes no text; choose a T5, Llama or the like."
                    )
                tokenizer = read_tokenizer(where, folder)
                kind = "seq2seq" if config.is_encoder_decoder else "causal"
                auto = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
                model = read_model(auto, folder, **attention)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError, SafetensorError) as error:
        if "scaled_dot_product_attention" in str(error):
            raise InputError(
                f"{where} cannot compute attention in the way that packing needs (SDPA) in this transformers; choose "
                "another model, such as a T5, Qwen or Llama, or a newer transformers."
            ) from None
        raise InputError(
            f"{where} cannot be opened as a language model ({reason(error)}); name the folder of a whole one, with "
            "config.json, weights and tokenizer."
        ) from None
    if kind == "seq2seq" and config.decoder_start_token_id is None:
        raise InputError(
            f"{where} does not say what its decoder starts with; set decoder_start_token_id in config.json."
        )
    if not pretrained:
        kept = {name: value for name, value in model.state_dict().items() if "embed" in name or "shared" in name}
        model, level = drawn(config, kind, seed), "P0"
        if embeddings:
            model.load_state_dict(kept, strict=False)
            model.tie_weights()
    templated = chat and kind == "causal" and bool(tokenizer.chat_template)
    told = sha256(folder) if folder.is_file() else content(folder)
    origin = Origin(where, chat, pretrained, embeddings, seed, told)
    return LanguageModel(fused(model.eval()), tokenizer, kind, origin, level, templated)


def drawn(config: Any, kind: Kind, seed: int) -> Any:
    """A model with random weights, in evaluation mode."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    auto = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return fused(auto.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval())


def fused(model: Any) -> Any:
    """The same model, its GELU by tanh (Flan-T5's) in one operation for eight, a third of a small encoder's time."""
    from transformers.activations import NewGELUActivation

    for module in model.modules():
        for name, part in module.named_children():
            if isinstance(part, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


def tiny_config(kind: Kind, width: int, vocabulary: int, eos: int, pad: int) -> Any:
    """The architecture of a small T5 or Llama of `width` 32, 64 or 128."""
    from transformers import LlamaConfig, T5Config

    layers = 1 if width == 32 else 2
    common = {"vocab_size": vocabulary, "eos_token_id": eos, "pad_token_id": pad}
    if kind == "seq2seq":
        return T5Config(
            d_model=width, d_kv=16, d_ff=2 * width, num_heads=width // 16, num_layers=layers, num_decoder_layers=layers,
            dropout_rate=0.0, feed_forward_proj="gated-gelu", decoder_start_token_id=pad, **common,
        )  # fmt: skip
    return LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2 * layers, num_attention_heads=width // 16,
        num_key_value_heads=width // 16, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None,
        **common,
    )  # fmt: skip


def trained(module: nn.Module) -> list[nn.Parameter]:
    """What requires a gradient, each once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
