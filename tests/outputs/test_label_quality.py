import functools

import gaussians
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.outputs import confused_pairs, label_issues, label_quality
from heteroscedastic.outputs.label_quality import class_quality

softmax = jax.jit(
    functools.partial(predictive.softmax, None, points="sobol"), static_argnames="num_samples"
)
LABELS = np.array([0, 1, 2, 0])
LOG_PROBS = np.log([[0.7, 0.2, 0.1], [0.8, 0.15, 0.05], [0.3, 0.3, 0.4], [0.1, 0.6, 0.3]])


def test_labels_are_ranked_by_their_probability():
    issues = label_issues(LABELS, LOG_PROBS)
    np.testing.assert_allclose(issues.scores, -np.log([0.1, 0.15, 0.4, 0.7]))
    np.testing.assert_array_equal(issues.rows, [3, 1, 2, 0])
    np.testing.assert_array_equal(issues.labels, LABELS[issues.rows])


def test_the_suggestion_is_the_likeliest_other_class():
    issues = label_issues(LABELS, LOG_PROBS)
    np.testing.assert_array_equal(issues.suggestions[np.argsort(issues.rows)], [1, 0, 0, 1])


def test_the_label_itself_is_never_suggested():
    log_probs = np.full((3, 3), -np.inf)
    np.fill_diagonal(log_probs, 0.0)
    latent = LatentGaussian(jnp.asarray(log_probs))
    labels = np.arange(3)
    issues = label_issues(labels, log_probs)
    _, suggestions = label_quality.scores(latent, jnp.asarray(log_probs), jnp.asarray(labels))
    assert (issues.suggestions != issues.labels).all()
    assert (np.asarray(suggestions) != labels).all()


def test_a_constant_added_to_the_logits_of_an_example_changes_nothing():
    shifted = LOG_PROBS + np.array([[3.0], [-40.0], [0.5], [7.0]])
    for field, other in zip(label_issues(LABELS, LOG_PROBS), label_issues(LABELS, shifted)):
        np.testing.assert_allclose(field, other)


def test_with_a_latent_the_score_ignores_its_noise():
    latent = gaussians.latent("low_rank", batch=(50,), k=4)
    log_probs = np.asarray(softmax(latent, num_samples=64))
    labels = np.arange(50) % 4
    issues = label_issues(labels, log_probs, latent)
    expected = -special.log_softmax(np.asarray(latent.loc, float), axis=1)[np.arange(50), labels]
    np.testing.assert_allclose(issues.scores, expected[issues.rows], rtol=1e-5)
    assert not np.allclose(issues.scores, label_issues(labels, log_probs).scores)


def test_pairs_refuse_probabilities_and_take_logits():
    one = gaussians.latent("low_rank", batch=(30,), k=4)
    log_probs = np.asarray(softmax(one, num_samples=128))
    with pytest.raises(ValueError, match="are probabilities"):
        confused_pairs(one, "abcd", log_probs=np.exp(log_probs))
    expected = confused_pairs(one, "abcd", log_probs=log_probs)
    for pair, other in zip(confused_pairs(one, "abcd", log_probs=log_probs + 7), expected):
        assert pair[:2] == other[:2]
        assert pair[2:] == pytest.approx(other[2:], rel=1e-4)


def test_probabilities_are_refused_also_where_they_are_rounded_to_16_bits():
    logits = np.random.default_rng(0).normal(0, 3, (500, 10))
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        probs = jnp.asarray(special.softmax(logits, axis=1), dtype)
        with pytest.raises(ValueError, match="are probabilities"):
            label_issues(np.zeros(500, int), probs)


def test_an_impossible_label_comes_first():
    log_probs = np.log([[0.5, 0.5], [1.0, 1e-300]])
    log_probs[1, 1] = -np.inf
    assert label_issues(np.array([0, 1]), log_probs).rows[0] == 1


@pytest.mark.parametrize(
    ("labels", "log_probs", "message"),
    [
        (LABELS, np.exp(LOG_PROBS), "probabilities, as each row sums to 1"),
        (LABELS[:3], LOG_PROBS, "one for each row"),
        (LABELS + 2, LOG_PROBS, "row 1 is 3, but the classes of log_probs are 0 to 2"),
        (LABELS - 1, LOG_PROBS, "row 0 is -1"),
        (LABELS, np.where(LOG_PROBS < -2.5, np.nan, LOG_PROBS), "row 1 of log_probs"),
        (LABELS, np.full((4, 3), -np.inf), "one of them must be finite"),
        (LABELS, LOG_PROBS[:, :1], "two or more classes"),
        (LABELS.astype(float), LOG_PROBS, "must be integers"),
        (LABELS[:0], LOG_PROBS[:0], "at least one example"),
    ],
)
def test_invalid_outputs_are_named(labels, log_probs, message):
    with pytest.raises(ValueError, match=message):
        label_issues(labels, log_probs)


def test_a_latent_of_other_examples_is_an_error():
    latent = gaussians.latent("low_rank", batch=(5,), k=3)
    with pytest.raises(ValueError, match="same examples and classes"):
        label_issues(LABELS, LOG_PROBS, latent)


NAMES = ["cat", "dog", "car", "ship", "frog"]


def test_pairs_equal_their_definition():
    latent = gaussians.latent("low_rank", batch=(30,))
    log_probs = softmax(latent, num_samples=128)
    covariance = gaussians.covariance(latent)
    probs = np.exp(np.asarray(log_probs, np.float64))
    pairs = confused_pairs(latent, NAMES, num_pairs=10, log_probs=np.asarray(log_probs))
    assert len(pairs) == 10
    for pair in pairs:
        i, j = NAMES.index(pair.first), NAMES.index(pair.second)
        difference = covariance[:, i, i] + covariance[:, j, j] - 2 * covariance[:, i, j]
        assert pair.seen == pytest.approx(np.mean(probs[:, i] * probs[:, j] * difference), rel=1e-4)
        mean = covariance.mean(axis=0)
        assert pair.covariance == pytest.approx(mean[i, j], rel=1e-3, abs=1e-5)
        assert pair.correlation == pytest.approx(
            mean[i, j] / np.sqrt(mean[i, i] * mean[j, j]), rel=1e-3, abs=1e-5
        )
    assert [p.seen for p in pairs] == sorted((p.seen for p in pairs), reverse=True)


def test_log_probs_are_computed_if_they_are_not_given():
    latent = gaussians.latent("low_rank", batch=(30,))
    log_probs = np.asarray(softmax(latent, num_samples=128))
    given = confused_pairs(latent, NAMES, log_probs=log_probs)
    for pair, other in zip(confused_pairs(latent, NAMES), given, strict=True):
        assert pair[:2] == other[:2]
        assert pair[2:] == pytest.approx(other[2:], rel=1e-5)


def test_noise_common_to_all_classes_is_not_seen():
    latent = latent_lib.LatentGaussian(
        loc=jnp.zeros((3, 5)), factor_loadings=jnp.full((3, 5, 1), 2.0)
    )
    pair = confused_pairs(latent, NAMES)[0]
    assert pair.seen == pytest.approx(0, abs=1e-9)
    assert pair.covariance == pytest.approx(4)


def test_pairs_of_a_latent_without_noise_are_an_error():
    with pytest.raises(ValueError, match="no noise"):
        confused_pairs(latent_lib.LatentGaussian(loc=jnp.zeros((3, 5))), NAMES)
    with pytest.raises(ValueError, match="4 class names"):
        confused_pairs(latent_lib.LatentGaussian(loc=jnp.zeros((3, 5))), NAMES[:4])


@pytest.mark.parametrize(
    ("loc", "log_probs", "message"),
    [
        (np.full((3, 5), np.nan), None, "loc holds .inf or nan"),
        (np.zeros((0, 5)), None, "the latent is empty"),
        (np.zeros((3, 5)), np.zeros((6, 5)), r"log_probs has shape \(6, 5\), but must have that"),
        (np.zeros((3, 5)), np.zeros((1, 5)), r"log_probs has shape \(1, 5\), but must have that"),
    ],
)
def test_invalid_latents_and_probabilities_of_pairs_are_named(loc, log_probs, message):
    latent = latent_lib.LatentGaussian(loc=jnp.asarray(loc), scale_diag=jnp.ones(loc.shape))
    with pytest.raises(ValueError, match=message):
        confused_pairs(latent, NAMES, log_probs=log_probs)


@pytest.mark.filterwarnings("error")
def test_a_class_without_variance_has_no_correlation():
    scale = jnp.asarray([[0.0, 1.0, 1.0, 1.0, 1.0]] * 3)
    latent = latent_lib.LatentGaussian(loc=jnp.zeros((3, 5)), scale_diag=scale)
    assert {pair.correlation for pair in confused_pairs(latent, NAMES)} == {0.0}


def test_the_quality_of_a_class_is_the_mean_probability_of_its_labels():
    issues = label_issues(LABELS, LOG_PROBS)
    quality = class_quality(issues.labels, issues.scores, 4)
    np.testing.assert_allclose(quality, [(0.7 + 0.1) / 2, 0.15, 0.4, np.nan])
