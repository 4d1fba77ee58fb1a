"""Datasets to and from Minari, a format and library for recorded experience (needs the `minari` extra)."""

import copy
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import make_folder
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.derive import explored, write
from bkrl.envs import captioner, env_spec, spec_with
from bkrl.runs.provenance import follow, paid_once
from bkrl.runs.record import Run

PREFIX = "minari:"
_ID = re.compile(r"([-\w]{2,}/)*[-\w]+-v\d+")
_ROOT = "MINARI_DATASETS_PATH"


def to_minari(path: Path, out: Path) -> dict[str, Any]:
    """Write a dataset as the Minari dataset folder `out`; its id is where it lies below Minari's root.

    A folder elsewhere has its own name as id, and the folder around it is the root. Captions and missions are in
    `infos`, one a moment; success, the seed, the recording point and the texts of each episode are in its metadata.
    Nothing is left behind when it fails.

    Raises:
        InputError: the dataset is missing or damaged.
        UsageError: Minari is not installed, or `out` exists, cannot be made or has a name that Minari does not take.
    """
    minari = _minari()
    from gymnasium import spaces
    from minari.data_collector.episode_buffer import EpisodeBuffer

    data = Dataset.open(path)
    if out.exists():
        raise UsageError(f"{out} exists; name a new folder with --out.")
    out = out.absolute()  # Minari joins a relative root twice
    dataset_id = _id_of(out)
    everything, who = np.arange(data.num_episodes), data.explorer
    buffers, metadata = [], []
    for number, episode in enumerate(data.recorded(everything)):
        last = np.arange(1 - len(episode["actions"]), 1) == 0
        buffers.append(
            EpisodeBuffer(
                id=number,
                seed=episode["seed"],
                observations=list(episode["observations"]),
                actions=list(episode["actions"]),
                rewards=[float(reward) for reward in episode["rewards"]],
                terminations=list(last & episode["terminated"]),
                truncations=list(last & episode["truncated"]),
                infos={"caption": episode["captions"], "mission": episode["mission"], **episode["texts"]},
            )
        )
        metadata.append({name: episode[name] for name in ("success", "checkpoint_step", "episode_texts")})
    make_folder(out.parent)
    try:
        folder = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise UsageError(f"{out} cannot be made ({error.strerror}); choose another --out.") from None
    with folder as scratch, _root(scratch), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # it asks for an environment to evaluate in
        made = minari.create_dataset_from_buffers(
            dataset_id=dataset_id,
            buffer=buffers,
            observation_space=spaces.Box(0, 255, data.obs_shape, np.uint8),
            action_space=spaces.Discrete(len(data.action_names)),
            algorithm_name=who or "unknown",
            description=f"{data.env_id}, collected with bkrl",
            author="bkrl",
            author_email="none",
            code_permalink="none",
            data_format="arrow",
            jpeg_encoding=False,
            requirements=["bkrl"],
        )
        made.storage.update_episode_metadata(metadata, everything)
        facts = explored([data.run.facts]) | ({"explorer": who} if who else {})
        behind = sum(node.steps for node in paid_once(follow([data.path]).nodes.values()))  # which no chain will tell
        facts |= {"explorer_steps": max(behind, facts.get("explorer_steps", 0))} if behind else {}
        known = {"info": data.info, "language": data.language, "facts": facts}
        made.storage.update_metadata({"bkrl": known, **_env_spec(data.env_id)})
        shutil.move(Path(scratch) / dataset_id, out)
    return {"id": dataset_id, "episodes": data.num_episodes, "steps": data.num_steps, "format": "Minari"}


def from_minari(source: str, out: Path, reporter: Reporter | None = None) -> Run:
    """Make a dataset of a Minari dataset in a run at `out`.

    Args:
        source: `minari:` and the id of a dataset below Minari's root, or its folder.
        out: the run directory.

    What bkrl did not export lacks captions, which are made from the observations; success, which an episode has that
    terminates with a reward; and what is known of its explorer. Nothing is left behind when it fails.

    Raises:
        InputError: there is no such dataset, it is damaged, or of a kind that bkrl cannot hold.
        UsageError: Minari is not installed, its env is not known, or `out` holds another run.
    """
    minari = _minari()
    name = source.removeprefix(PREFIX)
    if name == source or not name:
        raise UsageError(f"'{source}' is nothing to import; name a Minari dataset as {PREFIX}ID.")
    from minari.storage import get_dataset_path

    folder = Path(name) if (Path(name) / "data").is_dir() else get_dataset_path(name)
    if not (folder / "data" / "metadata.json").is_file():
        raise InputError(f"There is no Minari dataset at {folder}; `minari list local` shows those on this machine.")
    with _explained(source):
        theirs = minari.MinariDataset(folder / "data")
        ours = theirs.storage.metadata.get("bkrl", {})
        info = ours.get("info") or _info(theirs, source)
        language = ours.get("language") or info.get("language") or "en"
        dataset_id = theirs.spec.dataset_id
    config = {"env": info["env_id"], "language": language, "source": dataset_id}
    run = Run.create(out, stage="collect", config=config, inputs={"minari": folder / "data" / "metadata.json"})
    with _explained(source):
        return write(
            run,
            info,
            _episodes(theirs, info, language),
            len(theirs),
            reporter or Reporter(),
            {"imported": f"{PREFIX}{dataset_id}"},
            ours.get("facts", {}),
        )


def _episodes(theirs: Any, info: Mapping[str, Any], language: str) -> Iterator[dict[str, Any]]:
    """The episodes of a Minari dataset as `DatasetWriter.add_episode` takes them.

    Exports made before episodes carried their texts have "" in their place.
    """
    env_id, texts = info["env_id"], info.get("texts", ())
    metadata = theirs.storage.get_episode_metadata(theirs.episode_indices)
    for episode, known in zip(theirs.iterate_episodes(), metadata, strict=True):
        seen = episode.observations if isinstance(episode.observations, dict) else {"image": episode.observations}
        captions = episode.infos.get("caption")
        missions = episode.infos.get("mission", seen.get("mission"))
        terminated = bool(episode.terminations[-1])
        yield {
            "observations": seen["image"],
            "actions": episode.actions,
            "rewards": episode.rewards,
            "captions": captioner(env_id, language)(seen["image"]) if captions is None else [str(c) for c in captions],
            "mission": "" if missions is None else [str(mission) for mission in missions],
            "terminated": terminated,
            "truncated": bool(episode.truncations[-1]) or not terminated,
            "success": known.get("success", terminated and bool(episode.rewards[-1] > 0)),
            "seed": known["seed"] if isinstance(known.get("seed"), int) else -1,
            "checkpoint_step": known.get("checkpoint_step", 0),
            "texts": {name: [str(one) for one in episode.infos[name]] for name in texts},
            "episode_texts": {
                name: str(known.get("episode_texts", {}).get(name, "")) for name in info.get("episode_texts", ())
            },
        }


def _info(theirs: Any, source: str) -> dict[str, Any]:
    """What `info.json` says of a dataset that bkrl did not export; InputError when it is none of an env of ours."""
    from gymnasium import spaces

    spec, seen = theirs.env_spec, theirs.observation_space
    if spec is None:
        raise InputError(f"{source} does not say which environment it is of, so bkrl cannot tell its env.")
    given = dict(spec.kwargs)  # options of ours where ours is named; PyPI minigrid's are other ones
    facts = spec_with(given.pop("env_id"), given) if "env_id" in given else env_spec(spec.id)
    view = seen.spaces.get("image") if isinstance(seen, spaces.Dict) else seen
    fits = isinstance(view, spaces.Box) and view.shape == facts.obs_shape and view.dtype == np.uint8
    if not fits or theirs.action_space != spaces.Discrete(len(facts.action_names)):
        raise InputError(
            f"{source} holds observations {view} and actions {theirs.action_space}, {facts.env_id} has uint8 "
            f"{facts.obs_shape} and {len(facts.action_names)} actions; import one that was recorded without wrappers."
        )
    return {
        "family": facts.family,
        "rules": facts.rules,
        "language": facts.language,
        "env_id": facts.env_id,
        "obs_shape": list(facts.obs_shape),
        "action_names": list(facts.action_names),
    }


def _env_spec(env_id: str) -> dict[str, str]:
    """What Gymnasium makes an env from, as Minari keeps it; nothing where bkrl does not know the env (any more)."""
    import gymnasium

    try:
        steps = env_spec(env_id).max_steps
        spec = copy.deepcopy(gymnasium.spec(f"bkrl/{env_id.partition('@')[0]}"))
    except (UsageError, gymnasium.error.Error):
        return {}
    spec.kwargs["env_id"], spec.max_episode_steps = env_id, steps
    return {"env_spec": spec.to_json()}


def _id_of(out: Path) -> str:
    """The id that Minari demands of a dataset in this folder; UsageError when it takes none like it."""
    root = Path(os.environ.get(_ROOT, Path.home() / ".minari" / "datasets")).absolute()
    dataset_id = out.relative_to(root).as_posix() if out.is_relative_to(root) else out.name
    if not _ID.fullmatch(dataset_id):
        name = out.name if _ID.fullmatch(out.name) else re.sub(r"[^-_a-zA-Z0-9]", "-", out.name) + "-v0"
        place = root if out.is_relative_to(root) else out.parent
        raise UsageError(
            f"Minari takes names of letters, digits, - and _ that end in a version, in folders whose names have two "
            f"characters or more, and not '{dataset_id}'; use for example --out {place / name}."
        )
    return dataset_id


@contextmanager
def _root(folder: str) -> Iterator[None]:
    """Let Minari keep its datasets in a folder, inside the `with` block."""
    before = os.environ.get(_ROOT)
    os.environ[_ROOT] = folder
    try:
        yield
    finally:
        del os.environ[_ROOT]
        if before is not None:
            os.environ[_ROOT] = before


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Say in a sentence what Minari and its formats say in many ways of a dataset that they cannot read."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{source} cannot be read: {error}") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{source} cannot be read ({why}); download or export it again.") from None


def _minari() -> Any:
    try:
        import minari
    except ImportError:
        raise UsageError("Minari is not installed; run `pip install 'bkrl[minari]'`.") from None
    return minari
