"""The settings of `label` and `evolve`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from bkrl.core.config import Annotator, AskConfig, Concurrency, Fresh, Seed, Threads
from bkrl.core.flags import AppliesWhen, Flag
from bkrl.llm import USUALLY_CLOSED

_OPENAI = AppliesWhen("--llm openai:MODEL", lambda c: c.llm.startswith("openai:"))
_SEGMENTS = AppliesWhen("--variant pref or goal", lambda c: c.variant != "code")
_CLOSED = AppliesWhen("--ask closed", lambda c: c.closed)
_CLOSED_PREF = AppliesWhen("--ask closed and --variant pref", lambda c: c.closed and c.variant == "pref")
_CLOSED_CODE = AppliesWhen("--ask closed and --variant code", lambda c: c.closed and c.variant == "code")
_PAID = AppliesWhen("a --train-shaping other than advice", lambda c: c.train_shaping != "advice")
_OPEN = AppliesWhen("--ask open", lambda c: not c.closed)
_COUNTED = AppliesWhen("--variant pref or goal, or --ask open", lambda c: c.variant != "code" or not c.closed)
_FITTED = AppliesWhen("--ask closed and --variant pref or goal", lambda c: c.closed and c.variant != "code")
_VOTED = AppliesWhen(
    "--ask open, or an --llm that may tell no log-probabilities",
    lambda c: not c.closed or c.llm.partition(":")[0] not in (*USUALLY_CLOSED, "hf"),
)
_ASKED = AppliesWhen("an --llm that is asked (this one is a control)", lambda c: c.asks)
_Efforts = Literal["default", "none", "minimal", "low", "medium", "high"]
_EFFORT = "reasoning effort asked of the model, whose reasoning is billed as output; default: not sent"
_Prompt = Annotated[
    str | None,
    Flag(
        "other prompts: bare (no rules of the env, no criteria), or a folder of your own; see docs/labels.md  "
        "[default: the shipped ones]",
        only=(_ASKED,),
    ),
]


@dataclass(frozen=True)
class LabelConfig(AskConfig):
    """Ask a language model what it knows: reward code, preferences between segments, or goals."""

    dataset: Annotated[Path, Flag("a collect run", positional=True, pooled=True, reads=True)]
    variant: Annotated[Literal["code", "pref", "goal"], Flag("what to ask for", pooled=True)] = "pref"
    out: Annotated[Path | None, Flag("run directory  [default: logs/label-VARIANT-DATASET-sSEED]", identity=False)] = (
        None
    )
    llm: Annotated[
        str,
        Flag(
            "annotator: rules (hand-written, no language model), openai:MODEL, local:NAME (of `bkrl lm list`), "
            "gguf:PATH, hf:NAME_OR_PATH, replay:RUN_OR_FILE; "
            "votes (Housekeep's truth, an upper bound), exact (optimal values of small BabyAI and MiniGrid levels); "
            "controls: random, equal (closed questions), words, return (pref)",
            pooled=True,
        ),
    ] = "rules"
    ask: Annotated[
        Literal["default", "open", "closed"],
        Flag(
            "open: answers in words and programs, as published; closed: one word each, whose log-probabilities count "
            "(docs/labels.md)  \\[default: closed for local:, gguf:, exact, equal, words and, but for pref, random; "
            "else open]",
            pooled=True,
        ),
    ] = "default"
    compare: Annotated[
        Literal["pairs", "points"],
        Flag("closed, pref: two segments at a time, in both orders; or each segment by itself", only=(_CLOSED_PREF,)),
    ] = "pairs"
    criteria: Annotated[
        str,
        Flag(
            "closed, pref: what is asked, divided by commas: overall, progress, effect, discovery, safety, mission",
            only=(_CLOSED_PREF,),
        ),
    ] = "overall"
    rate: Annotated[
        Literal["alone", "need"],
        Flag(
            "closed, code: how important each sub-goal is, 0 to 9; or, of each pair, whether one needs the other",
            only=(_CLOSED_CODE,),
        ),
    ] = "alone"
    score: Annotated[
        Literal["none", "exact"],
        Flag(
            "exact: score the answers by exact optimal values, where the level is small enough to be solved (BabyAI, "
            "MiniGrid); `train-rm` then scores what is learnt from them too",
            pooled=True,
        ),
    ] = "none"
    calibrate: Annotated[
        Literal["none", "rules"],
        Flag(
            "closed, pref and goal: whose answers to at most 100 of the questions a temperature and a bias are fitted "
            "on",
            only=(_FITTED,),
        ),
    ] = "none"
    rename: Annotated[
        str | None, Flag("closed: other words for things in every question, ball=dax,key=wug", only=(_CLOSED,))
    ] = None
    num: Annotated[
        int,
        Flag("pairs (pref), captions (goal), rounds (code); 0: 5000, 500 (closed: 100), 5", least=0, only=(_COUNTED,)),
    ] = 0
    length: Annotated[int, Flag("actions in a segment (pref, goal); 0: 5 or 3", least=0, only=(_SEGMENTS,))] = 0
    swap: Annotated[Literal["none", "both"], Flag("ask each pair in both orders to cancel position bias")] = "none"
    votes: Annotated[
        int, Flag("answers asked for each question; code: independent conversations", least=1, only=(_ASKED, _VOTED))
    ] = 1
    temperature: Annotated[float, Flag("sampling temperature", least=0, only=(_ASKED, _OPEN))] = 0.5
    max_tokens: Annotated[int, Flag("longest reply, in tokens; closed: 200 at most", least=1, only=(_ASKED,))] = 2048
    effort: Annotated[_Efforts, Flag(_EFFORT, only=(_ASKED,))] = "default"
    tier: Annotated[
        Literal["default", "flex"],
        Flag("flex: slower and cheaper, where the endpoint has it (openai:)", identity=False),
    ] = "default"
    prompt: _Prompt = None
    with_mission: Annotated[
        bool, Flag("show the mission of each segment, and let potentials made from these labels read it")
    ] = False
    with_memory: Annotated[
        bool,
        Flag(
            "show what happened in the episode so far (achievements, doors opened, cells seen), and let potentials made"
            " from these labels read it, programs as `memory`"
        ),
    ] = False
    body: Annotated[
        str | None,
        Flag(
            "openai: fields added to every request (JSON object, or a file with one); they change answers",
            only=(_OPENAI,),
        ),
    ] = None
    header: Annotated[
        str | None,
        Flag(
            "openai: headers added to every request, NAME=VARIABLE, divided by commas; an environment variable holds "
            "the secret value",
            only=(_OPENAI,),
            identity=False,
        ),
    ] = None
    batch: Annotated[
        Literal["off", "submit", "status", "collect"],
        Flag(
            "openai: at half price within a day, by the Batch API: submit, come back, collect (pref, goal)",
            identity=False,
        ),
    ] = "off"
    concurrency: Concurrency = field(default=64, kw_only=True)
    rpm: Annotated[
        float, Flag("most requests sent in a minute; 0: no limit", least=0, only=(_ASKED,), identity=False)
    ] = 0.0
    tpm: Annotated[
        float,
        Flag(
            "most tokens sent and awaited in a minute (estimated); 0: no limit", least=0, only=(_ASKED,), identity=False
        ),
    ] = 0.0
    seed: Seed = 1
    fresh: Fresh = False

    @property
    def asks(self) -> bool:
        return self.closed or self.llm not in ("random", "return")

    @property
    def closed(self) -> bool:
        """Whether closed questions are asked."""
        kind = self.llm.partition(":")[0]
        by_default = kind in USUALLY_CLOSED and (kind, self.variant) != ("random", "pref")
        return self.ask == "closed" or (self.ask == "default" and by_default)

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        return self.out or Path("logs") / f"label-{self.variant}-{self.dataset.name}-s{self.seed}"


_OF_LABELS = ("llm", "ask", "temperature", "max_tokens", "effort", "prompt", "with_memory", "seed")


@dataclass(frozen=True)
class EvolveConfig(AskConfig):
    """Hold a tournament of programs: a model writes some, sees how agents fare with them, and writes others."""

    dataset: Annotated[Path, Flag("a collect run", positional=True, pooled=True, reads=True)]
    tasks: Annotated[
        str, Flag('envs to train in, divided by blanks ("A B"): of the first set, on which nothing may be claimed')
    ] = ""
    out: Annotated[Path | None, Flag("run directory  [default: logs/evolve-DATASET-sSEED]", identity=False)] = None
    llm: Annotator = "rules"
    ask: Annotated[
        Literal["default", "open", "closed"],
        Flag(
            "open: programs are written; closed: they grow by a sub-goal at a time, in the order of one-word answers, "
            "which are asked once (docs/labels.md)  \\[default: closed for local:, gguf:, random and equal; else open]"
        ),
    ] = "default"
    rounds: Annotated[int, Flag("rounds of the tournament", least=1)] = 3
    proposals: Annotated[int, Flag("programs that are asked for in each round", least=1)] = 4
    trained: Annotated[int, Flag("of these the best by quality, so many, are trained with", least=1)] = 2
    steps: Annotated[int, Flag("env steps of each training", least=1)] = 100_000
    train_seed: Annotated[int, Flag("seed of the first training of each program and task", least=0)] = 101
    train_seeds: Annotated[int, Flag("trainings of each program and task, with successive seeds", least=1)] = 2
    eval_episodes: Annotated[int, Flag("seeded episodes in each of eight evaluations of a training", least=1)] = 50
    train_shaping: Annotated[
        Literal["pbrs", "advice", "pbrs+advice", "progress"],
        Flag("how agents use a program; docs/shaping.md has the forms"),
    ] = "advice"
    train_shaping_coef: Annotated[
        float | None, Flag("Φ is multiplied by this in them  [default: that of the form]", least=0, only=(_PAID,))
    ] = None
    temperature: Annotated[float, Flag("sampling temperature", least=0, only=(_OPEN,))] = 0.8
    max_tokens: Annotated[int, Flag("longest reply, in tokens", least=1, only=(_OPEN,))] = 4096
    effort: Annotated[_Efforts, Flag(_EFFORT)] = "default"
    prompt: _Prompt = None
    with_memory: Annotated[
        bool, Flag("let programs read what happened in the episode so far, as `memory`; see docs/potentials.md")
    ] = False
    seed: Seed = 1
    threads: Threads = 1
    fresh: Fresh = False

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        return self.out or Path("logs") / f"evolve-{self.dataset.name}-s{self.seed}"

    @property
    def label(self) -> LabelConfig:
        """The label run whose questions a tournament asks."""
        same = {name: vars(self)[name] for name in _OF_LABELS}
        return LabelConfig(self.dataset, "code", num=self.rounds, votes=self.proposals, **same)

    @property
    def closed(self) -> bool:
        """Whether programs grow by closed questions."""
        return self.label.closed

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(self.tasks.split())

    @property
    def seeds(self) -> range:
        return range(self.train_seed, self.train_seed + self.train_seeds)

    @property
    def trainings(self) -> int:
        """The most trainings there can be, those without a program included."""
        return (1 + self.rounds * min(self.trained, self.proposals)) * len(self.envs) * self.train_seeds
