"""A run on a slice of Cloud TPU, from nothing to results, whatever becomes of the slice meanwhile.

python -m launch.tpu --name=NAME --accelerator=v3-128 --config=configs/X.py --workdir=gs://BUCKET/X creates the slice
or finds it, installs the last commit of this checkout on all hosts, runs main.py on them as one
run, prints the log of the first, makes a slice that was preempted again and continues, and deletes
it in the end. Interrupted, it leaves all that at work: the same command finds the slice and follows
on. docs/pods.md has the rest.
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
from launch.worker import OTHER

_MISSES = 20  # looks at a slice that is ready, but does not answer
_WORKER = "python3 heteroscedastic/launch/worker.py"
# A clone, not a copy, so that results.json tells the commit. Hosts may have an older Python than
# the package needs, so uv, a package of the index, brings one. A run at work is left alone, and
# another than this is an error.
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
    """main.py on all hosts of a slice."""

    def __init__(self, shell: Shell, place: Slice, flags: argparse.Namespace, rest: Sequence[str]):
        self.shell, self.place, self.flags = shell, place, flags
        self.kind = accelerators.tpu(flags.accelerator)
        words = command.main_words(flags, rest, ".venv/bin/python")
        words = (
            ["env", *command.settings(self.kind.environment), *words]
            if self.kind.environment
            else words
        )
        self._install = _INSTALL.replace("{words}", shlex.join(words))
        self._start = f"cd heteroscedastic && python3 launch/worker.py start {shlex.join(words)}"

    def complete(self) -> None:
        """Returns once the run is complete.

        Raises:
          LaunchError: it fails where it is, or there is no slice for it.
          BusyError: the slice is at other work.
        """
        flags, left = self.flags, self.flags.restarts
        while True:
            self.place.acquire(flags.accelerator, self.kind, flags.spot, flags.patience)
            failed = self._begin()
            code = None if failed else self._watch()
            if code == 0:
                return
            if self.place.leaves():
                self.shell.say(f"{self.place.name} was taken away; the run continues on another.")
                continue
            told = failed or (
                "its hosts do not answer" if code is None else f"main.py ended with {code}"
            )
            if code != SAVED:
                left -= 1
                self.shell.say(
                    f"{told}; its hosts said last:"
                )  # the first one may only know that another was lost
                self.shell.show(self.place.ssh("all", f"{_WORKER} tail 20"))
            if left < 0:
                raise LaunchError(
                    f"the run failed on {self.place.name}: {told}. The same command continues it."
                )
            self.shell.say(f"{told}; once more from the last checkpoint.")
            self.shell.ask(self.place.ssh("all", f"{_WORKER} stop"))

    def _begin(self) -> str | None:
        """Installs and starts; what went wrong, if anything."""
        with tempfile.TemporaryDirectory() as folder:
            # A dry run says the same each time.
            bundle = str(
                Path("TEMPORARY" if self.shell.dry_run else folder) / "heteroscedastic.bundle"
            )
            steps = [
                (
                    ["git", "-C", str(command.ROOT), "bundle", "create", "-q", bundle, "HEAD"],
                    "packing the checkout",
                ),
                (self.place.scp(bundle, "heteroscedastic.bundle"), "copying it to the hosts"),
                (self.place.ssh("all", self._install), "installing on the hosts"),
                (self.place.ssh("all", self._start), "starting main.py on the hosts"),
            ]
            for words, what in steps:
                self.shell.say(what)
                done = self.shell.ask(words)
                if OTHER in done.output + done.errors:
                    raise BusyError(
                        f"{self.place.name} is left alone:"
                        f" {(done.errors or done.output).strip()[-2000:]}\n"
                        "Give another --name, follow that run with its own command, or end it with"
                        " --delete."
                    )
                if done.code:
                    return f"{what} failed: {(done.errors or done.output).strip()[-2000:]}"
        return None

    def _watch(self) -> int | None:
        """The exit status on the first host, after all it has said; None where it does not answer,
        or is gone.
        """
        misses, lines = 0, ""
        while misses < _MISSES:
            # gcloud's status is its own, so of others than success the host itself is asked.
            if self.shell.show(self.place.ssh("0", f"{_WORKER} follow{lines}")) == 0:
                return 0
            told = self.shell.ask(self.place.ssh("0", f"{_WORKER} status"))
            found = re.search(r"^(at work|ended (\d+))$", told.output, re.MULTILINE)
            if found and found[2]:
                return int(found[2])
            misses = 0 if found else misses + 1
            if not self.place.is_ready():
                return None
            self.shell.say("the connection was lost; the run goes on without it.")
            lines = " 10"
            time.sleep(self.place.poll)
        return None


def _check_committed(shell: Shell, config: str) -> None:
    """Before anything costs: the hosts get the last commit of this checkout."""
    git = ["git", "-C", str(command.ROOT)]
    changes = shell.ask([*git, "status", "--porcelain", "--untracked-files=no"])
    known = shell.ask([*git, "ls-files", "--error-unmatch", command.config_file(config)])
    if changes.code or known.code:
        raise LaunchError(
            "the hosts get the last commit, but git says:"
            f" {(changes.errors or known.errors).strip()}"
        )
    if changes.output:
        raise LaunchError(
            f"the hosts get the last commit, which lacks these changes:\n{changes.output.rstrip()}"
        )


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m launch.tpu", description=main.__doc__, allow_abbrev=False
    )
    command.add_flags(parser)
    parser.add_argument(
        "--name",
        required=True,
        help="of the slice; what is called so is used, and deleted in the end",
    )
    parser.add_argument(
        "--accelerator",
        default="v3-32",
        help="type and size; the paper's are v3-32, v3-128, v3-512",
    )
    parser.add_argument("--zone", help="one that has the type, unless given")
    parser.add_argument("--project", help="gcloud's own, unless given")
    parser.add_argument("--version", help="software of the hosts; that of the type, unless given")
    parser.add_argument(
        "--spot", action="store_true", help="cheaper, and may be preempted at any time"
    )
    parser.add_argument(
        "--queued", action="store_true", help="ask by way of the queue (queued resources)"
    )
    parser.add_argument(
        "--patience",
        type=command.number(float, 0, 10_000),
        default=24,
        metavar="HOURS",
        help="to wait for a slice",
    )
    parser.add_argument(
        "--restarts",
        type=command.number(int, 0, 10_000),
        default=2,
        help="in all, after main.py failed",
    )
    parser.add_argument(
        "--poll",
        type=command.number(float, 0.001, 3600),
        default=30,
        metavar="SECONDS",
        help="between two looks at the slice",
    )
    parser.add_argument("--keep", action="store_true", help="leave the slice there in the end")
    parser.add_argument(
        "--delete", action="store_true", help="only delete the slice, whatever it does"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a config on a slice of Cloud TPU, which it creates, looks after and deletes."""
    parser = _parser()
    flags, rest = command.parse(parser, arguments)
    try:
        kind = accelerators.tpu(flags.accelerator)
    except ValueError as error:
        parser.error(str(error))
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", flags.name):
        parser.error("--name must be of small letters, digits and -.")
    if not flags.delete:
        command.check(flags, parser)
        if not all(path.startswith("gs://") for path in (flags.workdir, flags.data_dir or "gs://")):
            parser.error(
                "--workdir and --data_dir must be in a bucket (gs://): the disks of the hosts go"
                " with them."
            )
    shell = Shell(flags.dry_run)
    place = Slice(
        shell,
        flags.name,
        flags.zone or kind.zone,
        project=flags.project,
        queued=flags.queued,
        poll=flags.poll,
    )
    goes_on = f"{flags.name}, if it is there, goes on, and costs. The same command follows it; --delete deletes it."
    for each in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # the first is ignored in what a script starts in the background
        signal.signal(each, signal.default_int_handler)
    try:
        if not flags.delete:
            _check_committed(shell, flags.config)
            _complete(shell, place, flags, rest)
        if flags.keep and not flags.delete:
            shell.say(f"{flags.name} stays, and costs until --delete deletes it.")
        else:
            place.remove()
    except UnknownError as error:
        sys.exit(f"{error}\n{goes_on}")
    except LaunchError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(f"interrupted. {goes_on}")


def _complete(shell: Shell, place: Slice, flags: argparse.Namespace, rest: Sequence[str]) -> None:
    """Completes the run, and deletes the slice of one that fails."""
    run = Run(shell, place, flags, rest)
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
            place.remove()
        except LaunchError as another:
            raise LaunchError(f"{error}\n{another}") from None
        raise
    shell.say(f"complete: {flags.workdir}/results.json")


if __name__ == "__main__":
    main()
