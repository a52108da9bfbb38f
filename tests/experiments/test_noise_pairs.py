import numpy as np
import pytest
from pack import PACK, needs

from experiments.correlated_label_noise import noise_pairs
from heteroscedastic.analysis.covariance import known_noise


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
