"""What a config stands for, before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import plain, small

from heteroscedastic.data import resident
from heteroscedastic.runs import assembly


def fingerprint(seed, data_seed=None):
    config = small(seed=seed)
    if data_seed is not None:
        config["data"]["seed"] = data_seed
    return assembly.build(config).pipeline.description["fingerprint"]


def test_runs_of_one_data_seed_share_their_noise_and_what_is_held_out():
    alone = fingerprint(0)
    assert fingerprint(1) != alone  # of the digits both follow from the seed
    assert fingerprint(1, data_seed=0) == fingerprint(0, data_seed=0) == alone
    with pytest.raises(ValueError, match=r"config.data.seed is 0.5"):
        fingerprint(0, data_seed=0.5)


def conv_run(**overrides):
    """A small run with batch statistics, with its first eight training examples."""
    run = assembly.build(small(backbone=dict(name="ConvNet", widths=(4, 8)), **overrides))
    (feed,) = resident.feeds(np.arange(8), 8)
    return run, run.pipeline.arrays["train"], feed


def test_a_start_follows_from_the_seed():
    runs = [assembly.build(small(seed=seed)) for seed in (0, 0, 1)]
    starts = [run.init(run.root_key) for run in runs]
    leaves = [jax.tree.leaves(jax.device_get(start.params)) for start in starts]
    assert all(np.array_equal(a, b) for a, b in zip(leaves[0], leaves[1]))
    assert any(not np.array_equal(a, b) for a, b in zip(leaves[0], leaves[2]))


def test_every_step_has_noise_of_its_own():
    run, split, feed = conv_run(**{"data.train": "value_range(-1, 1)"})
    state = run.init(run.root_key)
    step = jax.jit(lambda *arguments: run.train_step(*arguments)[2].losses)
    losses = [step(state._replace(step=jnp.int32(n)), split, feed, run.root_key) for n in (0, 0, 1)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert not np.allclose(losses[0], losses[2], rtol=1e-3)


def test_the_augmentation_follows_from_the_seed():
    """Of a model without noise, on the same examples in the same state."""
    data = {"data.train": "pad_crop(2)|value_range(-1, 1)", "training.batch_size": 8}
    run = assembly.build(plain(backbone=dict(name="MLP", widths=(4,)), **data))
    (feed,), state = resident.feeds(np.arange(8), 8), run.init(run.root_key)
    step = jax.jit(lambda *arguments: run.train_step(*arguments)[2].losses)
    losses = [
        step(state, run.pipeline.arrays["train"], feed, jax.random.key(seed)) for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert not np.allclose(losses[0], losses[2], rtol=1e-3)


def test_runs_of_different_seeds_share_their_programs():
    """The seed is an argument, so that a compiled program is found again."""
    texts = []
    for seed in (0, 1):
        run = assembly.build(small(seed=seed))
        (feed,) = resident.feeds(np.arange(8), 8)
        init = jax.jit(run.init).lower(run.root_key)
        arguments = run.init(run.root_key), run.pipeline.arrays["train"], feed, run.root_key
        texts.append((init.as_text(), jax.jit(run.train_step).lower(*arguments).as_text()))
    assert texts[0] == texts[1]
    losses = jax.jit(lambda *x: run.train_step(*x)[2].losses)
    other = losses(*arguments[:3], jax.random.key(0))
    assert not np.allclose(losses(*arguments), other, rtol=1e-3)


def test_in_evaluation_an_example_does_not_see_its_batch():
    run, split, feed = conv_run()
    state = run.init(run.root_key)
    evaluate = jax.jit(lambda *arguments: run.latents(*arguments)[0].loc)
    (first,) = resident.feeds(np.arange(1), 1)
    together, alone = (
        evaluate(state.params, state.model_state, split, part) for part in (feed, first)
    )
    np.testing.assert_allclose(together[:1], alone, rtol=1e-4, atol=1e-5)


def test_no_step_computes_the_gradient_of_fixed_parameters():
    settings = {"data.train": "value_range(-1, 1)", "optimizer.clip_norm": None}
    fixed = ("backbone/Conv_0", "backbone/*Norm_0")
    whole, split, feed = conv_run(**settings)
    part, *_ = conv_run(**settings, **{"optimizer.fixed": fixed})
    results, num_convolutions = [], []
    for run in (whole, part):
        state = run.init(run.root_key)
        arguments = state, split, feed, run.root_key
        num_convolutions.append(
            str(jax.make_jaxpr(run.train_step)(*arguments)).count("conv_general")
        )
        new, sums, _ = jax.jit(run.train_step)(*arguments)
        steps = jax.tree_util.tree_map_with_path(
            lambda path, a, b: (jax.tree_util.keystr(path, simple=True, separator="/"), b - a),
            state.params,
            new.params,
        )
        results.append((dict(jax.tree.leaves(steps, is_leaf=lambda x: isinstance(x, tuple))), sums))
    # Two layers: forward twice, by the input of the second and by both kernels; one of them is
    # fixed, and so the gradient of the second input is not needed.
    assert num_convolutions == [5, 3]
    (all_steps, all_sums), (steps, sums) = results
    of_fixed = {
        name for name in steps if name.startswith(("backbone/Conv_0/", "backbone/BatchNorm_0/"))
    }
    assert len(of_fixed) == 3
    for name, step in steps.items():
        expected = np.zeros_like(step) if name in of_fixed else all_steps[name]
        np.testing.assert_allclose(step, expected, rtol=1e-4, atol=1e-6, err_msg=name)
    assert sums.loss == pytest.approx(float(all_sums.loss), rel=1e-6)
    assert 0 < sums.gradient_norm < all_sums.gradient_norm
