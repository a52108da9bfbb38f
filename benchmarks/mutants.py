"""Mutation testing of the mathematics and of the study code: python -m benchmarks.mutants.

Makes each change of mutants.toml in a copy of the repository and runs the tests that should fail.
Each change gives plausible but wrong results. A change is caught if a test fails; if all pass, it
survives, and the tests lack a law. At the end every test that failed runs on the unchanged copy,
where it must pass.

With --out the results are written to a JSON file after each change. The same command resumes: it
does not repeat changes that the file lists as caught. It does not notice that code or tests have
changed since; remove the file to try all changes again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from heteroscedastic import files

ROOT = Path(__file__).parents[1]
CAUGHT, SURVIVED = "caught", "SURVIVED"
_NOT_RUN = "the tests did not run"
_FAILS_UNCHANGED = "the test also fails on the unchanged code"


class Mutant(NamedTuple):
    """A change of one file."""

    fault: str  # what is then wrong
    file: str
    old: str  # occurs once
    new: str
    tests: list[str]  # arguments of pytest: modules, or single tests of slow modules


class Outcome(NamedTuple):
    """The result of the tests on a changed copy."""

    result: str  # CAUGHT, SURVIVED or another text
    test: str | None = None  # the first that failed


def read() -> list[Mutant]:
    """The changes of mutants.toml, in order."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]
    return [Mutant(**entry) for entry in entries]


def mutated(root: Path, mutant: Mutant) -> str:
    """The text of the file of a mutant under `root`, changed.

    Raises:
      ValueError: the old text does not occur exactly once.
    """
    text = (root / mutant.file).read_text()
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(
            f"{mutant.fault!r}: the old text occurs {count} times in {mutant.file}, but must occur"
            f" once; correct mutants.toml: {mutant.old!r}."
        )
    return text.replace(mutant.old, mutant.new)


def copy_tracked(destination: Path) -> None:
    """Copies the files that git tracks, as they are in the working tree."""
    command = ["git", "ls-files", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, destination / name)


def pytest_output(directory: Path, arguments: list[str]) -> tuple[int, str]:
    """The exit code and the output of pytest in a copy.

    Subprocesses of the tests import the copy too. No bytecode is written, as that of a changed file
    would be taken for that of the restored one if both have the same size and second.
    """
    environment = os.environ | {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider"),
            *arguments,
        ],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process.returncode, process.stdout


def failed_tests(output: str) -> list[str]:
    """The tests that failed, by the summary that pytest prints."""
    lines = [line.split(" - ")[0] for line in output.splitlines()]
    return [
        line.removeprefix(word)
        for line in lines
        for word in ("FAILED ", "ERROR ")
        if line.startswith(word)
    ]


def tested(directory: Path, mutant: Mutant) -> Outcome:
    """Runs the tests of a mutant on a copy with its change, and restores the copy."""
    path = directory / mutant.file
    unchanged = path.read_text()
    path.write_text(mutated(directory, mutant))
    try:
        code, output = pytest_output(directory, ["-x", *mutant.tests])
    finally:
        path.write_text(unchanged)
    failed = failed_tests(output)
    if code == 1 and failed:
        return Outcome(CAUGHT, failed[0])
    return Outcome(SURVIVED) if code == 0 else Outcome(f"{_NOT_RUN}: {output[-400:]}")


def confirmed(directory: Path, outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes, in which a test that also fails on the unchanged copy catches nothing."""
    tests = sorted({x.test for x in outcomes if x.test})
    code, output = pytest_output(directory, tests) if tests else (0, "")
    if code not in (0, 1):
        raise RuntimeError(f"the tests do not run on the unchanged code: {output[-400:]}")
    failing = set(failed_tests(output))
    return [Outcome(_FAILS_UNCHANGED, x.test) if x.test in failing else x for x in outcomes]


def present(directory: Path, tests: Sequence[str]) -> set[str]:
    """Those of the tests that a copy has; the parameters of a saved one may have changed."""
    if not tests:
        return set()
    names = sorted({test.partition("[")[0] for test in tests})
    output = pytest_output(directory, ["--collect-only", *names])[1]
    return set(tests) & set(output.splitlines())


def _known(path: Path | None) -> dict[str, Outcome]:
    """The outcomes in a file of results, by the mutant as JSON."""
    entries = json.loads(path.read_text()) if path and path.exists() else []
    return {
        _key(Mutant(*(entry[name] for name in Mutant._fields))): Outcome(
            entry["result"], entry["test"]
        )
        for entry in entries
    }


def _key(mutant: Mutant) -> str:
    return json.dumps(mutant)


def main() -> None:
    """Makes plausible faults in a copy of the code and reports which of them tests catch."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", default="", help="a part of the file or of the fault")
    parser.add_argument("--out", type=Path, help="JSON file of the results, which is resumed")
    flags = parser.parse_args()
    listed = read()
    chosen = [m for m in listed if flags.only in m.file or flags.only in m.fault]
    for mutant in chosen:
        mutated(ROOT, mutant)
    known = _known(flags.out)

    def record(mutant, outcome):
        known[_key(mutant)] = outcome
        if flags.out:
            entries = [m._asdict() | known[_key(m)]._asdict() for m in listed if _key(m) in known]
            files.write_json(flags.out, entries)

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        copy_tracked(directory)
        saved = [known[_key(m)] for m in chosen if _key(m) in known]
        tests = present(directory, [x.test for x in saved if x.test and x.result == CAUGHT])
        for mutant in chosen:
            outcome = known.get(_key(mutant))
            if outcome is None or outcome.result != CAUGHT or outcome.test not in tests:
                record(mutant, outcome := tested(directory, mutant))
            print(f"{mutant.file}: {mutant.fault}: {outcome.result} {outcome.test or ''}".rstrip())
            sys.stdout.flush()
        outcomes = confirmed(directory, [known[_key(m)] for m in chosen])
    for mutant, outcome in zip(chosen, outcomes):
        record(mutant, outcome)
    num_caught = sum(outcome.result == CAUGHT for outcome in outcomes)
    print(f"{num_caught} of {len(outcomes)} mutations caught.")
    for mutant, outcome in zip(chosen, outcomes):
        if outcome.result != CAUGHT:
            print(f"{mutant.file}: {mutant.fault}: {outcome.result}")
    if num_caught < len(outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
