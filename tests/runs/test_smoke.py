import os
import re
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import mostly_extended
from subprocesses import MAIN, run_without

from experiments import study
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.storage import sample, store
from heteroscedastic.runs import assembly, compiled, loop, pipelines, smoke


@pytest.mark.parametrize(("num_classes", "left"), [(10, None), (64, None), (200, 64)])
def test_of_many_classes_the_data_keeps_as_many_as_the_head(tmp_path, num_classes, left):
    digits = store.load("digits")
    names = tuple(f"class {i}" for i in range(num_classes))
    store.write(tmp_path / "mine.npz", Dataset(digits.splits, names))
    given = study.config("digits_hom", {"data.name": "mine", "head.num_classes": num_classes})
    config, _ = smoke.smoke(given, str(tmp_path))
    assert config["head"]["num_classes"] == min(num_classes, 64)
    assert config["data"].get("max_classes") == left


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"predictive.num_samples": 1000},
            r"config\.predictive: num_samples is 1000, .* use 1024",
        ),
        (
            {"predictive.num_samples": 32.0},
            r"config\.predictive: .*num_samples is 32\.0; it must be a whole number",
        ),
        ({"head.num_factors": -40}, r"config\.head: num_factors is -40"),
        ({"training.batch_size": 0}, r"config\.training\.batch_size is 0"),
        (
            {"training.num_epochs": float("inf")},
            r"config\.training\.num_epochs is inf; it must be a finite number > 0",
        ),
        ({"training.profile_steps": (5, 3)}, r"config\.training\.profile_steps is \(5, 3\)"),
        ({"data.train": "pad_crop(2)|nothing"}, r"config\.data\.train: augment has no 'nothing'"),
        ({"curation": "confuse(3)"}, r"config\.curation: curation has no 'confuse'"),
        ({"smoothing": dict(name="uniform", rate=1.5)}, r"config\.smoothing: rate is 1\.5"),
        ({"schedule.warmup_epochs": float("nan")}, r"config\.schedule: .*warmup_epochs is nan"),
        ({"optimizer.l2": -1.0}, r"config\.optimizer: l2 is -1\.0"),
        (
            {"warm_start": dict(weights="a.npz", checkpoint="first")},
            r"config\.warm_start\.checkpoint is 'first'; choose one of last, best",
        ),
    ],
)
@pytest.mark.parametrize("name", ["digits", "absent"])
def test_what_smoke_would_shrink_is_checked_before(name, overrides, message):
    config = study.config("digits_het_full", {"data.name": name})
    for dotted, value in overrides.items():
        section, _, setting = dotted.partition(".")
        config[section] = {**config[section], setting: value} if setting else value
    with pytest.raises(ValueError, match=message) as caught:
        smoke.smoke(config)
    assert "\n" not in str(caught.value)


def test_with_its_data_a_config_is_checked_against_it_before_it_is_shrunk():
    with pytest.raises(
        ValueError, match=r"config\.head\.num_classes is 100, but digits has 10 classes"
    ):
        smoke.smoke(study.config("digits_hom", {"head.num_classes": 100}))


def test_digits_stand_in_for_data_that_is_not_there(tmp_path):
    given = study.config("cifar10_n_het_full", {"backbone": dict(name="ResNet56")})
    config, data_dir = smoke.smoke(given, str(tmp_path))
    assert data_dir == str(tmp_path)
    assert config["data"]["name"] == "digits"
    assert config["backbone"]["name"] == "ResNet8"
    compiled.check_shapes(
        assembly.build(config, data_dir)
    )  # what is trained is the next one, which compiles less


def test_crops_and_shifts_of_larger_images_suit_the_digits_that_stand_in():
    chain = "pad_crop(8)|shift(size=12)|pad_crop(2)|flip_lr|value_range(-1, 1)"
    given = study.config("digits_hom", {"data.name": "absent", "data.train": chain})
    config, data_dir = smoke.smoke(given)
    expected = "pad_crop(4)|shift(size=4)|pad_crop(2)|flip_lr|value_range(-1, 1)"
    assert config["data"]["train"] == expected
    assert pipelines.build(config, data_dir).class_names


def test_crops_that_digits_are_too_small_for_are_of_resized_ones_and_objects_are_not_masked():
    chain = "mask_others|random_crop(28)|flip_lr|value_range(-1, 1)"
    evaluated = "central_crop(size=28)|value_range(-1, 1)"
    given = study.config(
        "digits_hom", {"data.name": "absent", "data.train": chain, "data.eval": evaluated}
    )
    given["data"] |= {"extras": ("boxes",)}
    config, data_dir = smoke.smoke(given)
    assert config["data"]["train"] == "resize(28)|random_crop(28)|flip_lr|value_range(-1, 1)"
    assert config["data"]["eval"] == f"resize(28)|{evaluated}"
    assert assembly.build(config, data_dir)


def test_a_curation_that_so_few_examples_do_not_suit_is_left_out(capsys):
    for name, curation in (
        ("digits", "exponential(ratio=100)"),
        ("absent", "confuse_pairs(pairs=((13, 58),), rate=0.4)"),
    ):
        given = study.config("digits_hom", {"data.name": name})
        given["curation"] = curation
        if name == "absent":
            given["head"]["num_classes"] = 64
        config, data_dir = smoke.smoke(given)
        assert config["curation"] == ""
        assert "too small for the curation, which it leaves out: config.curation: " in (
            capsys.readouterr().out
        )
        assert assembly.build(config, data_dir)
        given["optimizer"]["fixed"] = ("backbone",)
        assert smoke.smoke(given)[0]["curation"] == ""
    given = study.config("digits_hom", {})
    given["curation"] = "symmetric(rate=0.4)"
    assert smoke.smoke(given)[0]["curation"] == "symmetric(rate=0.4)"
    given["curation"] = (
        "confuse_pairs(pairs=((13, 58),), rate=0.4)"  # of classes that are not there
    )
    with pytest.raises(ValueError, match=r"config\.curation: .*no whole number from 0 to 9"):
        smoke.smoke(given)


def test_scores_of_a_target_become_those_of_training_steps_after_a_warm_up():
    sections = {
        "selection": dict(name="largest", fraction=0.3),
        "score": dict(name="entropy"),
        "prioritization": dict(scores="target", target="runs/target", warmup_epochs=0),
    }
    given = study.config("digits_hom", {}) | sections
    config, data_dir = smoke.smoke(given)
    assert config["prioritization"]["warmup_epochs"] == 1
    assert assembly.build(config, data_dir)


def test_a_residual_network_of_any_depth_keeps_its_architecture():
    backbone = dict(name="ResNet", stage_sizes=(1,), stem_width=4, width=4, stem="cifar")
    config, _ = smoke.smoke(study.config("digits_hom", {"backbone": backbone}))
    assert config["backbone"].items() >= backbone.items()


def test_fixed_blocks_that_the_smallest_backbone_lacks_are_left_out(capsys):
    fixed = ("backbone/stem", "backbone/stage4_block3", "normalization")
    settings = {"data.name": "absent", "backbone": dict(name="ResNet50"), "optimizer.fixed": fixed}
    config, _ = smoke.smoke(study.config("cifar10_n_hom", settings))
    assert config["backbone"]["name"] == "ResNet10"
    assert config["optimizer"]["fixed"] == ("backbone/stem", "normalization")
    assert (
        "fixed 'backbone/stage4_block3' is not in the smallest backbone" in capsys.readouterr().out
    )
    compiled.check_shapes(assembly.build(config))


def test_the_smallest_backbone_has_its_own_defaults():
    settings = {"data.name": "absent", "backbone": dict(name="InceptionResNetV2", remat=True)}
    config, _ = smoke.smoke(study.config("digits_hom", settings))
    expected = dict(name="InceptionResNetV2Small", padding="SAME", remat=True)
    assert config["backbone"].items() >= expected.items()


def test_pairs_of_digits_stand_in_where_an_example_has_several_labels(tmp_path):
    config = study.config("digits_multilabel_hom", {"data.name": "openimages"})
    assert loop.train(smoke.smoke(config)[0], str(tmp_path / "run"))["step"] == 2


def test_mosaics_of_digits_stand_in_where_the_task_asks_for_boxes():
    of_coco = {"data.name": "absent", "head.num_classes": 81}
    of_coco |= {"optimizer.fixed": ("normalization",), "backbone.start": "identity"}
    small, _ = smoke.smoke(study.config("mosaic_frcnn_hom", of_coco))
    assert small["data"]["name"] == "digits_mosaics"
    assert small["data"]["extras"] == ("boxes",)
    assert small["head"]["num_classes"] == 11
    assembly.build(small)  # though no warm start is left


def test_splits_that_the_stand_in_lacks_become_those_it_has():
    config = study.config("digits_hom", {"data.name": "imagenet", "data.validation_fraction": 0.0})
    config["evals"]["real"] = dict(split="real")
    shrunk, _ = smoke.smoke(config)
    assert shrunk["evals"]["real"]["split"] == "test"
    compiled.check_shapes(assembly.build(shrunk))


def test_spelled_numbers_stand_in_for_sentences_of_which_a_split_is_not_there(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    config, line = study.config("multi30k_hom", {}), "ein Mann und ein Hund .\n"
    for split in ("train", "val", "test2016"):
        for language in ("de", "en"):
            (tmp_path / "text" / f"multi30k.{split}.{language}").write_text(9 * line)
        shrunk, data_dir = smoke.smoke(config, str(tmp_path))
        printed = capsys.readouterr().out
        stands_in = split != "test2016"
        assert shrunk["data"]["name"] == ("numbers" if stands_in else "multi30k")
        assert (
            f"not all sentence pairs 'multi30k' are in {tmp_path}; numbers spelled in German and"
            " English stand in for them." in printed
        ) == stands_in
        assert assembly.build(shrunk, data_dir).pipeline.sizes["test"]


@pytest.mark.parametrize(
    ("package", "flags", "message"),
    [
        ("sacremoses", (), r"error: text requires sacremoses \("),
        pytest.param(
            *("subword_nmt", (), r"error: text requires subword-nmt \("),
            marks=pytest.mark.extended,
        ),
        pytest.param(
            *("sacrebleu", ("--config.evals.test.beam_size=1",), r"error: BLEU requires sacrebleu"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_package_of_the_extra_text_that_is_not_installed_is_an_error_of_one_line(
    tmp_path, package, flags, message
):
    words = ["--config=configs/multi30k_hom.py", "--smoke", *flags]
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TFDS_DATA_DIR": ""}
    done = run_without({package}, MAIN, *words, f"--workdir={tmp_path / 'run'}", env=env)
    (line,) = (x for x in done.stderr.splitlines() if x.startswith("error: "))
    assert re.match(message, line)
    assert 'pip install -e ".[text]"' in line
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


needs_library = pytest.mark.skipif(
    not find_spec("tensorflow_datasets"), reason="needs TensorFlow Datasets"
)
IMAGENET = dict(
    pipeline="streaming",
    name="imagenet2012",
    label="label",
    splits=dict(
        train="train[50000:]",
        valid="train[:50000]",
        test="validation",
        real=dict(name="imagenet2012_real", split="validation", label="real_label"),
        v2=dict(name="imagenet_v2", split="test"),
    ),
    train="inception_crop(224)|flip_lr|value_range(-1, 1)",
    eval="resize_small(256)|central_crop(224)|value_range(-1, 1)",
    validation_fraction=0.0,
    reader_shards=128,
    max_classes=None,
    max_examples=None,
    seed=None,
    window=128,
    max_labels=16,
    max_corrupt=100,
    extras=(),
    max_boxes=16,
    with_boxes=False,
    standardize=False,
)
IN_BATCHES = {"head.num_classes": 1000, "training.batch_size": 128}


def streamed(name, data, **overrides):
    """A small config that streams other data."""
    return study.config(name, overrides) | {"data": data}


@needs_library
def test_copies_stand_in_for_all_sets_of_a_stream_that_are_not_there(tmp_path):
    config = streamed("digits_het_pe", IMAGENET, **IN_BATCHES)
    config["evals"] = {name: dict(split=name) for name in ("real", "v2")}
    shrunk, data_dir = smoke.smoke(config, str(tmp_path))
    assert shrunk["data"] | {"splits": None} == IMAGENET | {
        "splits": None,
        "train": "inception_crop(16)|flip_lr|value_range(-1, 1)",
        "eval": "resize_small(18)|central_crop(16)|value_range(-1, 1)",
        "reader_shards": 8,
        "max_classes": 64,
        "max_examples": 200,
    }
    assert shrunk["data"]["splits"]["train"] == "train[50%:]"
    assert shrunk["data"]["splits"]["real"] == dict(
        name="imagenet2012_real", split="validation", label="real_label"
    )
    assert {p.name for p in Path(data_dir).iterdir()} >= {
        "imagenet2012",
        "imagenet2012_real",
        "imagenet_v2",
    }
    found = pipelines.build(shrunk, data_dir)
    assert found.description["num_examples"] == {
        "train": 16,
        "valid": 16,
        "test": 32,
        "real": 32,
        "v2": 32,
    }
    feeds = list(found.feeds("real", np.arange(8)))
    assert all(
        feed.inputs.shape == (8, 16, 16, 3) and feed.labels.shape == (8, 16) for feed in feeds
    )
    # of four lists one has no label, and tells a model of one class nothing
    assert sum(feed.weights.sum() for feed in feeds) == 24


@needs_library
@pytest.mark.parametrize("name", mostly_extended(["private", "imagenet2012_boxes"], ["private"]))
def test_adaptive_targets_of_a_copy_are_of_its_images_with_boxes(name):
    data = IMAGENET | {"name": name, "splits": dict(train="train"), "extras": ("boxes",)}
    config = streamed("digits_het_pe", data, **IN_BATCHES, smoothing=dict(name="adaptive"))
    config["evals"], config["validation"] = dict(train=dict(split="train")), None
    run = assembly.build(*smoke.smoke(config))
    assert run.pipeline.sizes["train"] == 3 * 32 // 4  # every fourth has no box
    (feed, *_) = run.pipeline.training_feeds(0, 0, np.arange(8))
    has_box = feed.extras["boxes"].any(axis=(1, 2))  # in the crop
    assert has_box.any()
    targets = run.parts.smoothing(run.pipeline.training_batch(jax.random.key(0), (), feed), 64)
    np.testing.assert_allclose(targets.sum(axis=-1), 1, rtol=1e-5)
    own = np.take_along_axis(np.asarray(targets), feed.labels[:, None], axis=-1)[:, 0]
    np.testing.assert_array_equal(own > 0, has_box)


@needs_library
def test_a_copy_has_groups_that_are_held_out_together():
    data = {
        "name": "coco_mask",
        "splits": {"train": "train"},
        "extras": ("boxes", "groups"),
        "validation_fraction": 0.25,
    }
    config = streamed("digits_het_pe", IMAGENET | data, **IN_BATCHES)
    config["evals"] = dict(valid=dict(split="valid"))
    splits = pipelines.build(*smoke.smoke(config)).dataset.splits
    train, valid = (set(splits[name].extras["groups"].tolist()) for name in ("train", "valid"))
    assert len(train) > len(valid) > 1
    assert not train & valid


@needs_library
def test_copies_have_lists_of_labels_where_the_set_has_and_one_size_where_the_chain_needs_it(
    tmp_path,
):
    data = dict(
        pipeline="streaming",
        name="private",
        label="labels",
        validation_fraction=0.0,
        reader_shards=6,
    )
    data |= dict(train="flip_lr|value_range(-1, 1)", eval="value_range(-1, 1)")
    config = streamed(
        "digits_multilabel_hom",
        data,
        **{"head.num_classes": 18_000, "validation": None, "training.batch_size": 48},
    )
    config["evals"] = dict(test=dict(split="test"))
    shrunk, data_dir = smoke.smoke(config)
    assert (shrunk["data"]["splits"], shrunk["data"]["reader_shards"]) == (
        dict(train="train", test="test"),
        2,
    )
    assert loop.train(shrunk, str(tmp_path / "run"), data_dir)["step"] == 2
    assert np.load(tmp_path / "run" / "predictions" / "test.npz")["labels"].shape == (32, 16)


@needs_library
def test_a_stream_takes_its_sets_where_they_are_as_large_as_its_slices_say(tmp_path):
    sample.write("imagenet2012", str(tmp_path), ["train", "validation"])
    fits = dict(train="train[8:]", test="validation", valid="train[:8]")
    config = streamed("digits_het_pe", IMAGENET | {"splits": fits}, **IN_BATCHES)
    shrunk, data_dir = smoke.smoke(config, str(tmp_path))
    assert data_dir == str(tmp_path)
    assert shrunk["data"]["splits"] == fits
    _, elsewhere = smoke.smoke(streamed("digits_het_pe", IMAGENET, **IN_BATCHES), str(tmp_path))
    assert elsewhere != str(tmp_path)


@pytest.mark.extended
def test_a_stream_without_tensorflow_says_so(tmp_path):
    program = """
from experiments import study
from heteroscedastic.runs import assembly, compiled, loop, pipelines, smoke
config = study.config("tiny_imagenet_hom", {})
loop.train(*smoke.smoke(config)[:1], sys.argv[1])
"""
    done = run_without({"tensorflow", "tensorflow_datasets"}, program, str(tmp_path / "run"))
    assert (
        "config.data.pipeline is 'streaming', which reads by TensorFlow, and that is not installed"
        in done.stderr
    )
    assert not (tmp_path / "run").exists()
