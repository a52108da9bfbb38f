import ctypes
import os
import subprocess
import sys

import pytest
from subprocesses import ROOT

FAULTS = """
import ctypes, resource
from heteroscedastic.runs import host_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        block = libc.malloc(2**26)
        ctypes.memset(block, 1, 2**26)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

returned = faults()
host_memory.keep()
first = faults()
print(returned, first, faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone has mallopt")
def test_a_block_that_is_freed_is_used_again_without_new_pages():
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, check=True, text=True)
    returned, first, later = map(int, done.stdout.split())
    assert returned > 7 * first > 0
    assert later < first / 100
