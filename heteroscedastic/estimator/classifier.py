"""An estimator with scikit-learn's contract."""

import copy
import functools
import math
import numbers
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Num, Shaped
from scipy import special
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils import check_consistent_length, check_random_state, check_X_y
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from heteroscedastic import latent as latent_lib
from heteroscedastic.data import dataset, resident
from heteroscedastic.estimator import checks, fitting, programs, storage
from heteroscedastic.estimator.fitting import Arrays, Stopping
from heteroscedastic.estimator.programs import Numbers, Spec
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.outputs import class_pairs, label_quality
from heteroscedastic.outputs.class_pairs import ClassPair
from heteroscedastic.outputs.label_quality import LabelIssues

ArrayLike = Any  # scikit-learn converts it, or says why not
Splitter = Any  # a number of folds, or what check_cv of scikit-learn admits
Fit = TypeVar("Fit", bound=Callable[..., Any])
_DTYPES = [np.float64, np.float32, np.float16]  # the first one for integers
_SEARCHED_TEMPERATURES = (1.0, 0.25, 0.5, 2.0, 4.0)  # the first one without held-out examples
_NUM_REFERENCES = 1000


def _all_or_nothing(fit: Fit) -> Fit:
    """Fits a copy, whose attributes the estimator takes over unless the fit fails."""

    @functools.wraps(fit)
    def fit_copy(self, *args, **kwargs):
        self.__dict__ = fit(copy.copy(self), *args, **kwargs).__dict__
        return self

    return cast(Fit, fit_copy)


class HeteroscedasticClassifier(ClassifierMixin, BaseEstimator):
    """A heteroscedastic head on features, with scikit-learn's contract.

    The labels are the argmax of utilities whose Gaussian noise depends on the features. The head is
    trained by AdamW with a learning rate that decays as a cosine. A random part of the training
    examples is held out; training stops when their loss does not improve, and keeps the best epoch.
    With fewer than ten such examples, all are used, for `max_iter` epochs.

    Labels are classes of any type; an indicator matrix [n, k] makes the problem multilabel, with a
    sigmoid for each class.

    Args:
      head: "LowRank" for correlated noise, "ParameterEfficient" for it with many classes,
        "Diagonal" for independent noise, or "Deterministic" for a plain softmax.
      num_factors: rank of the correlated noise.
      loss: "cross_entropy", or "generalized_cross_entropy" (`losses`, with its default q), in which
        wrong labels have a bounded influence; not for multilabel problems.
      temperature: of the utilities, from 1e-4 to 1e4. "auto" searches 0.25, 0.5, 1, 2 and 4: it
        fits each and keeps the one with the smallest loss of the held-out examples. It is 1 without
        held-out examples.
      hidden_layer_sizes: units of hidden layers with ReLU before the head; a number is one layer.
      standardize: whether to subtract the mean of each feature and to divide by its standard
        deviation, both over the training examples.
      learning_rate: initial rate; "auto" is 0.03 / sqrt(number of features).
      weight_decay: see `training.optimizer.adamw`.
      batch_size: examples of a step; "auto" is 32 for fewer than 4,096 examples, else 256.
      max_iter: largest number of epochs.
      validation_fraction: fraction of the examples that is held out.
      n_iter_no_change: number of epochs without improvement after which training stops.
      num_samples: samples of the noise per example, a power of two; not used by the head
        "Diagonal", nor for multilabel problems.
      random_state: seed of the held-out examples, initial weights, order and noise.

    Attributes:
      classes_: the classes; for indicator matrices the numbers of their columns.
      n_features_in_: number of features.
      temperature_: the temperature.
      n_iter_: number of epochs.
      loss_curve_: mean training loss of each epoch; of the cross-entropy in nats.
      validation_loss_curve_: loss of the held-out examples after each epoch; nan without any.
      best_validation_loss_: the smallest of these.
      validation_brier_: Brier score of the held-out examples in that epoch, summed over classes;
        nan without any.
      mean_, scale_: statistics of the features; 0 and 1 without `standardize`.

    Source: Collier et al. (2021), arXiv:2105.10305.
    """

    def __init__(
        self,
        head="LowRank",
        *,
        num_factors=6,
        loss="cross_entropy",
        temperature="auto",
        hidden_layer_sizes=(),
        standardize=True,
        learning_rate="auto",
        weight_decay=1e-4,
        batch_size="auto",
        max_iter=50,
        validation_fraction=0.1,
        n_iter_no_change=5,
        num_samples=32,
        random_state=None,
    ):
        self.head = head
        self.num_factors = num_factors
        self.loss = loss
        self.temperature = temperature
        self.hidden_layer_sizes = hidden_layer_sizes
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.num_samples = num_samples
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @_all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> "HeteroscedasticClassifier":
        """Fits the head to features and labels; earlier fits are forgotten.

        A fit that fails leaves the estimator as it was.

        Args:
          X: features [n, d], finite.
          y: labels [n], or an indicator matrix [n, k], which may be sparse.
          sample_weight: [n], of the examples in the loss, >= 0. An example of weight 0 is left out.
            Each batch divides them by their sum, so a common factor does not matter, and in small
            batches rare large weights count for less than their share.

        Raises:
          ValueError: an argument or a setting is invalid, or all labels of a weight above 0 are of
            one class.
        """
        checks.settings(self)
        X, y = validate_data(self, X, y, dtype=_DTYPES, multi_output=True)
        self.classes_, labels = checks.encoded_labels(checks.targets(y))
        X, labels, weights = _present(X, labels, checks.weights(sample_weight, len(X)))
        checks.several_classes(labels, self.classes_)
        self._link = "softmax" if labels.ndim == 1 else "sigmoid"
        checks.loss_suits(self.loss, self._link)
        self._set_statistics(X)
        seed, inputs = self._seed(), self._standardized(X)
        self._spec = self._make_spec(len(X))
        is_searched = checks.is_auto(self.temperature)
        temperatures = _SEARCHED_TEMPERATURES if is_searched else (float(self.temperature),)
        fit = fitting.best_fit(
            self._spec,
            seed,
            Arrays(inputs, labels, weights),
            self._numbers(),
            temperatures,
            Stopping(self.max_iter, self.validation_fraction, self.n_iter_no_change),
        )
        self._state = jax.tree.map(np.asarray, fit.state)
        self.temperature_, self.n_iter_ = fit.temperature, len(fit.losses)
        self.loss_curve_, self.validation_loss_curve_ = fit.losses, fit.held_out_losses
        self.best_validation_loss_ = fit.best_held_out_loss
        self.validation_brier_ = fit.held_out_brier
        self._keep_references(seed, inputs)
        return self

    @_all_or_nothing
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "HeteroscedasticClassifier":
        """Trains for one epoch on these examples, at a constant rate and without held-out examples.

        The statistics of the features are those of the first call, and a `temperature` of "auto"
        is 1. After `fit` it continues with that fit's weights. Later calls read `learning_rate` and
        `random_state`; changes of other settings, such as `temperature`, `weight_decay` or
        `batch_size`, have no effect. A call that fails leaves the estimator as it was.

        Args:
          X: features [n, d], finite.
          y: as in `fit`.
          classes: all classes; required in the first call.
          sample_weight: as in `fit`.

        Raises:
          ValueError: an argument or a setting is invalid, or a label is not one of the classes.
        """
        checks.settings(self)
        first = not hasattr(self, "classes_")
        X, y = validate_data(self, X, y, dtype=_DTYPES, multi_output=True, reset=first)
        y = checks.targets(y)
        if first:
            self.classes_ = checks.first_classes(classes, y)
            self._link = "softmax" if y.ndim == 1 else "sigmoid"
            checks.loss_suits(self.loss, self._link)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes are {classes}, but were {self.classes_} in the first call; omit them."
            )
        labels = checks.known_labels(y, self.classes_, self._link)
        X, labels, weights = _present(X, labels, checks.weights(sample_weight, len(X)))
        seed = self._seed()
        if first:
            self._set_statistics(X)
            self.temperature_ = _number(self.temperature, 1.0)
            self.n_iter_, self.loss_curve_, self.validation_loss_curve_ = 0, [], []
            self.best_validation_loss_ = self.validation_brier_ = float("nan")
            self._spec, self._state = self._make_spec(len(X)), None
            self._keep_references(seed, self._standardized(X))
        arrays = Arrays(self._standardized(X), labels, weights)
        numbers = self._numbers()
        epoch = fitting.one_epoch(self._spec, seed, self._state, arrays, numbers, self.n_iter_)
        self._state = jax.tree.map(np.asarray, epoch.state)
        self.n_iter_ += 1
        self.loss_curve_ = [*self.loss_curve_, float(epoch.loss)]
        self.validation_loss_curve_ = [*self.validation_loss_curve_, float("nan")]
        return self

    def predict(self, X: ArrayLike) -> Shaped[np.ndarray, "n *k"]:
        """The likeliest class; for a multilabel problem an indicator matrix, at p > 1/2."""
        logits = self._log_probs(X)
        if self._link == "sigmoid":
            return (logits > 0).astype(int)
        return self.classes_[np.argmax(logits, axis=1)]

    def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, "n k"]:
        """E[softmax(u)], or E[sigmoid(u)] for a multilabel problem, of each class."""
        logits = self._log_probs(X)
        if self._link == "sigmoid":
            return special.expit(logits.astype(np.float64))
        return special.softmax(logits.astype(np.float64), axis=1)

    def predict_log_proba(self, X: ArrayLike) -> Float[np.ndarray, "n k"]:
        """Logarithm of `predict_proba`, in nats."""
        logits = self._log_probs(X)
        if self._link == "sigmoid":
            return special.log_expit(logits.astype(np.float64))
        return special.log_softmax(logits.astype(np.float64), axis=1)

    def predict_latent(self, X: ArrayLike) -> LatentGaussian:
        """The Gaussian over the utilities, divided by the temperature.

        The logits of `predict_proba` are those of `predictive.softmax` with key None, Sobol points
        and `num_samples`, of `predictive.softmax_exact` for the head "Diagonal", and of
        `predictive.sigmoid` for a multilabel problem.
        """
        _, latent = self._predictions(X)
        return latent_lib.temper(latent, self.temperature_)

    def noise_covariance(self, X: ArrayLike) -> Float[np.ndarray, "n k k"]:
        """Covariance of the utilities before the temperature, 0 for a head without noise."""
        _, latent = self._predictions(X)
        return np.asarray(latent_lib.covariance(latent))

    def confused_pairs(
        self,
        n: int = 10,
        X: ArrayLike | None = None,
    ) -> list[ClassPair]:
        """The pairs of classes whose noise changes the predictions most; see
        `outputs.confused_pairs`.

        Args:
          n: largest number of pairs.
          X: features [m, d] of the examples to average over; by default up to 1,000 of the
            training examples, which the estimator keeps.

        Raises:
          ValueError: the head has no noise, or the problem is multilabel.
        """
        check_is_fitted(self)
        if self._link == "sigmoid":
            raise ValueError(
                "confused_pairs requires one label per example, but the labels were an indicator"
                " matrix."
            )
        log_probs, latent = (
            self._raw_predictions(self._references) if X is None else self._predictions(X)
        )
        names = [str(name) for name in self.classes_]
        return class_pairs.confused_pairs(latent, names, num_pairs=n, log_probs=log_probs)

    def label_issues(
        self,
        X: ArrayLike,
        y: ArrayLike,
        cv: Splitter | None = 5,
    ) -> LabelIssues:
        """Ranks labels by how likely they are wrong, the most suspicious first.

        Args:
          X: features [n, d].
          y: one label per example, [n].
          cv: number of folds, or a splitter of scikit-learn that puts each example in exactly one
            test fold. The labels of a fold are scored by a copy that was fitted to the other folds,
            at the temperature of this estimator if it is fitted. None scores them by this
            estimator, which may have memorised labels that it was fitted to.

        Returns:
          Positions, labels, suggested classes and scores, see `outputs.label_issues`. The score is
          inf for a class that the other folds lack.

        Raises:
          ValueError: an argument is invalid, the test folds are no partition of the examples, or,
            if `cv` is None, a class is unknown.
        """
        if type_of_target(y) == "multilabel-indicator":
            raise ValueError(
                "label_issues requires one label per example, not an indicator matrix."
            )
        if cv is None:
            check_is_fitted(self)
            check_consistent_length(X, y)
            labels = checks.known_labels(checks.targets(y), self.classes_, self._link)
            issues = label_quality.label_issues(labels, *self._scaled_predictions(X))
            classes = self.classes_
        else:
            issues, classes = self._out_of_fold_issues(X, np.asarray(y), cv)
        return issues._replace(
            labels=classes[issues.labels], suggestions=classes[issues.suggestions]
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fitted estimator to an .npz file without pickle; see `load`."""
        check_is_fitted(self)
        storage.write(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "HeteroscedasticClassifier":
        """Reads an estimator that `save` wrote.

        A `random_state` that is not a number is not saved; it is None afterwards.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is not of `save`, or is damaged.
        """
        return storage.read(path, cls)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _make_spec(self, num_examples: int) -> Spec:
        automatic_size = 32 if num_examples < 4096 else 256
        return Spec(
            head=self.head,
            num_factors=self.num_factors,
            num_padded=programs.padded_classes(len(self.classes_)),
            widths=checks.layer_sizes(self.hidden_layer_sizes),
            link=self._link,
            num_samples=self.num_samples,
            weight_decay=float(self.weight_decay),
            batch_size=int(_number(self.batch_size, automatic_size)),
            loss=self.loss,
        )

    def _numbers(self) -> Numbers:
        """Settings of a constant learning rate, at the temperature of the fit."""
        return Numbers(
            num_classes=len(self.classes_),
            temperature=getattr(self, "temperature_", 1.0),
            learning_rate=_number(self.learning_rate, 0.03 / math.sqrt(self.n_features_in_)),
            decay_steps=float("inf"),
        )

    def _set_statistics(self, inputs: Num[np.ndarray, "n d"]) -> None:
        self.mean_, self.scale_ = np.zeros(inputs.shape[1]), np.ones(inputs.shape[1])
        if self.standardize:
            with np.errstate(over="ignore", invalid="ignore"):
                self.mean_, self.scale_ = dataset.feature_statistics(inputs)

    def _standardized(self, inputs: Num[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        with np.errstate(over="ignore", invalid="ignore"):
            scale = np.where(np.isfinite(self.scale_), self.scale_, np.nan)  # not x / inf = 0
            standardized = dataset.scaled_features(inputs, self.mean_, scale)
        checks.finite(inputs, standardized)
        return standardized

    def _keep_references(self, seed: int, inputs: Float[np.ndarray, "n d"]) -> None:
        chosen = np.sort(resident.order(seed, 0, len(inputs))[:_NUM_REFERENCES])
        self._references = inputs[chosen]

    def _log_probs(self, X):
        inputs = self._inputs(X)  # first, as it checks that there is a fit
        return programs.log_probs(self._spec, self._state.params, inputs, self._numbers())

    def _predictions(self, X):
        return self._raw_predictions(self._inputs(X))

    def _inputs(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, dtype=_DTYPES, reset=False)
        return self._standardized(X)

    def _raw_predictions(self, inputs):
        return programs.predictions(self._spec, self._state.params, inputs, self._numbers())

    def _scaled_predictions(self, X):
        """Logits, and the utilities over the temperature without their noise."""
        inputs = self._inputs(X)
        log_probs, loc = programs.log_probs_and_loc(
            self._spec, self._state.params, inputs, self._numbers()
        )
        return log_probs, LatentGaussian(jnp.asarray(loc) / self.temperature_)

    def _out_of_fold_issues(self, X, y, cv):
        X, y = check_X_y(X, y, dtype=_DTYPES)
        classes, labels = checks.encoded_labels(checks.targets(y))
        if isinstance(cv, numbers.Integral):
            cv = StratifiedKFold(int(cv), shuffle=True, random_state=0)
        folds = list(check_cv(cv).split(X, labels))  # raises if it is no splitter
        tested = np.concatenate([test for _, test in folds])
        if not np.array_equal(np.sort(tested), np.arange(len(y))):
            raise ValueError(
                "the test folds of cv must hold each example exactly once, as those of KFold do."
            )
        temperature = getattr(self, "temperature_", self.temperature)
        log_probs, loc = (np.full((len(y), len(classes)), -np.inf) for _ in range(2))
        for train, test in folds:
            if len(known := np.unique(labels[train])) == 1:  # which no classifier can be fitted to
                log_probs[np.ix_(test, known)] = loc[np.ix_(test, known)] = 0.0
                continue
            model = clone(self).set_params(temperature=temperature)
            model.fit(X[train], labels[train])
            fold_log_probs, fold_latent = model._scaled_predictions(X[test])
            log_probs[np.ix_(test, model.classes_)] = fold_log_probs
            loc[np.ix_(test, model.classes_)] = fold_latent.loc
        latent = LatentGaussian(jnp.asarray(loc))
        return label_quality.label_issues(labels, log_probs, latent), classes


def _number(value: Any, automatic: float) -> float:
    return float(automatic if checks.is_auto(value) else value)


def _present(
    X: Num[np.ndarray, "n d"], labels: Int[np.ndarray, "n *m"], weights: Float[np.ndarray, "n"]
) -> tuple[Num[np.ndarray, "p d"], Int[np.ndarray, "p *m"], Float[np.ndarray, "p"]]:
    """The examples of a weight above 0."""
    present = weights > 0
    if present.all():
        return X, labels, weights  # a copy of large features takes as long as some epochs
    return X[present], labels[present], weights[present]
