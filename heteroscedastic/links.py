"""The link of a question, and how its labels lie: what the parts of a config declare to suit."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

Link = Literal["softmax", "sigmoid"]  # which function makes probabilities of utilities
LabelForm = Literal["one", "list"]  # of an example: one class, or a list padded with -1
LINKS: tuple[Link, ...] = ("softmax", "sigmoid")
LABEL_FORMS: tuple[LabelForm, ...] = ("one", "list")
_Function = TypeVar("_Function", bound=Callable)


class Suits(NamedTuple):
    """The questions that a function is meant for."""

    links: tuple[Link, ...]
    labels: tuple[LabelForm, ...]
    class_counts: bool  # whether the function depends on them, so that training labels are counted


def suits(
    *links: Link, labels: tuple[LabelForm, ...] = LABEL_FORMS, class_counts: bool = False
) -> Callable[[_Function], _Function]:
    """Declares which links and which forms of labels a function suits; no link means both.

    A task compares the declaration with its own link and labels (`tasks.task.check_parts`), so that
    a new function changes no task. `class_counts` declares that the function depends on the class
    counts; a streaming pipeline counts the labels only if a part of the config does.
    """

    def declared(function):
        function.suits = Suits(links or LINKS, labels, class_counts)
        return function

    return declared
