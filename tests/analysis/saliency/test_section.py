"""The section of the report, and cells of maps."""

import dataclasses
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="sections hold figures, which require the extra")

from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.plots import overlays
from heteroscedastic.analysis.report import (
    comparison,
    context_section,
    objects_section,
    page,
    saliency_section,
)
from heteroscedastic.analysis.report.comparison import Group, RunSet
from heteroscedastic.analysis.report.page import Picture
from heteroscedastic.analysis.saliency import evaluation, explain, summary
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.runs import by_example, loaded_run
from heteroscedastic.runs.loaded_run import SavedRun
from heteroscedastic.runs.predictions import Predictions
from heteroscedastic.tasks.multilabel import Multilabel
from heteroscedastic.tasks.one_vs_rest import OneVsRest


def run_set(data_dir, *runs):
    return comparison.load(comparison.groups(runs), "test", data_dir=data_dir)


def section(data_dir, *runs):
    return saliency_section.doubts(run_set(data_dir, *runs))


def test_it_shows_the_images_with_the_largest_variance_of_the_first_pairs(
    noisy, plain, data_dir, monkeypatch
):
    monkeypatch.setattr(saliency_section, "_NUM_EXPLAINED", 1)
    found = section(data_dir, plain, noisy)
    (picture,) = (part for part in found.parts if isinstance(part, Picture))
    notes = " ".join(part for part in found.parts if isinstance(part, str))
    assert "plain is not included, because its head has no noise" in notes
    run = loaded_run.load(noisy, data_dir=data_dir)
    names = run.dataset["class_names"]
    first = picture.numbers[0]
    pair = tuple(names.index(first[x]) for x in ("class", "other"))
    values = explain.explain(run, "test", Question("noise", "integrated", pair)).value
    assert first["variance"] == pytest.approx(values.max(), rel=1e-5)
    assert [x["variance"] for x in picture.numbers[:3]] == pytest.approx(
        np.sort(values)[::-1][:3], rel=1e-5
    )
    html = page.page("title", "", [found])
    assert len(html) < 2**21  # less than 2 MB
    assert "Where the noise is large" in html
    for text in re.findall(r"class=\"note\">([^<]*)", html):
        assert text.endswith(".")


@pytest.mark.extended
def test_classes_that_share_a_name_are_explained_as_those_of_other_names(
    noisy, data_dir, monkeypatch
):
    runs, load = run_set(data_dir, noisy), loaded_run.load_evaluated

    def namesakes(*arguments):
        run, split = load(*arguments)
        names = {"class_names": ["same"] * 3}
        return dataclasses.replace(run, dataset=run.dataset | names), split

    numbers = []
    for function in (load, namesakes):
        monkeypatch.setattr(loaded_run, "load_evaluated", function)
        (picture,) = (x for x in saliency_section.doubts(runs).parts if isinstance(x, Picture))
        numbers.append([(row["id"], row["variance"]) for row in picture.numbers])
    assert numbers[0] == numbers[1]
    assert {row[name] for row in picture.numbers for name in ("class", "other")} == {"same"}


def test_a_backbone_without_maps_is_a_note(mlp, data_dir):
    (_, note) = section(data_dir, mlp).parts
    assert f"The maps of Diagonal are not available: {mlp}: MLP has no maps; choose" in note


def test_localisation_shows_the_numbers_of_the_command_and_looks_its_sheet(noisy, data_dir):
    runs = run_set(data_dir, noisy)
    found = objects_section.localisation(runs)
    picture, html = found.parts[-1], "".join(x for x in found.parts if isinstance(x, str))
    run = loaded_run.load(noisy, data_dir=data_dir)
    located = evaluation.located(run, "test", Question("class", "grad_cam_pp", "label"))
    (result,) = picture.numbers["runs"].values()
    assert result["num_scored"] == len(located.ids)
    values = evaluation.metrics(located.by_map["map"], None)
    for metric in ("pointing", "box", "mass"):
        assert f">{np.nanmean(values[metric]):.3f} [" in html, metric
    rows = {row["metric"]: row for row in result["localisation"] if row["map"] == "map"}
    assert f"<td>{rows['box']['if_right']:.3f}</td>" in html
    assert f">{' / '.join(f'{x:.3f}' for x in rows['pointing']['by_third'])}<" in html
    for name, scores in located.by_map.items():
        share = (scores.any_ious >= 0.5).mean(axis=0)
        np.testing.assert_array_equal(result["by_threshold"][name], share)
    sheet = objects_section.looks(runs)
    (picture,) = sheet.parts
    (images,) = picture.numbers.values()
    assert {row["explained"][0] == row["probable"][0]["class"] for row in images} == {True}
    assert len(page.page("title", "", [found, sheet])) < 2**21  # less than 2 MB


def test_sections_share_the_features_of_the_first_run_of_a_group(noisy, mlp, data_dir):
    runs = run_set(data_dir, noisy, mlp)
    first, second = (group.runs[0] for group in runs.groups)
    (one, split), (again, _), (other, _) = map(runs.loaded, (first, first, second))
    assert one.computed[split] is again.computed[split]
    assert other.computed[split] is not one.computed[split]
    repetition = dataclasses.replace(runs, groups=[Group("both", (second, first))])
    assert not repetition.loaded(first)[0].computed


def under_a_sigmoid(runs, task, monkeypatch):
    """The runs with this task, and a list of two labels for every other example."""
    load = loaded_run.load_evaluated

    def loaded(*arguments):
        found, split = load(*arguments)
        pipeline = found.run.pipeline
        data = pipeline.dataset.splits[split]
        if task.stored_labels == "list":
            second = np.where(data.ids % 2, (data.labels + 1) % 3, -1)
            data = data._replace(labels=np.stack([data.labels, second], axis=-1))
        splits = {**pipeline.dataset.splits, split: data}
        dataset = pipeline.dataset._replace(splits=splits)
        pipeline = dataclasses.replace(pipeline, dataset=dataset)
        run = dataclasses.replace(found.run, task=task, pipeline=pipeline)
        return dataclasses.replace(found, run=run), split

    monkeypatch.setattr(loaded_run, "load_evaluated", loaded)
    lists = [[p._replace(labels=p.labels[:, None]) for p in group] for group in runs.predictions]
    return dataclasses.replace(runs, predictions=lists)


@pytest.mark.extended
@pytest.mark.parametrize("task", [OneVsRest(), Multilabel()], ids=lambda task: task.name)
def test_one_label_and_lists_of_labels_under_a_sigmoid_have_maps(
    noisy, data_dir, monkeypatch, task
):
    runs = under_a_sigmoid(run_set(data_dir, noisy), task, monkeypatch)
    assert runs.link == "sigmoid"
    if task.stored_labels == "list":
        for function in (objects_section.looks, objects_section.localisation):
            assert isinstance(function(runs).parts[-1], Picture)
    (text, picture) = saliency_section.doubts(runs).parts
    assert "variance of the utility u of the label" in text
    run, split = loaded_run.load_evaluated(runs.groups[0].runs[0], "test", data_dir)
    data = loaded_run.split_data(run, split)

    def of_batch(key, latent, batch):
        logits = run.run.parts.predictive(None, latent)
        return latent_lib.covariance(latent), jax.nn.sigmoid(logits)

    covariance, probs = by_example.map_latents(run, split, of_batch)
    variances = run.variance_scale * np.einsum("nkk->nk", covariance)
    first, second, _ = np.argsort(-np.mean(probs * (1 - probs) * variances, axis=0))
    for rows, label in ((picture.numbers[:3], first), (picture.numbers[3:], second)):
        assert {row["class"] for row in rows} == {run.dataset["class_names"][label]}
        expected = np.sort(variances[:, label])[::-1][:3]
        np.testing.assert_allclose([row["variance"] for row in rows], expected, rtol=1e-3)
        assert not any("other" in row for row in rows)
    if task.stored_labels == "list":
        by_id = dict(zip(data.ids, data.labels))
        for row in picture.numbers:
            assert len(row["label"].split(", ")) == (by_id[row["id"]] >= 0).sum()


def test_a_run_without_boxes_is_a_note(monkeypatch):
    runs = RunSet([], "test", None, [[predictions(np.ones(3), np.ones(3))]], None)
    text = "LowRank, seed 0: no localisation: the run reads no boxes."
    monkeypatch.setattr(summary, "localised", lambda *_: summary.Localised({}, None, {}, [text]))
    (note,) = objects_section.localisation(runs).parts
    assert note == page.note(text)


def test_runs_whose_maps_are_not_available_are_notes_beside_the_others(
    mlp, noisy, plain, data_dir, tmp_path
):
    lost = shutil.copytree(plain, tmp_path / "lost")
    shutil.rmtree(lost / "checkpoints")
    runs = run_set(data_dir, mlp, lost, noisy)
    for function in (objects_section.looks, objects_section.localisation):
        *parts, picture = function(runs).parts
        assert isinstance(picture, Picture)
        numbers = picture.numbers.get("runs", picture.numbers)
        assert [name.split(",")[0] for name in numbers] == [runs.groups[-1].name]
        notes = [x for x in parts if "not available" in x]
        assert len(notes) == 2
        for run, group, note in zip((mlp, lost), runs.groups, notes):
            assert f"The maps of {group.name}, seed 0 are not available: {run}" in note
    for function in (objects_section.looks, objects_section.localisation):
        (note,) = function(run_set(f"{data_dir}/nowhere", noisy)).parts
        assert "The maps of LowRank, seed 0 are not available" in note


def predictions(confidence, objectness=None, seed=0):
    """Predictions of two classes with a given confidence, all of them right."""
    confidence = np.asarray(confidence, float)
    logits = np.log(np.stack([confidence, np.maximum(1 - confidence, 1e-9)], axis=-1))
    ids = np.arange(len(logits))
    extras = {} if objectness is None else {"objectness": np.asarray(objectness, np.float32)}
    return Predictions(Path(f"seed_{seed}"), ids, 0 * ids, logits, extras=extras)


def test_a_confidence_that_is_the_objectness_lies_on_the_diagonal():
    rng = np.random.default_rng(0)
    objectness = np.append(rng.uniform(0.5, 1, 200), np.zeros(50))  # without boxes
    confidence = np.where(objectness > 0, objectness, 0.99)
    runs = [predictions(confidence, objectness)] * 2
    x, y = context_section.confidence_by_objectness(runs)
    np.testing.assert_allclose(x, y, rtol=1e-6)
    assert (np.diff(x) > 0).all()
    assert x.mean() == pytest.approx(objectness[:200].mean(), rel=1e-3)
    order = rng.permutation(250)
    shuffled = [predictions(confidence[order], objectness[order])]
    for a, b in zip(context_section.confidence_by_objectness(shuffled), (x, y), strict=True):
        np.testing.assert_allclose(a, b)


def test_the_table_is_of_the_evaluations_whose_chain_removes_objects():
    splits = {"test": "test", "context": dict(split="test", eval="resize(8) | context(1.0)")}
    evals = {name: dict(split=name, checkpoint="last") for name in splits}
    config = {"data": {"splits": splits, "eval": "resize(8)"}, "evals": evals, "seed": 0}
    metrics = dict(accuracy=0.5, confidence=0.75, overconfidence=0.25, underconfidence=0.125)
    results = {"evals": {"test": metrics | {"accuracy": 0.875}, "context": metrics}}
    saved = SavedRun(Path("run"), config, results, {"class_names": ["a", "b"]})
    found = [predictions([0.6, 0.9, 0.8], [0.5, 1.0, 0.25])]
    runs = RunSet([Group("hard", (saved,))], "test", None, [found], None)
    assert context_section.without_objects(runs) == ["context"]
    table, picture = context_section.context(runs).parts
    rows = re.findall(r"<th scope=.row.>(.*?)</th>(.*?)</tr>", table)
    cells = {name: re.findall(r"<td>(.*?)</td>", row) for name, row in rows}
    assert cells["hard, context"] == ["0.5000", "0.2500", "0.1250", "0.7500"]
    assert cells["hard, test"][0] == "0.8750"
    np.testing.assert_allclose(picture.numbers["hard"]["confidence"], [0.8, 0.6, 0.9])
    config["evals"] = {"test": evals["test"]}
    without = dataclasses.replace(runs, predictions=[[predictions([0.6, 0.9, 0.8])]])
    notes = context_section.context(without).parts
    assert "No evaluation of all runs removes the objects" in notes[0]
    assert "have no objectness" in notes[1]


def test_maps_with_a_sign_have_zero_in_the_middle_of_their_colours():
    image = np.zeros((8, 8, 3), np.uint8)
    signed = np.array([[-1.0, 3.0]])
    shown = overlays.Cell(image, None, "image")
    negative = overlays.Cell(image, signed, "signed")
    positive = overlays.Cell(image, np.abs(signed), "positive")
    figure = overlays.grid([[shown, negative, positive], [None, positive, shown]], "title")
    limits = [axes.images[-1].get_clim() for axes in figure.axes if axes.images]
    assert limits[1:4] == [(-3, 3), (0, 3), (-3, 3)]  # in a column the same colours
    texts = [axes.texts[0].get_text() if axes.texts else None for axes in figure.axes]
    assert texts == ["image", "signed", "positive", None, "positive", "image"]


@pytest.mark.parametrize(
    "rows", [[], [[]], [[overlays.Cell(np.zeros((2, 2, 1), np.uint8), None, "")], []]]
)
def test_rows_have_cells_and_one_length(rows):
    with pytest.raises(ValueError, match=r"rows have \[.*\] cells; give rows of one length"):
        overlays.grid(rows)
