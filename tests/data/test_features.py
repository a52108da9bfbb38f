"""Features in place of images."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments import study
from heteroscedastic.data import dataset as dataset_lib
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store
from heteroscedastic.runs import assembly, loop

FEATURES = {
    "data.name": "features",
    "data.train": "",
    "data.eval": "",
    "data.standardize": True,
    "curation": "",
    "backbone": dict(name="MLP", widths=()),
    "training.num_epochs": 2.0,
    "training.checkpoint_epochs": 1.0,
}


def write(directory, change=lambda x: x, dtype=np.float32, splits=("train", "test"), varying=False):
    inputs, labels = load_digits(return_X_y=True)
    if varying:  # units of a feature that is constant in training are not known
        inputs = inputs[:, np.mean(inputs[:600] > 0, axis=0) > 0.2]
    rows = {"train": slice(0, 600), "test": slice(600, 900)}
    arrays = {"class_names": np.array([str(i) for i in range(10)])}
    for split in splits:
        arrays[f"{split}_inputs"] = change(inputs[rows[split]]).astype(dtype)
        arrays[f"{split}_labels"] = labels[rows[split]]
    np.savez(directory / "features.npz", **arrays)
    return str(directory)


def trained(directory, workdir, config="digits_hom", **overrides):
    config = study.config(config, FEATURES | overrides)
    config |= {"validation": None, "evals": {"test": config["evals"]["test"]}}
    return loop.train(config, str(workdir), directory)["evals"]["test"]


def test_standardised_features_have_mean_0_and_variance_1_in_training(tmp_path):
    data = store.load("features", write(tmp_path))
    result = dataset_lib.standardized(data)
    train = result.splits["train"].inputs.astype(np.float64)
    constant = data.splits["train"].inputs.std(axis=0) == 0
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(train.std(axis=0)[~constant], 1, rtol=1e-5)
    np.testing.assert_array_equal(train[:, constant], 0)
    assert constant.any()
    raw = data.splits["test"].inputs.astype(np.float64)
    mean, scale = (
        f(data.splits["train"].inputs.astype(np.float64), axis=0) for f in (np.mean, np.std)
    )
    scale[constant] = 1
    np.testing.assert_allclose(result.splits["test"].inputs, (raw - mean) / scale, atol=1e-5)


def test_a_small_deviation_of_a_large_mean_is_standardised():
    """Seconds since 1970 that vary by a minute."""
    seconds = np.random.default_rng(0).integers(0, 60, (600, 2))
    mean, scale = dataset_lib.feature_statistics(1_700_000_000.0 + seconds)
    np.testing.assert_allclose(mean - 1_700_000_000, seconds.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(scale, seconds.std(axis=0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_constant_feature_is_only_shifted(dtype):
    """Sums of these numbers round, so that their mean is not the number."""
    inputs = np.tile(np.array([0.1, 1 / 3, 16.7, 1000.1], dtype), (300_000, 1))
    mean, scale = dataset_lib.feature_statistics(inputs)
    np.testing.assert_allclose(mean, inputs[0], rtol=1e-12)
    np.testing.assert_array_equal(scale, 1)


def test_tokens_share_their_statistics():
    tokens = np.random.default_rng(0).normal(3, 2, (600, 4, 5)).astype(np.float32)
    split = Split(tokens, np.zeros(600, int), np.arange(600))
    flat = Split(tokens.reshape(2400, 5), np.zeros(2400, int), np.arange(2400))
    standard, standard_flat = (
        dataset_lib.standardized(Dataset({"train": x}, ("a",))).splits["train"].inputs
        for x in (split, flat)
    )
    np.testing.assert_array_equal(standard.reshape(2400, 5), standard_flat)


def test_runs_do_not_depend_on_units_or_storage(tmp_path):
    plain = trained(write(tmp_path, varying=True), tmp_path / "plain")
    half = trained(write(tmp_path, dtype=np.float16, varying=True), tmp_path / "half")
    assert half == plain  # pixels of digits are exact in float16
    other = write(tmp_path, lambda x: 4 * x + 2, varying=True)
    other_units = trained(other, tmp_path / "units")
    assert other_units["nll"] == pytest.approx(plain["nll"], rel=1e-4)
    assert plain["accuracy"] > 0.5


def test_tokens_are_the_features_of_one_vector_to_an_mlp(tmp_path):
    settings = {"data.standardize": False}
    vectors = trained(write(tmp_path), tmp_path / "vectors", **settings)
    tokens = write(tmp_path, lambda x: x.reshape(-1, 8, 8))
    assert trained(tokens, tmp_path / "tokens", **settings) == vectors


@pytest.mark.parametrize(
    ("change", "dtype", "message"),
    [
        (lambda x: x, np.float64, r"float64 \(600, 64\); .astype\(np.float32\) converts them"),
        (lambda x: x[:, :, None, None], np.float32, r"but are float32 \(600, 64, 1, 1\)"),
        (
            lambda x: np.where(x == x.max(), np.nan, x),
            np.float32,
            "must be finite, but row 1 is not",
        ),
        (lambda x: x * 1e4, np.float16, "must be finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_features_are_named(tmp_path, change, dtype, message):
    with pytest.raises(ValueError, match=message):
        store.load("features", write(tmp_path, change, dtype))


def test_features_of_another_width_are_an_error(tmp_path):
    directory = write(tmp_path)
    arrays = dict(np.load(tmp_path / "features.npz"))
    np.savez(tmp_path / "features.npz", **arrays | {"test_inputs": arrays["test_inputs"][:, :9]})
    with pytest.raises(ValueError, match=r"inputs of train have shape \(64,\), but inputs of test"):
        store.load("features", directory)


def test_operations_on_images_and_standardised_images_are_errors(tmp_path):
    directory = write(tmp_path)
    config = study.config("digits_het_full", FEATURES | {"data.train": "flip_lr"})
    with pytest.raises(ValueError, match=r"flip_lr\(\) is an operation on images, but the inputs"):
        assembly.build(config, directory)
    with pytest.raises(ValueError, match="standardize is True, but the inputs are images"):
        assembly.build(study.config("digits_het_full", {"data.standardize": True}))
