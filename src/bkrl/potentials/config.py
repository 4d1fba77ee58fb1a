"""The settings of `train-rm`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from bkrl.core.config import API, MOST_COST, MOST_REQUESTS, PRICES, REPLIES, Fresh, Seed, Threads
from bkrl.core.errors import InputError
from bkrl.core.files import read_json
from bkrl.core.flags import AppliesWhen, Flag
from bkrl.runs.folder import locate

_FITTED = AppliesWhen(
    "--control none, shuffled or constant, which read the labels",
    lambda c: c.control in ("none", "shuffled", "constant"),
)


def _made_of(variant: str, labels: Path) -> bool | None:
    """Whether labels are of a variant, "" for any, and no dataset; None for others, which the stage has words for."""
    try:
        manifest = read_json(locate(labels) / "manifest.json")
    except InputError:
        return None
    stage, facts = manifest["stage"], manifest["config"] | manifest["facts"]
    return stage == "label" and variant in ("", facts.get("variant")) if stage in ("label", "collect") else None


def _of(variant: str, kind: str) -> tuple[AppliesWhen, ...]:
    """What the flags of one kind of labels have an effect with."""
    words = f"{kind} labels, made with --variant {variant} (bk-{variant})"
    return _FITTED, AppliesWhen(words, lambda c: _made_of(variant, c.labels))


_LABELS = AppliesWhen("labels (a collect run is the dataset)", lambda c: _made_of("", c.labels))
_PREFERENCES, _PROGRAMS, _GOALS = _of("pref", "preference"), _of("code", "code"), _of("goal", "goal")
_ADVICE = AppliesWhen("--advice", lambda c: bool(c.advice))


@dataclass(frozen=True)
class TrainRmConfig:
    """Turn labels into a potential Φ with a fixed scale."""

    labels: Annotated[Path, Flag("a label run", positional=True, pooled=True, reads=True)]
    out: Annotated[
        Path | None, Flag("run directory  [default: logs/rm-LABELS, with the control and the part]", identity=False)
    ] = None
    dataset: Annotated[
        Path | None,
        Flag("the dataset  [default: the one the labels were made from]", only=(_LABELS,), pooled=True, reads=True),
    ] = None
    encoder: Annotated[
        str, Flag("goal labels: text encoder, hash (offline), minilm or hf:NAME_OR_PATH", only=_GOALS, reads=True)
    ] = "hash"
    epochs: Annotated[
        int, Flag("preference labels: most passes over the pairs (training stops early)", least=1, only=_PREFERENCES)
    ] = 30
    ensemble: Annotated[
        int, Flag("preference labels: networks to train, whose mean is Φ", least=1, only=_PREFERENCES)
    ] = 1
    min_agreement: Annotated[
        float,
        Flag(
            "preference labels: leave out pairs of whose answers a smaller share agrees",
            least=0,
            most=1,
            only=_PREFERENCES,
        ),
    ] = 0.0
    bounds: Annotated[
        str,
        Flag(
            "code labels: LO,HI, the values of the program that become -1 and 0; needed when Φ must distinguish states "
            "outside the dataset  [default: percentiles 1 and 99 of the dataset]",
            only=_PROGRAMS,
        ),
    ] = ""
    control: Annotated[
        Literal["none", "shuffled", "random", "zero", "constant"],
        Flag(
            "make a control instead: permuted labels, a fixed random network, Φ = 0, or advice that is the same in "
            "every state (for --shaping advice)",
            pooled=True,
        ),
    ] = "none"
    shuffled_share: Annotated[
        float,
        Flag(
            "deal out anew this share of what labels say alone: a dial of noise (0.4 flips a fifth of the preferences)",
            least=0,
            most=1,
            only=(AppliesWhen("--control shuffled", lambda c: c.control == "shuffled"),),
        ),
    ] = 1.0
    part: Annotated[
        Literal["whole", "state", "rest"],
        Flag(
            "state: what the present view explains of Φ, E[Φ | view]; rest: Φ without that; its advice is the whole's "
            "(docs/potentials.md)"
        ),
    ] = "whole"
    play_steps: Annotated[
        int,
        Flag(
            "code labels: so many steps are played as the program's own advice says, to learn what it says on the way",
            least=0,
            only=(*_PROGRAMS, AppliesWhen("a program's own advice, without --advice", lambda c: not c.advice)),
        ),
    ] = 0
    play_rounds: Annotated[
        int,
        Flag(
            "so often the network that has learnt the advice plays as many steps, the program is asked there, too, and "
            "all is learnt anew",
            least=0,
            only=(AppliesWhen("--play-steps", lambda c: bool(c.play_steps)),),
        ),
    ] = 0
    advice: Annotated[
        str,
        Flag(
            "who is asked for advice on actions, without labels: local:NAME, gguf:PATH, hf:NAME_OR_PATH, openai:MODEL, "
            "random, equal; each frequent caption of the dataset once, by a closed question. LABELS may then be a "
            "collect run, of which only Ψ is made (Φ = 0, for --shaping advice)"
        ),
    ] = ""
    advice_captions: Annotated[
        int, Flag("most captions that are asked about, the most frequent first", least=1, only=(_ADVICE,))
    ] = 200
    max_requests: Annotated[int, replace(MOST_REQUESTS, only=(_ADVICE,))] = 0
    max_cost: Annotated[float, replace(MOST_COST, only=(_ADVICE,))] = 0.0
    prices: Annotated[Path | None, replace(PRICES, only=(_ADVICE,))] = None
    api: Annotated[Literal["chat", "responses"], API] = "chat"
    cache: Annotated[Path, replace(REPLIES, only=(_ADVICE,))] = Path("cache")
    seed: Seed = 1
    threads: Threads = 1
    fresh: Fresh = False

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        control = "" if self.control == "none" else f"-{self.control}"
        part = "" if self.part == "whole" else f"-{self.part}"
        part += "-advice" if self.advice else ""
        return self.out or Path("logs") / f"rm-{self.labels.name}{control}{part}"
