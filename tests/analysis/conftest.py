import pytest

from experiments import study
from heteroscedastic.training import loop

_SETTINGS = {"training.num_epochs": 8.0, "head.temperature": 2.0, "training.batch_size": 50}


@pytest.fixture(scope="session")
def with_noise(tmp_path_factory):
    """A finished run on digits with planted noise, of a low-rank head."""
    path = tmp_path_factory.mktemp("runs") / "het_full"
    loop.train(study.config("digits_het_full", _SETTINGS | {"predictive.num_samples": 32}), str(path))
    return path


@pytest.fixture(scope="session")
def without_noise(tmp_path_factory):
    """The same data and the plain softmax, trained for less long."""
    path = tmp_path_factory.mktemp("runs") / "hom"
    loop.train(study.config("digits_hom", _SETTINGS | {"training.num_epochs": 2.0}), str(path))
    return path
