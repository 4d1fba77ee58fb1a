"""Tiny causal models with random weights, as a transformers folder and as the GGUF file of the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}<|assistant|>"
SPECIALS = ("<|end|>", "<|user|>", "<|system|>", "<|assistant|>")


def config(kind: str, vocabulary: int, positions: int) -> Any:
    """A small Llama or Qwen2; weights are tied in neither."""
    from transformers import LlamaConfig, Qwen2Config

    kinds = {"llama": LlamaConfig, "qwen2": Qwen2Config}
    return kinds[kind](
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def tokenizer() -> Any:
    """Bytes, a few merges and the marks of a chat."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[AddedToken(one, special=True) for one in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["open the red door", "open the red box", "the grey key is here", "yes no maybe"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def build(path: Path, kind: str, positions: int = 512) -> Path:
    """Write a transformers folder; positions: the longest text it reads, in tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    words = tokenizer()
    words.save_pretrained(path)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config(kind, len(words), positions), dtype=torch.float32)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    return path


def to_gguf(folder: Path, kind: str, path: Path) -> Path:
    """The model of a folder as a GGUF file in float32."""
    import json

    import gguf
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    c = model.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_vocab_size(c.vocab_size)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]
    ids = sorted(words["vocab"], key=words["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(ids)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in ids])
    writer.add_token_merges([" ".join(pair) for pair in words["merges"]])
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm",
        "model.layers": "blk",
    }  # fmt: skip
    for name, value in model.state_dict().items():
        array = value.numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
        rotated = next((count for part, count in heads.items() if part in name), None)
        if kind == "llama" and rotated:  # llama.cpp orders the halves of each head otherwise
            array = array.reshape(rotated, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
