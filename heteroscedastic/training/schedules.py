"""Learning rates: (step, total_steps, steps_per_epoch) -> rate.

A rate is the product of a linear warm-up, (step + 1) / warmup_steps, and a shape over all of
training, warm-up included; the shape of `inverse_sqrt` alone is in steps. Milestones are fractions
of training, so that a config of 90 epochs and one of 270 differ in num_epochs alone. Rates and
factors are from 0 to 1e4.
"""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from heteroscedastic.bind import check_number, check_numbers

# In full steps; in an epoch of chosen examples it may have a fraction (see epochs.py).
Step = Int[Array, ""] | Float[Array, ""] | int | float
Rate = Float[Array, ""]
_LARGEST = 1e4  # rate or factor; a larger one is a mistake


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
    """Half a cosine from the rate to zero at the end.

    Source: Loshchilov and Hutter (2017), arXiv:1608.03983.
    """
    decay = optax.cosine_decay_schedule(_rate(learning_rate), total_steps)
    return decay(step) * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)


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
    """The rate, multiplied by `factor` at each of the milestones, fractions of training."""
    if milestones:
        check_numbers("milestones", milestones, above=0, below=1)
    if list(milestones) != sorted(set(milestones)):
        raise ValueError(f"milestones are {milestones}; they must rise.")
    check_number("factor", factor, at_least=0, at_most=_LARGEST)
    # Not optax.piecewise_constant_schedule: products of factors have other last bits than their
    # power, and its dict applies the factor once where two milestones round to the same step.
    passed = jnp.sum(step >= jnp.round(jnp.array(milestones) * total_steps))
    shape = factor**passed
    return (
        _rate(learning_rate) * shape * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)
    )


def inverse_sqrt(
    step: Step,
    total_steps: int,
    steps_per_epoch: int,
    *,
    learning_rate: float,
    warmup_epochs: float = 0.0,
    warmup_steps: int = 0,
) -> Rate:
    """The rate at the end of the warm-up of n steps; at step m after that, times sqrt(n / m).

    Source: Vaswani et al. (2017), arXiv:1706.03762, Eq. 3, with the rate in place of their scale.
    """
    length = _warmup_length(steps_per_epoch, warmup_epochs, warmup_steps)
    rising = _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)
    return _rate(learning_rate) * rising * jnp.sqrt(jnp.minimum(1.0, length / (step + 1)))


def _rate(learning_rate: float) -> float:
    check_number("learning_rate", learning_rate, at_least=0, at_most=_LARGEST)
    return learning_rate


def _warmup(step: Step, steps_per_epoch: int, epochs: float, num_steps: int) -> Rate:
    # Not optax.linear_schedule: it computes 1 - (1 - t), whose last bits differ.
    return jnp.minimum(1.0, (step + 1) / _warmup_length(steps_per_epoch, epochs, num_steps))


def _warmup_length(steps_per_epoch: int, epochs: float, num_steps: int) -> float:
    """Steps of the warm-up; 1 without one."""
    check_number("warmup_epochs", epochs, at_least=0)
    check_number("warmup_steps", num_steps, integer=True, at_least=0, below=2**31)
    if epochs and num_steps:
        raise ValueError(
            f"warmup_epochs is {epochs} and warmup_steps {num_steps}; give one of them."
        )
    return max(1.0, float(num_steps or epochs * steps_per_epoch))
