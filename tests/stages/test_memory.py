"""Potentials that read what happened in an episode: asked for, kept, certified, and the same while a policy learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import read_json
from bkrl.core.reporter import Reporter
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Windows
from bkrl.envs import make_vec, memory_of
from bkrl.envs.memory import fold
from bkrl.labelers import audit
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.material import SegmentText, env_card, segment_text
from bkrl.labelers.preferences import pair_prompt
from bkrl.labelers.quality import segments_of
from bkrl.labelers.tables import card_of, labels_of, responses_of
from bkrl.learn.protocol import Saved
from bkrl.llm.rules import answer
from bkrl.methods import TrainRsConfig, find_method
from bkrl.potentials import load_potential, read_potential
from bkrl.potentials.config import TrainRmConfig
from bkrl.potentials.goal import NEAR
from bkrl.potentials.protocol import Scaled
from bkrl.runs.record import Run
from bkrl.runs.samples import SAMPLES
from bkrl.stages import label, train_rm, train_rs

ENV = "MiniGrid-DoorKey-5x5-v0@max_steps=40"
DATA = SAMPLES / "data-minigrid"


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A potential of a program that reads memory, made of the sample's experience."""
    out = tmp_path_factory.mktemp("memory")
    labels = label.run(LabelConfig(DATA, "code", with_memory=True, out=out / "labels"), Reporter())
    asked = str(responses_of(labels)[0]["prompt"])
    assert "Columns of memory are numbers: 0 cells_visited, 1 cells_seen, 2 doors_opened" in asked
    assert "valid, memory):" in asked
    return train_rm.run(TrainRmConfig(out / "labels", out=out / "phi"), Reporter()).path


@pytest.fixture(scope="module")
def preferred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A potential of preferences between segments beside which stands what was done."""
    out = tmp_path_factory.mktemp("preferred")
    label.run(LabelConfig(DATA, "pref", with_memory=True, num=200, out=out / "labels"), Reporter())
    return train_rm.run(TrainRmConfig(out / "labels", epochs=2, out=out / "phi"), Reporter()).path


def opened(phi: Path) -> tuple[Scaled, Windows, Any]:
    """A certified potential, windows of the sample and its values of these, which are the same one by one."""
    assert read_json(phi / "certificate.json")["passed"]
    potential = read_potential(phi)
    windows = Dataset.open(DATA).windows(np.arange(0, 2000, 7), potential.reads.horizon)
    values = potential(windows)
    one_by_one = np.concatenate([potential(windows[row : row + 1]) for row in range(0, len(windows), 20)])
    assert np.array_equal(values[::20], one_by_one)
    return potential, windows, values


def test_segments_say_what_was_done_and_the_annotator_counts_it(preferred: Path) -> None:
    asked = str(responses_of(Run.open(preferred.parent / "labels", "label"))[0]["prompt"])
    assert "done by its start: " in asked
    assert "done by its end: " in asked
    assert "what the agent had done in its episode" in asked
    card = env_card(ENV, memory=memory_of(ENV).names)  # type: ignore[union-attr]
    plain = SegmentText(("You see nothing.", "You see nothing."), ("left",), done=("nothing", "nothing"))
    more = replace(plain, done=("nothing", "keys_picked_up 1, doors_unlocked 1"))
    for pair, wanted in (((more, plain), "A"), ((plain, more), "B"), ((more, more), "tie")):
        said = answer([text for _, text in pair_prompt(card, *pair)])
        assert json.loads(said)["choice"] == wanted


def test_a_preference_potential_reads_the_memory(preferred: Path) -> None:
    document = read_json(preferred / "potential.json")
    names = memory_of(ENV).names  # type: ignore[union-attr]
    assert document["reads"] == ["memory"]
    assert document["settings"]["memory"] == list(names)
    potential, windows, values = opened(preferred)
    nothing = potential(replace(windows, memory=np.zeros_like(windows.memory)))
    assert nothing.mean() < values.mean() - 0.05
    other = windows.showing(np.roll(windows.observations, 1, axis=0))
    assert (potential(other) != values).any()
    with pytest.raises(InputError, match="reads the memory of episodes"):
        potential(replace(windows, memory=None))
    document["settings"]["memory"][0] = "doors_painted"
    (preferred / "potential.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="remembers other things"):
        read_potential(preferred)


@pytest.fixture(scope="module")
def aimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A potential of goals for moments beside which stands what was done."""
    out = tmp_path_factory.mktemp("aimed")
    label.run(LabelConfig(DATA, "goal", with_memory=True, num=60, out=out / "labels"), Reporter())
    return train_rm.run(TrainRmConfig(out / "labels", out=out / "phi"), Reporter()).path


def test_a_goal_potential_counts_what_was_reached_and_what_is_near(aimed: Path) -> None:
    asked = str(responses_of(Run.open(aimed.parent / "labels", "label"))[0]["prompt"])
    assert "done by its start: " in asked
    assert "done by its end: " in asked
    whole = (aimed / "potential.json").read_text()
    document = json.loads(whole)
    names = list(memory_of(ENV).names)  # type: ignore[union-attr]
    assert (document["reads"], document["scale"]) == (["memory"], {"lo": 0.0, "hi": 1.0 + NEAR})
    reached = document["settings"]["reached"]
    assert reached["memory"] == names
    assert names.index("keys_picked_up") in reached["fields"]
    potential, windows, values = opened(aimed)
    keys = np.array(windows.memory)
    keys[:, names.index("keys_picked_up")] += 1
    assert (potential(replace(windows, memory=keys)) > values).all()
    nothing = potential(replace(windows, memory=np.zeros_like(windows.memory)))
    assert nothing.max() <= NEAR / (1 + NEAR) - 1 + 1e-6
    assert nothing.max() > nothing.min()  # what is near still counts
    with pytest.raises(InputError, match="reads the memory of episodes"):
        potential(replace(windows, memory=None))
    for changed, sentence in (
        ({"memory": ["doors_painted", *names[1:]]}, "remembers other"),
        ({"fields": [99]}, "is damaged"),
    ):
        (aimed / "potential.json").write_text(
            json.dumps(document | {"settings": document["settings"] | {"reached": reached | changed}})
        )
        with pytest.raises(InputError, match=sentence):
            read_potential(aimed)
    (aimed / "potential.json").write_text(whole)


def settings(phi: Path, out: Path, **changes: Any) -> Any:
    return TrainRsConfig(
        **{
            "alg": "bk-code",
            "env": ENV,
            "potential": phi,
            "steps": 1024,
            "eval_episodes": 2,
            "ppo": PPOConfig(num_envs=8, num_steps=32),
            "out": out,
            **changes,
        }
    )


def test_it_says_what_it_reads_and_is_certified(phi: Path) -> None:
    document = read_json(phi / "potential.json")
    assert document["reads"] == ["memory"]
    assert document["scale"] == {"lo": 0.0, "hi": 1.0}
    assert read_json(phi / "certificate.json")["passed"]


def test_only_the_memory_matters_to_it_and_a_first_time_is_worth_more(phi: Path) -> None:
    potential, data = load_potential(phi), Dataset.open(DATA)
    windows = data.windows(np.arange(0, 2000, 7), potential.reads.horizon)
    values = potential(windows)
    other = potential(replace(windows, memory=np.zeros_like(windows.memory)))
    assert (other == -1).all()
    assert (values != other).any()
    better = np.array(windows.memory)
    better[:, 3] = 1  # a door was unlocked
    assert (potential(replace(windows, memory=better)) > values).all()
    with pytest.raises(InputError, match="reads the memory of episodes"):
        potential(replace(windows, memory=None))
    potential.close()


def test_a_random_control_sees_the_memory_where_its_potential_does(phi: Path, tmp_path: Path) -> None:
    train_rm.run(TrainRmConfig(phi.parent / "labels", control="random", out=tmp_path / "random"), Reporter())
    potential, windows, values = opened(tmp_path / "random")
    assert potential.reads == load_potential(phi).reads
    assert (potential(replace(windows, memory=np.zeros_like(windows.memory))) != values).any()
    other = windows.showing(np.roll(windows.observations, 1, axis=0))
    assert (potential(other) != values).any()


@pytest.mark.parametrize(("made", "alg", "defect"), [("phi", "bk-code", "b1"), ("aimed", "bk-goal", "b30")])
def test_published_defects_of_potentials_are_for_those_without_memory(
    made: str, alg: str, defect: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    potential = request.getfixturevalue(made)
    for compat in (defect, "upstream"):
        with pytest.raises(
            UsageError, match=rf"{defect} .* reads the memory; leave {defect} out .* without --with-memory"
        ):
            train_rs.run(settings(potential, tmp_path / "run", alg=alg, compat=compat), Reporter())
    assert not list(tmp_path.iterdir())


def learner(phi: Path, out: Path, **changes: Any) -> Any:
    method = find_method("bk-code")
    assert method is not None
    given: Any = settings(phi, out, **changes)
    return method.build(given).learner


def test_a_rollout_remembers_what_a_record_of_it_says(phi: Path, tmp_path: Path) -> None:
    """What the reward is computed from, against a fold of each episode as it would be recorded."""
    made = learner(phi, tmp_path, see_memory=True)
    memory: Any = memory_of(ENV)
    views: list[list[Any]] = [[] for _ in range(8)]
    acts: list[list[int]] = [[] for _ in range(8)]
    remembered: list[list[Any]] = [[] for _ in range(8)]
    ends = 0
    for _ in range(6):
        made.iterate()
        r = made.collector.rollout
        final = dict(zip(r.final_index.tolist(), range(len(r.final_index)), strict=True))
        for t in range(r.num_steps):
            for n in range(8):
                views[n].append(r.views.symbols[t, n].copy()), acts[n].append(r.actions[t, n])
                remembered[n].append(r.views.memory[t, n].copy())
                assert np.array_equal(made.collector.views.memory[t, n], r.views.memory[t, n])
                if (place := final.get(t * 8 + n)) is not None:
                    views[n].append(r.final_views.symbols[place].copy()), acts[n].append(0)
                    remembered[n].append(r.final_views.memory[place].copy())
                    found = fold(memory, np.array(views[n]), np.array(acts[n]), np.zeros(1, np.int64))
                    assert np.array_equal(found, np.array(remembered[n]))
                    views[n], acts[n], remembered[n], ends = [], [], [], ends + 1
    assert ends > 8
    made.close()


@pytest.mark.parametrize("shaping", ["pbrs", "progress"])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(phi: Path, tmp_path: Path, shaping: str) -> None:
    whole, again = (learner(phi, tmp_path, see_memory=True, shaping=shaping) for _ in range(2))
    for _ in range(2):
        whole.iterate()
    kept: Saved = whole.state()
    arrays = {
        name: one.numpy().copy() if isinstance(one, torch.Tensor) else np.array(one)
        for name, one in kept.tensors.items()
    }
    again.restore(Saved(arrays, dict(kept.counters), kept.exact))
    for made in (whole, again):
        made.iterate()
    assert np.array_equal(whole.collector.rollout.views.memory, again.collector.rollout.views.memory)
    assert whole.collector.rollout.views.memory.any()
    assert torch.equal(whole.rewards, again.rewards)
    for one, other in zip(whole.parameters, again.parameters, strict=True):
        assert torch.equal(one, other)
    whole.close(), again.close()


def test_progress_pays_what_phi_has_grown_by_and_nothing_for_waiting(phi: Path, tmp_path: Path) -> None:
    made = learner(phi, tmp_path, shaping="progress", shaping_coef=0.8, shaping_until=1024)
    potential = load_potential(phi)
    for iteration in range(3):
        made.iterate()
        r = made.collector.rollout
        weight = 0.8 * (1 - iteration * 256 / 1024)
        values = potential(r.windows(potential.reads.horizon)).reshape(33, 8)
        last = potential(r.final_windows(potential.reads.horizon))
        final = dict(zip(r.final_index.tolist(), last.tolist(), strict=True))
        for t in range(32):
            for n in range(8):
                after = final.get(t * 8 + n, values[t + 1, n])
                wanted = r.rewards[t, n] + weight * (np.float64(after) - np.float64(values[t, n]))
                assert abs(made.rewards[t, n, 0].item() - wanted) < 1e-6
    made.close(), potential.close()


def test_the_whole_chain_runs_with_a_policy_that_reads_memory_and_one_that_does_not(phi: Path, tmp_path: Path) -> None:
    for sees in (True, False):
        run = train_rs.run(settings(phi, tmp_path / f"{sees}", see_memory=sees, shaping="progress"), Reporter())
        assert run.facts["potential_reads"] == ["memory"]
        assert run.facts.get("memory", False) == sees


def test_what_phi_counts_in_vain_is_said(phi: Path, tmp_path: Path) -> None:
    """Where it was made are keys, balls and boxes; an empty room has none of them, a room with a door has keys."""
    empty, like = "MiniGrid-Empty-5x5-v0", "BabyAI-GoToLocal-v0"
    for env, counted in ((empty, "keys picked up, balls picked up"), (ENV, "balls picked up"), (like, "")):
        made = find_method("bk-code").build(settings(phi, tmp_path / "a", env=env, shaping="progress"))  # type: ignore[union-attr]
        said = [note for note in made.notes if "has nothing of the kind" in note]
        assert len(said) == bool(counted)
        assert [note for note in said if f"counts {counted}, " in note and f"and {env} has" in note] == said
        made.close()


def test_what_cannot_be_remembered_is_refused(phi: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reads no memory of episodes"):
        train_rs.run(settings(phi, tmp_path / "a", see_memory=True, network="recurrent"), Reporter())
    typed: Any = TrainRsConfig(alg="ppo", env="Crafter-Typed-Harder", see_memory=True, out=tmp_path / "b", steps=64)
    with pytest.raises(UsageError, match="leave --see-memory out"):
        train_rs.run(typed, Reporter())
    assert make_vec(ENV, 1).num_envs == 1
    assert not list(tmp_path.iterdir())


def test_a_person_who_audits_sees_what_the_annotator_saw(preferred: Path) -> None:
    shown: list[str] = []
    audit.conduct(preferred.parent / "labels", lambda text: shown.append(text) or "q", n=1)  # type: ignore[func-returns-value]
    labels = Run.open(preferred.parent / "labels")
    place, swapped = audit.sample(labels_of(labels), seed=1)[0]
    data = Dataset.open(DATA)
    pair = [segment_text(data, one, card_of(labels, data)) for one in segments_of(labels_of(labels)[place])]
    first, second = reversed(pair) if swapped else pair
    before, after = shown[0].split("2  SECOND")
    for text, segment in ((before, first), (after, second)):
        assert f"done before  {segment.done[0]}\n" in text
        assert f"done by its end  {segment.done[1]}\n" in text
    assert "whatever its task may be?" in after
    asked = audit.question(*(replace(one, mission="go to a ball\x1b[2J") for one in pair), "t")
    assert "mission  go to a ball [2J\n" in asked
    assert "at its own mission?" in asked
