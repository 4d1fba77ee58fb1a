"""N Housekeep envs as arrays."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.activity import doing
from bkrl.core.errors import InputError
from bkrl.envs.housekeep import kernels, layout
from bkrl.envs.housekeep.catalogue import compiled, episodes_of, goals_of
from bkrl.envs.housekeep.houses import house
from bkrl.envs.housekeep.metrics import METRICS, measure, train_classes
from bkrl.envs.housekeep.options import Chosen
from bkrl.envs.housekeep.packer import MOST_ROWS, ROW, THING
from bkrl.envs.housekeep.sampling import model_sizes
from bkrl.envs.housekeep.state import ENV
from bkrl.envs.housekeep.tables import models
from bkrl.envs.housekeep.views import views_of
from bkrl.envs.threads import Shares


class HousekeepOutputs(NamedTuple):
    """Where the kernels write, N rows each."""

    symbolic: NDArray[np.uint8]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class HousekeepEngine:
    """N envs of one id and its options.

    Args:
        env_id: a Housekeep id.
        options: as `options.chosen` returned them.
        num_envs: N.
        threads: envs are split among this many threads.

    Attributes:
        episodes: that are played; table: the same as `EPISODE` records.
        houses: of the scenes in them.
        envs, things, rows, squares: the state, see `state`.
    """

    def __init__(self, env_id: str, options: Chosen, num_envs: int, threads: int = 1) -> None:
        self.num_envs, self.options, self.rules = num_envs, options, options.rules()
        self.episodes = episodes_of(env_id, options)
        self.table, self.names = compiled(self.episodes, options.file or "Housekeep")
        self.houses = [house(name) for name in self.names]
        seen_from = self.table if self.rules.high else self.table[:0]
        with doing(f"working out what is seen from every place of {len(self.houses)} houses"):
            self.views = [views_of(one, number, seen_from) for number, one in enumerate(self.houses)]
        self.goals = [goals_of(name) for name in self.names]
        self.envs = np.zeros(num_envs, ENV)
        self.things = np.zeros((num_envs, layout.SLOTS), THING)
        self.rows = np.zeros((num_envs, MOST_ROWS), ROW)
        self.squares = np.zeros((num_envs, max(len(one.squares) for one in self.houses)), bool)
        self.out = HousekeepOutputs(
            np.zeros((num_envs, *layout.OBS_SHAPE), np.uint8),
            np.zeros(num_envs),
            np.zeros(num_envs, bool),
            np.zeros(num_envs, bool),
        )
        self._kinds, self._sizes = models().object, model_sizes()
        what = repr((env_id, options, self.episodes, ENV, THING, ROW))
        self._fingerprint = hashlib.sha256(what.encode()).digest()
        self._shares = Shares(num_envs, threads)

    def seed(self, index: int, seed: int) -> None:
        """Restart the stream from which env `index` draws its episodes."""
        self.envs["stream"][index] = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]

    def begin(self, chosen: NDArray[np.bool_], numbers: NDArray[np.int64] | None = None) -> None:
        """Start the next episode in the chosen envs (N,): drawn, or with these numbers (N,) of `episodes`."""
        kernels.draw_episodes(self.envs, chosen, self.table)
        if numbers is not None:
            self.envs["episode"][chosen] = numbers[chosen]
            self.envs["house"][chosen] = self.table["house"][numbers[chosen]]
        self.out.terminated[chosen] = self.out.truncated[chosen] = False
        for number, one in enumerate(self.houses):
            kernels.begin_envs(
                self.envs,
                self.things,
                self.rows,
                self.squares,
                chosen,
                one,
                number,
                self.table,
                self._kinds,
                self._sizes,
                self.options.things == "all",
                self.views[number],
                self.rules.picture,
                self.out.symbolic,
            )

    def step(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> None:
        """One action, checked by the caller, in each env that does not idle."""
        for number, one in enumerate(self.houses):
            self._shares.run(
                kernels.step_envs,
                self.envs,
                self.things,
                self.rows,
                self.squares,
                actions,
                idle,
                one,
                number,
                self.goals[number],
                self._sizes,
                self.views[number],
                self.rules,
                self.out,
            )

    def deeds(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        deeds, kinds, places = (np.empty(self.num_envs, np.int64) for _ in range(3))
        kernels.tell_deeds(self.envs, self.things, deeds, kinds, places)
        return deeds, kinds, places

    def measure(self, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        """(N, METRICS) of the chosen envs as they stand, NaN for the others."""
        found = np.full((self.num_envs, len(METRICS)), np.nan)
        for number, one in enumerate(self.houses):
            measure(self.envs, self.things, chosen, one, number, train_classes(), found)
        return found

    def _bytes(self) -> dict[str, NDArray[np.uint8]]:
        """The state as the bytes of each env, in the same memory."""
        tables = {"worlds": self.envs, "things": self.things, "rows": self.rows, "squares": self.squares}
        return {name: one.view(np.uint8).reshape(self.num_envs, -1) for name, one in tables.items()}

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Everything the future depends on, as uint8 arrays."""
        copies = {name: one.copy() for name, one in self._bytes().items()}
        return {"fingerprint": np.frombuffer(self._fingerprint, np.uint8).copy(), **copies}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot of the same id, options and N; InputError and nothing changed for any other."""
        own = self._bytes()
        try:
            found = {name: np.asarray(state[name]) for name in ("fingerprint", *own)}
        except KeyError as missing:
            raise InputError(f"The snapshot lacks {missing}; take it with snapshot().") from None
        if found.pop("fingerprint").astype(np.uint8).tobytes() != self._fingerprint:
            raise InputError(
                "The snapshot is of other Housekeep episodes or another version of bkrl; take one of these."
            )
        if any(found[name].dtype != np.uint8 or found[name].shape != one.shape for name, one in own.items()):
            raise InputError(f"The snapshot is not of {self.num_envs} envs; restore it into as many.")
        for name, one in own.items():
            one[:] = found[name]
        for number, shown in enumerate(self.houses):
            kernels.observe_envs(
                self.envs, self.things, self.squares, shown, number, self.rules.picture, self.out.symbolic
            )

    def close(self) -> None:
        self._shares.close()
