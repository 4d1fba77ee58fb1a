"""A transformers model of six words, built here: no hub, no download, and it answers at once."""

from __future__ import annotations

from pathlib import Path

WORDS = ("[UNK]", "</s>", "assistant:", '{"choice":', '"A"}', "again")


def build(path: Path, positions: int) -> Path:
    """Write a model that says each word's successor: after "assistant:" comes the answer; "again" goes on for ever.

    positions: the longest text it reads, in words.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="</s>")
    fast.save_pretrained(path)
    size = len(WORDS)
    config = GPT2Config(
        vocab_size=size,
        n_positions=positions,
        n_embd=size,
        n_layer=1,
        n_head=1,
        tie_word_embeddings=False,
        eos_token_id=1,
    )
    network = GPT2LMHeadModel(config)
    successor = {2: 3, 3: 4, 4: 1, 5: 5, 0: 0, 1: 1}
    with torch.no_grad():
        for parameter in network.transformer.h.parameters():
            parameter.zero_()
        network.transformer.wte.weight.copy_(torch.eye(size))
        network.transformer.wpe.weight.zero_()
        network.lm_head.weight.zero_()
        for word, following in successor.items():
            network.lm_head.weight[following, word] = 10.0
    network.save_pretrained(path)
    return path


def without(weights: Path, name: str) -> None:
    """Take the tensors whose names begin so out of a safetensors file."""
    from safetensors.torch import load_file, save_file

    kept = {key: tensor for key, tensor in load_file(weights).items() if not key.startswith(name)}
    assert len(kept) < len(load_file(weights))
    save_file(kept, weights, metadata={"format": "pt"})
