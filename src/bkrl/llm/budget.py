"""What a run has sent and paid, kept in its folder, so that its limits hold over kills and restarts.

`spending.jsonl` gets a line before each send (what it can cost at most) and one after it (what it did cost). A send
whose end was not recorded, or whose answer was lost on the way, counts in full: the provider may have billed it.
"""

import asyncio
import json
import secrets
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from bkrl.core.documents import Mismatch, parse_json, typed
from bkrl.core.errors import InputError, RunFailed
from bkrl.core.files import check_checksum, with_checksum
from bkrl.core.flags import Flag
from bkrl.core.lines import LineFile, read_lines

FILE = "spending.jsonl"
KEY = 16
"""Characters of a question's key that tell it from the others of a run."""
_Dollars = Annotated[float, Flag("", least=0)]
_Count = Annotated[int, Flag("", least=0)]


class _Send(TypedDict):
    send: str
    usd: _Dollars
    requests: NotRequired[_Count]
    key: NotRequired[str]


class _End(TypedDict):
    end: str
    paid: _Dollars
    doubtful: NotRequired[_Dollars]
    unsent: NotRequired[_Count]
    lost: NotRequired[_Count]


class Exhausted(Exception):
    """A limit is reached; the text is a sentence for the user."""


def batch_name(token: str) -> str:
    """The name under which the money of a batch is set aside."""
    return f"batch-{token}"


def is_batch(name: str) -> bool:
    """Whether it is such a name."""
    return name.startswith(batch_name(""))


class Budget:
    """Limits on requests and dollars, shared by everything one run sends. Dollars are 0 where no price is known.

    Args:
        file: where it is kept, None for memory only.
        max_requests: most sends, over all processes that ever worked in this run.
        max_usd: most dollars, likewise.
    """

    def __init__(self, file: Path | None = None, max_requests: int | None = None, max_usd: float | None = None) -> None:
        self.requests = self.sent = self.lost = 0
        """Requests with those of batches and without, and answers that were lost and may have been billed."""
        self.keys: set[str] = set()
        """Beginnings of the keys of the questions that were sent; those in batches are added (`batches.asked_in`)."""
        self.over: set[str] = set()
        """Those whose refusal, where one is kept, is the run's own: what earlier processes sent, and what was refused
        to this one or in a batch (`batches.refused_in`).
        """
        self.paid = 0.0
        self.doubtful = 0.0
        """Dollars that may have been billed for answers that were lost, at most."""
        self._max_requests, self._max_usd = max_requests, max_usd
        self._open: dict[str, float] = {}
        self._key_of: dict[str, str] = {}
        self._process, self._count = secrets.token_hex(4), 0
        self._settled: asyncio.Event | None = None
        self._file: LineFile | None = None
        if file is not None:
            self.open(file)

    def open(self, file: Path) -> None:
        """Take up what earlier processes noted in this file, and note there what follows.

        Raises:
            InputError: the file is damaged.
            RunFailed: it cannot be written.
        """
        self._read(file)
        self.over = set(self.keys)
        try:
            self._file = LineFile(file)
        except OSError as error:
            raise RunFailed(f"{file} cannot be written ({error.strerror}).") from None

    def bought(self, key: str) -> bool:
        """Whether the question with this key was sent, by any process that worked in the run."""
        return key[:KEY] in self.keys

    @property
    def committed(self) -> float:
        """Dollars that are paid, may have been, or could still become due for what is out."""
        return self.paid + self.doubtful + sum(self._open.values())

    def room(self, usd: float, requests: int = 1) -> bool:
        """Whether so much more fits."""
        return self._requests_left() >= requests and self._fits(usd)

    async def reserve(self, usd: float, key: str = "") -> str:
        """Set aside what one send of the question with this key can cost; waits for others to settle when only they
        stand in the way.

        Returns the name to settle it with. Raises Exhausted when it cannot fit.
        """
        while True:
            if self._requests_left() < 1:
                raise Exhausted(
                    f"The limit of {self._max_requests:,} requests for this run (--max-requests) is reached; raise "
                    "it to go on"
                )
            if self._fits(usd):
                return self.begin(usd, key=key)
            if all(map(is_batch, self._open)):
                raise Exhausted(
                    f"The limit of ${self._max_usd:,g} for this run (--max-cost) is reached: "
                    f"${self.paid + self.doubtful:,.4f} are spent and the next request could cost ${usd:,.4f}; "
                    "raise it to go on"
                )
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()

    def begin(self, usd: float, requests: int = 1, name: str = "", key: str = "") -> str:
        """Note that something is about to be sent that can cost `usd` at most."""
        self._count += 1
        send: _Send = {"send": name or f"{self._process}-{self._count}", "usd": usd}
        if requests != 1:
            send["requests"] = requests
        if key:
            send["key"] = key[:KEY]
        self._sent(send)
        self._note(send)
        return send["send"]

    def settle(self, name: str, paid: float, doubtful: float = 0.0, *, unsent: int = 0, lost: int = 0) -> None:
        """Note what it did cost, and what it may have cost besides. A second settlement of one name changes nothing.
        `unsent`: it was not sent after all; `lost`: an answer was billed, perhaps, and did not arrive.
        """
        end: _End = {"end": name, "paid": paid}
        if doubtful:
            end["doubtful"] = doubtful
        if unsent:
            end["unsent"] = unsent
        if lost:
            end["lost"] = lost
        if self._ended(end):
            self._note(end)
            self._wake()

    def lose(self, name: str, lost: int = 0) -> None:
        """It is not known whether it was billed: its whole reservation is doubtful."""
        self.settle(name, 0.0, self._open.get(name, 0.0), lost=lost)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _wake(self) -> None:
        """Wake the reservations that wait for others to settle."""
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    def _requests_left(self) -> float:
        return float("inf") if self._max_requests is None else self._max_requests - self.requests

    def _fits(self, usd: float) -> bool:
        return self._max_usd is None or self.committed + usd <= self._max_usd

    def _note(self, line: _Send | _End) -> None:
        if self._file is None:
            return
        try:
            self._file.append(json.dumps(with_checksum(line)))
        except OSError as error:
            raise RunFailed(
                f"What is spent cannot be noted ({error.strerror}); free some space and run again."
            ) from None

    def _read(self, file: Path) -> None:
        """Take up what earlier processes noted; what they left open is doubtful, except for batches, which are still
        out.
        """
        try:
            lines, _ = read_lines(file)
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error.strerror}).") from None
        for number, text in enumerate(lines, 1):
            # Torn by a kill, and ended with a line feed by an earlier version: nothing was sent yet, or what was sent
            # counts in full.
            if not text or (text.startswith(b"{") and not text.endswith(b"}")):
                continue
            try:
                self._take_up(text)
            except Mismatch as problem:
                raise InputError(
                    f"{file} is damaged at line {number} ({problem}); restore it, or remove that line and lower "
                    "--max-cost by what it may have cost."
                ) from None
        for name in [name for name in self._open if not is_batch(name)]:
            self.doubtful += self._open.pop(name)

    def _take_up(self, text: bytes) -> None:
        """One line that an earlier process noted; Mismatch when it is none."""
        line = typed(dict[str, Any], parse_json(text))
        check_checksum(line)
        if "send" in line:
            self._sent(typed(_Send, line))
        else:
            self._ended(typed(_End, line))

    def _sent(self, line: _Send) -> None:
        name, key = line["send"], line.get("key", "")
        self._open[name] = line["usd"]
        self.requests += line.get("requests", 1)
        self.sent += not is_batch(name)
        if key:
            self._key_of[name] = key
            self.keys.add(key)

    def _ended(self, line: _End) -> bool:
        """Count the end of a send; False where it had ended before."""
        name, unsent = line["end"], line.get("unsent", 0)
        key = self._key_of.pop(name, "")
        if self._open.pop(name, None) is None:
            return False
        self.paid += line["paid"]
        self.doubtful += line.get("doubtful", 0.0)
        self.requests -= unsent
        self.sent -= 0 if is_batch(name) else unsent
        self.lost += line.get("lost", 0)
        if unsent:
            self.keys.discard(key)
        return True
