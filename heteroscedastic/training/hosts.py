"""Several processes that make one run together: the first one writes, and all agree."""

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

_FAREWELL = (
    "this process ended before its run did, by its own error, by a signal or for the loss of another host; the same"
    " command on all of them continues from the last checkpoint."
)
# Says so where its input ends without a word. JAX ends a process that lost another one by abort(), at which no
# Python of that process is run.
_WITNESS = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    " sys.stdin.read(1) or print(sys.argv[1], file=sys.stderr, flush=True)"
)
_HEARTBEAT_SECONDS = 20  # a host silent for so long is lost
_SECONDS_TO_COME = 300  # of the other processes, as those of a slice do not start at one moment
_witness: subprocess.Popen | None = None  # of this process, once it has joined others


class HostError(RuntimeError):
    """Another host of the run failed or was lost."""


def start(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    seconds_to_come: int = _SECONDS_TO_COME,
) -> None:
    """Joins the processes of a run; before anything else of jax.

    If this process ends otherwise than by an orderly exit, however that is, its standard error says how to go on.

    Args:
      coordinator_address: host:port of the first process; None asks the cluster (TPU pods, Slurm).
      num_processes: of the run.
      process_id: of this one, from 0.
      seconds_to_come: in which all must have come; else this process says so and ends, by JAX's own hand.
    """
    global _witness
    command = [sys.executable, "-I", "-S", "-c", _WITNESS, _FAREWELL]
    # Of its own session, as it is not to be interrupted with this one.
    _witness = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    atexit.register(_witness.communicate, b".")

    def tell():
        print(
            f"not all processes of this run came within {seconds_to_come} s; start the same command on all hosts.",
            file=sys.stderr,
            flush=True,
        )

    late = threading.Timer(0.9 * seconds_to_come, tell)  # before JAX ends the process, which nothing outlives
    late.daemon = True
    late.start()
    # It would take SIGTERM, so that one before the loop hears it (termination.py) would come to nothing.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator_address,
        num_processes,
        process_id,
        initialization_timeout=seconds_to_come,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
    )
    late.cancel()


def farewell() -> None:
    """Says how to go on, before an end that is not orderly; at once, as what starts a process may not wait for more."""
    print(_FAREWELL, file=sys.stderr, flush=True)
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
            error, told = raised, {"error": f"{type(raised).__name__}: {raised}"}
    data = np.frombuffer(json.dumps(told).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    data = multihost_utils.broadcast_one_to_all(np.resize(data, length))
    if error:
        raise error
    told = json.loads(np.asarray(data, np.uint8).tobytes())
    if "error" in told:
        raise HostError(f"the first process stopped: {told['error']}")
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
        raise HostError(f"the hosts of this run have different {what}; give the same command and the same data to all.")


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
