"""All tables of one accelerator by one command: python -m benchmarks.gpu --out=gpu.json

runs COMMANDS one after another, each in a process of its own, and writes to --out, after each, the
device, versions and commit, and by command its seconds, exit status, printed text and tables. A
command that fails or exceeds its time loses no other: --minutes bounds all of them together, and
what did not start is recorded with the reason. The commands need neither TensorFlow nor data.
"""

import argparse
import json
import subprocess
import sys
import time

from heteroscedastic import files, user_errors
from heteroscedastic.user_errors import UserError

# The most important first, as time may end before the last.
COMMANDS = (
    "benchmarks.train --model=ResNet50",
    "benchmarks.predictive --sizes 8,1000,15 256,1000,15 --keys=5",
    "benchmarks.predictive --sizes 8,10,0 8,1000,0 8,21843,0 --keys=3",
    "benchmarks.train --model=ResNet18",
    "benchmarks.predictive --link=sigmoid --temperatures 1 --keys=3",
    "benchmarks.saliency --batch=256",
    "benchmarks.parts --model=ResNet50 --batch=256",
    "benchmarks.prioritization --model=ResNet18 --batch=256 --examples=25600",
)
# In a process of its own, as a process that holds the device's memory leaves none to the others.
_PROVENANCE = (
    "import json; from heteroscedastic.runs import provenance;"
    " print(json.dumps(provenance.provenance(), default=str))"
)


def tables(text: str) -> list[list[dict[str, str]]]:
    """The Markdown tables of a text: rows by column."""
    found: list[list[dict[str, str]]] = []
    columns: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip().removesuffix("|")[1:].split("|")]
        if columns is None:
            columns = cells
            found.append([])
        elif not all(set(cell) <= set("-: ") and cell for cell in cells):
            found[-1].append(dict(zip(columns, cells)))
    return found


def result(command: str, seconds_left: float) -> dict:
    """Runs a command and returns its record."""
    if seconds_left <= 0:
        return {"command": command, "error": "not started: no time was left; raise --minutes."}
    start = time.perf_counter()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", *command.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_left,
        )
        text, error = ended.stdout, f"exit status {ended.returncode}" if ended.returncode else None
    except subprocess.TimeoutExpired as expired:
        text = (expired.stdout or b"").decode(errors="replace")
        error = "ended: it exceeded the time left; raise --minutes."
    record = {"command": command, "seconds": time.perf_counter() - start}
    record |= {"tables": tables(text), "text": text}
    return record if error is None else record | {"error": error}


@user_errors.one_line()
def main() -> None:
    """Runs the commands and writes the file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", required=True, help="JSON file of the results")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all commands together")
    flags = parser.parse_args()
    start = time.perf_counter()
    described = subprocess.run(
        [sys.executable, "-c", _PROVENANCE], stdout=subprocess.PIPE, text=True, check=False
    )
    if described.returncode:
        raise UserError("JAX does not start on this device; the error above says why.")
    record = {"provenance": json.loads(described.stdout), "minutes": flags.minutes, "results": []}
    for command in COMMANDS:
        left = 60 * flags.minutes - (time.perf_counter() - start)
        record["results"].append(result(command, left))
        files.write_json(flags.out, record)
        outcome = record["results"][-1]
        said = outcome.get("error", f"{outcome.get('seconds', 0):.0f} s")
        print(f"python -m {command}: {said}", flush=True)


if __name__ == "__main__":
    main()
