"""Real sets that lie in TFDS_DATA_DIR, where there are any."""

import os
from pathlib import Path

import pytest

PACK = os.environ.get("TFDS_DATA_DIR", "")


def needs(name):
    """Skips where a prepared set is not at hand."""
    found = PACK and (Path(PACK) / name).is_dir()
    return pytest.mark.skipif(not found, reason=f"needs {name} in TFDS_DATA_DIR")
