import contextlib
import json
import resource
from types import SimpleNamespace

import numpy as np
import pytest

from heteroscedastic.runs import provenance, run_record, workdir

CONFIG = {"head": {"name": "LowRank"}}
DATA = {"fingerprint": "0123456789abcdef", "num_examples": {"train": 9}, "class_names": ["a", "b"]}


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


@pytest.mark.parametrize("name", ["lr=[0.1]", "a\\b"])
def test_a_path_by_which_checkpoints_are_not_found_again_is_refused_before_anything_is_written(
    tmp_path, name
):
    claimed = workdir.claimed(tmp_path / name, CONFIG)
    with pytest.raises(run_record.WorkdirError, match="checkpoints cannot be read"), claimed:
        pass
    assert not (tmp_path / name).exists()


def test_a_run_that_another_process_finished_before_the_lock_is_complete(begun, monkeypatch):
    locked, digest = workdir._locked, provenance.digest([{"step": 20}])
    results = {"evals": {}, "step": 20, "metrics_digest": digest}
    (begun / "metrics.jsonl").write_text("damaged\n")  # so it writes within the lock
    monkeypatch.setattr(workdir.checkpoint, "saved_lines", lambda *_: ['{"step": 20}\n'])

    @contextlib.contextmanager
    def late(path):
        (path / "results.json").write_text(json.dumps(results))
        with locked(path):
            yield

    monkeypatch.setattr(workdir, "_locked", late)
    monkeypatch.setattr(run_record, "read", lambda _: SimpleNamespace(results=results))
    with workdir.claimed(begun, CONFIG) as found:
        assert found == results
    assert (begun / "metrics.jsonl").read_text() == '{"step": 20}\n'


def test_lines_that_were_added_to_a_complete_run_are_removed(begun, monkeypatch):
    results = {"evals": {}, "step": 20, "metrics_digest": provenance.digest([{"step": 20}])}
    (begun / "results.json").write_text(json.dumps(results))
    (begun / "metrics.jsonl").write_text('{"step": 20}\n{"step": 25}\n')
    monkeypatch.setattr(run_record, "read", lambda _: SimpleNamespace(results=results))
    monkeypatch.setattr(workdir.checkpoint, "saved_lines", lambda *_: ['{"step": 20}\n'])
    monkeypatch.setattr(
        run_record, "metrics", lambda _: (_ for _ in ()).throw(workdir.WorkdirError("changed"))
    )
    with workdir.claimed(begun, CONFIG) as found:
        assert found == results
    assert (begun / "metrics.jsonl").read_text() == '{"step": 20}\n'


@pytest.mark.parametrize("damage", [b"", b'{"head": {"na', b"null", b"{}", b"\xff\xfe\x00"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("config.json", "restore it, or remove .* to start the run again"),
        ("dataset.json", "remove it, and the same command writes it again"),
        ("results.json", "remove it, and the same command writes it again"),
    ],
)
def test_a_damaged_file_is_named_with_its_remedy_and_stays(begun, name, damage, remedy):
    (begun / name).write_bytes(damage)
    with pytest.raises(workdir.WorkdirError, match=rf"{name} is damaged \(.*\); {remedy}"):
        begin_again(begun)
    assert (begun / name).read_bytes() == damage


DAMAGED = {
    "torn": lambda lines: [lines[0], '{"step": 2\n', lines[2]],
    "null": lambda lines: [lines[0], "null\n", lines[2]],
    "without a step": lambda lines: [lines[0], '{"loss": 1}\n', lines[2]],
    "a step that is a text": lambda lines: [lines[0], '{"step": "20"}\n', lines[2]],
    "missing": lambda lines: [lines[0], lines[2]],
    "twice": lambda lines: [*lines[:2], lines[1], lines[2]],
    "out of order": lambda lines: lines[::-1],
    "changed": lambda lines: [lines[0], '{"step": 20, "loss": 9.0}\n', lines[2]],
    "of another step": lambda lines: [*lines[:2], '{"step": 25, "loss": 9.0}\n', lines[2]],
    "all missing": lambda lines: [],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_lines_that_the_checkpoint_has_are_restored_and_reported_in_one_line(begun, damage, caplog):
    path = begun / "metrics.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(DAMAGED[damage](whole)))
    workdir.Writer(begun, 30, whole)
    assert path.read_text().splitlines(keepends=True) == whole
    (said,) = caplog.messages
    assert "metrics.jsonl differed from what the run wrote" in said
    assert "restored the lines from the checkpoint" in said
    caplog.clear()
    workdir.Writer(begun, 30, whole)
    path.unlink()
    workdir.Writer(begun, 30, whole)
    assert path.read_text().splitlines(keepends=True) == whole
    assert ["3 missing" in said for said in caplog.messages] == [True]


@pytest.mark.parametrize(
    "damage", sorted(set(DAMAGED) - {"missing", "changed", "of another step", "all missing"})
)
def test_without_lines_in_the_checkpoint_those_that_can_be_read_are_kept_in_order(
    begun, damage, caplog
):
    path = begun / "metrics.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(DAMAGED[damage](whole)))
    workdir.Writer(begun, 30)
    lines = path.read_text().splitlines(keepends=True)
    assert lines == (whole if damage in ("twice", "out of order") else [whole[0], whole[2]])
    assert "removed them" in caplog.messages[0]


def test_half_a_line_at_the_end_is_written_again(begun):
    path = begun / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 4')
    begin_again(begun)
    assert path.read_bytes() == whole


def test_on_a_disk_a_line_is_appended_and_the_file_is_not_written_again(begun):
    path = begun / "metrics.jsonl"
    writer = workdir.Writer(begun, 30)
    before, inode = path.read_bytes(), path.stat().st_ino
    writer.write(40, {"loss": 0.5})
    assert path.read_bytes() == before + b'{"step": 40, "loss": 0.5}\n'
    assert path.stat().st_ino == inode


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


def test_strangers_files_stay_where_they_are(begun, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / ".test.npz.12.tmp").write_bytes(b"theirs")
    names = (
        ".notes.tmp",
        ".config.json.backup.tmp",
        ".results.json.tmp",
        "notes/.config.json.12.tmp",
        ".a.npz.3.tmp",
    )
    for name in names:
        (begun / name).parent.mkdir(exist_ok=True)
        (begun / name).write_bytes(b"theirs")
    (begun / ".config.json.7.tmp").symlink_to(other / ".test.npz.12.tmp")
    (begun / "predictions").symlink_to(other)
    begin_again(begun)
    assert all((begun / name).read_bytes() == b"theirs" for name in names)
    assert (other / ".test.npz.12.tmp").read_bytes() == b"theirs"
    assert (begun / ".config.json.7.tmp").is_symlink()


def test_a_metric_that_is_nan_is_nan_again_for_who_reads_the_results():
    results = {"evals": {"test": {"nll": None, "ece": 0.5}}, "best_step": None}
    found = run_record.as_measured(results)
    assert np.isnan(found["evals"]["test"]["nll"])
    assert (found["evals"]["test"]["ece"], found["best_step"]) == (0.5, None)


def test_a_run_that_an_earlier_version_began_keeps_the_owner_by_which_its_checkpoints_are_known(
    tmp_path, caplog
):
    data = DATA | {"fingerprint": "new", "examples_fingerprint": "old"}
    workdir.files.write_json(tmp_path / "config.json", CONFIG)
    workdir.files.write_json(tmp_path / "dataset.json", DATA | {"fingerprint": "old"})
    former = provenance.owner(CONFIG, "old")
    assert workdir.claim_data(tmp_path, data) == former != provenance.owner(CONFIG, "new")
    assert ["began with an earlier version" in said for said in caplog.messages] == [True]
    assert workdir.claim_data(tmp_path, data) == former  # and from now on it is recorded
    assert len(caplog.messages) == 1
    (tmp_path / "dataset.json").unlink()
    assert workdir.claim_data(tmp_path, data) == provenance.owner(CONFIG, "new")
    (tmp_path / "dataset.json").unlink()
    workdir.files.write_json(
        tmp_path / "checkpoints" / "3" / "told" / "metadata", {"owner": former}
    )
    assert workdir.claim_data(tmp_path, data) == former


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_names": ["b", "a"]}, "began with other data .*other class names"),
        ({"fingerprint": "other"}, "began with other data"),
    ],
)
def test_other_data_or_class_names_are_refused(begun, change, message):
    with pytest.raises(workdir.WorkdirError, match=message):
        workdir.claim_data(begun, DATA | change)


@pytest.mark.parametrize(
    "change", [{"class_names": ["b", "a"]}, {"num_examples": {"train": 8}}, {"owner": "me"}]
)
def test_an_edited_record_of_the_data_is_named_with_what_to_do(begun, change):
    path = begun / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(
        workdir.WorkdirError, match=r"dataset.json was changed after the run wrote it.*; remove it"
    ):
        begin_again(begun)
    path.unlink()
    begin_again(begun)


def test_the_record_of_another_runs_data_is_named_with_what_to_do(begun, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    workdir.files.write_json(other / "config.json", CONFIG | {"seed": 1})
    workdir.claim_data(other, DATA)
    (begun / "dataset.json").write_bytes((other / "dataset.json").read_bytes())
    with pytest.raises(
        workdir.WorkdirError, match=r"dataset.json belongs to a run of another config; remove it"
    ):
        begin_again(begun)


def test_other_formatting_changes_nothing(begun):
    paths = [begun / "config.json", begun / "dataset.json"]
    for path in paths:
        path.write_text(json.dumps(json.loads(path.read_text()), indent=7, sort_keys=True))
    texts = [path.read_text() for path in paths]
    begin_again(begun)
    assert [path.read_text() for path in paths] == texts


def test_a_directory_that_was_renamed_is_not_made_again(begun):
    writer = workdir.Writer(begun, 30)
    moved = begun.rename(begun.parent / "moved")
    for write in (
        lambda: writer.write(40, {"loss": 0.5}),
        lambda: workdir.write_results(begun, {}),
        lambda: workdir.write_predictions(begun, "test", {}, "owner"),
    ):
        with pytest.raises(
            workdir.WorkdirError, match=r"was removed or renamed .*with its new name as --workdir"
        ):
            write()
    assert not begun.exists()
    begin_again(moved)
