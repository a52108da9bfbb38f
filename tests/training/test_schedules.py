import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.training import schedules

ALL = {
    "constant": (schedules.constant, {}),
    "cosine": (schedules.cosine, {}),
    "steps": (schedules.steps, dict(milestones=(1 / 3, 0.5))),
}
every_schedule = pytest.mark.parametrize(("schedule", "settings"), ALL.values(), ids=ALL)


def rates(schedule, total_steps=60, steps_per_epoch=10, learning_rate=0.4, **settings):
    """The rate at each step of training, and at its end."""

    def rate(step):
        return schedule(step, total_steps, steps_per_epoch, learning_rate=learning_rate, **settings)

    return np.asarray(jax.vmap(rate)(jnp.arange(total_steps + 1)))


def test_constant_is_constant():
    np.testing.assert_allclose(rates(schedules.constant), 0.4)


@pytest.mark.parametrize("total_steps", [1, 7, 60])
def test_cosine_is_half_a_cosine_from_the_rate_to_zero(total_steps):
    found = rates(schedules.cosine, total_steps)
    stated = 0.4 * np.square(np.cos(0.5 * np.pi * np.arange(total_steps + 1) / total_steps))
    np.testing.assert_allclose(found, stated, atol=1e-6)
    np.testing.assert_allclose([found[0], found[-1]], [0.4, 0.0], atol=1e-6)
    assert (np.diff(found) < 0).all()


def test_inverse_sqrt_rises_to_the_rate_and_falls_with_the_root_of_the_step():
    found = rates(schedules.inverse_sqrt, warmup_steps=4)
    stated = [0.4 * n / 4 if n <= 4 else 0.4 * np.sqrt(4 / n) for n in range(1, 62)]
    np.testing.assert_allclose(found, stated, rtol=1e-6)
    np.testing.assert_array_equal(rates(schedules.inverse_sqrt, warmup_epochs=0.4), found)
    np.testing.assert_array_equal(rates(schedules.inverse_sqrt, 90, warmup_steps=4)[:61], found)


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("milestones", [(), (0.5,), (0.1, 0.5, 0.9)])
def test_steps_multiply_by_the_factor_at_each_milestone(milestones, factor):
    stated, rate = [], 0.4
    for step in range(61):
        rate *= factor ** sum(step == 60 * m for m in milestones)
        stated.append(rate)
    np.testing.assert_allclose(
        rates(schedules.steps, milestones=milestones, factor=factor), stated, rtol=1e-5
    )


@every_schedule
@pytest.mark.parametrize("times", [2, 3, 30])
def test_a_training_of_another_length_has_the_same_shape(schedule, settings, times):
    np.testing.assert_allclose(
        rates(schedule, 60 * times, **settings)[::times], rates(schedule, 60, **settings), atol=1e-6
    )


@every_schedule
@pytest.mark.parametrize("warmup", [dict(warmup_steps=25), dict(warmup_epochs=2.5)])
def test_the_warm_up_rises_linearly_and_multiplies_the_shape(schedule, settings, warmup):
    shape, found = rates(schedule, **settings), rates(schedule, **settings, **warmup)
    rise = np.minimum(1.0, np.arange(1, 62) / 25)
    np.testing.assert_allclose(found, rise * shape, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(found[25:], shape[25:])


@every_schedule
@pytest.mark.parametrize(
    "warmup", [dict(warmup_steps=0), dict(warmup_steps=1), dict(warmup_epochs=0.0)]
)
def test_the_shortest_warm_up_is_none(schedule, settings, warmup):
    np.testing.assert_array_equal(
        rates(schedule, **settings, **warmup), rates(schedule, **settings)
    )


@every_schedule
def test_rates_are_proportional_to_the_learning_rate(schedule, settings):
    np.testing.assert_allclose(
        rates(schedule, learning_rate=1.2, warmup_steps=5, **settings),
        3 * rates(schedule, learning_rate=0.4, warmup_steps=5, **settings),
        rtol=1e-5,
        atol=1e-7,
    )


@every_schedule
@pytest.mark.parametrize(
    "warmup",
    [
        dict(warmup_steps=-1),
        dict(warmup_epochs=-0.5),
        dict(warmup_epochs=float("nan")),
        dict(warmup_steps=3, warmup_epochs=1.0),
    ],
)
def test_a_warm_up_that_is_negative_or_told_twice_is_an_error(schedule, settings, warmup):
    with pytest.raises(
        ValueError, match=r"warmup_.* is .*(; it must be a .* number >= 0|; give one of them)"
    ):
        schedule(0, 60, 10, learning_rate=0.4, **settings, **warmup)


@pytest.mark.parametrize(
    "milestones", [(0.0,), (1.0,), (0.5, 0.2), (30.0, 60.0), (-0.1, 0.5), (float("nan"),)]
)
def test_milestones_that_are_no_rising_fractions_are_an_error(milestones):
    with pytest.raises(ValueError, match=r"milestones(,.* is .* > 0 and < 1| are .* must rise)"):
        schedules.steps(0, 60, 10, learning_rate=0.4, milestones=milestones)
