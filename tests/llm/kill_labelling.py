"""The kill test: labels under wire faults, the labelling process killed again and again, nothing lost or paid twice.

    python -m tests.llm.kill_labelling [--labels 5000] [--kills 20] [--faults 0.2] [--seed 1]

A loopback server answers as a function of the prompt and misbehaves on every `--faults`-th request. `bkrl label` runs
against it, is killed (SIGKILL) at random moments and started again, until it ends by itself. Then its tables are held
against those of an undisturbed run, and the server's bill against what the store knows: a question may be paid a
second time only if a process died between noting its send and keeping its answer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from bkrl.core.files import read_table
from bkrl.data.schema import PREFERENCES, RESPONSES
from bkrl.runs.record import Run
from tests.commands import Started
from tests.experience import write_env
from tests.llm.fault_server import FaultServer, Plan, truth

UNREADABLE = ("reset_mid", "short_body", "truncated_json", "empty_choices", "null_choices", "not_utf8", "empty_body")
"""Faults that are billed although no client can read an answer out of them."""
UNBILLED = ("429:0", "429", "429ms:50", "500", "502", "503:0", "529:0", "reset", "error_in_200")
TABLES = ("preferences.parquet", "responses.parquet")
LATENCY = 0.1
START_SECONDS = 0.8
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Outcome:
    """What a trial found.

    lost, duplicated, wrong: labels (wrong: not what the server said). paid_twice: readable answers beyond the first of
    a question for which no process had died in between. in_flight_at_kills: sends whose end nobody saw.
    repeated: readable answers beyond the first of each question; unreadable: answers billed that nobody could read.
    """

    labels: int
    requests: int
    kills: int
    lost: int
    duplicated: int
    wrong: int
    paid_twice: int
    repeated: int
    in_flight_at_kills: int
    unreadable: int
    identical_tables: bool
    integrity: str
    sent_by_another_run: int
    seconds: float
    seconds_undisturbed: float

    @property
    def perfect(self) -> bool:
        """Whether everything that is promised was kept."""
        bad = (self.lost, self.duplicated, self.wrong, self.paid_twice, self.sent_by_another_run)
        return not any(bad) and self.identical_tables and self.integrity == "ok"


def plan(rate: float, seed: int) -> Plan:
    """Faults of every kind on a share of the requests: the same for the same prompt, attempt and seed."""
    faults = UNREADABLE + UNBILLED

    def does(prompt: str, attempt: int) -> str:
        dice = random.Random(f"{seed} {prompt} {attempt}")
        return dice.choice(faults) if dice.random() < rate else "ok"

    return does


def trial(folder: Path, labels: int, kills: int, rate: float, seed: int) -> Outcome:
    """Label once undisturbed and once through faults and kills, in `folder`, and compare."""
    dataset = write_env(folder / "data", "BabyAI-Text-GoToLocal-Pretraining-S20", episodes=120, length=40)
    with FaultServer(latency=LATENCY) as calm:
        started = time.monotonic()
        _finished(_start(dataset, folder / "calm", calm, labels))
        undisturbed = time.monotonic() - started
    faulty, moments = plan(rate, seed), random.Random(seed)
    with FaultServer(faulty, latency=LATENCY) as server:
        started = time.monotonic()
        _kill_at_random(dataset, folder / "killed", server, labels, kills, moments)
        _finished(_start(dataset, folder / "killed", server, labels))
        seconds = time.monotonic() - started
        seen, sent = dict(server.seen), len(server.requests)
        _finished(_start(dataset, folder / "killed", server, labels, "--out", str(folder / "killed" / "another")))
        another = len(server.requests) - sent
    run = Run.open(folder / "killed" / "out", "label")
    table = read_table(run.file("preferences.parquet"), PREFERENCES).to_pylist()
    responses = read_table(run.file("responses.parquet"), RESPONSES).to_pylist()
    key_of = {_prompt_hash(row["prompt"]): row["key"] for row in responses}
    dangling, integrity = _dangling(folder / "killed" / "cache" / "replies.sqlite")
    extra = Counter({p: sum(faulty(p, n) == "ok" for n in range(count)) - 1 for p, count in seen.items()})
    answers = {row["request_id"]: _prompt_hash(row["prompt"]) for row in responses}
    asked = [row for row in table if row["status"] != "identical"]
    return Outcome(
        labels=labels,
        requests=sum(seen.values()),
        kills=kills,
        lost=labels - sum(row["label"] is not None for row in table),
        duplicated=len(table) - len({row["pair_id"] for row in table}),
        wrong=sum(row["label"] != float(truth(answers[row["request_ids"][-1]]) == "A") for row in asked),
        paid_twice=sum(max(0, more - dangling[key_of.get(prompt, "")]) for prompt, more in extra.items()),
        repeated=sum(max(0, more) for more in extra.values()),
        in_flight_at_kills=dangling.total(),
        unreadable=sum(faulty(p, n) in UNREADABLE for p, count in seen.items() for n in range(count)),
        identical_tables=all(run.file(t).read_bytes() == (folder / "calm" / "out" / t).read_bytes() for t in TABLES),
        integrity=integrity,
        sent_by_another_run=another,
        seconds=round(seconds, 1),
        seconds_undisturbed=round(undisturbed, 1),
    )


def _start(dataset: Path, folder: Path, server: FaultServer, labels: int, *more: str) -> Started:
    words = ["label", dataset, "--num", labels, "--llm", "openai:m"]
    words += ["--out", folder / "out", "--cache", folder / "cache", *more]
    return Started(words, OPENAI_BASE_URL=server.url, OPENAI_API_KEY="sk-none")


def _finished(process: Started) -> None:
    done = process.done(PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]


def _kill_at_random(
    dataset: Path, folder: Path, server: FaultServer, labels: int, kills: int, moments: random.Random
) -> None:
    """Start and kill `kills` times, each when the server has seen a number of requests that was drawn beforehand; one
    that has been passed already falls into the start of the next process.
    """
    for least in sorted(moments.uniform(0, 0.9 * labels) for _ in range(kills)):
        process = _start(dataset, folder, server, labels)
        if len(server.requests) >= least:
            time.sleep(moments.uniform(0, START_SECONDS))
        patience = time.monotonic() + PATIENCE_SECONDS
        while len(server.requests) < least and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.002)
        assert process.poll() is None, f"it ended before it was killed: {process.said()[1][-2000:]}"
        process.kill()


def _prompt_hash(prompt: str) -> str:
    """The server's name for a prompt as it stands in responses.parquet."""
    return hashlib.sha256(json.dumps(json.loads(prompt)).encode()).hexdigest()


def _dangling(store: Path) -> tuple[Counter[str], str]:
    """Sends without an end, by key, and whether the database is whole."""
    with sqlite3.connect(store) as db:
        rows = db.execute("select key, count(*) from attempt where outcome = 'in flight' group by key").fetchall()
        return Counter(dict(rows)), str(db.execute("pragma integrity_check").fetchone()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--faults", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = trial(Path(folder), options.labels, options.kills, options.faults, options.seed)
    print(json.dumps({**asdict(outcome), "perfect": outcome.perfect}, indent=2))
    return 0 if outcome.perfect else 1


if __name__ == "__main__":
    sys.exit(main())
