"""Checks that the hosts of a run agree on code, packages, flags, devices, data and config.

A further check is that they share the directory of the run.
"""

import itertools
import json
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any

import jax

from heteroscedastic import files
from heteroscedastic.distributed import hosts

_SECONDS_TO_SEE = 10.0  # until a file of another host is visible on a network disk
_exchanges = itertools.count()  # in step on all hosts, as each exchange involves all of them


def exchange(value: Any) -> list[Any]:
    """The JSON values of all processes, in order, on all processes.

    Unlike `hosts.from_all` it goes through the coordinator, and so works between hosts whose
    devices or array types differ.

    Raises:
      HostError: a process does not send its value in time.
    """
    if hosts.is_alone():
        return [value]
    client, prefix = hosts.coordinator(), f"heteroscedastic/{next(_exchanges)}"
    client.key_value_set(f"{prefix}/{jax.process_index()}", json.dumps(value))
    values, milliseconds = [], 1000 * hosts.SECONDS_TO_COME
    for i in range(jax.process_count()):
        try:
            values.append(json.loads(client.blocking_key_value_get(f"{prefix}/{i}", milliseconds)))
        except jax.errors.JaxRuntimeError as error:
            raise hosts.HostError(
                f"process {i} did not answer ({hosts.first_line(error)})."
            ) from error
    return values


def agree_on(values: Mapping[str, Any]) -> None:
    """Raises a HostMistakeError on all hosts if their JSON values differ; names those that do."""
    first, *others = exchange(dict(values))
    for i, theirs in enumerate(others, 1):
        names = [name for name in {**first, **theirs} if first.get(name) != theirs.get(name)]
        differences = [
            f"{name} ({json.dumps(first.get(name))} and {json.dumps(theirs.get(name))})"
            for name in names
        ]
        if differences:
            raise hosts.HostMistakeError(
                f"processes 0 and {i} of this run differ in {', '.join(differences)}; give all"
                " hosts the same code, packages, flags, devices, data and command."
            )


def check_shared(directory: files.Path) -> None:
    """Checks that all hosts share a directory, which exists on the first one.

    Raises:
      HostMistakeError: on all hosts, if one does not see a file that the first one writes; names
        that host.
    """
    if hosts.is_alone():
        return

    def write():
        # A new name, as a network disk may cache that a file does not exist.
        name = f".shared-{uuid.uuid4().hex}"
        (directory / name).write_text("")
        return name

    path, deadline = directory / hosts.from_first(write), time.monotonic() + _SECONDS_TO_SEE
    while not (is_visible := path.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    mine = None if is_visible else [socket.gethostname(), str(directory)]
    blind = [theirs for theirs in exchange(mine) if theirs]
    if hosts.is_first():
        path.unlink()
    if blind:
        host, name = blind[0]
        raise hosts.HostMistakeError(
            f"{host} does not see in {name} what the first host wrote into --workdir; give all"
            " hosts one directory that they share, on a network disk or as gs://BUCKET/DIRECTORY."
        )
