"""Scores of packed candidates against cross-entropies one by one; the rules against closed forms."""

import math
import os
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from bkrl.agents.language.adapters import Trainable, prepare
from bkrl.agents.language.models import LanguageModel, Origin, drawn
from bkrl.agents.language.packing import Prompts, buckets, forest, tree
from bkrl.agents.language.scorer import Scorer, Scoring, policy_logits, token_scores
from bkrl.agents.language.t5 import Distances
from bkrl.agents.language.vocabulary import make_tokenizer
from bkrl.core.errors import InputError

NAMES = ("turn left", "turn right", "go forward", "pick up", "drop", "do nothing at all")
PROMPTS = [
    "You see a red ball 3 steps left, Action 0: ",
    "Goal of the agent: go to the green key",
    "Goal of the agent: pick up a purple box, You see a purple box 2 steps right and 1 step forward, You see a wall",
    "ball",
]
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
WINDOW = 6
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "decoder_start_token_id": 0}
CONFIGS = {
    "t5": ("seq2seq", "T5Config", T5),
    "flan-t5": ("seq2seq", "T5Config", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "qwen2": ("causal", "Qwen2Config", {**SHAPE, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama": ("causal", "LlamaConfig", {**SHAPE, "num_key_value_heads": 4}),
    "mistral": ("causal", "MistralConfig", {**SHAPE, "num_key_value_heads": 4, "sliding_window": WINDOW}),
    "gemma3": (
        "causal",
        "Gemma3TextConfig",
        {**SHAPE, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": WINDOW, "layer_types": KINDS},
    ),
    "granite": ("causal", "GraniteConfig", {**SHAPE, "num_key_value_heads": 4, "embedding_multiplier": 3.0}),
}
BOTH = ("flan-t5", "qwen2")


def model(name):
    import transformers  # collecting these tests shall not take seconds in each worker

    kind, config, shape = CONFIGS[name]
    tokenizer = make_tokenizer(())
    shape = {**shape, "vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    made = getattr(transformers, config)(**shape)
    return LanguageModel(drawn(made, kind, 3), tokenizer, kind, Origin(name), "P0")


def one_by_one(lm, prompt, candidate):
    """The summed log-probability of a candidate's tokens, with nothing shared, padded or masked."""
    target = torch.tensor(candidate)
    if lm.kind == "seq2seq":
        fed = torch.tensor([[lm.start, *candidate[:-1]]])
        logits = lm.model(input_ids=torch.tensor([prompt]), decoder_input_ids=fed).logits[0]
    else:
        logits = lm.model(input_ids=torch.tensor([[*prompt, *candidate]])).logits[0, len(prompt) - 1 : -1]
    return -cross_entropy(logits, target, reduction="sum")


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_packed_scores_are_cross_entropies_one_by_one(name, eos):
    lm = model(name)
    scorer = Scorer(lm, NAMES, Scoring(eos=eos))
    rows = [lm.tokens(prompt) for prompt in PROMPTS]
    scored = scorer(Prompts.of(rows, lm.pad))
    assert scorer.packed
    wanted = torch.stack([torch.stack([one_by_one(lm, row, one) for one in scorer.candidates]) for row in rows])
    torch.testing.assert_close(scored.scores, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scored.logits.softmax(1).sum(1), torch.ones(len(rows)))


ALIKE = [[1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 9], [8], [1, 2, 3, 5], [1], [8, 2, 3, 4], [1, 2, 9]]


@pytest.mark.parametrize("most", [1, 12, 20, 1000])
def test_a_forest_has_what_prompts_begin_with_alike_once_a_tree(most):
    prompts, packed = Prompts.of(ALIKE), tree([(11, 12), (11, 13), (14,), (12, 11, 15)])
    L, (B, S) = len(packed.tokens), prompts.tokens.shape
    trees = forest(prompts, packed, most)
    C, N = trees.tokens.shape
    assert max(most, 7 + L) >= N
    looks = torch.block_diag(*trees.looks[:, 0])
    paths = []
    for row, tokens in zip(trees.places.tolist(), ALIKE, strict=True):
        path = row[: len(tokens)] + row[S:]
        assert trees.tokens.flatten()[path].tolist() == [*tokens, *packed.tokens.tolist()]
        assert trees.depths.flatten()[path].tolist() == [
            *range(len(tokens)),
            *(len(tokens) - 1 + packed.depth).tolist(),
        ]
        seen = torch.block_diag(torch.ones(len(tokens), len(tokens)).tril(), packed.looks).bool()
        seen[len(tokens) :, : len(tokens)] = True
        assert (looks[path][:, path] == seen).all()
        assert (looks[path].sum(1) == seen.sum(1)).all()  # and at nothing else
        paths.append((row[0] // N, tuple(tokens)))
    for place, source in enumerate(trees.sources.tolist()):
        assert trees.places.flatten()[source] == place or (
            trees.looks[place // N, 0, place % N].sum() == 1 and not source
        )
    begun = {(number, tokens[: i + 1]) for number, tokens in paths for i in range(len(tokens))}
    assert len(begun) + B * L == len(
        set(trees.places[:, S:].flatten().tolist())
        | {p for r, t in zip(trees.places.tolist(), ALIKE, strict=True) for p in r[: len(t)]}
    )
    if most == 1000:
        assert (C, len(begun)) == (1, 14)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "t5" not in name])
@pytest.mark.parametrize("most", [1, 30, 10_000])
@torch.no_grad()
def test_prompts_that_begin_alike_score_as_alone(name, most, monkeypatch):
    lm = model(name)
    scorer = Scorer(lm, NAMES, most_tokens=most)
    monkeypatch.setattr(lm.model.config, "hidden_size", most)  # so large are the trees
    wanted = torch.stack([torch.stack([one_by_one(lm, row, one) for one in scorer.candidates]) for row in ALIKE])
    torch.testing.assert_close(scorer(Prompts.of(ALIKE, lm.pad)).scores, wanted, rtol=1e-5, atol=1e-5)
    assert scorer.packed


@pytest.mark.parametrize("name", BOTH)
def test_gradients_of_packed_scores_are_those_of_a_row_for_each_candidate(name):
    gradients = []
    for packed in (True, False):
        lm = model(name)
        scorer = Scorer(lm, NAMES, packed=packed)
        scored = scorer(scorer.prompts([*PROMPTS, PROMPTS[0]]))
        (scored.logits.log_softmax(1)[:, 2].sum() + scored.hidden.square().sum()).backward()
        gradients.append([parameter.grad for parameter in lm.model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_rows_come_back_in_their_order_and_equal_ones_are_scored_once(name, monkeypatch):
    lm = model(name)
    scorer = Scorer(lm, NAMES, most_tokens=40)
    order = [2, 0, 3, 0, 1, 2, 2]
    alone = torch.cat([scorer(scorer.prompts([PROMPTS[i]])).scores for i in order])
    read = type(scorer.body).read
    seen = []
    monkeypatch.setattr(
        type(scorer.body), "read", lambda self, prompts, lower: seen.append(prompts) or read(self, prompts, lower)
    )
    together = scorer(scorer.prompts([PROMPTS[i] for i in order])).scores
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert sum(len(prompts.tokens) for prompts in seen) == 4
    assert len(seen) > 1  # lengths 1 to 27 share no bucket


def test_buckets_hold_all_rows_and_pad_little():
    lengths = torch.tensor([3, 100, 90, 4, 76, 30, 100])
    found = buckets(lengths, 250)
    assert sorted(torch.cat(found).tolist()) == list(range(7))
    for rows in found:
        of = lengths[rows]
        assert 4 * of.min() >= 3 * of.max()
        assert len(of) == 1 or len(of) * of.max() <= 250


def test_layouts_share_what_begins_alike():
    candidates = [(5, 6), (5, 7), (8,), (9, 1, 2)]
    packed = tree(candidates, start=0)
    assert packed.tokens.tolist() == [0, 5, 9, 1]
    assert packed.depth.tolist() == [0, 1, 1, 2]
    assert packed.looks.long().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert packed.columns.tolist() == [1, 2, 5, 6, 7, 8, 9]
    grown = tree(candidates)
    assert grown.tokens.tolist() == [5, 9, 1]
    assert grown.depth.tolist() == [1, 1, 2]
    assert grown.looks.long().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert grown.source.tolist() == packed.source.tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 2, 3]]
    assert tree([(1,), (2,)]).looks.shape == (0, 0)


# ---------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(("A", "cap"), [(3, 0.576), (6, 0.352), (9, 0.254)])
def test_the_published_first_rule_caps_every_probability(A, cap):
    certain = torch.full((1, A), -math.inf)
    certain[0, 1] = 0.0
    policy = policy_logits(certain, Scoring("prob")).softmax(1)
    assert policy.max().item() == pytest.approx(cap, abs=5e-4)
    assert policy.max().item() == pytest.approx(math.e / (math.e + A - 1))


def test_the_second_rule_adds_one_for_each_missing_token_and_the_third_nothing():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 12, generator=generator)
    short = tree([(5, 6), (8,)], 0)
    longer = tree([(5, 6), (8,), (9, 1, 2)], 0)
    for rule, added in (("logit", 1.0), ("logprob", 0.0)):
        before = token_scores(logits, short, short.source, rule).sum(2)
        after = token_scores(logits, longer, longer.source, rule).sum(2)[:, :2]
        torch.testing.assert_close(after, before + added)


def test_a_restricted_vocabulary_leaves_the_candidates_tokens_only():
    logits = torch.randn(1, 2, 12, generator=torch.Generator().manual_seed(0))
    packed = tree([(5, 6), (5, 7), (8,)], 0)
    columns = [5, 6, 7, 8]
    said = token_scores(logits, packed, packed.source, "restricted")
    wanted = logits[..., columns].log_softmax(2)[0]
    first, second = wanted[0, 0] + wanted[1, 1], wanted[0, 3]
    torch.testing.assert_close(said.sum(2)[0, [0, 2]], torch.stack([first, second]))


@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_normalised_scores(name):
    lm = model(name)
    prompts = Scorer(lm, NAMES).prompts(PROMPTS)
    plain = Scorer(lm, NAMES)(prompts).scores
    lengths = torch.tensor([len(one) for one in lm.candidates(NAMES, eos=False)])
    torch.testing.assert_close(Scorer(lm, NAMES, Scoring(normalise="token"))(prompts).scores, plain / lengths)
    words = torch.tensor([2, 2, 2, 2, 1, 4])
    torch.testing.assert_close(Scorer(lm, NAMES, Scoring(normalise="word"))(prompts).scores, plain / words)
    alone = torch.stack([one_by_one(lm, lm.nothing, one) for one in lm.candidates(NAMES, eos=False)])
    free = Scorer(lm, NAMES, Scoring(normalise="unconditional"))(prompts).scores
    torch.testing.assert_close(free, plain - alone, rtol=1e-5, atol=2e-5)
    cooled = Scorer(lm, NAMES, Scoring(temperature=2.0))(prompts)
    torch.testing.assert_close(cooled.logits, plain / 2)


# ------------------------------------------------------------------------------------------------ freezing and fallback


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        ("flan-t5", -1), ("flan-t5", 1), ("t5", 2), ("qwen2", 2), ("qwen2", 3), ("llama", 1), ("mistral", 2),
        ("gemma3", 1), ("gemma3", 2),
    ],
)  # fmt: skip
def test_states_of_frozen_layers_can_be_kept(name, frozen):
    """Layers above frozen ones had the masks and rotations of the first layers in a model whose layers differ."""
    lm = model(name)
    prepare(lm, Trainable(frozen=frozen), seed=0)
    scorer = Scorer(lm, NAMES, frozen=max(0, frozen))
    assert scorer.can_split()
    prompts = scorer.prompts([*PROMPTS, PROMPTS[2]])
    kept = scorer.lower(prompts)
    plain, split = scorer(prompts), scorer(prompts, kept)
    assert scorer.packed
    torch.testing.assert_close(split.scores, plain.scores, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(split.hidden, plain.hidden, rtol=1e-5, atol=1e-5)
    trained = [parameter for parameter in lm.model.parameters() if parameter.requires_grad]
    gradients = [torch.autograd.grad(one.logits[:, 0].sum(), trained, allow_unused=True) for one in (plain, split)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_first_prompts_may_be_shorter_than_a_window():
    """Only they are scored both ways, so that longer prompts were looked at beyond the window, without a word."""
    for name in ("mistral", "gemma3"):
        scorer = Scorer(model(name), NAMES)
        scorer(Prompts.of([[7, 8], [9]]))
        scored = scorer(scorer.prompts(PROMPTS)).scores
        assert scorer.packed
        torch.testing.assert_close(scored, Scorer(scorer.lm, NAMES, packed=False)(scorer.prompts(PROMPTS)).scores)


@torch.no_grad()
def test_a_model_that_multiplies_what_it_is_fed_is_not_split(monkeypatch):
    """It multiplied the states of frozen layers, too; where its config is silent about that, the check finds it."""
    lm = model("granite")
    prepare(lm, Trainable(frozen=1), seed=0)
    assert not Scorer(lm, NAMES, frozen=1).can_split()
    lm.model.config.embedding_multiplier = 1.0
    scorer = Scorer(lm, NAMES, frozen=1)
    prompts = scorer.prompts(PROMPTS)
    assert scorer.can_split()
    with pytest.warns(RuntimeWarning, match="granite does not score packed candidates as .* one by one from here on"):
        scored = scorer(prompts, scorer.lower(prompts)).scores
    torch.testing.assert_close(scored, Scorer(lm, NAMES, packed=False)(prompts).scores)


@torch.no_grad()
def test_frozen_layers_in_bfloat16_differ_by_a_hundredth():
    lm = model("llama")
    prepare(lm, Trainable("heads", frozen=2), seed=0)
    exact, half = (Scorer(lm, NAMES, frozen=2, half=one) for one in (False, True))
    prompts = exact.prompts(PROMPTS)
    states, wanted = half.lower(prompts)["nodes"], exact.lower(prompts)["nodes"]
    assert not torch.equal(states, wanted)
    torch.testing.assert_close(states.float(), wanted, rtol=0.05, atol=0.02 * float(wanted.abs().max()))


def test_trained_layers_in_bfloat16_stay_packed_and_differ_by_a_hundredth():
    lm = model("llama")
    prepare(lm, Trainable("all", frozen=1), seed=0)
    exact, half = (Scorer(lm, NAMES, frozen=1, half=one) for one in (False, True))
    assert 0 < int(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) <= 64  # a plan of each shape was kept, 1,024 of them
    prompts = exact.prompts(PROMPTS)
    trained = [parameter for parameter in lm.model.parameters() if parameter.requires_grad]
    scored = [scorer(prompts, exact.lower(prompts)) for scorer in (exact, half)]
    assert half.packed, "what is checked is checked in float32"
    assert half.half
    assert not torch.equal(scored[1].scores, scored[0].scores)
    torch.testing.assert_close(scored[1].scores, scored[0].scores, rtol=0.01, atol=0.02)
    of, by = (torch.autograd.grad(one.logits[:, 0].sum(), trained) for one in scored)
    for one, other in zip(of, by, strict=True):
        assert one.dtype == other.dtype == torch.float32
        torch.testing.assert_close(other, one, rtol=0.1, atol=0.05 * float(one.abs().max()))


def test_what_trains_cannot_be_kept():
    for name in BOTH:
        assert not Scorer(model(name), NAMES, frozen=1).can_split()


@torch.no_grad()
def test_a_seq2seq_that_is_no_t5_is_scored_row_by_row_with_a_warning():
    from transformers import BartConfig

    tokenizer = make_tokenizer(())
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=1, decoder_start_token_id=0, init_std=1.0,
    )  # fmt: skip
    lm = LanguageModel(drawn(config, "seq2seq", 0), tokenizer, "seq2seq", Origin("bart"), "P0")
    with pytest.warns(RuntimeWarning, match="bart is not built as T5 is, so all are scored one by one"):
        scorer = Scorer(lm, NAMES)
    assert not scorer.packed
    assert not scorer.can_split()
    scored = scorer(scorer.prompts(PROMPTS))
    rows = [lm.tokens(prompt) for prompt in PROMPTS]
    wanted = torch.stack([torch.stack([one_by_one(lm, row, one) for one in scorer.candidates]) for row in rows])
    torch.testing.assert_close(scored.scores, wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_model_that_packing_changes_is_scored_row_by_row_with_a_warning(monkeypatch):
    lm = model("flan-t5")
    wanted = Scorer(lm, NAMES)(Scorer(lm, NAMES).prompts(PROMPTS)).scores
    bucket = Distances._bucket
    monkeypatch.setattr(Distances, "_bucket", lambda self, distances: bucket(self, 2 * distances))
    scorer = Scorer(lm, NAMES)
    with pytest.warns(RuntimeWarning, match="flan-t5 does not score packed candidates as .* one by one from here on"):
        scored = scorer(scorer.prompts(PROMPTS))
    assert not scorer.packed
    torch.testing.assert_close(scored.scores, wanted, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_check_that_fails_on_the_way_leaves_the_scorer_as_it_was(monkeypatch):
    lm = model("qwen2")
    scorer = Scorer(lm, NAMES, half=True)
    prompts = scorer.prompts(PROMPTS)

    def full(*given):
        raise torch.OutOfMemoryError("no memory is left")

    with monkeypatch.context() as patched:
        patched.setattr(scorer.body, "rows", full)
        with pytest.raises(torch.OutOfMemoryError):
            scorer(prompts)
    assert (scorer.half, scorer.packed) == (True, True)
    torch.testing.assert_close(scorer(prompts).scores, Scorer(lm, NAMES, half=True)(prompts).scores, rtol=0, atol=0)


def test_names_that_cannot_be_told_apart_or_are_nothing_are_refused():
    lm = model("t5")
    with pytest.raises(InputError, match="'drop' and 'drop ' are the same tokens"):
        Scorer(lm, ["drop", "drop "])
    with pytest.raises(InputError, match="'¿' becomes no token"):
        Scorer(lm, ["drop", "¿"])
    with pytest.raises(InputError, match="'' becomes no token"):
        Scorer(lm, [""])


def test_a_prompt_longer_than_the_model_reads_is_refused():
    lm = model("llama")
    lm.model.config.max_position_embeddings = 20
    scorer = Scorer(lm, NAMES)
    scorer.prompts([PROMPTS[0]])
    with pytest.raises(InputError, match=r"A prompt has \d+ tokens with its answers, and llama reads 20"):
        scorer.prompts(PROMPTS)


def test_chat_templates_are_respected_and_odd_ones_refused():
    lm = replace(model("llama"), chat=True)
    lm.tokenizer.chat_template = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}Action :"
    said = lm.tokenizer.decode(lm.tokens("go to the ball"))
    assert said.replace(" ", "") == "user:gototheballAction:"
    chat = (("user", "drop"), ("assistant", "left"), ("user", "key"))
    assert lm.tokenizer.decode(lm.tokens(chat)).replace(" ", "") == "user:dropassistant:leftuser:keyAction:"
    lm.tokenizer.chat_template = "{{ raise_exception('only tools here') }}"
    with pytest.raises(InputError, match="chat template of llama cannot take the prompt .only tools here."):
        lm.tokens("go")


def test_a_tokenizer_without_padding_scores_the_same():
    with torch.no_grad():
        lm = model("qwen2")
        scorer = Scorer(lm, NAMES)
        before = scorer(scorer.prompts(PROMPTS)).scores
        lm.tokenizer.pad_token = None
        assert lm.pad == 0
        torch.testing.assert_close(scorer(scorer.prompts(PROMPTS)).scores, before)
