"""Several processes that make one run: the first one writes, and all take the same decisions."""

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
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed  # its client of the coordinator; JAX has no public name for it
from jax.experimental import multihost_utils

from heteroscedastic import user_errors
from heteroscedastic.user_errors import UserError

_FAREWELL = (
    "this process ended before its run did: by its own error, by a signal, or because another host"
    " was lost; the same command on all of them continues from the last checkpoint."
)
_HEARTBEAT_SECONDS = 20  # a host that is silent for so long is lost
SECONDS_TO_COME = 300  # for all processes to start, as those of a slice do not start together
_SECONDS_TO_LEAVE = 5  # for all processes to reach the barrier before they exit
_watcher: subprocess.Popen | None = None  # of this process, once it has joined others


class HostError(UserError, RuntimeError):
    """Another host of the run failed or was lost."""


class HostMistakeError(HostError, ValueError):
    """The hosts have different settings, or the first one rejects its own."""


def start(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    seconds_to_come: int = SECONDS_TO_COME,
) -> None:
    """Joins the processes of a run. Call it before any other function of JAX.

    From then on, any exit that is not orderly leaves a line on standard error that says how to
    continue the run.

    Args:
      coordinator_address: host:port of the first process; None asks the cluster (TPU pods, Slurm).
      num_processes: number of processes of the run.
      process_id: index of this process, from 0.
      seconds_to_come: time limit for all processes to start; after it, JAX ends this process.

    Raises:
      HostMistakeError: an argument is invalid, or one is missing and no cluster provides it.
    """
    _check(coordinator_address, num_processes, process_id)
    global _watcher
    program = str(Path(__file__).with_name("exit_watcher.py"))
    # In a session of its own, so that Ctrl-C does not reach it.
    _watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", program, _FAREWELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_watcher.communicate, b".")

    def report_late():
        print(
            f"not all processes of this run came within {seconds_to_come} s; start the same"
            " command on all hosts, each with a --process_id of its own.",
            file=sys.stderr,
            flush=True,
        )

    # Earlier than the limit, at which JAX ends the process without running any Python.
    late = threading.Timer(0.9 * seconds_to_come, report_late)
    late.daemon = True
    late.start()
    # The service would catch SIGTERM, so that one that arrives before preemption.StopEvent handles
    # signals would have no effect.
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
            f"--hosts finds no cluster that lists the processes ({str(error).rstrip('.')}); give"
            " --coordinator=HOST:PORT, --num_processes and --process_id."
        ) from error
    except RuntimeError as error:
        raise HostError(
            f"process {process_id} cannot join the others ({first_line(error)}); see whether"
            f" another program has the port of --coordinator={coordinator_address}."
        ) from error
    finally:
        late.cancel()


def _check(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Raises for arguments that JAX accepts, to fail only after minutes of waiting."""
    if coordinator_address is not None:
        match = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+):(\d{1,5})", coordinator_address)
        if not match or not 0 < int(match[2]) < 2**16:
            raise HostMistakeError(
                f"--coordinator is {coordinator_address!r}, but must be HOST:PORT, such as"
                " node1:8476."
            )
        try:
            socket.getaddrinfo(match[1].strip("[]"), int(match[2]))
        except (OSError, UnicodeError) as error:
            raise HostMistakeError(
                f"--coordinator is {coordinator_address!r}, but this machine knows no host"
                f" {match[1]} ({error})."
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
    """The first line of an error's message; JAX may add pages to it."""
    return str(error).partition("\n")[0] or type(error).__name__


def coordinator() -> Any:
    """The client of the coordinator; None where this process has not joined others."""
    return distributed.global_state.client


def leave(error: Exception) -> NoReturn:
    """Ends this process with exit status 1, without waiting for the other hosts to finish.

    Args:
      error: the cause, already reported. After a user's ValueError the same command would fail
        again, so the message about continuing is left out.
    """
    # JAX raises ValueErrors too, which are no mistakes of the user.
    is_mistake = isinstance(error, ValueError) and user_errors.message(error) is not None
    if not is_mistake:
        # At once, as what started this process may not wait for the rest.
        print(_FAREWELL, file=sys.stderr, flush=True)
    if _watcher:
        _watcher.communicate(b".")
    if client := coordinator():
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the others do not leave
            client.wait_at_barrier("heteroscedastic/leave", 1000 * _SECONDS_TO_LEAVE)
            # JAX ends the others as soon as the first process, which runs the coordinator, exits.
            time.sleep(1.0 if is_first() else 0.0)
    os._exit(1)


def is_alone() -> bool:
    """Whether this is the only process."""
    return jax.process_count() == 1


def is_first() -> bool:
    """Whether this is the process that writes files and logs."""
    return jax.process_index() == 0


def from_first(fn: Callable[[], Any]) -> Any:
    """The JSON value that `fn` returns on the first process, on all processes.

    Raises:
      HostError: on the other processes, if `fn` raises on the first one.
    """
    if is_alone():
        return fn()
    message, error = {}, None
    if is_first():
        try:
            message = {"value": fn()}
        except Exception as raised:
            error, is_mistake = raised, isinstance(raised, ValueError)
            message = {"error": f"{type(raised).__name__}: {raised}", "mistake": is_mistake}
    data = np.frombuffer(json.dumps(message).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    data = multihost_utils.broadcast_one_to_all(np.resize(data, length))
    if error:
        raise error
    message = json.loads(np.asarray(data, np.uint8).tobytes())
    if "error" in message:
        raise (HostMistakeError if message["mistake"] else HostError)(
            f"the first process stopped: {message['error']}"
        )
    return message["value"]


def from_all(value: Any) -> list[Any]:
    """The JSON values of all processes, in order, on all processes."""
    if is_alone():
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(data)))
    rows = multihost_utils.process_allgather(np.resize(data, int(lengths.max())))
    return [json.loads(np.asarray(row[:n], np.uint8).tobytes()) for row, n in zip(rows, lengths)]


def agree(value: str, what: str) -> None:
    """Raises a HostMistakeError on all hosts if their values differ."""
    if any_says(from_first(lambda: value) != value):
        raise HostMistakeError(
            f"the hosts of this run have different {what}; give all of them the same."
        )


def largest(*values: float) -> tuple[float, ...]:
    """The maximum of each value over all processes."""
    if is_alone():
        return values
    return tuple(multihost_utils.process_allgather(np.float32(values)).max(axis=0).tolist())


def any_says(flag: bool) -> bool:
    """Whether the flag is set on any process."""
    return bool(largest(flag)[0])


def log(text: str) -> None:
    """Prints a line of the run's progress, on the first process alone."""
    # To standard output, where absl never writes: experiments.run and notebooks read the progress
    # there, and main.py hides absl's INFO, at which Orbax reports every file that it writes.
    if is_first():
        try:
            print(text, flush=True)
        except OSError:
            # The reader has ended, as `head` does, or a disk is full; the run continues.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
