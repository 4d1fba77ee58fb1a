"""A preference potential that is fitted anew at fixed steps of training, on what was preferred until then."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bkrl.core.errors import InputError
from bkrl.core.prefixes import under
from bkrl.core.seeds import derive_seed
from bkrl.data.windows import Rollout, Windows
from bkrl.envs.family import EnvSpec
from bkrl.labelers.live import LiveComparisons
from bkrl.potentials.controls import Zero
from bkrl.potentials.kinds import Shuffle, permuted
from bkrl.potentials.preference import PreferenceRaw
from bkrl.potentials.preference.fit import Pairs, fit
from bkrl.potentials.preference.kind import net_config
from bkrl.potentials.preference.net import PreferenceNet
from bkrl.potentials.protocol import Artefact, Raw, Scale, Scaled


class LivePreferences:
    """Φ of the preferences that were accepted so far.

    Each time `every` more steps have been seen, pairs are asked about, the answers that have come are accepted, and if
    there are new ones, a network is trained from the beginning on all of them. Its scale is measured on the segments
    that were compared. Φ = 0 until there are enough pairs to train, stop and test on.

    Args:
        comparisons: where preferences come from.
        env_spec: whose windows Φ reads.
        every: env steps between two fits, those of a rollout or more.
        times: how often answers are accepted before the run ends.
        epochs: most passes of a fit.
        seed: of the fits.
        shuffled: deal the labels out anew before each fit, for a control.
    """

    def __init__(
        self,
        comparisons: LiveComparisons,
        env_spec: EnvSpec,
        *,
        every: int,
        times: int,
        epochs: int,
        seed: int,
        shuffled: bool = False,
    ) -> None:
        self.comparisons, self.env_spec = comparisons, env_spec
        self.every, self.times, self.epochs, self.seed, self.shuffled = every, times, epochs, seed, shuffled
        self.config = net_config(env_spec, comparisons.length)
        self.potential = self._scaled(Zero(comparisons.length), Scale(-1.0, 0.0))  # before anything is known
        self.steps = self.fits = self.fitted = 0
        self.accuracy = float("nan")

    def saw(self, rollout: Rollout) -> None:
        before, self.steps = self.steps, self.steps + rollout.rewards.size
        self.comparisons.offer(rollout)
        if before // self.every < self._passed <= self.times:
            self.comparisons.ask(self.steps, last=self._passed == self.times)
            self.comparisons.accept(self.steps)
            self._fit()

    @property
    def _passed(self) -> int:
        return self.steps // self.every

    def metrics(self) -> dict[str, float]:
        """Pairs with a label, fits, and the share of unseen pairs that the last fit orders as they are labelled."""
        figures = {"live/labelled": float(len(self.comparisons.usable)), "live/fits": float(self.fits)}
        return figures if np.isnan(self.accuracy) else {**figures, "live/accuracy": self.accuracy}

    def _fit(self) -> None:
        """Train on all pairs that have a label, if there are new ones; Φ stays where that leads to no potential."""
        asked, usable = self.comparisons, self.comparisons.usable
        if len(usable) == self.fitted:
            return
        self.fitted = len(usable)
        seed = derive_seed(self.seed, "live", self.fits)
        labels = asked.labels[usable]
        if self.shuffled:
            labels = labels[permuted(len(labels), Shuffle(seed))]
        pairs = Pairs(asked.a[usable], asked.b[usable], labels, np.repeat(asked.groups[usable, None], 2, axis=1))
        try:
            raw, found = fit(pairs, self.config, seed=seed, epochs=self.epochs)
            values = raw(Windows.joined([pairs.a, pairs.b]).numbered())
            self.potential = self._scaled(raw, Scale.measure(values))
        except InputError:  # too few pairs yet, or a constant
            return
        self.fits, self.accuracy = self.fits + 1, found.accuracy

    def _scaled(self, raw: Raw, scale: Scale) -> Scaled:
        env_spec = self.env_spec
        shape, names = env_spec.obs_shape, env_spec.action_names
        return Scaled(
            raw, Artefact("preference", raw.reads.horizon, env_spec.env_id, env_spec.family, shape, names, scale)
        )

    def state(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {f"comparisons.{name}": one for name, one in self.comparisons.state().items()}
        arrays["counts"] = np.array([self.steps, self.fits, self.fitted])
        if isinstance(raw := self.potential.raw, PreferenceRaw):
            scale = self.potential.artefact.scale
            arrays["scale"] = np.array([scale.lo, scale.hi, raw.temperature, self.accuracy])
            arrays |= {f"network.{name}": tensor for name, tensor in raw.nets[0].state_dict().items()}
        return arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.steps, self.fits, self.fitted = (int(count) for count in state["counts"])
        self.comparisons.restore(under(state, "comparisons."), last=self._passed >= self.times)
        if "scale" in state:
            lo, hi, temperature, self.accuracy = (float(one) for one in state["scale"])
            net = PreferenceNet(self.config)
            net.load_state_dict(
                {name: torch.from_numpy(array).clone() for name, array in under(state, "network.").items()}
            )
            self.potential = self._scaled(PreferenceRaw(net, temperature=temperature), Scale(lo, hi))
