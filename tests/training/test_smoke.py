import pytest

from experiments import study
from heteroscedastic.training import smoke


@pytest.mark.parametrize(("num_classes", "left"), [(10, None), (64, 64), (200, 64)])
def test_of_many_classes_the_data_keeps_as_many_as_the_head(num_classes, left):
    config = smoke.smoke(study.config("digits_hom", {"head.num_classes": num_classes}))
    assert config["head"]["num_classes"] == min(num_classes, 64)
    assert config["data"].get("max_classes") == left
