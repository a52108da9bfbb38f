"""Random changes of colours, in both pipelines."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenes import encoded
from scipy import stats

tf = pytest.importorskip("tensorflow")

from heteroscedastic import bind  # noqa: E402
from heteroscedastic.data import augment, chains, colors, resident  # noqa: E402
from heteroscedastic.data.dataset import Split  # noqa: E402
from heteroscedastic.data.inspect import contact_sheet  # noqa: E402
from heteroscedastic.data.streaming import graph, ops  # noqa: E402

N = 150
IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
PIXELS = IMAGE.astype(np.float64)
GREY = PIXELS @ [0.299, 0.587, 0.114]


def by_resident(text):
    ids = np.arange(N, dtype=np.int32)
    (feed,) = resident.feeds(ids, N)
    split = Split(np.broadcast_to(IMAGE, (N, *IMAGE.shape)), ids, ids)
    chain = bind.chain(augment, text)
    return np.asarray(resident.batch(jax.random.key(0), split, feed, chain=chain).inputs)


def by_stream(text):
    function = graph.chain_function((None, None, 3), {}, bind.chain(ops, text))
    key, file = graph.epoch_key(0, 0), tf.constant(encoded(IMAGE))
    return np.stack([function(key, tf.constant(i, tf.int64), file, {})["image"] for i in range(N)])


both = pytest.mark.parametrize("results", [by_resident, by_stream])


def jitter(**amounts):
    settings = dict(brightness=0.0, contrast=0.0, saturation=0.0) | amounts
    return f"blend_jitter({', '.join(f'{k}={v}' for k, v in settings.items())})"


@both
def test_without_amounts_the_pixels_are_unchanged(results):
    for text in (jitter(), "lighting(std=0.0)"):
        images = results(text)
        assert images.dtype == np.float32
        np.testing.assert_array_equal(images, np.broadcast_to(PIXELS, images.shape))


@both
@pytest.mark.parametrize(
    ("setting", "target"),
    [
        ("brightness", np.zeros(IMAGE.shape)),
        ("contrast", np.full(IMAGE.shape, GREY.mean())),
        ("saturation", np.repeat(GREY[..., None], 3, axis=-1)),
    ],
)
def test_each_change_moves_by_a_uniform_amount_towards_its_target(results, setting, target):
    images, step = results(jitter(**{setting: 0.4})), target - PIXELS
    amounts = np.tensordot(images - PIXELS, step, 3) / np.sum(step**2)
    np.testing.assert_allclose(images, PIXELS + amounts[:, None, None, None] * step, atol=1e-3)
    assert stats.kstest(amounts, stats.uniform(-0.4, 0.8).cdf).pvalue > 1e-3


@both
def test_the_amounts_of_the_three_changes_are_independent(results):
    factors = []
    for image in results(jitter(brightness=0.3, contrast=0.2, saturation=0.4)):
        grey = image @ np.float32([0.299, 0.587, 0.114])
        brightness = grey.mean() / GREY.mean()  # alone changes the mean grey
        contrast = np.std(grey) / np.std(GREY) / brightness
        colour = np.std(image[..., 0] - grey) / np.std(PIXELS[..., 0] - GREY)
        factors.append((1 - brightness, 1 - contrast, 1 - colour / brightness / contrast))
    ends = np.abs(factors).max(axis=0)
    assert (np.array([0.27, 0.18, 0.36]) < ends).all()
    assert (ends < np.array([0.3, 0.2, 0.4]) + 1e-3).all()
    correlations = np.corrcoef(np.transpose(factors))[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(N)


@pytest.mark.parametrize("xp", [jnp, tf.experimental.numpy])
def test_the_changes_in_any_order_give_the_same_image(xp):
    amounts = (0.3, -0.4, 0.25)

    def changed(image, change):
        grey = image @ [0.299, 0.587, 0.114]
        target = (0.0, grey.mean(), grey[..., None])[change]
        return image + amounts[change] * (target - image)

    result = np.asarray(colors.blended(xp, xp.asarray(IMAGE.astype(np.float32)), amounts))
    for order in itertools.permutations(range(3)):
        image = PIXELS
        for change in order:
            image = changed(image, change)
        np.testing.assert_allclose(result, image, atol=1e-3)


@both
def test_lighting_adds_one_colour_with_the_covariance_of_imagenet(results):
    values = np.array([0.2175, 0.0188, 0.0045])
    vectors = np.array(
        [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.814], [-0.5836, -0.6948, 0.4203]]
    )
    added = results("lighting(std=0.1)") - PIXELS
    np.testing.assert_allclose(added, np.broadcast_to(added[:, :1, :1], added.shape), atol=1e-3)
    components = np.linalg.solve(vectors, added[:, 0, 0].T / 255) / (0.1 * values[:, None])
    for component in components:
        assert stats.kstest(component, stats.norm.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(components)[np.triu_indices(3, 1)]).max() < 4 / np.sqrt(N)


@both
def test_a_range_may_have_ends_for_each_channel(results):
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    low, high = (tuple(((x - mean) / std).tolist()) for x in (0, 1))
    text = f"value_range({low}, {high})"
    (image,) = results(text)[:1]
    np.testing.assert_allclose(image, (PIXELS / 255 - mean) / std, atol=1e-5)
    np.testing.assert_array_equal(contact_sheet.pixels(image, bind.chain(augment, text)), IMAGE)


@pytest.mark.parametrize("module", [augment, ops])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value_range(-1, 1)|blend_jitter", "blend_jitter requires pixels from 0 to 255"),
        ("value_range(-1, 1)|lighting", "lighting requires pixels from 0 to 255"),
        ("blend_jitter(hue=0.1)", "has no setting 'hue'"),
        ("blend_jitter(contrast=1.5)", "contrast is 1.5"),
        ("lighting(std=-0.1)", "std is -0.1"),
        ("value_range((0, 0, 0), 0)", "high is 0.0, but must be above low"),
        ("value_range((0, 0, 2), (1, 1, 1))", "high is"),
        ("value_range((0, 0), (1, 1, 1))", "are of 2 and 3 channels"),
        ("value_range((), 1)", "or a tuple of one for each channel"),
    ],
)
def test_an_invalid_change_of_colours_is_an_error(module, text, message):
    with pytest.raises(ValueError, match=message):
        chains.parse(module, text)


@both
def test_a_range_of_another_number_of_channels_is_an_error(results):
    with pytest.raises(ValueError, match="2 numbers, but these images have 3 channels"):
        results("value_range((0, 0), (1, 1))")


def test_boxes_are_filled_before_colours_change():
    example = {"image": jnp.asarray(IMAGE), "boxes": jnp.ones((1, 4)) * jnp.array([0, 0, 1, 1])}
    changed = augment.lighting(jax.random.key(0), example)
    with pytest.raises(ValueError, match="must precede value_range and changes of colour"):
        augment.context(jax.random.key(0), changed, rate=1.0)


def test_changes_of_colours_require_three_channels():
    image = jnp.zeros((4, 4, 1), jnp.uint8)
    for op in (augment.blend_jitter, augment.lighting):
        with pytest.raises(ValueError, match=f"{op.__name__} requires 3 channels"):
            op(jax.random.key(0), {"image": image})
