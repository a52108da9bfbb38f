import re
import sys

import numpy as np
import pytest

from heteroscedastic.data.storage import sample, tfds

library = pytest.importorskip("tensorflow_datasets")
import tensorflow as tf  # noqa: E402

from heteroscedastic.data.builders import multilabel  # noqa: E402

NAMES = ("cat", "dog", "owl")
LISTS = ([0], [2, 0, 2], [], [1, 2])


def image(i):
    digit = np.random.default_rng(i).integers(0, 256, (8, 8)).astype(np.uint8)
    return sample.image(digit, (None, None, 3), "jpeg", i)


def record(i, labels, **changes):
    """An example of TFRecords, serialized."""
    fields = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image(i)])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=labels)),
        "image/filename": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"%d.jpg" % i])),
    } | changes
    present = {name: value for name, value in fields.items() if value is not None}
    return tf.train.Example(features=tf.train.Features(feature=present)).SerializeToString()


def text(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def write_records(path, records):
    with tf.io.TFRecordWriter(str(path)) as file:
        for serialized in records:
            file.write(serialized)


def read(folder):
    builder = tfds.library().builder(folder.parent.name, data_dir=folder.parent.parent)
    undecoded = {"image": library.decode.SkipDecoding()}
    splits = {
        s: library.as_numpy(builder.as_dataset(split=s, decoders=undecoded))
        for s in builder.info.splits
    }
    return builder.info.features, {
        s: {e["file_name"].decode(): e for e in es} for s, es in splits.items()
    }


def command(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["multilabel", *flags])
    multilabel.main()


def test_records_become_a_set_that_is_opened_by_name(tmp_path, monkeypatch):
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
    for part in range(2):
        write_records(
            tmp_path / f"train-{part}", [record(i, LISTS[i]) for i in (2 * part, 2 * part + 1)]
        )
    write_records(
        tmp_path / "test-0", [record(9, [1], **{"image/filename": None, "image/class/label": None})]
    )
    flags = [f"--split=train={tmp_path}/train-*", f"--split=test={tmp_path}/test-0"]
    command(
        monkeypatch,
        "--name=pets",
        f"--data_dir={tmp_path}",
        f"--class_names={tmp_path}/names.txt",
        *flags,
    )
    features, splits = read(tmp_path / "pets" / "1.0.0")
    assert tuple(features["labels"].feature.names) == NAMES
    assert {n: e["labels"].tolist() for n, e in splits["train"].items()} == {
        "0.jpg": [0],
        "1.jpg": [0, 2],
        "2.jpg": [],
        "3.jpg": [1, 2],
    }
    assert {n: e["labels"].tolist() for n, e in splits["test"].items()} == {"test-0-0": []}
    assert all(e["image"] == image(int(n[0])) for n, e in splits["train"].items())
    with pytest.raises(SystemExit, match=r"pets/1.0.0 exists already"):
        command(monkeypatch, "--name=pets", f"--data_dir={tmp_path}", "--num_classes=3", *flags)


def test_a_blank_line_among_class_names_is_an_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "names.txt").write_text("cat\n\ndog\n")
    with pytest.raises(SystemExit):
        command(
            monkeypatch,
            *("--name=pets", f"--data_dir={tmp_path}", f"--class_names={tmp_path}/names.txt"),
            f"--split=train={tmp_path}/train-*",
        )
    assert "line 2 is blank" in capsys.readouterr().err


def test_python_writes_the_same_set_in_the_given_number_of_files(tmp_path):
    examples = [(f"{i}.jpg", image(i), labels) for i, labels in enumerate(LISTS)]
    folder = multilabel.write(
        "pets", tmp_path, {"train": iter(examples)}, NAMES, version="2.1.0", num_shards=2
    )
    assert folder == tmp_path / "pets" / "2.1.0"
    assert len(list(folder.glob("*.tfrecord*"))) == 2
    _, splits = read(folder)
    assert {n: e["labels"].tolist() for n, e in splits["train"].items()} == {
        name: sorted(set(labels)) for name, _, labels in examples
    }


def bytes_feature(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"image/encoded": None},
            r"record 1 has 0 values of image/encoded.*\['image/class/label', 'image/filename'\]",
        ),
        (
            {"image/encoded": bytes_feature(b"GIF89a")},
            r"train: the image of 1.jpg is not a JPEG or PNG",
        ),
        (
            {"image/class/label": bytes_feature(b"cat")},
            r"record 1: image/class/label must be a list of int64",
        ),
        ({}, r"train: 1.jpg has labels \[0, 3\], but the classes are 0 to 2"),
    ],
)
def test_an_invalid_record_is_named_and_nothing_is_written(tmp_path, changes, message):
    write_records(tmp_path / "a", [record(0, [0]), record(1, [3, 0], **changes)])
    with pytest.raises(ValueError, match=message):
        multilabel.write(
            "pets", tmp_path / "out", {"train": multilabel.examples([tmp_path / "a"])}, NAMES
        )
    assert not list((tmp_path / "out").rglob("*.tfrecord*"))


def test_names_that_are_equal_and_splits_without_examples_are_errors_of_one_line(
    tmp_path, monkeypatch, capsys
):
    records = {
        "equal": [record(0, [0]), record(0, [1])],
        "none": [],
        "latin": [record(0, [0], **{"image/filename": text(b"\xe9.jpg")})],
        "empty": [record(i, [i], **{"image/filename": text(b"")}) for i in range(2)],
    }
    for name, of_file in records.items():
        write_records(tmp_path / f"{name}-0", of_file)
    start = ["--name=pets", f"--data_dir={tmp_path}", "--num_classes=3"]
    for name, message in (
        ("equal", "pets cannot be written: .* names must differ, which are image/filename or"),
        ("none", "pets cannot be written: .* Each split needs examples"),
        ("latin", "record 0: image/filename b'.*' is not UTF-8"),
    ):
        with pytest.raises(SystemExit, match=message):
            command(monkeypatch, *start, f"--split=train={tmp_path}/{name}-*")
        assert not (tmp_path / "pets" / "1.0.0").exists()
    twice = [f"--split=train={tmp_path}/{name}-*" for name in ("equal", "empty")]
    with pytest.raises(SystemExit):
        command(monkeypatch, *start, *twice)
    assert "train is given twice; one pattern must match all" in capsys.readouterr().err
    command(monkeypatch, *start, twice[1])
    _, splits = read(tmp_path / "pets" / "1.0.0")
    assert set(splits["train"]) == {"empty-0-0", "empty-0-1"}


def test_damaged_records_are_named(tmp_path):
    write_records(tmp_path / "a", [record(0, [0]), record(1, [1])])
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[:-5])
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}/a: record 1 is damaged"):
        list(multilabel.examples([tmp_path / "a"]))
    write_records(tmp_path / "a", [b"\xff\xff nothing"])
    with pytest.raises(ValueError, match=r"a: record 0 is not a tf.train.Example"):
        list(multilabel.examples([tmp_path / "a"]))
