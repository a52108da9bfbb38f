import inspect

import numpy as np
import pytest
from streams import prepare

from experiments import study
from heteroscedastic import curation
from heteroscedastic.bind import in_section
from heteroscedastic.data import augment, chains
from heteroscedastic.data.streaming import ops
from heteroscedastic.runs import assembly, compiled, pipelines

MODULES = {"augment": augment, "ops": ops, "curation": curation}


def operations(module):
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    members = [getattr(module, name) for name in names]
    return [f for f in members if inspect.isfunction(f) and f.__module__ == module.__name__]


@pytest.mark.parametrize("module", MODULES)
def test_every_setting_of_every_function_has_a_rule_that_its_default_meets_or_is_none(module):
    for function in operations(MODULES[module]):
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                rule = chains._FUNCTION_RULES.get((function.__name__, name)) or chains._RULES[name]
                is_optional = parameter.default in (parameter.empty, None)
                assert is_optional or rule.is_met(parameter.default)


INVALID = [  # modules, a chain, and the error
    ("augment ops", "value_range(0, 0)", "high is 0.0, but must be above low, which is 0.0"),
    ("augment ops", "value_range(1, -1)", "high is -1.0, but must be above low, which is 1.0"),
    ("augment ops", "value_range(0, 1e-60)", "high is 0.0, but must be above low"),
    (
        "augment ops",
        "value_range(0, 1e999)",
        "high is inf, but must be a number from -1,000,000 to 1,000,000",
    ),
    ("augment ops", f"value_range(0, 1{'0' * 400})", "high is 10+, but must be a number"),
    ("augment ops", "value_range(False, True)", "low is False, but must be a number"),
    ("augment ops", "value_range('a', 1)", "low is 'a', but must be a number"),
    (
        "augment ops",
        "value_range(-1, 1)|value_range(0, 1)",
        "are in one chain, but a chain may contain value_range once",
    ),
    (
        "augment ops",
        "pad_crop(-1)",
        "size is -1, but must be an integer number of pixels from 0 to 16,384",
    ),
    ("augment ops", "pad_crop(1.5)", "size is 1.5, but must be an integer"),
    ("augment ops", "pad_crop(True)", "size is True, but must be an integer"),
    ("augment ops", "pad_crop(None)", "size is None, but must be an integer"),
    ("augment ops", "pad_crop((4, 4))", r"size is \(4, 4\), but must be an integer"),
    ("augment", "shift(1.5)", "size is 1.5, but must be an integer"),
    ("augment", "shift(-2)", "size is -2, but must be an integer"),
    ("augment ops", "resize(0)", "size is 0, but must be an integer number of pixels from 1"),
    (
        "augment ops",
        "resize(1000000000)",
        "size is 1000000000, but must be an integer .* to 16,384",
    ),
    ("augment ops", "random_crop(-8)", "size is -8"),
    ("augment ops", "sample_boxes(0)", "num_boxes is 0, but must be an integer >= 1"),
    (
        "augment ops",
        "with_mirrored()|with_mirrored",
        "are in one chain, but a chain may contain with_mirrored once",
    ),
    ("augment ops", "central_crop('8')", "size is '8'"),
    ("ops", "resize_small(0)", "size is 0"),
    (
        "ops",
        "resize(8, method='nearest')",
        "method is 'nearest', but must be one of 'bilinear', 'bicubic'",
    ),
    ("ops", "decode(dct_method='FAST')", "dct_method is 'FAST', but must be one of"),
    (
        "ops",
        "inception_crop(8, min_area=0.0)",
        "min_area is 0.0, but must be a fraction of the image above 0",
    ),
    ("ops", "inception_crop(8, max_area=1.5)", "max_area is 1.5, but must be a fraction"),
    (
        "ops",
        "inception_crop(8, min_area=0.9, max_area=0.1)",
        "max_area is 0.1.*, but must be at least min_area",
    ),
    ("ops", "inception_crop(8, max_area=0.01)", "max_area is 0.0.*, but must be at least min_area"),
    ("ops", "inception_crop(8, min_aspect=-1)", "min_aspect is -1, but must be an aspect ratio"),
    (
        "ops",
        "inception_crop(8, min_aspect=2.0)",
        "max_aspect is 1.3.*, but must be at least min_aspect",
    ),
    (
        "ops",
        "efficientnet_center_crop(8, padding=-9)",
        "padding is -9, but must be an integer number of pixels from 0",
    ),
    (
        "ops",
        "color_jitter(brightness=-0.1)",
        r"brightness is -0.1, but must be a number in \[0, 1\]",
    ),
    ("ops", "color_jitter(contrast=1.5)", "contrast is 1.5"),
    ("ops", "color_jitter(saturation=1e999)", "saturation is inf"),
    ("ops", "color_jitter(hue=True)", "hue is True"),
    (
        "curation",
        "confuse_pairs(pairs=5, rate=0.4)",
        r"pairs is 5, but must be disjoint pairs .* \(\(1, 7\), \(4, 9\)\)",
    ),
    (
        "curation",
        "confuse_pairs(pairs=(1, 7), rate=0.4)",
        r"pairs is \(1, 7\), but must be disjoint pairs",
    ),
    ("curation", "confuse_pairs(pairs=((1, 1),), rate=0.4)", "but must be disjoint pairs"),
    ("curation", "confuse_pairs(pairs=((0, 1), (1, 2)), rate=0.4)", "but must be disjoint pairs"),
    ("curation", "confuse_pairs(pairs=((0, 1.5),), rate=0.4)", "but must be disjoint pairs"),
    ("curation", "confuse_pairs(pairs=((-1, 0),), rate=0.4)", "but must be disjoint pairs"),
    ("curation", "confuse_pairs(pairs=((True, 2),), rate=0.4)", "but must be disjoint pairs"),
    (
        "curation",
        "confuse_random_pairs(num_pairs=1.5, rate=0.4)",
        "num_pairs is 1.5, but must be an integer >= 0",
    ),
    (
        "curation",
        "confuse_random_pairs(num_pairs=1, rate=1e999)",
        r"rate is inf, but must be a number in \[0, 1\]",
    ),
    (
        "curation",
        "confuse_random_pairs(num_pairs=1, rate='0.4')",
        "rate is '0.4', but must be a number",
    ),
    (
        "curation",
        "confuse_random_pairs(num_pairs=1, rate=True)",
        "rate is True, but must be a number",
    ),
    ("curation", "drop_and_add(drop_rate=-0.1, add_rate=0)", "drop_rate is -0.1"),
    ("curation", "drop_and_add(drop_rate=0, add_rate=1.1)", "add_rate is 1.1"),
    ("curation", "subset(0)", "num_examples is 0, but must be an integer >= 1"),
    ("curation", "subset(2.5)", "num_examples is 2.5, but must be an integer >= 1"),
    ("curation", "subset(num_examples=None)", "num_examples is None, but must be an integer"),
    ("curation", "subset(fraction=0)", "fraction is 0, but must be a number above 0, at most 1"),
    ("curation", "subset(fraction=1.5)", "fraction is 1.5, but must be"),
    ("curation", "subset()", "requires exactly one of num_examples and fraction"),
    ("curation", "subset(5, fraction=0.5)", "requires exactly one of num_examples and fraction"),
    ("curation", "exponential(ratio=0.5)", "ratio is 0.5, but must be a finite number >= 1"),
    ("curation", "exponential(ratio='100')", "ratio is '100', but must be a finite number"),
    ("curation", "step(ratio=1e999)", "ratio is inf, but must be a finite number"),
    ("curation", "symmetric(rate=1.5)", r"rate is 1.5, but must be a number in \[0, 1\]"),
    ("curation", "permute_labels(rate=-1)", r"rate is -1, but must be a number in \[0, 1\]"),
    ("curation", "rising_noise(highest=2)", r"highest is 2, but must be a number in \[0, 1\]"),
    (
        "curation",
        "transitions(moves=(3, 5), rate=0.4)",
        r"moves is \(3, 5\), but must be pairs of a class and .* \(\(3, 5\), \(5, 3\)\)",
    ),
    ("curation", "transitions(moves=((3, 3),), rate=0.4)", "moves is .* another one that"),
    ("curation", "transitions(moves=((3, 5), (3, 4)), rate=0.4)", "moves is .* once for each"),
    ("curation", "transitions(moves=((3, 5.0),), rate=0.4)", "moves is .* pairs of a class"),
]


@pytest.mark.parametrize(("modules", "text", "message"), INVALID)
def test_an_invalid_setting_is_an_error_of_one_line(modules, text, message):
    name = text.partition("(")[0]
    for module in modules.split():
        with pytest.raises(
            ValueError, match=rf"^config.data.train: {name}\([^\n]*{message}[^\n]*$"
        ):
            in_section("data.train", chains.parse, MODULES[module], text)


@pytest.mark.parametrize("text", [None, 5, ["flip_lr"], True])
def test_a_chain_that_is_not_a_string_is_an_error(text):
    with pytest.raises(
        ValueError, match=r"is not a chain; a chain is a string: 'pad_crop\(4\)\|flip_lr'"
    ):
        chains.parse(augment, text)


@pytest.mark.parametrize(
    ("section", "text", "message"),
    [
        (
            "data.train",
            "pad_crop(99)",
            "pad_crop(size=99) on images of 8 x 8 x 1: size is 99, but must be .* side, 8 pixels",
        ),
        (
            "data.train",
            "shift(8)|value_range(-1, 1)",
            "shift(size=8) on images of 8 x 8 x 1: size is 8, but must be",
        ),
        (
            "data.eval",
            "central_crop(9)",
            "central_crop(size=9) on images of 8 x 8 x 1: size is 9, but must be .* <= 8",
        ),
        (
            "data.train",
            "resize(6)|random_crop(7)",
            "random_crop(size=7) on images of 6 x 6 x 1: size is 7, but must be",
        ),
        (
            "data.eval",
            "shift(100)",
            "shift(size=100) on images of 8 x 8 x 1: size is 100, but must be",
        ),
        ("data.train", "shift(1.5)", "shift(size=1.5): size is 1.5, but must be an integer"),
        (
            "data.train",
            "sample_boxes(2)",
            "sample_boxes(num_boxes=2) on images of 8 x 8 x 1: .* requires boxes; set config.data",
        ),
        ("data.eval", "sample_boxes(2)", "sample_boxes(num_boxes=2) is for config.data.train al"),
        ("data.eval", "with_mirrored", "with_mirrored() is for config.data.train alone; remove"),
        (
            "curation",
            "subset(2)|subset(0)",
            "subset(num_examples=0): num_examples is 0, but must be",
        ),
        (
            "curation",
            "confuse_random_pairs(num_pairs=6, rate=0.1)",
            "confuse_random_pairs: num_pairs is 6, but 10",
        ),
        (
            "curation",
            "confuse_pairs(pairs=((0, 10),), rate=0.1)",
            r"confuse_pairs: pairs ((0, 10),) contain a class that is no whole number from 0 to",
        ),
        (
            "curation",
            "drop_and_add(drop_rate=0, add_rate=0)",
            "drop_and_add: drop_and_add requires lists of labels",
        ),
        (
            "curation",
            "exponential(ratio=1000)|symmetric(rate=0.2)",
            "exponential: ratio 1000 keeps none of the [0-9]+ examples of class [0-9]; choose",
        ),
    ],
)
def test_a_link_that_does_not_match_the_data_is_named_in_one_line(section, text, message):
    message = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=rf"^config.{section}: {message}[^\n]*$"):
        pipelines.build(study.config("digits_hom", {section: text}))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    pytest.importorskip("tensorflow_datasets")
    directory = tmp_path_factory.mktemp("tfds")
    prepare(directory, "same", size=(20, 24))
    prepare(directory, "pets")
    return str(directory)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "same",
            "pad_crop(20)",
            r"pad_crop\(size=20\): images are 24 x 20 pixels, but both sides must .* least 21",
        ),
        (
            "same",
            "central_crop(21)",
            r"central_crop\(size=21\): images are 24 x 20 pixels, but both sides must .* least 21",
        ),
        (
            "same",
            "random_crop(25)",
            r"random_crop\(size=25\): images are 24 x 20 pixels, but both sides must .* least 25",
        ),
        (
            "pets",
            "resize(8)|pad_crop(8)",
            r"pad_crop\(size=8\): images are 8 x 8 pixels, but both sides must .* least 9",
        ),
        (
            "same",
            "value_range(-1, 1)|resize(8)",
            r"resize\(size=8\): .* must come before value_range",
        ),
        (
            "same",
            "value_range(-1, 1)|color_jitter",
            r"color_jitter\(\): .* must come before value_range",
        ),
    ],
)
@pytest.mark.parametrize("section", ["train", "eval"])
def test_a_chain_that_does_not_match_the_images_of_a_stream_is_an_error_before_reading(
    data_dir, name, text, message, section
):
    config = study.config("digits_hom", {"curation": "", "head.num_classes": 3})
    valid_chain = "resize(8)|value_range(-1, 1)"
    config["data"] = dict(
        pipeline="streaming",
        name=name,
        validation_fraction=0.0,
        reader_shards=4,
        train=valid_chain,
        eval=valid_chain,
    )
    config["data"][section] = text
    config["training"]["batch_size"], config["validation"], config["evals"] = (
        8,
        None,
        {"test": {"split": "test"}},
    )
    with pytest.raises(ValueError, match=rf"^config.data.{section}: {message}[^\n]*$"):
        compiled.check_shapes(assembly.build(config, data_dir))


def test_images_of_a_stream_that_are_too_small_for_a_padded_crop_are_named(data_dir):
    from streams import stream

    with pytest.raises(
        ValueError,
        match=r"the chain fails on the image of id \d+ of train: .*requires an image larger",
    ):
        list(
            stream(data_dir, "pets", training="pad_crop(88)|resize(8)").training_feeds(
                0, 0, np.arange(8)
            )
        )
