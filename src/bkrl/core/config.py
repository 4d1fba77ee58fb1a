"""Settings of collect, evaluate, report, sweep and others, one frozen dataclass each. Those of `label`, `train-rm` and
`train-rs` stand in labelers/, potentials/ and methods/.

A field's `Annotated[..., Flag("…")]` is its help; units and meaning stand in it. `out` and friends are paths; a
path that is `None` gets the default written in its help. This module imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from bkrl.core.errors import UsageError
from bkrl.core.flags import AppliesWhen, Flag

_LEARNS = AppliesWhen("--explorer rnd, which learns", lambda c: c.explorer == "rnd")
_ACTS = AppliesWhen("an --explorer that does not learn (random, bot or a run)", lambda c: c.explorer != "rnd")
_BOT = AppliesWhen("--explorer bot", lambda c: c.explorer == "bot")
_ASKED = AppliesWhen("an annotator that is asked", lambda c: c.asks)
_OPENAI = AppliesWhen("openai:MODEL", lambda c: any(str(value).startswith("openai:") for value in vars(c).values()))
_CLONES = AppliesWhen("--clone", lambda c: c.clone is not None)
_NOVELTY = AppliesWhen("an --int-coef above 0", lambda c: c.int_coef > 0)
PAID = AppliesWhen(
    "an --env-coef (of collect: --ext-coef) above 0",
    lambda c: "goal_coef" in vars(c) or vars(c).get("ext_coef", vars(c).get("env_coef", 1)) > 0,
)
_ONE_ENV = AppliesWhen("one env, without --conditions", lambda c: c.conditions is None)
_SLURM = AppliesWhen("--executor slurm", lambda c: c.executor == "slurm")
_DRY = AppliesWhen("--dry-run", lambda c: c.dry_run)
_RAY = AppliesWhen("--executor ray", lambda c: c.executor == "ray")
_STARTS = AppliesWhen("cells that are done, without --dry-run", lambda c: not c.dry_run)
_HERE = AppliesWhen("an --executor other than print", lambda c: c.dry_run or c.executor != "print")
_MEMORY = AppliesWhen(
    "--network recurrent", lambda c: "lm" not in vars(c) and vars(c).get("network") in (None, "recurrent")
)
Seed = Annotated[int, Flag("seed of every random stream in this run", least=0, pooled=True)]
Fresh = Annotated[bool, Flag("remove what an earlier run left in --out and start anew", identity=False, planned=True)]
Threads = Annotated[
    int,
    Flag(
        "threads of torch and the engines; small networks are fastest on 1",
        least=1,
        most=256,
        identity=False,
        seldom=True,
    ),
]
Backend = Annotated[
    Literal["native", "reference"],
    Flag("engine of the env: ours, or PyPI minigrid / crafter (the ground truth, slow)", seldom=True),
]
Track = Annotated[
    Literal["none", "tensorboard", "wandb", "trackio", "mlflow"],
    Flag(
        "also send metrics.jsonl there (pip install 'bkrl[tensorboard]' and so on); keys from their usual places",
        identity=False,
        seldom=True,
    ),
]
Network = Annotated[
    Literal["compact", "paper", "residual", "recurrent"],
    Flag(
        "compact: made for these envs; recurrent: that with a memory; paper: the published convolutional network; "
        "residual: a small residual network for pictures"
    ),
]
CONVOLUTIONAL = ("paper", "residual")
"""Networks that are made for pictures: large, and without missions."""
MISSION = Flag(
    "whether the policy reads its mission (compact and recurrent); auto: where missions change between episodes"
)
Mission = Annotated[Literal["auto", "on", "off"], MISSION]
View = Annotated[
    Literal["symbolic", "image"] | None,
    Flag(
        "what the network sees of Crafter: its symbols (compact only), or pictures of 64×64  "
        "[default: symbolic; for paper and residual: image]"
    ),
]

NumSteps = Annotated[int, Flag("steps of each env in a rollout", least=1)]
NumMinibatches = Annotated[int, Flag("minibatches in a pass", least=1)]

Concurrency = Annotated[
    int,
    Flag(
        "most requests in flight at once; adapts to what the server allows",
        least=1,
        only=(_ASKED,),
        identity=False,
        seldom=True,
    ),
]
Annotator = Annotated[
    str,
    Flag(
        "annotator: rules (hand-written, no language model), openai:MODEL, local:NAME, gguf:PATH, hf:NAME_OR_PATH",
        pooled=True,
    ),
]

MOST_REQUESTS = Flag("send at most this many requests in this run; 0: no limit", least=0, identity=False)
MOST_COST = Flag("spend at most so many US dollars in this run; 0: no limit", least=0, identity=False)
PRICES = Flag("own price list (TOML), read before the shipped one; see docs/endpoints.md", identity=False, seldom=True)
API = Flag("openai: chat completions, or OpenAI's Responses API", only=(_OPENAI,), seldom=True)
REPLIES = Flag("folder of cached replies, which never expire", identity=False)


@dataclass(frozen=True, kw_only=True)
class AskConfig:
    """How an annotator is asked; a base of the settings of all that ask one."""

    max_requests: Annotated[int, replace(MOST_REQUESTS, only=(_ASKED,))] = 0
    max_cost: Annotated[float, replace(MOST_COST, only=(_ASKED,))] = 0.0
    prices: Annotated[Path | None, PRICES] = None
    api: Annotated[Literal["chat", "responses"], API] = "chat"
    concurrency: Concurrency = 16
    dry_run: Annotated[
        bool, Flag("show tokens, price and three of the prompts; ask and write nothing", identity=False, planned=True)
    ] = False
    cache: Annotated[Path, REPLIES] = Path("cache")

    @property
    def asks(self) -> bool:
        """Whether there is an annotator to be asked."""
        return True


@dataclass(frozen=True)
class HardwareConfig:
    """Where and how a network computes, shared by collect and train-rs."""

    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Flag(
            "where the network computes; auto: a GPU, if any, for paper, residual, large language models, else the CPU",
            seldom=True,
        ),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "fp32", "bf16"],
        Flag(
            "auto: bfloat16, where the hardware multiplies it, for paper, residual and the layers of large language "
            "models; else float32",
            seldom=True,
        ),
    ] = "auto"
    compile: Annotated[bool, Flag("translate the network with torch.compile (a minute at the start)", seldom=True)] = (
        False
    )


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al. 2017), shared by collect and train-rs."""

    num_envs: Annotated[int, Flag("envs stepped side by side", least=1)] = 64
    num_steps: NumSteps = 32
    learning_rate: Annotated[float, Flag("Adam's step size", least=0)] = 1e-3
    gamma: Annotated[float, Flag("discount of the env's reward, and of shaping", least=0, most=1, only=(PAID,))] = 0.99
    gae_lambda: Annotated[float, Flag("λ of generalised advantage estimation", least=0, most=1)] = 0.95
    update_epochs: Annotated[int, Flag("passes over a rollout", least=1)] = 4
    num_minibatches: NumMinibatches = 2
    clip_coef: Annotated[float, Flag("ε of the clipped objective", least=0, most=1)] = 0.2
    ent_coef: Annotated[float, Flag("weight of the entropy bonus", least=0)] = 0.01
    vf_coef: Annotated[float, Flag("weight of the value loss", least=0)] = 0.5
    max_grad_norm: Annotated[float, Flag("gradients are clipped to this norm", least=0)] = 0.5
    target_kl: Annotated[float, Flag("stop an update's passes beyond this KL divergence; 0: never", least=0)] = 0.0
    anneal_lr: Annotated[bool, Flag("let the step size fall linearly to 0")] = False
    group_learning_rates: Annotated[
        str,
        Flag(
            "step sizes of groups of weights, NAME=RATE, divided by commas: policy, or rnd for its predictor",
            seldom=True,
        ),
    ] = ""
    norm_adv: Annotated[bool, Flag("bring the advantages of a rollout to mean 0 and spread 1")] = True
    clip_vloss: Annotated[bool, Flag("clip the value loss by --clip-coef, as the policy's is")] = False
    recurrence: Annotated[
        int, Flag("steps through which gradients reach back in a memory; 0: a whole rollout", least=0, only=(_MEMORY,))
    ] = 0
    accumulate: Annotated[
        int,
        Flag(
            "compute a minibatch in so many parts, which takes less memory; the policy's gradient is the same, not "
            "that of the models of rnd, noveld and deir",
            least=1,
            seldom=True,
        ),
    ] = 1

    @property
    def rollout_steps(self) -> int:
        """Env steps of an iteration."""
        return self.num_envs * self.num_steps

    def __post_init__(self) -> None:
        """UsageError when a rollout cannot be learnt from, before anything is written."""
        if self.rollout_steps < 2:
            raise UsageError("One env × one step is nothing to compare with; raise --num-envs or --num-steps.")
        if self.rollout_steps % self.num_minibatches:
            raise UsageError(
                f"{self.num_envs} envs × {self.num_steps} steps do not divide into {self.num_minibatches} "
                "minibatches; change --num-envs, --num-steps or --num-minibatches."
            )
        if self.recurrence and self.num_steps % self.recurrence:
            raise UsageError(
                f"A rollout of {self.num_steps} steps does not divide into sequences of {self.recurrence}; change "
                "--num-steps or --recurrence."
            )


ExplorerConfig = partial(PPOConfig, num_steps=128, num_minibatches=8)
"""PPO of an explorer, whose novelty is measured over long rollouts."""


@dataclass(frozen=True)
class CollectConfig:
    """Record text-annotated experience of an explorer: PPO + RND, random, a bot, or the policy of a run."""

    env: Annotated[str, Flag("env to explore, with options as in ID@num_dists=4; see `bkrl list envs`")] = (
        "BabyAI-Text-GoToLocal-Pretraining-S20"
    )
    out: Annotated[Path | None, Flag("run directory  [default: data/ENV-sSEED]", identity=False)] = None
    explorer: Annotated[
        str, Flag("who acts: rnd (PPO paid for novelty, trained here), random, bot, or a train-rs run, by its policy")
    ] = "rnd"
    steps: Annotated[
        int,
        Flag(
            "environment steps to train the explorer for; the last rollout is played to its end",
            least=1,
            only=(_LEARNS,),
        ),
    ] = 500_000
    checkpoints: Annotated[
        int, Flag("how often to record, evenly from step 0 to the end", least=1, only=(_LEARNS,))
    ] = 6
    episodes_per_checkpoint: Annotated[
        int, Flag("episodes of the stochastic policy recorded each time", least=1, only=(_LEARNS,))
    ] = 40
    episodes: Annotated[int, Flag("episodes to record of an explorer that does not learn", least=1, only=(_ACTS,))] = (
        240
    )
    epsilon: Annotated[
        float, Flag("chance that the bot does anything instead of what it plans", least=0, most=1, only=(_BOT,))
    ] = 0.0
    ext_coef: Annotated[
        float, Flag("weight of the env's reward; 0: reward-free, 2: as published", least=0, only=(_LEARNS,))
    ] = 0.0
    int_coef: Annotated[float, Flag("weight of the RND novelty reward", least=0, only=(_LEARNS,))] = 1.0
    int_gamma: Annotated[float, Flag("discount of the novelty reward", least=0, most=1, only=(_LEARNS, _NOVELTY))] = (
        0.99
    )
    language: Annotated[Literal["en", "fr"] | None, Flag("language of BabyAI captions; none: the env's own")] = None
    seed: Seed = 1
    network: Network = "compact"
    view: View = None
    backend: Backend = "native"
    threads: Threads = 1
    track: Track = "none"
    fresh: Fresh = False
    ppo: PPOConfig = field(default_factory=ExplorerConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        who = "" if self.explorer == "rnd" else f"-{Path(self.explorer).name}"
        return self.out or Path("data") / f"{self.env}{who}-s{self.seed}"

    def in_language_of(self, own: Any) -> CollectConfig:
        """These settings as a run records them, where the env's own language stands if none is named."""
        return self if self.language else replace(self, language=own)


@dataclass(frozen=True)
class LmMakeConfig:
    """Make a small language model: it reads what recorded envs say (P1), and may then learn answers of a bot (P2)."""

    from_: Annotated[
        tuple[Path, ...],
        Flag("collect runs whose captions and missions it reads; once for each run", identity=False, reads=True),
    ] = ()  # the hashes of what is there are its identity
    out: Annotated[Path | None, Flag("run directory  [default: logs/lm-KIND-SIZE-sSEED]", identity=False)] = None
    kind: Annotated[Literal["t5", "causal"], Flag("an encoder with a decoder, or a decoder alone")] = "t5"
    size: Annotated[Literal["d32", "d64", "d128"], Flag("its width; 2 layers of d32, 4 of the others")] = "d64"
    steps: Annotated[int, Flag("updates in which it reads; 0: its weights stay random (P0)", least=0)] = 2000
    clone: Annotated[Path | None, Flag("a collect run with go-to episodes to learn answers from", reads=True)] = None
    clone_episodes: Annotated[int, Flag("solved go-to episodes to learn from", least=1, only=(_CLONES,))] = 50
    clone_steps: Annotated[int, Flag("updates on answers", least=1, only=(_CLONES,))] = 500
    texts: Annotated[int, Flag("prompts to read from each run, at most", least=10)] = 20_000
    batch: Annotated[int, Flag("texts in an update", least=1)] = 16
    rate: Annotated[float, Flag("learning rate, which rises at first and then falls to 0", least=0)] = 3e-3
    seed: Annotated[int, Flag("of weights, texts and gaps", least=0)] = 1
    checkpoint_every: Annotated[int, Flag("updates between checkpoints", least=1, identity=False)] = 200
    fresh: Annotated[bool, Flag("start again instead of continuing", identity=False)] = False

    @property
    def run_dir(self) -> Path:
        """Where the run lives."""
        return self.out or Path(f"logs/lm-{self.kind}-{self.size}-s{self.seed}")


@dataclass(frozen=True)
class EvaluateConfig:
    """Measure a frozen policy on seeded episodes."""

    policy: Annotated[Path, Flag("a train-rs run", positional=True, reads=True)]
    out: Annotated[Path | None, Flag("run directory  [default: logs/eval-POLICY]", identity=False)] = None
    env: Annotated[
        str | None,
        Flag(
            "another env of the same family, with options as in ID@num_dists=4  [default: the one it was trained in]",
            only=(_ONE_ENV,),
        ),
    ] = None
    episodes: Annotated[int, Flag("episodes in each mode; with --conditions of each kind of task", least=1)] = 100
    conditions: Annotated[
        str | None,
        Flag(
            "evaluate under each condition of a set: glam, glam-goto, balrog, balrog-crafter, crafter-score, or your "
            "own TOML file (docs/training.md)"
        ),
    ] = None
    mode: Annotated[
        Literal["both", "greedy", "sampled"], Flag("sample actions, which is what counts, or take the likeliest")
    ] = "both"
    gifs: Annotated[int, Flag("episodes to record as GIFs", least=0, only=(_ONE_ENV,))] = 2
    seed: Annotated[int, Flag("seed of the episodes; train-rs never uses these", least=0, most=2**53)] = 1_000_003
    backend: Backend = "native"
    threads: Threads = 1
    fresh: Fresh = False

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        under = "" if self.conditions is None else f"-{Path(self.conditions).stem}"
        return self.out or Path("logs") / f"eval-{self.policy.name}{under}"


@dataclass(frozen=True)
class ReportConfig:
    """Curves, tables, labels and provenance in one self-contained HTML file."""

    runs: Annotated[
        tuple[Path, ...],
        Flag("train-rs and evaluate runs, potential reports, or folders of them", positional=True, reads=True),
    ]
    out: Annotated[Path | None, Flag("run directory  [default: logs/report]", identity=False)] = None
    title: Annotated[str, Flag("title of the page")] = "bkrl report"
    name: Annotated[str, Flag("short name for files made from it, as a study's  [default: words of the title]")] = ""
    threshold: Annotated[float, Flag("success rate whose time to reach is reported", least=0, most=1)] = 0.8
    measure: Annotated[
        str, Flag("of evaluations, within 0 and 1, in the place of success: object_success and others in Housekeep")
    ] = "success_rate"
    tuning_steps: Annotated[
        int, Flag("steps spent on choosing the methods' settings, to be paid back like the dataset", least=0)
    ] = 0
    titles: Annotated[
        tuple[str, ...],
        Flag("NAME=TITLE: what pages call a method, once each; NAME is its label, or a run's name before the seed"),
    ] = ()
    episodes: Annotated[bool, Flag("pages beside it: episodes step by step, with Φ and advice")] = False
    fresh: Fresh = False

    @property
    def run_dir(self) -> Path:
        """Where this run lives: `out`, or its default."""
        return self.out or Path("logs/report")


_ANEW = "asked in the place of the recorded answers that ship with bkrl, such as local:qwen2.5-coder-0.5b"


@dataclass(frozen=True)
class ReproduceConfig:
    """The whole chain: collect → label → train-rm → train-rs → evaluate → report."""

    preset: Annotated[Literal["laptop", "smoke"], Flag("laptop: the real thing; smoke: every stage, small")] = "laptop"
    out: Annotated[
        Path | None,
        Flag("folder for all runs and report.html  [default: logs/reproduce; smoke: logs/smoke]", identity=False),
    ] = None
    jobs: Annotated[int, Flag("training runs side by side; 0: one for each core", least=0)] = 0
    llm: Annotated[str, Flag(f"{_ANEW}; needs an --out of its own")] = ""
    dry_run: Annotated[bool, Flag("print what would be done")] = False

    @property
    def folder(self) -> Path:
        """Where all runs live: `out`, or its default, which is not the same for two presets."""
        return self.out or Path("logs") / ("reproduce" if self.preset == "laptop" else self.preset)


@dataclass(frozen=True)
class SlurmConfig:
    """How jobs of a SLURM cluster are asked for; a study's [slurm] table may say the same, and more."""

    partition: Annotated[str | None, Flag("partition  [default: the study's, or the cluster's]", only=(_SLURM,))] = None
    time: Annotated[
        int | None, Flag("minutes of a job; it continues in another  [default: the study's, or 240]", only=(_SLURM,))
    ] = None
    mem: Annotated[
        float | None, Flag("GB of memory of a job  [default: the study's, or the cluster's]", only=(_SLURM,))
    ] = None


@dataclass(frozen=True)
class RayConfig:
    """Which Ray cluster does the cells."""

    address: Annotated[
        str, Flag("of a cluster, such as auto or ray://HOST:10001; else one is started", only=(_RAY,))
    ] = ""
    gpus: Annotated[float, Flag("GPUs of each cell; 0.25 lets four share one", least=0, only=(_RAY,))] = 0.0


@dataclass(frozen=True)
class SweepConfig:
    """Do all cells of a study that are not done: side by side here, on a cluster, or as commands to run elsewhere."""

    study: Annotated[str, Flag("a study file, or the name of a shipped one: laptop, smoke, ...", positional=True)]
    out: Annotated[Path | None, Flag("folder for all runs  [default: logs/STUDY]", identity=False)] = None
    executor: Annotated[
        Literal["local", "slurm", "ray", "print"],
        Flag("local: worker processes here; slurm: jobs of a cluster; ray: tasks of one; print: commands on stdout"),
    ] = "local"
    jobs: Annotated[
        int, Flag("cells at once, on a cluster in each array; 0: one a core, there no limit", least=0, only=(_HERE,))
    ] = 0
    only: Annotated[str, Flag("only cells of these names and what they need: 'babyai/bk-*,*/ppo-s1'")] = ""
    llm: Annotated[str, Flag(_ANEW)] = ""
    retry_failed: Annotated[bool, Flag("try cells again that failed before", only=(_STARTS, _HERE))] = False
    report: Annotated[
        bool, Flag("make the report when all is done; with --only, on what is done then", only=(_STARTS,))
    ] = False
    dry_run: Annotated[bool, Flag("list the cells and what has become of them; do nothing")] = False
    measured: Annotated[
        Path | None, Flag("a study's folder, for the time on 1, 8 and 64 machines  [default: --out]", only=(_DRY,))
    ] = None
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    @property
    def folder(self) -> Path:
        """Where all runs live: `out`, or its default."""
        return self.out or Path("logs") / Path(self.study).name.removesuffix(".toml")
