"""What a config stands for, before anything runs."""

import pytest
from small_runs import small

from heteroscedastic.runs import assembly


def fingerprint(seed, data_seed=None):
    config = small(seed=seed)
    if data_seed is not None:
        config["data"]["seed"] = data_seed
    return assembly.build(config).pipeline.description["fingerprint"]


def test_runs_of_one_data_seed_share_their_noise_and_what_is_held_out():
    alone = fingerprint(0)
    assert fingerprint(1) != alone  # of the digits both follow from the seed
    assert fingerprint(1, data_seed=0) == fingerprint(0, data_seed=0) == alone
    with pytest.raises(ValueError, match=r"config.data.seed is 0.5"):
        fingerprint(0, data_seed=0.5)
