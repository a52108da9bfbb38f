"""Tar archives read as streams, also inside one another: nothing is unpacked to disk, so no name in
one is a path.
"""

import tarfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

_DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error)


class Member:
    """A file of an archive, read when it is asked for; it is gone once the next one is reached."""

    def __init__(self, name: str, size: int, file: Any, where: str):
        self.name, self.file, self._size, self._where = name, file, size, where

    def read(self) -> bytes:
        """Its content.

        Raises:
          ValueError: the archive ends before it does.
        """
        try:
            content = self.file.read()
        except _DAMAGE as error:
            raise _damaged(self._where, self.name, error) from None
        if len(content) != self._size:
            raise _damaged(self._where, self.name, f"{len(content)} of {self._size} bytes")
        return content

    def members(self) -> Iterator["Member"]:
        """The files of the archive that it is."""
        return _members(self.file, f"{self._where}: {self.name}", "r:")


def members(path: Any) -> Iterator[Member]:
    """The files of a tar archive, in its order; one whose name ends in gz is compressed.

    Args:
      path: of the archive, with the methods of pathlib; it may lie in a cloud.

    Raises:
      ValueError: it is damaged or cut short; names the last file that was whole.
    """
    with path.open("rb") as file:
        yield from _members(file, str(path), "r:gz" if path.name.endswith("gz") else "r:")


def content(path: Any, name: str) -> bytes:
    """One file of an archive.

    Raises:
      ValueError: it is not there, or the archive is damaged.
    """
    for member in members(path):
        if member.name == name:
            return member.read()
    raise ValueError(f"{path} has no file {name}; download it again.")


def check_present(directory: Any, names: Sequence[str], instructions: str) -> None:
    """Raises a FileNotFoundError with the instructions where one of the files is missing."""
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise FileNotFoundError(f"{directory} lacks {', '.join(missing)}.\n{instructions}")


def _members(file: Any, where: str, mode: str) -> Iterator[Member]:
    last = "its beginning"
    try:
        with tarfile.open(fileobj=file, mode=mode) as tar:
            while (info := tar.next()) is not None:
                tar.members.clear()  # it would remember millions
                if info.isdir():
                    continue
                if not info.isreg():
                    raise ValueError(
                        f"{where}: {info.name} is no file but a link or a device; download it"
                        " again."
                    )
                yield Member(info.name.removeprefix("./"), info.size, tar.extractfile(info), where)
                last = info.name
            # The library takes a header that is damaged or missing for the end, which two blocks of
            # zeros tell.
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise _damaged(where, last, "no end of the archive")
    except _DAMAGE as error:
        raise _damaged(where, last, error) from None


def _damaged(where: str, place: str, error: Any) -> ValueError:
    return ValueError(f"{where} is damaged or cut short at {place} ({error}); download it again.")
