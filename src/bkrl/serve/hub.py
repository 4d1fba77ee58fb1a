"""Runs on the Hugging Face hub: pushed with a card, pulled, and opened before they count as being here.

A token is read by huggingface_hub itself, from HF_TOKEN or its own login; nothing here sees it. HF_ENDPOINT names
another hub.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkrl import __version__
from bkrl.core.errors import BkrlError, InputError, RunFailed, UsageError
from bkrl.core.files import make_folder, read_json
from bkrl.core.reporter import Reporter
from bkrl.runs.folder import CONFIG, MANIFEST
from bkrl.runs.record import Manifest, Run
from bkrl.serve.cards import card

if TYPE_CHECKING:
    from huggingface_hub import HfApi

README = "README.md"
OWN_README = "README.run.md"
"""Where the hub keeps a run's own README.md: in its place stands the card."""
BESIDE = (README, ".gitattributes", "LICENSE")
"""What a repository may hold that no manifest names."""
MOST_BYTES = 2**24
"""Of a config or a manifest."""
_NAME = re.compile(r"[\w+=@-][\w.+=@ -]*(/[\w+=@-][\w.+=@ -]*)*", re.ASCII)
KINDS = {"collect": "dataset", "label": "dataset", "train-rm": "model", "train-rs": "model", "lm": "model"}
"""Stages whose runs are of use elsewhere, and the kind of repository of each."""


def _check(run: Run) -> None:
    """Open what a run holds; of `lm` its hashes are all that can be said without its model's library."""
    from bkrl.agents import load_agent
    from bkrl.data.check import validate
    from bkrl.labelers.tables import labels_of, responses_of
    from bkrl.potentials import load_potential

    if run.stage == "collect":
        validate(run.path)
    elif run.stage == "label":
        labels_of(run)
        responses_of(run)
    elif run.stage == "train-rm":
        load_potential(run.path).close()
    elif run.stage == "train-rs":
        load_agent(run.path)


def push(
    path: Path,
    repo: str,
    evaluations: Sequence[Path] = (),
    license: str = "unknown",
    private: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Write a run into a repository of the hub, in one commit; the repository is made where there is none.

    Args:
        path: a complete run of one of `KINDS`.
        repo: OWNER/NAME.
        evaluations: of this policy, whose results the card shows.
        license: by the hub's own name for it, such as "cc-by-4.0".
        private: make a repository that its owner alone sees; UsageError where a public one is there.
        reporter: where it is said what happens.

    Returns:
        The address, the commit, and the number of files.

    Raises:
        InputError: no complete run is there, or it is damaged.
        UsageError: runs of its stage are not shared, or the repository holds something else.
        RunFailed: the hub refused, or does not answer.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    run = Run.open(path)
    if run.stage not in KINDS:
        known = f"runs of {', '.join(KINDS)} are shared, and a policy takes its results along with --evaluation"
        raise UsageError(f"{path} is a run of {run.stage}; {known}.")
    kind = KINDS[run.stage]
    text = card(run, repo, kind, [Run.open(one, "evaluate") for one in evaluations], license)
    outputs = list(run.manifest["outputs"])
    if unsafe := [name for name in outputs if not _NAME.fullmatch(name)]:
        raise InputError(f"{path} holds {unsafe[0]!r}, and no repository takes that name; make the run again.")
    files = {OWN_README if name == README else name: run.file(name) for name in (CONFIG, MANIFEST, *outputs)}
    if license == "unknown":
        (reporter or Reporter()).say("The card says that the licence is unknown; name one with --license.")
    with _asking(repo) as hub:
        hub.create_repo(repo, repo_type=kind, private=private or None, exist_ok=True)
        if private and not hub.repo_info(repo, repo_type=kind).private:
            raise UsageError(f"{repo} is there already and is public; make it private on the hub, or choose another.")
        there = set(hub.list_repo_files(repo, repo_type=kind)) - set(BESIDE)
        if there and MANIFEST not in there:
            raise UsageError(f"{repo} holds other files, such as {min(there)}; choose another repository.")
        operations = [CommitOperationAdd(README, text.encode())]
        operations += [CommitOperationAdd(name, file) for name, file in files.items()]
        gone = [CommitOperationDelete(name) for name in sorted(there - set(files))]
        said = f"{run.stage} run, pushed with bkrl {__version__}"
        try:
            done = hub.create_commit(repo, [*operations, *gone], commit_message=said, repo_type=kind)
        except ValueError as problem:
            if "Invalid metadata" not in str(problem):
                raise
            what = f"--license takes the hub's own names, such as cc-by-4.0, and perhaps '{license}' is none"
            raise UsageError(f"{hub.endpoint} does not take the card's metadata: {what}.") from None
        address = f"{hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo}"
    return {"repository": address, "commit": done.oid, "files": len(operations), "license": license}


def pull(repo: str, out: Path, revision: str | None = None, reporter: Reporter | None = None) -> Run:
    """Fetch a run from the hub; it is opened before it gets its place.

    Args:
        repo: OWNER/NAME of what `push` wrote: a model's, else a dataset's.
        out: the folder to make.
        revision: a branch, tag or commit; else the newest.
        reporter: where progress is shown.

    Raises:
        UsageError: something is at `out`.
        InputError: there is no such repository, or it holds no whole run; nothing is kept of it.
        RunFailed: the hub refused, or does not answer.
    """
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists already; choose another folder.")
    there = next(place for place in out.absolute().parents if place.exists())
    make_folder(there)  # which refuses a file, before anything is fetched
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=there) as place:
        staged = Path(place) / "run"
        staged.mkdir()
        with _asking(repo) as hub:
            stage, where = _fetch(hub, repo, revision, staged, reporter or Reporter())
        try:
            run = Run.open(staged, stage)
            _check(run)
        except BkrlError as problem:
            why = str(problem).replace(f"{staged.as_posix()}/", "").replace(staged.as_posix(), "its run")
            raise InputError(f"{repo} cannot be opened: {why} Nothing of it was kept.") from None
        make_folder(out.parent)
        staged.rename(out)
        (reporter or Reporter()).say(f"{where} is at {out}.")
    return Run.open(out, verify=False)


def _fetch(hub: HfApi, repo: str, revision: str | None, staged: Path, reporter: Reporter) -> tuple[str, str]:
    """Fetch the files of a run, and no others, into a folder; the run's stage, and where it came from.

    What the hub says of the repository is held against the manifest before anything large is fetched.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        kind, info = "model", hub.model_info(repo, revision=revision, files_metadata=True)
    except RepositoryNotFoundError:
        kind, info = "dataset", hub.dataset_info(repo, revision=revision, files_metadata=True)  # type: ignore[assignment]
    sizes = {one.rfilename: one.size or 0 for one in info.siblings or ()}

    def fetch(name: str, to: str) -> None:
        got = hub.hf_hub_download(repo, name, repo_type=kind, revision=info.sha, local_dir=staged)
        Path(got).rename(staged / to)

    if missing := {CONFIG, MANIFEST} - set(sizes):
        raise InputError(f"{repo} holds no run of bkrl: it has no {min(missing)}.")
    if sizes[large := max((CONFIG, MANIFEST), key=sizes.__getitem__)] > MOST_BYTES:
        raise InputError(f"{repo} cannot be trusted: its {large} has {sizes[large]:,} bytes.")
    for name in (CONFIG, MANIFEST):
        fetch(name, name)
    manifest: Manifest = read_json(staged / MANIFEST, Manifest)
    if KINDS.get(manifest["stage"]) != kind:
        raise InputError(f"{repo} is a {kind} and holds a run of {manifest['stage']}; that is nothing to pull.")
    files = {OWN_README if name == README else name: name for name in manifest["outputs"]}
    for name in files:
        if not _NAME.fullmatch(name):
            raise InputError(f"{repo} cannot be trusted: its manifest names {name!r}.")
        if sizes.get(name) != manifest["outputs"][files[name]]["bytes"]:
            there = f"{sizes[name]:,}" if name in sizes else "no"
            raise InputError(f"{repo} is not whole: it has {there} bytes of {name}; have it pushed again.")
    if strange := set(sizes) - {CONFIG, MANIFEST, *files, *BESIDE}:
        raise InputError(f"{repo} cannot be trusted: it holds {min(strange)!r}, which its manifest does not name.")
    with reporter.progress("pull", sum(sizes[name] for name in files), "bytes") as update:
        done = 0
        for there, here in files.items():
            fetch(there, here)
            update(done := done + sizes[there])
    shutil.rmtree(staged / ".cache", ignore_errors=True)  # huggingface_hub's own notes
    return str(manifest["stage"]), f"{kind} {repo} at {info.sha or 'its newest commit'}"


@contextmanager
def _asking(repo: str) -> Iterator[HfApi]:
    """The hub; what it refuses becomes a sentence. What a server said is not repeated: it is not ours to print."""
    from huggingface_hub import HfApi, errors
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="bkrl", library_version=__version__)
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo, re.ASCII):
            raise errors.HFValidationError
        yield hub
    except errors.HFValidationError:
        raise UsageError(f"'{repo}' names no repository; write OWNER/NAME.") from None
    except errors.RepositoryNotFoundError:
        raise InputError(f"{hub.endpoint} shows no repository {repo}; if it is private, {log_in}.") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{repo} has no such revision; leave out --revision for the newest.") from None
    except errors.LocalTokenNotFoundError:
        raise RunFailed(f"{hub.endpoint} wants to know who you are; {log_in}.") from None
    except errors.HfHubHTTPError as problem:
        status = problem.response.status_code
        help = f"; {log_in}, with the right to write" if status in (401, 403) else "; try again later"
        raise RunFailed(f"{hub.endpoint} refused this for {repo} (status {status}){help}.") from None
    except (errors.HTTPError, OSError, ValueError, KeyError, TypeError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise  # of a disk
        raise RunFailed(f"{hub.endpoint} does not answer as a hub does ({type(problem).__name__}).") from None
