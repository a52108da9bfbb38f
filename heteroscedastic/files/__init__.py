"""Files on disks and in buckets."""

from heteroscedastic.files.formats import (
    append,
    named,
    plain,
    printable,
    read_arrays,
    read_json,
    sweep,
    write_arrays,
    write_csv,
    write_json,
    write_whole,
)
from heteroscedastic.files.paths import Path, absolute, as_path, in_bucket, move, reach, resolved

__all__ = [
    "Path",
    "absolute",
    "append",
    "as_path",
    "in_bucket",
    "move",
    "named",
    "plain",
    "printable",
    "reach",
    "read_arrays",
    "read_json",
    "resolved",
    "sweep",
    "write_arrays",
    "write_csv",
    "write_json",
    "write_whole",
]
