"""Every config passes a check of its shapes at full size; .ci/run trains two steps of each."""

import os
from pathlib import Path

import pytest

from experiments import study
from heteroscedastic.data import store
from heteroscedastic.training import assembly

CONFIGS = sorted(p.stem for p in (Path(__file__).parents[1] / "configs").glob("*.py"))
PACK = os.environ.get("TFDS_DATA_DIR")
PARAMETERS = {  # by hand: MLP 64-128-128, ConvNet 16-32-64 or ResNet-18, then (D+1)K for loc, d and so on
    "cifar10_n_hom": 11_168_832 + 5_130,
    "cifar10_n_het_diag": 11_168_832 + 2 * 5_130,
    "cifar10_n_het_full": 11_168_832 + 2 * 5_130 + 513 * 10 * 6,
    "cifar10_n_het_pe": 11_168_832 + 3 * 5_130 + 60,
    "digits_hom": 24_832 + 1_290,
    "digits_het_diag": 24_832 + 2 * 1_290,
    "digits_het_diag_taylor": 24_832 + 2 * 1_290,
    "digits_het_full": 24_832 + 2 * 1_290 + 129 * 10 * 6,
    "digits_het_pe": 24_832 + 3 * 1_290 + 60,
    "digits_het_xl": 24_832 + 1_290 + 2 * 129 * 128 + 128 * 6 + 1,
    "digits_multilabel_hom": 23_408 + 650,
    "digits_multilabel_het_diag": 23_408 + 2 * 650,
    "digits_multilabel_het_pe": 23_408 + 3 * 650 + 60,
    "tiny_imagenet_hom": 11_168_832 + 102_600,
    "tiny_imagenet_het_full": 11_168_832 + 2 * 102_600 + 513 * 200 * 15,
    "tiny_imagenet_het_pe": 11_168_832 + 3 * 102_600 + 200 * 15,
}


def test_every_config_has_its_count():
    assert set(PARAMETERS) == set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_has_sound_shapes_at_full_size(name):
    config = study.config(name, {})
    if not store.is_there(config["data"]["name"], PACK):
        pytest.skip(f"needs {config['data']['name']} in TFDS_DATA_DIR")
    config["data"]["max_examples"] = 1000
    state = assembly.check_shapes(assembly.build(config, PACK))
    assert assembly.num_parameters(state) == PARAMETERS[name]


def words(name):
    """The sections in which two configs of one data set may differ, by a word of their names."""
    return {
        "hom": {"head", "predictive"},
        "het_diag": {"head", "predictive"},
        "het_diag_taylor": {"head", "predictive"},
        "het_full": {"head", "predictive"},
        "het_pe": {"head", "predictive"},
        "het_xl": {"head", "predictive"},
    }[name]


@pytest.mark.parametrize("prefix", ["cifar10_n_", "digits_multilabel_", "digits_", "tiny_imagenet_"])
def test_configs_of_one_data_set_differ_only_where_their_names_say(prefix):
    others = [p for p in ("digits_multilabel_",) if p != prefix]
    names = [n for n in CONFIGS if n.startswith(prefix) and not any(n.startswith(o) for o in others)]
    first = study.config(names[0], {})
    assert len(names) > 1
    for name in names[1:]:
        other = study.config(name, {})
        differing = {section for section in first | other if first.get(section) != other.get(section)}
        assert differing <= words(names[0].removeprefix(prefix)) | words(name.removeprefix(prefix))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_says_what_it_is_for(name):
    text = (Path(__file__).parents[1] / "configs" / f"{name}.py").read_text()
    for heading in ("Question:", "Command:", "Cost:", "Expected:"):
        assert heading in text
    assert f"--config=configs/{name}.py --workdir=runs/{name}" in text
