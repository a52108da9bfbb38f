"""Common parts of the launchers: flags, the command of a run, and a shell with a dry-run mode."""

import argparse
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
SAVED = 75  # exit status of main.py after SIGTERM, once the state is saved


class LaunchError(RuntimeError):
    """A launch that failed; the message says what remains and what to do."""


class UnknownError(LaunchError):
    """The state of the slice is unknown."""


class BusyError(LaunchError):
    """The slice runs another command, which must not be interrupted."""


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], int | float]:
    """The type of a flag whose value is a number from `low` to `high`; nan is rejected."""

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            description = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(
                f"is {text}, but must be {description} from {low:g} to {high:g}."
            )
        return value

    return parse


class CommandResult(NamedTuple):
    """The result of a command."""

    code: int  # exit status
    output: str = ""
    errors: str = ""


class Shell:
    """Runs commands; a dry run prints them, quoted, and assumes their results."""

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def log(self, text: str) -> None:
        """Logs progress to stderr, beside the log of the run."""
        if not self.dry_run:
            print(f"launch: {text}", file=sys.stderr, flush=True)

    def capture(
        self,
        words: Sequence[str],
        *,
        dry_run_result: CommandResult | None = None,
        stdin: str | None = None,
    ) -> CommandResult:
        """Runs a command and returns its status and output.

        Args:
          words: the command and its arguments.
          dry_run_result: result of a dry run; success without output by default.
          stdin: standard input of the command.
        """
        return self._run(words, dry_run_result or CommandResult(0), stdin, subprocess.PIPE)

    def show(self, words: Sequence[str]) -> int:
        """Runs a command, prints its output and returns its exit status."""
        return self._run(words, CommandResult(0), None, None).code

    def _run(
        self,
        words: Sequence[str],
        dry_run_result: CommandResult,
        stdin: str | None,
        pipe: int | None,
    ) -> CommandResult:
        if self.dry_run:
            print(shlex.join(words))
            if stdin is not None:
                print(stdin)
            return dry_run_result
        try:
            process = subprocess.run(
                words, input=stdin, stdout=pipe, stderr=pipe, text=True, check=False
            )
        except FileNotFoundError:
            sys.exit(f"program {words[0]!r} is not installed; install it, or use --dry_run.")
        return CommandResult(process.returncode, process.stdout or "", process.stderr or "")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of every launcher."""
    parser.add_argument(
        "--config", help="a file of configs/; --config.a.b=c changes a setting, as for main.py"
    )
    parser.add_argument("--workdir", help="directory of the run, shared by all hosts")
    parser.add_argument("--data_dir", help="directory of data sets, for all hosts")
    parser.add_argument("--smoke", action="store_true", help="run two small steps only")
    parser.add_argument(
        "--dry_run", action="store_true", help="print the commands without running them"
    )


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """Parses the flags of the launcher, and the flags of main.py that are passed on."""
    flags, rest = parser.parse_known_args(arguments)
    for word in rest:
        if not word.startswith("--config."):
            parser.error(
                f"unknown argument {word!r}; only --config.SETTING=VALUE is passed on to main.py."
            )
    return flags, rest


def check(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the program if --config or --workdir is missing or invalid."""
    if not flags.config or not flags.workdir:
        parser.error("give --config and --workdir.")
    path = Path(config_file(flags.config))
    if path.is_absolute() or ".." in path.parts or not (ROOT / path).is_file():
        parser.error(
            f"--config is {flags.config}, but must be a file of this checkout, such as"
            " configs/digits_hom.py."
        )


def config_file(config: str) -> str:
    """The file of a --config value; text after a colon is its argument."""
    return config.partition(":")[0]


def main_words(flags: argparse.Namespace, rest: Sequence[str], python: str) -> list[str]:
    """The command that every host runs, in a checkout."""
    words = [python, "-u", "main.py"]  # unbuffered, so that the log can be followed
    words += [f"--config={flags.config}", f"--workdir={flags.workdir}"]
    words += [f"--data_dir={flags.data_dir}"] if flags.data_dir else []
    return [*words, *(["--smoke"] if flags.smoke else []), *rest, "--hosts"]


def assignments(environment: Mapping[str, str]) -> list[str]:
    """Environment variables as arguments of `env` or `export`."""
    return [f"{name}={value}" for name, value in environment.items()]
