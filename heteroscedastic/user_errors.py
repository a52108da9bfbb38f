"""How a command ends with an error: one line for what a user can correct, a traceback for a bug."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

INTERRUPTED = 130  # what a shell reports of a program that SIGINT ended
_PACKAGE = Path(__file__).resolve().parent
_OURS = (_PACKAGE, *(_PACKAGE.parent / name for name in ("main.py", "configs", "experiments")))


class UserError(Exception):
    """An error that a user can correct; its message says how."""


def message(error: BaseException) -> str | None:
    """The message of an error that a user can correct; None for a bug, whose traceback is needed.

    A ValueError is a user's only where this project raises it, as a ValueError of JAX or NumPy is a
    bug here. So is an OSError that names no file.
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
    return any(path.is_relative_to(ours) for ours in _OURS)


@contextlib.contextmanager
def one_line(debug: bool | None = None) -> Iterator[None]:
    """Ends the program with one line and exit status 1 where a user can correct the error; also a
    decorator.

    Args:
      debug: raises the error as it is, with its traceback; None asks for --debug among the
        command's arguments.
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
    """A parser of the arguments of a command whose main is decorated with `one_line`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return made
