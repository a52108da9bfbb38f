"""How a config names code: a name in a module, and settings as its keyword-only arguments."""

import ast
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def bind(module: ModuleType, /, *, name: str, **settings: Any) -> Callable:
    """The function of this name with its settings bound, or the class of this name constructed.

    Raises:
      ValueError: an unknown name, an unknown setting or a missing one; lists the choices.
    """
    choices = _choices(module)
    where = module.__name__.rpartition(".")[2]
    if name not in choices:
        raise ValueError(f"{where} has no {name!r}; choose one of {', '.join(sorted(choices))}.")
    target = choices[name]
    known = _settings(target)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(
            f"{where}.{name} has no setting {', '.join(map(repr, unknown))};"
            f" its settings are {', '.join(known) or 'none'}."
        )
    missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in settings]
    if missing:
        raise ValueError(f"{where}.{name} needs a value for {', '.join(map(repr, missing))}.")
    return target(**settings) if inspect.isclass(target) else functools.partial(target, **settings)


def chain(module: ModuleType, text: str) -> list[Callable]:
    """The functions of a chain such as "pad_crop(4)|flip_lr", in order; an empty text has none.

    Arguments are literals, by position or by keyword. Nothing is evaluated.

    Raises:
      ValueError: the text is no such chain, or a link of it does not bind.
    """
    return [_link(module, node) for node in _links(text)]


def within(section: str, fn: Callable, /, *args: Any, **settings: Any) -> Any:
    """fn's value; its error names the section of the config, or a narrower one that it names already."""
    try:
        return fn(*args, **settings)
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith("config.") else f"config.{section}: {error}") from None


def _links(text: str) -> list[ast.expr]:
    if not text.strip():
        return []
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no chain such as 'pad_crop(4)|flip_lr': {error.msg}.") from None
    links = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        links.append(node.right)
        node = node.left
    return [node, *reversed(links)]


def _link(module: ModuleType, node: ast.expr) -> Callable:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    shown = ast.unparse(node)
    if not isinstance(call.func, ast.Name) or any(k.arg is None for k in call.keywords):
        raise ValueError(f"{shown!r} is no link of a chain; write name or name(value, setting=value).")
    try:
        values = [ast.literal_eval(a) for a in call.args]
        settings = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    except (ValueError, TypeError):
        raise ValueError(f"{shown!r} has an argument that is no plain number, string or tuple.") from None
    if "name" in settings:
        raise ValueError(f"{shown!r} gives a setting called name; nothing has one.")
    target = _choices(module).get(call.func.id)
    places = list(_settings(target)) if target else []
    if target and len(values) > len(places):
        raise ValueError(f"{shown!r} has {len(values)} arguments, but takes {', '.join(places) or 'none'}.")
    positional = dict(zip(places, values))
    given = [*positional, *(k.arg for k in call.keywords)]
    twice = sorted(n for n in set(given) if given.count(n) > 1)
    if twice:
        raise ValueError(f"{shown!r} gives {', '.join(twice)} twice.")
    return bind(module, name=call.func.id, **positional, **settings)


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
