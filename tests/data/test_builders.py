import collections
import io
import json
import re
import tarfile
import tempfile
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from pack import PACK, needs
from PIL import Image

from experiments import study
from heteroscedastic.data.storage import archives, sample, tfds
from heteroscedastic.runs import pipelines

library = pytest.importorskip("tensorflow_datasets")
from heteroscedastic.data import builders  # noqa: E402
from heteroscedastic.data.builders import (  # noqa: E402
    imagenet21k,
    imagenet2012_boxes,
    tiny_imagenet,
)

NUM_IMAGES = 25  # per synset, so that no split is empty
WNIDS = ("n01440764", "n01443537", "n01484850")  # classes 0, 1 and 2 of ILSVRC12
# The taxonomic class of categories 0 to 9, in no order; two categories share a class.
TAXA = (
    "Reptilia",
    "Aves",
    "Magnoliopsida",
    "Insecta",
    "Aves",
    "Amphibia",
    "Liliopsida",
    "Arachnida",
    "Mammalia",
    "Agaricomycetes",
)


def jpeg(i, height=20, width=40):
    """A JPEG that differs for every number."""
    digit = np.random.default_rng(i).integers(0, 256, (8, 8)).astype(np.uint8)
    return sample.image(digit, (height, width, 3), "jpeg", i)


def tar(files, mode="w"):
    """The bytes of an archive, with its files in this order."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=mode) as archive_file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive_file.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def synsets(num_images, wnids=WNIDS):
    """A tar of synset tars, the format of ImageNet."""
    return tar(
        {
            f"{wnid}.tar": tar({f"{wnid}_{i}.JPEG": jpeg(100 * k + i) for i in range(num_images)})
            for k, wnid in enumerate(wnids)
        }
    )


def xml(boxes, name=WNIDS[0], width=40, height=20):
    objects = "".join(
        f"<object><name>{name}</name><pose>Unspecified</pose><bndbox><xmin>{a}</xmin>"
        f"<ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in boxes
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    header = "<folder>f</folder><filename>%s</filename>"
    return f"<annotation>{header}{size}{objects}</annotation>".encode()


def write_imagenet21k(directory):
    (directory / "fall11_whole.tar").write_bytes(synsets(NUM_IMAGES))


def write_webvision(directory):
    """Writes the archives; the class numbers of their lists differ from those of ILSVRC12."""
    names = library.core.tfds_path("datasets/imagenet2012/labels.txt").read_text().split()
    listed = [names[1], names[0], *names[2:]]
    lists = {
        "google": {"google/q0001/a_1.jpg": 0, "google/q0001/b.jpg": 0, "google/q0002/c.jpg": 1},
        "flickr": {"flickr/q0001/4.jpg": 0, "flickr/q0003/5.jpg": 999},
        "val": {"val000001.jpg": 0, "val000002.jpg": 7},
    }
    info = {"info/synsets.txt": "".join(f"{w} some words, others\n" for w in listed).encode()}
    for number, (name, files) in enumerate(lists.items()):
        text = "".join(f"{file} {label}\n" for file, label in files.items()).encode()
        info["info/val_filelist.txt" if name == "val" else f"info/train_filelist_{name}.txt"] = text
        images = {
            ("val_images_256/" if name == "val" else "") + f: jpeg(10 * number + i)
            for i, f in enumerate(files)
        }
        images |= {f"{name}/q0009/unlisted.jpg": jpeg(99)}
        archive = "val_images_256.tar" if name == "val" else f"{name}_resized_256.tar"
        (directory / archive).write_bytes(tar(images))
    (directory / "info.tar").write_bytes(tar(info))


def write_imagenet2012(directory):
    (directory / "ILSVRC2012_img_train.tar").write_bytes(synsets(2))
    validation = {f"ILSVRC2012_val_{i:08d}.JPEG": jpeg(900 + i) for i in (2, 1)}
    (directory / "ILSVRC2012_img_val.tar").write_bytes(tar(validation))
    train = {
        f"{WNIDS[0]}/{WNIDS[0]}_0.xml": xml([(10, 5, 20, 10), (-8, 10, 48, 30)]),
        f"{WNIDS[1]}/{WNIDS[1]}_0.xml": xml([(20, 10, 40, 20)], "goldfish", width=80, height=40),
        f"{WNIDS[1]}/{WNIDS[1]}_1.xml": xml([(0, 0, 9, 9)], WNIDS[1], width=20, height=40),
    }
    (directory / "ILSVRC2012_bbox_train_v2.tar.gz").write_bytes(tar(train, "w:gz"))
    boxes = {f"val/ILSVRC2012_val_{i:08d}.xml": xml([(0, 0, 40, 20)], "?") for i in (1, 2)}
    (directory / "ILSVRC2012_bbox_val_v3.tgz").write_bytes(tar(boxes, "w:gz"))


def inaturalist2019_parts():
    """Categories, lists of the splits, and images by path; each category has 2 + 1 images."""
    parts = {
        "categories": [
            {"id": k, "name": f"{taxon} {k}", "class": taxon} for k, taxon in enumerate(TAXA)
        ]
    }
    images = {"train_val2019/Plants/0/unlisted.jpg": jpeg(99)}
    for split, num_images in (("train", 2), ("val", 1)):
        ids = [(100 * num_images + i, i % len(TAXA)) for i in range(num_images * len(TAXA))]
        names = [f"train_val2019/Group/{k}/{i}.jpg" for i, k in ids]
        images |= {name: jpeg(i, 90 + i % 7, 120 - i % 5) for name, (i, _) in zip(names, ids)}
        parts[f"{split}2019"] = {
            "images": [{"id": i, "file_name": name} for name, (i, _) in zip(names, ids)],
            # in another order than the images
            "annotations": [{"id": 7 * i, "image_id": i, "category_id": k} for i, k in ids[::-1]],
        }
    return parts, images


def write_inaturalist2019(directory, change=lambda parts, images: None):
    parts, images = inaturalist2019_parts()
    change(parts, images)
    (directory / "train_val2019.tar.gz").write_bytes(tar(images, "w:gz"))
    for name, part in parts.items():
        content = part if isinstance(part, bytes) else json.dumps(part).encode()
        archive = tar({f"{name}.json": content}, "w:gz")
        (directory / f"{name}.json.tar.gz").write_bytes(archive)


TINY_NAMES = {WNIDS[1]: "goldfish, Carassius auratus", WNIDS[0]: "tench"}  # in no order


def tiny_imagenet_parts():
    """The files of two classes by their path in the archive."""
    parts = {"wnids.txt": "".join(f"{wnid}\n" for wnid in TINY_NAMES)}
    others = "n00001740\tentity\nn00001930\tphysical entity\n"
    parts["words.txt"] = others + "".join(f"{w}\t{words}\n" for w, words in TINY_NAMES.items())
    for k, wnid in enumerate(TINY_NAMES):
        names = [f"{wnid}_{i}.JPEG" for i in range(2)]
        boxes = [f"{name}\t0\t10\t63\t{58 + i}\n" for i, name in enumerate(names)]
        parts[f"train/{wnid}/{wnid}_boxes.txt"] = "".join(boxes)
        for i, name in enumerate(names):
            parts[f"train/{wnid}/images/{name}"] = jpeg(10 * k + i, 64, 64)
        parts[f"val/images/val_{k}.JPEG"] = jpeg(90 + k, 64, 64)
    parts["val/val_annotations.txt"] = "".join(
        f"val_{k}.JPEG\t{wnid}\t{k}\t32\t44\t32\n" for k, wnid in enumerate(TINY_NAMES)
    )
    parts["test/images/test_0.JPEG"] = jpeg(99, 64, 64)
    return parts


def write_tiny_imagenet(directory, change=lambda parts: None):
    parts = tiny_imagenet_parts()
    change(parts)
    with zipfile.ZipFile(directory / "tiny-imagenet-200.zip", "w") as archive:
        for name, content in parts.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)


class BuilderTest(library.testing.DatasetBuilderTestCase):
    """The builder test of TFDS, on small archives."""

    __test__ = False

    @classmethod
    def setUpClass(cls):
        cls.EXAMPLE_DIR = tempfile.mkdtemp()
        cls.WRITE(Path(cls.EXAMPLE_DIR))
        super().setUpClass()


class TestImagenet21k(BuilderTest):
    __test__ = True
    DATASET_CLASS = builders.Imagenet21k
    BUILDER_CONFIG_NAMES_TO_TEST = ["any"]
    WRITE = staticmethod(write_imagenet21k)
    SPLITS = collections.Counter(
        imagenet21k.split_of(f"{wnid}_{i}.JPEG") for wnid in WNIDS for i in range(NUM_IMAGES)
    )


class TestWebvision(BuilderTest):
    __test__ = True
    DATASET_CLASS = builders.Webvision
    BUILDER_CONFIG_NAMES_TO_TEST = ["both"]
    WRITE = staticmethod(write_webvision)
    SPLITS = {"train": 5, "validation": 2}


class TestInaturalist2019(BuilderTest):
    __test__ = True
    DATASET_CLASS = builders.Inaturalist2019
    WRITE = staticmethod(write_inaturalist2019)
    SPLITS = {"train": 2 * len(TAXA), "validation": len(TAXA)}


class TestImagenet2012Boxes(BuilderTest):
    __test__ = True
    DATASET_CLASS = builders.Imagenet2012Boxes
    WRITE = staticmethod(write_imagenet2012)
    SPLITS = {"train": 6, "validation": 2}


def prepared(name, write, tmp_path):
    """The examples of every split by file name, and the class names."""
    manual = tmp_path / "manual"
    manual.mkdir()
    write(manual)
    return read(name, manual, tmp_path)


def read(name, manual, tmp_path):
    builder = tfds.library().builder(name, data_dir=tmp_path)
    builder.download_and_prepare(download_config=library.download.DownloadConfig(manual_dir=manual))
    return examples_of(builder)


def examples_of(builder, *splits):
    """The examples of splits, by default of all, by file name, and the features."""
    undecoded = {"image": library.decode.SkipDecoding()}
    splits = {
        s: library.as_numpy(builder.as_dataset(split=s, decoders=undecoded))
        for s in splits or builder.info.splits
    }
    return {
        s: {e["file_name"].decode(): e for e in examples} for s, examples in splits.items()
    }, builder.info.features


def test_imagenet21k_has_every_image_once_with_its_bytes_and_its_synset(tmp_path):
    splits, features = prepared("imagenet21k/any", write_imagenet21k, tmp_path)
    assert features["label"].names == features["labels"].feature.names == list(WNIDS)
    file_names = [name for split in splits.values() for name in split]
    assert sorted(file_names) == sorted(f"{w}_{i}.JPEG" for w in WNIDS for i in range(NUM_IMAGES))
    for split, examples in splits.items():
        for name, example in examples.items():
            wnid, i = name.removesuffix(".JPEG").split("_")
            k = WNIDS.index(wnid)
            assert (example["label"], example["labels"].tolist()) == (k, [k])
            assert example["image"] == jpeg(100 * k + int(i))
            assert imagenet21k.split_of(name) == split


def test_splits_by_name_have_their_percentages():
    names = [f"n{i % 1000:08d}_{i}.JPEG" for i in range(20_000)]
    splits = [imagenet21k.split_of(name) for name in names]
    for split, rate in (("train", 0.92), ("validation", 0.04), ("test", 0.04)):
        deviation = np.sqrt(rate * (1 - rate) / len(names))
        assert abs(np.mean([s == split for s in splits]) - rate) < 4 * deviation


def test_the_full_release_has_the_number_of_classes_of_the_paper():
    wnids = [f"n{i:08d}" for i in range(21_841)][::-1]
    names = imagenet21k.class_names(wnids, None, True, "here")
    assert names == [*sorted(wnids), "unused_21841", "unused_21842"]
    listed = [*wnids[5:], "n9", "n8", *wnids[:5]]
    assert imagenet21k.class_names(wnids, listed, True, "here") == listed
    with pytest.raises(
        ValueError, match=r"here has 21,840 synsets.* 21,841 to 21,843.*imagenet21k/any"
    ):
        imagenet21k.class_names(wnids[1:], None, True, "here")
    with pytest.raises(
        ValueError, match=r"1 synsets that imagenet21k_wordnet_ids.txt does not list.*n00000007"
    ):
        imagenet21k.class_names(wnids, [w for w in wnids if w != "n00000007"], True, "here")
    with pytest.raises(ValueError, match=r"the synsets \['n00000007'\] twice"):
        imagenet21k.class_names([*wnids[1:], "n00000007"], None, True, "here")


def test_webvision_has_the_classes_of_ilsvrc12_in_their_order(tmp_path):
    splits, features = prepared("webvision", write_webvision, tmp_path)
    assert (
        features["label"].names
        == tfds.library().builder("imagenet2012", data_dir=tmp_path).info.features["label"].names
    )
    labels = {name: int(e["label"]) for split in splits.values() for name, e in split.items()}
    assert labels == {
        "google/q0001/a_1.jpg": 1,
        "google/q0001/b.jpg": 1,
        "google/q0002/c.jpg": 0,
        "flickr/q0001/4.jpg": 1,
        "flickr/q0003/5.jpg": 999,
        "val000001.jpg": 1,
        "val000002.jpg": 7,
    }
    assert splits["train"]["flickr/q0003/5.jpg"]["image"] == jpeg(11)


@pytest.mark.parametrize(("part", "other"), [("google", "flickr"), ("flickr", "google")])
def test_a_part_of_webvision_does_not_require_the_other(tmp_path, part, other):
    def write(directory):
        write_webvision(directory)
        (directory / f"{other}_resized_256.tar").unlink()

    splits, _ = prepared(f"webvision/{part}", write, tmp_path)
    assert {name.partition("/")[0] for name in splits["train"]} == {part}
    assert len(splits["validation"]) == 2


def test_inaturalist2019_has_the_taxonomic_class_of_every_listed_image(tmp_path, capsys):
    splits, features = prepared("inaturalist2019", write_inaturalist2019, tmp_path)
    assert features["label"].names == sorted(set(TAXA))
    assert {split: len(examples) for split, examples in splits.items()} == {
        "train": 2 * len(TAXA),
        "validation": len(TAXA),
    }
    log = capsys.readouterr().out
    for split, examples in splits.items():
        for name, example in examples.items():
            assert features["label"].names[example["label"]] == TAXA[int(name.split("/")[2])]
        counts = collections.Counter(features["label"].names[e["label"]] for e in examples.values())
        for taxon in set(TAXA):
            assert f"{split} has {counts[taxon]} images of {taxon}\n" in log


@pytest.fixture
def tiny(tmp_path):
    """Writes the set from an archive after a change of its files; returns what is read of it."""

    def written(change=lambda parts: None, per_class=None):
        write_tiny_imagenet(tmp_path, change)
        archive = tmp_path / "tiny-imagenet-200.zip"
        folder = tiny_imagenet.write(archive, tmp_path / "data", per_class)
        builder = tfds.library().builder("tiny_imagenet", data_dir=tmp_path / "data")
        assert str(builder.data_path) == str(folder)
        return examples_of(builder)

    return written


def test_tiny_imagenet_has_the_class_and_the_box_of_every_labelled_image(tiny, tmp_path):
    splits, features = tiny()
    assert features["label"].names == ["tench", "goldfish"]
    (ids,) = tmp_path.glob("data/tiny_imagenet/*/label_wnids.txt")
    assert ids.read_text().split() == sorted(TINY_NAMES)
    for k, wnid in enumerate(TINY_NAMES):
        for i in range(2):
            example = splits["train"].pop(f"{wnid}_{i}.JPEG")
            assert (example["label"], example["image"]) == (1 - k, jpeg(10 * k + i, 64, 64))
            expected = [[10 / 64, 0, (59 + i) / 64, 1]]
            np.testing.assert_array_equal(example["objects"]["bbox"], expected)
        example = splits["validation"].pop(f"val_{k}.JPEG")
        assert (example["label"], example["image"]) == (1 - k, jpeg(90 + k, 64, 64))
        np.testing.assert_array_equal(
            example["objects"]["bbox"], [[32 / 64, k / 64, 33 / 64, 45 / 64]]
        )
    assert splits == {"train": {}, "validation": {}}


def test_the_first_training_images_of_each_class_can_be_kept(tiny):
    splits, _ = tiny(per_class=1)
    assert sorted(splits["train"]) == sorted(f"{wnid}_0.JPEG" for wnid in TINY_NAMES)
    assert len(splits["validation"]) == 2
    with pytest.raises(FileExistsError, match=r"1\.0\.0 exists already; remove it"):
        tiny()


@needs("tiny_imagenet")
def test_the_stored_tiny_imagenet_is_what_its_archive_would_give(tiny):
    builder = tfds.library().builder("tiny_imagenet", data_dir=PACK)
    stored = {s: examples_of(builder, f"{s}[:5]")[0][f"{s}[:5]"] for s in builder.info.splits}
    names = builder.info.features["label"].names
    wnids = (builder.data_path / "label_wnids.txt").read_text().split()

    def change(parts):
        parts.clear()
        parts["wnids.txt"] = "\n".join(wnids[::-1])
        parts["words.txt"] = "\n".join(f"{w}\t{name}, others" for w, name in zip(wnids, names))
        parts |= {f"train/{wnid}/{wnid}_boxes.txt": "" for wnid in wnids}
        parts["val/val_annotations.txt"] = ""
        for split, examples in stored.items():
            for name, example in examples.items():
                wnid = wnids[example["label"]]
                ((ymin, xmin, ymax, xmax),) = np.int64(64 * example["objects"]["bbox"])
                box = f"{xmin}\t{ymin}\t{xmax - 1}\t{ymax - 1}\n"
                if split == "train":
                    parts[f"train/{wnid}/{wnid}_boxes.txt"] += f"{name}\t{box}"
                    parts[f"train/{wnid}/images/{name}"] = example["image"]
                else:
                    parts["val/val_annotations.txt"] += f"{name}\t{wnid}\t{box}"
                    parts[f"val/images/{name}"] = example["image"]

    written, features = tiny(change)
    assert features["label"].names == names
    for split, examples in stored.items():
        assert written[split].keys() == examples.keys()
        for name, example in examples.items():
            jax.tree.map(np.testing.assert_array_equal, written[split][name], example)


def annotated(line):
    """A change of the archive: its validation images have this line alone."""
    return lambda parts: parts.update({"val/val_annotations.txt": line})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            annotated("val_0.JPEG\tn7\t0\t0\t1\t1\n"),
            r"zip: val/images/val_0.JPEG is damaged \(its class is n7, which wnids.txt does not",
        ),
        (
            annotated(f"val_0.JPEG\t{WNIDS[0]}\t0\t0\t64\t1\n"),
            r"its box is 0 0 64 1, not within 64x64 pixels\); download it again",
        ),
        (annotated(f"val_0.JPEG\t{WNIDS[0]}\t5\t0\t4\t1\n"), r"its box is 5 0 4 1, not within"),
        (
            annotated(f"val_0.JPEG\t{WNIDS[0]}\t0\t0\t-1\t²\n"),
            r"val_0.JPEG is damaged \(its box is 0 0 -1 ², not four whole numbers",
        ),
        (
            annotated("val_0.JPEG 0 0 1 1\n"),
            r"annotations.txt is damaged \(it has a line of 1 fields, not 6: val_0.JPEG 0 0 1 1",
        ),
        (
            lambda parts: parts.pop("val/images/val_0.JPEG"),
            r"val_0.JPEG is damaged \(it is not there",
        ),
        (
            lambda parts: parts.update({"words.txt": ""}),
            r"words.txt is damaged \(it does not name n01440764",
        ),
    ],
)
def test_a_bad_archive_of_tiny_imagenet_is_an_error_that_names_the_file(tiny, change, message):
    with pytest.raises(ValueError, match=message):
        tiny(change)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda content: content[:-40],
            r"tiny-imagenet-200.zip: it is damaged .*download it again",
        ),
        (
            lambda content: content.replace(jpeg(90, 64, 64), jpeg(90, 64, 64)[::-1]),
            r"val/images/val_0.JPEG is damaged \(Bad CRC-32",
        ),
    ],
)
def test_a_damaged_archive_of_tiny_imagenet_is_an_error_that_says_what_to_do(
    tmp_path, damage, message
):
    write_tiny_imagenet(tmp_path)
    path = tmp_path / "tiny-imagenet-200.zip"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        tiny_imagenet.write(path, tmp_path / "data")
    assert not list(tmp_path.glob("data/tiny_imagenet/*/*.json"))


def test_images_of_inaturalist2019_are_resized_as_a_whole_with_antialiasing(tmp_path):
    tf = tfds.tensorflow()
    splits, _ = prepared("inaturalist2019", write_inaturalist2019, tmp_path)
    _, images = inaturalist2019_parts()
    for name, example in splits["train"].items():
        resized = tf.io.decode_png(example["image"]).numpy()
        with Image.open(io.BytesIO(images[name])) as image:
            pixels = np.asarray(image.convert("RGB"))
        expected = tf.image.resize(pixels, (64, 64), antialias=True).numpy()
        assert np.abs(resized - expected).max() <= 1


def test_inaturalist2019_is_what_its_configs_train_on(tmp_path):
    prepared("inaturalist2019", write_inaturalist2019, tmp_path)
    config = study.config("inaturalist2019_resnet50_hom", {})
    data = pipelines.stored_data(config, str(tmp_path))
    assert len(data.class_names) == config["head"]["num_classes"]
    counts = [TAXA.count(name) for name in data.class_names]
    for split, per_category in (("train", 2), ("test", 1)):
        part = data.splits[split]
        assert part.inputs.shape == (per_category * len(TAXA), 64, 64, 3)
        np.testing.assert_array_equal(np.bincount(part.labels), np.multiply(per_category, counts))


def test_boxes_are_fractions_of_the_annotated_image(tmp_path):
    splits, _ = prepared("imagenet2012_boxes", write_imagenet2012, tmp_path)
    boxes = {
        name: e["objects"]["bbox"].tolist()
        for split in splits.values()
        for name, e in split.items()
    }
    assert boxes == {
        # The second box extends beyond the image.
        f"{WNIDS[0]}_0.JPEG": [[0.25, 0.25, 0.5, 0.5], [0.5, 0.0, 1.0, 1.0]],
        f"{WNIDS[0]}_1.JPEG": [],
        f"{WNIDS[1]}_0.JPEG": [[0.25, 0.25, 0.5, 0.5]],  # annotated at twice the size
        f"{WNIDS[1]}_1.JPEG": [],  # the annotation is in portrait format
        f"{WNIDS[2]}_0.JPEG": [],
        f"{WNIDS[2]}_1.JPEG": [],
        "ILSVRC2012_val_00000001.JPEG": [[0.0, 0.0, 1.0, 1.0]],
        "ILSVRC2012_val_00000002.JPEG": [[0.0, 0.0, 1.0, 1.0]],
    }
    labels = {name: int(e["label"]) for name, e in splits["validation"].items()}
    assert labels == {"ILSVRC2012_val_00000001.JPEG": 65, "ILSVRC2012_val_00000002.JPEG": 970}
    assert splits["train"][f"{WNIDS[1]}_1.JPEG"]["image"] == jpeg(101)


def test_empty_boxes_and_boxes_of_another_class_are_removed():
    annotation = imagenet2012_boxes.parse_annotation(
        xml([(10, 5, 10, 9), (50, 2, 60, 9), (0, 0, 20, 20)]), "x"
    )
    classes = frozenset(WNIDS)
    boxes = imagenet2012_boxes.class_boxes(annotation, (40, 20), WNIDS[0], classes)
    np.testing.assert_array_equal(boxes, [[0, 0, 1, 0.5]])
    assert not len(imagenet2012_boxes.class_boxes(annotation, (40, 20), WNIDS[1], classes))
    unsized = imagenet2012_boxes.parse_annotation(xml([(0, 0, 20, 20)], width="", height=""), "x")
    np.testing.assert_array_equal(
        imagenet2012_boxes.class_boxes(unsized, (80, 20), WNIDS[0], classes),
        [[0, 0, 1, 0.25]],
    )


def test_real_and_v2_have_the_classes_of_imagenet(tmp_path):
    infos = {
        name: tfds.library().builder(name, data_dir=tmp_path).info
        for name in ("imagenet2012", "imagenet_v2", "imagenet2012_real")
    }
    names = infos["imagenet2012"].features["label"].names
    assert infos["imagenet_v2"].features["label"].names == names
    assert infos["imagenet2012_real"].features["real_label"].feature.names == names
    assert infos["imagenet_v2"].full_name == "imagenet_v2/matched-frequency/3.0.0"


def damage(directory, name, change):
    path = directory / name
    path.write_bytes(change(path.read_bytes()))


CASES = {
    "cut in an image": ("imagenet21k/any", "fall11_whole.tar", lambda b: b[:40_000]),
    "cut between synsets": ("imagenet21k/any", "fall11_whole.tar", lambda b: b[:10_752]),
    "damaged header": (
        "imagenet21k/any",
        "fall11_whole.tar",
        lambda b: b[:11_264] + b"x" * 512 + b[11_776:],
    ),
    "not an archive": ("imagenet21k/any", "fall11_whole.tar", lambda b: b"not a tar at all" * 100),
    "cut boxes": ("imagenet2012_boxes", "ILSVRC2012_bbox_train_v2.tar.gz", lambda b: b[:-60]),
    "cut validation": ("imagenet2012_boxes", "ILSVRC2012_img_val.tar", lambda b: b[:1000]),
    "cut lists": ("webvision", "info.tar", lambda b: b[:20_000]),
    "cut images": ("inaturalist2019", "train_val2019.tar.gz", lambda b: b[:20_000]),
    "cut annotations": ("inaturalist2019", "val2019.json.tar.gz", lambda b: b[:150]),
    "cut categories": ("inaturalist2019", "categories.json.tar.gz", lambda b: b[:100]),
}
WRITERS = {
    "imagenet21k/any": write_imagenet21k,
    "imagenet2012_boxes": write_imagenet2012,
    "webvision": write_webvision,
    "inaturalist2019": write_inaturalist2019,
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_archive_is_named_and_nothing_is_prepared(tmp_path, case):
    name, file, change = CASES[case]
    WRITERS[name](tmp_path)
    damage(tmp_path, file, change)
    with pytest.raises(
        ValueError, match=rf"{re.escape(file)}.* damaged or truncated after .*download it again"
    ):
        read(name, tmp_path, tmp_path / "out")
    assert not list(tmp_path.rglob("*.tfrecord*"))


def test_missing_files_are_reported_with_all_required_files(tmp_path):
    write_webvision(tmp_path)
    (tmp_path / "info.tar").unlink()
    (tmp_path / "flickr_resized_256.tar").unlink()
    message = (
        r"missing in \S+: info.tar, flickr_resized_256.tar\.\s+Put these files into manual_dir"
        r"(.|\n)*google_resized_256.tar"
    )
    with pytest.raises(FileNotFoundError, match=message):
        read("webvision", tmp_path, tmp_path / "out")


def test_listed_images_that_are_missing_are_reported(tmp_path):
    write_webvision(tmp_path)
    (tmp_path / "google_resized_256.tar").write_bytes(tar({"google/q0001/b.jpg": jpeg(1)}))
    with pytest.raises(
        ValueError, match=r"google_resized_256.tar lacks 2 of the 3 images .*a_1.jpg"
    ):
        read("webvision", tmp_path, tmp_path / "out")


def test_unknown_synsets_are_reported(tmp_path):
    for name, files in {
        "imagenet21k/any": {"fall11_whole.tar": tar({"readme.txt": b"?"})},
        "imagenet2012_boxes": {"ILSVRC2012_img_train.tar": synsets(1, ["n00000001"])},
        "webvision": {"info.tar": tar({"info/synsets.txt": b"n00000001 thing\n"})},
    }.items():
        directory = tmp_path / name.replace("/", "_")
        directory.mkdir()
        WRITERS[name](directory)
        for file, content in files.items():
            (directory / file).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{next(iter(files))}.*(readme.txt|n00000001)"):
            read(name, directory, directory / "out")


CHANGES = {
    "eight classes": (
        lambda parts, images: parts["categories"].pop(0),
        r"categories.json.tar.gz has 8 taxonomic classes, such as \['Agaricomycetes', .*, but must"
        r" have 9; download the un-obfuscated names",
    ),
    "ten classes": (
        lambda parts, images: parts["categories"].append({"id": 10, "class": "Bivalvia"}),
        r"categories.json.tar.gz has 10 taxonomic classes",
    ),
    "no taxonomy": (
        lambda parts, images: parts["categories"][3].pop("class"),
        r"categories.json.tar.gz: categories is not a table with the fields id, class .*'class'",
    ),
    "unknown category": (
        lambda parts, images: parts["train2019"]["annotations"][-1].update(category_id=77),
        r"train2019.json.tar.gz: train_val2019/Group/0/200.jpg is of category 77, which"
        r" categories.json.tar.gz does not list; download both again",
    ),
    "image without annotation": (
        lambda parts, images: parts["val2019"]["annotations"].pop(),
        r"val2019.json.tar.gz: train_val2019/Group/0/100.jpg has no annotation; download it again",
    ),
    "not JSON": (
        lambda parts, images: parts.update(val2019=b"{"),
        r"val2019.json.tar.gz is not valid JSON .*; download it again",
    ),
    "missing image": (
        lambda parts, images: images.pop("train_val2019/Group/3/103.jpg"),
        r"train_val2019.tar.gz lacks 1 of the 10 images of val2019.json.tar.gz, such as"
        r" \['train_val2019/Group/3/103.jpg'\]; download both again",
    ),
    "damaged image": (
        lambda parts, images: images.update({"train_val2019/Group/3/103.jpg": jpeg(1)[:200]}),
        r"train_val2019.tar.gz: train_val2019/Group/3/103.jpg is not a valid image .*; download it"
        r" again",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_invalid_part_of_inaturalist2019_is_named_and_nothing_is_prepared(tmp_path, change):
    apply, message = CHANGES[change]
    write_inaturalist2019(tmp_path, apply)
    with pytest.raises(ValueError, match=message) as caught:
        read("inaturalist2019", tmp_path, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.tfrecord*"))


def test_a_link_in_an_archive_is_an_error(tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as archive_file:
        info = tarfile.TarInfo("n01440764.tar")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive_file.addfile(info)
    (tmp_path / "a.tar").write_bytes(archive.getvalue())
    with pytest.raises(ValueError, match=r"n01440764.tar is a link or a device"):
        list(archives.members(tmp_path / "a.tar"))


def test_coco_labels_are_the_categories_of_its_boxes(tmp_path):
    sample.write("coco/2017", str(tmp_path), ["train", "validation"])
    builder = tfds.library().builder("coco_labels", data_dir=tmp_path)
    builder.download_and_prepare()
    source = tfds.library().builder("coco/2017", data_dir=tmp_path)
    assert (
        builder.info.features["labels"].feature.names
        == source.info.features["objects"]["label"].names
    )
    for split in ("train", "validation"):
        sources = {e["image/filename"]: e for e in library.as_numpy(source.as_dataset(split=split))}
        copies = list(library.as_numpy(builder.as_dataset(split=split)))
        assert len(copies) == len(sources) == sample.NUM_EXAMPLES
        for example in copies:
            original = sources[example["file_name"]]
            assert example["labels"].tolist() == sorted(set(original["objects"]["label"].tolist()))
            np.testing.assert_array_equal(example["image"], original["image"])
