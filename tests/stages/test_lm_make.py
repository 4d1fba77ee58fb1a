"""Small language models: what they read, what is left of a run that is stopped, what they have learnt."""

import math
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl import collect
from bkrl.agents.language.catalogue import open_language_model
from bkrl.agents.language.corpus import answers, read
from bkrl.agents.language.scorer import Scorer, Scoring
from bkrl.agents.language.vocabulary import known_words, make_tokenizer
from bkrl.core.config import CollectConfig, LmMakeConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.learn.pretrain import Pretrainer, with_gaps
from bkrl.runs.record import Run
from bkrl.stages.lm_make import run
from bkrl.studies.cells import state_of
from bkrl.studies.section import Cell

DATA = Path("sample:data-minigrid")
SMALL = {"from_": (DATA,), "size": "d32", "steps": 40, "texts": 300, "batch": 4}


def made(out, **settings):
    return run(LmMakeConfig(out=out, **(SMALL | settings)), Reporter())


def test_gaps_hold_what_is_left_out():
    rng, sentinels = np.random.default_rng(0), range(1000, 1016)
    left_out = 0
    for _ in range(200):
        text = tuple(rng.integers(0, 99, rng.integers(1, 90)).tolist())
        given, said = with_gaps(text, sentinels, rng)
        gaps = {}
        for token in said:
            if token >= 1000:
                gaps[token] = []
                last = token
            else:
                gaps[last].append(token)
        whole = [token for place in given for token in gaps.get(place, [place])]
        assert tuple(whole) == text
        assert list(gaps) == list(sentinels[: len(gaps)])
        left_out += sum(map(len, gaps.values())) / len(text)
    assert 0.1 < left_out / 200 < 0.25


def test_every_word_of_the_lists_is_a_token_and_others_are_spelt():
    tokenizer = make_tokenizer(["un mot inattendu"])
    for text in (*known_words(), "un mot inattendu"):
        pieces = tokenizer.tokenize(text)
        assert not any(piece.startswith("##") or piece == "<unk>" for piece in pieces), text
    assert tokenizer.tokenize("zyx ball") == ["z", "##y", "##x", "ball"]
    assert make_tokenizer(["b a", "a"]).get_vocab() == make_tokenizer(["a", "a", "b"]).get_vocab()


def test_what_is_read_has_every_wording_and_no_answer():
    texts = read((DATA,), 400, seed=1)
    assert len(texts) == len(set(texts)) > 100
    joined = "\n".join(texts)
    for said in ("Tu vois", "But de l'agent", "dax", "jatu", "rotate left", "You have to", "chaise"):
        assert said in joined
    assert all(text.endswith("Action 0: ") for text in texts)
    assert texts == read((DATA,), 400, seed=1) != read((DATA,), 400, seed=2)


@pytest.mark.parametrize(
    ("env_id", "french"), [("MiniGrid-Empty-5x5-v0", False), ("BabyAI-MixedTrainLocalFrench-v0", True)]
)
def test_missions_that_have_no_french_or_are_french_are_read_as_they_are(env_id, french, tmp_path):
    """Both were refused as no missions of BabyAI, though nobody had asked for French."""
    data = collect(CollectConfig(env_id, tmp_path / "data", explorer="random", episodes=2), progress=False)
    texts = read((data.path,), 200, seed=1)
    assert any("Tu vois" in text for text in texts) == french
    goals = {match[1] for text in texts if (match := re.search("(?:Goal of the agent|But de l'agent): ([^\n]+)", text))}
    assert not french or any(goal.startswith(("aller", "attraper", "ouvrir", "mettre")) for goal in goals)


@pytest.mark.parametrize("kind", [pytest.param("t5", marks=pytest.mark.slow), "causal"])
def test_a_run_that_was_stopped_ends_with_the_same_bytes(kind, tmp_path, monkeypatch):
    whole = made(tmp_path / "whole", kind=kind)
    iterate = Pretrainer.iterate
    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "iterate", lambda self: (iterate(self), signal.raise_signal(signal.SIGINT))[0])
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "stopped", kind=kind)
    assert (tmp_path / "stopped/checkpoints").exists()
    again = made(tmp_path / "stopped", kind=kind)
    assert {name: one["sha256"] for name, one in again.manifest["outputs"].items() if "model" in name} == {
        name: one["sha256"] for name, one in whole.manifest["outputs"].items() if "model" in name
    }
    assert not (tmp_path / "stopped/checkpoints").exists()
    losses = [row["lm/loss"] for row in whole.metrics() if "lm/loss" in row]
    assert losses[-1] < losses[0]
    lm = open_language_model(str(tmp_path / "whole"))
    assert (lm.level, lm.kind) == ("P1", {"t5": "seq2seq", "causal": "causal"}[kind])
    assert whole.facts["held_out_loss"] < math.log(len(lm.tokenizer))  # of a model that knows nothing
    scorer = Scorer(lm, ("turn left", "go forward", "drop"), Scoring(normalise="token"))
    assert torch.isfinite(scorer(scorer.prompts(["go to the red ball"])).logits).all()


def test_answers_are_learnt_after_reading(tmp_path):
    """P2 finds what was done likelier than P0, and than chance, on what it was shown."""
    cloned = {"steps": 0, "clone": DATA, "clone_episodes": 2, "clone_steps": 120, "batch": 16, "rate": 1e-2}
    shown = answers(DATA, 2, seed=1)
    names = list(dict.fromkeys(name for _, name in shown))
    done = torch.tensor([names.index(name) for _, name in shown])
    surprise = {}
    for level, chosen in (("P0", {"steps": 0}), ("P2", cloned)):
        result = made(tmp_path / level, **chosen)
        assert result.facts["level"] == level
        scorer = Scorer(open_language_model(str(result.path)), names, Scoring(eos=True))
        with torch.no_grad():
            said = scorer(scorer.prompts([prompt for prompt, _ in shown])).logits
        surprise[level] = float(torch.nn.functional.cross_entropy(said, done))
    assert surprise["P2"] < min(surprise["P0"], math.log(len(names)))


def test_answers_are_of_one_task(tmp_path):
    """Missions of two tasks that begin with going somewhere passed for go-to missions."""
    config = CollectConfig("BabyAI-GoToSeqS5R2-v0@max_steps=60", tmp_path / "data", explorer="bot", episodes=30)
    data = collect(config, progress=False)
    missions = Dataset.open(data.path).missions
    single = [mission for mission in missions if not re.search(", then | after you | and ", mission)]
    assert 0 < len(single) < len([mission for mission in missions if "," not in mission])
    goals = {re.search("Goal of the agent: ([^\n]+) \n", prompt)[1] for prompt, _ in answers(data.path, 3, seed=1)}
    assert goals <= set(single)


def test_answers_name_the_action_that_ends_an_episode(tmp_path):
    """It was called sleep."""
    config = CollectConfig("MiniGrid-GoToDoor-5x5-v0", tmp_path / "data", explorer="bot", episodes=3)
    data = collect(config, progress=False)
    assert "done" in {name for _, name in answers(data.path, 3, seed=1)}


def test_a_model_that_read_more_or_fewer_datasets_is_not_the_one_of_a_study(tmp_path):
    """It was called done: its inputs alone were looked at, and not those that the study has besides."""
    before = made(tmp_path / "lm", steps=2, texts=20).path

    def state(*read):
        config = LmMakeConfig(out=before, **(SMALL | {"steps": 2, "texts": 20, "from_": read}))
        return state_of(Cell("lm_make", config, "lm"))

    assert state(DATA) == "done"
    assert "holds a run that differs in input 'from 2'; remove it" in state(DATA, tmp_path / "more")
    assert "holds a run that differs in input 'from 1'; remove it" in state()
    (before / "manifest.json").unlink()
    assert "differs in input 'from 2'" in state(DATA, tmp_path / "more")
    assert state(DATA) == ""


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UsageError, match="There is nothing to read; name a collect run with --from"):
        made(tmp_path / "a", from_=())
    with pytest.raises(InputError, match=r"holds \d+ solved go-to episodes, and 5000 are asked for"):
        made(tmp_path / "b", clone=DATA, clone_episodes=5000)
    with pytest.raises(InputError):
        made(tmp_path / "c", from_=(tmp_path / "none",))
    assert list(tmp_path.iterdir()) == []
    assert Run.open(DATA).stage == "collect"
