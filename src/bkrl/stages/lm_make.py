"""lm make: a small language model that reads what recorded envs say (P1), and may then learn answers of a bot (P2)."""

import tempfile
from pathlib import Path

import torch

from bkrl.agents.language.catalogue import FOLDERS
from bkrl.agents.language.corpus import answers, read
from bkrl.agents.language.models import Kind, LanguageModel, Origin, drawn, tiny_config
from bkrl.agents.language.reading import TextPair
from bkrl.agents.language.vocabulary import SENTINELS, make_tokenizer
from bkrl.core.config import LmMakeConfig
from bkrl.core.errors import UsageError
from bkrl.core.files import atomic_write
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter
from bkrl.learn.loop import finished, train
from bkrl.learn.pretrain import Pretrainer
from bkrl.runs.inputs import read_by
from bkrl.runs.record import Run
from bkrl.stages import to_do

STAGE = "lm"
_HELD_OUT = 200
_KINDS: dict[str, Kind] = {"t5": "seq2seq", "causal": "causal"}


@announced
def run(config: LmMakeConfig, reporter: Reporter) -> Run:
    """Make the tokenizer and the model; the same command continues where it stopped.

    Raises:
        UsageError: there is nothing to read.
        InputError: what is to be read is missing or damaged, or has too few go-to episodes.
    """
    if not config.from_ and (config.steps or config.clone is None):
        raise UsageError("There is nothing to read; name a collect run with --from.")
    torch.set_num_threads(1)  # other numbers of threads round differently, and such a model gains little from them
    learner, held_out = _learner(config) if to_do(config) else (None, [])
    result = Run.begin(config, STAGE, read_by(config), reporter)
    if learner is None or result.complete:
        return result
    title = f"{config.kind} {config.size} reads {len(learner.texts):,} texts"
    every = config.checkpoint_every
    train(learner, result, reporter, title=title, checkpoint_every=every, milestones=[], at_milestone=lambda *_: None)
    loss = learner.held_out(held_out) if held_out else None
    result.finish(
        _save(learner.lm, result),
        kind=config.kind,
        size=config.size,
        level=learner.lm.level,
        vocabulary=len(learner.lm.tokenizer),
        texts=len(learner.texts),
        answers=len(learner.pairs),
        held_out_loss=loss,
        **learner.facts(),
    )
    finished(result)
    return result


def _learner(config: LmMakeConfig) -> tuple[Pretrainer, list[tuple[int, ...]]]:
    """What learns, and texts that it does not read."""
    texts = read(config.from_, config.texts, config.seed)
    pairs = answers(config.clone, config.clone_episodes, config.seed) if config.clone is not None else []
    tokenizer = make_tokenizer([*texts, *(prompt for prompt, _ in pairs)])
    kind, width = _KINDS[config.kind], int(config.size[1:])
    made = tiny_config(kind, width, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    level = "P2" if pairs else "P1" if config.steps else "P0"
    lm = LanguageModel(drawn(made, kind, config.seed), tokenizer, kind, Origin(config.run_dir.as_posix()), level)
    tokens = [tuple(lm.tokens(text)) for text in texts]
    apart = tokens[: min(_HELD_OUT, len(tokens) // 10)]
    names = list(dict.fromkeys(name for _, name in pairs))
    said = dict(zip(names, lm.candidates(names, eos=True), strict=True))
    learner = Pretrainer(
        lm,
        tokens[len(apart) :],
        [TextPair(tuple(lm.tokens(prompt)), said[name]) for prompt, name in pairs],
        steps=config.steps,
        pair_steps=config.clone_steps if pairs else 0,
        batch=config.batch,
        rate=config.rate,
        sentinels=tokenizer.convert_tokens_to_ids(list(SENTINELS)),
        seed=config.seed,
    )
    return learner, apart


def _save(lm: LanguageModel, result: Run) -> list[str]:
    """Write the model as a folder of transformers; the names of its files."""
    folder = result.file(FOLDERS[STAGE])
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        lm.save(Path(place))
        files = sorted(path for path in Path(place).iterdir() if path.is_file())
        for path in files:
            atomic_write(folder / path.name, path.read_bytes())
    return [f"{folder.name}/{path.name}" for path in files]
