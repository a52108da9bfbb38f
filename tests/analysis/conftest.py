"""Small finished runs for the tests of this folder. A test that changes a run copies it first."""

import pytest
from small_runs import trained_once

from experiments import study
from heteroscedastic.runs import loop

_SETTINGS = {
    "training.num_epochs": 2.0,
    "training.checkpoint_epochs": 1.0,
    "training.batch_size": 50,
}


@pytest.fixture(scope="session")
def _trained(tmp_path_factory):
    """Trains a config in a directory of this name."""

    def trained(name, config, **settings):
        made = study.config(config, _SETTINGS | settings)
        return trained_once(tmp_path_factory, name, lambda path: loop.train(made, str(path)))

    return trained


@pytest.fixture(scope="session")
def without_noise(_trained):
    """A plain softmax on digits with planted label noise."""
    return _trained("digits/hom/seed_0", "digits_hom")


@pytest.fixture(scope="session")
def with_noise(_trained):
    """A low-rank head that learns its temperature, on the same data for longer."""
    settings = {
        "training.num_epochs": 8.0,
        "training.checkpoint_epochs": 4.0,
        "head.temperature": (1.0, 4.0),
        "predictive.num_samples": 32,
    }
    return _trained("digits/het_full/seed_0", "digits_het_full", **settings)


@pytest.fixture(scope="session")
def digit_runs(_trained, without_noise, with_noise):
    """Two seeds of the softmax, and the low-rank head."""
    return [
        without_noise,
        _trained("digits/hom/seed_1", "digits_hom", seed=1),
        with_noise,
    ]


@pytest.fixture(scope="session")
def several_labels_run(_trained):
    """A run whose examples have lists of labels."""
    return _trained("several/run", "digits_multilabel_het_pe", **{"backbone.widths": (4, 8)})
