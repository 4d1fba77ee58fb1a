"""A few episodes of a dataset are a dataset, byte for byte what they were."""

import numpy as np
import pytest

from bkrl.dataset import Dataset, DatasetWriter
from bkrl.errors import UsageError
from bkrl.export import validate
from bkrl.run import Run
from bkrl.subset import subset
from tests.experience import Config, write_dataset


def test_episodes_are_copied_whole_and_half_of_them_are_solved(tmp_path):
    write_dataset(tmp_path / "all", lengths=(3, 1, 5, 4, 2))  # episode 0 alone is solved
    made = subset(tmp_path / "all", tmp_path / "some", 2)
    assert made.facts["subset_of"] == "all"
    whole, some = Dataset.open(tmp_path / "all"), Dataset.open(tmp_path / "some")
    assert some.success.tolist() == [True, False]
    validate(tmp_path / "some")
    for episode, was in enumerate([0, 1]):
        first, last = some.first_row[episode], whole.first_row[was]
        rows, old = np.arange(some.lengths[episode] + 1) + first, np.arange(whole.lengths[was] + 1) + last
        for name in ("observations", "actions", "rewards", "ages"):
            np.testing.assert_array_equal(getattr(some, name)[rows], getattr(whole, name)[old])
        assert [some.caption(row) for row in rows] == [whole.caption(row) for row in old]
        assert some.missions[episode] == whole.missions[was]
    assert some.checkpoint_step.tolist() == whole.checkpoint_step[[0, 1]].tolist()
    assert subset(tmp_path / "all", tmp_path / "some", 2).complete


def test_too_many_episodes_are_refused(tmp_path):
    write_dataset(tmp_path / "all")
    with pytest.raises(UsageError, match="has 3 episodes"):
        subset(tmp_path / "all", tmp_path / "some", 4)
    assert not (tmp_path / "some").exists()


@pytest.mark.parametrize(
    ("solved", "wanted", "kept"),
    [
        ((True, True, True, False), 3, [True, True, False]),  # where too few have failed, more solved ones
        ((True, True), 1, [True]),
        ((False, False), 2, [False, False]),
        ((True, False), 1, [False]),
    ],
)
def test_there_are_as_many_episodes_as_were_asked_for(tmp_path, solved, wanted, kept):
    run = Run.create(tmp_path / "all", stage="collect", config=Config())
    writer = DatasetWriter(run, env_id="Toy", obs_shape=(1,), action_names=("a",))
    for number, success in enumerate(solved):
        writer.add_episode(
            np.full((2, 1), number, np.uint8), np.zeros(1, int), np.zeros(1), ["", ""],
            mission="", terminated=True, truncated=False, success=success, seed=number, checkpoint_step=0,
        )  # fmt: skip
    writer.close()
    run.finish(writer.outputs)
    subset(tmp_path / "all", tmp_path / "some", wanted)
    some = Dataset.open(tmp_path / "some")
    assert some.success.tolist() == kept
    taken = some.observations[some.first_row, 0].tolist()
    assert len(set(taken)) == wanted
    assert some.episodes.column("seed").to_pylist() == taken
