"""Finds and reads a config and applies overrides --config.a.b=c; errors have one line."""

import difflib
import functools
import operator
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel holds the configs in the package, a checkout beside it.
_CONFIGS = next(
    (path for path in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if path.is_dir()),
    _PACKAGE / "configs",
)
# Errors that the libraries raise for invalid config files or overrides.
_ERRORS = (flags.Error, AttributeError, LookupError, OSError, TypeError, ValueError)


def names() -> list[str]:
    """The names of the configs that the package comes with, for --config=NAME."""
    return sorted(path.stem for path in _CONFIGS.glob("*.py"))


def with_path(words: Sequence[str]) -> list[str]:
    """The arguments with the file of a config in place of its name: --config=FILE.

    --config=NAME names a config that the package comes with, unless there is a file NAME. Text
    after a colon, as in --config=NAME:TEXT, is the argument of the config and remains.
    """
    words = list(words)
    for i, word in enumerate(words):
        if word in ("-config", "--config") and i + 1 < len(words):
            words[i + 1] = _path(words[i + 1])
        elif word.startswith(("-config=", "--config=")):
            flag, _, config_value = word.partition("=")
            words[i] = f"{flag}={_path(config_value)}"
    return words


def _path(config_value: str) -> str:
    name, colon, argument = config_value.partition(":")
    is_name = name in names() and not Path(name).is_file()
    return f"{_CONFIGS / name}.py{colon}{argument}" if is_name else config_value


def read(words: Sequence[str]) -> dict[str, Any]:
    """Reads the config of command-line arguments: --config=FILE or NAME, and any --config.a.b=c.

    Raises:
      FileNotFoundError: the file does not exist; the message suggests similar names.
      ValueError: the file is not a valid config, or an override does not match it.
    """
    config_value, overrides = _config_arguments(words)
    if config_value is None:
        raise ValueError("give --config=FILE, such as --config=configs/digits_het_full.py.")
    file, config_argument = config_value.partition(":")[0], f"--config={_path(config_value)}"
    if not Path(_path(file)).is_file():
        raise FileNotFoundError(_missing_file(file))
    config = _config([config_argument], file)
    for name, _ in overrides:
        _check_name(name, config, file)
    override_arguments = without_nones([f"--config.{name}={value}" for name, value in overrides])
    for argument in override_arguments:
        _config([config_argument, argument], file, argument)
    return with_nones(_config([config_argument, *override_arguments], file), words)


def before_overrides(words: Sequence[str]) -> tuple[dict[str, Any], set[str]]:
    """The config of --config=FILE without overrides, and the dotted names of the overrides."""
    config_value, overrides = _config_arguments(words)
    config_value = config_value or ""
    config = _config([f"--config={_path(config_value)}"], config_value.partition(":")[0])
    return config.to_dict(), {name for name, _ in overrides}


def without_nones(words: Sequence[str]) -> list[str]:
    """The arguments without the overrides --config.a.b=None, which `with_nones` takes over.

    A flag has the type of the value in the file, which None is not.
    """
    arguments = _arguments(words)
    return [word for name, value, own in arguments if not _is_none(name, value) for word in own]


def with_nones(config: ConfigDict, words: Sequence[str]) -> dict[str, Any]:
    """The config as a dict, after the overrides --config.a.b=None of these arguments.

    Of several overrides of one setting the last counts.

    Raises:
      ValueError: the config has no such setting, or a later argument sets a part of it.
    """
    config_value, overrides = _config_arguments(words)
    latest = {name: (i, value) for i, (name, value) in enumerate(overrides)}
    names = [name for name, (_, value) in latest.items() if _is_none(f"config.{name}", value)]
    for name in names:
        for other, (i, _) in latest.items():
            if other.startswith(f"{name}.") and i > latest[name][0]:
                raise ValueError(
                    f"--config.{name}=None leaves out the section of which --config.{other} sets a"
                    " part; remove one of the two."
                )
    result = config.to_dict()
    for name in sorted(names, key=len, reverse=True):  # a section after its settings
        _check_name(name, config, (config_value or "").partition(":")[0])
        *path, last = name.split(".")
        functools.reduce(operator.getitem, path, result)[last] = None
    return result


def _is_none(name: str, value: str) -> bool:
    return name.startswith("config.") and "[" not in name and value == "None"


def _config_arguments(words: Sequence[str]) -> tuple[str | None, list[tuple[str, str]]]:
    """The value of --config, and the names and values of its overrides; ignores other arguments."""
    config_value, overrides = None, []
    for name, value, _ in _arguments(words):
        if name == "config":
            config_value = value
        elif name:
            overrides.append((name.removeprefix("config."), value))
    return config_value, overrides


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Name, value and words of each argument; the name of one that is not of config is empty."""
    rest = list(words)
    while rest:
        own = [rest.pop(0)]
        name, is_joined, value = own[0].partition("=")
        name = name.lstrip("-") if name.startswith("-") else ""
        if name != "config" and not name.startswith("config."):
            yield "", "", own
            continue
        if not is_joined:
            value = "true"
            if rest and not rest[0].startswith("--"):
                own.append(value := rest.pop(0))
        yield name, value, own


def _missing_file(file: str) -> str:
    choices, name = names(), Path(file).stem
    similar = (
        difflib.get_close_matches(name, choices, 3, 0.6)
        or [choice for choice in choices if name in choice][:3]
    )
    remedy = f"did you mean {' or '.join(similar)}?" if similar else "--help lists the configs."
    return f"--config is {file}, but neither a file nor a config has this name; {remedy}"


def _config(words: Sequence[str], file: str, override: str | None = None) -> ConfigDict:
    # Otherwise the names of a config file that was read before would remain in its module.
    sys.modules.pop("config_config", None)
    values = flags.FlagValues()
    argv = ["config", *words]
    flag = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    try:
        values(argv)
        flag.value.to_dict()  # errors of reading the file are raised here
    except _ERRORS as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        # The last line of a traceback is the message.
        reason = lines[-1].strip() if lines else type(error).__name__
        reason = re.sub(r"^(ValueError: |flag --config\S*: )", "", reason)
        raise ValueError(f"{override or file}: {reason}") from error
    return flag.value


def _check_name(name: str, config: ConfigDict, file: str) -> None:
    """Raises a ValueError if a part of the name a.b.c is not a setting."""
    section_name, section = "config", config
    for part in name.split("."):
        if not isinstance(section, ConfigDict):
            raise ValueError(
                f"--config.{name}: {section_name} is not a section, but the value {section!r} in"
                f" {file}."
            )
        if part.partition("[")[0] not in section:
            raise ValueError(
                f"{section_name}.{part} is not a setting of {file}; the settings of {section_name}"
                f" are {', '.join(sorted(section))}."
            )
        if "[" in part:
            return
        section, section_name = section[part], f"{section_name}.{part}"
