"""Small finished runs that the tests of this folder read."""

import pytest

from experiments import study
from heteroscedastic.training import loop


@pytest.fixture(scope="session")
def digit_runs(tmp_path_factory):
    """Two seeds of a plain softmax and one run of a low-rank head, an epoch each."""
    out = tmp_path_factory.mktemp("digits")
    made = []
    for name, seed in (("hom", 0), ("hom", 1), ("het_full", 0)):
        settings = {"training.num_epochs": 1.0, "training.checkpoint_epochs": 0.5, "seed": seed}
        loop.train(study.config(f"digits_{name}", settings), str(out / name / f"seed_{seed}"))
        made.append(out / name / f"seed_{seed}")
    return made


@pytest.fixture(scope="session")
def several_labels_run(tmp_path_factory):
    """A run whose examples have lists of labels."""
    path = tmp_path_factory.mktemp("several") / "run"
    loop.train(study.config("digits_multilabel_het_pe", {"training.num_epochs": 1.0}), str(path))
    return path


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
