"""A run with a fault every minute: python benchmarks/soak.py --out=DIR --hosts=2.

The same small run is made twice, undisturbed and with faults that a seed draws: a process killed,
asked to leave, stopped for a while; a disk that is full for a while; a checkpoint damaged before
a kill. What ends is started again by the same command. At the end the metrics of every interval
and of every evaluation must be those of the undisturbed run, bit for bit, and neither run's open
files may grow with its steps, nor its memory but for what a checkpoint leaves behind
(checkpoint_memory.py). Without --config it is of digits, in memory; a stream, and whatever else
main.py is to be given, is

python benchmarks/soak.py --out=DIR --epochs=60 --config=configs/tiny_imagenet_het_full.py --config.data.max_classes=20
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
# Of a host, once another is lost; one that others have yet to join waits for them for five minutes.
_SECONDS_TO_LEAVE = 360.0
_SECONDS_TO_SETTLE = 40.0  # of a process, before it is looked at for growth
# What a process may gain from the first half of its life to the second: what it compiles for the
# last evaluations takes some 40 MiB, of which a short life has nearly all in its second half; and
# the library that writes checkpoints loses some 40 KiB with each (checkpoint_memory.py).
_MOST_MEBIBYTES, _MOST_FILES = 64.0, 0
_DAMAGED: dict[Path, int] = {}  # the last checkpoint of a run that was damaged
_LEFT_ALONE = {0, EXIT_CODE}  # exit codes that need no word
_USUAL = (
    "--config=configs/digits_het_pe.py",
    "--config.training.checkpoint_epochs=5",
    # so that an hour has thousands of epochs, not tens of thousands
    "--config.predictive.num_samples=1024",
)


class Sample(NamedTuple):
    """What a process held at one moment."""

    age: float  # seconds
    mebibytes: float  # resident
    files: int  # open


class Host:
    """A process of the run, what it says, and what it holds."""

    def __init__(self, command: list[str]):
        self.began = time.monotonic()
        self.samples: list[Sample] = []
        self.said: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=lambda: self.said.extend(self.process.stdout), daemon=True).start()

    def look(self) -> None:
        """Takes a sample, if it lives."""
        place = Path("/proc") / str(self.process.pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int((place / "statm").read_text().split()[1])
            files = len(list((place / "fd").iterdir()))
            mebibytes = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            self.samples.append(Sample(time.monotonic() - self.began, mebibytes, files))

    def grown(self) -> tuple[float, int] | None:
        """MiB and open files of the second half of its life beyond the first, medians; None if it
        was short.
        """
        settled = [s for s in self.samples if s.age > _SECONDS_TO_SETTLE]
        if len(settled) < 20:
            return None
        first, second = settled[: len(settled) // 2], settled[len(settled) // 2 :]
        middle = [
            sorted(part)[len(part) // 2]
            for part in ([s.mebibytes for s in h] for h in (first, second))
        ]
        files = [sorted(s.files for s in h)[len(h) // 2] for h in (first, second)]
        return middle[1] - middle[0], files[1] - files[0]


def start(directory: Path, what: list[str], number: int) -> list[Host]:
    """The processes of the run, begun or continued; `what` is to be trained."""
    command = [sys.executable, "main.py", *what, f"--workdir={directory}"]
    if number == 1:
        return [Host(command)]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    more = ["--hosts", f"--coordinator={address}", f"--num_processes={number}"]
    return [Host([*command, *more, f"--process_id={i}"]) for i in range(number)]


def kill(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """SIGKILL to one process."""
    one = draw.randrange(len(hosts))
    hosts[one].process.kill()
    return f"host {one} killed"


def kill_all(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """As when the power fails."""
    for host in hosts:
        host.process.kill()
    return "all hosts killed"


def terminate(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """A notice of preemption to one process."""
    one = draw.randrange(len(hosts))
    hosts[one].process.terminate()
    return f"host {one} asked to leave"


def pause(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """One process does nothing for a while, at times so long that another gives it up."""
    one, seconds = draw.randrange(len(hosts)), draw.choice([2.0, 10.0, 40.0])
    hosts[one].process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    hosts[one].process.send_signal(signal.SIGCONT)
    return f"host {one} stopped for {seconds:.0f} s"


def fill_disk(draw: random.Random, hosts: list[Host], _: Path) -> str:
    """No file may grow beyond a size for a while."""
    size, seconds = draw.choice([0, 1_000, 30_000]), draw.choice([1.0, 5.0])
    for room in (size, resource.RLIM_INFINITY):
        for host in hosts:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(
                    host.process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY)
                )
        if room == size:
            time.sleep(seconds)
    return f"disk full for {seconds:.0f} s, files up to {size} bytes"


def damage(draw: random.Random, hosts: list[Host], directory: Path) -> str:
    """The newest checkpoint is cut in half while all are killed."""
    kill_all(draw, hosts, directory)
    steps = [int(p.name) for p in (directory / "checkpoints").glob("*") if p.name.isdigit()]
    # A run keeps its last two and the best, which may be long ago: of the last two one is left
    # whole.
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


def made(
    directory: Path, what: list[str], number: int, every: float | None, seed: int
) -> dict[str, Any]:
    """The run to its end; with a fault every so many seconds, if any, and what each came to."""
    draw, told, lives = random.Random(seed), [], []
    began = time.monotonic()

    def next_fault():
        return time.monotonic() + draw.expovariate(1 / every) if every else float("inf")

    due, hosts = next_fault(), start(directory, what, number)
    while True:
        time.sleep(1.0)
        for host in hosts:
            host.look()
        ended = [host.process.poll() for host in hosts]
        if None not in ended and set(ended) == {0}:
            lives += hosts
            break
        if any(code is not None for code in ended):
            _wait_for_all(hosts)
            lives += hosts
            codes = [host.process.returncode for host in hosts]
            words = [host.said[-1].strip() for host in hosts if host.said]
            print(f"  {_clock(began)} left with {codes}: {' | '.join(words)[:160]}", flush=True)
            if not every and not set(codes) <= _LEFT_ALONE:
                raise SystemExit("the undisturbed run failed:\n" + "".join(hosts[0].said))
            due, hosts = (
                next_fault(),
                start(directory, what, number),
            )  # what was due meanwhile is not made up for
        elif time.monotonic() > due:
            said = draw.choice(FAULTS)(draw, hosts, directory)
            told.append(said)
            print(f"  {_clock(began)} {said}", flush=True)
            due = next_fault()
    grown = [g for host in lives if (g := host.grown())]
    return {
        "seconds": time.monotonic() - began,
        "faults": told,
        "starts": len(lives) // number,
        "most_mebibytes_gained": max((m for m, _ in grown), default=None),
        "most_files_gained": max((f for _, f in grown), default=None),
        "goodput": json.loads((directory / "results.json").read_text())["goodput"]["share"],
    }


def _wait_for_all(hosts: list[Host]) -> None:
    deadline = time.monotonic() + _SECONDS_TO_LEAVE
    for host in hosts:
        try:
            host.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"a host did not leave {_SECONDS_TO_LEAVE:.0f} s after another was lost."
            ) from None


def _clock(began: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    return f"{minutes:3}:{seconds:02}"


def outcome(directory: Path) -> tuple[Any, str]:
    """What a run found: of every evaluation, and of every interval."""
    return json.loads((directory / "results.json").read_text())["evals"], (
        directory / "metrics.jsonl"
    ).read_text()


def main() -> None:
    """Makes both runs and compares them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", required=True, help="an empty directory")
    parser.add_argument("--epochs", type=float, default=7000.0, help="of each of the two runs")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument(
        "--every", type=float, default=60.0, help="seconds between faults on average"
    )
    parser.add_argument("--seed", type=int, default=0)
    flags, given = parser.parse_known_args()
    what = [*(given or _USUAL), f"--config.training.num_epochs={flags.epochs}"]
    out, told = Path(flags.out), {}
    for name, every in (("undisturbed", None), ("disturbed", flags.every)):
        print(name, flush=True)
        told[name] = made(out / name, what, flags.hosts, every, flags.seed)
    told["same"] = outcome(out / "undisturbed") == outcome(out / "disturbed")
    print(json.dumps(told, indent=1))
    (out / "soak.json").write_text(json.dumps(told, indent=1))
    if wrong := failures(told):
        raise SystemExit("\n".join(wrong))


def failures(told: dict[str, Any]) -> list[str]:
    """What was not as it must be; growth of a life that was too short to tell is not asked for."""
    wrong = (
        []
        if told["same"]
        else ["the metrics of the disturbed run are not those of the undisturbed one."]
    )
    for name in ("undisturbed", "disturbed"):
        for unit, most in (("mebibytes", _MOST_MEBIBYTES), ("files", _MOST_FILES)):
            gained = told[name][f"most_{unit}_gained"]
            if gained is not None and gained > most:
                wrong.append(f"a process of the {name} run gained {gained:g} {unit}.")
    return wrong


if __name__ == "__main__":
    main()
