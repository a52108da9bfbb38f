"""How a config names code: a name in a module, and settings as its keyword-only arguments.

The type of a setting is that of its annotation. Its range is checked by what it is bound to, with
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

_LARGEST = 3.4028234e38  # of float32, in which the device computes


def bind(module: ModuleType, /, *, name: str, **settings: Any) -> Callable:
    """The function of this name with its settings bound, or the class of this name constructed.

    Raises:
      ValueError: an unknown name, an unknown setting or a missing one, with the choices; or a value
        of another type than its annotation.
    """
    target = _fitting(module, name, settings)
    for setting, parameter in _settings(target).items():
        if setting in settings and not _is_of(parameter.annotation, settings[setting]):
            named = f"{_where(module)}.{name}: {setting}"
            raise ValueError(_refusal(named, settings[setting], _words(parameter.annotation)))
    return _with_settings(target, settings)


def lookup(module: ModuleType, name: str) -> Callable:
    """The function or class of this name, without settings.

    Raises:
      ValueError: the module has none of this name; lists the choices.
    """
    choices = _choices(module)
    if name not in choices:
        listed = ", ".join(sorted(choices))
        raise ValueError(f"{_where(module)} has no {name!r}; choose one of {listed}.")
    return choices[name]


def _with_settings(target: Callable, settings: dict[str, Any]) -> Callable:
    return target(**settings) if inspect.isclass(target) else functools.partial(target, **settings)


def _where(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _fitting(module: ModuleType, name: str, settings: dict[str, Any]) -> Callable:
    """What has this name, once it is sure that it has all of these settings and needs no other."""
    target, where = lookup(module, name), _where(module)
    known = _settings(target)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(
            f"{where}.{name} has no setting {', '.join(map(repr, unknown))};"
            f" its settings are {', '.join(known) or 'none'}."
        )
    missing = [
        n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in settings
    ]
    if missing:
        raise ValueError(f"{where}.{name} needs a value for {', '.join(map(repr, missing))}.")
    return target


def chain(module: ModuleType, text: str) -> list[Callable]:
    """The functions of a chain such as "pad_crop(4)|flip_lr", in order; an empty text has none.

    Arguments are literals, by position or by keyword. Nothing is evaluated.

    Raises:
      ValueError: the text is no such chain, or a link of it does not bind.
    """
    return [_link(module, node) for node in _links(text)]


def within(section: str, fn: Callable, /, *args: Any, **settings: Any) -> Any:
    """fn's value; its error names the section of the config, or a narrower one that it names
    already.
    """
    try:
        return fn(*args, **settings)
    except ValueError as error:
        where = (
            "" if str(error).startswith("config.") else f"config.{section}: "
        )  # an inner call may have said it
        raise ValueError(f"{where}{error}".replace("\n", " ")) from error


def check_number(
    name: str,
    value: Any,
    *,
    whole: bool = False,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Raises a ValueError that names the setting unless its value is a finite number of this kind
    and range.
    """
    bounds = {">": above, ">=": at_least, "<": below, "<=": at_most}
    if not (_is_of(int if whole else float, value) and _is_within(value, bounds)):
        raise ValueError(_refusal(name, value, _range(whole, bounds)))


def check_seed(name: str, value: Any) -> None:
    """Raises a ValueError unless it is in [0, 2**32): JAX takes larger seeds for smaller ones."""
    check_number(name, value, whole=True, at_least=0, below=2**32)


def check_numbers(name: str, values: Any, **settings: Any) -> None:
    """Raises a ValueError that names the setting unless it is a sequence of one or more such
    numbers.
    """
    if not isinstance(values, tuple | list) or not values:
        raise ValueError(_refusal(name, values, "a tuple of one or more numbers"))
    for value in values:
        check_number(f"an entry of {name}, {values},", value, **settings)


def _is_within(value: Any, bounds: Mapping[str, float | None]) -> bool:
    holds = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
    return all(bound is None or holds[sign](value, bound) for sign, bound in bounds.items())


def _range(whole: bool, bounds: Mapping[str, float | None]) -> str:
    told = " and ".join(f"{sign} {bound:,}" for sign, bound in bounds.items() if bound is not None)
    return f"{_words(int if whole else float)} {told}".strip()


def _refusal(name: str, value: Any, expected: str) -> str:
    shown = " ".join(repr(value).split())
    return (
        f"{name} is {shown if len(shown) <= 200 else shown[:200] + ' ...'}; it must be {expected}."
    )


def _is_of(annotation: Any, value: Any) -> bool:
    """Whether a value is of an annotated type.

    True is no number, and a tuple may have become a list.
    """
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_is_of(part, value) for part in parts)
    if origin is tuple or annotation is tuple:
        if not isinstance(value, tuple | list):
            return False
        expected = [parts[0]] * len(value) if parts[1:] == (...,) else parts
        return not parts or (len(expected) == len(value) and all(map(_is_of, expected, value)))
    if annotation is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if annotation is float:
        return (
            isinstance(value, Real)
            and not isinstance(value, bool)
            and -_LARGEST <= value <= _LARGEST
        )
    if annotation in (bool, str, types.NoneType):
        return isinstance(value, annotation)
    return True  # of what no config holds


def _words(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(_words(part) for part in parts)
    if origin is tuple:
        number = "" if parts[1:] == (...,) else f"{len(parts)} "
        return f"a tuple of {number}{_words(parts[0]).removeprefix('a ')}s"
    named = {
        int: "a whole number",
        float: "a finite number",
        bool: "True or False",
        str: "a string",
    }
    return named.get(annotation, "None" if annotation is types.NoneType else "a tuple")


def _links(text: str) -> list[ast.expr]:
    if not isinstance(text, str):
        raise ValueError(
            f"{text!r} is no chain such as 'pad_crop(4)|flip_lr', but must be a string."
        )
    if not text.strip():
        return []
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (
        SyntaxError,
        ValueError,
        MemoryError,
        RecursionError,
    ) as error:  # the last ones where it nests too deep
        why = getattr(error, "msg", None) or str(error) or "it nests too deep"
        raise ValueError(
            f"{text[:200]!r} is no chain such as 'pad_crop(4)|flip_lr': {why}."
        ) from None
    links = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        links.append(node.right)
        node = node.left
    return [node, *reversed(links)]


def _link(module: ModuleType, node: ast.expr) -> Callable:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    shown = ast.unparse(node)
    if not isinstance(call.func, ast.Name) or any(k.arg is None for k in call.keywords):
        raise ValueError(
            f"{shown!r} is no link of a chain; write name or name(value, setting=value)."
        )
    try:
        values = [ast.literal_eval(a) for a in call.args]
        settings = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    except (ValueError, TypeError):
        raise ValueError(
            f"{shown!r} has an argument that is no plain number, string or tuple."
        ) from None
    if "name" in settings:
        raise ValueError(f"{shown!r} gives a setting called name; nothing has one.")
    target = _choices(module).get(call.func.id)
    places = list(_settings(target)) if target else []
    if target and len(values) > len(places):
        raise ValueError(
            f"{shown!r} has {len(values)} arguments, but takes {', '.join(places) or 'none'}."
        )
    positional = dict(zip(places, values))
    given = [*positional, *(k.arg for k in call.keywords)]
    twice = sorted(n for n in set(given) if given.count(n) > 1)
    if twice:
        raise ValueError(f"{shown!r} gives {', '.join(twice)} twice.")
    settings |= positional
    return _with_settings(
        _fitting(module, call.func.id, settings), settings
    )  # values: data/chains.py, by the link


def _choices(module: ModuleType) -> dict[str, Callable]:
    """The public functions and classes of a module: those in __all__, else those it defines."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    found = {n: getattr(module, n) for n in names}
    return {
        n: f
        for n, f in found.items()
        if (inspect.isfunction(f) or inspect.isclass(f))
        and (hasattr(module, "__all__") or f.__module__ == module.__name__)
    }


def _settings(target: Callable) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(target).parameters
    if inspect.isclass(target):
        return {n: p for n, p in parameters.items() if n not in ("parent", "name")}
    return {n: p for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
