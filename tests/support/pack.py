"""Real data sets in TFDS_DATA_DIR."""

import os
from pathlib import Path

import pytest

PACK = os.environ.get("TFDS_DATA_DIR", "")


def needs(name):
    """Skips a test if a prepared data set is not available."""
    available = PACK and (Path(PACK) / name).is_dir()
    return pytest.mark.skipif(not available, reason=f"needs {name} in TFDS_DATA_DIR")
