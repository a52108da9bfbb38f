"""What training carries from step to step."""

from typing import Any, NamedTuple

from jaxtyping import Array, Int


class TrainState(NamedTuple):
    """Arrays only."""

    step: Int[Array, ""]  # steps taken
    params: Any
    model_state: Any  # batch statistics
    opt_state: Any
    scores: Any = None  # what prioritization knows of every example
