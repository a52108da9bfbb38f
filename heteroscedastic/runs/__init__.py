"""A run on a disk and a clock."""

import os

# Orbax and clu import TensorFlow where it is installed, which then logs at length what it lacks.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
