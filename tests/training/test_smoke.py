import pytest

from experiments import study
from heteroscedastic.training import loop, smoke


@pytest.mark.parametrize(("num_classes", "left"), [(10, None), (64, None), (200, 64)])
def test_of_many_classes_the_data_keeps_as_many_as_the_head(num_classes, left):
    config = smoke.smoke(study.config("digits_hom", {"head.num_classes": num_classes}))
    assert config["head"]["num_classes"] == min(num_classes, 64)
    assert config["data"].get("max_classes") == left


def test_digits_stand_in_for_data_that_is_not_there(tmp_path):
    config = smoke.smoke(study.config("cifar10_n_het_full", {"backbone": dict(name="ResNet56")}), str(tmp_path))
    assert config["data"]["name"] == "digits"
    assert config["backbone"]["name"] == "ResNet8"
    assert loop.train(config, str(tmp_path / "run"), str(tmp_path))["step"] == 2


def test_pairs_of_digits_stand_in_where_an_example_has_several_labels(tmp_path):
    config = study.config("digits_multilabel_hom", {"data.name": "openimages"})
    assert loop.train(smoke.smoke(config), str(tmp_path / "run"))["step"] == 2


def test_splits_that_the_stand_in_lacks_become_those_it_has(tmp_path):
    config = study.config("digits_hom", {"data.name": "imagenet", "data.validation_fraction": 0.0})
    config["evals"]["real"] = dict(split="real")
    shrunk = smoke.smoke(config)
    assert shrunk["evals"]["real"] == dict(split="test")
    assert loop.train(shrunk, str(tmp_path / "run"))["step"] == 2
