"""Padding classes have no effect."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key, latent

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive

PREDICTIVES = {
    "sobol": functools.partial(predictive.softmax, num_samples=16, points="sobol"),
    "independent": functools.partial(predictive.softmax, num_samples=16),
    "shortlist": functools.partial(predictive.shortlist, num_classes=2, num_samples=16),
    "sigmoid_sampled": functools.partial(predictive.sigmoid_sampled, num_samples=16),
    "sigmoid": predictive.sigmoid,
    "taylor": predictive.taylor,
    "mean_field": predictive.mean_field,
}


def fewer(longer, num_classes):
    """The latent of only the first classes."""
    if longer.readout is not None:
        return longer._replace(
            loc=longer.loc[..., :num_classes], readout=longer.readout[:, :num_classes]
        )
    actual = longer._replace(factor_loadings=None, shared_loadings=None)
    actual = latent_lib.map_batch(lambda x: x[..., :num_classes], actual)
    if longer.factor_loadings is not None:
        actual = actual._replace(factor_loadings=longer.factor_loadings[..., :num_classes, :])
    if longer.shared_loadings is not None:
        actual = actual._replace(shared_loadings=longer.shared_loadings[:num_classes])
    return actual


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(PREDICTIVES, ["low_rank", "parameter_efficient", "readout"]),
        ("softmax_exact", "diagonal"),
    ],
)
def test_padding_classes_have_no_probability_and_no_gradient(name, kind):
    predict = (PREDICTIVES | {"softmax_exact": predictive.softmax_exact})[name]
    num_classes, longer = 5, latent(kind, batch=(2,), k=8)
    if longer.readout is not None:  # padded kernels are zero
        longer = longer._replace(readout=longer.readout.at[:, num_classes:].set(0.0))

    def padded(x):
        logits = predict(key(), latent_lib.mask_padding_classes(x, num_classes))
        assert (logits[..., num_classes:] < -1e6).all()  # finite in mean_field, -inf elsewhere
        return logits[..., :num_classes]

    logits, pull = jax.vjp(lambda x: predict(key(), x), fewer(longer, num_classes))
    actual, pull_padded = jax.vjp(padded, longer)
    np.testing.assert_allclose(actual, logits, rtol=1e-5, atol=1e-5)
    cotangent = jnp.cos(jnp.arange(logits.size)).reshape(logits.shape)
    (gradient,), (with_padding,) = pull(cotangent), pull_padded(cotangent)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        fewer(with_padding, num_classes),
        gradient,
    )
    np.testing.assert_array_equal(with_padding.loc[..., num_classes:], 0.0)
    if kind != "readout":
        np.testing.assert_array_equal(with_padding.scale_diag[..., num_classes:], 0.0)


def test_without_padding_no_class_is_masked():
    longer = latent("diagonal", k=4)
    np.testing.assert_array_equal(latent_lib.mask_padding_classes(longer, 4).loc, longer.loc)
