"""Random streams by name: the same in every process and version, and apart from each other."""

from bkrl.core.seeds import derive_seed, generator


def test_a_name_gives_the_same_numbers_for_ever():
    assert derive_seed(7, "evaluate", 3) == 1360279018
    assert derive_seed(0) == 804681139
    assert derive_seed(2**63, "evaluate") == 1655074450
    assert generator(7, "evaluate").integers(1000, size=3).tolist() == [758, 817, 789]


def test_other_names_give_other_streams():
    seeds = [derive_seed(1, "a"), derive_seed(2, "a"), derive_seed(1, "b"), derive_seed(1, "a", "b"), derive_seed(1)]
    seeds += [derive_seed(1, 3), derive_seed(1, "3"), derive_seed(1, "ab"), derive_seed(2**63, "a"), derive_seed(-1)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
