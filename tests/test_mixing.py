"""Mixed examples, alone and in a step of training."""

import functools
import inspect
import itertools
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from flax import linen as nn
from gaussians import key
from scipy import special, stats
from small_runs import small
from subprocesses import ROOT, with_devices

from experiments import study
from heteroscedastic import losses, mixing, smoothing, tasks, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.data import resident
from heteroscedastic.mixing import Mixed
from heteroscedastic.runs import assembly, compiled
from heteroscedastic.training.objective import objective

SETTINGS = {
    "mixup": dict(alpha=0.7),
    "cutmix": dict(alpha=1.0, probability=0.8),
    "ricap": dict(beta=0.3),
    "mixup_or_cutmix": dict(mixup_alpha=0.7, cutmix_probability=0.3),
}
NUM_KEYS, SIZE = 250, (11, 15)  # of most tests, so that they share a program for each function
NUM_PARTNERS = {"mixup": 1, "cutmix": 1, "ricap": 3, "mixup_or_cutmix": 1}
DRAWS = ("batch", "example")
every_function = pytest.mark.parametrize("name", SETTINGS)
# But for mixup_or_cutmix, which has a test of its own: it is one of both.
some_functions = pytest.mark.parametrize(
    "name", mostly_extended(SETTINGS, ["mixup", "cutmix", "ricap"])
)
every_draw = pytest.mark.parametrize("draws", DRAWS)


@functools.cache
def function(name, **settings):
    return functools.partial(getattr(mixing, name), **SETTINGS[name] | settings)


@functools.partial(jax.jit, static_argnums=0)
def _mixed(mix, keys, inputs, targets, weights):
    return jax.vmap(lambda key: mix(key, inputs, targets, weights))(keys)


def mixed(mix, num_keys, inputs, targets, weights=None):
    """The examples under each of a number of keys, in NumPy."""
    weights = np.ones(len(targets), np.float32) if weights is None else weights
    examples = jax.tree.map(jnp.asarray, (inputs, targets, weights))
    return jax.tree.map(np.asarray, _mixed(mix, jax.random.split(key(), num_keys), *examples))


def colours(number, height, width):
    """Images of one colour each, class c being channel c alone; and their targets."""
    targets = np.eye(number, dtype=np.float32)
    return np.tile(targets[:, None, None], (1, height, width, 1)), targets


SMOOTH = np.float32(special.softmax(np.random.default_rng(0).normal(size=(6, 4)), axis=-1))


def mixed_six(name, draws, images=None, weights=None, seed=0):
    """Six images under NUM_KEYS keys; targets are the shares of the six, and mixed SMOOTH."""
    own_images, targets = colours(6, *SIZE)
    targets = np.concatenate([targets, SMOOTH], axis=-1)
    weights = np.ones(6, np.float32) if weights is None else weights
    examples = map(jnp.asarray, (own_images if images is None else images, targets, weights))
    keys = jax.random.split(key(seed), NUM_KEYS)
    return jax.tree.map(np.asarray, _mixed(function(name, draws=draws), keys, *examples))


@functools.cache
def own_shares(name, draws):
    """The share of an example itself, under 2000 keys, for each of six examples."""
    parts = [mixed_six(name, draws, seed=seed).targets[..., :6] for seed in range(8)]
    return np.diagonal(np.concatenate(parts), axis1=1, axis2=2)


@pytest.mark.parametrize(
    ("draws", "name"),
    mostly_extended(
        itertools.product(DRAWS, SETTINGS),
        [
            *(("batch", "mixup"), ("batch", "cutmix")),
            *(("example", "ricap"), ("example", "mixup_or_cutmix")),
        ],
    ),
)
def test_a_target_has_the_shares_of_the_colours_of_its_image(name, draws):
    present = np.arange(6) < 5
    images = np.where(present[:, None, None, None], colours(6, *SIZE)[0], np.float32(np.nan))
    images, targets, weights = mixed_six(name, draws, images, np.float32(2 * present))
    shares, targets = np.mean(images, axis=(2, 3), dtype=float)[:, :5], targets[..., :6]
    np.testing.assert_allclose(targets[:, :5], shares, atol=1e-7 if name != "mixup" else 1e-6)
    np.testing.assert_allclose(np.sum(targets, axis=-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(weights[0], 2 * present)
    mixes = np.any((shares > 0) & (shares < 1), axis=-1)
    alone = 5 - NUM_PARTNERS[name]  # the first example with an absent partner
    assert np.all(np.any(mixes, axis=0) == (np.arange(5) < alone))
    expected = np.eye(6)[None, alone:5].repeat(NUM_KEYS, 0)
    np.testing.assert_array_equal(shares[:, alone:], expected)


@every_function
@every_draw
def test_a_batch_without_partners_is_unchanged(name, draws):
    for number in range(1, NUM_PARTNERS[name] + 1):
        images, targets = colours(number, 4, 4)
        mix = jax.jit(function(name, draws=draws))
        found = mix(key(), *map(jnp.asarray, (images, targets, np.ones(number, np.float32))))
        jax.tree.map(np.testing.assert_array_equal, found, Mixed(images, targets, np.ones(number)))


@some_functions
def test_the_loss_of_a_mixed_target_is_the_sum_of_shares_times_losses(name):
    logits = jnp.asarray(np.float32(np.random.default_rng(1).normal(size=(6, 4))))
    both = mixed_six(name, "example").targets[:20]
    shares, targets = both[..., :6], both[..., 6:]
    losses_of = jax.jit(jax.vmap(losses.cross_entropy, in_axes=(None, 0)))
    of_labels = losses_of(logits, jnp.asarray(np.tile(SMOOTH[:, None], (1, 6, 1))))
    expected = np.einsum("nij,ji->ni", shares, of_labels)
    actual = losses_of(logits, jnp.asarray(targets))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert np.std(expected, axis=0).min() > 0


@pytest.mark.parametrize("alpha", [0.4, 1.0, 3.0])
def test_lambda_has_the_beta_distribution(alpha):
    weights, labels = np.ones(5000, np.float32), np.arange(5000) % 2
    mix = jax.jit(functools.partial(mixing.mixup, alpha=alpha, draws="example"))
    targets = np.eye(2, dtype=np.float32)[labels]
    vectors, targets, _ = mix(key(), *map(jnp.asarray, (weights[:, None], targets, weights)))
    shares = np.asarray(targets)[np.arange(5000), labels]
    assert np.all((shares >= 0) & (shares <= 1))
    assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    np.testing.assert_allclose(vectors, 1, rtol=1e-6)  # means of equal numbers


def published_window(rng, height, width, alpha):
    """The share of an image that the authors' code replaces."""
    cut = np.sqrt(1 - rng.beta(alpha, alpha))
    sides, centre = (int(height * cut), int(width * cut)), rng.integers((height, width))
    spans = [
        np.clip(c + side // 2, 0, n) - np.clip(c - side // 2, 0, n)
        for c, side, n in zip(centre, sides, (height, width))
    ]
    return np.prod(spans) / (height * width)


def published_patch(rng, height, width, beta):
    """The share of an image that its own patch has in the published code."""
    column, row = (int(np.round(n * rng.beta(beta, beta))) for n in (width, height))
    return row * column / (height * width)


def test_shares_of_cutmix_and_ricap_have_the_distribution_of_the_published_code():
    rng = np.random.default_rng(0)
    windows = [published_window(rng, *SIZE, 1.0) for _ in range(2000)]
    windows *= rng.random(2000) < SETTINGS["cutmix"]["probability"]
    patches = [published_patch(rng, *SIZE, 0.3) for _ in range(2000)]
    for own, published in (
        (1 - own_shares("cutmix", "batch")[:, 2], windows),
        (own_shares("ricap", "batch")[:, 2], patches),
    ):
        numbers = [np.round(np.prod(SIZE) * np.asarray(x)) for x in (own, published)]  # of pixels
        assert stats.ks_2samp(*numbers).pvalue > 1e-3


@some_functions
def test_examples_share_the_draws_of_a_batch_or_have_independent_ones(name):
    shared, own = own_shares(name, "batch"), own_shares(name, "example")
    np.testing.assert_array_equal(shared, shared[:, :1].repeat(6, 1))
    assert len(np.unique(shared)) > 10
    correlations = np.corrcoef(own.T) - np.eye(6)
    assert np.max(np.abs(correlations)) < 4.5 / np.sqrt(len(own))
    assert stats.ks_2samp(own[:, 0], shared[:, 0]).pvalue > 1e-3


def coordinates(number, height, width):
    """Images whose pixels hold the number of the image, their row and their column."""
    grid = np.meshgrid(*map(np.arange, (number, height, width)), indexing="ij")
    return np.stack(grid, axis=-1, dtype=np.int32)


def test_a_window_of_cutmix_is_the_same_window_of_the_next_image():
    images = np.float32(coordinates(6, *SIZE))
    padding = [(0, 0)] * 3 + [(0, 3)]
    found = mixed_six("cutmix", "example", np.pad(images, padding)).inputs[:100, ..., :3]
    np.testing.assert_array_equal(found[..., 1:], np.broadcast_to(images, found.shape)[..., 1:])
    is_next = found[..., 0] != np.arange(6)[:, None, None]
    np.testing.assert_array_equal(
        found[..., 0], np.where(is_next, (np.arange(6)[:, None, None] + 1) % 6, images[..., 0])
    )
    rows, columns = is_next.any(axis=-1), is_next.any(axis=-2)
    np.testing.assert_array_equal(is_next, rows[..., None] & columns[..., None, :])
    for line in (*rows.reshape(-1, SIZE[0]), *columns.reshape(-1, SIZE[1])):
        assert np.sum(np.diff(line.astype(int), prepend=0) == 1) <= 1  # one window


def test_rows_and_columns_of_a_window_of_cutmix_are_drawn_independently():
    numbers = np.arange(1000)
    images = np.tile(numbers[:, None, None, None], (1, 9, 9, 1))
    mix, examples = function("cutmix", draws="example"), (images, np.eye(1000), np.ones(1000))
    found = jax.jit(mix)(key(), *(jnp.asarray(x, jnp.float32) for x in examples))
    is_next = np.asarray(found.inputs)[..., 0] != numbers[:, None, None]
    is_next = is_next[is_next.any(axis=(1, 2))]
    middles = [
        np.average(np.tile(np.arange(9), (len(x), 1)), axis=1, weights=x)
        for x in (is_next.any(axis=2), is_next.any(axis=1))
    ]
    assert len(is_next) > 500
    assert abs(np.corrcoef(*middles)[0, 1]) < 0.3


def test_patches_of_ricap_are_crops_of_four_images_at_uniform_places():
    images = coordinates(6, 6, 7)
    mix = function("ricap", beta=1.0, draws="example")
    found, targets, _ = mixed(mix, 600, images, np.eye(6, dtype=np.float32))
    origins = np.full((4, 600), -1)  # of crops of three rows
    for i, (image, target) in enumerate(zip(found[:, 2], targets[:, 2])):
        patch = (image[..., 0] - 2) % 6
        for k in np.unique(patch):
            inside = np.argwhere(patch == k)
            shift = image[patch == k][:, 1:] - inside
            assert np.all(shift == shift[0])  # a crop, not scattered pixels
            extent = np.ptp(inside, axis=0) + 1
            assert extent.prod() == len(inside)
            assert patch[5 * (k // 2), 6 * (k % 2)] == k  # its corner
            if extent[0] == 3:
                origins[k, i] = (shift + inside.min(axis=0))[0, 0]
            assert target[(2 + k) % 6] == pytest.approx(len(inside) / 42)
    for found in origins:
        counts = np.bincount(found[found >= 0], minlength=4)
        assert len(counts) == 4
        assert stats.chisquare(counts).pvalue > 1e-3
    for left, right in (origins[:2], origins[2:]):  # each crop has its own place
        both = (left >= 0) & (right >= 0)
        assert both.sum() > 20
        assert np.mean(left[both] == right[both]) < 0.6


def test_probability_zero_mixes_nothing_and_a_tiny_alpha_exchanges_whole_examples():
    images, targets = colours(5, 4, 4)
    found = mixed(function("cutmix", probability=0.0), 50, images, targets)
    assert np.all(found.inputs == images)
    assert np.all(found.targets == targets)
    found = mixed(function("mixup", alpha=1e-6), 50, images, targets)
    is_own = np.all(np.asarray(found.targets) == targets, axis=(1, 2))
    assert 10 < is_own.sum() < 40
    shift = np.where(is_own, 0, 1)
    classes = (np.arange(5) + shift[:, None]) % 5
    np.testing.assert_array_equal(found.targets, np.eye(5)[classes])
    np.testing.assert_array_equal(found.inputs, np.asarray(images)[classes])


def test_mixup_or_cutmix_is_one_of_both():
    parts = [mixed_six("mixup_or_cutmix", "example", seed=seed).inputs for seed in range(2)]
    found = np.concatenate(parts)[:, ::3].reshape(-1, *SIZE, 6)
    is_cut = np.all((found == 0) | (found == 1), axis=(1, 2, 3))  # no mean of two colours
    assert stats.binomtest(int(is_cut.sum()), len(found), 0.3).pvalue > 1e-3
    by_mixup = found[~is_cut]
    np.testing.assert_array_equal(by_mixup, np.broadcast_to(by_mixup[:, :1, :1], by_mixup.shape))


@every_draw
def test_an_example_of_mixup_or_cutmix_is_that_of_the_function_that_its_draw_chooses(draws):
    rng = np.random.default_rng(0)
    weights = np.ones(6, np.float32)
    weights[3] = 0.0
    arrays = rng.normal(size=(6, 7, 5, 2)), special.softmax(rng.normal(size=(6, 4)), -1), weights
    settings = dict(mixup_alpha=0.7, cutmix_alpha=0.4, cutmix_probability=0.3, draws=draws)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def mixed_three_ways(own, examples):
        coin_key, mixup_key, cutmix_key = jax.random.split(own, 3)
        return (
            jax.random.bernoulli(coin_key, 0.3, (1,) if draws == "batch" else (6,)),
            mixing.mixup_or_cutmix(own, *examples, **settings),
            mixing.cutmix(cutmix_key, *examples, alpha=0.4, draws=draws),
            mixing.mixup(mixup_key, *examples, alpha=0.7, draws=draws),
        )

    examples = tuple(jnp.asarray(x, jnp.float32) for x in arrays)
    is_cut, *ways = mixed_three_ways(jax.random.split(key(), 8), examples)
    is_cut = np.broadcast_to(is_cut, (8, 6))
    for actual, cut, mean in zip(*(map(np.asarray, way) for way in ways), strict=True):
        np.testing.assert_array_equal(actual[is_cut], cut[is_cut])
        np.testing.assert_array_equal(actual[~is_cut], mean[~is_cut])
    assert 0 < np.mean(is_cut) < 1


def test_mixup_averages_every_array_of_the_inputs_in_its_type():
    rng = np.random.default_rng(0)
    inputs = {
        "image": jnp.asarray(rng.normal(size=(4, 3, 3, 1)), jnp.bfloat16),
        "vector": jnp.asarray(rng.normal(size=(4, 6)), jnp.float32),
    }
    mix = jax.jit(function("mixup", draws="example"))
    found, shares, _ = mix(key(), inputs, np.eye(4, dtype=np.float32), np.ones(4, np.float32))
    for name, tolerance in (("image", 1e-2), ("vector", 1e-5)):
        assert found[name].dtype == inputs[name].dtype
        flat = np.asarray(inputs[name], np.float64).reshape(4, -1)
        actual = np.asarray(found[name], np.float64).reshape(4, -1)
        np.testing.assert_allclose(actual, shares @ flat, rtol=tolerance, atol=tolerance)


_ON_DEVICES = """
import functools, json, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from benchmarks import hlo
from heteroscedastic import mixing, smoothing
from heteroscedastic.batch import Batch

rng, ids = np.random.default_rng(0), np.arange(16)
boxes = np.sort(rng.random((16, 2, 2, 2), np.float32), axis=2).reshape(16, 2, 4)
extras = {"boxes": boxes, "context": ids % 5 == 1}
images = rng.normal(size=(16, 6, 5, 3)).astype(np.float32)
batch = Batch(images, ids, np.float32(ids != 6), ids, extras)
either = functools.partial(mixing.mixup_or_cutmix, mixup_alpha=0.7)
for mix in (mixing.ricap, either):
    def mixed(batch):
        targets = smoothing.adaptive(batch, 16, objectness="next")
        return mix(jax.random.key(0), batch.inputs, targets, batch.weights, draws="example")

    for number in (1, 8):
        mesh = Mesh(np.array(jax.devices()[:number]), ("batch",))
        examples = NamedSharding(mesh, PartitionSpec("batch"))
        arguments = jax.device_put(batch, examples)
        program = jax.jit(mixed, out_shardings=examples).lower(arguments).compile()
        values = np.concatenate([np.ravel(x) for x in program(arguments)])
        outputs = [(x.kind, x.shape) for x in hlo.collective_outputs(program.as_text())]
        print(json.dumps([values.tolist(), outputs]))
"""


def test_one_image_crosses_for_a_partner_and_the_result_is_that_of_one_device():
    """With the adaptive targets of the next example, boxes and examples without objects."""
    output = subprocess.run(
        [sys.executable, "-c", _ON_DEVICES],
        cwd=ROOT,
        env=with_devices(8),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in output.stdout.splitlines()]
    # A device has two images. RICAP needs one, two and two more for the three partners.
    for (one, none), (eight, outputs), most in zip(lines[::2], lines[1::2], (5, 1), strict=True):
        np.testing.assert_allclose(eight, one, rtol=1e-5, atol=1e-6)
        assert not none
        assert {kind for kind, _ in outputs} == {"collective-permute"}
        assert sum(shape[0] for _, shape in outputs if len(shape) == 4) <= most


class _Identity(nn.Module):
    """A model whose logits are its inputs."""

    def __call__(self, inputs, present, train=False):
        return inputs


def stated(mix, batch, average=lambda key, latent: latent):
    """The loss and the outputs of a batch whose inputs are logits."""
    return objective(
        {},
        {},
        batch,
        key(),
        model=_Identity(),
        smoothing=smoothing.hard,
        weighting=weighting.inverse_frequency,
        predictive=average,
        loss=losses.cross_entropy,
        class_counts=jnp.array([1.0, 2.0, 3.0]),
        mixing=mix,
    )


def logits_and_labels(number=20):
    rng = np.random.default_rng(0)
    return Batch(
        inputs=jnp.asarray(rng.normal(size=(number, 3)), jnp.float32),
        labels=jnp.asarray(rng.integers(0, 3, number), jnp.int32),
        weights=jnp.asarray(np.where(np.arange(number) == number - 1, 0.5, 1), jnp.float32),
        ids=jnp.asarray(np.arange(number)),
        extras={},
    )


def test_the_loss_and_the_class_weights_see_mixed_examples_and_the_metrics_their_own_labels():
    batch = logits_and_labels()

    def mix(_, *examples):
        return mixing.mixup(key(7), *examples, alpha=1.0, draws="example")

    @jax.jit
    def step(batch):
        loss, outputs = stated(mix, batch)
        mixed = mix(key(), batch.inputs, jnp.eye(3)[batch.labels], batch.weights)
        expected = losses.cross_entropy(mixed.inputs, mixed.targets)
        return (
            loss,
            outputs.targets,
            mixed,
            expected,
            tasks.multiclass().training_sums(outputs, batch),
        )

    found = jax.tree.map(np.asarray, step(batch))
    loss, targets_of_step, (inputs, targets, weights), expected, sums = found
    np.testing.assert_allclose(targets_of_step, targets, rtol=1e-6)
    weights = weights * (targets @ (6 / 3 / np.array([1.0, 2.0, 3.0])))
    np.testing.assert_allclose(loss, np.average(expected, weights=weights), rtol=1e-5)
    labels = np.asarray(batch.labels)
    correct = np.argmax(inputs, axis=-1) == labels
    assert np.any(np.argmax(targets, axis=-1) != labels)
    assert np.sum(sums.correct) == pytest.approx(np.sum(np.asarray(batch.weights) * correct))


def test_mixing_has_a_key_of_its_own_and_leaves_the_noise_of_the_step():
    batch, keys = logits_and_labels(), []

    def unchanged(key, *examples):
        keys.append(key)
        return Mixed(*examples)

    def noise(key, latent):
        return latent + jax.random.normal(key, latent.shape)

    @jax.jit
    def both(batch):
        parts = [stated(mix, batch, average=noise) for mix in (unchanged, None)]
        return [(loss, outputs.logits) for loss, outputs in parts], keys[0]

    (with_mixing, without), key_of_mixing = both(batch)
    jax.tree.map(np.testing.assert_array_equal, with_mixing, without)
    assert not np.array_equal(jax.random.key_data(key_of_mixing), jax.random.key_data(key()))


def test_the_draws_of_a_step_follow_from_the_seed_and_its_number():
    settings = {"backbone": dict(name="MLP", widths=(4,)), "training.batch_size": 16}
    config = study.config("digits_hom", settings | {"mixing": dict(name="mixup", alpha=1.0)})
    run = assembly.build(config)
    state, (feed,) = run.init(run.root_key), resident.feeds(np.arange(16), 16)

    arrays = run.pipeline.arrays["train"]
    step = jax.jit(lambda *arguments: run.train_step(*arguments)[2].losses)

    def losses_of_step(number):
        return np.asarray(
            step(state._replace(step=jnp.asarray(number)), arrays, feed, run.root_key)
        )

    np.testing.assert_array_equal(losses_of_step(3), losses_of_step(3))
    assert np.all(losses_of_step(3) != losses_of_step(4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(name="mixup", alpha=0.0), r"config\.mixing: alpha is 0\.0; it must be"),
        (dict(name="mixup"), r"config\.mixing: mixing\.mixup needs a value for 'alpha'"),
        (dict(name="cutmix", alpha=-1.0), r"config\.mixing: alpha is -1\.0"),
        (dict(name="cutmix", probability=1.5), r"probability is 1\.5; .* >= 0 and <= 1"),
        (dict(name="ricap", beta=0.0), r"config\.mixing: beta is 0\.0"),
        (dict(name="mixup_or_cutmix", mixup_alpha=0.0), r"mixup_alpha is 0\.0"),
        (
            dict(name="mixup_or_cutmix", mixup_alpha=0.2, cutmix_probability=-0.1),
            r"cutmix_probability is -0\.1",
        ),
        (dict(name="ricap", draws="epoch"), r"draws is 'epoch'; choose 'batch' or 'example'"),
        (dict(name="mix"), r"one of cutmix, mixup, mixup_or_cutmix, ricap"),
    ],
)
def test_a_setting_out_of_range_is_an_error(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        assembly.check(small(mixing=settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cutmix", "ricap", "mixup_or_cutmix"])
@pytest.mark.parametrize(
    "inputs",
    [np.ones((4, 64), np.float32), {"image": np.ones((4, 8, 8, 3), np.float32)}],
    ids=["vector", "dict"],
)
def test_windows_of_what_is_no_image_are_an_error(name, inputs):
    with pytest.raises(
        ValueError, match=r"needs images of shape \(height, width, channels\), but"
    ) as caught:
        mixing.__dict__[name](
            key(),
            *jax.tree.map(
                jnp.asarray, (inputs, np.eye(4, dtype=np.float32), np.ones(4, np.float32))
            ),
            **SETTINGS[name],
        )
    assert "\n" not in str(caught.value)


def test_a_config_of_features_with_windows_is_an_error_before_data_is_trained_on(tmp_path):
    features, labels = np.ones((16, 5), np.float32), np.arange(16) % 2
    arrays = {f"{split}_inputs": features for split in ("train", "test")}
    arrays |= {f"{split}_labels": labels for split in ("train", "test")}
    np.savez(tmp_path / "mine.npz", class_names=["a", "b"], **arrays)
    settings = {"backbone": dict(name="MLP", widths=(4,)), "data.train": "", "data.eval": ""}
    run = assembly.build(
        study.config("own_images", settings | {"mixing": dict(name="cutmix")}), str(tmp_path)
    )
    message = r"^config\.mixing: cutmix needs images of shape .* has the shape \(5,\); choose mixup"
    with pytest.raises(ValueError, match=message) as caught:
        compiled.check_shapes(run)
    assert "\n" not in str(caught.value)


def test_mixup_of_integers_is_an_error():
    with pytest.raises(
        ValueError, match=r"but they are int32; .* end the chain config\.data\.train"
    ):
        function("mixup")(key(), jnp.asarray(coordinates(4, 2, 2)), jnp.eye(4), jnp.ones(4))


def test_the_defaults_are_those_of_the_guide():
    page = (ROOT / "docs/guide/training.md").read_text()
    for name, mix in ((name, getattr(mixing, name)) for name in SETTINGS):
        (row,) = re.findall(rf"^\| `{name}`, (.*?) \|", page, flags=re.M)
        stated = dict(re.fullmatch(r"`(\w+)(?:=(.*))?`", x).groups() for x in row.split(", "))
        parameters = inspect.signature(mix).parameters
        assert {**stated, "draws": "batch"} == {
            name: None if p.default is p.empty else str(p.default)
            for name, p in parameters.items()
            if p.kind is p.KEYWORD_ONLY
        }
