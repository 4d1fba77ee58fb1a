"""Which of many are picked: questions, shipped data and reports depend on it to the place."""

import numpy as np

from bkrl.core.spacing import beginnings, end_to_end


def test_end_to_end_is_what_questions_were_made_with():
    assert end_to_end(10, 4).tolist() == [0, 3, 6, 9]
    assert end_to_end(601, 4).tolist() == [0, 200, 400, 600]
    assert end_to_end(3, 4).tolist() == [0, 1, 2]
    assert end_to_end(1, 4).tolist() == [0]
    assert end_to_end(0, 4).tolist() == []


def test_beginnings_are_what_samples_were_made_with():
    assert beginnings(10, 4).tolist() == [0, 2, 5, 7]
    assert beginnings(3, 4).tolist() == [0, 1, 2]
    assert beginnings(0, 4).tolist() == []
    assert beginnings(5, 0).tolist() == []


def test_no_place_comes_twice():
    for total in range(1, 60):
        for count in range(1, 70):
            for places in (end_to_end(total, count), beginnings(total, count)):
                assert len(places) == min(total, count)
                assert (np.diff(places) > 0).all()
                assert 0 == places[0] <= places[-1] < total
