import csv
import json
import socket
import time

import numpy as np
import pytest

from heteroscedastic import files, user_errors


def fill_and_fail(file):
    file.write(b"the first half")
    raise RuntimeError("the disk is full")


def interrupt(file):
    file.write(b"the first half")
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
        files.write_atomically(path, write)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_numbers_that_are_not_finite_are_null_in_a_file_and_nan_again(tmp_path):
    values = {"a": [1.5, np.nan], "b": {"c": np.inf, "d": "text"}}
    files.write_json(tmp_path / "file.json", values)
    written = files.read_json(tmp_path / "file.json")
    assert written == {"a": [1.5, None], "b": {"c": None, "d": "text"}}
    found = files.nan_for_null(written)
    assert found["a"][0] == 1.5
    assert np.isnan([found["a"][1], found["b"]["c"]]).all()
    assert found["b"]["d"] == "text"


def test_a_value_that_is_not_json_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    files.write_json(path, [1])
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == [1]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe["])
def test_a_file_that_is_not_json_is_an_error_of_the_user_that_names_it(tmp_path, content):
    path = tmp_path / "numbers.json"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"numbers\.json is not JSON: .*; repair or replace it"
    ) as error:
        files.read_json(path)
    assert user_errors.message(error.value)


def test_the_old_file_exists_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"

    files.write_atomically(path, write)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_parent_folders_are_created(tmp_path):
    path = tmp_path / "a" / "b" / "file.json"
    files.write_json(path, 1)
    assert files.read_json(str(path)) == 1


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, True], "b": {"c": "ü"}}, [], "text", 0.1 + 0.2, 1e300]
)
def test_json_is_read_back_unchanged(tmp_path, value):
    files.write_json(tmp_path / "file.json", value)
    assert files.read_json(tmp_path / "file.json") == value


def test_other_types_are_converted_to_json(tmp_path):
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


def test_arrays_are_read_back_unchanged(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, (3, 4, 4, 1)).astype(np.uint8),
        "logits": np.array([np.nan, -np.inf, 1e-40], np.float32),
        "names": np.array(["Zürich", ""]),
        "none": np.zeros((0, 2)),
    }
    files.write_arrays(tmp_path / "file.npz", arrays)
    with np.load(tmp_path / "file.npz", allow_pickle=False) as loaded:
        assert set(loaded.files) == set(arrays)
        for name, array in arrays.items():
            assert loaded[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array)


def test_files_are_readable_by_everybody(tmp_path):
    files.write_json(tmp_path / "file.json", 1)
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == 0o644


def test_a_table_with_quotes_and_commas_is_read_back_unchanged(tmp_path):
    rows = [{"class": "tench, Tinca tinca", "rate": 0.1 + 0.2}, {"class": 'a "b"', "rate": 0.0}]
    files.write_csv(tmp_path / "a.csv", rows)
    with (tmp_path / "a.csv").open(newline="") as file:
        assert [{**row, "rate": float(row["rate"])} for row in csv.DictReader(file)] == rows


def test_a_bucket_that_does_not_answer_is_an_error_of_one_line_within_the_timeout(monkeypatch):
    with socket.create_server(("localhost", 0)) as silent:  # accepts connections and never answers
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{silent.getsockname()[1]}")
        monkeypatch.setattr(files.paths, "_TIMEOUT", 1.0)
        start = time.monotonic()
        with pytest.raises(
            OSError, match=r"gs://nobody/run cannot be reached \(.*check the network"
        ) as caught:
            files.reach(files.as_path("gs://nobody/run"))
    assert len(str(caught.value).splitlines()) == 1
    assert time.monotonic() - start < 10
    files.reach(files.as_path("a/path/on/a/disk"))
