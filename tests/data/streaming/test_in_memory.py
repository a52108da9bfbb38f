import numpy as np
import pytest

from heteroscedastic.batch import Batch
from heteroscedastic.data.streaming import in_memory

IDS = np.array([2, 3, 5, 7, 11], np.int32)


def feed(ids, weights):
    ids = np.array(ids, np.int32)
    inputs = np.broadcast_to(ids[:, None, None, None], (len(ids), 2, 2, 1)).astype(np.uint8)
    return Batch(inputs, 10 * ids, np.array(weights, np.float32), ids, {})


def test_feeds_in_any_order_become_a_split_in_the_order_of_ids():
    split = in_memory.split_from_feeds(
        [feed([7, 2, 11], [1, 1, 1]), feed([5, 3, -1], [1, 1, 0])], IDS
    )
    np.testing.assert_array_equal(split.ids, IDS)
    np.testing.assert_array_equal(split.labels, 10 * IDS)
    np.testing.assert_array_equal(split.inputs[:, 1, 0, 0], IDS)


def test_absent_examples_are_not_in_the_split():
    split = in_memory.split_from_feeds(
        [feed([7, 2, 11], [1, 0, 1]), feed([5, 3, -1], [1, 1, 0])], IDS
    )
    np.testing.assert_array_equal(split.ids, [3, 5, 7, 11])
    np.testing.assert_array_equal(split.labels, [30, 50, 70, 110])
    np.testing.assert_array_equal(split.inputs[:, 0, 1, 0], split.ids)


def test_a_split_above_the_limit_on_memory_is_an_error_before_it_is_read():
    image = np.zeros((224, 224, 3), np.uint8)
    in_memory.check_size("imagenet2012: validation", 50_000, image)
    with pytest.raises(
        ValueError, match=r"1,231,167 images of 224 x 224 x 3 need 173 GiB, but at most 32 GiB"
    ):
        in_memory.check_size("imagenet2012: train", 1_231_167, image)
