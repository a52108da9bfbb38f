"""Learning rates: (step, total_steps, steps_per_epoch) -> rate.

All rise linearly over the warm-up, (step + 1) / warmup_steps, and multiply that with a shape
over the whole of training, warm-up included, so that milestones are fractions of training and
90 and 270 epochs are one word.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Step = Int[Array, ""] | int
Rate = Float[Array, ""]


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
    return learning_rate * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)


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
    return learning_rate * shape * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)


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
    if list(milestones) != sorted(set(milestones)) or not all(0 < m < 1 for m in milestones):
        raise ValueError(f"milestones are {milestones}, but must be rising fractions of training in (0, 1).")
    passed = jnp.sum(step >= jnp.round(jnp.array(milestones) * total_steps))
    shape = factor**passed
    return learning_rate * shape * _warmup(step, steps_per_epoch, warmup_epochs, warmup_steps)


def _warmup(step: Step, steps_per_epoch: int, epochs: float, num_steps: int) -> Rate:
    if epochs < 0 or num_steps < 0 or (epochs and num_steps):
        raise ValueError(f"warmup_epochs is {epochs} and warmup_steps {num_steps}; give one of them, >= 0.")
    length = max(1.0, num_steps or epochs * steps_per_epoch)
    return jnp.minimum(1.0, (step + 1) / length)
