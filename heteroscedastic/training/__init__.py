"""Devices, disk and clock."""

import os

# Orbax and clu import TensorFlow where it is installed, which tells at length of what it lacks.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
