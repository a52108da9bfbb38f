"""Several processes on this machine, as the hosts of a pod would be, make one run."""

import json
import os
import re
import signal
import sys
import time

import pytest
from cases import mostly_extended
from small_runs import translator
from subprocesses import (
    EXTRAS,
    MAIN,
    ROOT,
    free_address,
    outputs,
    run_without,
    start_without,
    with_devices,
)

from experiments import study
from heteroscedastic.data.storage import store
from heteroscedastic.distributed import hosts
from heteroscedastic.runs import loop
from launch.command import SAVED

SETTINGS = {
    "training.num_epochs": 2.0,
    "training.checkpoint_epochs": 0.5,
    "predictive.num_samples": 32,
    "backbone.name": "ConvNet",  # whose batch statistics are those of the global batch
    "backbone.widths": (8, 16),
}
ARGUMENTS = (
    "--config=configs/digits_het_pe.py",
    *(f"--config.{name}={value}" for name, value in SETTINGS.items()),
)
# Where the numbers of a run do not matter.
PLAIN = (
    "--config=configs/digits_hom.py",
    "--config.training.num_epochs=2.0",
    "--config.training.checkpoint_epochs=0.5",
)
# The config of ARGUMENTS in a program.
CONFIG = f"from experiments import study; config = study.config('digits_het_pe', {SETTINGS!r})\n"
SECONDS_TO_LEAVE = 60


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    store.write(path / "digits.npz", store.load("digits"))
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data_dir):
    """The run of one process."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    loop.train(study.config("digits_het_pe", SETTINGS), str(directory), str(data_dir))
    return directory


def start_hosts(number, directory, data_dir, arguments=ARGUMENTS, seconds_between=0.0):
    coordinator = f"--coordinator={free_address()}"
    common = (
        *arguments,
        f"--workdir={directory}",
        "--hosts",
        coordinator,
        f"--num_processes={number}",
    )
    data_dirs = data_dir if isinstance(data_dir, list) else [data_dir] * number
    processes = []
    for i in range(number):
        processes.append(
            start_without(EXTRAS, MAIN, *common, f"--process_id={i}", f"--data_dir={data_dirs[i]}")
        )
        time.sleep(seconds_between)
    return processes


def assert_agree(one, other):
    """To float32 rounding, which training multiplies; measured 3e-6 for NLL."""
    ours, theirs = (
        json.loads((path / "results.json").read_text())["evals"] for path in (one, other)
    )
    for name, metrics in theirs.items():
        assert metrics["nll"] == pytest.approx(ours[name]["nll"], rel=1e-3)
        assert metrics["accuracy"] == pytest.approx(ours[name]["accuracy"], abs=0.01)


def _own(text):
    """Lines that the C++ libraries of JAX did not write."""
    beneath = r"[IWE]\d{4} |WARNING: All log messages|\[Gloo\]"
    return [line for line in text.splitlines() if not re.match(beneath, line)]


@pytest.mark.extended
def test_four_processes_that_come_one_after_the_other_and_one_of_them_slow_agree_with_one(
    alone, data_dir, tmp_path
):
    """It is stopped for longer than a step, and for less than makes it a lost one."""
    processes = start_hosts(4, tmp_path / "run", data_dir, seconds_between=1.5)
    lines = tmp_path / "run" / "metrics.jsonl"
    while not lines.exists():
        assert processes[0].poll() is None, processes[0].communicate()
        time.sleep(0.01)
    processes[3].send_signal(signal.SIGSTOP)
    time.sleep(2)
    processes[3].send_signal(signal.SIGCONT)
    texts = outputs(processes)
    assert [p.returncode for p in processes] == [0] * 4, texts
    assert "on 4 x" in texts[0][0]
    assert [_own(text) for others in texts[1:] for text in others] == [
        []
    ] * 6  # the first one speaks, and warns
    assert_agree(alone, tmp_path / "run")


@pytest.mark.extended
def test_two_processes_train_a_translator_and_translate_as_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = {"evals.test.beam_size": 3, "evals.test.max_tokens": 8, "training.microbatches": 1}
    loop.train(translator(**settings), str(tmp_path / "alone"))
    path = tmp_path / "numbers.py"
    path.write_text(
        "from ml_collections import ConfigDict\nfrom small_runs import translator\n\n\n"
        f"def get_config():\n    return ConfigDict(translator(**{settings!r}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests/support'}{os.pathsep}{ROOT}")
    processes = start_hosts(2, tmp_path / "run", tmp_path, (f"--config={path}",))
    texts = outputs(processes)
    assert [p.returncode for p in processes] == [0, 0], texts
    assert_agree(tmp_path / "alone", tmp_path / "run")
    translated = [tmp_path / name / "predictions" / "test.txt" for name in ("alone", "run")]
    assert translated[0].read_text() == translated[1].read_text()


@pytest.mark.extended
def test_where_one_of_two_is_killed_the_other_leaves_and_a_restart_continues(
    alone, data_dir, tmp_path
):
    directory = tmp_path / "run"
    staying, killed = start_hosts(2, directory, data_dir)
    lines = directory / "metrics.jsonl"
    while not lines.exists() or len(lines.read_text().splitlines()) < 3:
        assert staying.poll() is None
        time.sleep(0.01)
    killed.kill()
    began = time.monotonic()
    _, errors = staying.communicate(timeout=300)
    assert time.monotonic() - began < SECONDS_TO_LEAVE
    assert staying.returncode not in (0, None)
    assert "the same command on all of them continues" in errors
    killed.communicate()
    newest = max(int(p.name) for p in (directory / "checkpoints").iterdir() if p.name.isdigit())
    # What one host has half written both pass over, and one moves it.
    of_one = list(
        (directory / "checkpoints" / str(newest) / "state" / "ocdbt.process_1").rglob("*")
    )
    assert any(path.is_file() for path in of_one)
    for path in of_one:
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    again = start_hosts(2, directory, data_dir)
    texts = outputs(again)
    assert [p.returncode for p in again] == [0, 0], texts
    assert "continuing from step" in texts[0][0]
    assert (directory / "checkpoints_damaged" / str(newest)).is_dir()
    assert_agree(alone, directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "moment"),
    mostly_extended(
        [(0, "dataset.json"), (1, "dataset.json"), (0, "metrics.jsonl")],
        [(0, "metrics.jsonl")],
    ),
)
def test_whichever_is_killed_before_compiling_or_in_training_the_other_says_what_to_do(
    killed, moment, data_dir, tmp_path
):
    """Where JAX itself ends the other, as it does unless that waits for its peer just then, nothing
    of ours runs.
    """
    directory = tmp_path / "run"
    processes = start_hosts(2, directory, data_dir, PLAIN)
    while not (directory / moment).exists():
        assert processes[0].poll() is None, processes[0].communicate()
        time.sleep(0.01)
    processes[killed].kill()
    began = time.monotonic()
    staying = processes[1 - killed]
    _, errors = staying.communicate(timeout=300)
    assert time.monotonic() - began < SECONDS_TO_LEAVE
    assert staying.returncode not in (0, None)
    assert errors.count("the same command on all of them continues") == 1
    processes[killed].communicate()


@pytest.mark.extended
def test_a_host_that_is_stopped_for_long_is_lost_and_leaves_once_it_goes_on(data_dir, tmp_path):
    """That a restart then continues is what the test of a killed host shows."""
    directory = tmp_path / "run"
    staying, stopped = start_hosts(2, directory, data_dir, PLAIN)
    lines = directory / "metrics.jsonl"
    while not lines.exists() or len(lines.read_text().splitlines()) < 2:
        assert staying.poll() is None, staying.communicate()
        time.sleep(0.01)
    stopped.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    _, errors = staying.communicate(timeout=SECONDS_TO_LEAVE)
    assert "the same command on all of them continues" in errors
    stopped.send_signal(signal.SIGCONT)
    stopped.communicate(timeout=SECONDS_TO_LEAVE)
    assert time.monotonic() - began < 2 * SECONDS_TO_LEAVE
    assert 0 not in (staying.returncode, stopped.returncode)


def test_a_host_that_comes_back_alone_says_so():
    """After `seconds_to_come`, in which it waits for the others."""
    processes = []
    for number in (0, 1):  # each of a run of its own
        address = free_address()
        program = (
            "from heteroscedastic.distributed import hosts;"
            f" hosts.start({address!r}, 2, {number}, seconds_to_come=3)"
        )
        processes.append(start_without(EXTRAS, program))
    for process, (_, errors) in zip(processes, outputs(processes)):
        assert process.returncode != 0
        assert "not all processes of this run came within 3 s" in errors
        assert "start the same command on all hosts" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("notaport", 2, 0), "--coordinator is 'notaport', but must be HOST:PORT"),
        (("", 2, 0), "--coordinator is '', but must be HOST:PORT"),
        (("localhost:0", 2, 0), "must be HOST:PORT"),
        (("localhost:65536", 2, 0), "must be HOST:PORT"),
        (("a:b:1", 2, 0), "must be HOST:PORT"),
        (("no host:1", 2, 0), "must be HOST:PORT"),
        (("no-such-host.invalid:8476", 2, 0), "this machine knows no host no-such-host.invalid"),
        (("localhost:8476", 0, 0), "--num_processes is 0, but must be 1 or more"),
        (
            ("localhost:8476", 2, 2),
            "--process_id is 2, but must be 0 or more and less than --num_processes, 2",
        ),
        (("localhost:8476", 2, -1), "--process_id is -1"),
        ((None, None, -1), "--process_id is -1"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_an_error_at_once(arguments, message):
    with pytest.raises(hosts.HostMistakeError, match=re.escape(message)):
        hosts.start(*arguments)


def test_without_a_cluster_what_is_missing_is_asked_for_and_a_taken_port_is_named():
    program = (
        "import os, socket; from heteroscedastic.distributed import hosts\n"
        "taken = socket.create_server(('localhost', 0))\n"
        "address = f'localhost:{taken.getsockname()[1]}'\n"
        "for arguments in [(None, None, None), (address, None, 0), (address, 2, None), (address,"
        " 2, 0)]:\n"
        "    if os.fork():\n"
        "        os.wait()\n"
        "        continue\n"
        "    try:\n"
        "        hosts.start(*arguments, seconds_to_come=30)\n"
        "    except hosts.HostError as error:\n"
        "        print(error, flush=True)\n"
        "        hosts.leave(error)\n"
    )
    done = run_without(EXTRAS, program)
    *missing, taken = done.stdout.splitlines()
    assert len(missing) == 3, done.stderr
    assert all(
        "give --coordinator=HOST:PORT, --num_processes and --process_id" in line for line in missing
    )
    assert "cannot serve --coordinator=localhost:" in taken
    assert "see whether another program has this port" in taken


def test_sigterm_before_the_loop_hears_it_ends_a_host():
    address = free_address()
    program = (
        "import os, signal, time; from heteroscedastic.distributed import hosts\n"
        f"hosts.start({address!r}, 1, 0)\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)"
    )
    assert run_without(EXTRAS, program).returncode == -signal.SIGTERM


@pytest.mark.slow
def test_sigterm_to_one_of_two_saves_on_both(data_dir, tmp_path):
    directory = tmp_path / "run"
    processes = start_hosts(2, directory, data_dir, PLAIN)
    lines = directory / "metrics.jsonl"
    while not lines.exists() or not lines.read_text():
        assert processes[0].poll() is None
        time.sleep(0.01)
    processes[1].terminate()
    texts = outputs(processes, 120)
    assert [p.returncode for p in processes] == [SAVED] * 2, texts
    assert "is saved in" in texts[0][0]


@pytest.mark.extended
def test_sigterm_to_one_of_two_in_an_evaluation_ends_it_on_both(alone, data_dir, tmp_path):
    """In the second validation, before its second batch; they ask each other at the second and the
    fourth.
    """
    program = (
        CONFIG + "import os, signal, sys\n"
        "from heteroscedastic.training import evaluate; from heteroscedastic.distributed import"
        " hosts; from heteroscedastic.runs import loop\n"
        "directory, data_dir, address, index, interrupted = sys.argv[1:]\n"
        "whole, number = evaluate.evaluate, 0\n"
        "def evaluated(step, feeds, key):\n"
        "    global number; number += 1\n"
        "    batches = []\n"
        "    def one(feed, key):\n"
        "        batches.append(feed)\n"
        "        if (number, len(batches), index) == (2, 2, interrupted): os.kill(os.getpid(),"
        " signal.SIGTERM)\n"
        "        return step(feed, key)\n"
        "    return whole(one, feeds, key)\n"
        "evaluate.evaluate = evaluated\n"
        "hosts.start(address, 2, int(index))\n"
        "loop.train(config, directory, data_dir)\n"
    )

    def ran(interrupted):
        address = free_address()
        common = (program, str(tmp_path / "run"), str(data_dir), address)
        processes = [start_without(EXTRAS, *common, str(i), interrupted) for i in range(2)]
        texts = outputs(processes)
        return [p.returncode for p in processes], texts

    codes, texts = ran("1")
    assert codes == [SAVED] * 2, texts
    assert "step 16 is saved in" in texts[0][0]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    codes, texts = ran("nobody")
    assert codes == [0, 0], texts
    assert "continuing from step 16" in texts[0][0]
    assert_agree(alone, tmp_path / "run")


@pytest.mark.slow
def test_an_error_of_the_first_process_is_told_by_all(data_dir, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    processes = start_hosts(2, tmp_path, data_dir, PLAIN)
    texts = [errors for _, errors in outputs(processes, 120)]
    assert all(p.returncode not in (0, None) for p in processes)
    assert all("holds files but no config.json" in errors for errors in texts)
    assert all(len(_own(errors)) == 1 and _own(errors)[0].startswith("error: ") for errors in texts)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_parameters_cut_over_eight_devices_agree_with_whole_ones(data_dir, tmp_path):
    config = study.config("digits_het_pe", SETTINGS | {"training.checkpoint_epochs": 2.0})
    config |= {"validation": None, "evals": {"test": config["evals"]["test"]}}
    loop.train(config, str(tmp_path / "alone"), str(data_dir))
    config["training"]["parameters"] = "sharded"
    program = (
        f"import sys, jax; from heteroscedastic.runs import loop; config = {config!r}\n"
        "train = loop._Trainer.train\n"
        "def trained(self):\n"
        "    train(self)\n"
        "    for x in jax.tree.leaves((self.state.params, self.state.opt_state)):\n"
        "        print('cut', x.size, x.addressable_shards[0].data.size, *x.shape, flush=True)\n"
        "loop._Trainer.train = trained\n"
        "loop.train(config, sys.argv[1], sys.argv[2])\n"
    )
    done = run_without(EXTRAS, program, str(tmp_path / "run"), str(data_dir), env=with_devices(8))
    assert "on 8 x" in done.stdout, done.stderr
    texts = [
        list(map(int, line.split()[1:]))
        for line in done.stdout.splitlines()
        if line.startswith("cut ")
    ]
    assert (
        sum(whole > part for whole, part, *_ in texts) > 10
    )  # parameters and momentum, after the last step
    for whole, part, *shape in texts:
        assert part == (whole // 8 if any(size % 8 == 0 for size in shape) else whole)
    assert_agree(tmp_path / "alone", tmp_path / "run")


def test_a_closed_output_does_not_end_a_run(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr("sys.stdout", os.fdopen(writing, "w"))
    hosts.log("step 1")
    assert sys.stdout.name == os.devnull
    hosts.log("step 2")
