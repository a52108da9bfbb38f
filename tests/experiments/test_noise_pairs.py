import numpy as np
import pytest
from pack import PACK, needs
from scipy import stats

from experiments.correlated_label_noise import noise_pairs
from heteroscedastic.analysis.covariance import known_noise, summary


@needs("cifar10_n")
def test_people_confuse_cars_with_trucks_and_cats_with_dogs():
    record = noise_pairs.all_labels({"name": "cifar10_n", "label": "worse_label"}, PACK)
    counts = np.array(record["label_noise"])
    assert counts[:, 2].sum() == 50_000
    wrong = counts[counts[:, 0] != counts[:, 1], 2].sum() / 50_000
    assert wrong == pytest.approx(0.4021, abs=1e-3)
    rates = np.triu(known_noise.confusion_matrix(record))
    first, second = (np.unravel_index(i, rates.shape) for i in np.argsort(-rates, axis=None)[:2])
    names = [{record["class_names"][i] for i in pair} for pair in (first, second)]
    assert names == [{"automobile", "truck"}, {"cat", "dog"}]


def test_all_labels_of_a_config_with_clean_labels_is_an_error():
    with pytest.raises(ValueError, match=r"config\.data trains on the clean labels of digits"):
        noise_pairs.all_labels({"name": "digits"}, None)


def test_a_run_is_measured_at_its_checkpoint_and_beyond_its_probabilities(monkeypatch):
    k, rng, asked = 7, np.random.default_rng(0), []
    known, overlap, covariance = (x + x.T for x in rng.random((3, k, k)))
    covariance += overlap + known
    none = np.zeros((k, k))
    measures = summary.Measures(covariance, none, none, none, none, none, overlap)
    monkeypatch.setattr(noise_pairs, "confusions", lambda directory, description: known)
    monkeypatch.setattr(noise_pairs.loaded_run, "load", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(noise_pairs.summary, "measures", lambda _: measures)
    monkeypatch.setattr(noise_pairs.jax, "clear_caches", lambda: None)  # of other tests
    found = noise_pairs.agreements("run", "best", "data", lambda: None)
    assert asked == [("run", "best", "data")]
    assert set(found) == {"covariance", "overlap"}
    upper = np.triu_indices(k, 1)
    values, confusions, given = (stats.rankdata(x[upper]) for x in (covariance, known, overlap))
    design = np.stack([np.ones_like(given), given], axis=1)
    first, second = (
        x - design @ np.linalg.lstsq(design, x, rcond=None)[0] for x in (values, confusions)
    )
    own = found["covariance"]
    assert own["partial"] == pytest.approx(stats.pearsonr(first, second).statistic)
    assert own["rho"] == pytest.approx(stats.spearmanr(values, confusions).statistic)
    assert own["partial"] != pytest.approx(own["rho"], abs=0.02)
    assert 0 < own["partial_p"] <= 1
    assert np.isnan(found["overlap"]["partial"])
    seeds = [own, {"partial": np.nan, "partial_p": np.nan}, {"partial": 0.5, "partial_p": 0.01}]
    mean, p, small = noise_pairs.beyond_cells(seeds)
    assert mean.startswith(f"{(own['partial'] + 0.5) / 2:.2f} ± ")
    assert p == f"{(own['partial_p'] + 0.01) / 2:.2g}"
    assert small == f"{1 + (own['partial_p'] < 0.05)} of 2"
