import io
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import study
from heteroscedastic.bind import chain
from heteroscedastic.data import augment, split_spec
from heteroscedastic.data.inspect import check, contact_sheet, views
from heteroscedastic.data.storage import sample, store, tfds

ROOT = Path(__file__).parents[3]
needs_library = pytest.mark.skipif(
    not find_spec("tensorflow_datasets"), reason="needs TensorFlow Datasets"
)


def config_of(name, data, **overrides):
    """A config whose section data has other settings, also such as it has not."""
    config = study.config(name, overrides)
    return config | {"data": config["data"] | data}


def said(config, data_dir=None):
    lines, problems = check.report(config, data_dir)
    return "\n".join(lines), "\n".join(problems)


def test_what_is_there_is_told_with_examples_and_classes():
    lines, problems = said(
        config_of("digits_het_pe", dict(splits=dict(train="train[:25%]", test="test")))
    )
    assert not problems
    assert "digits: train 1,200, test 597 examples; 10 classes" in lines
    assert "train = train[:25%]: 300 examples" in lines


def test_sets_of_other_names_are_wanted_once_with_what_is_taken_of_them():
    splits = dict(
        train="train[50000:]",
        valid="train[:50000]",
        real=dict(name="imagenet2012_real", split="validation", label="real_label"),
        v2=dict(name="imagenet_v2", split="test"),
    )
    assert split_spec.dataset_refs(dict(name="imagenet2012", splits=splits)) == [
        ("imagenet2012", "label", dict(train="train[50000:]", valid="train[:50000]")),
        ("imagenet2012_real", "real_label", dict(real="validation")),
        ("imagenet_v2", "label", dict(v2="test")),
    ]
    assert split_spec.dataset_refs(dict(name="digits")) == [("digits", "label", {})]
    of_another_label = dict(train="train", human=dict(split="test", label="human"))
    assert split_spec.dataset_refs(dict(name="mine", splits=of_another_label)) == [
        ("mine", "label", dict(train="train")),
        ("mine", "human", dict(human="test")),
    ]


def test_the_command_takes_settings_as_main_does(monkeypatch, capsys):
    def run(*more):
        monkeypatch.setattr(
            sys, "argv", ["check", f"--config={ROOT / 'configs' / 'digits_hom.py'}", *more]
        )
        check.main()
        return capsys.readouterr().out

    assert "digits: train 1,200, test 597 examples; 10 classes" in run()
    with pytest.raises(
        SystemExit, match=r"digits has 10 classes, but config.head.num_classes is 12"
    ):
        run("--config.head.num_classes=12")
    with pytest.raises(SystemExit, match="num_clases"):
        run("--config.head.num_clases=12")
    with pytest.raises(SystemExit, match="haed"):
        run("--config.haed.num_classes=12")
    with pytest.raises(SystemExit):
        run("--configs")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (dict(max_classes=7), "digits has 7 classes, but config.head.num_classes is 10"),
        (
            dict(splits=dict(train="train[2000:]", test="test")),
            "split train: 'train[2000:]' is 2000 to 1200",
        ),
        (
            dict(splits=dict(train="train", test="holdout")),
            "split test: 'holdout' names no stored split",
        ),
        (dict(label="human"), "digits has no field 'human' of labels; its fields are label"),
    ],
)
def test_what_does_not_suit_the_config_is_told(data, told):
    assert told in said(config_of("digits_het_pe", data))[1]


@needs_library
def test_what_is_missing_is_told_with_the_command_and_the_files_that_prepare_it(tmp_path):
    _, problems = said(study.config("digits_het_pe", {"data.name": "webvision"}), str(tmp_path))
    assert f"tfds.builder('webvision', data_dir='{tmp_path}').download_and_prepare()" in problems
    assert f"By hand, into {tmp_path}/downloads/manual" in problems
    assert "google_resized_256.tar" in problems


@needs_library
@pytest.mark.parametrize("config", ["jft_het_pe", "digits_het_pe"])
def test_of_a_set_without_a_builder_none_is_named(config, tmp_path):
    _, problems = said(study.config(config, {"data.name": "jft"}), str(tmp_path))
    assert problems.count("TensorFlow Datasets has no builder of 'jft'") == 1
    assert (
        problems.count(f"heteroscedastic.data.builders.multilabel --name=jft --data_dir={tmp_path}")
        == 1
    )
    assert all(f"--split {split}=FILES" in problems for split in ("train", "validation", "test"))
    assert "tfds.builder(" not in problems


@needs_library
def test_a_task_of_vtab_is_made_of_its_source_with_what_that_needs(tmp_path):
    for task, name in (
        ("cifar100", "cifar100"),
        ("resisc45", "resisc45"),
        ("eurosat", "eurosat/rgb"),
    ):
        _, problems = said(study.config("vtab", {"data.name": f"vtab_{task}"}), str(tmp_path))
        first, second = (
            problems.index(x) for x in (f"tfds.builder('{name}'", f"data.vtab --tasks {task} ")
        )
        assert first < second
        assert "no builder" not in problems
        assert "multilabel" not in problems
        assert ("By hand" in problems) == (task == "resisc45")


def test_the_sheet_shows_the_view_of_evaluation_and_draws_of_training():
    config = study.config("digits_het_pe", {"data.eval": "value_range(-2, 3)"})
    with Image.open(io.BytesIO(views.sheet(config, None))) as opened:
        drawn = np.asarray(opened)
    data = store.load("digits")
    for place, row in enumerate(np.linspace(0, 1199, views._ROWS).astype(int)):
        top, left = contact_sheet.place(place, 0, 96, 96)
        shown = drawn[top : top + 96, left : left + 96, 0]
        np.testing.assert_array_equal(shown[6::12, 6::12], data.splits["train"].inputs[row, ..., 0])
    draws = [
        drawn[t : t + 96, x : x + 96].tobytes()
        for t, x in (contact_sheet.place(0, i, 96, 96) for i in range(1, 7))
    ]
    assert len(set(draws)) > 1


@pytest.mark.parametrize(
    "text", ["", "value_range(-1, 1)", "value_range(0, 255)", "flip_lr|value_range(-2, 7)"]
)
def test_pixels_are_those_before_the_range_was_changed(text):
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5
    links = chain(augment, text.removeprefix("flip_lr|"))
    seen = image
    for link in links:
        seen = np.asarray(link(jax.random.key(0), jnp.asarray(seen)))
    np.testing.assert_array_equal(contact_sheet.pixels(seen, chain(augment, text)), image)


@needs_library
@pytest.mark.parametrize("pipeline", [{}, {"pipeline": "streaming", "lanes": 4}])
def test_a_field_that_holds_no_labels_is_told(tmp_path, pipeline):
    sample.write("cifar10_n", str(tmp_path), ["train", "test"])
    _, problems = said(config_of("cifar10_n_hom", {"label": "colour", **pipeline}), str(tmp_path))
    assert "has no field 'colour' of labels" in problems


@needs_library
def test_a_prepared_set_is_told_with_its_version_and_drawn(tmp_path):
    sample.write("cifar10_n", str(tmp_path), ["train", "test"])
    config = study.config("cifar10_n_het_pe", {})
    lines, problems = said(config, str(tmp_path))
    assert not problems
    assert (
        f"cifar10_n in {tmp_path}, version 1.0.4: train 32, test 32 examples; 10 classes" in lines
    )
    with Image.open(io.BytesIO(views.sheet(config, str(tmp_path)))) as opened:
        assert opened.width > 7 * 96


def test_the_command_ends_with_1_where_something_is_missing_and_draws_where_nothing_is(
    tmp_path, monkeypatch, capsys
):
    def run(config, *flags):
        monkeypatch.setattr(
            sys,
            "argv",
            ["check", f"--config={ROOT}/configs/{config}.py", f"--out={tmp_path}", *flags],
        )
        check.main()

    run("digits_hom")
    assert (tmp_path / "digits_hom.png").exists()
    with pytest.raises(SystemExit, match="no data set 'cifar10_n'") as caught:
        run("cifar10_n_hom", f"--data_dir={tmp_path}")
    assert caught.value.code != 0
    assert "cifar10_n: MISSING" in capsys.readouterr().out
    assert not (tmp_path / "cifar10_n_hom.png").exists()


@needs_library
def test_a_stream_is_told_and_drawn_as_it_is_read(tmp_path):
    import tensorflow as tf

    sample.write("imagenet2012", str(tmp_path), ["train", "validation"])
    data = dict(
        pipeline="streaming",
        name="imagenet2012",
        splits=dict(
            train="train[8:]", test="validation", v2=dict(name="imagenet_v2", split="test")
        ),
        train="inception_crop(40)|value_range(-1, 1)",
        eval="resize(40)|value_range(-1, 1)",
        lanes=4,
    )
    config = study.config("digits_het_pe", {"head.num_classes": 1000}) | {"data": data}
    lines, problems = said(config, str(tmp_path))
    assert (
        f"imagenet2012/5.1.0 in {tmp_path}: train 32, validation 32 examples; 1,000 classes by"
        " 'label'" in lines
    )
    assert "imagenet_v2: MISSING" in lines
    assert f"tfds.builder('imagenet_v2', data_dir='{tmp_path}').download_and_prepare()" in problems
    assert problems.count("\n\n") == 0
    with Image.open(io.BytesIO(views.sheet(config, str(tmp_path)))) as opened:
        drawn = np.asarray(opened)
    stored = (
        tfds.library().builder("imagenet2012", data_dir=str(tmp_path)).as_dataset(split="train[8:]")
    )
    for row, example in enumerate(
        e for i, e in enumerate(stored) if i in np.linspace(0, 23, 8).astype(int)
    ):
        top, left = contact_sheet.place(row, 0, 120, 120)
        shown = drawn[top + 1 : top + 120 : 3, left + 1 : left + 120 : 3].astype(int)
        resized = tf.image.resize(example["image"], (40, 40), antialias=True)
        assert np.abs(shown - resized).max() <= 1
    others = [contact_sheet.place(0, column, 120, 120) for column in range(7)]
    assert len({drawn[top : top + 120, left : left + 120].tobytes() for top, left in others}) == 7


def test_a_stream_without_tensorflow_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(tfds, "library", _absent)
    config = config_of("digits_het_pe", dict(pipeline="streaming", lanes=1))
    assert "digits: needs TensorFlow Datasets" in said(config, "anywhere")[1]


def _absent():
    raise ModuleNotFoundError("No module named 'tensorflow_datasets'")
