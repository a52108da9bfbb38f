import csv
import shutil
import sys

import numpy as np
import pytest
from sklearn import datasets
from small_runs import of_earlier_version

from heteroscedastic import files
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.errors import disagreements
from heteroscedastic.runs import assembly, by_example, loaded_run


@pytest.fixture(scope="module")
def both(with_noise, without_noise):
    return disagreements.find(with_noise, without_noise)


@pytest.fixture(scope="module")
def examples(both):
    return both[0]


def test_the_images_follow_from_the_saved_predictions(with_noise, without_noise, examples):
    het, hom = (np.load(run / "predictions" / "test.npz") for run in (with_noise, without_noise))
    mine, theirs = het["logits"].argmax(-1), hom["logits"].argmax(-1)
    rows = np.flatnonzero((mine == het["labels"]) & (theirs != hom["labels"]))
    assert len(rows) > 5
    np.testing.assert_array_equal(examples.ids, het["ids"][rows])
    np.testing.assert_array_equal(examples.true, mine[rows])
    np.testing.assert_array_equal(examples.other_prediction, theirs[rows])
    digits = datasets.load_digits()
    np.testing.assert_array_equal(examples.true, digits.target[examples.ids])
    brightness = digits.images[examples.ids].sum(axis=(1, 2))
    assert np.corrcoef(examples.images.sum(axis=(1, 2, 3)), brightness)[0, 1] > 0.999
    assert examples.num_examples == len(het["ids"])


def test_covariances_are_rows_of_the_matrix_in_units_of_the_utilities(both):
    examples, het = both
    split = loaded_run.split_data(het, "test")
    rows = np.flatnonzero(np.isin(split.ids, examples.ids))

    def covariance(key, latent, batch):
        return latent_lib.covariance(latent)

    matrix = (
        by_example.map_latents(het, "test", covariance, rows)
        * assembly.temperature(het.run, het.state) ** 2
    )
    index = np.arange(len(rows))
    np.testing.assert_allclose(
        examples.covariance, matrix[index, examples.true], rtol=1e-3, atol=1e-4
    )
    deviations = np.sqrt(np.einsum("bii->bi", matrix))
    correlation = matrix / deviations[:, :, None] / deviations[:, None]
    np.testing.assert_allclose(
        examples.correlation, correlation[index, examples.true], rtol=1e-3, atol=1e-4
    )
    own = deviations**2
    difference = own + own[index, examples.true][:, None] - 2 * matrix[index, examples.true]
    np.testing.assert_allclose(
        examples.seen, examples.probability * difference, rtol=1e-2, atol=1e-3
    )
    np.testing.assert_allclose(examples.probability.sum(axis=-1), 1, rtol=1e-4)
    assert assembly.temperature(het.run, het.state) > 1.2  # so that units make a difference


def test_the_summary_counts_every_image_once(examples):
    facts = disagreements.summary(examples)
    for result in facts["ranks"].values():
        assert sum(result["counts"]) == facts["num_images"] == len(examples.ids)
        assert result["expected"] == pytest.approx(
            5, abs=0.5
        )  # of 9 other classes, not all with images
        assert result["first"] == pytest.approx(result["counts"][0] / len(examples.ids), abs=0.1)


def test_runs_that_cannot_be_compared_are_refused(with_noise, without_noise, tmp_path):
    with pytest.raises(ValueError, match="no covariances between classes"):
        disagreements.find(without_noise, with_noise)
    with pytest.raises(ValueError, match="no example of test"):
        disagreements.find(with_noise, with_noise)
    with pytest.raises(
        FileNotFoundError,
        match=r"no predictions of 'validation'.* test, test_best, valid, valid_best",
    ):
        disagreements.find(with_noise, without_noise, "validation")
    with pytest.raises(FileNotFoundError, match="no complete run"):
        disagreements.find(with_noise, tmp_path)


@pytest.mark.parametrize("what", ["fingerprint", "ids"])
def test_runs_with_different_data_are_refused(what, with_noise, without_noise, tmp_path):
    of_earlier_version(
        shutil.copytree(
            without_noise, tmp_path / "other", ignore=shutil.ignore_patterns("checkpoints")
        )
    )
    if what == "fingerprint":
        dataset = files.read_json(tmp_path / "other" / "dataset.json") | {"fingerprint": "0" * 64}
        files.write_json(tmp_path / "other" / "dataset.json", dataset)
    else:
        path = tmp_path / "other" / "predictions" / "test.npz"
        arrays = dict(np.load(path))
        files.write_arrays(path, {name: values[1:] for name, values in arrays.items()})
    with pytest.raises(ValueError, match="different data"):
        disagreements.find(with_noise, tmp_path / "other")


def test_predictions_of_other_examples_than_the_data_are_refused(
    with_noise, without_noise, tmp_path
):
    for run in (with_noise, without_noise):
        of_earlier_version(shutil.copytree(run, tmp_path / run.parent.name))
        path = tmp_path / run.parent.name / "predictions" / "test.npz"
        files.write_arrays(
            path, {name: values[::-1] for name, values in dict(np.load(path)).items()}
        )
    with pytest.raises(
        ValueError, match="differ from the 597 examples of the split 'test' or from their order"
    ):
        disagreements.find(*(tmp_path / run.parent.name for run in (with_noise, without_noise)))


@pytest.mark.parametrize("what", ["dataset", "predictions"])
def test_runs_of_another_version_are_refused(what, with_noise, without_noise, tmp_path):
    of_earlier_version(
        shutil.copytree(
            without_noise, tmp_path / "other", ignore=shutil.ignore_patterns("checkpoints")
        )
    )
    if what == "dataset":
        dataset = files.read_json(tmp_path / "other" / "dataset.json")
        files.write_json(
            tmp_path / "other" / "dataset.json",
            {k: v for k, v in dataset.items() if k != "class_names"},
        )
    else:
        path = tmp_path / "other" / "predictions" / "test.npz"
        arrays = dict(np.load(path))
        files.write_arrays(path, {"log_probs": arrays.pop("logits"), **arrays})
    with pytest.raises(ValueError, match="another version"):
        disagreements.find(with_noise, tmp_path / "other")


@pytest.mark.parametrize("num", [9, 50, 59, 99, 999, 21842])
def test_a_bar_covers_integer_ranks_and_its_chance_height_is_its_width(num):
    edges, heights, chance = disagreements.bars(np.full(num, 3))
    np.testing.assert_allclose(heights, chance)  # equal counts are the expectation by chance
    widths = np.diff(edges)
    assert len(heights) <= 50
    np.testing.assert_array_equal(widths, np.round(widths))
    np.testing.assert_array_equal(widths[:-1], widths[0])
    assert 0 < widths[-1] <= widths[0]
    assert (edges[0], edges[-1], heights.sum()) == (0.5, num + 0.5, 3 * num)
    assert (
        disagreements.bars(np.arange(1, num + 1) // num)[1][-1] == 1
    )  # the last rank is in the last bar


def test_the_command_writes_numbers_and_figures(
    with_noise, without_noise, monkeypatch, capsys, examples
):
    pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")
    monkeypatch.setattr(
        sys, "argv", ["disagreements", "--runs", str(with_noise), str(without_noise)]
    )
    disagreements.main()
    stem = "disagreements_test"
    expected = {f"{stem}.csv", f"{stem}.json"}
    expected |= {f"{stem}_{what}.{kind}" for what in ("images", "ranks") for kind in ("png", "svg")}
    assert {p.name for p in (with_noise / "analysis").glob(f"{stem}*")} == expected
    assert not (without_noise / "analysis").exists()
    with (with_noise / "analysis" / f"{stem}.csv").open() as file:
        sizes = [abs(float(row["covariance"])) for row in csv.DictReader(file)]
    assert sizes == sorted(sizes, reverse=True)
    assert (
        len(sizes)
        == len(examples.ids)
        == files.read_json(with_noise / "analysis" / f"{stem}.json")["num_images"]
    )
    assert "correct only in the first run" in capsys.readouterr().out
