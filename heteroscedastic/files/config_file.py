"""A config from its file, with what --config.a.b=c changes in it; errors of one line."""

import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# What a config file, or an override of what it holds, makes the libraries raise.
_ERRORS = (flags.Error, AttributeError, LookupError, OSError, TypeError, ValueError)


def names() -> list[str]:
    """The config files of a checkout, as --config takes them."""
    return sorted(f"configs/{path.name}" for path in _CONFIGS.glob("*.py"))


def read(words: Sequence[str]) -> dict[str, Any]:
    """The config that command-line words describe: --config=FILE, and any --config.a.b=c.

    Raises:
      FileNotFoundError: there is no such file; the message suggests the nearest names.
      ValueError: the file cannot be read as a config, or an override does not fit it.
    """
    given, overrides = _parted(words)
    if given is None:
        raise ValueError("give --config=FILE, such as --config=configs/digits_het_full.py.")
    file = given.partition(":")[0]
    if not Path(file).is_file():
        raise FileNotFoundError(_no_file(file))
    config = _parsed([f"--config={given}"], file)
    for name, _ in overrides:
        _check_name(name, config, file)
    for name, value in overrides:
        _parsed([f"--config={given}", f"--config.{name}={value}"], file, f"--config.{name}={value}")
    return _parsed(
        [f"--config={given}", *(f"--config.{name}={value}" for name, value in overrides)], file
    ).to_dict()


def _parted(words: Sequence[str]) -> tuple[str | None, list[tuple[str, str]]]:
    """The value of --config, and the names and values of its overrides; other words are ignored."""
    given, overrides, rest = None, [], list(words)
    while rest:
        name, is_joined, value = rest.pop(0).partition("=")
        name = name.lstrip("-") if name.startswith("-") else ""
        if name != "config" and not name.startswith("config."):
            continue
        if not is_joined:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if name == "config":
            given = value
        else:
            overrides.append((name.removeprefix("config."), value))
    return given, overrides


def _no_file(file: str) -> str:
    known = names()
    near = (
        difflib.get_close_matches(file, known, 3, 0.6)
        or [n for n in known if Path(file).stem in n][:3]
    )
    remedy = f"did you mean {' or '.join(near)}?" if near else "--help lists the configs."
    return f"--config is {file}, but there is no such file; {remedy}"


def _parsed(words: Sequence[str], file: str, override: str | None = None) -> ConfigDict:
    sys.modules.pop(
        "config_config", None
    )  # else the names of a file that was read before are in this one too
    values = flags.FlagValues()
    argv = ["config", *words]
    found = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    try:
        values(argv)
        found.value.to_dict()  # where an error of reading the file comes out
    except _ERRORS as error:
        told = [line for line in str(error).splitlines() if line.strip()]
        reason = told[-1].strip() if told else type(error).__name__  # of a traceback, its last line
        reason = re.sub(r"^(ValueError: |flag --config\S*: )", "", reason)
        raise ValueError(f"{override or file}: {reason}") from error
    return found.value


def _check_name(name: str, config: ConfigDict, file: str) -> None:
    """That every part of a.b.c is a setting."""
    at, section = "config", config
    for part in name.split("."):
        if not isinstance(section, ConfigDict):
            raise ValueError(
                f"--config.{name}: {at} is no section, but the value {section!r} in {file}."
            )
        if part.partition("[")[0] not in section:
            raise ValueError(
                f"{at}.{part} is not a setting of {file}; the settings of {at} are"
                f" {', '.join(sorted(section))}."
                " A setting that the code knows and the file lacks can be written into the file."
            )
        if "[" in part:
            return
        section, at = section[part], f"{at}.{part}"
