"""Programs in subprocesses that simulate an installation without the extras."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = {"tensorflow", "tensorflow_datasets", "tensorboard", "sklearn", "PIL", "matplotlib"}
MAIN = "import runpy; sys.argv[0] = 'main.py'; runpy.run_path('main.py', run_name='__main__')"

# Prefix of a program that hides these packages.
_WITHOUT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {absent} else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def with_devices(number):
    """The environment of a program with a number of virtual devices."""
    flags = f"--xla_force_host_platform_device_count={number} {os.environ.get('XLA_FLAGS', '')}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def start_without(absent, program, *arguments, **settings):
    """Starts a program that cannot import these packages."""
    return subprocess.Popen(
        [sys.executable, "-c", _WITHOUT.format(absent=absent) + program, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def run_without(absent, program, *arguments, **settings):
    """Runs a program that cannot import these packages; returns its exit code and output."""
    process = start_without(absent, program, *arguments, **settings)
    output, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(program, process.returncode, output, errors)
