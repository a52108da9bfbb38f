"""What launchers share: what is to be run, how main.py is called, and a shell that can only tell
what it would do.
"""

import argparse
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
SAVED = 75  # main.py exits so after SIGTERM, once the state is saved


class LaunchError(RuntimeError):
    """A launch that cannot go on; the message says what is left and what to do."""


class UnknownError(LaunchError):
    """It cannot be told what is there."""


class BusyError(LaunchError):
    """What is there is at other work, which must not be touched."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], int | float]:
    """The type of a flag whose value is a number from `low` to `high`, which nan is not."""

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(
                f"is {text}, but must be {what} from {low:g} to {high:g}."
            )
        return value

    return parse


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    output: str = ""
    errors: str = ""


class Shell:
    """Runs commands; a dry one prints them, quoted, and takes it that they did what was assumed."""

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def say(self, text: str) -> None:
        """Tells what goes on, beside the log of the run."""
        if not self.dry_run:
            print(f"launch: {text}", file=sys.stderr, flush=True)

    def ask(
        self, words: Sequence[str], *, assumed: Done | None = None, given: str | None = None
    ) -> Done:
        """Runs a command for what it says."""
        return self._run(words, assumed or Done(0), given, subprocess.PIPE)

    def show(self, words: Sequence[str]) -> int:
        """Runs a command whose output is the caller's own, and returns its exit status."""
        return self._run(words, Done(0), None, None).code

    def _run(
        self, words: Sequence[str], assumed: Done, given: str | None, pipe: int | None
    ) -> Done:
        if self.dry_run:
            print(shlex.join(words))
            if given is not None:
                print(given)
            return assumed
        try:
            done = subprocess.run(
                words, input=given, stdout=pipe, stderr=pipe, text=True, check=False
            )
        except FileNotFoundError:
            sys.exit(f"there is no program {words[0]!r} here; install it, or see --dry_run.")
        return Done(done.returncode, done.stdout or "", done.stderr or "")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every launcher."""
    parser.add_argument(
        "--config", help="file of configs/; --config.a.b=c changes a setting, as for main.py"
    )
    parser.add_argument("--workdir", help="directory of the run, one that all hosts share")
    parser.add_argument("--data_dir", help="where data sets lie, for all hosts")
    parser.add_argument("--smoke", action="store_true", help="two small steps of it")
    parser.add_argument(
        "--dry_run", action="store_true", help="print the commands that would be run, and run none"
    )


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and those of main.py that are passed on."""
    flags, rest = parser.parse_known_args(arguments)
    for word in rest:
        if not word.startswith("--config."):
            parser.error(f"nobody reads {word!r}; passed on is --config.SETTING=VALUE.")
    return flags, rest


def check(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the program where it is not said what to run."""
    if not flags.config or not flags.workdir:
        parser.error("give --config and --workdir.")
    path = Path(config_file(flags.config))
    if path.is_absolute() or ".." in path.parts or not (ROOT / path).is_file():
        parser.error(
            f"--config is {flags.config}, but must be a file of this checkout, such as"
            " configs/digits_hom.py."
        )


def config_file(config: str) -> str:
    """The file of a --config; what stands after a colon is told to it."""
    return config.partition(":")[0]


def main_words(flags: argparse.Namespace, rest: Sequence[str], python: str) -> list[str]:
    """The command that every host runs, in a checkout."""
    words = [python, "-u", "main.py"]  # a log must not wait in a buffer while somebody reads it
    words += [f"--config={flags.config}", f"--workdir={flags.workdir}"]
    words += [f"--data_dir={flags.data_dir}"] if flags.data_dir else []
    return [*words, *(["--smoke"] if flags.smoke else []), *rest, "--hosts"]


def settings(environment: Mapping[str, str]) -> list[str]:
    """An environment as words."""
    return [f"{name}={value}" for name, value in environment.items()]
