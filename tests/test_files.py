import csv
import json
import socket
import time

import numpy as np
import pytest

from heteroscedastic import files


def fill_and_fail(file):
    file.write(b"half of it")
    raise RuntimeError("the disk is full")


def interrupt(file):
    file.write(b"half of it")
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("write", "error"), [(fill_and_fail, RuntimeError), (interrupt, KeyboardInterrupt)]
)
@pytest.mark.parametrize("old", [b"the old file", None])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, write, error, old):
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)
    with pytest.raises(error):
        files.write_whole(path, write)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_what_is_no_json_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    files.write_json(path, [1])
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_there_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"

    files.write_whole(path, write)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_on_the_way_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "file.json"
    files.write_json(path, 1)
    assert files.read_json(str(path)) == 1


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, True], "b": {"c": "ü"}}, [], "text", 0.1 + 0.2, 1e300]
)
def test_json_comes_back_as_it_was(tmp_path, value):
    files.write_json(tmp_path / "file.json", value)
    assert files.read_json(tmp_path / "file.json") == value


def test_what_json_does_not_know_is_written_as_what_it_knows(tmp_path):
    path = tmp_path / "file.json"
    value = {
        "a": np.array([[1.0, np.nan]]),
        3: (np.float32("inf"), np.int64(2), np.bool_(True)),
        "b": np.array(-np.inf),
    }
    files.write_json(path, value)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "a": [[1.0, None]],
        "3": [None, 2, True],
        "b": None,
    }


def test_arrays_come_back_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, (3, 4, 4, 1)).astype(np.uint8),
        "logits": np.array([np.nan, -np.inf, 1e-40], np.float32),
        "names": np.array(["Zürich", ""]),
        "none": np.zeros((0, 2)),
    }
    files.write_arrays(tmp_path / "file.npz", arrays)
    with np.load(tmp_path / "file.npz", allow_pickle=False) as found:
        assert set(found.files) == set(arrays)
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def test_everybody_may_read_what_is_written(tmp_path):
    files.write_json(tmp_path / "file.json", 1)
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == 0o644


def test_a_table_is_read_back_whatever_its_names_hold(tmp_path):
    rows = [{"class": "tench, Tinca tinca", "share": 0.1 + 0.2}, {"class": 'a "b"', "share": 0.0}]
    files.write_csv(tmp_path / "a.csv", rows)
    with (tmp_path / "a.csv").open(newline="") as file:
        assert [{**row, "share": float(row["share"])} for row in csv.DictReader(file)] == rows


def test_a_bucket_that_does_not_answer_is_one_line_in_bounded_time(monkeypatch):
    with socket.create_server(("localhost", 0)) as silent:  # takes connections, and says nothing
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{silent.getsockname()[1]}")
        monkeypatch.setattr(files, "_SECONDS_TO_REACH", 1.0)
        began = time.monotonic()
        with pytest.raises(
            OSError, match=r"gs://nobody/run cannot be reached \(.*check the network"
        ) as caught:
            files.reach(files.as_path("gs://nobody/run"))
    assert len(str(caught.value).splitlines()) == 1
    assert time.monotonic() - began < 10
    files.reach(files.as_path("a/path/on/a/disk"))
