"""A run on a disk and a clock."""

import os

# TensorFlow, which some data requires, logs at length what it lacks.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
