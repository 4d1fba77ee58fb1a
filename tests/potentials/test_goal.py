"""Goal potentials: retrieval, graded similarity, exactness, encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import InputError, UsageError
from bkrl.data.windows import Windows
from bkrl.envs import captioner
from bkrl.methods import TrainRsConfig
from bkrl.potentials import load_potential
from bkrl.potentials.goal import GoalIndex, GoalRaw, load
from bkrl.potentials.goal.kind import build_index, calibrate
from bkrl.potentials.goal.texts import Texts, action_clause, clauses, on_grid
from bkrl.runs.folder import locate
from bkrl.runs.inputs import read_by
from bkrl.runs.samples import SAMPLES
from bkrl.text.encoders import HashEncoder, _loaded, check_encoder, fit_encoder, open_encoder, words
from tests.envs.test_crafter_captions import drawn, played
from tests.llm.tiny_model import build, without

COLOURS = ("red", "green", "blue", "purple")
THINGS = ("ball", "box", "key")
ACTIONS = ("left", "right", "forward")


def caption(views: np.ndarray) -> list[str]:
    """One thing in each view (colour, thing, distance); colour 9: nothing."""
    return [
        "You see nothing." if c > 3 else f"You see a {COLOURS[c]} {THINGS[t]} {d} steps forward. You see a wall."
        for c, t, d in views
    ]


def windows(views: np.ndarray, seed: int = 0) -> Windows:
    views = np.asarray(views, np.uint8)
    rng = np.random.default_rng(seed)
    count, rows = views.shape[:2]
    return Windows.of(views, rng.integers(0, 3, (count, rows - 1)), np.ones((count, rows), bool)).numbered()


def some_windows(count: int, seed: int = 0, horizon: int = 2) -> Windows:
    rng = np.random.default_rng(seed)
    views = np.stack([rng.integers(low, high, (count, horizon + 1)) for low, high in ((0, 4), (0, 3), (1, 7))], axis=-1)
    views[rng.random((count, horizon + 1)) < 0.3] = 9, 0, 0
    return windows(views, seed)


@pytest.fixture(scope="module")
def raw() -> GoalRaw:
    moments = some_windows(60, seed=1)
    goals, suggested = [], []
    for view in moments.symbols[moments.index[:, -1]]:
        c, t, _ = (int(value) for value in view)
        goal = "look around" if c > 3 else f"go to the {COLOURS[c]} {THINGS[t]}"
        if goal not in goals:
            goals.append(goal)
        suggested.append([goals.index(goal)])
    said = {clause for text in caption(moments.symbols) for clause in clauses(text)}
    encoder = fit_encoder("hash", said, goals)
    index = build_index(Texts(encoder, caption, ACTIONS), moments, suggested, goals)
    return GoalRaw(index, encoder, caption, ACTIONS, 0.1, horizon=2)


def test_captions_fall_into_clauses():
    assert clauses("You see a wall. Health 9/9, food 7/9.") == ["you see a wall", "health 9/9", "food 7/9"]
    assert action_clause("place_table") == "you place table"


def test_a_view_with_the_suggested_thing_is_worth_more_than_an_empty_one(raw):
    seen = windows([[[9, 0, 0], [0, 0, 4], [0, 0, 3]]])
    empty = windows([[[9, 0, 0], [9, 0, 0], [9, 0, 0]]])
    assert raw(seen)[0] > raw(empty)[0] + 0.1


def test_values_are_graded_and_between_0_and_1(raw):
    values = raw(some_windows(400, seed=2))
    assert values.min() >= 0
    assert values.max() <= 1
    assert len(np.unique(values)) > 5


def test_values_are_the_same_for_any_batch_bit_for_bit(raw):
    many = some_windows(300, seed=3)
    whole = raw(many)
    fresh = GoalRaw(raw.index, raw.texts.encoder, caption, ACTIONS, 0.1, horizon=2)
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(fresh(many[order]), whole[order])
    np.testing.assert_array_equal(np.concatenate([fresh(many[i : i + 1]) for i in range(0, 300, 17)]), whole[::17])


def test_every_distinct_text_is_embedded_once_from_building_to_shaping(monkeypatch):
    asked: list[str] = []
    embed = HashEncoder.embed
    monkeypatch.setattr(HashEncoder, "embed", lambda self, text: asked.append(text) or embed(self, text))
    moments = some_windows(60, seed=1)
    said = {clause for text in caption(moments.symbols) for clause in clauses(text)}
    encoder = fit_encoder("hash", said, ["go to the red ball"])
    index = build_index(Texts(encoder, caption, ACTIONS), moments, [[0]] * 60, ["go to the red ball"])
    fresh = GoalRaw(index, encoder, caption, ACTIONS, 0.1, horizon=2)
    calibrate(fresh, some_windows(200, seed=4), np.random.default_rng(0))
    fresh(some_windows(200, seed=5))
    assert len(asked) > 10
    assert len(asked) == len(set(asked))


def test_forgetting_views_changes_nothing(raw, monkeypatch):
    monkeypatch.setattr("bkrl.potentials.goal.texts._MEMORY", 30)
    many = some_windows(200, seed=6)
    small = GoalRaw(raw.index, raw.texts.encoder, caption, ACTIONS, 0.1, horizon=2)
    parts = np.concatenate([small(many[i : i + 20]) for i in range(0, 200, 20)])
    np.testing.assert_array_equal(parts, raw(many))


def test_retrieval_finds_the_moment_itself(raw):
    moments = some_windows(60, seed=1)
    rows = raw.texts.rows_of(moments)
    vectors = raw.texts.window_vectors(rows)
    keys = raw.index.keys[raw.retrieve(rows)[:, 0]]
    own = on_grid(vectors)
    # the moment itself, or one so near that rounding to the grid tells them apart only by a hair
    np.testing.assert_allclose((keys * vectors).sum(1), (own * vectors).sum(1), rtol=2e-3)
    assert (keys == own).all(axis=1).mean() > 0.9


@pytest.mark.parametrize("moments", [1, 2, 3, 60])
def test_retrieval_is_the_order_of_products_and_the_first_of_equals(raw, moments, monkeypatch):
    monkeypatch.setattr("bkrl.potentials.goal._CHUNK", 64)
    keys = np.concatenate([raw.index.keys, raw.index.keys])[:moments]  # most of 60 stand there twice
    index = GoalIndex(keys, raw.index.goals, raw.index.vectors, np.ones((moments, len(raw.index.goals)), bool))
    doubled = GoalRaw(index, raw.texts.encoder, caption, ACTIONS, 0.1, horizon=2)
    rows = doubled.texts.rows_of(some_windows(200, seed=9))
    products = doubled.texts.window_vectors(rows).astype(np.int64) @ keys.T.astype(np.int64)
    np.testing.assert_array_equal(doubled.retrieve(rows), np.argsort(-products, axis=1, kind="stable")[:, :3])


def test_clauses_read_off_the_symbols_give_the_bits_that_captions_give(monkeypatch):
    monkeypatch.setattr("bkrl.potentials.goal.texts._MEMORY", 1500)  # so that forgetting has its turn
    potential = load_potential(SAMPLES / "bk-goal-crafter")
    read, names = potential.raw, potential.artefact.action_names
    describe = captioner(potential.artefact.env_id)
    split = GoalRaw(read.index, read.texts.encoder, describe, names, read.threshold, read.reads.horizon)
    assert read.texts.reader is not None
    assert split.texts.reader is None
    rng = np.random.default_rng(0)
    for views in (played(60), drawn(900, 10, 20), drawn(900, 256, 3)):
        chosen = rng.integers(0, len(views), (1000, read.reads.horizon + 1))
        valid = np.sort(rng.random(chosen.shape) < 0.9, axis=1)
        valid[:, -1] = True
        some = Windows.of(views[chosen] * valid[..., None], rng.integers(0, 20, (1000, read.reads.horizon)), valid)
        np.testing.assert_array_equal(read(some.numbered()), split(some.numbered()))
        np.testing.assert_array_equal(read.similarity(some[:30].numbered()), split.similarity(some.numbered())[:30])


def test_whole_numbers_stay_below_what_float32_holds_exactly(raw):
    vectors = raw.texts.window_vectors(raw.texts.rows_of(some_windows(200, seed=7)))
    np.testing.assert_array_equal(vectors, np.rint(vectors))
    exact = vectors.astype(np.int64) @ raw.index.keys.T.astype(np.int64)
    assert np.abs(exact).max() < 2**24
    np.testing.assert_array_equal(vectors @ raw.index.keys.T, exact)


def test_the_threshold_is_measured(raw):
    figures = calibrate(raw, some_windows(500, seed=8), np.random.default_rng(0))
    assert 0 <= figures.threshold < 1
    assert 0.2 <= figures.above <= 1.0
    found = raw.similarity(some_windows(500, seed=8))
    assert figures.above == (found > figures.threshold).mean()
    for name, share in (("5", 0.05), ("50", 0.5), ("95", 0.95)):
        assert figures.similarity_retrieved[name] == pytest.approx(np.quantile(found, share))
    assert figures.similarity_unrelated["50"] <= figures.similarity_retrieved["50"]


def test_hash_encoder_is_stable_unit_and_tells_texts_apart():
    encoder = HashEncoder.fit(["you see a red ball", "you see a green key"], ["go to the red ball"])
    vectors = encoder(["you see a red ball", "You see a red ball!", "you see a green key", "go to the red ball", ""])
    np.testing.assert_allclose(np.linalg.norm(vectors[:4], axis=1), 1, atol=1e-5)
    assert not vectors[4].any()
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert vectors[0] @ vectors[3] > vectors[2] @ vectors[3] + 0.2
    again = open_encoder(encoder.settings())(["you see a red ball"])
    np.testing.assert_array_equal(again[0], vectors[0])
    # the same number in every process and on every machine
    assert int(np.abs(HashEncoder()(["ball"])[0]).argmax()) == 8


def test_plurals_are_one_word():
    assert words("1 step, 2 Steps; grass") == ["1", "step", "2", "step", "grass"]


def test_an_unknown_encoder_is_a_usage_error_and_a_missing_one_an_input_error(tmp_path):
    with pytest.raises(UsageError, match="hash, minilm or hf"):
        check_encoder("bert")
    with pytest.raises(InputError, match="no model folder"):
        fit_encoder(f"hf:{tmp_path / 'nothing'}", [])


def tiny_encoder(folder, positions=512):
    """A BERT of 16 numbers in a folder."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "ball"]))
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=positions,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(folder)


def test_a_transformers_encoder_by_path(tmp_path, monkeypatch):
    tiny_encoder(tmp_path)
    encoder = fit_encoder(f"hf:{tmp_path}")
    vectors = encoder(["red ball", "green ball"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(open_encoder(encoder.settings())(["green ball"])[0], vectors[1])
    calls = []
    monkeypatch.setattr(type(encoder), "embed", lambda self, text: calls.append(text))
    np.testing.assert_array_equal(encoder(["green ball", "red ball"])[1], vectors[0])
    assert not calls
    assert fit_encoder(f"hf:{tmp_path}") is encoder


def test_an_encoder_by_name_is_taken_from_this_machine_alone(tmp_path, monkeypatch):
    import socket

    from huggingface_hub import constants

    asked = []
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("BKRL_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **_: asked.append(where))
    _loaded.cache_clear()
    for name, remedy in (("hf:nobody/nothing", "hf download nobody/nothing"), ("minilm", "bkrl lm fetch minilm")):
        check_encoder(name)
        with pytest.raises(InputError, match=f"fetch it (first )?with `{remedy}`"):
            fit_encoder(name)
    tiny_encoder(tmp_path / "models" / "minilm")
    assert fit_encoder("minilm")(["red ball"]).shape == (1, 16)
    tiny_encoder(tmp_path / "models--some--encoder" / "snapshots" / "abc")
    refs = tmp_path / "models--some--encoder" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    vectors = fit_encoder("hf:some/encoder")(["red ball"])
    (tmp_path / "models--some--encoder" / "snapshots" / "abc" / "model.safetensors").unlink()
    _loaded.cache_clear()
    with pytest.raises(InputError, match="cannot be loaded .* run `hf download some/encoder`"):
        fit_encoder("hf:some/encoder")
    assert vectors.shape == (1, 16)
    assert not asked, "nothing is fetched"


def test_an_encoder_that_was_changed_since_is_refused(tmp_path, monkeypatch):
    artefact = load_potential("sample:bk-goal-minigrid").artefact
    assert load(artefact)
    monkeypatch.setattr("bkrl.potentials.goal.open_encoder", lambda settings: HashEncoder({}, settings["size"]))
    with pytest.raises(InputError, match="encoder hash gives other vectors .* run train-rm again"):
        load(artefact)
    monkeypatch.setattr("bkrl.potentials.goal.open_encoder", lambda settings: HashEncoder({}, 16))
    with pytest.raises(InputError, match="gives other vectors"):
        load(artefact)


def test_an_encoder_with_damaged_files_is_a_sentence(tmp_path):
    tiny_encoder(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be loaded .* name the folder of a whole one"):
        fit_encoder(f"hf:{tmp_path}")
    tiny_encoder(tmp_path / "part")
    without(tmp_path / "part" / "model.safetensors", "encoder.layer.0.output")
    with pytest.raises(InputError, match=r"its weights have no encoder.layer.0.output.*name the folder of a whole one"):
        fit_encoder(f"hf:{tmp_path / 'part'}")
    tiny_encoder(tmp_path / "bare")
    without(tmp_path / "bare" / "model.safetensors", "pooler.")  # which no vector reads
    assert fit_encoder(f"hf:{tmp_path / 'bare'}").size == 16
    tiny_encoder(tmp_path / "mute")
    for file in (*(tmp_path / "mute").glob("tokenizer*"), tmp_path / "mute" / "vocab.txt"):
        file.unlink()
    with pytest.raises(InputError, match="mute holds no tokenizer"):  # every text was one, of unknown words
        fit_encoder(f"hf:{tmp_path / 'mute'}")


def test_an_encoder_that_is_another_model_now_is_refused(tmp_path):
    """A policy was evaluated, and trained on, with whatever lay there."""
    tiny_encoder(tmp_path)
    kept = {**fit_encoder(f"hf:{tmp_path}").settings()}
    config = TrainRsConfig("ellm", env="Crafter-Typed-AttackCow", goal_encoder=f"hf:{tmp_path}")
    assert read_by(config) == {"goal_encoder": tmp_path / "model.safetensors"}
    _loaded.cache_clear()
    assert open_encoder(kept).settings() == kept
    tiny_encoder(tmp_path)
    _loaded.cache_clear()
    with pytest.raises(InputError, match="is another model than the one that was trained with; bring that one back"):
        open_encoder(kept)
    assert open_encoder({"name": kept["name"], "size": 16})  # as earlier versions wrote it


def test_encoders_that_decode_or_have_few_positions(tmp_path):
    """Both ended in a traceback."""
    sample = locate(Path("sample:lm-t5")) / "model"
    (one,) = fit_encoder(f"hf:{sample}")(["go to the red ball"])
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
    tiny_encoder(tmp_path, positions=4)
    assert fit_encoder(f"hf:{tmp_path}")(["red ball red ball red ball"]).shape == (1, 16)


def test_an_empty_text_without_marks_of_its_ends_is_nothing(tmp_path):
    build(tmp_path, positions=64)
    encoder = fit_encoder(f"hf:{tmp_path}")
    assert not encoder([""]).any()
