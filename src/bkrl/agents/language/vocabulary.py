"""The tokenizer of our small models: a token for each word that this project says, letters for all others.

Words come from the texts that a model reads first, and from every list of `bkrl.text.language`: both languages,
synonyms, invented words and other names of actions, so that tests with other words are not tests with unknown tokens.
A word that is none of these is spelt: its longest known beginning, then pieces of what follows.
"""

import string
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bkrl.envs.babyai.captions import FRENCH_FEMININE, FRENCH_MASCULINE, FRENCH_NOUNS
from bkrl.envs.babyai.constants import ACTION_SETS, COLOR_NAMES
from bkrl.text.language import ACTIONS_FR, WORDS
from bkrl.text.policy_prompts import GOAL_LABELS, LABELS

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(16))
"""What stands for a span of words that is left out (Raffel et al. 2020)."""
_LETTERS = string.ascii_letters + string.digits + "àâçéèêëîïôùûüœÀÂÇÉÈÊËÎÏÔÙÛÜŒ"
_SIGNS = ".,:;!?'\"-()\n"
_NUMBERS = 100
_MOST_WORDS = 4096


def known_words() -> Iterator[str]:
    """Texts with every word of the project's lists."""
    for languages in WORDS.values():
        for words in languages.values():
            yield from (*words, *words.values())
    for names in ACTION_SETS.values():
        yield from names
    yield from (*ACTIONS_FR, *ACTIONS_FR.values(), "dancer")
    for labels in LABELS.values():
        yield from (labels.actions, labels.goal, labels.sees, labels.opening, labels.then, labels.now, labels.answer)
        yield from (*labels.meanings, labels.idle)
    for texts in GOAL_LABELS.values():
        yield from texts.values()
    yield "Observation Action user assistant go to pick up open put next to then after and the a an"
    yield "You carry see nothing wall floor goal lava tile key ball box door object step steps forward left right"
    yield "open closed locked in front of behind on your"
    yield "Tu portes vois rien pas devant à gauche droite ouverte fermée clef un une la l d"
    yield from (*COLOR_NAMES, *FRENCH_NOUNS, *FRENCH_MASCULINE, *FRENCH_FEMININE)
    yield "aller attraper ouvrir mettre être allé avoir attrapé ouvert mis de côté derrière toi ta puis après et objet"


def make_tokenizer(texts: Iterable[str]) -> Any:
    """A fast tokenizer of transformers; equal texts give equal files.

    Args:
        texts: what a model will read; their words, the most frequent 4,096, become tokens.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Whitespace()
    counts: Counter[str] = Counter()
    for distinct in Counter(texts):
        counts.update(word for word, _ in split.pre_tokenize_str(distinct))
    listed = [word for text in known_words() for word, _ in split.pre_tokenize_str(text)]
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:_MOST_WORDS]
    letters = [*_LETTERS, *_SIGNS.strip()]
    pieces = dict.fromkeys(
        [PAD, EOS, UNKNOWN, *SENTINELS, *letters, *(f"##{letter}" for letter in _LETTERS), *map(str, range(_NUMBERS)),
         *listed, *frequent]
    )  # fmt: skip
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=64))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        extra_special_tokens=list(SENTINELS),
        clean_up_tokenization_spaces=False,
    )
