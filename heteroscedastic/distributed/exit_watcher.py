"""Prints its first argument when standard input closes without a byte.

`hosts.start` runs this file as a program whose input is a pipe from the run. JAX ends a process
that lost another one by abort(), after which no Python of that process runs, so that only another
process can print. The file imports neither JAX nor this package, and so starts in milliseconds.
"""

import signal
import sys

if __name__ == "__main__":
    # SIGTERM may reach both processes, and this one must outlive the other.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not sys.stdin.read(1):
        print(sys.argv[1], file=sys.stderr, flush=True)
