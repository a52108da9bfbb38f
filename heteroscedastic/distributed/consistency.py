"""That the hosts of a run fit together: code, packages, flags, devices, data, config and workdir."""

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

_SECONDS_TO_SEE = 10.0  # a file that another host wrote
_exchanges = itertools.count()  # the same on all hosts, as all of them make each exchange


def exchange(value: Any) -> list[Any]:
    """As `from_all`, by way of the coordinator: also between hosts whose devices or types of arrays
    differ.

    Raises:
      HostError: a process did not give its value in time.
    """
    if hosts.is_alone():
        return [value]
    client, place = hosts.coordinator(), f"heteroscedastic/{next(_exchanges)}"
    client.key_value_set(f"{place}/{jax.process_index()}", json.dumps(value))
    found = []
    for i in range(jax.process_count()):
        try:
            found.append(
                json.loads(
                    client.blocking_key_value_get(f"{place}/{i}", 1000 * hosts.SECONDS_TO_COME)
                )
            )
        except jax.errors.JaxRuntimeError as error:
            raise hosts.HostError(
                f"process {i} did not answer ({hosts.first_line(error)})."
            ) from error
    return found


def agree_on(values: Mapping[str, Any]) -> None:
    """Raises a HostMistakeError on all hosts where they do not have the same JSON values; names
    those that differ.
    """
    first, *others = exchange(dict(values))
    for i, theirs in enumerate(others, 1):
        names = [name for name in {**first, **theirs} if first.get(name) != theirs.get(name)]
        told = [
            f"{name} ({json.dumps(first.get(name))} and {json.dumps(theirs.get(name))})"
            for name in names
        ]
        if told:
            raise hosts.HostMistakeError(
                f"processes 0 and {i} of this run differ in {', '.join(told)}; give all hosts the"
                " same code, packages,"
                " flags, devices, data and command."
            )


def check_shared(directory: files.Path) -> None:
    """That all hosts see what the first one writes into a directory, which is there on the first
    one.

    Raises:
      HostMistakeError: one does not, on all hosts; names it.
    """
    if hosts.is_alone():
        return

    def write():
        # a new one, as a network disk may remember that a file was not there
        name = f".shared-{uuid.uuid4().hex}"
        (directory / name).write_text("")
        return name

    path, deadline = directory / hosts.from_first(write), time.monotonic() + _SECONDS_TO_SEE
    while not (is_seen := path.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    blind = [
        told
        for told in exchange(None if is_seen else [socket.gethostname(), str(directory)])
        if told
    ]
    if hosts.is_first():
        path.unlink()
    if blind:
        host, place = blind[0]
        raise hosts.HostMistakeError(
            f"{host} does not see in {place} what the first host wrote into --workdir; give all"
            " hosts one directory"
            " that they share, on a network disk or as gs://BUCKET/DIRECTORY."
        )
