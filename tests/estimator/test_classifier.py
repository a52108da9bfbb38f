import functools
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from scipy import sparse, special

pytest.importorskip("sklearn")
from sklearn import datasets, linear_model, multioutput
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import RepeatedKFold, ShuffleSplit, StratifiedKFold, TimeSeriesSplit
from sklearn.utils.estimator_checks import check_estimator

from heteroscedastic import files, predictive
from heteroscedastic import latent as latent_lib
from heteroscedastic.calibration import scores
from heteroscedastic.data import resident
from heteroscedastic.estimator import HeteroscedasticClassifier, checks, programs
from heteroscedastic.models import heads
from heteroscedastic.outputs import label_quality

NUM_TRAIN = 564  # of which 508 train: one chunk, so that most fits share their programs
SOFTMAX = jax.jit(functools.partial(predictive.softmax, None, num_samples=16, points="sobol"))
WEIGHTS_REASON = "minibatches and held-out examples differ between weights and repeated examples"


@pytest.fixture(scope="module")
def digits():
    """Digits with three confused pairs of classes, and the clean labels."""
    X, clean = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    partner = np.arange(10)
    for a, b in ((0, 4), (2, 8), (6, 9)):
        partner[[a, b]] = b, a
    labels = np.where(rng.random(len(clean)) < 0.4, partner[clean], clean)
    return X, labels, clean


@pytest.fixture(scope="module")
def fitted(digits):
    X, labels, _ = digits
    model = HeteroscedasticClassifier(
        temperature=1.0, num_samples=16, max_iter=30, learning_rate=0.01, random_state=0
    )
    return model.fit(X[:NUM_TRAIN], labels[:NUM_TRAIN])


def test_scikit_learns_contract():
    results = check_estimator(
        HeteroscedasticClassifier(
            temperature=1.0, num_samples=4, max_iter=6, learning_rate=0.1, random_state=0
        ),
        expected_failed_checks={
            "check_sample_weight_equivalence_on_dense_data": WEIGHTS_REASON,
            "check_sample_weights_equivalence": WEIGHTS_REASON,
        },
        on_skip=None,
    )
    assert {r["status"] for r in results} <= {"passed", "skipped", "xfail"}


def test_it_finds_the_clean_classes(digits, fitted):
    X, labels, clean = digits
    plain = linear_model.LogisticRegression(max_iter=200)
    plain.fit(X[:NUM_TRAIN] / 16, labels[:NUM_TRAIN])
    accuracy = np.mean(fitted.predict(X[1200:]) == clean[1200:])
    assert accuracy > np.mean(plain.predict(X[1200:] / 16) == clean[1200:]) - 0.02
    assert accuracy > 0.8


def test_probabilities_follow_from_the_latent(digits, fitted):
    X, _, _ = digits
    latent = fitted.predict_latent(X[:50])
    log_probs = SOFTMAX(latent)
    probs = fitted.predict_proba(X[:50])
    np.testing.assert_allclose(np.log(probs), log_probs, atol=2e-4)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    np.testing.assert_allclose(fitted.predict_log_proba(X[:50]), np.log(probs), atol=1e-9)


def test_the_covariance_is_of_the_utilities_before_the_temperature(digits):
    X, labels, _ = digits
    model = HeteroscedasticClassifier(temperature=2.0, num_samples=16, max_iter=2, random_state=0)
    model.fit(X[:300], labels[:300])
    latent = model.predict_latent(X[:5])
    loadings = np.asarray(latent.factor_loadings)
    tempered = loadings @ loadings.transpose(0, 2, 1)
    tempered[:, np.arange(10), np.arange(10)] += np.square(latent.scale_diag)
    np.testing.assert_allclose(model.noise_covariance(X[:5]), 4 * tempered, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.predict_log_proba(X[:5]), SOFTMAX(latent), atol=2e-4)
    expected = label_quality.label_issues(
        labels[:300], model.predict_log_proba(X[:300]), model.predict_latent(X[:300])
    )
    issues = model.label_issues(X[:300], labels[:300], cv=None)
    jax.tree.map(np.testing.assert_array_equal, issues, expected)


def test_a_prediction_depends_on_its_features_alone(digits, fitted):
    X, _, _ = digits
    whole = fitted.predict_proba(X[:700])
    np.testing.assert_allclose(fitted.predict_proba(X[600:601]), whole[600:601], atol=1e-6)


@pytest.mark.parametrize(
    "head", mostly_extended([heads.LowRank, heads.ParameterEfficient], [heads.LowRank])
)
def test_padding_changes_no_prediction(digits, head):
    """The classes and features of the data alone, in a model without padding."""
    X, labels, _ = digits
    X = X[:, :60]
    model = HeteroscedasticClassifier(
        head.__name__, temperature=1.0, num_samples=16, max_iter=3, random_state=0
    )
    model.fit(X[:400], labels[:400])
    sizes = {64: 60, 16: 10}  # of features and of classes: padded -> own
    params = jax.tree.map(
        lambda x: np.asarray(x)[tuple(slice(sizes.get(n)) for n in x.shape)],
        model._state.params["head"],
    )

    @jax.jit
    def without_padding(params, features):
        latent = head(10, num_factors=6).apply({"params": params}, features)
        return SOFTMAX(latent), latent_lib.covariance(latent)

    features = np.float32((X - model.mean_) / model.scale_)
    log_probs, covariance = without_padding(*jax.tree.map(jnp.asarray, (params, features)))
    np.testing.assert_allclose(model.predict_log_proba(X), log_probs, atol=1e-4)
    np.testing.assert_allclose(model.noise_covariance(X), covariance, rtol=1e-4, atol=1e-5)


def test_padding_of_the_last_batch_does_not_train(digits):
    X, labels, _ = digits
    X, labels = X[:300], labels[:300]
    model = HeteroscedasticClassifier(
        "Deterministic", validation_fraction=0, max_iter=20, random_state=0
    )
    whole, padded = (
        clone(model).set_params(batch_size=size).fit(X, labels).predict_log_proba(X)
        for size in (300, 400)
    )
    np.testing.assert_allclose(padded, whole, atol=1e-4)


def test_fits_of_similar_size_share_their_programs(digits):
    X, labels, _ = digits
    model = HeteroscedasticClassifier(temperature=1.0, num_samples=16, max_iter=1, random_state=0)
    clone(model).fit(X[:300, :60], labels[:300])
    number = programs._epoch._cache_size()
    clone(model).fit(X[:400], labels[:400])
    assert programs._epoch._cache_size() == number


def test_a_batch_is_no_larger_than_the_padded_examples():
    """A batch of 10^15 examples fits in no memory."""
    X, y = datasets.make_blobs(100, centers=3, random_state=0)
    model = HeteroscedasticClassifier("Deterministic", max_iter=2, random_state=0)
    huge, padded = (
        clone(model).set_params(batch_size=size).fit(X, y).predict_proba(X)
        for size in (10**15, 512)
    )
    np.testing.assert_array_equal(huge, padded)


def test_hidden_layers_separate_what_a_head_cannot():
    X = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    y = (X > 0).sum(axis=1) % 2
    plain = HeteroscedasticClassifier("Deterministic", random_state=0)
    hidden = clone(plain).set_params(hidden_layer_sizes=(16,))
    accuracies = [np.mean(model.fit(X, y).predict(X) == y) for model in (plain, hidden)]
    assert accuracies[0] < 0.7 < 0.9 < accuracies[1]


def test_an_example_of_weight_0_is_absent(digits):
    X, labels, _ = digits
    X, labels = X[:400], labels[:400]
    model = HeteroscedasticClassifier(temperature=1.0, num_samples=16, max_iter=3, random_state=0)
    more, weights = np.concatenate([X, X + 5]), np.repeat([1.0, 0.0], len(X))
    absent = clone(model).fit(more, np.tile(labels, 2), weights)
    np.testing.assert_array_equal(
        clone(model).fit(X, labels).predict_proba(X), absent.predict_proba(X)
    )
    partial = clone(model).partial_fit(X, labels, np.arange(10))
    absent = clone(model).partial_fit(more, np.tile(labels, 2), np.arange(10), weights)
    np.testing.assert_array_equal(partial.predict_proba(X), absent.predict_proba(X))


def test_weights_multiply_the_loss():
    """Where one class weighs nine times as much, its share of the probability is 9 / 10."""
    X, y = np.zeros((400, 2)), np.arange(400) % 2
    model = HeteroscedasticClassifier(
        head="Deterministic", validation_fraction=0, weight_decay=0, random_state=0
    )
    probs = model.fit(X, y, np.where(y == 1, 9.0, 1.0)).predict_proba(X[:1])
    np.testing.assert_allclose(probs, [[0.1, 0.9]], atol=0.01)


def test_weight_decay_multiplies_the_weights():
    """Features of 0 give them no gradient, and unit features show them."""
    X, y = np.zeros((400, 2)), np.arange(400) % 2
    model = HeteroscedasticClassifier(
        "Deterministic", weight_decay=1.0, batch_size=400, learning_rate=0.1, random_state=0
    )
    before, after = (
        model.predict_latent(np.eye(2)).loc - model.predict_latent(X[:1]).loc
        for model in (model.partial_fit(X, y, [0, 1]) for _ in range(2))
    )
    np.testing.assert_allclose(after, 0.9 * before, rtol=1e-4)


def test_each_step_has_its_own_noise():
    """Examples that are equal, and steps of no length: only the noise changes the loss."""
    X, y = np.zeros((300, 64)), np.zeros(300, int)
    model = HeteroscedasticClassifier(
        temperature=1.0, num_samples=16, learning_rate=1e-12, random_state=0
    )
    for _ in range(2):
        model.partial_fit(X, y, classes=range(10))
    assert abs(model.loss_curve_[0] - model.loss_curve_[1]) > 1e-4


@pytest.mark.parametrize("factor", [1e-42, 1e39, 1e308])
def test_a_common_factor_of_the_weights_does_not_matter(factor):
    X, y = datasets.make_blobs(200, centers=3, cluster_std=5.0, random_state=0)
    weights = np.random.default_rng(0).integers(1, 5, len(X))
    model = HeteroscedasticClassifier("Deterministic", max_iter=2, random_state=0)
    plain, scaled = (clone(model).fit(X, y, w) for w in (weights, weights / 4 * factor))
    np.testing.assert_allclose(scaled.loss_curve_, plain.loss_curve_, rtol=1e-5)
    np.testing.assert_allclose(scaled.predict_proba(X), plain.predict_proba(X), atol=1e-5)


def test_weights_that_float32_takes_for_zero_are_no_examples():
    X, y = datasets.make_blobs(40, centers=2, random_state=0)
    weights = np.where(y == 0, 1.0, 1e-60)
    model = HeteroscedasticClassifier("Deterministic", max_iter=2, random_state=0)
    with pytest.raises(ValueError, match="of one class"):
        model.fit(X, y, weights)


@pytest.mark.parametrize("dtype", [np.int64, object])
def test_large_integers_are_standardised_without_rounding(dtype):
    """In float32 these numbers are multiples of 4."""
    X = 2**25 + np.random.default_rng(0).integers(0, 20, (200, 3))
    y = X[:, 0] % 2
    model = HeteroscedasticClassifier("Deterministic", max_iter=2, random_state=0)
    ours, exact = (clone(model).fit(x, y).predict_proba(x) for x in (X.astype(dtype), X * 1.0))
    np.testing.assert_array_equal(ours, exact)


def test_features_are_standardised_if_and_only_if_the_setting_says_so():
    X, y = datasets.make_blobs(200, centers=3, random_state=0)
    model = HeteroscedasticClassifier("Deterministic", max_iter=2, random_state=0).fit(X, y)
    standardised = (X - model.mean_) / model.scale_
    np.testing.assert_allclose(standardised.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(standardised.std(axis=0), 1)
    raw = clone(model).set_params(standardize=False).fit(X, y)
    np.testing.assert_array_equal([raw.mean_, raw.scale_], [[0] * 2, [1] * 2])
    np.testing.assert_allclose(
        raw.fit(standardised, y).predict_proba(standardised), model.predict_proba(X), atol=1e-5
    )


def test_standardized_features_may_be_rescaled(digits):
    X, labels, _ = digits
    X = X[:, X[:400].std(axis=0) > 0]  # a constant feature is not rescaled
    model = HeteroscedasticClassifier(temperature=1.0, num_samples=16, max_iter=3, random_state=0)
    probs = clone(model).fit(X[:400], labels[:400]).predict_proba(X)
    rescaled = 100 * X - 7
    other = clone(model).fit(rescaled[:400], labels[:400]).predict_proba(rescaled)
    np.testing.assert_allclose(probs, other, atol=1e-4)


def test_the_plain_head_reaches_logistic_regression():
    """Both minimise the same loss; with little decay and many epochs they agree."""
    X, y = datasets.make_blobs(600, centers=4, n_features=5, cluster_std=8.0, random_state=0)
    ours = HeteroscedasticClassifier(
        head="Deterministic",
        validation_fraction=0,
        max_iter=500,
        batch_size=600,
        learning_rate=0.1,
        weight_decay=0,
        random_state=0,
    ).fit(X, y)
    theirs = linear_model.LogisticRegression(C=1e6, max_iter=5000).fit(X, y)
    losses = [-scores.log_likelihood(np.log(m.predict_proba(X)), y) for m in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_early_stopping_keeps_the_best_epoch(digits):
    """The weighted loss of its predictions on the held-out examples is the smallest."""
    X, labels, _ = digits
    weights = np.random.default_rng(0).integers(1, 5, 500)
    model = HeteroscedasticClassifier(
        temperature=2.0,
        num_samples=16,
        max_iter=60,
        n_iter_no_change=3,
        learning_rate=0.1,
        random_state=0,
    ).fit(X[:500], labels[:500], weights)
    curve = model.validation_loss_curve_
    assert model.n_iter_ == len(curve) == np.argmin(curve) + 4 < 60
    assert model.best_validation_loss_ == min(curve)
    held_out = resident.order(model._seed(), 2**31, 500)[:50]
    losses = -model.predict_log_proba(X[held_out])[np.arange(50), labels[held_out]]
    mean = np.average(losses, weights=weights[held_out])
    assert mean == pytest.approx(model.best_validation_loss_, rel=1e-4)
    errors = model.predict_proba(X[held_out]) - np.eye(10)[labels[held_out]]
    brier = np.average(np.sum(errors**2, axis=1), weights=weights[held_out])
    assert brier == pytest.approx(model.validation_brier_, rel=1e-4)


def test_a_held_out_loss_of_nan_is_no_improvement(monkeypatch):
    X, y = datasets.make_blobs(100, centers=3, random_state=0)
    model = HeteroscedasticClassifier("Deterministic", temperature=1.0, max_iter=2, random_state=0)
    losses, run_epoch = iter([0.7, np.nan, np.nan, np.nan]), programs.run_epoch
    monkeypatch.setattr(
        programs, "run_epoch", lambda *args: run_epoch(*args)._replace(held_out_loss=next(losses))
    )
    assert model.fit(X, y).best_validation_loss_ == 0.7
    with pytest.raises(ValueError, match="the loss of the held-out examples is nan"):
        model.fit(X, y)


def test_without_held_out_examples_the_temperature_is_1_and_all_epochs_are_run(digits):
    X, labels, _ = digits
    model = HeteroscedasticClassifier(
        num_samples=16, max_iter=2, n_iter_no_change=1, random_state=0
    )
    model.fit(X[:90], labels[:90])
    assert (model.temperature_, model.n_iter_) == (1.0, 2)
    assert np.isnan(model.validation_loss_curve_).all()
    assert np.isfinite(model.fit(X[:100], labels[:100]).validation_loss_curve_).all()


@pytest.mark.parametrize("head", ["LowRank", "Deterministic"])
def test_the_temperature_is_searched_on_held_out_examples(digits, head):
    X, labels, _ = digits
    settings = dict(head=head, max_iter=4, num_samples=16, random_state=0)
    search = HeteroscedasticClassifier(**settings).fit(X[:400], labels[:400])
    losses = {}
    for temperature in (0.25, 0.5, 1.0, 2.0, 4.0):
        fit = HeteroscedasticClassifier(temperature=temperature, **settings)
        losses[temperature] = fit.fit(X[:400], labels[:400]).best_validation_loss_
    assert search.temperature_ == min(losses, key=losses.get)
    assert search.best_validation_loss_ == min(losses.values())


def test_label_issues_are_the_planted_errors(digits):
    X, labels, clean = digits
    X, labels, clean = X[:840], labels[:840], clean[:840]
    model = HeteroscedasticClassifier(
        temperature=1.0, num_samples=16, max_iter=20, learning_rate=0.03, random_state=0
    )
    issues = model.label_issues(X, labels, cv=3)
    wrong = labels != clean
    average_precision = scores.average_precision(issues.scores, wrong[issues.rows])
    assert average_precision > 2 * wrong.mean()
    np.testing.assert_array_equal(issues.labels, labels[issues.rows])
    found = wrong[issues.rows][:100]
    assert np.mean(issues.suggestions[:100][found] == clean[issues.rows][:100][found]) > 0.6


@pytest.mark.parametrize(
    "cv", [ShuffleSplit(2, random_state=0), TimeSeriesSplit(3), RepeatedKFold(n_splits=2)]
)
def test_the_test_folds_are_a_partition_of_the_examples(digits, cv):
    X, labels, _ = digits
    with pytest.raises(ValueError, match="hold each example exactly once"):
        HeteroscedasticClassifier("Deterministic").label_issues(X[:60], labels[:60], cv=cv)


@pytest.mark.filterwarnings("ignore:The least populated class")
@pytest.mark.parametrize("num_other_classes", [1, 2])
def test_a_label_whose_class_the_other_folds_lack_scores_inf(digits, num_other_classes):
    X, labels, _ = digits
    labels = np.where(np.arange(300) == 7, 10, labels[:300] % num_other_classes)
    model = HeteroscedasticClassifier("Deterministic", max_iter=1, random_state=0)
    issues = model.label_issues(X[:300], labels, cv=2)
    assert issues.rows[0] == 7
    assert issues.suggestions[0] < 10
    assert np.isinf(issues.scores).tolist() == [True] + [False] * 299


def test_confused_pairs_are_the_planted_ones(fitted):
    pairs = fitted.confused_pairs(3)
    assert {frozenset((int(p.first), int(p.second))) for p in pairs} == {
        frozenset(pair) for pair in ((0, 4), (2, 8), (6, 9))
    }


def test_confused_pairs_are_those_of_the_given_examples(digits, fitted):
    X, _, clean = digits
    for planted in ((0, 4), (2, 8), (6, 9)):
        (pair,) = fitted.confused_pairs(1, X[np.isin(clean, planted)])
        assert {int(pair.first), int(pair.second)} == set(planted)


def test_strings_are_classes(digits):
    X, labels, _ = digits
    names = np.array([f"digit {i}" for i in range(10)], object)
    model = HeteroscedasticClassifier(temperature=1.0, num_samples=16, max_iter=2, random_state=0)
    by_name = clone(model).fit(X[:300], names[labels[:300]])
    by_number = clone(model).fit(X[:300], labels[:300])
    np.testing.assert_array_equal(by_name.predict(X), names[by_number.predict(X)])


def test_label_issues_need_no_memory_for_the_noise_of_all_examples(digits, fitted, monkeypatch):
    X, labels, _ = digits
    log_probs, latent = fitted._predictions(X[:600])
    expected = label_quality.label_issues(
        labels[:600], log_probs, latent_lib.temper(latent, fitted.temperature_)
    )
    monkeypatch.setattr(programs, "predictions", None)
    found = fitted.label_issues(X[:600], labels[:600], cv=None)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-6)


def test_lists_of_labels_are_about_as_wide_as_the_longest():
    indicators = np.zeros((6, 1000), int)
    indicators[0, [2, 5, 999]] = 1
    _, lists = checks.encoded_labels(indicators)
    assert lists.shape == (6, 4)
    assert lists[0].tolist() == [2, 5, 999, -1]
    assert (lists[1:] == -1).all()


def test_indicator_matrices_make_it_multilabel():
    X, y = datasets.make_multilabel_classification(600, n_classes=6, n_labels=2, random_state=0)
    model = HeteroscedasticClassifier(
        temperature=1.0, num_samples=16, max_iter=30, random_state=0
    ).fit(X, y)
    probs = model.predict_proba(X)
    latent = model.predict_latent(X)
    np.testing.assert_allclose(
        probs, special.expit(np.float64(jax.jit(predictive.sigmoid)(None, latent))), atol=1e-5
    )
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(probs), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X), probs > 0.5)
    held_out = resident.order(model._seed(), 2**31, 600)[:60]
    brier = np.mean(np.sum((probs - y)[held_out] ** 2, axis=1))
    assert brier == pytest.approx(model.validation_brier_, rel=1e-4)
    plain = multioutput.MultiOutputClassifier(linear_model.LogisticRegression()).fit(X, y)
    assert np.mean(model.predict(X) == y) > np.mean(plain.predict(X) == y) - 0.02


def test_indicator_matrices_may_be_sparse_and_have_fewer_rows_than_classes():
    X, y = datasets.make_multilabel_classification(5, n_classes=6, random_state=0)
    model = HeteroscedasticClassifier("Deterministic", max_iter=2, random_state=0)
    dense, *others = (
        fit.predict_proba(X)
        for fit in (
            clone(model).fit(X, y),
            clone(model).fit(X, sparse.csr_matrix(y)),
            clone(model).fit(X, sparse.csr_array(y)),
        )
    )
    assert dense.shape == (5, 6)
    for other in others:
        np.testing.assert_array_equal(other, dense)
    partial = (clone(model).partial_fit(X, labels) for labels in (y, sparse.csr_matrix(y)))
    np.testing.assert_array_equal(*(fit.predict_proba(X) for fit in partial))


def test_a_column_of_labels_is_one_label_per_example(digits):
    X, labels, _ = digits
    X, labels = X[:60], labels[:60]
    model = HeteroscedasticClassifier("Deterministic", max_iter=1, random_state=0)
    plain = clone(model).partial_fit(X, labels, classes=np.arange(10))
    with pytest.warns(DataConversionWarning):
        column = clone(model).partial_fit(X, labels[:, None], classes=np.arange(10))
    with pytest.warns(DataConversionWarning):
        issues = plain.label_issues(X, labels[:, None], cv=None)
    np.testing.assert_array_equal(column.predict_proba(X), plain.predict_proba(X))
    np.testing.assert_array_equal(issues.labels, labels[issues.rows])


FAILURES = {
    "weights": lambda X, y: (dict(), (X, y, -np.ones(len(y)))),
    "classes": lambda X, y: (dict(), (X[:, :3], np.zeros(len(y)))),
    "training": lambda X, y: (dict(learning_rate=1e30), (1000 * X + 5, np.array(list("xyz"))[y])),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(failure):
    X, y = datasets.make_blobs(60, centers=3, n_features=4, random_state=0)
    settings, arguments = FAILURES[failure](X, y)
    model = HeteroscedasticClassifier("Deterministic", max_iter=2, random_state=0)
    unfitted = clone(model).set_params(**settings)
    with pytest.raises(ValueError):  # noqa: PT011
        unfitted.fit(*arguments)
    with pytest.raises(NotFittedError):
        unfitted.predict(X)
    model.fit(X, y)
    before, probs = dict(vars(model)), model.predict_proba(X)
    with pytest.raises(ValueError):  # noqa: PT011
        model.set_params(**settings).fit(*arguments)
    assert vars(model).keys() == before.keys()
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])
    np.testing.assert_array_equal(model.predict_proba(X), probs)


def test_a_first_partial_fit_that_fails_does_not_decide_the_next(digits):
    X, labels, _ = digits
    X, labels = X[:60], labels[:60]
    plain = HeteroscedasticClassifier("Deterministic", random_state=0)
    expected = clone(plain).partial_fit(X, labels, classes=np.arange(10)).predict_proba(X)
    model = clone(plain)
    with pytest.raises(ValueError, match="unknown class"):
        model.partial_fit(X[:, :5], labels + 1, classes=np.arange(5))
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.partial_fit(X, labels, classes=np.arange(10))
    np.testing.assert_array_equal(model.predict_proba(X), expected)


def test_partial_fit_approaches_fit(digits):
    X, labels, clean = digits
    model = HeteroscedasticClassifier(temperature=1.0, num_samples=16, random_state=0)
    accuracies = []
    for _ in range(8):
        for start in range(0, 1200, 300):
            rows = slice(start, start + 300)
            model.partial_fit(X[rows], labels[rows], classes=np.arange(10))
        accuracies.append(np.mean(model.predict(X[1200:]) == clean[1200:]))
    assert accuracies[-1] > 0.75 > accuracies[0]
    assert model.n_iter_ == 32


def test_partial_fit_continues_from_the_weights_of_the_fit(digits, fitted):
    X, labels, _ = digits
    model = pickle.loads(pickle.dumps(fitted)).set_params(learning_rate=1e-9)
    model.partial_fit(X[:300], labels[:300])
    np.testing.assert_allclose(model.predict_log_proba(X), fitted.predict_log_proba(X), atol=1e-4)
    model.set_params(learning_rate=1e-2).partial_fit(X[:300], labels[:300])
    assert np.abs(model.predict_proba(X) - fitted.predict_proba(X)).max() > 0.1
    assert model.n_iter_ == fitted.n_iter_ + 2


@pytest.mark.parametrize(
    "head",
    mostly_extended(
        ["LowRank", "ParameterEfficient", "Diagonal", "Deterministic"],
        ["LowRank", "ParameterEfficient", "Deterministic"],
    ),
)
def test_saved_and_pickled_estimators_predict_the_same(digits, head, tmp_path):
    X, labels, _ = digits
    names = np.array([f"digit {i}" for i in range(10)], object)[labels]
    model = HeteroscedasticClassifier(
        head=head, temperature=0.5, num_samples=16, max_iter=2, random_state=0
    )
    model.fit(X[:300], names[:300])
    model.save(tmp_path / "model.npz")
    for copy in (
        HeteroscedasticClassifier.load(tmp_path / "model.npz"),
        pickle.loads(pickle.dumps(model)),
    ):
        assert copy.get_params() == model.get_params()
        np.testing.assert_array_equal(copy.predict(X[:50]), model.predict(X[:50]))
        np.testing.assert_array_equal(copy.predict_proba(X[:50]), model.predict_proba(X[:50]))
        np.testing.assert_array_equal(copy.noise_covariance(X[:3]), model.noise_covariance(X[:3]))


def test_the_generalized_cross_entropy_is_that_of_the_predictions(digits):
    """In an epoch of steps of no length, against NumPy."""
    X, labels, _ = digits
    X, labels = X[:300], labels[:300]
    settings = dict(learning_rate=1e-12, weight_decay=0.0, random_state=0)
    for loss, expected in (
        ("cross_entropy", lambda p: -np.log(p)),
        ("generalized_cross_entropy", lambda p: (1 - p**0.7) / 0.7),
    ):
        model = HeteroscedasticClassifier("Deterministic", loss=loss, **settings).partial_fit(
            X, labels, classes=np.arange(10)
        )
        p = model.predict_proba(X)[np.arange(300), labels]
        assert model.loss_curve_[0] == pytest.approx(np.mean(expected(p)), rel=1e-5)
    indicators = np.eye(10, dtype=int)[labels]
    with pytest.raises(ValueError, match="requires one label per example, but y is an indicator"):
        model.fit(X, indicators)
    with pytest.raises(ValueError, match="use loss='cross_entropy'"):
        clone(model).partial_fit(X, indicators, classes=np.arange(10))


def test_with_wrong_labels_the_generalized_cross_entropy_predicts_clean_ones_better(digits):
    X, _, clean = digits
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(len(clean)) < 0.4, rng.integers(10, size=len(clean)), clean)
    loss = {}
    for name in ("cross_entropy", "generalized_cross_entropy"):
        model = HeteroscedasticClassifier(
            "Deterministic", loss=name, temperature=1.0, max_iter=20, random_state=0
        ).fit(X[:NUM_TRAIN], labels[:NUM_TRAIN])
        loss[name] = -scores.log_likelihood(model.predict_log_proba(X[600:]), clean[600:])
        assert model.best_validation_loss_ == min(model.validation_loss_curve_)
    assert loss["generalized_cross_entropy"] < 0.8 * loss["cross_entropy"]


def test_a_file_of_a_version_without_the_setting_has_the_cross_entropy(digits, tmp_path):
    X, labels, _ = digits
    model = HeteroscedasticClassifier("Deterministic", max_iter=1, random_state=0)
    model.fit(X[:300], labels[:300]).save(tmp_path / "model.npz")
    arrays = files.read_arrays(tmp_path / "model.npz")
    description = json.loads(str(arrays["description"]))
    del description["settings"]["loss"], description["spec"]["loss"]
    del description["validation_brier_"]
    arrays["description"] = np.array(json.dumps(description))
    files.write_arrays(tmp_path / "old.npz", arrays)
    old = HeteroscedasticClassifier.load(tmp_path / "old.npz")
    assert old.loss == "cross_entropy"
    assert np.isnan(old.validation_brier_)
    np.testing.assert_array_equal(old.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("sizes", [4, np.int64(4), np.array([4]), [4]])
def test_a_number_of_units_is_one_hidden_layer(sizes, tmp_path):
    X, y = datasets.make_blobs(60, centers=3, random_state=0)
    model = HeteroscedasticClassifier(
        "Deterministic", hidden_layer_sizes=(4,), max_iter=1, random_state=0
    )
    number = clone(model).set_params(hidden_layer_sizes=sizes).fit(X, y)
    number.save(tmp_path / "model.npz")
    expected = model.fit(X, y).predict_proba(X)
    for fit in (number, HeteroscedasticClassifier.load(tmp_path / "model.npz")):
        np.testing.assert_array_equal(fit.predict_proba(X), expected)


def test_files_that_are_not_estimators_are_refused(fitted, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.npz does not exist"):
        HeteroscedasticClassifier.load(tmp_path / "absent.npz")
    np.savez(tmp_path / "foreign.npz", x=np.zeros(3))
    fitted.save(tmp_path / "model.npz")
    content = (tmp_path / "model.npz").read_bytes()
    (tmp_path / "truncated.npz").write_bytes(content[: len(content) // 2])
    for name in ("foreign", "truncated"):
        with pytest.raises(
            ValueError, match="not a saved HeteroscedasticClassifier, or is damaged"
        ):
            HeteroscedasticClassifier.load(tmp_path / f"{name}.npz")


def nan_features(X, y):
    X = X.copy()
    X[3, 2] = np.nan
    return X, y, None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (nan_features, "contains NaN"),
        (lambda X, y: (np.where(X > 15, np.inf, X), y, None), "contains infinity"),
        (lambda X, y: (X[:, :, None], y, None), "dim 3"),
        (lambda X, y: (X, np.zeros(len(y), int), None), "y has one class, 0"),
        (lambda X, y: (X, y, y == 1), "sample_weight > 0 are of one class, 1"),
        (lambda X, y: (X * 1e300, y, None), "of X reaches .*e\\+30[01].*divide the features"),
        (lambda X, y: (X, y + 0.5, None), "Unknown label type"),
        (lambda X, y: (X, y, np.zeros(len(y))), "sums to zero"),
        (lambda X, y: (X, y, -np.ones(len(y))), "not negative"),
        (lambda X, y: (X, y, np.ones(3)), "expected"),
    ],
)
def test_bad_data_is_named(digits, change, message):
    X, labels, _ = digits
    with pytest.raises(ValueError, match=message):
        HeteroscedasticClassifier().fit(*change(X[:50], labels[:50]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(head="Lowrank"), "choose one of Deterministic"),
        (dict(num_factors=0), "num_factors is 0"),
        (dict(loss="focal"), "loss is 'focal'; choose one of cross_entropy, generalized"),
        (dict(temperature="learned"), "temperature is 'learned'"),
        (dict(temperature=-1), "temperature is -1"),
        (dict(hidden_layer_sizes=(0,)), "hidden_layer_sizes"),
        (dict(num_samples=100), "power of two"),
        (dict(validation_fraction=1.0), "validation_fraction is 1.0"),
        (dict(validation_fraction=0.995), "0.995 of 50 examples leaves none to train on"),
        (dict(max_iter=0), "max_iter is 0"),
        (dict(learning_rate=0), "learning_rate is 0"),
        (dict(weight_decay=None), "weight_decay is None; it must be"),
        (dict(weight_decay=-1), "weight_decay is -1; it must be"),
    ],
)
def test_bad_settings_are_named(digits, settings, message):
    X, labels, _ = digits
    with pytest.raises(ValueError, match=message):
        HeteroscedasticClassifier(**settings).fit(X[:50], labels[:50])


def test_bad_calls_of_a_fitted_estimator_are_named(digits, fitted):
    X, labels, _ = digits
    with pytest.raises(ValueError, match="64 features"):
        fitted.predict(X[:, :10])
    with pytest.raises(ValueError, match="divide the features"):
        fitted.predict(X * 1e300)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.label_issues(X, labels[:50], cv=None)
    with pytest.raises(ValueError, match="cross-validation object"):
        fitted.label_issues(X, labels, cv="folds")
    with pytest.raises(ValueError, match="unknown class 10"):
        fitted.label_issues(X[:50], labels[:50] + 2, cv=None)
    with pytest.raises(ValueError, match="unknown class 10"):
        clone(fitted).partial_fit(X[:50], labels[:50] + 2, classes=range(10))
    with pytest.raises(ValueError, match=f"unknown class '{labels[0]}'"):  # a text is no number
        clone(fitted).partial_fit(X[:50], labels[:50].astype(str), classes=range(20))
    named = np.array([f"class {y}" for y in labels[:50]], object)
    with pytest.raises(ValueError, match=f"unknown class 'class {labels[0]}'; the classes of the"):
        fitted.label_issues(X[:50], named, cv=None)
    for names in (list("abcdefghij"), [[0, 1]] * 10):
        with pytest.raises(ValueError, match="columns, 0 to 9; omit them"):
            clone(fitted).partial_fit(X[:50], np.eye(10, dtype=int)[labels[:50]], classes=names)
    with pytest.raises(ValueError, match=r"with the values \[1, 2\]; pass 1 for the classes"):
        clone(fitted).fit(X[:50], np.eye(10, dtype=int)[labels[:50]] + 1)
    with pytest.raises(ValueError, match="classes must be passed"):
        clone(fitted).partial_fit(X[:50], labels[:50])
    plain = HeteroscedasticClassifier(head="Deterministic", max_iter=1).fit(X[:50], labels[:50])
    with pytest.raises(ValueError, match="no noise"):
        plain.confused_pairs()


def test_a_splitter_gives_the_folds(digits):
    """Of two folds, each label is scored by the fit to the other one."""
    X, labels, _ = digits
    X, labels = X[:400], labels[:400]
    model = HeteroscedasticClassifier("Deterministic", temperature=1.0, max_iter=2, random_state=0)
    folds = StratifiedKFold(2, shuffle=True, random_state=7)
    issues = model.label_issues(X, labels, cv=folds)
    for train, test in folds.split(X, labels):
        log_probs = clone(model).fit(X[train], labels[train]).predict_log_proba(X[test])
        expected = -log_probs[np.arange(len(test)), labels[test]]
        found = dict(zip(issues.rows, issues.scores))
        np.testing.assert_allclose([found[i] for i in test], expected, rtol=1e-4, atol=1e-5)
    fitted = clone(model).fit(X, labels).set_params(temperature=4.0)  # the fit's one is 1
    jax.tree.map(np.testing.assert_array_equal, fitted.label_issues(X, labels, cv=folds), issues)
