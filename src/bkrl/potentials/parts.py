"""A potential in two parts: what the present view explains of it, and the rest.

    Φ(h) = S(s) + R(h),    S(s) = E[Φ(h) | s] over the dataset,

where s is the view (with the mission, where Φ reads that) in which the window h ends. S is fitted by least squares and
becomes one small network, evaluated exactly; R is Φ − S of the same window, so both add up to Φ. Each part alone is a
potential. A critic that sees s can learn to subtract S, but not R: to such a critic R is a bonus for what was done
lately, to the extent that λ < 1 (docs/shaping.md).
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bkrl.agents.build import advice_network
from bkrl.agents.networks import rebuild_network
from bkrl.agents.networks.layers import one_thread
from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter, percent
from bkrl.core.seeds import derive_seed
from bkrl.core.spacing import end_to_end
from bkrl.data.dataset import Dataset
from bkrl.data.distinct import distinct_rows
from bkrl.data.windows import Reads, Windows
from bkrl.envs import env_spec
from bkrl.potentials import advice
from bkrl.potentials.build import SCALE_WINDOWS, raw_values, scale_of
from bkrl.potentials.kinds import Fitted, Kind, find
from bkrl.potentials.preference import asked_of, in_chunks
from bkrl.potentials.protocol import Artefact, Raw, Scale

STATE = "state.safetensors"
UPDATES = 2_000
"""About so many steps of the optimiser, of which the best on unseen rows counts, however small the dataset."""
Part = Literal["state", "rest"]


class StateRaw(Raw):
    """S, on Φ's scale, [-1, 0].

    Args:
        network: its value head, times `spread`, plus `mean`, is S.
        mean, spread: of Φ on the dataset.
    """

    bounds = (-1.0, 0.0)

    def __init__(self, network: Any, mean: float, spread: float) -> None:
        self.network, self.mean, self.spread = network.eval().requires_grad_(False), mean, spread
        self.reads = Reads.of(0, network.mission is not None)

    @torch.no_grad()
    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        now, asked = windows.last(0), []
        with one_thread():
            shown, back = distinct_rows(now.index)
            if self.reads.mission:  # windows are told apart by these, too
                shown = back = np.arange(len(now))
                asked = [asked_of(self.network.mission, now)[:, 0]]
            found = in_chunks(self._values, torch.from_numpy(now.symbols[now.index[shown, 0]]), *asked)
        return np.clip(self.mean + self.spread * found.numpy().astype(np.float64), -1.0, 0.0)[back]

    def _values(self, views: Tensor, *asked: Tensor) -> Tensor:
        """(B,) of views, with what missions make of them: how many missions there are has no part in the products."""
        features = self.network.trunk(sum(asked, self.network.encoder(views)))
        return self.network.read_out(features)[1].squeeze(1).float()  # type: ignore[no-any-return]

    def save(self, folder: Path) -> tuple[list[str], dict[str, Any]]:
        advice.write_halves(folder / STATE, self.network)
        return [STATE], {"state": {"spec": self.network.spec, "mean": self.mean, "spread": self.spread}}


class RestRaw(Raw):
    """R = Φ − S, which lies in [-1, 1]; stored on the scale of all potentials as (R − 1) / 2.

    `train-rs --shaping-coef 2 --shaping-shift 0.5` makes R of it again, exactly.
    """

    bounds = (-1.0, 1.0)

    def __init__(self, kind: str, whole: Raw, of_whole: Scale, state: StateRaw) -> None:
        self.kind, self.whole, self.of_whole, self.state = kind, whole, of_whole, state
        self.reads = whole.reads

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        return self.of_whole(self.whole(windows)).astype(np.float64) - self.state(windows)

    def save(self, folder: Path) -> tuple[list[str], dict[str, Any]]:
        files, settings = self.whole.save(folder)
        more, state = self.state.save(folder)
        return [*files, *more], {**settings, **state, "whole": {"kind": self.kind, "scale": asdict(self.of_whole)}}

    def close(self) -> None:
        self.whole.close()


def part_of(fitted: Fitted, part: Part, seed: int, reporter: Reporter) -> Fitted:
    """One part of a potential. That of "rest" holds the whole, which must stay open.

    Raises:
        InputError: the potential is constant or not finite on the dataset.
    """
    rows = end_to_end(len(fitted.dataset.actions), SCALE_WINDOWS)
    values = raw_values(fitted, rows, reporter, "read Φ to divide it")
    scale = scale_of(fitted.raw, values)
    state, explained = project(fitted.dataset, rows, scale(values), fitted.raw.reads.mission, seed)
    reporter.say(f"The present view explains {percent(explained, 1)} of Φ's variance on unseen rows.")
    facts = {**fitted.facts, "part": part, "state_explains": explained}
    if part == "rest":
        return Fitted("rest", RestRaw(fitted.kind, fitted.raw, scale, state), fitted.dataset, facts)
    fitted.raw.close()
    return Fitted("state", state, fitted.dataset, facts)


def project(
    dataset: Dataset, rows: NDArray[np.int64], phi: NDArray[np.float32], missions: bool, seed: int
) -> tuple[StateRaw, float]:
    """E[Φ | view], fitted to (R,) Φ of the windows that end at `rows`; the share of variance explained, held out."""
    said = dataset.text("mission")[1] if missions else ()
    network = advice_network(env_spec(dataset.env_id), derive_seed(seed, "state"), said)
    seen = advice.Record.of(dataset, rows, missions).seen_by(network)
    mean, spread = float(phi.mean()), float(phi.std()) or 1.0
    wanted = torch.from_numpy(((phi - mean) / spread).astype(np.float32))

    def forward(starts: Tensor, q_of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        chosen = (starts[:, None] + torch.arange(advice.BLOCK)).flatten()
        return network(*seen(chosen))[1].squeeze(1), wanted[chosen]

    epochs = -(-UPDATES * advice.ROWS_IN_BATCH // len(rows))
    explained, _, _ = advice.least_squares(network, len(rows), forward, seed, epochs)
    return StateRaw(advice.rounded(network), mean, spread), explained


class _State(TypedDict):
    """What `StateRaw.save` says of its network."""

    spec: dict[str, Any]
    mean: float
    spread: float


class _StateSettings(TypedDict):
    state: _State


class _Whole(TypedDict):
    """What `RestRaw.save` says of the whole."""

    kind: str
    scale: Scale


class _RestSettings(_StateSettings):
    whole: _Whole


def load_state(artefact: Artefact) -> StateRaw:
    """The state part that an artefact holds, alone or beside the whole."""
    found: _State = artefact.read_settings(_StateSettings)["state"]
    weights = advice.read_halves(artefact.part(STATE))
    return StateRaw(rebuild_network(found["spec"], weights), found["mean"], found["spread"])


def load_rest(artefact: Artefact) -> RestRaw:
    """The rest of an artefact, and with it the whole."""
    whole: _Whole = artefact.read_settings(_RestSettings)["whole"]
    kind = find(whole["kind"])
    if kind is None or whole["kind"] in ("state", "rest"):
        raise InputError(f"{artefact.folder} divides a potential of kind '{whole['kind']}'; run train-rm again.")
    return RestRaw(whole["kind"], kind.load(artefact), whole["scale"], load_state(artefact))


KINDS = (Kind("state", load_state), Kind("rest", load_rest))
