"""Errors of commands: one line for an error that a user can correct, a traceback for a bug."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

INTERRUPTED = 130  # exit status that a shell reports after SIGINT
_PACKAGE = Path(__file__).resolve().parent
_PROJECT_PATHS = (_PACKAGE, *(_PACKAGE.parent / name for name in ("configs", "experiments")))


class UserError(Exception):
    """An error that a user can correct; its message says how."""


def message(error: BaseException) -> str | None:
    """The message of an error that a user can correct; None for a bug, which needs a traceback.

    A ValueError is an error of the user only if this project raises it: a ValueError of JAX or
    NumPy indicates a bug, and so does an OSError without a file name.
    """
    if isinstance(error, UserError) or (isinstance(error, OSError) and error.filename):
        return str(error)
    if isinstance(error, ValueError | OSError | ModuleNotFoundError) and _is_raised_here(error):
        return str(error)
    return None


def _is_raised_here(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    path = Path(frame.tb_frame.f_code.co_filename).resolve() if frame else Path()
    return any(path.is_relative_to(parent) for parent in _PROJECT_PATHS)


@contextlib.contextmanager
def one_line(debug: bool | None = None) -> Iterator[None]:
    """Ends the program with one line and exit status 1 if a user can correct the error.

    It is a context manager and a decorator.

    Args:
      debug: whether to raise the error with its traceback; None checks for --debug in sys.argv.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        text = message(error)
        if text is None or (debug if debug is not None else "--debug" in sys.argv):
            raise
        raise SystemExit(f"error: {text}") from None


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with --debug, for a command whose main is decorated with `one_line`."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return arguments
