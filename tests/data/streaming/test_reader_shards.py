"""The order of a stream against a plain reader of records, in numbers alone."""

import numpy as np
import pytest

from heteroscedastic.data.streaming import reader_shards

LENGTHS = (7, 1, 30, 12, 50)
CUTS = {
    "all": np.arange(100),
    "a slice": np.arange(13, 91),
    "a few": np.flatnonzero(np.random.default_rng(0).random(100) < 0.2),
    "fewer than lanes": np.array([3, 50, 51]),
    "one": np.array([99]),
}


def read(reading, kept, window):
    """The ids that a reader of files sees, in order."""
    bounds = np.cumsum([0, *LENGTHS])
    seen = []
    for file, skip, take, first in zip(reading.file, reading.skip, reading.take, reading.first):
        records = np.arange(bounds[file], bounds[file + 1])[skip : skip + take]
        assert records[0] == first
        assert len(records) == take
        seen += [i for i in records if i in kept]
    windows = [seen[i : i + window] for i in range(0, len(seen), window)]
    places = [reading.shuffled[i : i + window] for i in range(0, len(seen), window)]
    return [of[i] for of, at in zip(windows, places) for i in at][reading.drop :]


@pytest.mark.parametrize("kept", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("shuffles", [True, False])
def test_what_is_read_are_the_ids_that_were_told_and_a_later_start_is_the_rest(kept, shuffles):
    for number, lane in enumerate(reader_shards.cut(kept, 4)):

        def told(start, number=number, lane=lane):
            draws = reader_shards.draws(0, 1, number) if shuffles else None
            return reader_shards.reading(lane, LENGTHS, start, 6, draws)

        whole = told(0)
        assert sorted(whole.ids) == sorted(lane)
        if not shuffles:
            np.testing.assert_array_equal(whole.ids, lane)
        for start in range(len(lane) + 2):
            rest = told(start)
            np.testing.assert_array_equal(rest.ids, whole.ids[start:])
            assert read(rest, set(lane.tolist()), 6) == rest.ids.tolist()
            assert rest.drop < 6


def test_lanes_are_contiguous_and_of_one_length_but_for_an_example():
    for kept in CUTS.values():
        cut = reader_shards.cut(kept, 4)
        np.testing.assert_array_equal(np.concatenate(cut), kept)
        assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_epochs_seeds_and_lanes_have_orders_of_their_own():
    orders = {
        tuple(
            reader_shards.reading(
                np.arange(40), (40,), 0, 40, reader_shards.draws(seed, epoch, lane)
            ).ids
        )
        for seed in (0, 1)
        for epoch in (0, 1)
        for lane in (0, 1)
    }
    assert len(orders) == 8


def test_within_windows_every_place_is_as_likely_and_files_come_in_any_order():
    lane, lengths = np.arange(120), (40, 40, 40)
    orders = np.array(
        [
            reader_shards.reading(lane, lengths, 0, 40, reader_shards.draws(0, e, 0)).ids
            for e in range(600)
        ]
    )
    first_file = orders[:, :40].min(axis=1) // 40
    np.testing.assert_allclose(np.bincount(first_file) / 600, 1 / 3, atol=0.06)
    places = np.argsort(orders, axis=1) % 40  # of each example in its window
    # The mean of 600 uniform places on 0..39 has standard deviation 0.47.
    assert np.abs(places.mean(axis=0) - 19.5).max() < 2.2
    correlations = [np.corrcoef(lane % 40, p)[0, 1] for p in places]
    assert abs(np.mean(correlations)) < 0.02
