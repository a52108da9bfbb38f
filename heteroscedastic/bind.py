"""Binds the sections of a config to code.

A section names a function or class of a module; its other settings are keyword-only arguments. The
type of a setting is its annotation. The function or class itself checks the range, with
`check_number`.
"""

import ast
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import ModuleType
from typing import Any

_MAX_FLOAT32 = 3.4028234e38  # devices compute in float32


def bind(module: ModuleType, /, *, name: str, **settings: Any) -> Any:
    """The function of this name with its settings bound, or an instance of the class of this name.

    Args:
      module: module whose public functions and classes are the choices.
      name: name of the function or class.
      **settings: keyword-only arguments of the function or class.

    Raises:
      ValueError: the name is unknown, or a setting is unknown, missing or of the wrong type. The
        message lists the choices.
    """
    target = lookup(module, name)
    check_settings(f"{_module_name(module)}.{name}", target, settings)
    return _binding(target, settings)


def declared_settings(target: Callable) -> dict[str, inspect.Parameter]:
    """The settings of a function or class by name, with their types and defaults.

    Those of a function are keyword-only. A flax module has no setting that is keyword-only: code
    sets such a field, for example an initialiser, and `parent` and `name`.
    """
    declared = inspect.signature(target).parameters
    keyword_only = {n for n, p in declared.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    if not inspect.isclass(target):
        return {n: p for n, p in declared.items() if n in keyword_only}
    of_code = {"parent", "name", *keyword_only} if "parent" in declared else set()
    return {n: p for n, p in declared.items() if n not in of_code}


def defaults(target: Callable) -> dict[str, Any]:
    """The defaults of the settings that have one."""
    declared = declared_settings(target).items()
    return {n: p.default for n, p in declared if p.default is not inspect.Parameter.empty}


def check_settings(label: str, target: Callable, settings: Mapping[str, Any]) -> None:
    """Checks the names and types of settings.

    Args:
      label: name of their owner, for the message.
      target: function or class whose signature declares the settings.
      settings: values by name.

    Raises:
      ValueError: a setting is unknown, missing or of the wrong type.
    """
    _check_names(label, target, settings)
    for name, parameter in declared_settings(target).items():
        if name in settings and not _has_type(parameter.annotation, settings[name]):
            expected = _type_name(parameter.annotation)
            raise ValueError(_value_error(f"{label}.{name}", settings[name], expected))


def lookup(module: ModuleType, name: str) -> Callable:
    """The function or class of this name, without settings.

    Raises:
      ValueError: the module has no function or class of this name; lists the choices.
    """
    choices = _choices(module)
    if name not in choices:
        listed = ", ".join(sorted(choices))
        raise ValueError(f"{_module_name(module)} has no {name!r}; choose one of {listed}.")
    return choices[name]


def _binding(target: Any, settings: dict[str, Any]) -> Callable:
    if isinstance(target, type):
        return target(**settings)
    return functools.partial(target, **settings)


def _module_name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _check_names(label: str, target: Callable, settings: Mapping[str, Any]) -> None:
    """Raises a ValueError where a setting is unknown or missing."""
    declared = declared_settings(target)
    unknown = sorted(set(settings) - set(declared), key=str)
    if unknown:
        raise ValueError(
            f"{label} has no setting {', '.join(map(repr, unknown))};"
            f" its settings are {', '.join(declared) or 'none'}."
        )
    missing = sorted(set(declared) - set(defaults(target)) - set(settings))
    if missing:
        raise ValueError(f"{label} needs a value for {', '.join(map(repr, missing))}.")


def chain(module: ModuleType, text: str) -> list[Callable]:
    """The functions of a chain such as "pad_crop(4)|flip_lr", in order; [] for an empty string.

    Arguments are literals, by position or by keyword. No code is evaluated.

    Args:
      module: module whose public functions are the choices.
      text: function calls separated by "|".

    Raises:
      ValueError: the text is not a chain, or a function or setting in it is unknown.
    """
    return [_link(module, node) for node in _links(text)]


def in_section(section: str, fn: Callable, /, *args: Any, **settings: Any) -> Any:
    """The value of fn(*args, **settings); its errors start with the section of the config.

    Raises:
      ValueError: fn raises it. Its message is prefixed with the section unless it starts with one.
    """
    try:
        return fn(*args, **settings)
    except ValueError as error:
        prefix = "" if str(error).startswith("config.") else f"config.{section}: "
        raise ValueError(f"{prefix}{error}".replace("\n", " ")) from error


def check_number(
    name: str,
    value: Any,
    *,
    integer: bool = False,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Checks that a setting is a finite number of this kind and range.

    Args:
      name: name of the setting, for the message.
      value: value to check.
      integer: whether it must be a whole number.
      above: it must be > this bound.
      at_least: it must be >= this bound.
      below: it must be < this bound.
      at_most: it must be <= this bound.

    Raises:
      ValueError: the value is not such a number.
    """
    bounds = {">": above, ">=": at_least, "<": below, "<=": at_most}
    if not (_has_type(int if integer else float, value) and _is_in_range(value, bounds)):
        raise ValueError(_value_error(name, value, _range_text(integer, bounds)))


def check_seed(name: str, value: Any) -> None:
    """Checks that a seed is a whole number in [0, 2**32); JAX drops the higher bits of a seed.

    Raises:
      ValueError: the value is not in this range.
    """
    check_number(name, value, integer=True, at_least=0, below=2**32)


def check_numbers(name: str, values: Any, **settings: Any) -> None:
    """Checks that a setting is a sequence of one or more numbers; see `check_number`.

    Raises:
      ValueError: the value is not such a sequence.
    """
    if not isinstance(values, tuple | list) or not values:
        raise ValueError(_value_error(name, values, "a tuple of one or more numbers"))
    for value in values:
        check_number(f"an entry of {name}, {values},", value, **settings)


def _is_in_range(value: Any, bounds: Mapping[str, float | None]) -> bool:
    holds = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
    return all(bound is None or holds[sign](value, bound) for sign, bound in bounds.items())


def _range_text(integer: bool, bounds: Mapping[str, float | None]) -> str:
    text = " and ".join(f"{sign} {bound:,}" for sign, bound in bounds.items() if bound is not None)
    return f"{_type_name(int if integer else float)} {text}".strip()


def _value_error(name: str, value: Any, expected: str) -> str:
    text = " ".join(repr(value).split())
    return f"{name} is {text if len(text) <= 200 else text[:200] + ' ...'}; it must be {expected}."


def _has_type(annotation: Any, value: Any) -> bool:
    """Whether a value has an annotated type.

    A bool is not a number. A list is accepted as a tuple, because JSON turns tuples into lists.
    """
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_has_type(part, value) for part in parts)
    if origin is tuple or annotation is tuple:
        if not isinstance(value, tuple | list):
            return False
        expected = [parts[0]] * len(value) if parts[1:] == (...,) else parts
        return not parts or (len(expected) == len(value) and all(map(_has_type, expected, value)))
    if annotation is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if annotation is float:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return is_number and abs(value) <= _MAX_FLOAT32
    if annotation in (bool, str, types.NoneType):
        return isinstance(value, annotation)
    return True  # configs hold no other types


def _type_name(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(_type_name(part) for part in parts)
    if origin is tuple:
        number = "" if parts[1:] == (...,) else f"{len(parts)} "
        return f"a tuple of {number}{_type_name(parts[0]).removeprefix('a ')}s"
    names = {
        int: "a whole number",
        float: "a finite number",
        bool: "True or False",
        str: "a string",
    }
    return names.get(annotation, "None" if annotation is types.NoneType else "a tuple")


def _links(text: str) -> list[ast.expr]:
    if not isinstance(text, str):
        raise ValueError(
            f"{text!r} is not a chain such as 'pad_crop(4)|flip_lr'; it must be a string."
        )
    if not text.strip():
        return []
    try:
        node = ast.parse(text.strip(), mode="eval").body
    # MemoryError and RecursionError come from parentheses that are nested too deeply.
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error) or "it is nested too deeply"
        raise ValueError(
            f"{text[:200]!r} is not a chain such as 'pad_crop(4)|flip_lr': {reason}."
        ) from None
    links = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        links.append(node.right)
        node = node.left
    return [node, *reversed(links)]


def _link(module: ModuleType, node: ast.expr) -> Callable:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    code = ast.unparse(node)
    keywords = [(k.arg, k.value) for k in call.keywords if k.arg is not None]
    if not isinstance(call.func, ast.Name) or len(keywords) < len(call.keywords):
        raise ValueError(
            f"{code!r} is not a link of a chain; write name or name(value, setting=value)."
        )
    try:
        values = [ast.literal_eval(a) for a in call.args]
        settings = {name: ast.literal_eval(value) for name, value in keywords}
    except (ValueError, TypeError):
        raise ValueError(
            f"{code!r} has an argument that is not a number, string or tuple; write a literal."
        ) from None
    if "name" in settings:
        raise ValueError(f"{code!r} has a setting called name, which no function takes; remove it.")
    target = _choices(module).get(call.func.id)
    parameters = list(declared_settings(target)) if target else []
    if target and len(values) > len(parameters):
        raise ValueError(
            f"{code!r} has {len(values)} arguments, but takes {', '.join(parameters) or 'none'}."
        )
    positional = dict(zip(parameters, values))
    names = [*positional, *(name for name, _ in keywords)]
    repeated = sorted(n for n in set(names) if names.count(n) > 1)
    if repeated:
        raise ValueError(f"{code!r} sets {', '.join(repeated)} twice.")
    settings |= positional
    # data/chains.py checks the values, as the rules differ between pipelines.
    target = lookup(module, call.func.id)
    _check_names(f"{_module_name(module)}.{call.func.id}", target, settings)
    return _binding(target, settings)


def _choices(module: ModuleType) -> dict[str, Callable]:
    """The public functions and classes of a module: those in __all__, or else those it defines."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    values = {n: getattr(module, n) for n in names}
    return {
        n: f
        for n, f in values.items()
        if (inspect.isfunction(f) or inspect.isclass(f))
        and (hasattr(module, "__all__") or f.__module__ == module.__name__)
    }
