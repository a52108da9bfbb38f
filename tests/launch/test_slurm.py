"""Jobs submitted to a fake sbatch, and their scripts with a fake srun and scontrol."""

import os
import re
import subprocess
import sys

import fakes
import pytest
from subprocesses import ROOT

from launch import accelerators

FLAGS = ["--config=configs/digits_hom.py", "--workdir=runs/x", "--nodes=4", "--gpus_per_node=2"]
_WRITE = """
import json, os, sys
from pathlib import Path
with (Path(os.environ["FAKE"]) / "calls").open("a") as calls:
    call = ["{name}", *sys.argv[1:], os.environ.get("XLA_FLAGS"), os.getcwd()]
    calls.write(json.dumps(call) + "\\n")
"""
_SBATCH = (
    _WRITE.format(name="sbatch")
    + "(Path(os.environ['FAKE']) / 'script').write_text(sys.stdin.read())\n"
)


def launch(environment, *more):
    words = [sys.executable, "-S", "-m", "launch.slurm", *FLAGS, *more]
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_one_job_is_submitted_and_reported(tmp_path):
    environment = fakes.program(tmp_path, "sbatch", _SBATCH + "print('4711;cluster')")
    done = launch(
        environment, "--account=us", "--partition=gpu", "--time=12:00:00", "--cpus_per_task=16"
    )
    assert done.returncode == 0, done.stderr
    assert "job 4711;" in done.stderr
    assert "scancel 4711" in done.stderr
    assert [words[:2] for words in fakes.calls(tmp_path)] == [["sbatch", "--parsable"]]
    options = re.findall(r"^#SBATCH --(.*)$", (tmp_path / "script").read_text(), re.MULTILINE)
    assert set(options) >= {
        "nodes=4",
        "ntasks-per-node=2",
        "gpus-per-node=2",
        "time=12:00:00",
        "cpus-per-task=16",
        "account=us",
        "partition=gpu",
        "requeue",
        "signal=TERM@120",
        "open-mode=append",
    }


def test_a_run_of_a_table_is_a_valid_config(tmp_path):
    config = "experiments/row.py:table_8@/shared/runs/table_1_270/paper/hom/untuned/seed_0"
    done = launch(fakes.program(tmp_path, "sbatch", _SBATCH), f"--config={config}", "--dry_run")
    assert done.returncode == 0, done.stderr
    assert f"--config={config}" in done.stdout


def test_a_dry_run_prints_the_script_that_would_be_submitted_and_submits_nothing(tmp_path):
    environment = fakes.program(tmp_path, "sbatch", _SBATCH + "print(1)")
    done = launch(environment, "--dry_run")
    assert fakes.calls(tmp_path) == []
    assert done.stderr == ""
    first, _, script = done.stdout.partition("\n")
    assert first == "sbatch --parsable"
    launch(environment)
    assert script.rstrip("\n") == (tmp_path / "script").read_text().rstrip("\n")


def test_a_rejected_job_is_reported(tmp_path):
    environment = fakes.program(
        tmp_path, "sbatch", "import sys; sys.exit('sbatch: error: invalid partition')"
    )
    done = launch(environment)
    assert done.returncode == 1
    assert (
        "sbatch rejected the job, and nothing was submitted: sbatch: error: invalid partition"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("code", "is_requeued"), [(0, False), (75, True), (1, False), (143, False)]
)
def test_the_job_is_requeued_only_if_the_state_was_saved(tmp_path, code, is_requeued):
    """Runs the script with bash."""
    fakes.program(tmp_path, "srun", _WRITE.format(name="srun") + f"sys.exit({code})")
    fakes.program(tmp_path, "scontrol", _WRITE.format(name="scontrol"))
    environment = fakes.program(tmp_path, "sbatch", _SBATCH + "print(1)")
    assert (
        launch(environment, "--config.seed=3", "--config.data.train=pad_crop(4)|flip_lr").returncode
        == 0
    )
    (tmp_path / "calls").unlink()
    done = subprocess.run(
        ["bash", tmp_path / "script"],
        env={**environment, "SLURM_JOB_ID": "7", "XLA_FLAGS": "--of_the_user=1 --b=2"},
        check=False,
    )
    assert done.returncode == code
    (name, *words, flags, folder), *after = fakes.calls(tmp_path)
    assert (name, folder) == ("srun", str(ROOT))
    assert words[words.index("main.py") :] == [
        "main.py",
        *FLAGS[:2],
        "--config.seed=3",
        "--config.data.train=pad_crop(4)|flip_lr",
        "--hosts",
    ]
    assert flags == "--xla_gpu_enable_latency_hiding_scheduler=true --of_the_user=1 --b=2"
    assert [words[:3] for words in after] == ([["scontrol", "requeue", "7"]] if is_requeued else [])


def test_a_value_with_a_space_is_an_error(tmp_path):
    done = launch(fakes.program(tmp_path, "sbatch", _SBATCH), "--account=a b")
    assert done.returncode == 2
    assert fakes.calls(tmp_path) == []


def test_jax_accepts_the_flags_and_finds_its_process_in_a_job():
    """Unknown XLA flags end a process; the processes of a job are found by Slurm's variables."""
    program = """
import jax
jax.distributed.initialize()
print(jax.process_count(), jax.process_index(), float(jax.jit(lambda x: x + 1)(1.0)))
"""
    variables = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_NODES": "1",
    }
    environment = {**os.environ, **variables, **accelerators.GPU_ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 0 2.0\n"
