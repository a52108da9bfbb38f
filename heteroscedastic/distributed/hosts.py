"""Several processes that make one run together: the first one writes, and all agree."""

import atexit
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed  # its client of the coordinator; JAX has no public name for it
from jax.experimental import multihost_utils

from heteroscedastic import user_errors
from heteroscedastic.user_errors import UserError

_FAREWELL = (
    "this process ended before its run did, by its own error, by a signal or for the loss of"
    " another host; the same"
    " command on all of them continues from the last checkpoint."
)
# Says so where its input ends without a word. JAX ends a process that lost another one by abort(),
# at which no Python of that process is run.
_WITNESS = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    " sys.stdin.read(1) or print(sys.argv[1], file=sys.stderr, flush=True)"
)
_HEARTBEAT_SECONDS = 20  # a host silent for so long is lost
SECONDS_TO_COME = 300  # of the other processes, as those of a slice do not start at one moment
_SECONDS_TO_LEAVE = 5  # where all hosts do
_witness: subprocess.Popen | None = None  # of this process, once it has joined others


class HostError(UserError, RuntimeError):
    """Another host of the run failed or was lost."""


class HostMistakeError(HostError, ValueError):
    """The hosts were given what does not go together, or the first one what it cannot use."""


def start(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    seconds_to_come: int = SECONDS_TO_COME,
) -> None:
    """Joins the processes of a run; before anything else of jax.

    If this process ends otherwise than by an orderly exit, however that is, its standard error says
    how to go on.

    Args:
      coordinator_address: host:port of the first process; None asks the cluster (TPU pods, Slurm).
      num_processes: of the run.
      process_id: of this one, from 0.
      seconds_to_come: in which all must have come; else this process says so and ends, by JAX's own
        hand.

    Raises:
      HostMistakeError: an argument is wrong, or one is missing and no cluster tells it.
    """
    _check(coordinator_address, num_processes, process_id)
    global _witness
    command = [sys.executable, "-I", "-S", "-c", _WITNESS, _FAREWELL]
    # Of its own session, as it is not to be interrupted with this one.
    _witness = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    atexit.register(_witness.communicate, b".")

    def tell():
        print(
            f"not all processes of this run came within {seconds_to_come} s; start the same"
            " command on all hosts,"
            " each with a --process_id of its own.",
            file=sys.stderr,
            flush=True,
        )

    late = threading.Timer(
        0.9 * seconds_to_come, tell
    )  # before JAX ends the process, which nothing outlives
    late.daemon = True
    late.start()
    # It would take SIGTERM, so that one before the loop hears it (termination.py) would come to
    # nothing.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            initialization_timeout=seconds_to_come,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except ValueError as error:
        raise HostMistakeError(
            "--hosts finds no cluster that tells which processes there are"
            f" ({str(error).rstrip('.')}); give"
            " --coordinator=HOST:PORT, --num_processes and --process_id."
        ) from error
    except RuntimeError as error:
        raise HostError(
            f"process {process_id} cannot join the others ({first_line(error)}); see whether"
            " another program has the"
            f" port of --coordinator={coordinator_address}."
        ) from error
    finally:
        late.cancel()


def _check(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """What JAX would take, and then wait for minutes."""
    if coordinator_address is not None:
        found = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+):(\d{1,5})", coordinator_address)
        if not found or not 0 < int(found[2]) < 2**16:
            raise HostMistakeError(
                f"--coordinator is {coordinator_address!r}, but must be HOST:PORT, such as"
                " node1:8476."
            )
        try:
            socket.getaddrinfo(found[1].strip("[]"), int(found[2]))
        except (OSError, UnicodeError) as error:
            raise HostMistakeError(
                f"--coordinator is {coordinator_address!r}, but this machine knows no host"
                f" {found[1]} ({error})."
            ) from None
    if num_processes is not None and num_processes < 1:
        raise HostMistakeError(f"--num_processes is {num_processes}, but must be 1 or more.")
    if process_id is not None and not 0 <= process_id < (num_processes or process_id + 1):
        below = f" and less than --num_processes, {num_processes}" if num_processes else ""
        raise HostMistakeError(f"--process_id is {process_id}, but must be 0 or more{below}.")
    if coordinator_address is not None and num_processes is not None and process_id == 0:
        _check_port(coordinator_address)


def _check_port(coordinator_address: str) -> None:
    """Raises a HostMistakeError where the port of the coordinator is in use on this machine.

    JAX reports that as an error of its server, or ends in a segmentation fault.
    """
    try:
        socket.create_server(("", int(coordinator_address.rpartition(":")[2]))).close()
    except OSError as error:
        raise HostMistakeError(
            f"process 0 cannot serve --coordinator={coordinator_address} ({error.strerror}); see"
            " whether another program has this port, and give a free one to all hosts."
        ) from None


def first_line(error: Exception) -> str:
    """What libraries beneath say of an error, without the pages that may follow."""
    return str(error).partition("\n")[0] or type(error).__name__


def coordinator() -> Any:
    """The client of the coordinator; None where this process has not joined others."""
    return distributed.global_state.client


def farewell() -> None:
    """Says how to go on, before an end that is not orderly; at once, as what starts a process may
    not wait for more.
    """
    print(_FAREWELL, file=sys.stderr, flush=True)
    _dismiss_witness()


def leave(error: Exception) -> NoReturn:
    """Ends this process with exit status 1, soon: an orderly exit would wait for the other hosts.

    Args:
      error: reported already; after a user's ValueError the same command would fail again, so it is
        not suggested.
    """
    is_mistake = (
        isinstance(error, ValueError) and user_errors.message(error) is not None
    )  # JAX raises some, too
    _dismiss_witness() if is_mistake else farewell()
    if client := coordinator():
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the others do not leave
            client.wait_at_barrier("heteroscedastic/leave", 1000 * _SECONDS_TO_LEAVE)
            # JAX ends the others as soon as the first process, and with it the coordinator, is
            # gone.
            time.sleep(1.0 if is_first() else 0.0)
    os._exit(1)


def _dismiss_witness() -> None:
    if _witness:
        _witness.communicate(b".")


def is_alone() -> bool:
    """Whether this is the only process."""
    return jax.process_count() == 1


def is_first() -> bool:
    """Whether this is the process that writes and speaks."""
    return jax.process_index() == 0


def from_first(fn: Callable[[], Any]) -> Any:
    """What `fn` returns on the first process, as JSON, on all of them; its error is everybody's.

    Raises:
      HostError: elsewhere, where the first process raised.
    """
    if is_alone():
        return fn()
    told, error = {}, None
    if is_first():
        try:
            told = {"value": fn()}
        except Exception as raised:
            error, is_mistake = raised, isinstance(raised, ValueError)
            told = {"error": f"{type(raised).__name__}: {raised}", "mistake": is_mistake}
    data = np.frombuffer(json.dumps(told).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    data = multihost_utils.broadcast_one_to_all(np.resize(data, length))
    if error:
        raise error
    told = json.loads(np.asarray(data, np.uint8).tobytes())
    if "error" in told:
        raise (HostMistakeError if told["mistake"] else HostError)(
            f"the first process stopped: {told['error']}"
        )
    return told["value"]


def from_all(value: Any) -> list[Any]:
    """The value of every process, as JSON, on all of them."""
    if is_alone():
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(data)))
    told = multihost_utils.process_allgather(np.resize(data, int(lengths.max())))
    return [json.loads(np.asarray(x[:n], np.uint8).tobytes()) for x, n in zip(told, lengths)]


def agree(value: str, what: str) -> None:
    """Raises a HostError on all hosts where they do not have the same value."""
    if any_says(from_first(lambda: value) != value):
        raise HostMistakeError(
            f"the hosts of this run have different {what}; give all of them the same."
        )


def largest(*values: float) -> tuple[float, ...]:
    """Of each value the largest of all processes."""
    if is_alone():
        return values
    return tuple(multihost_utils.process_allgather(np.float32(values)).max(axis=0).tolist())


def any_says(flag: bool) -> bool:
    """Whether it is so on any process."""
    return bool(largest(flag)[0])


def say(text: str) -> None:
    """Prints, on the first process alone."""
    if is_first():
        print(text, flush=True)
