"""Launches a run on a slice of Cloud TPU and restores it after preemptions.

    python -m launch.tpu --name=NAME --accelerator=v3-128 --config=configs/X.py
        --workdir=gs://BUCKET/X

creates the slice if it does not exist, installs the last commit of this checkout on all hosts, runs
main.py on them as one run and prints the log of the first host. If the slice is preempted, it is
created again and the run resumes. The slice is deleted at the end. If this command is interrupted,
the slice and the run continue: the same command finds them and follows the run. See docs/pods.md.
"""

import argparse
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launch import accelerators, command
from launch.command import SAVED, BusyError, LaunchError, Shell, UnknownError
from launch.slice import Slice
from launch.worker import OTHER_COMMAND

_MAX_MISSES = 20  # queries of a slice that is ready, but does not answer
_WORKER = "python3 heteroscedastic/launch/worker.py"
# The checkout is cloned, not copied, so that results.json can record the commit. Hosts may have an
# older Python than the package requires, so uv installs one. A command at work is not interrupted;
# it is an error if it is not this command.
_INSTALL = " && ".join(
    (
        f"if [ -d heteroscedastic ] && {_WORKER} status | grep -q 'at work'; "
        f"then {_WORKER} check {{words}}; exit $?; fi",
        "rm -rf heteroscedastic",
        "git clone -q heteroscedastic.bundle heteroscedastic",
        "cd heteroscedastic",
        "python3 -m pip install -q --user uv",
        "python3 -m uv venv -q --python 3.11 .venv",
        "python3 -m uv pip install -q -c constraints.txt -e '.[cloud,data,tensorflow]' 'jax[tpu]'",
    )
)


class Run:
    """A run of main.py on all hosts of a slice."""

    def __init__(self, shell: Shell, slice_: Slice, flags: argparse.Namespace, rest: Sequence[str]):
        self.shell, self.slice, self.flags = shell, slice_, flags
        self.kind = accelerators.tpu(flags.accelerator)
        words = command.main_words(flags, rest, ".venv/bin/python")
        words = (
            ["env", *command.assignments(self.kind.environment), *words]
            if self.kind.environment
            else words
        )
        self._install = _INSTALL.replace("{words}", shlex.join(words))
        self._start = f"cd heteroscedastic && python3 launch/worker.py start {shlex.join(words)}"

    def complete(self) -> None:
        """Returns once the run is complete.

        Raises:
          LaunchError: the run failed too often, or there is no slice for it.
          BusyError: the slice runs another command.
        """
        flags, restarts_left = self.flags, self.flags.restarts
        while True:
            self.slice.acquire(flags.accelerator, self.kind, flags.spot, flags.patience)
            start_error = self._start_run()
            code = None if start_error else self._follow()
            if code == 0:
                return
            if self.slice.is_lost():
                self.shell.log(f"{self.slice.name} was preempted; the run continues on another.")
                continue
            failure = start_error or (
                "its hosts do not answer" if code is None else f"main.py exited with {code}"
            )
            if code != SAVED:
                restarts_left -= 1
                # All hosts, as the first may only report that another one was lost.
                self.shell.log(f"{failure}; the last log lines of its hosts:")
                self.shell.show(self.slice.ssh("all", f"{_WORKER} tail 20"))
            if restarts_left < 0:
                raise LaunchError(
                    f"the run failed on {self.slice.name}: {failure}. The same command resumes it."
                )
            self.shell.log(f"{failure}; restarting from the last checkpoint.")
            self.shell.capture(self.slice.ssh("all", f"{_WORKER} stop"))

    def _start_run(self) -> str | None:
        """Installs the checkout and starts the run; returns an error message or None."""
        with tempfile.TemporaryDirectory() as folder:
            # The name is fixed in a dry run, so that its output is reproducible.
            bundle = str(
                Path("TEMPORARY" if self.shell.dry_run else folder) / "heteroscedastic.bundle"
            )
            steps = [
                (
                    ["git", "-C", str(command.ROOT), "bundle", "create", "-q", bundle, "HEAD"],
                    "packing the checkout",
                ),
                (self.slice.scp(bundle, "heteroscedastic.bundle"), "copying it to the hosts"),
                (self.slice.ssh("all", self._install), "installing on the hosts"),
                (self.slice.ssh("all", self._start), "starting main.py on the hosts"),
            ]
            for words, step in steps:
                self.shell.log(step)
                result = self.shell.capture(words)
                if OTHER_COMMAND in result.output + result.errors:
                    raise BusyError(
                        f"{self.slice.name} is busy:"
                        f" {(result.errors or result.output).strip()[-2000:]}\n"
                        "Give another --name, follow that run with its own command, or end it with"
                        " --delete."
                    )
                if result.code:
                    return f"{step} failed: {(result.errors or result.output).strip()[-2000:]}"
        return None

    def _follow(self) -> int | None:
        """Prints the log of the first host and returns its exit status.

        Returns None if the host does not answer, or if the slice is lost.
        """
        misses, lines = 0, ""
        while misses < _MAX_MISSES:
            # A failure may be one of gcloud itself, so the host is asked for the status of the run.
            if self.shell.show(self.slice.ssh("0", f"{_WORKER} follow{lines}")) == 0:
                return 0
            status = self.shell.capture(self.slice.ssh("0", f"{_WORKER} status"))
            match = re.search(r"^(at work|ended (\d+))$", status.output, re.MULTILINE)
            if match and match[2]:
                return int(match[2])
            misses = 0 if match else misses + 1
            if not self.slice.is_ready():
                return None
            self.shell.log("the connection was lost; the run continues, reconnecting.")
            lines = " 10"
            time.sleep(self.slice.poll)
        return None


def _check_committed(shell: Shell, config: str) -> None:
    """Raises a LaunchError if the last commit, which hosts install, lacks the config or changes."""
    git = ["git", "-C", str(command.ROOT)]
    changes = shell.capture([*git, "status", "--porcelain", "--untracked-files=no"])
    tracked = shell.capture([*git, "ls-files", "--error-unmatch", command.config_file(config)])
    if changes.code or tracked.code:
        raise LaunchError(
            "hosts install the last commit, but git failed:"
            f" {(changes.errors or tracked.errors).strip()}"
        )
    if changes.output:
        raise LaunchError(
            f"hosts install the last commit, which lacks these changes; commit them:\n"
            f"{changes.output.rstrip()}"
        )


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m launch.tpu", description=main.__doc__, allow_abbrev=False
    )
    command.add_flags(parser)
    parser.add_argument(
        "--name",
        required=True,
        help="name of the slice; an existing slice is used, and deleted at the end",
    )
    parser.add_argument(
        "--accelerator",
        default="v3-32",
        help="type and size; the paper uses v3-32, v3-128 and v3-512",
    )
    parser.add_argument("--zone", help="defaults to a zone with the accelerator type")
    parser.add_argument("--project", help="defaults to the project of gcloud")
    parser.add_argument("--version", help="host software; defaults to that of the accelerator type")
    parser.add_argument(
        "--spot", action="store_true", help="use a cheaper slice that may be preempted at any time"
    )
    parser.add_argument(
        "--queued", action="store_true", help="request the slice as a queued resource"
    )
    parser.add_argument(
        "--patience",
        type=command.number(float, 0, 10_000),
        default=24,
        metavar="HOURS",
        help="maximum time to wait for a slice",
    )
    parser.add_argument(
        "--restarts",
        type=command.number(int, 0, 10_000),
        default=2,
        help="maximum number of restarts after failures of main.py",
    )
    parser.add_argument(
        "--poll",
        type=command.number(float, 0.001, 3600),
        default=30,
        metavar="SECONDS",
        help="time between two queries of the slice",
    )
    parser.add_argument("--keep", action="store_true", help="do not delete the slice at the end")
    parser.add_argument(
        "--delete", action="store_true", help="only delete the slice, even if a run is at work"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a config on a slice of Cloud TPU, which is created, monitored and deleted."""
    parser = _parser()
    flags, rest = command.parse(parser, arguments)
    try:
        kind = accelerators.tpu(flags.accelerator)
    except ValueError as error:
        parser.error(str(error))
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", flags.name):
        parser.error("--name must consist of lower-case letters, digits and -.")
    if not flags.delete:
        command.check(flags, parser)
        if not all(path.startswith("gs://") for path in (flags.workdir, flags.data_dir or "gs://")):
            parser.error(
                "--workdir and --data_dir must be in a bucket (gs://), as the disks of the hosts"
                " are deleted with the slice."
            )
    shell = Shell(flags.dry_run)
    slice_ = Slice(
        shell,
        flags.name,
        flags.zone or kind.zone,
        project=flags.project,
        queued=flags.queued,
        poll=flags.poll,
        exists=flags.delete,
    )
    hint = (
        f"If {flags.name} exists, it continues to run and to cost money. The same command follows"
        " it; --delete deletes it."
    )
    # SIGINT is ignored by default in processes that a script starts in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if not flags.delete:
            _check_committed(shell, flags.config)
            _complete(shell, slice_, flags, rest)
        if flags.keep and not flags.delete:
            shell.log(f"{flags.name} is kept and costs money until --delete deletes it.")
        elif not slice_.remove() and flags.delete and not flags.dry_run:
            shell.log(
                f"there is no {flags.name} among {slice_.where}, so nothing was deleted; if it"
                " exists, give --accelerator or --zone, --project and --queued as at its creation."
            )
    except UnknownError as error:
        sys.exit(f"{error}\n{hint}")
    except LaunchError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(f"interrupted. {hint}")


def _complete(shell: Shell, slice_: Slice, flags: argparse.Namespace, rest: Sequence[str]) -> None:
    """Completes the run; if it fails, deletes the slice."""
    run = Run(shell, slice_, flags, rest)
    if flags.version:
        run.kind = run.kind._replace(version=flags.version)
    try:
        run.complete()
    except (UnknownError, BusyError):
        raise
    except LaunchError as error:
        if flags.keep:
            raise
        try:
            slice_.remove()
        except LaunchError as removal_error:
            raise LaunchError(f"{error}\n{removal_error}") from None
        raise
    shell.log(f"complete: {flags.workdir}/results.json")


if __name__ == "__main__":
    main()
