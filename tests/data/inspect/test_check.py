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
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.inspect import check, contact_sheet, views
from heteroscedastic.data.storage import sample, store, tfds

ROOT = Path(__file__).parents[3]
needs_library = pytest.mark.skipif(
    not find_spec("tensorflow_datasets"), reason="needs TensorFlow Datasets"
)


def config_of(name, data, **overrides):
    """A config with these settings of section data, which may be new ones."""
    config = study.config(name, overrides)
    return config | {"data": config["data"] | data}


def report(config, data_dir=None):
    lines, problems = check.report(config, data_dir)
    return "\n".join(lines), "\n".join(problems)


def test_a_present_set_is_reported_with_examples_and_classes():
    lines, problems = report(
        config_of("digits_het_pe", dict(splits=dict(train="train[:25%]", test="test")))
    )
    assert not problems
    assert "digits: train 1,200, test 597 examples; 10 classes" in lines
    assert "train = train[:25%]: 300 examples" in lines


def test_each_set_of_a_config_is_listed_once_with_its_splits():
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


def test_the_command_accepts_settings_like_main(monkeypatch, capsys):
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
    ("data", "problem"),
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
        (dict(label="human"), "digits has no label field 'human'; its fields are label"),
    ],
)
def test_a_mismatch_with_the_config_is_reported(data, problem):
    assert problem in report(config_of("digits_het_pe", data))[1]


@needs_library
@pytest.mark.parametrize(
    ("name", "file"),
    [("webvision", "google_resized_256.tar"), ("inaturalist2019", "train_val2019.tar.gz")],
)
def test_a_missing_set_is_reported_with_the_command_and_the_files_that_prepare_it(
    tmp_path, name, file
):
    _, problems = report(study.config("digits_het_pe", {"data.name": name}), str(tmp_path))
    assert f"tfds.builder('{name}', data_dir='{tmp_path}').download_and_prepare()" in problems
    assert f"Manual download, into {tmp_path}/downloads/manual" in problems
    assert file in problems


@needs_library
def test_missing_tiny_imagenet_is_reported_with_the_command_that_writes_it(tmp_path):
    _, problems = report(study.config("tiny_imagenet_hom", {}), str(tmp_path))
    assert "builders.tiny_imagenet --archive=tiny-imagenet-200.zip --data_dir" in problems


@needs_library
@pytest.mark.parametrize("config", ["jft_het_pe", "digits_het_pe"])
def test_no_builder_is_named_for_a_set_without_one(config, tmp_path):
    _, problems = report(study.config(config, {"data.name": "jft"}), str(tmp_path))
    assert problems.count("TensorFlow Datasets has no builder for 'jft'") == 1
    assert (
        problems.count(f"heteroscedastic.data.builders.multilabel --name=jft --data_dir={tmp_path}")
        == 1
    )
    assert all(f"--split {split}=FILES" in problems for split in ("train", "validation", "test"))
    assert "tfds.builder(" not in problems


@needs_library
def test_a_missing_task_of_vtab_is_reported_with_the_preparation_of_its_source(tmp_path):
    for task, name in (
        ("cifar100", "cifar100"),
        ("resisc45", "resisc45"),
        ("eurosat", "eurosat/rgb"),
    ):
        _, problems = report(study.config("vtab", {"data.name": f"vtab_{task}"}), str(tmp_path))
        first, second = (
            problems.index(x) for x in (f"tfds.builder('{name}'", f"storage.vtab --tasks {task} ")
        )
        assert first < second
        assert "no builder" not in problems
        assert "multilabel" not in problems
        assert ("Manual download" in problems) == (task == "resisc45")


def test_the_sheet_shows_the_view_of_evaluation_and_draws_of_training():
    config = study.config("digits_het_pe", {"data.eval": "value_range(-2, 3)"})
    with Image.open(io.BytesIO(views.sheet(config, None))) as image:
        drawn = np.asarray(image)
    data = store.load("digits")
    for number, row in enumerate(np.linspace(0, 1199, views._ROWS).astype(int)):
        top, left = contact_sheet.position(number, 0, 96, 96)
        shown = drawn[top : top + 96, left : left + 96, 0]
        np.testing.assert_array_equal(shown[6::12, 6::12], data.splits["train"].inputs[row, ..., 0])
    draws = [
        drawn[t : t + 96, x : x + 96].tobytes()
        for t, x in (contact_sheet.position(0, i, 96, 96) for i in range(1, 7))
    ]
    assert len(set(draws)) > 1


def with_boxes(directory):
    """A config of eight grey images, each with one box, and the images beside it."""
    images = np.full((8, 24, 24, 3), 90, np.uint8)
    boxes = np.tile(np.float32([[[0.25, 0.5, 0.75, 1.0], [0, 0, 0, 0]]]), (8, 1, 1))
    train = Split(images, np.arange(8) % 4, np.arange(8), {"boxes": boxes})
    splits = {"train": train, "test": Split(images, np.arange(8) % 4, np.arange(8))}
    store.write(directory / "boxed.npz", Dataset(splits, ("a", "b", "c", "d")))
    data = dict(name="boxed", extras=("boxes",), train="flip_lr|value_range(-1, 1)")
    config = config_of("digits_het_pe", data | dict(max_boxes=2, splits=None))
    return config | {"smoothing": dict(name="adaptive", beta=1.0, over="wrong", objectness="own")}


def test_the_sheet_shows_the_boxes_of_each_view(tmp_path):
    config = with_boxes(tmp_path)
    own_chain = dict(split="train", eval="value_range(-1, 1)")
    config["data"]["splits"] = {"train": own_chain, "test": "test"}
    with Image.open(io.BytesIO(views.sheet(config, str(tmp_path)))) as image:
        drawn = np.asarray(image).astype(int)
    red = (drawn == contact_sheet._BOX_COLOR).all(axis=-1)
    sides = set()
    for column in range(7):
        top, left = contact_sheet.position(0, column, 96, 96)
        rows, columns = np.nonzero(red[top : top + 96, left : left + 96])
        np.testing.assert_allclose((rows.min(), rows.max()), (24, 71), atol=1)
        assert np.ptp(columns) in (47, 48)
        sides.add(bool(columns.min() >= 47))
        assert not red[top + 48, left + 60]
        assert not red[top + 48, left + 30]
    assert sides == {False, True}  # boxes are mirrored with their images


def test_a_note_has_objectness_and_target(tmp_path):
    config = with_boxes(tmp_path)
    boxes, context = [np.float32([[0.25, 0.5, 0.75, 1.0]])] * 2, [np.False_] * 2
    example = views._Example(0, np.int64(2), [], boxes, context)
    assert views._notes(config, example, 4) == ["o 0.25 t 0.25"] * 2
    hard = config | {"smoothing": dict(name="hard")}
    assert views._notes(hard, example, 4) == ["o 0.25 t 1.00"] * 2
    given = config | {"smoothing": dict(name="given", field="soft_label")}
    assert views._notes(given, example, 4) == ["o 0.25"] * 2


def test_the_target_of_a_view_without_its_objects_is_that_of_training(tmp_path):
    config = with_boxes(tmp_path) | {"smoothing": dict(name="adaptive", beta=0.5)}
    chains = (chain(augment, text) for text in ("context(1.0)", "flip_lr"))
    examples, _ = views._stored_examples(config, str(tmp_path), *chains)
    assert views._notes(config, examples[0], 4) == ["o 0.25 t 0.62", *["o 0.00 t 0.25"] * 6]


@pytest.mark.parametrize(
    "text", ["", "value_range(-1, 1)", "value_range(0, 255)", "flip_lr|value_range(-2, 7)"]
)
def test_pixels_are_recovered_from_any_range_of_values(text):
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5
    links = chain(augment, text.removeprefix("flip_lr|"))
    example = {"image": jnp.asarray(image)}
    for link in links:
        example = link(jax.random.key(0), example)
    output = np.asarray(example["image"])
    np.testing.assert_array_equal(contact_sheet.pixels(output, chain(augment, text)), image)


@needs_library
@pytest.mark.parametrize("pipeline", [{}, {"pipeline": "streaming", "reader_shards": 4}])
def test_a_field_without_labels_is_reported(tmp_path, pipeline):
    sample.write("cifar10_n", str(tmp_path), ["train", "test"])
    _, problems = report(config_of("cifar10_n_hom", {"label": "colour", **pipeline}), str(tmp_path))
    assert "has no label field 'colour'" in problems


@pytest.mark.parametrize("change", [{"label": "colour"}, {"extras": ("boxes",), "max_boxes": 2}])
def test_a_sheet_of_a_field_that_is_not_there_is_an_error_that_names_it(change):
    field = change.get("label", "boxes")
    with pytest.raises(ValueError, match=f"has no field '{field}'; its fields are "):
        views.sheet(config_of("digits_hom", change), None)


@needs_library
def test_a_prepared_set_is_reported_with_its_version_and_drawn(tmp_path):
    sample.write("cifar10_n", str(tmp_path), ["train", "test"])
    config = study.config("cifar10_n_het_pe", {})
    lines, problems = report(config, str(tmp_path))
    assert not problems
    assert (
        f"cifar10_n in {tmp_path}, version 1.0.4: train 32, test 32 examples; 10 classes" in lines
    )
    with Image.open(io.BytesIO(views.sheet(config, str(tmp_path)))) as image:
        assert image.width > 7 * 96


def test_the_command_draws_present_sets_and_fails_for_missing_ones(tmp_path, monkeypatch, capsys):
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
@pytest.mark.extended
def test_a_stream_is_reported_and_drawn_with_its_boxes(tmp_path):
    import tensorflow as tf

    sample.write("imagenet2012_boxes", str(tmp_path), ["train", "validation"])
    data = dict(
        pipeline="streaming",
        name="imagenet2012_boxes",
        extras=("boxes",),
        splits=dict(
            train="train[4:]", test="validation", v2=dict(name="imagenet_v2", split="test")
        ),
        train="inception_crop(40)|value_range(-1, 1)",
        eval="resize(40)|value_range(-1, 1)",
        reader_shards=4,
    )
    config = study.config("digits_het_pe", {"head.num_classes": 1000}) | {"data": data}
    lines, problems = report(config, str(tmp_path))
    assert (
        f"imagenet2012_boxes/1.0.0 in {tmp_path}: train 32, validation 32 examples; 1,000 classes"
        " by 'label'" in lines
    )
    assert "imagenet_v2: MISSING" in lines
    assert f"tfds.builder('imagenet_v2', data_dir='{tmp_path}').download_and_prepare()" in problems
    assert problems.count("\n\n") == 0
    with Image.open(io.BytesIO(views.sheet(config, str(tmp_path)))) as image:
        drawn = np.asarray(image)
    builder = tfds.library().builder("imagenet2012_boxes", data_dir=str(tmp_path))
    stored, has_boxes = builder.as_dataset(split="train[4:]"), []
    for row, example in enumerate(
        e for i, e in enumerate(stored) if i in np.linspace(0, 27, 8).astype(int)
    ):
        top, left = contact_sheet.position(row, 0, 120, 120)
        red = (drawn[top : top + 120] == contact_sheet._BOX_COLOR).all(axis=-1)
        is_plain = ~red[1:105:3, left + 1 : left + 120 : 3]  # above the note
        shown = drawn[top + 1 : top + 105 : 3, left + 1 : left + 120 : 3].astype(int)
        resized = tf.image.resize(example["image"], (40, 40), antialias=True).numpy()[:35]
        assert np.abs(shown - resized)[is_plain].max() <= 1
        boxes = example["objects"]["bbox"].numpy()
        has_boxes.append(len(boxes) > 0)
        assert red[:, left + 126 :].any() == red[:, left : left + 120].any() == has_boxes[-1]
        if has_boxes[-1]:
            rows, columns = np.nonzero(red[:, left : left + 120])
            outer = 119 * boxes[:, 0].min(), 119 * boxes[:, 1].min(), 119 * boxes[:, 3].max()
            np.testing.assert_allclose((rows.min(), columns.min(), columns.max()), outer, atol=1)
    assert set(has_boxes) == {False, True}
    corners = [contact_sheet.position(0, column, 120, 120) for column in range(7)]
    assert len({drawn[top : top + 120, left : left + 120].tobytes() for top, left in corners}) == 7


@needs_library
def test_a_streamed_detector_has_the_background_as_a_class(tmp_path):
    sample.write("coco/2017", str(tmp_path), ["train", "validation"])
    lines, problems = report(study.config("coco_frcnn_hom", {}), str(tmp_path))
    assert "81 classes by 'objects/label'" in lines
    assert not problems


def test_a_stream_without_tensorflow_says_what_it_requires(monkeypatch):
    monkeypatch.setattr(tfds, "library", _absent)
    config = config_of("digits_het_pe", dict(pipeline="streaming", reader_shards=1))
    assert "digits: requires TensorFlow Datasets" in report(config, "anywhere")[1]


def _absent():
    raise ModuleNotFoundError("No module named 'tensorflow_datasets'")
