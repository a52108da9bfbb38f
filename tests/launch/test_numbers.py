"""Numbers on the command lines of launchers."""

import pytest

from launch import slurm, tpu, worker

COMMON = ["--config=configs/digits_hom.py", "--dry_run"]
SLURM = (slurm, [*COMMON, "--workdir=runs/x"])
TPU = (tpu, [*COMMON, "--name=a", "--workdir=gs://bucket/run"])
INVALID_NUMBERS = ("-3", "nan", "inf", "-inf", "1e400", "", "three", "99999999999999999999")


@pytest.mark.parametrize(
    ("launcher", "flag", "values"),
    [
        (SLURM, "nodes", ("0", "1.5")),
        (SLURM, "gpus_per_node", ("0", "1.5")),
        (SLURM, "cpus_per_task", ("0", "1.5")),
        (SLURM, "grace", ("0", "1.5", "65536")),
        (SLURM, "time", ("24h", "1:2:3:4", "1-", "24:00:00:00")),
        (TPU, "patience", ()),
        (TPU, "restarts", ("1.5",)),
        (TPU, "poll", ("0",)),
    ],
)
def test_a_number_out_of_range_is_an_error_of_one_line_with_its_flag(
    launcher, flag, values, capsys
):
    module, words = launcher
    for value in (*INVALID_NUMBERS, *values):
        with pytest.raises(SystemExit) as error:
            module.main([*words, f"--{flag}={value}"])
        output, errors = capsys.readouterr()
        assert (error.value.code, output) == (2, ""), value
        (line,) = errors.splitlines()
        assert f"--{flag}: is {value}, but must be " in line


@pytest.mark.parametrize("accelerator", ["v3-0", "v3--8", "v3-nan", "v3-999999", "v3-٣"])
def test_an_invalid_size_of_a_slice_is_an_error(accelerator, capsys):
    with pytest.raises(SystemExit):
        tpu.main([*TPU[1], f"--accelerator={accelerator}"])
    assert f"--accelerator is {accelerator!r}, but must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("time", "seconds"), [("90", 5400), ("0", 0), ("1:30", 90), ("2:00:01", 7201), ("2-12", 216000)]
)
def test_times_have_the_format_of_slurm(time, seconds):
    assert slurm._seconds(slurm._time(time)) == seconds


@pytest.mark.parametrize(("time", "is_long_enough"), [("2:00", False), ("2:01", True), ("0", True)])
def test_the_grace_is_shorter_than_the_time(time, is_long_enough, capsys):
    words = [*SLURM[1], f"--time={time}", "--grace=120"]
    if is_long_enough:
        slurm.main(words)
        assert f"#SBATCH --time={time}\n" in capsys.readouterr().out
        return
    with pytest.raises(SystemExit):
        slurm.main(words)
    assert "--grace is 120 s, but must be less than --time" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["tail", "-3"], ["tail", "0"], ["tail", "x"], ["tail"], ["follow", "-1"], ["supervise"]],
)
def test_an_invalid_number_of_lines_is_an_error(words, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["worker.py", *words])
    with pytest.raises(SystemExit, match="LINES"):
        worker.main()
