import json
import resource

import numpy as np
import pytest

from heteroscedastic.training import workdir

CONFIG = {"head": {"name": "LowRank"}}
DATA = {"fingerprint": "0123456789abcdef", "num_examples": {"train": 9}}


@pytest.fixture
def begun(tmp_path):
    """A directory in which a run was begun."""
    with workdir.claimed(tmp_path, CONFIG) as done:
        assert done is None
        workdir.claim_data(tmp_path, DATA)
        writer = workdir.Writer(tmp_path, 0)
        for step in (10, 20, 30):
            writer.write(step, {"loss": 1 / step})
    return tmp_path


def begin_again(path):
    with workdir.claimed(path, CONFIG):
        workdir.claim_data(path, DATA)
        workdir.Writer(path, 30)


@pytest.mark.parametrize("damage", [b"", b'{"head": {"na', b"null", b"{}", b"\xff\xfe\x00"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("config.json", "bring it back, or remove .* to begin again"),
        ("dataset.json", "remove it, and the same command writes it again"),
        ("results.json", "remove it, and the same command writes it again"),
    ],
)
def test_a_damaged_file_is_named_with_its_remedy_and_stays(begun, name, damage, remedy):
    (begun / name).write_bytes(damage)
    with pytest.raises(workdir.WorkdirError, match=rf"{name} is damaged \(.*\); {remedy}"):
        begin_again(begun)
    assert (begun / name).read_bytes() == damage


@pytest.mark.parametrize("damage", ['{"step": 2', "null", '{"loss": 1}', "\0\0\0"])
def test_a_damaged_line_is_told_and_removing_it_is_enough(begun, damage):
    path = begun / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], damage, lines[2]]) + "\n")
    with pytest.raises(workdir.WorkdirError, match=r"metrics.jsonl is damaged; mend or remove this line"):
        begin_again(begun)
    path.write_text("\n".join([lines[0], lines[2]]) + "\n")
    begin_again(begun)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 30]


def test_half_a_line_at_the_end_is_written_again(begun):
    path = begun / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 4')
    begin_again(begun)
    assert path.read_bytes() == whole


def test_a_line_that_the_disk_has_no_room_for_names_the_file_and_spoils_nothing(begun):
    path = begun / "metrics.jsonl"
    whole = path.read_bytes()
    writer = workdir.Writer(begun, 30)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*metrics.jsonl"):
            writer.write(40, {"loss": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole
    begin_again(begun)
    assert path.read_bytes() == whole


def test_what_a_kill_left_half_written_is_removed(begun):
    (begun / "predictions").mkdir()
    (begun / "predictions" / ".test.npz.123.tmp").write_bytes(b"half")
    begin_again(begun)
    assert not list((begun / "predictions").iterdir())


def test_a_metric_that_is_nan_is_nan_again_for_who_reads_the_results(begun):
    workdir.files.write_json(
        begun / "results.json", {"evals": {"test": {"nll": float("nan"), "ece": 0.5}}, "best_step": None}
    )
    with workdir.claimed(begun, CONFIG) as done:
        assert np.isnan(done["evals"]["test"]["nll"])
        assert (done["evals"]["test"]["ece"], done["best_step"]) == (0.5, None)
