"""The language models that a user can name: folders, runs of `bkrl lm make`, policies, and tiny ones drawn here."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from bkrl.agents.language.models import TINY, LanguageModel, Origin, drawn, open_model, tiny_config
from bkrl.agents.language.vocabulary import make_tokenizer
from bkrl.core.errors import InputError
from bkrl.core.models import catalogue
from bkrl.core.registry import did_you_mean
from bkrl.llm.weights import gguf_file
from bkrl.runs.folder import locate
from bkrl.runs.record import Run
from bkrl.runs.samples import samples

TINY_WIDTH = 64
FOLDERS = {"lm": "model", "train-rs": "policy"}
"""Where the runs of a stage keep a model."""


def open_language_model(
    where: str, *, chat: bool = True, pretrained: bool = True, embeddings: bool = False, seed: int = 0
) -> LanguageModel:
    """A model by the name that `--lm` takes.

    Args:
        where: `tiny-t5` or `tiny-causal`, drawn from `seed`; a run of `bkrl lm make` or `sample:NAME`; a train-rs run
            whose policy is a whole model; a model of `bkrl lm list` that was fetched, or any GGUF file; any folder of
            transformers, or the name of one in the local cache.
        chat, pretrained, embeddings, seed: see `Origin`.

    Raises:
        InputError: there is none, or none that can score answers.
    """
    if where in TINY:
        tokenizer, kind = make_tokenizer(()), TINY[where]
        config = tiny_config(kind, TINY_WIDTH, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
        return LanguageModel(drawn(config, kind, seed), tokenizer, kind, Origin(where, seed=seed), "P0")
    folder, level = None, "P3"
    if where.endswith(".gguf") or where in catalogue():
        folder = gguf_file(where)
    elif (locate(Path(where)) / "manifest.json").is_file():
        run = Run.open(Path(where), list(FOLDERS))
        folder, level = run.path / FOLDERS[run.stage], str(run.facts.get("level", level))
        if not (folder / "config.json").is_file():
            raise InputError(
                f"{where} holds no whole model; name a run of `bkrl lm make`, or a folder of transformers."
            )
    options: dict[str, Any] = {"chat": chat, "pretrained": pretrained, "embeddings": embeddings, "seed": seed}
    try:
        return open_model(where, folder, level=level, **options)
    except InputError:
        if not Path(where).exists() and (near := did_you_mean(where, [*TINY, *samples(["lm"])])):
            raise InputError(f"There is no model '{where}'.{near}") from None
        raise


def reopened(origin: Origin) -> LanguageModel:
    """The model that an agent was made from; InputError where another one is there now."""
    found = open_language_model(**{name: value for name, value in asdict(origin).items() if name != "content"})
    if found.origin.content != origin.content:
        raise InputError(f"{origin.where} is another model than the policy was trained on; put the old one back.")
    return found
