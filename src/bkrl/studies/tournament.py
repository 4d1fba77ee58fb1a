"""One tournament of programs: who is asked what, who is trained with, who wins."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bkrl.core.errors import InputError, RunFailed
from bkrl.core.files import atomic_write, read_json, to_json, write_table
from bkrl.core.reporter import Reporter, percent
from bkrl.core.spacing import end_to_end
from bkrl.data.schema import PROGRAMS
from bkrl.envs import env_spec
from bkrl.inspect.report import REPORT
from bkrl.labelers.code import Candidate, measure, row_of
from bkrl.labelers.config import EvolveConfig
from bkrl.labelers.finish import finish
from bkrl.labelers.growing import Grower
from bkrl.labelers.plan import LabelResult, Plan
from bkrl.labelers.proposals import TEMPLATE, Proposer, Result
from bkrl.labelers.quality import of_programs
from bkrl.labelers.variants import variant_of_plan
from bkrl.llm.session import AskSession
from bkrl.methods import TrainRsConfig, methods
from bkrl.potentials import EMPTY
from bkrl.potentials.config import TrainRmConfig
from bkrl.runs.record import Run
from bkrl.studies.executors.work import LogReporter

TOURNAMENT: Final = "tournament.json"
_EVALUATIONS = 8
_SHOWN = 4


@dataclass(frozen=True)
class TrainedCourse:
    """How agents fared, by task: mean shares of episodes solved at `steps`, over the seeds. score: their mean."""

    steps: tuple[int, ...]
    shares: Mapping[str, tuple[float, ...]]

    @property
    def score(self) -> float:
        """The area under the curves, as a share of the largest."""
        return float(np.mean(list(self.shares.values())))


@dataclass
class Entrant:
    """A candidate in the tournament.

    Attributes:
        name: of its folder.
        figures: by `measure`; quality: what decides who is trained, from its potential's report.
        course: how agents fared that were trained with it.
        error: why it is out, "" where it is not.
    """

    candidate: Candidate
    name: str
    figures: dict[str, Any] | None = None
    quality: float | None = None
    course: TrainedCourse | None = None
    error: str = ""
    report: dict[str, Any] = field(default_factory=dict)


class Tournament:
    """One tournament, in its run directory."""

    def __init__(self, config: EvolveConfig, plan: Plan, session: AskSession, result: Run, reporter: Reporter) -> None:
        self.config, self.plan, self.session, self.result, self.reporter = config, plan, session, result, reporter
        self.proposer = Grower(plan, session) if plan.closed else Proposer(plan, session)
        self.method = next(method for method in methods() if method.variant == "code")
        self.entrants: list[Entrant] = []
        self.steps = self.trainings = 0

    def hold(self) -> None:
        """All rounds, and what came of them."""
        config = self.config
        without = self._train("without", {"alg": self.method.baseline})
        self.reporter.say(f"without a program: {percent(without.score, 1)} solved on average on the way")
        best: Entrant | None = None
        for number in range(config.rounds):
            known = {str(one.candidate.program) for one in self.entrants if one.candidate.checked.values is not None}
            candidates = self.proposer.propose(number, self._told(best, without), known)
            entered = [Entrant(one, f"r{number + 1}p{place + 1}") for place, one in enumerate(candidates)]
            self.entrants += entered
            for entrant in entered:
                self._examine(entrant, {str(one.candidate.program) for one in self.entrants if one.quality is not None})
            fit = [one for one in entered if one.quality is not None]
            fit.sort(key=lambda one: -(one.quality or 0.0))  # equals stay in order
            for entrant in fit[: config.trained]:
                self._compete(entrant)
                if entrant.course and (best is None or best.course is None or entrant.course.score > best.course.score):
                    best = entrant
            self._say(number, entered, best)
        self._finish(best, without)

    def _told(self, best: Entrant | None, without: TrainedCourse) -> Result | None:
        """What the writers of a round learn."""
        if best is None or best.course is None:
            return None
        course, places = best.course, end_to_end(len(without.steps), _SHOWN).tolist()
        others = sorted((one.course.score for one in self.entrants if one.course and one is not best), reverse=True)
        tasks = [
            {"with": [course.shares[task][i] for i in places], "without": [without.shares[task][i] for i in places]}
            for task in self.config.envs
        ]
        return Result(best.candidate, [without.steps[i] for i in places], tasks, course.score, others[:_SHOWN])

    def _examine(self, entrant: Entrant, known: set[str]) -> None:
        """Make a potential of a program that works, and take its quality."""
        candidate = entrant.candidate
        if candidate.program in known and not candidate.checked.error:
            entrant.candidate = replace(candidate, repeated=True)
            return
        if candidate.checked.values is None:
            entrant.error = candidate.checked.error
            return
        entrant.figures = measure(self.proposer.validation, candidate.checked.values)
        if entrant.figures["constant"]:
            return
        try:
            labels = self._labels(entrant)
            made = self._cell("train_rm", TrainRmConfig(labels, out=self._place(entrant, "phi"), seed=self.config.seed))
        except (InputError, RunFailed) as problem:
            entrant.error = str(problem)
            return
        if self.config.train_shaping == "advice" and made.facts["advice"] == EMPTY:
            entrant.error = "its advice is empty, so training with it would be training without a program"
            return
        report = read_json(made.file(REPORT))
        above = report["segments"]["above"]
        entrant.report = {"before success above failed": above, "ends above others": report["ordering"]}
        known_shares = [share for share in entrant.report.values() if share is not None]
        entrant.quality = float(np.mean(known_shares)) if known_shares else 0.5

    def _labels(self, entrant: Entrant) -> Path:
        """A label run that holds this program alone, so that train-rm reads it like any other."""
        path, program = self._place(entrant, "labels"), str(entrant.candidate.program)
        asked = {"program_sha256": hashlib.sha256(program.encode()).hexdigest(), "llm": self.config.llm}
        made = Run.create(path, stage="label", config=asked, inputs={"dataset": self.config.dataset})
        if not made.complete:
            row = _row(0, entrant, 0, chosen=True)
            write_table(made.file("programs.parquet"), pa.Table.from_pylist([row], schema=PROGRAMS))
            facts = {"variant": "code", "env_id": self.plan.dataset.env_id, "llm": self.config.llm}
            reads = {"reads": list(self.plan.card.reads)} if self.plan.card.reads else {}
            made.finish(["programs.parquet"], **facts, **reads)
        return path

    def _compete(self, entrant: Entrant) -> None:
        """Train agents with a program."""
        given: dict[str, Any] = {
            "alg": self.method.name,
            "potential": self._place(entrant, "phi"),
            "shaping": self.config.train_shaping,
            "shaping_coef": self.config.train_shaping_coef,
        }
        if self.config.train_shaping == "pbrs+advice":
            given["allow_empty_advice"] = True
        try:
            entrant.course = self._train(entrant.name, given)
        except (InputError, RunFailed) as problem:
            entrant.error = str(problem)

    def _train(self, name: str, given: Mapping[str, Any]) -> TrainedCourse:
        """Train on every task with every seed."""
        config, shares = self.config, {}
        steps: tuple[int, ...] = ()
        for place, env in enumerate(config.envs, 1):
            curves = []
            for seed in config.seeds:
                settings = TrainRsConfig(
                    **given,
                    env=env,
                    steps=config.steps,
                    eval_every=max(1, config.steps // _EVALUATIONS),
                    eval_episodes=config.eval_episodes,
                    seed=seed,
                    threads=config.threads,
                    out=self.result.path / "cells" / name / f"task{place}-s{seed}",
                )
                made = self._cell("train_rs", settings)
                self.steps, self.trainings = self.steps + int(made.facts["steps"]), self.trainings + 1
                rows = [row for row in made.metrics() if "eval/success_rate" in row and row["step"] > 0]
                curves.append([row["eval/success_rate"] for row in rows])
                steps = tuple(row["step"] for row in rows)
            shares[env] = tuple(np.mean(curves, axis=0).tolist())
        return TrainedCourse(steps, shares)

    def _cell(self, stage: str, settings: Any) -> Run:
        """One stage below `cells/`; what it says is kept in a file beside it."""
        log = Path(f"{settings.run_dir}.log")
        made: Run = import_module(f"bkrl.stages.{stage}").run(settings, LogReporter(log))
        return made

    def _place(self, entrant: Entrant, part: str) -> Path:
        return self.result.path / "cells" / entrant.name / part

    def _say(self, number: int, entered: Sequence[Entrant], best: Entrant | None) -> None:
        scores = [percent(one.course.score, 1) for one in entered if one.course]
        so_far = "none" if best is None or best.course is None else f"{best.name} with {percent(best.course.score, 1)}"
        self.reporter.say(
            f"round {number + 1}: {len(entered)} programs, {len(scores)} trained with ({', '.join(scores) or 'none'}); "
            f"best so far: {so_far}"
        )

    def _finish(self, best: Entrant | None, without: TrainedCourse) -> None:
        record = self.proposer.record
        table = [
            _row(place, one, record.request_id(one.candidate.exchange), chosen=one is best)
            for place, one in enumerate(self.entrants)
        ]
        score = None if best is None or best.course is None else best.course.score
        told: dict[str, Any] = {}
        if score is not None and score <= without.score:
            sentence = (
                f"No program helped: the best agents solved {percent(score, 1)} on average on the way, those without a "
                f"program {percent(without.score, 1)}."
            )
            self.reporter.warn(sentence)
            told["warnings"] = [sentence]
        tournament = {
            "without": {"score": without.score, "steps": without.steps, "shares": without.shares},
            "entrants": [_entry(one) for one in self.entrants],
        }
        atomic_write(self.result.file(TOURNAMENT), to_json(tournament))
        if best is None:
            why = next((one.error for one in reversed(self.entrants) if one.error), "every one is the same everywhere")
            raise RunFailed(
                f"Not one of {len(self.entrants)} programs could be trained with ({why}); look at "
                f"{self.result.file(TOURNAMENT)}, and take another dataset, --train-shaping or --llm."
            )
        done = LabelResult(
            table, record.responses.rows, of_programs(table), True, record.table if self.plan.closed else {}
        )
        chosen_on = [{"env": env_spec(env).env_id, "seeds": list(self.config.seeds)} for env in self.config.envs]
        finish(
            self.result,
            self.plan,
            self.session,
            done,
            self.reporter,
            outputs=[TOURNAMENT],
            prompts=self.plan.card.prompts.fingerprint(templates_of(self.plan)),
            steps=self.steps,
            chosen_on=chosen_on,
            tournament={"trainings": self.trainings, "score": score, "score_without": without.score},
            **told,
        )


def templates_of(plan: Plan) -> list[str]:
    """The names of the templates that a tournament is worded by."""
    return [*variant_of_plan(plan).files(plan.card), *([] if plan.closed else [TEMPLATE])]


def _row(number: int, entrant: Entrant, request_id: int, *, chosen: bool) -> dict[str, Any]:
    """A row of programs.parquet; its score is what the tournament is decided by."""
    candidate = entrant.candidate
    score = None if entrant.course is None else entrant.course.score
    details = entrant.figures and {**entrant.figures, "score": score, "quality": entrant.quality, **entrant.report}
    broken = bool(entrant.error) and candidate.status == "ok"
    own = {"status": "failed" if broken else candidate.status, "error": entrant.error or None, "chosen": chosen}
    return row_of(number, candidate, details, request_id) | own


def _entry(one: Entrant) -> dict[str, Any]:
    """An entrant in tournament.json."""
    course = None if one.course is None else {"score": one.course.score, "shares": one.course.shares}
    return {
        "name": one.name,
        "status": one.candidate.status,
        "error": one.error,
        "quality": one.quality,
        "course": course,
    }
