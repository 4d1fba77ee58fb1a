"""DAgger (Ross et al. 2011): what the learner meets is labelled by a bot, and cloned with all that was labelled before.

A round plays whole episodes and writes them as a dataset of its own, in which `bot_action` stands beside the action
that was taken. In round r the bot acts with a chance of mixing^r. r begins at 0, so the first round is the bot's
alone; at 1 where the learner goes on from another run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bkrl.agents.bot import BotAgent
from bkrl.agents.mixture import Mixture
from bkrl.agents.play import MOST_AT_ONCE
from bkrl.agents.record import open_writer, record
from bkrl.core.activity import doing
from bkrl.core.seeds import derive_seed
from bkrl.data.dataset import Dataset
from bkrl.envs import captioner, env_spec, make_vec
from bkrl.learn.bc import Cloning, demonstrations
from bkrl.learn.protocol import Learner, Saved
from bkrl.runs.record import Run


class Dagger(Learner):
    """A `Learner`. An iteration is a round; a step is one of an env. `cloning`, which has no data yet, learns;
    `settings` are a `methods.bc.DaggerSettings`.
    """

    folder: Path
    """Where the datasets are written, each in `round-NNNN`; set before the first round."""

    def __init__(self, cloning: Cloning, settings: Any) -> None:
        self.cloning, self.settings, self.total_steps, self.seed = cloning, settings, settings.steps, settings.seed
        self.agent, self.hardware = cloning.agent, cloning.hardware
        self.bot, self.episodes_a_round = BotAgent.of(settings.env), settings.episodes_per_round
        self.envs = make_vec(settings.env, min(self.episodes_a_round, MOST_AT_ONCE), backend=settings.backend)
        self.describe = captioner(settings.env, env_spec(settings.env).language)
        self.step = self.episodes = self.number = 0

    def iterate(self) -> dict[str, float]:
        """Play a round, then learn from this and all earlier ones."""
        share = self.settings.mixing ** (self.number + (self.settings.init_from is not None))
        with doing("playing a round", self.episodes_a_round, "episodes") as tick:
            dataset = self._play(share, tick)
        count = self._take(dataset)
        minibatches = max(1, round(self.settings.passes * count / self.cloning.batch_size))
        figures = self.cloning.iterate(minibatches)
        self.agent.schedule(self.step)
        return figures | {
            "dagger/bot_share": share,
            "dagger/agreement": agreement(dataset),
            "rollout/success_rate": float(dataset.success.mean()),
            "rollout/return": float(dataset.returns.mean()),
        }

    def _play(self, share: float, tick: Any) -> Dataset:
        """The dataset of the next round. One that an interrupted run left there is made again, the same."""
        facts, number = env_spec(self.settings.env), self.number
        config = {"env": facts.env_id, "language": facts.language, "round": number, "seed": self.seed}
        learnt = {"earlier round": self._place(number - 1)} if number else {"init_from": self.settings.init_from}
        run = Run.renew(self._place(number), stage="collect", config=config, inputs=learnt if share < 1 else {})
        agent = Mixture(self.agent, self.bot, share, derive_seed(self.seed, "dagger", "draws", number))
        writer = open_writer(run, facts, self.envs, facts.language, played_by="a learner and its bot", labelled=True)
        record(
            agent,
            self.envs,
            self.episodes_a_round,
            writer,
            self.describe,
            seed=derive_seed(self.seed, "dagger", number),
            trained=self.step,
            labelled=True,
            tick=tick,
        )
        writer.close()
        played = int(writer.column("length").sum())
        counts = {"recorded_episodes": writer.num_episodes, "recorded_steps": played, "steps": played}
        run.finish(writer.outputs, env_id=facts.env_id, explorer="dagger", bot_share=share, **counts)
        run.release()
        return Dataset.open(run.path)

    def _place(self, number: int) -> Path:
        return self.folder / f"round-{number:04d}"

    def _take(self, dataset: Dataset) -> int:
        """A round is among the samples from now on; how many it brings."""
        self.agent.schedule(self.step)  # it is read anew, as by a run that goes on from here
        made = demonstrations(
            dataset, self.agent, only_successes=False, held_out=self.settings.held_out, seed=self.seed + self.number
        )
        self.cloning.add(*made)
        self.step += dataset.num_steps
        self.episodes += dataset.num_episodes
        self.number += 1
        return len(made[0])

    # ------------------------------------------------------------------------------------------------------ state

    def state(self) -> Saved:
        """See `Learner.state`; the datasets of earlier rounds lie in the run."""
        saved = self.cloning.state()
        return saved._replace(
            counters=saved.counters | {"samples": self.cloning.step, "step": self.step, "rounds": self.number}
        )

    def restore(self, saved: Saved) -> None:
        for number in range(int(saved.counters["rounds"])):
            self._take(Dataset.open(self._place(number)))
        self.cloning.restore(saved._replace(counters=saved.counters | {"step": saved.counters["samples"]}))
        self.agent.schedule(self.step)

    def warnings(self, metrics: Mapping[str, float]) -> dict[str, str]:
        return self.cloning.warnings(metrics)

    def facts(self) -> dict[str, Any]:
        return {**self.cloning.facts(), "episodes": self.episodes, "rounds": self.number}

    def close(self) -> None:
        """Close the envs."""
        self.envs.close()


def agreement(dataset: Dataset) -> float:
    """How often what was done is what the bot would have done."""
    return float((dataset.actions == dataset.labels)[dataset.actions >= 0].mean())
