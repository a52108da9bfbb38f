"""What is imported is declared, what is installed is pinned, and every pin is exact."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_architecture import CODE, ROOT, imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [
    Requirement(line) for part in (PROJECT["dependencies"], *EXTRAS.values()) for line in part
]
PINS = [
    Requirement(line)
    for text in (ROOT / "constraints.txt").read_text().splitlines()
    if (line := text.partition("#")[0].strip())
]
OURS = {"heteroscedastic", "experiments", "launch", "benchmarks"}


def test_what_is_imported_is_declared():
    homes, declared = (
        metadata.packages_distributions(),
        {canonicalize_name(r.name) for r in DECLARED},
    )
    own = OURS | {p.stem for p in CODE}  # neighbours of a program
    for path in CODE:
        for name in (
            {name.split(".")[0] for name in imports(path)} - own - set(sys.stdlib_module_names)
        ):
            found = {canonicalize_name(home) for home in homes.get(name, [name])}
            assert found & declared, (
                f"{Path(path).name} imports {name}, which pyproject.toml does not name"
            )


def test_every_pin_is_exact_and_once_for_each_python():
    for pin in PINS:
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), pin
        assert not pin.url
    here = [canonicalize_name(pin.name) for pin in PINS if not pin.marker or pin.marker.evaluate()]
    assert len(here) == len(set(here))


def needed(requirement, found):
    """All that a requirement needs, as far as it is installed here."""
    for extra in ("", *requirement.extras):
        key = (canonicalize_name(requirement.name), extra)
        if key in found:
            continue
        try:
            lines = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:  # an extra that is not installed
            continue
        found.add(key)
        for each in map(Requirement, lines):
            if not each.marker or each.marker.evaluate({"extra": extra}):
                needed(each, found)
    return found


def test_all_that_is_installed_for_it_is_pinned():
    pinned = {canonicalize_name(pin.name) for pin in PINS} | {"setuptools", "wheel", "pip"}
    found = set().union(
        *(needed(r, set()) for r in DECLARED if not r.marker or r.marker.evaluate())
    )
    assert len(found) > 20
    assert {name for name, _ in found} <= pinned
