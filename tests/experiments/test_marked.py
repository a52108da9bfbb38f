"""Photographs with a patch that confuses the labels, and whether maps show it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import study
from experiments.correlated_label_noise import marked, marked_maps
from heteroscedastic.analysis.saliency import explain
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store
from heteroscedastic.runs import assembly, loaded_run

SIZE, NUMBER = 16, 400
NAMES = tuple(f"class {i}" for i in range(10))


def photographs(seed, number):
    rng = np.random.default_rng(seed)
    images = rng.integers(1, 255, (number, SIZE, SIZE, 3)).astype(np.uint8)  # never black or white
    return Split(images, rng.integers(0, 10, number), np.arange(number))


SOURCE = Dataset({"train": photographs(0, NUMBER), "test": photographs(1, 60)}, NAMES)


def is_inside(split):
    """Whether each pixel lies in the box of its image."""
    inside = np.zeros(split.inputs.shape[:3], bool)
    for mask, (y0, x0, y1, x1) in zip(inside, np.rint(split.extras["boxes"][:, 0] * SIZE)):
        mask[int(y0) : int(y1), int(x0) : int(x1)] = True
    return inside


def test_half_of_the_images_have_a_patch_which_is_the_box_and_nothing_else_changes():
    data = marked.marked(SOURCE)
    for name, split in data.splits.items():
        source, inside = SOURCE.splits[name], is_inside(split)
        np.testing.assert_array_equal((split.inputs != source.inputs).any(axis=-1), inside)
        has_patch = inside.any(axis=(1, 2))
        assert has_patch.sum() == len(has_patch) // 2
        assert set(inside.sum(axis=(1, 2))) == {0, (SIZE // 4) ** 2}
        pixels = split.inputs[inside].reshape(has_patch.sum(), -1)
        assert set(pixels.ravel()) == {0, 255}
        np.testing.assert_allclose(pixels.mean(axis=1), 127.5)  # as many black as white checks
        np.testing.assert_array_equal(split.labels, source.labels)
    tops = np.rint(data.splits["train"].extras["boxes"][:, 0, :2] * SIZE)[has_patch_of(data)]
    assert set(tops.ravel()) == set(range(SIZE - SIZE // 4 + 1))  # every place
    assert data.splits["test"].extras.keys() == {"boxes"}


def has_patch_of(data, split="train"):
    return data.splits[split].extras["boxes"].any(axis=(1, 2))


def test_labels_are_confused_with_the_other_class_of_a_pair_where_the_patch_is():
    data = marked.marked(SOURCE)
    train, has_patch = data.splits["train"], has_patch_of(data)
    confused = train.extras["confused_label"]
    partner = np.arange(10)
    for a, b in marked.PAIRS:
        partner[[a, b]] = b, a
    changed = confused != train.labels
    np.testing.assert_array_equal(confused[changed], partner[train.labels][changed])
    may_change = has_patch & np.isin(train.labels, marked.PAIRS)
    assert not changed[~may_change].any()
    rate, deviation = marked.RATE, np.sqrt(0.25 / may_change.sum())
    assert changed[may_change].mean() == pytest.approx(rate, abs=3.5 * deviation)


def test_the_area_elsewhere_is_as_large_and_not_the_patch():
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 13, (50, 2)) / 16
    boxes = np.concatenate([corners, corners + 0.25], axis=1)[:, None]
    covered = marked_maps.patches(jnp.asarray(boxes), (16, 16))
    other = marked_maps.elsewhere(covered)
    np.testing.assert_array_equal(other.sum(axis=(1, 2)), 16)
    assert not (covered & other).any()


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """A run of a row of the table on small images, before its first step."""
    directory = tmp_path_factory.mktemp("marked")
    store.write(directory / "marked.npz", marked.marked(SOURCE))
    job = study.jobs(study.table("correlated_label_noise", "marked"), "cpu", directory)[3]
    config = job.config | {"backbone": dict(name="ConvNet", widths=(4, 8))}
    run = assembly.build(config, str(directory))
    state = jax.jit(run.init)(run.root_key)
    return loaded_run.LoadedRun(directory, run, {}, run.pipeline.description, state)


@pytest.mark.extended
def test_the_command_prints_chance_and_the_variances_of_the_pair(
    untrained, tmp_path, monkeypatch, capsys
):
    run, data = untrained, loaded_run.split_data(untrained, "test")
    job = study.Job("het_full", (), 0, tmp_path, {}, "fingerprint")
    monkeypatch.setattr(study, "jobs", lambda *_: [job])
    monkeypatch.setattr(study, "saved_path", lambda *_: tmp_path / "marked.cpu.json")
    monkeypatch.setattr(study, "run_results", lambda _: {})
    monkeypatch.setattr(loaded_run, "load", lambda *_: run)
    question = Question("noise", "integrated", (0, 7))
    monkeypatch.setattr(marked_maps, "_NOISE", question)
    monkeypatch.setitem(marked_maps._QUESTIONS, "noise", question)
    monkeypatch.setattr(explain, "mean_color", lambda *_: np.ones(3, np.float32))  # white
    monkeypatch.setattr("sys.argv", ["marked_maps", "--save"])
    marked_maps.main()
    *tables, _ = capsys.readouterr().out.strip().split("\n\n")
    maps, variances = ([line[2:-2].split(" | ") for line in part.splitlines()] for part in tables)
    monkeypatch.setattr(study, "run_results", lambda _: None)  # so that its saved numbers print
    monkeypatch.setattr("sys.argv", ["marked_maps"])
    marked_maps.main()
    assert capsys.readouterr().out.strip().split("\n\n") == tables
    (chance,) = (row for row in maps if row[1] == "entire image")
    assert chance[2:] == ["1", "0.062", "0.000", "1.000", "0.000"]  # a sixteenth of the image
    assert {row[1] for row in maps[2:]} >= {"noise", "class", "entropy", "map of another image"}
    (row,) = variances[2:]
    found = dict(zip(variances[0], row))

    in_pair, inside = np.isin(data.labels, marked.PAIRS), is_inside(data)
    has_patch = inside.any(axis=(1, 2))
    values = explain.explain(run, "test", question).value
    white = np.where(inside[..., None], np.uint8(255), data.inputs)
    splits = run.run.pipeline.dataset.splits
    monkeypatch.setitem(splits, "test", data._replace(inputs=white))
    covered = explain.explain(run, "test", question).value
    expected = {
        "no patch": values[in_pair & ~has_patch].mean(),
        "patch": values[in_pair & has_patch].mean(),
        "patch covered": covered[in_pair & has_patch].mean(),
    }
    assert abs(expected["patch"] - expected["patch covered"]) > 0.02
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, abs=0.006), name
