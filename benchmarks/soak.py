"""A soak test with a fault every minute: python benchmarks/soak.py --out=DIR --hosts=2.

Trains the same small run twice, undisturbed and with random faults: a process is killed, receives
SIGTERM or is paused; the disk is full for a while; a checkpoint is damaged before a kill. Processes
that exit are restarted by the same command. At the end all logged and evaluated metrics must equal
those of the undisturbed run bit for bit. The number of open files must not grow during a run, and
its memory only by what a checkpoint leaks (checkpoint_memory.py). The default run is on digits, in
memory. Further arguments are passed to main.py: to train on a stream, add for example
--epochs=60 --config=configs/tiny_imagenet_het_full.py --config.data.max_classes=20.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from heteroscedastic.distributed.preemption import EXIT_CODE

ROOT = Path(__file__).parents[1]
# Time for a host to exit once another one exits. A host that waits for others to join the run waits
# for five minutes.
_EXIT_SECONDS = 360.0
_SETTLE_SECONDS = 40.0  # age of a process at which measurements of its growth start
# Maximum growth of a process from the first to the second half of its lifetime. Programs compiled
# for the last evaluations take about 40 MiB, nearly all in the second half of a short lifetime, and
# the checkpoint library leaks about 40 KiB per checkpoint (checkpoint_memory.py).
_MAX_MEBIBYTES, _MAX_FILES = 64.0, 0
_DAMAGED: dict[Path, int] = {}  # run -> its last damaged checkpoint
_NORMAL_EXIT_CODES = {0, EXIT_CODE}
_DEFAULT_ARGUMENTS = (
    "--config=configs/digits_het_pe.py",
    "--config.training.checkpoint_epochs=5",
    # Slows the run down, so that an hour has thousands of epochs, not tens of thousands.
    "--config.predictive.num_samples=1024",
)


class Sample(NamedTuple):
    """Resources of a process at one moment."""

    age: float  # seconds
    mebibytes: float  # resident memory
    files: int  # open files


class Host:
    """A process of the run, with its output and samples of its resources."""

    def __init__(self, command: list[str]):
        self.start_time = time.monotonic()
        self.samples: list[Sample] = []
        self.output: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(
            target=lambda: self.output.extend(self.process.stdout), daemon=True
        ).start()

    def take_sample(self) -> None:
        """Records the resources of the process, if it is alive."""
        directory = Path("/proc") / str(self.process.pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int((directory / "statm").read_text().split()[1])
            files = len(list((directory / "fd").iterdir()))
            mebibytes = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            self.samples.append(Sample(time.monotonic() - self.start_time, mebibytes, files))

    def growth(self) -> tuple[float, int] | None:
        """Growth of median memory in MiB and open files between both halves of the lifetime.

        Returns:
          None if the lifetime is too short.
        """
        settled = [s for s in self.samples if s.age > _SETTLE_SECONDS]
        if len(settled) < 20:
            return None
        first, second = settled[: len(settled) // 2], settled[len(settled) // 2 :]
        memory = [sorted(s.mebibytes for s in h)[len(h) // 2] for h in (first, second)]
        files = [sorted(s.files for s in h)[len(h) // 2] for h in (first, second)]
        return memory[1] - memory[0], files[1] - files[0]


def start(directory: Path, arguments: list[str], num_hosts: int) -> list[Host]:
    """Starts or resumes a run; returns its processes.

    Args:
      directory: of the run.
      arguments: of main.py.
      num_hosts: number of processes.
    """
    command = [sys.executable, "main.py", *arguments, f"--workdir={directory}"]
    if num_hosts == 1:
        return [Host(command)]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    more = ["--hosts", f"--coordinator={address}", f"--num_processes={num_hosts}"]
    return [Host([*command, *more, f"--process_id={i}"]) for i in range(num_hosts)]


def kill(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """Sends SIGKILL to one process."""
    one = draw.randrange(len(hosts))
    hosts[one].process.kill()
    return f"host {one} killed"


def kill_all(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """Sends SIGKILL to all processes, like a power failure."""
    for host in hosts:
        host.process.kill()
    return "all hosts killed"


def terminate(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """Sends SIGTERM to one process, like a notice of preemption."""
    one = draw.randrange(len(hosts))
    hosts[one].process.terminate()
    return f"SIGTERM to host {one}"


def pause(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """Pauses one process, sometimes for so long that another one times out."""
    one, seconds = draw.randrange(len(hosts)), draw.choice([2.0, 10.0, 40.0])
    hosts[one].process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    hosts[one].process.send_signal(signal.SIGCONT)
    return f"host {one} paused for {seconds:.0f} s"


def fill_disk(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """Limits the size of files for a while, like a full disk."""
    size, seconds = draw.choice([0, 1_000, 30_000]), draw.choice([1.0, 5.0])
    for limit in (size, resource.RLIM_INFINITY):
        for host in hosts:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(
                    host.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)
                )
        if limit == size:
            time.sleep(seconds)
    return f"disk full for {seconds:.0f} s, files up to {size} bytes"


def damage(draw: random.Random, hosts: list[Host], directory: Path) -> str:
    """Kills all processes and cuts the files of the newest checkpoint in half."""
    kill_all(draw, hosts, directory)
    steps = [int(p.name) for p in (directory / "checkpoints").glob("*") if p.name.isdigit()]
    # A run keeps the last two checkpoints and the best one, which may be old: one of the last two
    # must stay intact.
    if len(steps) < 2 or max(steps) <= _DAMAGED.get(directory, -1):
        return "all hosts killed"
    _DAMAGED[directory] = max(steps)
    for path in (directory / "checkpoints" / str(max(steps)) / "state").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    return f"all hosts killed, checkpoint {max(steps)} damaged"


FAULTS: tuple[Callable[[random.Random, list[Host], Path], str], ...] = (
    kill,
    kill_all,
    terminate,
    pause,
    fill_disk,
    damage,
)


def train(
    directory: Path, arguments: list[str], num_hosts: int, fault_interval: float | None, seed: int
) -> dict[str, Any]:
    """Trains a run to its end, with restarts.

    Args:
      directory: of the run.
      arguments: of main.py.
      num_hosts: number of processes.
      fault_interval: mean seconds between faults; None for a run without faults.
      seed: of the faults.

    Returns:
      The record of the run: its faults, starts, duration, growth and goodput.
    """
    draw, faults, all_hosts = random.Random(seed), [], []
    start_time = time.monotonic()

    def next_fault_time():
        if not fault_interval:
            return float("inf")
        return time.monotonic() + draw.expovariate(1 / fault_interval)

    fault_time, hosts = next_fault_time(), start(directory, arguments, num_hosts)
    while True:
        time.sleep(1.0)
        for host in hosts:
            host.take_sample()
        codes = [host.process.poll() for host in hosts]
        if any(code is not None for code in codes):
            _wait_for_all(hosts)
            all_hosts += hosts
            codes = [host.process.returncode for host in hosts]
            if set(codes) == {0}:
                break
            lines = [host.output[-1].strip() for host in hosts if host.output]
            print(
                f"  {_clock(start_time)} exit codes {codes}: {' | '.join(lines)[:160]}", flush=True
            )
            if not fault_interval and not set(codes) <= _NORMAL_EXIT_CODES:
                raise SystemExit("the undisturbed run failed:\n" + "".join(hosts[0].output))
            # Faults that were due while hosts exited are dropped.
            fault_time, hosts = next_fault_time(), start(directory, arguments, num_hosts)
        elif time.monotonic() > fault_time:
            fault = draw.choice(FAULTS)(draw, hosts, directory)
            faults.append(fault)
            print(f"  {_clock(start_time)} {fault}", flush=True)
            fault_time = next_fault_time()
    growths = [growth for host in all_hosts if (growth := host.growth())]
    return {
        "seconds": time.monotonic() - start_time,
        "faults": faults,
        "starts": len(all_hosts) // num_hosts,
        "most_mebibytes_gained": max((m for m, _ in growths), default=None),
        "most_files_gained": max((f for _, f in growths), default=None),
        "goodput": json.loads((directory / "results.json").read_text())["goodput"]["share"],
    }


def _wait_for_all(hosts: list[Host]) -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for host in hosts:
        try:
            host.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"a host did not exit within {_EXIT_SECONDS:.0f} s after another one."
            ) from None


def _clock(start_time: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - start_time), 60)
    return f"{minutes:3}:{seconds:02}"


def outcome(directory: Path) -> tuple[Any, str]:
    """The metrics of every evaluation of a run, and its log of training metrics."""
    return json.loads((directory / "results.json").read_text())["evals"], (
        directory / "metrics.jsonl"
    ).read_text()


def main() -> None:
    """Trains both runs and compares them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", required=True, help="an empty directory")
    parser.add_argument("--epochs", type=float, default=7000.0, help="epochs of each run")
    parser.add_argument("--hosts", type=int, default=1, help="number of processes")
    parser.add_argument("--every", type=float, default=60.0, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=0)
    flags, main_arguments = parser.parse_known_args()
    if Path(flags.out).exists() and any(Path(flags.out).iterdir()):
        parser.error(f"--out={flags.out} is not empty, and its runs would be complete already.")
    has_config = any(word.partition("=")[0] == "--config" for word in main_arguments)
    arguments = [*(() if has_config else _DEFAULT_ARGUMENTS), *main_arguments]
    arguments += [f"--config.training.num_epochs={flags.epochs}"]
    out, record = Path(flags.out), {}
    for name, fault_interval in (("undisturbed", None), ("disturbed", flags.every)):
        print(name, flush=True)
        record[name] = train(out / name, arguments, flags.hosts, fault_interval, flags.seed)
    record["same"] = outcome(out / "undisturbed") == outcome(out / "disturbed")
    print(json.dumps(record, indent=1))
    (out / "soak.json").write_text(json.dumps(record, indent=1))
    if messages := failures(record):
        raise SystemExit("\n".join(messages))


def failures(record: dict[str, Any]) -> list[str]:
    """Messages about failed requirements; growth of short-lived processes is not checked."""
    messages = []
    if not record["same"]:
        messages.append("the metrics of the disturbed and of the undisturbed run differ.")
    for name in ("undisturbed", "disturbed"):
        for unit, limit in (("mebibytes", _MAX_MEBIBYTES), ("files", _MAX_FILES)):
            growth = record[name][f"most_{unit}_gained"]
            if growth is not None and growth > limit:
                messages.append(f"a process of the {name} run gained {growth:g} {unit}.")
    return messages


if __name__ == "__main__":
    main()
