"""How the two kinds of transformers are run on packed candidates: an encoder with a decoder (T5), or a decoder (Qwen).

A body is split where training begins. What lies below changes no more, so its states can be computed once for all
epochs of an update: the encoder of a `Seq2Seq` or its lower layers, the lower layers of a `Causal`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.agents.language import t5
from bkrl.agents.language.packing import Forest, Packed, Prompts, Tokens, begun_alike, buckets, forest, tree
from bkrl.llm.scoring import attention_masks

Lower = Mapping[str, Tensor]
"""States of the frozen part by name, each (B, …, D); {} where nothing is frozen."""


class Body(Protocol):
    """A transformers model that scores packed candidates. D is its width, V its vocabulary."""

    packed: Packed
    packs: bool
    """Whether `read` can be used; otherwise `rows` alone."""

    def together(self, prompts: Prompts, most_tokens: int) -> list[Tensor]:
        """Row numbers of prompts that are scored together: up to so many tokens, or one prompt."""

    def below(self) -> list[nn.Parameter]:
        """What `lower` depends on; [] where this body cannot be split."""

    def lower(self, prompts: Prompts) -> Lower:
        """States of the frozen part."""

    def read(self, prompts: Prompts, lower: Lower) -> Tensor:
        """(B, P, D) last states where the next token is read; the first is that before any candidate."""

    def logits(self, states: Tensor) -> Tensor:
        """(..., V) of states (..., D)."""

    def rows(self, prompts: Prompts, candidates: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """The slow way, by the model's own forward: one row for each prompt and candidate, nothing shared.

        Returns:
            (B, A, M, V) logits of each candidate's tokens, and (B, D) the state before any.
        """


class Seq2Seq:
    """An encoder, and candidates as a tree behind one start token of the decoder.

    Args:
        model: of `AutoModelForSeq2SeqLM`, in evaluation mode. What is not built as T5 is has `rows` alone.
        candidates: their tokens.
        start: the token that a decoder begins with.
        frozen: so many layers of the encoder are below; 0: all of it.
    """

    def __init__(self, model: Any, candidates: Sequence[Tokens], start: int, frozen: int = 0) -> None:
        self.model, self.start, self.frozen = model, start, frozen
        self.encoder, self.decoder, self.head = model.get_encoder(), model.get_decoder(), model.get_output_embeddings()
        self.scale = model.config.d_model**-0.5 if model.config.to_dict().get("scale_decoder_outputs") else 1.0
        self.packed, self.packs = tree(candidates, start), t5.fits(model)
        if self.packs:
            self.near, self.far = t5.Distances(self.encoder), t5.Distances(self.decoder)

    def together(self, prompts: Prompts, most_tokens: int) -> list[Tensor]:
        # Our own kernels skip padding, so on a processor prompts of unlike lengths are quicker together than apart.
        return buckets(prompts.lengths, most_tokens, self.packs and prompts.tokens.device.type == "cpu")

    def below(self) -> list[nn.Parameter]:
        """The encoder's or those of its lower layers, embeddings included."""
        if not self.frozen:
            return list(self.encoder.parameters())
        parts = [self.encoder.get_input_embeddings(), *self.encoder.block[: self.frozen]]
        return [parameter for part in parts for parameter in part.parameters()]

    def lower(self, prompts: Prompts) -> Lower:
        """`states` (B, S, D), those of the encoder or of its frozen layers."""
        states = self._begun(prompts)
        if not self.frozen:
            return {"states": self._encoded(states, 0).padded()}
        return {"states": t5.encoded(self.encoder.block[: self.frozen], states, self.near).padded()}

    def _begun(self, prompts: Prompts) -> t5.EncoderStates:
        return t5.EncoderStates.read(self.encoder.get_input_embeddings(), prompts.tokens, prompts.mask)

    def _encoded(self, states: t5.EncoderStates, first: int) -> t5.EncoderStates:
        """Of the encoder, from states before the layer `first`."""
        return t5.finished(self.encoder, t5.encoded(self.encoder.block[first:], states, self.near))

    def read(self, prompts: Prompts, lower: Lower) -> Tensor:
        if not lower:
            states = self._encoded(self._begun(prompts), 0)
        else:
            states = t5.EncoderStates.of(lower["states"][:, : prompts.tokens.shape[1]], prompts.mask)
            if self.frozen:
                states = self._encoded(states, self.frozen)
        packed = self.packed.to(prompts.tokens.device)
        apart = packed.depth - packed.depth[:, None]
        return t5.decoded(self.decoder, packed.tokens, packed.looks, apart, self.far, states)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states * self.scale)

    def rows(self, prompts: Prompts, candidates: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        A, B = len(candidates), len(prompts.tokens)
        many = prompts.repeated(A)
        fed = Prompts.of([(self.start, *one[:-1]) for one in candidates]).tokens.to(many.tokens.device)
        out = self.model(
            input_ids=many.tokens,
            attention_mask=many.mask.long(),
            decoder_input_ids=fed.repeat(B, 1),
            use_cache=False,
            output_hidden_states=True,
        )
        return out.logits.unflatten(0, (B, A)), out.decoder_hidden_states[-1][::A, 0]


class Causal:
    """A decoder alone: prompts and, behind each, a tree of candidates, in trees of what prompts begin with alike.

    Args:
        model: of `AutoModelForCausalLM`, in evaluation mode.
        candidates: their tokens.
        frozen: so many lower layers are below.
    """

    def __init__(self, model: Any, candidates: Sequence[Tokens], frozen: int = 0) -> None:
        self.model, self.frozen = model, frozen
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        self.packed, self.packs = tree(candidates), True

    def together(self, prompts: Prompts, most_tokens: int) -> list[Tensor]:
        """Neighbours by their tokens, as many as add up to `most_tokens` new ones."""
        order, alike = begun_alike(prompts)
        new = prompts.lengths.cpu().numpy()[order] - alike + len(self.packed.tokens)
        starts = [0]
        for row, count in enumerate(np.cumsum(new).tolist()):
            if count - new[: starts[-1]].sum() > most_tokens and row > starts[-1]:
                starts.append(row)
        return [torch.from_numpy(part).to(prompts.tokens.device) for part in np.split(order, starts[1:])]

    def below(self) -> list[nn.Parameter]:
        """Embeddings and the lower layers; [] for a model that multiplies what it is fed, states in their place too."""
        named, config = dict(self.decoder.named_children()), vars(self.model.config.get_text_config())
        if not self.frozen or not {"layers", "norm"} <= named.keys() or config.get("embedding_multiplier", 1) != 1:
            return []
        parts = [self.decoder.get_input_embeddings(), *named["layers"][: self.frozen]]
        return [parameter for part in parts for parameter in part.parameters()]

    def lower(self, prompts: Prompts) -> Lower:
        """`states` (B, S, D) of the prompts' tokens and `nodes` (B, L, D) of the candidates'."""
        trees, S = self._trees(prompts), prompts.tokens.shape[1]
        with replaced(self.decoder, layers=self.decoder.layers[: self.frozen], norm=nn.Identity()):
            states = self._run(trees, {"input_ids": trees.tokens})[trees.places]
        return {"states": states[:, :S], "nodes": states[:, S:]}

    def read(self, prompts: Prompts, lower: Lower) -> Tensor:
        trees, S = self._trees(prompts), prompts.tokens.shape[1]
        if lower:
            begun = torch.cat([lower["states"][:, :S], lower["nodes"]], 1).flatten(0, 1)
            upper = nn.ModuleList([*[_Passed()] * self.frozen, *self.decoder.layers[self.frozen :]])
            with replaced(self.decoder, layers=upper):
                states = self._run(trees, {"inputs_embeds": begun[trees.sources].unflatten(0, trees.tokens.shape)})
        else:
            states = self._run(trees, {"input_ids": trees.tokens})
        last = trees.places.gather(1, prompts.lengths[:, None] - 1)
        return states[torch.cat([last, trees.places[:, S:]], 1)]

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states)

    def rows(self, prompts: Prompts, candidates: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        A, M, B = len(candidates), max(map(len, candidates)), len(prompts.tokens)
        texts = [tokens[inside].tolist() for tokens, inside in zip(prompts.tokens, prompts.mask, strict=True)]
        many = Prompts.of([[*text, *one] for text in texts for one in candidates]).to(prompts.tokens.device)
        out = self.model(
            input_ids=many.tokens,
            attention_mask=many.mask.long(),
            position_ids=torch.arange(many.tokens.shape[1], device=many.tokens.device)[None],
            use_cache=False,
            output_hidden_states=True,
        )
        # Token j of a candidate is read at the token before it, which is the prompt's last for j = 0.
        last = prompts.lengths.repeat_interleave(A) - 1
        places = (last[:, None] + torch.arange(M, device=last.device)).clamp(max=many.tokens.shape[1] - 1)
        every = torch.arange(B * A, device=last.device)
        return (out.logits[every[:, None], places].unflatten(0, (B, A)), out.hidden_states[-1][every[::A], last[::A]])

    def _trees(self, prompts: Prompts) -> Forest:
        # A token looks at all of its tree, which costs as much as a layer's products where that is six widths long.
        longest = int(prompts.lengths.max()) + len(self.packed.tokens)
        return forest(prompts, self.packed, max(longest, self.model.config.hidden_size))

    def _run(self, trees: Forest, fed: Mapping[str, Tensor]) -> Tensor:
        """(C N, D) states of the trees' tokens."""
        at = trees.depths[:, None]
        masks = attention_masks(self.model, trees.looks, at, at)
        out = self.decoder(**fed, attention_mask=masks, position_ids=trees.depths, use_cache=False)
        return out.last_hidden_state.flatten(0, 1)


class _Passed(nn.Module):
    """In the place of a layer that has done its work: those above keep their numbers, by which models choose masks."""

    def forward(self, states: Tensor, *_: Any, **__: Any) -> Tensor:
        return states


@contextmanager
def replaced(stack: Any, **parts: nn.Module) -> Iterator[None]:
    """A stack of layers with other parts for a while."""
    whole = {name: stack.get_submodule(name) for name in parts}
    for name, part in parts.items():
        setattr(stack, name, part)
    try:
        yield
    finally:
        for name, part in whole.items():
            setattr(stack, name, part)
