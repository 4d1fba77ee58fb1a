"""A person labels some pairs without seeing what the machine said, and both are compared.

Answers lie in the label run's folder, `audit/NAME.jsonl`, a line for each, beside the hashed outputs and not among
them: the run stays what it was. Each line is written at once and to the disk before the next question; a last line torn
by a crash is left out. Which pairs are asked about, in which order and which segment first, depends on the seed alone,
so that a later, longer audit goes on where a shorter one ended, and several auditors see the same pairs.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

from bkrl.core.errors import InputError, RunFailed, UsageError
from bkrl.core.files import sha256
from bkrl.core.lines import LineFile, read_rows
from bkrl.core.seeds import generator
from bkrl.labelers.agreement import cohen_kappa, share
from bkrl.labelers.answers import Choice
from bkrl.labelers.material import SegmentText, segment_text
from bkrl.labelers.quality import SWAPPED, cells, segments_of
from bkrl.labelers.tables import card_of, dataset_of, labels_of, variant_of
from bkrl.runs.inputs import dataset_at
from bkrl.runs.record import Run

FOLDER = "audit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEYS: dict[str, Choice] = {"1": "A", "first": "A", "2": "B", "second": "B", "t": "tie", "tie": "tie", "0": "tie"}
_STOP, _SKIP = ("q", "quit"), ("s", "skip")
HELP = "1: the first is better   2: the second   t: tie   s: skip   q: stop (answers are kept)"

Answers = dict[int, Choice | None]
"""What a person said of pairs, by their number, in terms of each one's own A and B; None: skipped."""


class _Line(TypedDict):
    pair_id: int
    choice: Choice | None
    swapped: bool
    labels: str


Row = Mapping[str, Any]
Ask = Callable[[str], str | None]
"""Shows a text and gives back a line, or None when there will be no more."""


def machine_choice(row: Row) -> Choice | None:
    """What the labels say of a pair: A, B, tie, or None without a label."""
    if row["label"] is None:
        return None
    return "tie" if row["label"] == 0.5 else "A" if row["label"] > 0.5 else "B"


def file_of(run: Path, auditor: str) -> Path:
    """Where an auditor's answers lie. UsageError for a name that is not safe as a file name."""
    if not _NAME.fullmatch(auditor):
        raise UsageError(
            f"{auditor!r} cannot be a file name; --auditor takes letters, digits, '.', '_' and '-', at most 64, "
            "beginning with a letter or digit."
        )
    return run / FOLDER / f"{auditor}.jsonl"


def read_answers(path: Path, manifest: str) -> Answers:
    """An auditor's answers, the last one to each pair. InputError when they belong to other labels."""
    found: Answers = {}
    for entry in read_rows(path, _Line, mend="mend or remove that line"):
        if entry["labels"] != manifest:
            raise InputError(f"{path} was given for other labels than these; move it away to audit anew.")
        found[entry["pair_id"]] = entry["choice"]
    return found


def all_answers(run: Path) -> tuple[dict[str, Answers], list[str]]:
    """The answers of every auditor of a label run, by name, and sentences about those that cannot be used."""
    manifest = sha256(run / "manifest.json")
    found, problems = {}, []
    for path in sorted((run / FOLDER).glob("*.jsonl")):
        try:
            found[path.stem] = read_answers(path, manifest)
        except InputError as problem:
            problems.append(str(problem))
        except OSError as problem:
            problems.append(f"{path} cannot be read ({problem.strerror}).")
    return found, problems


def sample(table: Sequence[Row], seed: int) -> list[tuple[int, bool]]:
    """(place in the table, whether B is shown first) of all pairs that answers labelled, in the order of asking."""
    rng = generator(seed, "label", "audit")
    labelled = [i for i, row in enumerate(table) if row["status"] == "labelled" and row["label"] is not None]
    order, swaps = rng.permutation(len(labelled)), rng.random(len(labelled)) < 0.5
    return [(labelled[i], bool(swaps[i])) for i in order]


def conduct(
    labels: Path, ask: Ask, *, n: int = 20, seed: int = 1, auditor: str = "me", dataset: Path | None = None
) -> dict[str, Any]:
    """Ask a person about n pairs, going on where they stopped; the agreement with the labels so far.

    Raises:
        InputError: the run or its dataset is missing or damaged, or earlier answers are.
        RunFailed: answers could not be kept there; then no question is asked.
        UsageError: no pair has a label to compare with, or the auditor's name is no file name.
    """
    file_of(labels, auditor)  # a name that cannot be is refused before anything is read
    run = Run.open(labels, "label")
    path = run.file(str(file_of(Path(), auditor)))
    if variant_of(run) != "pref":
        raise UsageError(f"{labels} holds no preferences; only pairs can be audited. `bkrl label view` shows the rest.")
    table, data = labels_of(run), dataset_of(run, dataset_at(run, dataset))
    env, manifest = card_of(run, data), sha256(run.path / "manifest.json")
    given = read_answers(path, manifest)
    chosen = sample(table, seed)[:n]
    if not chosen:
        raise UsageError(f"No pair of {labels} was labelled by an answer; there is nothing to audit.")
    open_ = [(i, swapped) for i, swapped in chosen if int(table[i]["pair_id"]) not in given]
    if open_:
        _check_writable(path)
    done = len(chosen) - len(open_)
    for number, (place, swapped) in enumerate(open_, done + 1):
        a, b = (segment_text(data, segment, env) for segment in segments_of(table[place]))
        first, second = (b, a) if swapped else (a, b)
        shown = question(first, second, f"Pair {number} of {len(chosen)}")
        reply = _asked(ask, shown)
        if reply in _STOP:
            break
        choice = None if reply in _SKIP else _KEYS[reply]
        if choice is not None and swapped:
            choice = SWAPPED[choice]
        pair = int(table[place]["pair_id"])
        given[pair] = choice
        _append(path, {"pair_id": pair, "choice": choice, "swapped": swapped, "labels": manifest})
    left = sum(int(table[i]["pair_id"]) not in given for i, _ in chosen)
    return {"answers": path.as_posix(), "pairs_left": left, **compare(table, given)}


def question(first: SegmentText, second: SegmentText, title: str) -> str:
    """Two segments as they are shown to a person."""
    lines = [f"── {title} " + "─" * 40]
    for name, segment in (("1  FIRST", first), ("2  SECOND", second)):
        lines += ["", name, *(["   mission  " + _one_line(segment.mission)] if segment.mission else [])]
        lines += [f"   done before  {_one_line(done)}" for done in segment.done[:1]]
        for i, caption in enumerate(segment.captions):
            lines.append("   sees  " + _one_line(caption))
            if i < len(segment.actions):
                lines.append("   does  " + _one_line(segment.actions[i]))
        lines += [f"   done by its end  {_one_line(done)}" for done in segment.done[1:]]
    for_what = "at its own mission" if first.mission else "whatever its task may be"
    return "\n".join([*lines, "", f"In which one does the agent do better, {for_what}?", HELP])


def compare(table: Sequence[Row], given: Answers) -> dict[str, Any]:
    """A person's answers against the labels: agreement over A, B and tie, over pairs decided by both, and kappa."""
    machine = {int(row["pair_id"]): machine_choice(row) for row in table}
    both = [
        (choice, other)
        for pair, choice in given.items()
        if choice is not None and (other := machine.get(pair)) is not None
    ]
    decided = [(one, other) for one, other in both if "tie" not in (one, other)]
    return {
        "answered": len(both),
        "skipped": sum(choice is None for choice in given.values()),
        "agreement": share(sum(one == other for one, other in both), len(both)),
        "agreement_decided": share(sum(one == other for one, other in decided), len(decided)),
        "cohen_kappa": cohen_kappa(both),
    }


def as_table(found: Mapping[str, Any]) -> dict[str, Any]:
    """What `conduct` found, as `header` and `rows` to print."""
    kappa = found["cohen_kappa"]
    return {
        "header": ["", "value", "95 % interval", "n"],
        "rows": [
            ["same answer as the labels (A, B or tie)", *cells(found["agreement"])],
            ["same where both decided", *cells(found["agreement_decided"])],
            ["Cohen's kappa", "–" if kappa is None else f"{kappa:.3f}", "", f"{found['answered']:,}"],
            ["skipped", f"{found['skipped']:,}", "", ""],
            ["still to be answered", f"{found['pairs_left']:,}", "", ""],
        ],
    }


def _asked(ask: Ask, text: str) -> str:
    """A line that is an answer; the question once, then what the keys are until one of them comes."""
    while True:
        line = ask(text)
        if line is None:
            return _STOP[0]
        reply = line.strip().lower()
        if reply in _KEYS or reply in _SKIP or reply in _STOP:
            return reply
        text = f"{_one_line(line.strip())[:40]!r} is no answer. {HELP}"


def _check_writable(path: Path) -> None:
    """RunFailed where an answer could not be kept, before the first question."""
    try:
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise RunFailed(
            f"{path} cannot be written ({error.strerror}); make it writable, or audit a copy of the run."
        ) from None


def _append(path: Path, entry: Mapping[str, Any]) -> None:
    """Add one line; it is on the disk when this returns."""
    try:
        path.parent.mkdir(exist_ok=True)
        with closing(LineFile(path)) as file:
            file.append(json.dumps(entry))
            file.sync()
    except OSError as error:
        raise RunFailed(f"{path} cannot be written ({error.strerror}); the answers before this one are kept.") from None


def _one_line(text: str) -> str:
    """Text of others for a terminal: nothing in it moves the cursor or changes a colour."""
    return "".join(c if c.isprintable() else " " for c in text)
