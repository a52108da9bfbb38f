"""Files on disks and in buckets."""

from heteroscedastic.files.cache import cached_arrays, digest
from heteroscedastic.files.formats import (
    append,
    csv_text,
    error_path,
    plain,
    printable,
    read_arrays,
    read_json,
    sweep,
    write_arrays,
    write_atomically,
    write_csv,
    write_json,
)
from heteroscedastic.files.paths import (
    Path,
    absolute,
    as_path,
    in_bucket,
    move,
    reach,
    resolved,
    size,
    user_cache,
)

__all__ = [
    "Path",
    "absolute",
    "append",
    "as_path",
    "cached_arrays",
    "csv_text",
    "digest",
    "error_path",
    "in_bucket",
    "move",
    "plain",
    "printable",
    "reach",
    "read_arrays",
    "read_json",
    "resolved",
    "size",
    "sweep",
    "user_cache",
    "write_arrays",
    "write_atomically",
    "write_csv",
    "write_json",
]
