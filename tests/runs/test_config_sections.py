"""Sections of a config: defaults, and the change of a name."""

import pytest
from small_runs import small

from experiments import study
from heteroscedastic import bind
from heteroscedastic.models import backbones, heads
from heteroscedastic.runs import schema, sections


def test_a_config_without_its_defaults_is_checked_as_the_config_with_them():
    config = small()
    short = {name: value for name, value in config.items() if name != "warm_start"}
    for section in ("backbone", "head", "schedule"):
        defaults = bind.defaults(sections.declarations(config)[(section,)])
        short[section] = {
            k: v for k, v in config[section].items() if k not in defaults or v != defaults[k]
        }
    short["data"] = {k: v for k, v in config["data"].items() if v is not None and k != "label"}
    assert len(short["data"]) < len(config["data"])
    assert schema.checked(short) == schema.checked(config) == config
    assert schema.checked({**short, "warm_start": None}) == config


def test_settings_at_the_default_of_a_part_go_with_its_name():
    given = study.config("tiny_imagenet_hom", {"backbone.name": "ResNet20"})["backbone"]
    assert given == {"name": "ResNet20", "stem": "cifar"}  # which ResNet18 does not have by default
    head = study.config("digits_het_full", {"head.name": "ParameterEfficient"})["head"]
    assert head == {"name": "ParameterEfficient", "num_classes": 10, "num_factors": 6}


def test_settings_that_a_part_lacks_go_with_the_name_of_the_former_one():
    head = study.config("digits_het_full", {"head.name": "Deterministic"})["head"]
    assert head == {"name": "Deterministic", "num_classes": 10}
    given = study.config("digits_het_full", {"head.name": "Diagonal", "head.num_factors": 6})
    with pytest.raises(ValueError, match=r"heads\.Diagonal has no setting 'num_factors'"):
        bind.bind(heads, **given["head"])


def test_an_overridden_setting_holds_also_where_it_is_the_default_of_the_former_part():
    settings = {"backbone.name": "ResNet20", "backbone.stem": "imagenet"}
    assert study.config("tiny_imagenet_hom", settings)["backbone"]["stem"] == "imagenet"


def test_without_another_name_nothing_goes():
    for name in ("tiny_imagenet_hom", "digits_het_full"):
        config = study.read(name).to_dict()
        assert study.config(name, {"seed": 0}) == config
        assert sections.renamed(config, set(), config) == config


def test_a_section_that_is_overridden_altogether_is_as_it_is_given():
    given = dict(name="MLP", widths=(128, 128))
    assert study.config("tiny_imagenet_hom", {"backbone": given})["backbone"] == given


def test_a_setting_of_the_stream_is_no_setting_of_the_resident_pipeline():
    config = small()
    config["data"]["window"] = 3
    with pytest.raises(ValueError, match=r"config\.data\.window is a setting of the streaming"):
        schema.checked(config)


def test_every_backbone_family_member_takes_the_settings_of_the_smallest():
    for name in backbones.__all__:
        smallest = bind.lookup(backbones, backbones.smallest(name))
        member = bind.lookup(backbones, name)
        assert set(bind.declared_settings(smallest)) == set(bind.declared_settings(member))
