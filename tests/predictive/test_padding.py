"""Padding classes have no effect."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
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
    mostly_extended(
        [
            *itertools.product(PREDICTIVES, ["low_rank", "parameter_efficient", "readout"]),
            ("softmax_exact", "diagonal"),
        ],
        [  # every kind; test_exact.py has padding classes of the exact form
            ("sobol", "readout"),
            ("independent", "low_rank"),
            ("independent", "parameter_efficient"),
            ("shortlist", "readout"),
            ("sigmoid_sampled", "readout"),
            *itertools.product(["sigmoid", "taylor"], ["low_rank", "parameter_efficient"]),
            ("taylor", "readout"),
            ("mean_field", "readout"),
        ],
    ),
)
def test_padding_classes_have_no_probability_and_no_gradient(name, kind):
    predict = (PREDICTIVES | {"softmax_exact": predictive.softmax_exact})[name]
    num_classes, longer = 5, latent(kind, batch=(2,), k=8)
    if longer.readout is not None:  # padded kernels are zero
        longer = longer._replace(readout=longer.readout.at[:, num_classes:].set(0.0))

    cotangent = jnp.cos(jnp.arange(2.0 * num_classes)).reshape(2, num_classes)

    @functools.partial(jax.jit, static_argnums=0)
    def logits_and_gradient(mask, x):
        def classes(x):
            logits = predict(key(), mask(x))
            return logits[..., :num_classes], logits

        _, pull, logits = jax.vjp(classes, x, has_aux=True)
        return logits, pull(cotangent)[0]

    def mask(x):
        return latent_lib.mask_padding_classes(x, num_classes)

    logits, gradient = logits_and_gradient(lambda x: x, fewer(longer, num_classes))
    actual, with_padding = logits_and_gradient(mask, longer)
    assert (actual[..., num_classes:] < -1e6).all()  # finite in mean_field, -inf elsewhere
    np.testing.assert_allclose(actual[..., :num_classes], logits, rtol=1e-5, atol=1e-5)
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
