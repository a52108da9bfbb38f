"""TensorBoard's event files, by its own package: no run imports TensorFlow to write them."""

import importlib.util
import io
import os
import socket
import time

from heteroscedastic import files


def can_be_written() -> bool:
    """Whether TensorBoard is installed."""
    return importlib.util.find_spec("tensorboard") is not None


class EventFile:
    """A new file of scalars by step in a directory, which TensorBoard reads. Requires TensorBoard.

    Resuming a run adds a file; events of the steps that it repeats remain in the earlier one.
    """

    def __init__(self, directory: files.Path):
        """Creates the file."""
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._path = directory / name
        self._all = b""  # in a bucket, where a file is written as a whole
        self._add(file_version="brain.Event:2")

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds the values of a step; they are in the file when this returns."""
        from tensorboard.compat.proto import summary_pb2

        summary = summary_pb2.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._add(step=step, summary=summary)

    def _add(self, **fields) -> None:
        # Imported here, as TensorBoard is an extra.
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer import record_writer

        record = io.BytesIO()
        event = event_pb2.Event(wall_time=time.time(), **fields)
        record_writer.RecordWriter(record).write(event.SerializeToString())
        if files.in_bucket(self._path):
            self._all += record.getvalue()
            files.write_atomically(self._path, lambda file: file.write(self._all))
        else:
            files.append(self._path, record.getvalue())
