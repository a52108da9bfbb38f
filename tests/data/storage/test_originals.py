"""Images of examples whose inputs are features."""

import csv
import io
import sys

import numpy as np
import pytest
from PIL import Image

from experiments import study
from heteroscedastic import files
from heteroscedastic.analysis.covariance import summary
from heteroscedastic.analysis.errors import disagreements
from heteroscedastic.analysis.report import comparison, hardest_section, label_errors_section
from heteroscedastic.data.inspect import contact_sheet, views
from heteroscedastic.data.storage import encoded, npz, originals, store
from heteroscedastic.runs import embed, loop

pytest.importorskip("matplotlib", reason="the images are written by matplotlib")

from heteroscedastic.analysis.plots import figures

NAME = "digits_ConvNet"
DATA = {"name": NAME, "splits": {"train": "train[:80%]", "test": {"split": "test", "eval": ""}}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Features of the digits by a small network with random weights."""
    out = tmp_path_factory.mktemp("features")
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "argv", ["embed", "--data=digits", "--backbone=ConvNet", f"--out={out}"])
    embed.main()
    patch.undo()
    return str(out)


@pytest.fixture(scope="module")
def runs(directory, tmp_path_factory):
    """Runs on these features with a head with correlated noise, and with one without noise."""
    settings = {
        "data.name": NAME,
        "data.train": "",
        "data.eval": "",
        "data.standardize": True,
        "backbone": dict(name="MLP", widths=()),
        "training.num_epochs": 1.0,
        "training.checkpoint_epochs": 1.0,
    }
    few, root = {"predictive.num_samples": 8}, tmp_path_factory.mktemp("runs")
    for name, more in (("digits_het_full", few), ("digits_hom", {})):
        loop.train(study.config(name, settings | more), str(root / name), directory)
    return root / "digits_het_full", root / "digits_hom"


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_features_have_the_images_of_the_set_that_they_were_made_from(directory, split):
    stored = "test" if split == "test" else "train"
    digits = store.load("digits").splits[stored]
    features = store.load(NAME, directory).splits[stored].inputs
    rows = np.array([5, 0, 17])
    images = originals.pictures(DATA, directory, split, digits.ids[rows], features[rows])
    np.testing.assert_array_equal(images, digits.inputs[rows])


def test_images_are_their_own_pictures(directory):
    digits = store.load("digits").splits["train"]
    ids, inputs = digits.ids[:3], digits.inputs[:3]
    assert originals.pictures({"name": "digits"}, directory, "train", ids, inputs) is inputs


def test_without_the_original_set_the_features_remain(directory, tmp_path):
    inputs, ids = np.zeros((1, 4), np.float32), np.array([3])
    assert originals.pictures(DATA, None, "train", ids, inputs) is inputs
    assert originals.pictures(DATA, str(tmp_path), "train", ids, inputs) is inputs
    (tmp_path / f"{NAME}.npz").write_bytes((files.as_path(directory) / f"{NAME}.npz").read_bytes())
    assert originals.pictures(DATA, str(tmp_path), "train", ids, inputs) is inputs
    recipe = files.read_json(files.as_path(directory) / f"{NAME}.json")
    for change in ({"data": "elsewhere"}, {"num_examples": {"train": 7}}):
        files.write_json(tmp_path / f"{NAME}.json", recipe | change)
        assert originals.pictures(DATA, str(tmp_path), "train", ids, inputs) is inputs


def test_encoded_images_beside_features_are_for_people(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    features = rng.normal(size=(6, 7)).astype(np.float32)
    data, offsets = encoded.pack([figures.png(image) for image in images])
    arrays = {"class_names": np.array(["a", "b"]), "train_labels": np.arange(6) % 2}
    arrays |= {"train_inputs": features, "train_encoded": data, "train_offsets": offsets}
    files.write_arrays(tmp_path / "mine.npz", arrays)
    split = npz.read(tmp_path / "mine.npz").read(npz.Slice("train", 2, 6))
    np.testing.assert_array_equal(split.images, features[2:])
    assert set(split.fields) == {"label"}
    ids = np.array([4, 1])
    shown = originals.pictures({"name": "mine"}, str(tmp_path), "train", ids, features[ids])
    np.testing.assert_array_equal(shown, images[ids])


@pytest.mark.extended
def test_a_report_about_features_shows_the_images(directory, runs, tmp_path):
    groups = comparison.groups(runs[1:])
    for data_dir, is_shown in ((directory, True), (str(tmp_path), False)):
        runs = comparison.load(groups, data_dir=data_dir)
        for section in (hardest_section.hardest(runs), label_errors_section.label_errors(runs)):
            html = "".join(x for x in section.parts if isinstance(x, str))
            assert ("<img" in html) == is_shown


def drawn_images(monkeypatch, main, *words):
    """The images on the first figure that a command draws."""
    drawn = []
    monkeypatch.setattr(figures, "write", lambda figure, path: drawn.append(figure) or [])
    monkeypatch.setattr(sys, "argv", ["command", *words])
    main()
    return [np.asarray(axes.images[0].get_array()) for axes in drawn[0].axes if axes.images]


def test_analyses_of_features_show_the_images(directory, runs, monkeypatch, tmp_path):
    digits, data_dir = store.load("digits").splits["test"], f"--data_dir={directory}"
    words = "--runs", *map(str, runs), f"--out={tmp_path}", data_dir
    images = drawn_images(monkeypatch, disagreements.main, *words)
    with (tmp_path / "disagreements_test.csv").open() as file:
        ids = [int(row["id"]) for row in csv.DictReader(file)]
    pixels = dict(zip(digits.ids.tolist(), digits.inputs[..., 0]))
    assert images
    for example, image in zip(ids, images):
        np.testing.assert_array_equal(image, pixels[example])
    words = f"--run={runs[0]}", "--split=test", f"--id={ids[0]}", data_dir
    image, *_ = drawn_images(monkeypatch, summary.main, *words)
    np.testing.assert_array_equal(image, pixels[ids[0]])


def test_the_sheet_of_a_config_of_features_shows_the_images(directory, tmp_path):
    config = {"seed": 0, "data": {"name": NAME, "train": "", "eval": ""}}
    sheet = np.asarray(Image.open(io.BytesIO(views.sheet(config, directory))))
    top, left = contact_sheet.position(0, 0, 96, 96)
    shown = sheet[top : top + 96 : 12, left : left + 96 : 12]
    first = store.load("digits").splits["train"].inputs[0]
    np.testing.assert_array_equal(shown, np.broadcast_to(first, (8, 8, 3)))
    (tmp_path / f"{NAME}.npz").write_bytes((files.as_path(directory) / f"{NAME}.npz").read_bytes())
    with pytest.raises(ValueError, match="there are no images to draw; omit --out"):
        views.sheet(config, str(tmp_path))
