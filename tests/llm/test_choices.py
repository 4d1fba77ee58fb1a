"""Closed questions to models of this machine equal the cross-entropy of the plain model, token by token."""

from __future__ import annotations

import json
import shutil
import tomllib
import warnings
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, FalconConfig, MambaConfig, MistralConfig, RwkvConfig

from bkrl.agents.language.catalogue import open_language_model, reopened
from bkrl.core.errors import InputError, UsageError
from bkrl.core.models import find
from bkrl.llm import open_backend
from bkrl.llm.causal import CausalModel
from bkrl.llm.local import LocalBackend
from bkrl.llm.protocol import Backend, Fault, Message, Reply, Request
from bkrl.llm.scoring import OptionScorer
from bkrl.llm.weights import gguf_file, load
from tests.llm import tiny_gguf

SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OPTIONS = ("yes", "no", "maybe", "open the red door", "open the red box")
KINDS = ("llama", "qwen2")


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.build(tmp_path_factory.mktemp("models") / request.param, request.param)


def ask(text: str, choices: tuple[str, ...] = OPTIONS) -> Request:
    return Request((Message("system", "the grey key is here " * 20), Message("user", text)), choices=choices)


def model_of(backend: Backend) -> CausalModel:
    """In this process."""
    assert isinstance(backend, LocalBackend)
    assert backend._path is not None
    return CausalModel(backend._path, backend.identity)


def answers(model: CausalModel, requests: list[Request]) -> list[dict[str, float]]:
    replies = model.answer(requests)
    assert all(isinstance(reply, Reply) for reply in replies)
    return [json.loads(reply.text)["logprobs"] for reply in replies]  # type: ignore[union-attr]


def plainly(path: Path, request: Request) -> dict[str, float]:
    """One forward pass of the plain model for each option, and the sum over the option's tokens."""
    model, tokenizer = load(path, torch.float32)
    turns = [{"role": m.role, "content": m.text} for m in request.messages]
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    found = {}
    for option in request.choices:
        start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        end = tokenizer(option, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([start + end])).logits[0, len(start) - 1 : -1]
        found[option] = -float(torch.nn.functional.cross_entropy(logits, torch.tensor(end), reduction="sum"))
    return found


def test_choices_equal_cross_entropy_token_by_token(folder: Path) -> None:
    model = model_of(open_backend(f"hf:{folder}"))
    requests = [ask(text) for text in ("the red door", "the red box", "a key", "no", "the red door is open")]
    wanted = [plainly(folder, request) for request in requests]
    lengths = {len(tiny_gguf.tokenizer()(option)["input_ids"]) for option in OPTIONS}
    assert min(lengths) == 1
    assert max(lengths) > 1, "options of one token and of several"
    together = answers(model, requests)
    again = answers(model, requests[::-1])[::-1]  # now the shared prefix is kept
    alone = [answers(model, [request])[0] for request in requests]
    assert model._scorer._states
    for found in (together, again, alone):
        for got, want in zip(found, wanted, strict=True):
            assert got == pytest.approx(want, abs=1e-5)


def test_a_model_is_called_as_this_transformers_names_its_cache(folder: Path) -> None:
    model = model_of(open_backend(f"hf:{folder}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # "past_key_values" ends with transformers 5.40
        assert answers(model, [ask("a key"), ask("the red door")])
    called = []
    forward, name = model._scorer.model.forward, model._scorer._cache

    def older(*args: Any, past_key_values: Any, **how: Any) -> Any:
        called.append(past_key_values)
        return forward(*args, **{name: past_key_values}, **how)

    model._scorer.model.forward = older
    OptionScorer(model._scorer.model).score([([1, 2, 3], [(4,), (5,)])])
    assert called


def drawn(config: Any) -> Any:
    """A model with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_a_window_of_attention_holds_where_layers_do_not_name_it() -> None:
    model = drawn(MistralConfig(**SMALL, intermediate_size=48, num_key_value_heads=2, sliding_window=8, head_dim=8))
    questions = [([*range(1, 41), last], [(5,), (6, 7)]) for last in (3, 9)]
    for (prompt, options), found in zip(questions, OptionScorer(model).score(questions), strict=True):
        for option, score in zip(options, found, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *option]])).logits[0, len(prompt) - 1 : -1]
            want = -torch.nn.functional.cross_entropy(logits, torch.tensor(option), reduction="sum")
            assert score == pytest.approx(float(want), abs=1e-4)


def test_a_model_that_cannot_be_asked_about_several_options_at_once_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a recurrent state, and one whose attention counts places by itself, would give other answers."""
    assert OptionScorer(load(folder, torch.float32)[0]).packs()
    for config in (
        MambaConfig(**SMALL, state_size=4),
        RwkvConfig(**SMALL, context_length=64),
        FalconConfig(**SMALL, alibi=True),
    ):
        assert not OptionScorer(drawn(config)).packs(), config.model_type
    monkeypatch.setattr(OptionScorer, "packs", lambda scorer: False)
    model = model_of(open_backend(f"hf:{folder}"))
    (closed,) = model.answer([ask("the red door")])
    assert isinstance(closed, Fault)
    assert closed.kind == "stop"
    assert str(closed).startswith(f"{folder.name} cannot be asked closed questions (its layers keep more than keys and")
    assert isinstance(model.answer([ask("the red door", ())])[0], Reply), "open ones can be asked"


def test_a_template_without_system_turns_gets_the_words_with_the_users(folder: Path) -> None:
    model = model_of(open_backend(f"hf:{folder}"))
    assert isinstance(model.answer([ask("x")])[0], Reply)
    refuses = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    model._tokenizer.chat_template = refuses + tiny_gguf.TEMPLATE
    turns = (
        Message("system", "You judge."),
        Message("user", "Is it?"),
        Message("assistant", "So?"),
        Message("user", "?"),
    )
    said = "<|user|>You judge.\n\nIs it?<|end|><|assistant|>So?<|end|><|user|>?<|end|><|assistant|>"
    assert model._text(turns, {}) == (said, False)
    assert isinstance(model.answer([ask("x")])[0], Reply)
    model._tokenizer.chat_template = "{{ raise_exception('never') }}"
    (fault,) = model.answer([ask("x")])
    assert "never" in str(fault)


def test_a_model_that_thinks_first_is_to_answer_closed_questions_at_once(folder: Path) -> None:
    model = model_of(open_backend(f"hf:{folder}"))
    assert isinstance(model.answer([ask("x")])[0], Reply)
    switch = "{% if enable_thinking is defined and not enable_thinking %}no{% endif %}"
    model._tokenizer.chat_template = tiny_gguf.TEMPLATE + switch
    read: list[str] = []
    tokenizer = model._tokenizer

    class Told:
        chat_template = tokenizer.chat_template
        apply_chat_template, decode, pad_token_id = tokenizer.apply_chat_template, tokenizer.decode, 0

        def __call__(self, text: str, **how: Any) -> Any:
            read.append(text)
            return tokenizer(text, **how)

    model._tokenizer = Told()
    model.answer([ask("x")])
    assert read[0].endswith("<|assistant|>no")
    assert read[1] == f"{read[0]}yes"
    read.clear()
    model.answer([Request((Message("user", "x"),), max_tokens=2)])
    assert read[0].endswith("<|assistant|>")


def test_packs_of_any_size_and_no_prefix_give_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(open_backend(f"hf:{folder}"))
    requests = [ask(f"{number} the red door") for number in range(9)]
    wanted = answers(model, requests)
    monkeypatch.setattr("bkrl.llm.scoring.PACK", 40)
    small = answers(model, requests)
    model._scorer = OptionScorer(model._scorer.model)
    bare = [one for request in requests for one in answers(model, [request])]
    assert not model._scorer._states, "a question by itself has nothing to share"
    for got in (small, bare):
        assert [pytest.approx(one, abs=1e-5) for one in wanted] == got


def test_bfloat16_is_nearly_the_same_and_another_models_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = open_backend(f"hf:{folder}")
    monkeypatch.setenv("BKRL_LLM_ARITHMETIC", "bfloat16")
    half = open_backend(f"hf:{folder}")
    assert half.identity == {**exact.identity, "arithmetic": "bfloat16"}
    assert half.facts()["arithmetic"] == "bfloat16"
    request = ask("the red door")
    halved = model_of(half)
    (want,), (got,) = answers(model_of(exact), [request]), answers(halved, [request])
    assert got != want
    assert got == pytest.approx(want, abs=0.1)
    kinds = {str(p.dtype) for p in halved._model.buffers()} | {str(p.dtype) for p in halved._model.parameters()}
    assert "torch.bfloat16" not in kinds, "norms and embeddings stay float32"
    monkeypatch.setenv("BKRL_LLM_ARITHMETIC", "int4")
    with pytest.raises(UsageError, match="must be float32 or bfloat16, not 'int4'"):
        open_backend(f"hf:{folder}")


def test_a_gguf_file_is_the_same_model_and_can_be_saved(folder: Path, tmp_path: Path) -> None:
    path = tiny_gguf.to_gguf(folder, folder.name, tmp_path / "tiny.gguf")
    backend, plain = open_backend(f"gguf:{path}"), open_backend(f"hf:{folder}")
    requests = [ask("the red door"), ask("a key")]
    for got, want in zip(answers(model_of(backend), requests), answers(model_of(plain), requests), strict=True):
        assert got == pytest.approx(want, abs=1e-4)
    assert backend.identity["content"] == backend.facts()["model_sha256"]
    assert str(tmp_path) not in json.dumps(dict(backend.identity))
    model, tokenizer = load(path, torch.float32)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    saved, _ = load(tmp_path / "saved", torch.float32)
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved.state_dict()[name])


def test_a_gguf_file_is_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tiny_gguf.to_gguf(folder, folder.name, tmp_path / "tiny.gguf"), []

    class Counted(gguf.GGUFReader):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            read.append(path)
            super().__init__(path)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    load(path, torch.float32)
    assert len(read) == 1
    assert gguf.GGUFReader is Counted


def test_options_that_cannot_be_told_apart_are_one_sentence(folder: Path) -> None:
    same, good = model_of(open_backend(f"hf:{folder}")).answer([ask("x", ("yes", "")), ask("x")])
    assert isinstance(same, Fault)
    assert "choose other words" in str(same)
    assert isinstance(good, Reply)


def test_a_model_without_a_chat_template_says_so(folder: Path, tmp_path: Path) -> None:
    path = tiny_gguf.to_gguf(folder, folder.name, tmp_path / "tiny.gguf")
    assert not [one for one in (f"hf:{folder}", f"gguf:{path}") if "notice" in open_backend(one).facts()]
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"tokenizer.chat_template", b"tokenizer.chat_templat_"))
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("chat_template*"))
    for spec in (f"hf:{bare}", f"gguf:{path}"):
        backend = open_backend(spec)
        assert backend.facts()["notice"] == f"{spec} has no chat template, so it reads conversations as plain text."
        model = model_of(backend)
        (found,) = answers(model, [ask("the red door")])
        assert set(found) == set(OPTIONS)
        assert not model._tokenizer.chat_template


def test_what_the_extra_installs_is_enough_for_gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers reads them with accelerate, too, which only came along with another extra."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extra = {one.partition(">=")[0] for one in project["optional-dependencies"]["local"]}
    asked: list[str] = []
    monkeypatch.setattr("bkrl.llm.weights.find_spec", lambda name: asked.append(name) or name)
    (tmp_path / "some.gguf").write_bytes(b"GGUF\3\0\0\0")
    gguf_file(str(tmp_path / "some.gguf"))
    assert set(asked) == extra == {"gguf", "accelerate"}
    for missing in extra:
        monkeypatch.setattr("bkrl.llm.weights.find_spec", lambda name, missing=missing: name != missing or None)
        with pytest.raises(InputError, match=f"need the package {missing}; run `pip install 'bkrl\\[local\\]'`"):
            gguf_file(str(tmp_path / "some.gguf"))


def test_what_is_no_gguf_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no GGUF file"):
        open_backend(f"gguf:{tmp_path / 'none.gguf'}")
    (tmp_path / "text.gguf").write_text("words")
    with pytest.raises(InputError, match="not a GGUF file"):
        open_backend(f"gguf:{tmp_path / 'text.gguf'}")
    monkeypatch.setenv("BKRL_MODELS", str(tmp_path))
    with pytest.raises(InputError, match="bkrl lm fetch smollm2-135m"):
        open_backend("local:smollm2-135m")
    with pytest.raises(UsageError, match="Did you mean 'smollm2-135m'"):
        open_backend("local:smollm-135m")
    (tmp_path / "half.gguf").write_bytes(b"GGUF\3\0\0\0")
    find("smollm2-135m").path.write_bytes(b"GGUF\3\0\0\0")
    for use in (open_backend, open_language_model):
        with pytest.raises(InputError, match="is not the smollm2-135m of the catalogue; remove it, and run `bkrl lm"):
            use("local:smollm2-135m" if use is open_backend else "smollm2-135m")
    (half,) = model_of(open_backend(f"gguf:{tmp_path / 'half.gguf'}")).answer([ask("x")])
    assert isinstance(half, Fault)
    assert "cannot be loaded" in str(half)
    monkeypatch.setattr("bkrl.llm.weights.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"bkrl\[local\]"):
        open_backend(f"gguf:{tmp_path / 'half.gguf'}")


def test_a_gguf_file_is_a_policy(folder: Path, tmp_path: Path) -> None:
    path = tiny_gguf.to_gguf(folder, folder.name, tmp_path / "tiny.gguf")
    found = open_language_model(str(path))
    assert (found.kind, found.chat, found.level) == ("causal", True, "P3")
    assert next(found.model.parameters()).dtype == torch.float32
    found.save(tmp_path / "saved")
    assert reopened(found.origin).origin == found.origin
    same = open_language_model(str(tmp_path / "saved"))
    assert same.tokens("the red door") == found.tokens("the red door")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="another model"):
        reopened(found.origin)
