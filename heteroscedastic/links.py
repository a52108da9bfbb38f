"""The link of a question, and how its labels lie: what the parts of a config declare to suit."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

Link = Literal["softmax", "sigmoid"]  # which function makes probabilities of utilities
LabelForm = Literal["one", "list"]  # of an example: one class, or a list padded with -1
LINKS: tuple[Link, ...] = ("softmax", "sigmoid")
LABEL_FORMS: tuple[LabelForm, ...] = ("one", "list")
_Function = TypeVar("_Function", bound=Callable)


class Suits(NamedTuple):
    """The questions that a function is meant for, and what it reads of the data."""

    links: tuple[Link, ...]
    labels: tuple[LabelForm, ...]
    class_counts: bool  # whether the function depends on them, so that training labels are counted
    extras: tuple[str, ...]  # that the function reads of each example
    soft_labels: str | None  # setting that names a further extra, a probability of each class
    class_table: str | None  # setting that names a file with a row for each class

    def required_extras(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The extras that the function reads under these settings."""
        return self.extras + self.soft_label_names(settings)

    def soft_label_names(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The extras among them that are soft labels."""
        name = settings.get(self.soft_labels) if self.soft_labels is not None else None
        return (name,) if isinstance(name, str) else ()  # `bind` reports any other type


def suits(
    *links: Link,
    labels: tuple[LabelForm, ...] = LABEL_FORMS,
    class_counts: bool = False,
    extras: tuple[str, ...] = (),
    soft_labels: str | None = None,
    class_table: str | None = None,
) -> Callable[[_Function], _Function]:
    """Declares which links and which forms of labels a function suits; no link means both.

    A task compares the declaration with its own link and labels (`tasks.task.check_parts`), so that
    a new function changes no task. `class_counts` declares that the function depends on the class
    counts; a streaming pipeline counts the labels only if a part of the config does. The others
    declare what the function reads besides inputs and labels; see `Suits`.
    """

    def declared(function):
        function.suits = Suits(
            links or LINKS, labels, class_counts, extras, soft_labels, class_table
        )
        return function

    return declared
