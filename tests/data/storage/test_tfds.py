import io
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from pack import PACK, needs
from subprocesses import EXTRAS, MAIN, run_without

from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.data import dataset
from heteroscedastic.data.storage import npz, sample, store, tfds

library = pytest.importorskip("tensorflow_datasets")
Image = pytest.importorskip("PIL.Image")
NAMES = ("cat", "dog", "owl")


def pets(n, seed):
    """Examples of a small set: images, labels, human labels and fields that are ignored."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        yield (
            i,
            {
                "image": rng.integers(0, 256, (6, 4, 3)).astype(np.uint8),
                "label": int(rng.integers(3)),
                "human": int(rng.integers(3)) if seed == 0 else -1,
                "colour": int(rng.integers(2)),
                "worker": i,
                "text": f"pet {i}",
            },
        )


class TinyPets(library.core.GeneratorBasedBuilder):
    """A set that is prepared in seconds."""

    VERSION = library.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": library.features.Image(shape=(6, 4, 3)),
            "label": library.features.ClassLabel(names=list(NAMES)),
            "human": library.features.ClassLabel(num_classes=3),
            "colour": library.features.ClassLabel(num_classes=2),
            "worker": np.int64,
            "text": library.features.Text(),
        }
        return library.core.DatasetInfo(
            builder=self, features=library.features.FeaturesDict(features)
        )

    def _split_generators(self, _):
        return {"train": self._generate_examples(37, 0), "test": self._generate_examples(8, 1)}

    def _generate_examples(self, n, seed):
        yield from pets(n, seed)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    several_files = library.download.DownloadConfig(num_shards=3)
    TinyPets(data_dir=directory).download_and_prepare(download_config=several_files)
    return str(directory)


def npz_folder(name, source, out):
    """The folder of the .npz file that the command writes."""
    command = ["store", f"--name={name}", f"--data_dir={source}", f"--out={out}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        store.main()
    return str(out)


def assert_same(one, other):
    assert one.class_names == other.class_names
    # Descriptions contain a fingerprint of all arrays.
    assert dataset.description(one, one) == dataset.description(other, other)


def assert_rows(part, full, rows):
    for a, b in ((part.inputs, full.inputs), (part.labels, full.labels), (part.ids, full.ids)):
        np.testing.assert_array_equal(a, b[rows])
    assert part.extras.keys() == full.extras.keys()
    for name, values in part.extras.items():
        np.testing.assert_array_equal(values, full.extras[name][rows])


def test_a_prepared_set_is_read_unchanged(prepared):
    data = store.load("tiny_pets", prepared)
    assert data.class_names == NAMES
    for (name, split), (n, seed) in zip(data.splits.items(), [(37, 0), (8, 1)]):
        by_image = {e["image"].tobytes(): e for _, e in pets(n, seed)}
        np.testing.assert_array_equal(split.ids, np.arange(n))
        stored = [by_image[image.tobytes()] for image in split.inputs]
        np.testing.assert_array_equal(split.labels, [e["label"] for e in stored])
        assert len({e["worker"] for e in stored}) == n
        if name == "train":
            np.testing.assert_array_equal(split.extras["human"], [e["human"] for e in stored])


def test_only_label_fields_with_the_same_classes_and_known_values_are_read(prepared):
    data = store.load("tiny_pets", prepared)
    assert set(data.splits["train"].extras) == {"human"}
    assert not data.splits["test"].extras
    with pytest.raises(
        ValueError,
        match=r"has no label field 'colour'; its fields are (label, human|human, label)",
    ):
        store.load("tiny_pets", prepared, label="colour")


def test_examples_are_in_the_order_of_the_files(prepared):
    builder = library.builder("tiny_pets", data_dir=prepared)
    one_by_one = [f"train[{i}:{i + 1}]" for i in range(37)]
    images = [
        next(iter(library.as_numpy(builder.as_dataset(split=s))))["image"] for s in one_by_one[::6]
    ]
    np.testing.assert_array_equal(
        store.load("tiny_pets", prepared).splits["train"].inputs[::6], images
    )


def test_the_npz_file_of_encoded_images_is_the_same_data(prepared, tmp_path):
    out = npz_folder("tiny_pets", prepared, tmp_path)
    with np.load(tmp_path / "tiny_pets.npz") as file:
        assert {"train_encoded", "train_offsets", "train_labels", "train_human"} <= set(file.files)
        assert not any(name.endswith("_inputs") for name in file.files)
    for settings in (
        {},
        dict(label="human"),
        dict(max_classes=2),
        dict(splits=dict(train="train[30%:70%]")),
    ):
        assert_same(
            store.load("tiny_pets", out, **settings), store.load("tiny_pets", prepared, **settings)
        )


@pytest.mark.parametrize(
    ("expression", "rows"),
    [("train[:25%]", slice(0, 9)), ("train[25%:50%]", slice(9, 18)), ("train[-5:]", slice(32, 37))],
)
def test_a_slice_has_the_examples_and_ids_of_the_stored_split(prepared, expression, rows):
    full = store.load("tiny_pets", prepared).splits["train"]
    data = store.load(
        "tiny_pets", prepared, splits=dict(train=expression, rest="train", test="test")
    )
    assert list(data.splits) == ["train", "rest", "test"]
    assert_rows(data.splits["train"], full, np.arange(37)[rows])
    assert_rows(data.splits["rest"], full, np.arange(37))


def test_training_labels_come_from_the_given_field_and_clean_labels_are_kept(prepared):
    clean, noisy = (store.load("tiny_pets", prepared, label=label) for label in ("label", "human"))
    np.testing.assert_array_equal(
        noisy.splits["train"].labels, clean.splits["train"].extras["human"]
    )
    np.testing.assert_array_equal(
        noisy.splits["train"].extras["clean_labels"], clean.splits["train"].labels
    )
    np.testing.assert_array_equal(noisy.splits["test"].labels, clean.splits["test"].labels)


def test_max_classes_selects_all_examples_of_the_first_classes(prepared):
    full = store.load("tiny_pets", prepared, label="human").splits["train"]
    data = store.load("tiny_pets", prepared, label="human", max_classes=2)
    assert data.class_names == NAMES[:2]
    rows = np.flatnonzero((full.labels < 2) & (full.extras["clean_labels"] < 2))
    assert_rows(data.splits["train"], full, rows)
    with pytest.raises(ValueError, match="max_classes is 0"):
        store.load("tiny_pets", prepared, max_classes=0)


@pytest.mark.parametrize("victim", ["tiny_pets-train.tfrecord-00001-of-00003", "dataset_info.json"])
@pytest.mark.parametrize("change", ["cut", "gone"])
def test_a_damaged_set_is_named(prepared, tmp_path, victim, change):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tiny_pets" / "1.0.0" / victim
    path.write_bytes(path.read_bytes()[:-9]) if change == "cut" else path.unlink()
    with pytest.raises(
        (ValueError, FileNotFoundError), match=rf"tiny_pets.*{tmp_path}.*|{tmp_path}.*tiny_pets"
    ):
        store.load("tiny_pets", str(tmp_path))


def test_the_error_of_a_folder_without_a_prepared_version_says_so(tmp_path):
    (tmp_path / "mnist").mkdir()
    with pytest.raises(FileNotFoundError, match=r"mnist \(it holds no mnist/\d") as caught:
        store.load("mnist", str(tmp_path))
    assert f"tfds.builder('mnist', data_dir='{tmp_path}').download_and_prepare()" in str(
        caught.value
    )


def test_a_prepared_set_without_tensorflow_says_what_to_do(prepared):
    program = (
        f"from heteroscedastic.data.storage import store; store.load('tiny_pets', {prepared!r})"
    )
    done = run_without({"tensorflow", "tensorflow_datasets"}, program)
    assert "TensorFlow Datasets is not installed" in done.stderr
    assert (
        "python -m heteroscedastic.data.storage.store --name=tiny_pets --data_dir=DIR"
        in done.stderr
    )


def test_encoded_images_without_pillow_say_what_to_do(prepared, tmp_path):
    out = npz_folder("tiny_pets", prepared, tmp_path)
    done = run_without(
        {"PIL"}, f"from heteroscedastic.data.storage import store; store.load('tiny_pets', {out!r})"
    )
    assert (
        "tiny_pets.npz has encoded images; decoding them requires Pillow: pip install pillow"
        in done.stderr
    )


@pytest.mark.extended
def test_training_from_encoded_images_does_not_require_tensorflow(prepared, tmp_path):
    out = npz_folder("tiny_pets", prepared, tmp_path)
    done = run_without(
        EXTRAS - {"PIL"},
        MAIN,
        "--config=configs/digits_hom.py",
        "--config.data.name=tiny_pets",
        "--config.curation=",
        "--config.head.num_classes=3",
        f"--workdir={tmp_path / 'run'}",
        f"--data_dir={out}",
        "--smoke",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").exists()


@pytest.fixture(scope="module")
def cifar10_n(tmp_path_factory):
    """The folder of the .npz file of CIFAR-10N."""
    return npz_folder("cifar10_n", PACK, tmp_path_factory.mktemp("cifar10_n"))


@needs("cifar10_n")
def test_the_human_labels_of_cifar10_have_the_published_error_rates(cifar10_n):
    with np.load(f"{cifar10_n}/cifar10_n.npz") as file:  # no image is decoded
        names = tuple(map(str, file["class_names"]))
        clean, worse, aggregated, test = (
            file[name]
            for name in ("train_labels", "train_worse_label", "train_aggre_label", "test_labels")
        )
    assert names[:4] + names[-1:] == ("airplane", "automobile", "bird", "cat", "truck")
    assert len(clean) == 50_000
    assert (worse != clean).mean() == pytest.approx(0.4021, abs=5e-5)
    assert (aggregated != clean).mean() == pytest.approx(0.0901, abs=5e-5)
    np.testing.assert_array_equal(np.bincount(test), np.full(10, 1000))
    images = np.zeros((len(clean), 1, 1, 1), np.uint8)
    train = dataset.Split(images, worse, np.arange(len(clean)), {"clean_labels": clean})
    data = dataset.Dataset({"train": train}, names)
    description = dataset.description(data, data)
    assert sum(n for _, _, n in description["label_noise"]) == 50_000
    assert sum(n for a, b, n in description["label_noise"] if a == b) / 50_000 == pytest.approx(
        0.5979, abs=5e-5
    )
    # Every pair of classes is confused.
    np.testing.assert_array_equal(
        known_noise.confusion_matrix(description) > 0, ~np.eye(10, dtype=bool)
    )


@pytest.mark.extended
@needs("cifar10_n")
def test_cifar10_n_from_its_npz_file_equals_that_of_tfds(cifar10_n):
    assert Path(cifar10_n, "cifar10_n.npz").stat().st_size < 60e6
    splits = dict(train="train[20%:23%]", test="test[-500:]")
    from_npz, from_tfds = (
        store.load("cifar10_n", folder, label="worse_label", splits=splits)
        for folder in (cifar10_n, PACK)
    )
    assert_same(from_npz, from_tfds)
    assert from_npz.splits["train"].inputs.shape == (1500, 32, 32, 3)
    assert from_npz.splits["train"].ids[0] == 10_000


@needs("cifar10")
def test_cifar10_is_cifar10_n_without_the_human_labels():
    splits = dict(train="train[:2%]", test="test[:2%]")
    plain, human = (store.load(name, PACK, splits=splits) for name in ("cifar10", "cifar10_n"))
    assert not plain.splits["train"].extras
    np.testing.assert_array_equal(plain.splits["train"].inputs, human.splits["train"].inputs)
    np.testing.assert_array_equal(plain.splits["train"].labels, human.splits["train"].labels)


@needs("tiny_imagenet")
def test_tiny_imagenet_has_200_classes_named_in_words_and_all_images_have_three_channels():
    data = store.load(
        "tiny_imagenet", PACK, splits=dict(train="train[:5%]", test="validation[:5%]")
    )
    assert len(set(data.class_names)) > 190
    assert {"goldfish", "espresso"} <= set(data.class_names)
    info = library.builder("tiny_imagenet", data_dir=PACK).info
    assert data.class_names == tuple(info.features["label"].int2str(i) for i in range(200))
    assert data.splits["train"].inputs.shape == (2000, 64, 64, 3)
    few = store.load("tiny_imagenet", PACK, splits=dict(train="train[:5%]"), max_classes=5)
    assert (few.class_names, set(few.splits["train"].labels)) == (
        data.class_names[:5],
        set(range(5)),
    )


@needs("imagenet2012")
def test_images_of_several_sizes_are_an_error():
    with pytest.raises(ValueError, match=r"imagenet2012.*images differ in size \(.*requires one"):
        store.load("imagenet2012", PACK)


@needs("coco")
def test_a_set_of_boxes_is_an_error():
    with pytest.raises(ValueError, match=r"coco/2017.*requires the features .*objects"):
        store.load("coco/2017", PACK)


def test_all_configs_and_versions_of_a_set_have_one_folder(tmp_path):
    for name in ("eurosat", "eurosat/rgb", "eurosat:2.0.0", "eurosat/rgb:2.0.0"):
        assert tfds.folder(name, str(tmp_path)) == tmp_path / "eurosat"


def test_splits_whose_names_begin_alike_are_distinguished():
    def arrays(split, n):
        return {
            f"{split}_inputs": np.zeros((n, 2, 2, 1), np.uint8),
            f"{split}_labels": np.zeros(n, int),
        }

    archive = npz.Archive(
        {"class_names": np.array(["a"])} | arrays("train", 3) | arrays("train_more", 5), "here"
    )
    assert archive.sizes == {"train": 3, "train_more": 5}


@pytest.mark.parametrize(
    ("name", "label", "splits"),
    [
        ("fashion_mnist", "label", dict(train="train", test="test")),
        # eurosat has one stored split.
        ("eurosat", "label", dict(train="train[:75%]", test="train[75%:]")),
        ("cifar100", "label", dict(train="train", test="test")),
        ("cifar100_n", "noise_label", dict(train="train", test="test")),
    ],
)
def test_sets_of_these_names_are_read_with_the_features_of_their_builders(
    name, label, splits, tmp_path
):
    sample.write(
        name, str(tmp_path / "tfds"), sorted({split.partition("[")[0] for split in splits.values()})
    )
    builder = library.builder(name, data_dir=str(tmp_path / "tfds"))
    data = store.load(name, str(tmp_path / "tfds"), label=label, splits=splits)
    assert data.class_names == tuple(builder.info.features[label].names)
    for split, expression in splits.items():
        # TensorFlow rounds differently when it decodes JPEG.
        encoded = {"image": library.decode.SkipDecoding()}
        stored = list(library.as_numpy(builder.as_dataset(split=expression, decoders=encoded)))
        shape = builder.info.features["image"].shape
        colours = "L" if shape[-1] == 1 else "RGB"
        images = [
            np.asarray(Image.open(io.BytesIO(e["image"])).convert(colours)).reshape(shape)
            for e in stored
        ]
        np.testing.assert_array_equal(data.splits[split].inputs, images)
        field = label if split == "train" else "label"
        np.testing.assert_array_equal(data.splits[split].labels, [e[field] for e in stored])
    out = npz_folder(name, str(tmp_path / "tfds"), tmp_path / "npz")
    assert_same(store.load(name, out, label=label, splits=splits), data)
