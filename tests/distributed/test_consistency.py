"""Processes of this machine, as hosts that do not fit together."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
from subprocesses import ROOT, free_address

from heteroscedastic.data.storage import store

SECONDS_TO_LEAVE = 60


def ended(directories, data_dirs, environments, checkouts=(ROOT, ROOT)):
    """The errors of two processes that make one run, each a list of lines, and the seconds that
    they took.
    """
    coordinator = f"--coordinator={free_address()}"
    processes, began = [], time.monotonic()
    for i in range(2):
        words = [
            "main.py",
            "--config=configs/digits_hom.py",
            f"--workdir={directories[i]}",
            f"--data_dir={data_dirs[i]}",
        ]
        words += [
            "--hosts",
            coordinator,
            "--num_processes=2",
            f"--process_id={i}",
            "--config.training.num_epochs=1",
        ]
        environment = {**os.environ, "PYTHONPATH": str(checkouts[i]), **environments[i]}
        processes.append(
            subprocess.Popen(
                [sys.executable, *words],
                cwd=checkouts[i],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [p.communicate(timeout=300)[1] for p in processes]
    assert [p.returncode for p in processes] == [1, 1], told
    beneath = r"[IWE]\d{4} |WARNING: All log messages|\[Gloo\]"
    return [
        [line for line in t.splitlines() if not re.match(beneath, line)] for t in told
    ], time.monotonic() - began


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    store.write(path / "digits.npz", store.load("digits"))
    return path


def test_hosts_of_other_code_flags_devices_and_data_do_not_begin_and_say_what_differs(
    data_dir, tmp_path
):
    checkout = tmp_path / "checkout"
    for name in ("heteroscedastic", "configs"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "main.py", checkout)
    with (checkout / "heteroscedastic" / "losses.py").open("a") as file:
        file.write("# changed\n")
    other = store.load("digits")
    other.splits["train"].inputs[0, 0, 0, 0] ^= 1
    store.write(tmp_path / "other" / "digits.npz", other)
    of_devices = "--xla_force_host_platform_device_count={} " + os.environ.get("XLA_FLAGS", "")
    environments = [
        {"XLA_FLAGS": of_devices.format(1)},
        {"XLA_FLAGS": of_devices.format(3), "JAX_ENABLE_X64": "1", "JAX_DEFAULT_PRNG_IMPL": "rbg"},
    ]
    told, seconds = ended(
        [tmp_path / "run"] * 2,
        [data_dir, tmp_path / "other"],
        environments,
        checkouts=(ROOT, checkout),
    )
    for lines in told:
        (line,) = lines
        assert line.startswith("error: processes 0 and 1 of this run differ in ")
        assert re.search(r'code \("[0-9a-f]{64}" and "[0-9a-f]{64}"\)', line)
        assert re.search(r'data \("[0-9a-f]+" and "[0-9a-f]+"\)', line)
        assert "jax_enable_x64 (false and true)" in line
        assert 'jax_default_prng_impl ("threefry2x32" and "rbg")' in line
        assert 'devices ("1 x cpu" and "3 x cpu")' in line
        assert "jaxlib" not in line
    assert seconds < SECONDS_TO_LEAVE
    assert not (tmp_path / "run").exists()


def test_hosts_that_do_not_share_a_workdir_do_not_begin(data_dir, tmp_path):
    directories = [tmp_path / "disk_0" / "run", tmp_path / "disk_1" / "run"]
    told, seconds = ended(directories, [data_dir] * 2, [{}, {}])
    for lines in told:
        (line,) = lines
        assert line.startswith(
            f"error: {socket.gethostname()} does not see in {directories[1]} what the first host"
            " wrote"
        )
        assert "one directory that they share" in line
    assert seconds < SECONDS_TO_LEAVE
    assert not directories[1].exists()
    assert not list(directories[0].glob(".shared*"))
    assert json.loads((directories[0] / "config.json").read_text())["training"]["num_epochs"] == 1
