"""Programs in subprocesses that simulate an installation without the extras."""

import concurrent.futures
import os
import signal
import socket
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


def free_address():
    """HOST:PORT of this machine, where no program listens."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def start_without(absent, program, *arguments, **settings):
    """Starts a program that cannot import these packages."""
    return subprocess.Popen(
        [
            *(sys.executable, "-X", "faulthandler", "-c"),
            *(_WITHOUT.format(absent=absent) + program, *arguments),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def outputs(processes, timeout=300):
    """The output and errors of each process, once all have ended.

    All pipes are read at the same time, as a process whose pipe is full waits, and its peers with
    it. Processes that do not end in time are aborted, and the error shows where their threads were.
    """
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        pending = [pool.submit(process.communicate) for process in processes]
        _, late = concurrent.futures.wait(pending, timeout)
        for process in processes if late else ():
            process.send_signal(signal.SIGABRT)
        texts = [each.result() for each in pending]
    assert not late, f"not ended after {timeout} s: {texts}"
    return texts


def run_without(absent, program, *arguments, **settings):
    """Runs a program that cannot import these packages; returns its exit code and output."""
    process = start_without(absent, program, *arguments, **settings)
    output, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(program, process.returncode, output, errors)
