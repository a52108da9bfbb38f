"""The order of a stream against a plain reader of records, in numbers alone."""

import numpy as np
import pytest

from heteroscedastic.data.streaming import reader_shards

LENGTHS = (7, 1, 30, 12, 50)
IDS = {
    "all": np.arange(100),
    "a slice": np.arange(13, 91),
    "a few": np.flatnonzero(np.random.default_rng(0).random(100) < 0.2),
    "fewer than shards": np.array([3, 50, 51]),
    "one": np.array([99]),
}


def read(plan, ids, window):
    """The ids that a reader of files sees, in order."""
    bounds = np.cumsum([0, *LENGTHS])
    sequence = []
    for file, skip, take, first in zip(plan.file, plan.skip, plan.take, plan.first):
        records = np.arange(bounds[file], bounds[file + 1])[skip : skip + take]
        assert records[0] == first
        assert len(records) == take
        sequence += [i for i in records if i in ids]
    starts = range(0, len(sequence), window)
    windows = [sequence[start : start + window] for start in starts]
    orders = [plan.window_order[start : start + window] for start in starts]
    return [records[i] for records, order in zip(windows, orders) for i in order][plan.drop :]


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("shuffles", [True, False])
def test_a_plan_reads_the_ids_that_it_states_and_a_later_start_reads_the_rest(ids, shuffles):
    for number, shard in enumerate(reader_shards.shards(ids, 4)):

        def plan(start, number=number, shard=shard):
            generator = reader_shards.generator(0, 1, number) if shuffles else None
            return reader_shards.read_plan(shard, LENGTHS, start, 6, generator)

        full = plan(0)
        assert sorted(full.ids) == sorted(shard)
        if not shuffles:
            np.testing.assert_array_equal(full.ids, shard)
        for start in range(len(shard) + 2):
            rest = plan(start)
            np.testing.assert_array_equal(rest.ids, full.ids[start:])
            assert read(rest, set(shard.tolist()), 6) == rest.ids.tolist()
            assert rest.drop < 6


def test_shards_are_contiguous_and_their_lengths_differ_by_at_most_one():
    for ids in IDS.values():
        shards = reader_shards.shards(ids, 4)
        np.testing.assert_array_equal(np.concatenate(shards), ids)
        assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_each_epoch_seed_and_shard_has_its_own_order():
    orders = {
        tuple(
            reader_shards.read_plan(
                np.arange(40), (40,), 0, 40, reader_shards.generator(seed, epoch, shard)
            ).ids
        )
        for seed in (0, 1)
        for epoch in (0, 1)
        for shard in (0, 1)
    }
    assert len(orders) == 8


def test_positions_within_a_window_and_the_order_of_files_are_uniform():
    shard, lengths = np.arange(120), (40, 40, 40)
    orders = np.array(
        [
            reader_shards.read_plan(shard, lengths, 0, 40, reader_shards.generator(0, e, 0)).ids
            for e in range(600)
        ]
    )
    first_file = orders[:, :40].min(axis=1) // 40
    np.testing.assert_allclose(np.bincount(first_file) / 600, 1 / 3, atol=0.06)
    positions = np.argsort(orders, axis=1) % 40  # of each example in its window
    # The mean of 600 uniform positions in 0..39 has standard deviation 0.47.
    assert np.abs(positions.mean(axis=0) - 19.5).max() < 2.2
    correlations = [np.corrcoef(shard % 40, p)[0, 1] for p in positions]
    assert abs(np.mean(correlations)) < 0.02
