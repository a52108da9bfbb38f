"""Checks a wheel and its installed command: python .ci/wheel.py dist/*.whl

The wheel must hold the files of the checkout. The command of this environment, into which the wheel
was installed, must run where there is no checkout.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_SECONDS = 1.0  # of processor time for --help
COMMAND = Path(sys.executable).with_name("heteroscedastic")


def expected() -> dict[str, bytes]:
    """The content of every file that a wheel must have, by name."""
    suffixes = (".py", ".typed", ".npy")
    package = [p for p in (ROOT / "heteroscedastic").rglob("*") if p.suffix in suffixes]
    configs = (ROOT / "configs").glob("*.py")
    return {
        **{p.relative_to(ROOT).as_posix(): p.read_bytes() for p in package},
        **{f"heteroscedastic/configs/{p.name}": p.read_bytes() for p in configs},
    }


def content(wheel: str) -> dict[str, bytes]:
    """The content of every file of a wheel but its metadata, by name."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: archive.read(name) for name in names}


def run(*arguments: str) -> float:
    """Runs the installed command in an empty directory; returns its seconds of processor time."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TFDS_DATA_DIR")}
    before = os.times()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([COMMAND, *arguments], cwd=directory, env=environment, check=True)
    return sum(os.times()[2:4]) - sum(before[2:4])


if __name__ == "__main__":
    files, wanted = content(sys.argv[1]), expected()
    if files != wanted:
        differ = sorted(n for n in files.keys() | wanted.keys() if files.get(n) != wanted.get(n))
        raise SystemExit(f"{sys.argv[1]} and the checkout differ in {', '.join(differ)}")
    seconds = run("--help")
    if seconds > MAX_SECONDS:
        raise SystemExit(f"heteroscedastic --help took {seconds:.2f} s, more than {MAX_SECONDS} s")
    run("train", "--config=digits_het_full", "--workdir=run", "--smoke")
