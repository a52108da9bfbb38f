"""From a checkout to results.json on a host that is a local directory; only the cloud is fake."""

import json
import os
import shutil
import subprocess
import sys

import fakes
import pytest
from subprocesses import ROOT

# A cloud of one slice with one host, whose home is a local directory.
_GCLOUD = """
import os, shutil, subprocess, sys
folder, words = os.environ["FAKE"], sys.argv[1:]
host, verb = f"{folder}/host", words[3]
if verb == "describe":
    if not os.path.isdir(host):
        sys.exit("NOT_FOUND")
    print("READY")
elif verb == "create":
    os.mkdir(host)
elif verb == "delete":
    shutil.rmtree(host)
elif verb == "scp":
    shutil.copy(words[4], f"{host}/{words[5].partition(':')[2]}")
elif verb == "ssh":
    command = next(w for w in words if w.startswith("--command=")).removeprefix("--command=")
    environment = {**os.environ, "HOME": host}
    sys.exit(subprocess.run(["bash", "-c", command], cwd=host, env=environment).returncode)
"""
# The Python of the host: uv creates an environment with the Python of the tests, in which a bucket
# is a local directory.
_PYTHON3 = """
import os, sys
words = sys.argv[1:]
if words[:2] == ["-m", "uv"] and "venv" in words:
    os.makedirs(".venv/bin")
    with open(".venv/bin/python", "w") as file:
        file.write('#!/bin/bash\\nexec {python} "${{@//gs:\\\\/\\\\//$FAKE/}}"\\n')
    os.chmod(".venv/bin/python", 0o755)
elif words[0] != "-m":
    os.execv("{python}", ["{python}", *words])
"""
_SLURM = {  # replaces the metadata of a slice, by which jax.distributed finds the processes
    "SLURM_JOB_ID": "4712",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "1",
}


@pytest.mark.slow
def test_a_commit_runs_on_a_host_and_writes_its_results_to_the_bucket(tmp_path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("heteroscedastic", "launch", "configs"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "main.py", checkout)
    settings = ["-c", "user.name=tests", "-c", "user.email=tests@example.com"]
    for words in (["init", "-q"], ["add", "."], [*settings, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=checkout, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True
    )
    fakes.program(tmp_path, "python3", _PYTHON3.format(python=sys.executable))
    environment = {**fakes.program(tmp_path, "gcloud", _GCLOUD), **_SLURM, "PYTHONPATH": ""}
    words = [
        sys.executable,
        "-m",
        "launch.tpu",
        "--name=slice",
        "--config=configs/digits_het_pe.py",
    ]
    words += ["--workdir=gs://runs/x", "--smoke", "--config.seed=3", "--poll=0.1", "--restarts=0"]
    done = subprocess.run(
        words, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parameters, 2 steps of 8" in done.stdout
    results = json.loads((tmp_path / "runs" / "x" / "results.json").read_text())
    assert results["commit"] == head.stdout.strip()
    assert json.loads((tmp_path / "runs" / "x" / "config.json").read_text())["seed"] == 3
    assert not os.path.exists(tmp_path / "host")
