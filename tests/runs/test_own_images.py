"""Images of somebody's own, by configs/own_images.py."""

import json

import numpy as np
import pytest

from experiments import study
from heteroscedastic.runs import assembly, loop, pipelines, smoke

NAMES = ("cat", "dog", "eel", "owl")
TINY = {
    "backbone": dict(name="MLP", widths=(8,)),
    "predictive.num_samples": 4,
    "training.batch_size": 16,
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory, draws = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    arrays = {"class_names": np.array(NAMES)}
    for split, number in (("train", 50), ("test", 12)):
        arrays[f"{split}_inputs"] = draws.integers(0, 256, (number, 8, 8, 3)).astype(np.uint8)
        arrays[f"{split}_labels"] = draws.integers(0, 4, number)
    np.savez(directory / "photos.npz", **arrays)
    return directory


def config(**overrides):
    return study.config(
        "own_images", {"data.name": "photos", "training.num_epochs": 1.0, **TINY} | overrides
    )


def test_every_label_of_the_file_is_kept(data_dir):
    pipeline = pipelines.build(config(), str(data_dir))
    with np.load(data_dir / "photos.npz") as arrays:
        for split, stored in (("train", "train"), ("valid", "train"), ("test", "test")):
            found = pipeline.dataset.splits[split]
            np.testing.assert_array_equal(found.labels, arrays[f"{stored}_labels"][found.ids])
            np.testing.assert_array_equal(found.inputs, arrays[f"{stored}_inputs"][found.ids])
    assert sorted(pipeline.sizes.items()) == [("test", 12), ("train", 40), ("valid", 10)]
    assert "curation" not in pipeline.description


@pytest.mark.extended
def test_it_trains_to_the_end_with_as_many_classes_as_the_file_names(data_dir, tmp_path, capsys):
    results = loop.train(config(), str(tmp_path / "run"), str(data_dir))
    assert set(results["evals"]) == {"valid", "valid_best", "test", "test_best"}
    assert np.load(tmp_path / "run" / "predictions" / "test.npz")["logits"].shape == (12, 4)
    assert "curation" not in capsys.readouterr().out
    # The number is recorded, so that the run is the same whether it was given or not, and is read
    # without the data.
    assert json.loads((tmp_path / "run" / "config.json").read_text())["head"]["num_classes"] == 4
    for again in (config(), config(**{"head.num_classes": 4})):
        assert loop.train(again, str(tmp_path / "run"), str(data_dir)) == results
    with pytest.raises(ValueError, match=r"config.head.num_classes is 5, but photos has 4 classes"):
        loop.train(config(**{"head.num_classes": 5}), str(tmp_path / "other"), str(data_dir))


def test_what_curation_changed_is_said_and_recorded_and_moves_no_fingerprint_of_other_data(
    data_dir, tmp_path, capsys
):
    links = "subset(45)|confuse_pairs(pairs=((0, 1), (2, 3)), rate=0.5)"
    made = config(curation=links, **{"training.num_epochs": None, "training.num_steps": 1})
    made["evals"], made["validation"] = {}, None
    loop.train(made, str(tmp_path / "run"), str(data_dir))
    said = capsys.readouterr().out
    run = assembly.build(made, str(data_dir))
    with np.load(data_dir / "photos.npz") as arrays:
        splits = {name: run.dataset.splits[name] for name in ("train", "valid")}
        changed = {
            name: int((x.labels != arrays["train_labels"][x.ids]).sum())
            for name, x in splits.items()
        }
    assert sum(changed.values()) > 10
    assert (
        f"curation changed {changed['train']} of 36 labels of split 'train' and"
        f" {changed['valid']} of 9 labels of split 'valid'.\ncuration dropped 5 of 50 training"
        " examples.\n" in said
    )
    recorded = json.loads((tmp_path / "run" / "dataset.json").read_text())
    assert recorded["curation"] == {"changed": changed, "dropped": 5}
    without = config(curation="subset(50)")  # which changes nothing
    assert (
        assembly.build(without, str(data_dir)).pipeline.description
        == assembly.build(config(), str(data_dir)).pipeline.description
    )


def test_a_smoke_run_takes_the_classes_of_the_file_or_of_the_digits_that_stand_in_for_it(data_dir):
    shrunk, where = smoke.smoke(config(), str(data_dir))
    assert len(assembly.build(shrunk, where).pipeline.class_names) == 4
    shrunk, where = smoke.smoke(config(**{"data.name": "absent"}), str(data_dir))
    assert assembly.build(shrunk, where).config["head"]["num_classes"] == 10


def test_training_data_that_ends_before_its_epoch_is_an_error_and_not_an_endless_loop(
    data_dir, tmp_path, monkeypatch
):
    feeds = pipelines.Resident.training_feeds
    monkeypatch.setattr(
        pipelines.Resident,
        "training_feeds",
        lambda self, *which: iter(list(feeds(self, *which))[:1]),
    )
    with pytest.raises(ValueError, match="data ended at step 1, but epoch 0 has 3 steps"):
        loop.train(config(), str(tmp_path / "run"), str(data_dir))
