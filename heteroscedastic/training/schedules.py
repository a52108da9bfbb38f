"""Learning rates: (step, total_steps, steps_per_epoch) -> rate.

All rise linearly over the warm-up, (step + 1) / warmup_steps, and multiply that with a shape
over the whole of training, warm-up included, so that milestones are fractions of training and
90 and 270 epochs are one word. Rates and factors are from 0 to 1e4.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from heteroscedastic.bind import check_number, check_numbers

Step = Int[Array, ""] | int
Rate = Float[Array, ""]
_LARGEST = 1e4  # of a rate or a factor; what is larger is a mistake


def constant(
    step: Step,
    total_steps: int,
    steps_per_epoch: int,
    *,
    learning_rate: float,
    warmup_epochs: float = 0.0,
    warmup_steps: int = 0,
) -> Rate:
    """The same rate throughout."""
    return _rate(learning_rate) * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)


def cosine(
    step: Step,
    total_steps: int,
    steps_per_epoch: int,
    *,
    learning_rate: float,
    warmup_epochs: float = 0.0,
    warmup_steps: int = 0,
) -> Rate:
    """Half a cosine from the rate down to zero at the end. Source: Loshchilov and Hutter (2017)."""
    shape = 0.5 * (1 + jnp.cos(jnp.pi * step / total_steps))
    return (
        _rate(learning_rate) * shape * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)
    )


def steps(
    step: Step,
    total_steps: int,
    steps_per_epoch: int,
    *,
    learning_rate: float,
    milestones: tuple[float, ...],
    factor: float = 0.1,
    warmup_epochs: float = 0.0,
    warmup_steps: int = 0,
) -> Rate:
    """Multiplied by `factor` at each of these fractions of training."""
    if milestones:
        check_numbers("milestones", milestones, above=0, below=1)
    if list(milestones) != sorted(set(milestones)):
        raise ValueError(f"milestones are {milestones}; they must rise.")
    check_number("factor", factor, at_least=0, at_most=_LARGEST)
    passed = jnp.sum(step >= jnp.round(jnp.array(milestones) * total_steps))
    shape = factor**passed
    return (
        _rate(learning_rate) * shape * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)
    )


def _rate(learning_rate: float) -> float:
    check_number("learning_rate", learning_rate, at_least=0, at_most=_LARGEST)
    return learning_rate


def _warmup(step: Step, steps_per_epoch: int, epochs: float, num_steps: int) -> Rate:
    check_number("warmup_epochs", epochs, at_least=0)
    check_number("warmup_steps", num_steps, integer=True, at_least=0, below=2**31)
    if epochs and num_steps:
        raise ValueError(
            f"warmup_epochs is {epochs} and warmup_steps {num_steps}; give one of them."
        )
    length = max(1.0, float(num_steps or epochs * steps_per_epoch))
    return jnp.minimum(1.0, (step + 1) / length)
