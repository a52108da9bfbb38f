"""Mosaics of four images, with their classes as labels."""

import numpy as np
import pytest

from experiments.correlated_label_noise import mosaics
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store

NUMBER, SIZE = 45, 3


def images():
    """Images of one value, which is their position, and of five classes."""
    pixels = np.arange(NUMBER, dtype=np.uint8)[:, None, None, None]
    pixels = np.broadcast_to(pixels, (NUMBER, SIZE, SIZE, 3))
    return Split(pixels, np.arange(NUMBER) % 5, np.arange(NUMBER, dtype=np.int32), {})


def test_the_quarters_are_whole_images_none_is_used_twice_and_labels_are_their_classes():
    made = mosaics.mosaics(images(), 11, seed=0)
    assert made.inputs.shape == (11, 2 * SIZE, 2 * SIZE, 3)
    quarters = made.inputs.reshape(11, 2, SIZE, 2, SIZE, 3).transpose(0, 1, 3, 2, 4, 5)
    quarters = quarters.reshape(11, 4, -1)
    used = quarters[:, :, 0].astype(int)
    np.testing.assert_array_equal(quarters, np.broadcast_to(used[..., None], quarters.shape))
    assert len(set(used.ravel())) == used.size == 44
    for labels, positions in zip(made.labels, used):
        present = labels[: (labels >= 0).sum()].tolist()  # padding is at the end
        assert present == sorted(set(positions % 5))  # a class once, though two images show it
    assert (made.labels < 0).any()
    assert not np.array_equal(made.inputs, mosaics.mosaics(images(), 11, seed=1).inputs)
    with pytest.raises(ValueError, match="12 mosaics need 48 images, but the split has 45"):
        mosaics.mosaics(images(), 12, seed=0)


def test_the_command_writes_a_data_set_with_lists_of_labels(tmp_path, monkeypatch, capsys):
    data = Dataset({"train": images(), "test": images()}, tuple("abcde"))
    monkeypatch.setattr(store, "load", lambda *_, **__: data)
    monkeypatch.setattr(mosaics, "_SIZES", {"train": 10, "test": 4})
    monkeypatch.setattr("sys.argv", ["mosaics", f"--out={tmp_path}"])
    mosaics.main()
    assert "labels a mosaic" in capsys.readouterr().out
    monkeypatch.undo()
    written = store.load(mosaics.NAME, str(tmp_path))
    assert {name: len(x.ids) for name, x in written.splits.items()} == {"train": 10, "test": 4}
    assert written.splits["test"].labels.shape == (4, 4)
    monkeypatch.setattr("sys.argv", ["mosaics", f"--out={tmp_path}"])
    with pytest.raises(SystemExit, match="exists already"):
        mosaics.main()
