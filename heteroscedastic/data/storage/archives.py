"""Nested tar archives, read as streams.

Nothing is unpacked to disk, so names in an archive are never used as paths.
"""

import tarfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

_DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error)


class Member:
    """A file of an archive, read on demand, before the iterator moves to the next file."""

    def __init__(self, name: str, size: int, file: Any, where: str):
        self.name, self.file, self._size, self._where = name, file, size, where

    def read(self) -> bytes:
        """Reads the content.

        Raises:
          ValueError: the archive is damaged or ends before the file does.
        """
        try:
            content = self.file.read()
        except _DAMAGE as error:
            raise _damage_error(self._where, self.name, error) from None
        if len(content) != self._size:
            raise _damage_error(self._where, self.name, f"{len(content)} of {self._size} bytes")
        return content

    def members(self) -> Iterator["Member"]:
        """The files of a nested archive."""
        return _members(self.file, f"{self._where}: {self.name}", "r:")


def members(path: Any) -> Iterator[Member]:
    """The files of a tar archive, in order. An archive whose name ends in gz is decompressed.

    Args:
      path: path of the archive, with the methods of pathlib; may be in a bucket.

    Raises:
      ValueError: the archive is damaged or truncated; names the last complete file.
    """
    with path.open("rb") as file:
        yield from _members(file, str(path), "r:gz" if path.name.endswith("gz") else "r:")


def content(path: Any, name: str) -> bytes:
    """The content of one file of an archive.

    Raises:
      ValueError: the archive is damaged or has no such file.
    """
    for member in members(path):
        if member.name == name:
            return member.read()
    raise ValueError(f"{path} has no file {name}; download it again.")


def check_present(directory: Any, names: Sequence[str], instructions: str) -> None:
    """Raises a FileNotFoundError with the instructions if one of the files is missing."""
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise FileNotFoundError(f"missing in {directory}: {', '.join(missing)}.\n{instructions}")


def _members(file: Any, where: str, mode: str) -> Iterator[Member]:
    last = "its beginning"
    try:
        with tarfile.open(fileobj=file, mode=mode) as tar:
            while (info := tar.next()) is not None:
                tar.members.clear()  # or tarfile would keep millions of headers in memory
                if info.isdir():
                    continue
                if not info.isreg():
                    raise ValueError(
                        f"{where}: {info.name} is a link or a device, not a file; download it"
                        " again."
                    )
                yield Member(info.name.removeprefix("./"), info.size, tar.extractfile(info), where)
                last = info.name
            # tarfile treats a damaged or missing header as the end of the archive. The end is
            # marked by two blocks of zeros.
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise _damage_error(where, last, "no end marker")
    except _DAMAGE as error:
        raise _damage_error(where, last, error) from None


def _damage_error(where: str, position: str, error: Any) -> ValueError:
    return ValueError(
        f"{where} is damaged or truncated after {position} ({error}); download it again."
    )
