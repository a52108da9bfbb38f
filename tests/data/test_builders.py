import collections
import io
import re
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest

from heteroscedastic.data.storage import sample, tfds

library = pytest.importorskip("tensorflow_datasets")
from heteroscedastic.data import builders  # noqa: E402
from heteroscedastic.data.builders import archives, imagenet21k, imagenet2012_boxes  # noqa: E402

EACH = 25  # images of a synset, so that no split is empty
WNIDS = ("n01440764", "n01443537", "n01484850")  # classes 0, 1 and 2 of ILSVRC12


def jpeg(i, height=20, width=40):
    """A real image, another one for every number."""
    digit = np.random.default_rng(i).integers(0, 256, (8, 8)).astype(np.uint8)
    return sample.image(digit, (height, width, 3), "jpeg", i)


def tar(files, mode="w"):
    """The bytes of an archive, with its files in this order."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=mode) as opened:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def synsets(each, wnids=WNIDS):
    """A tar of synset tars, as ImageNet comes."""
    return tar(
        {
            f"{wnid}.tar": tar({f"{wnid}_{i}.JPEG": jpeg(100 * place + i) for i in range(each)})
            for place, wnid in enumerate(wnids)
        }
    )


def xml(boxes, name=WNIDS[0], width=40, height=20):
    objects = "".join(
        f"<object><name>{name}</name><pose>Unspecified</pose><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in boxes
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><folder>f</folder><filename>%s</filename>{size}{objects}</annotation>".encode()


def write_imagenet21k(directory):
    (directory / "fall11_whole.tar").write_bytes(synsets(EACH))


def write_webvision(directory):
    """Class numbers of the lists are another order of the synsets than that of ILSVRC12."""
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


class InLayout(library.testing.DatasetBuilderTestCase):
    """TFDS's own test of a builder, on archives that are written for it."""

    __test__ = False

    @classmethod
    def setUpClass(cls):
        cls.EXAMPLE_DIR = tempfile.mkdtemp()
        cls.WRITE(Path(cls.EXAMPLE_DIR))
        super().setUpClass()


class TestImagenet21k(InLayout):
    __test__ = True
    DATASET_CLASS = builders.Imagenet21k
    BUILDER_CONFIG_NAMES_TO_TEST = ["any"]
    WRITE = staticmethod(write_imagenet21k)
    SPLITS = collections.Counter(
        imagenet21k.split_of(f"{wnid}_{i}.JPEG") for wnid in WNIDS for i in range(EACH)
    )


class TestWebvision(InLayout):
    __test__ = True
    DATASET_CLASS = builders.Webvision
    BUILDER_CONFIG_NAMES_TO_TEST = ["both"]
    WRITE = staticmethod(write_webvision)
    SPLITS = {"train": 5, "validation": 2}


class TestImagenet2012Boxes(InLayout):
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
    undecoded = {"image": library.decode.SkipDecoding()}
    splits = {
        s: library.as_numpy(builder.as_dataset(split=s, decoders=undecoded))
        for s in builder.info.splits
    }
    return {
        s: {e["file_name"].decode(): e for e in found} for s, found in splits.items()
    }, builder.info.features


def test_imagenet21k_has_every_image_once_with_its_bytes_and_its_synset(tmp_path):
    splits, features = prepared("imagenet21k/any", write_imagenet21k, tmp_path)
    assert features["label"].names == features["labels"].feature.names == list(WNIDS)
    found = [name for split in splits.values() for name in split]
    assert sorted(found) == sorted(f"{w}_{i}.JPEG" for w in WNIDS for i in range(EACH))
    for split, examples in splits.items():
        for name, example in examples.items():
            wnid, i = name.removesuffix(".JPEG").split("_")
            place = WNIDS.index(wnid)
            assert (example["label"], example["labels"].tolist()) == (place, [place])
            assert example["image"] == jpeg(100 * place + int(i))
            assert imagenet21k.split_of(name) == split


def test_splits_by_name_have_their_shares():
    names = [f"n{i % 1000:08d}_{i}.JPEG" for i in range(20_000)]
    found = [imagenet21k.split_of(name) for name in names]
    for split, share in (("train", 0.92), ("validation", 0.04), ("test", 0.04)):
        deviation = np.sqrt(share * (1 - share) / len(names))
        assert abs(np.mean([s == split for s in found]) - share) < 4 * deviation


def test_the_whole_release_has_as_many_classes_as_the_paper_says():
    wnids = [f"n{i:08d}" for i in range(21_841)][::-1]
    names = imagenet21k.class_names(wnids, None, True, "here")
    assert names == [*sorted(wnids), "unused_21841", "unused_21842"]
    own_order = [*wnids[5:], "n9", "n8", *wnids[:5]]
    assert imagenet21k.class_names(wnids, own_order, True, "here") == own_order
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


def test_webvision_has_the_classes_of_ilsvrc12_whatever_the_order_of_its_own(tmp_path):
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
def test_a_part_of_webvision_needs_no_other(tmp_path, part, other):
    def write(directory):
        write_webvision(directory)
        (directory / f"{other}_resized_256.tar").unlink()

    splits, _ = prepared(f"webvision/{part}", write, tmp_path)
    assert {name.partition("/")[0] for name in splits["train"]} == {part}
    assert len(splits["validation"]) == 2


def test_boxes_are_shares_of_the_image_that_was_annotated(tmp_path):
    splits, _ = prepared("imagenet2012_boxes", write_imagenet2012, tmp_path)
    boxes = {
        name: e["objects"]["bbox"].tolist()
        for split in splits.values()
        for name, e in split.items()
    }
    assert boxes == {
        f"{WNIDS[0]}_0.JPEG": [
            [0.25, 0.25, 0.5, 0.5],
            [0.5, 0.0, 1.0, 1.0],
        ],  # the second reaches beyond the image
        f"{WNIDS[0]}_1.JPEG": [],
        f"{WNIDS[1]}_0.JPEG": [[0.25, 0.25, 0.5, 0.5]],  # annotated at twice the size
        f"{WNIDS[1]}_1.JPEG": [],  # annotated upright
        f"{WNIDS[2]}_0.JPEG": [],
        f"{WNIDS[2]}_1.JPEG": [],
        "ILSVRC2012_val_00000001.JPEG": [[0.0, 0.0, 1.0, 1.0]],
        "ILSVRC2012_val_00000002.JPEG": [[0.0, 0.0, 1.0, 1.0]],
    }
    labels = {name: int(e["label"]) for name, e in splits["validation"].items()}
    assert labels == {"ILSVRC2012_val_00000001.JPEG": 65, "ILSVRC2012_val_00000002.JPEG": 970}
    assert splits["train"][f"{WNIDS[1]}_1.JPEG"]["image"] == jpeg(101)


def test_boxes_of_nothing_or_of_another_class_are_left_out():
    found = imagenet2012_boxes.annotation(
        xml([(10, 5, 10, 9), (50, 2, 60, 9), (0, 0, 20, 20)]), "x"
    )
    kept = imagenet2012_boxes.boxes_within(found, (40, 20), WNIDS[0], frozenset(WNIDS))
    np.testing.assert_array_equal(kept, [[0, 0, 1, 0.5]])
    assert not len(imagenet2012_boxes.boxes_within(found, (40, 20), WNIDS[1], frozenset(WNIDS)))
    unsized = imagenet2012_boxes.annotation(xml([(0, 0, 20, 20)], width="", height=""), "x")
    np.testing.assert_array_equal(
        imagenet2012_boxes.boxes_within(unsized, (80, 20), WNIDS[0], frozenset(WNIDS)),
        [[0, 0, 1, 0.25]],
    )


def test_real_and_v2_have_the_classes_of_imagenet(tmp_path):
    opened = {
        name: tfds.library().builder(name, data_dir=tmp_path).info
        for name in ("imagenet2012", "imagenet_v2", "imagenet2012_real")
    }
    names = opened["imagenet2012"].features["label"].names
    assert opened["imagenet_v2"].features["label"].names == names
    assert opened["imagenet2012_real"].features["real_label"].feature.names == names
    assert opened["imagenet_v2"].full_name == "imagenet_v2/matched-frequency/3.0.0"


def damaged(directory, name, change):
    path = directory / name
    path.write_bytes(change(path.read_bytes()))


CASES = {
    "cut in an image": ("imagenet21k/any", "fall11_whole.tar", lambda b: b[:40_000]),
    "cut between synsets": ("imagenet21k/any", "fall11_whole.tar", lambda b: b[:10_752]),
    "header spoilt": (
        "imagenet21k/any",
        "fall11_whole.tar",
        lambda b: b[:11_264] + b"x" * 512 + b[11_776:],
    ),
    "no archive": ("imagenet21k/any", "fall11_whole.tar", lambda b: b"not a tar at all" * 100),
    "cut boxes": ("imagenet2012_boxes", "ILSVRC2012_bbox_train_v2.tar.gz", lambda b: b[:-60]),
    "cut validation": ("imagenet2012_boxes", "ILSVRC2012_img_val.tar", lambda b: b[:1000]),
    "lists cut": ("webvision", "info.tar", lambda b: b[:20_000]),
}
WRITERS = {
    "imagenet21k/any": write_imagenet21k,
    "imagenet2012_boxes": write_imagenet2012,
    "webvision": write_webvision,
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_archive_is_named_and_nothing_is_prepared(tmp_path, case):
    name, file, change = CASES[case]
    WRITERS[name](tmp_path)
    damaged(tmp_path, file, change)
    with pytest.raises(
        ValueError, match=rf"{re.escape(file)}.* damaged or cut short at .*download it again"
    ):
        read(name, tmp_path, tmp_path / "out")
    assert not list(tmp_path.rglob("*.tfrecord*"))


def test_what_is_missing_is_told_with_all_files_that_are_needed(tmp_path):
    write_webvision(tmp_path)
    (tmp_path / "info.tar").unlink()
    (tmp_path / "flickr_resized_256.tar").unlink()
    told = r"lacks info.tar, flickr_resized_256.tar\.\s+manual_dir must hold(.|\n)*google_resized_256.tar"
    with pytest.raises(FileNotFoundError, match=told):
        read("webvision", tmp_path, tmp_path / "out")


def test_images_that_a_list_names_and_the_archive_lacks_are_told(tmp_path):
    write_webvision(tmp_path)
    (tmp_path / "google_resized_256.tar").write_bytes(tar({"google/q0001/b.jpg": jpeg(1)}))
    with pytest.raises(
        ValueError, match=r"google_resized_256.tar lacks 2 of the 3 images .*a_1.jpg"
    ):
        read("webvision", tmp_path, tmp_path / "out")


def test_unknown_synsets_are_told(tmp_path):
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


def test_a_link_in_an_archive_is_refused(tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as opened:
        info = tarfile.TarInfo("n01440764.tar")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(info)
    (tmp_path / "a.tar").write_bytes(archive.getvalue())
    with pytest.raises(ValueError, match=r"n01440764.tar is no file but a link"):
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
        theirs = {e["image/filename"]: e for e in library.as_numpy(source.as_dataset(split=split))}
        ours = list(library.as_numpy(builder.as_dataset(split=split)))
        assert len(ours) == len(theirs) == sample.NUM_EXAMPLES
        for example in ours:
            other = theirs[example["file_name"]]
            assert example["labels"].tolist() == sorted(set(other["objects"]["label"].tolist()))
            np.testing.assert_array_equal(example["image"], other["image"])
