"""The command on finished runs."""

import dataclasses
import functools
import gc
import hashlib
import json
import shutil
import sys
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.analysis.plots import overlays
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.saliency import (
    deletion,
    evaluation,
    explain,
    groups,
    localisation,
    scalars,
    sheet,
    summary,
)
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.data import augment, chains
from heteroscedastic.models import heads
from heteroscedastic.runs import by_example, loaded_run
from heteroscedastic.tasks.multilabel import Multilabel

pytest.importorskip("matplotlib", reason="a sheet requires the extra `analysis`")


@pytest.fixture
def command(monkeypatch, capsys, data_dir):
    """Runs the command and returns its JSON file and what it printed."""

    def run(*arguments):
        flags = ["saliency", *map(str, arguments), f"--data_dir={data_dir}"]
        monkeypatch.setattr(sys, "argv", flags)
        summary.main()
        text = capsys.readouterr().out
        path = text.split("wrote ")[-1].split(",")[0].strip()
        with open(path) as file:
            return json.load(file), text

    return run


def contents(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.relative_to(directory).parts[0] != "analysis"
    }


@pytest.fixture(scope="module")
def loaded(noisy, data_dir):
    return loaded_run.load(noisy, data_dir=data_dir)


@pytest.fixture(scope="module")
def explained(loaded):
    """Answers about the run, each found once."""
    return functools.cache(functools.partial(explain.explain, loaded, "test"))


@pytest.fixture(scope="module")
def located(loaded):
    return functools.cache(functools.partial(evaluation.located, loaded, "test"))


def test_it_compares_runs_and_writes_only_under_analysis(command, noisy, plain):
    before = [contents(run) for run in (noisy, plain)]
    facts, text = command("--runs", plain, noisy, "--of=class")
    assert [contents(run) for run in (noisy, plain)] == before
    assert not (noisy / "analysis" / "saliency").exists()
    written = {path.name for path in (plain / "analysis" / "saliency").iterdir()}
    assert written == {f"test_class_grad_cam_pp.{suffix}" for suffix in ("json", "png", "svg")}
    assert set(facts["images"]) == {"plain", "noisy"}
    for row in (row for rows in facts["images"].values() for row in rows):
        assert row["is_right"] == (row["probable"][0]["class"] in row["labels"])
    words = [row["is_right"] for row in facts["images"]["plain"]]
    assert words == sorted(words)  # wrong ones first
    assert {*words} == {False, True}
    assert set(facts["differences"]["noisy"]) == set(evaluation.METRICS)
    for result in facts["runs"].values():
        names = {row["map"] for row in result["localisation"]}
        assert names == {"map", "centred Gaussian", "entire image", "map of another image"}
        for row in result["localisation"]:
            assert row["mean"]["low"] <= row["mean"]["value"] <= row["mean"]["high"]
            assert row["if_right"] <= row["mean"]["value"] + 1e-9
            if row["metric"] != "mass":
                assert 0 <= row["mean"]["value"] <= 1
    assert "wrote" in text
    # The terminal has the means, the thirds and the differences.
    (row,) = [
        row
        for row in facts["runs"]["noisy, seed 0"]["localisation"]
        if (row["map"], row["metric"]) == ("map", "pointing")
    ]
    lines = [line for line in text.splitlines() if line.startswith("noisy, seed 0 ")]
    assert f"{row['mean']['value']:.3f} [{row['mean']['low']:.3f}, " in lines[0]
    assert f"{row['if_right']:.3f} " in lines[1]
    assert " / ".join(f"{x:.3f}" for x in row["by_third"]) in lines[1]
    (line,) = [line for line in text.splitlines() if line.startswith("noisy  ")]
    assert f"{facts['differences']['noisy']['mass']['value']:.3f} [" in line


def test_the_map_of_another_image_is_that_of_the_scored_example_before(loaded, located):
    question = Question("class", "grad_cam", "label")
    found = located(question)
    data = loaded_run.split_data(loaded, "test")
    rows = np.flatnonzero(np.isin(data.ids, found.ids))
    maps = explain.explain(loaded, "test", question, np.roll(rows, 1)).maps
    boxes = evaluation.boxes_of(loaded, "test", rows)
    expected = localisation.scores(localisation.resized(maps, (8, 8)), boxes)
    for a, b in zip(found.by_map["map of another image"], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
    assert not np.array_equal(expected.mass, found.by_map["map"].mass)


def test_boxes_that_the_crop_loses_are_left_out_and_counted(located, data_dir):
    question = Question("class", "grad_cam", "label")
    found = located(question)
    with np.load(f"{data_dir}/patches.npz") as arrays:
        stored = arrays["test_boxes"][:, 0] * 16
    cropped = np.clip((stored - 4) / 8, 0, 1)  # the central 8 of 16 pixels
    has_box = ((cropped[:, 2:] - cropped[:, :2]) > 1e-5).all(axis=1)
    assert found.num_without_boxes == (~has_box).sum() > 3
    assert len(found.ids) + found.num_zero == has_box.sum()
    assert has_box[found.ids].all()
    expected = np.prod(cropped[:, 2:] - cropped[:, :2], axis=1)[found.ids]
    np.testing.assert_allclose(found.objectness, expected, rtol=1e-4)


def test_values_are_those_of_the_latents_in_units_of_the_utilities(loaded):
    data = loaded_run.split_data(loaded, "test")
    temperature = float(np.sqrt(loaded.variance_scale))
    assert temperature > 1.5  # so that units make a difference
    loc = temperature * by_example.map_latents(
        loaded, "test", lambda key, latent, batch: latent.loc
    )
    found = explain.explain(loaded, "test", Question("class", "cam"))
    rows = np.arange(len(loc))
    np.testing.assert_allclose(found.value, loc[rows, found.classes[:, 0]], rtol=1e-4)
    bias = loaded.state.params["head"]["loc"]["bias"]
    mean = found.maps.mean(axis=(1, 2)) + bias[found.classes[:, 0]]
    np.testing.assert_allclose(mean, found.value, rtol=1e-3, atol=1e-4)
    right = explain.explain(loaded, "test", Question("class", "cam", "label"))
    np.testing.assert_array_equal(right.classes[:, 0], data.labels)
    pair = explain.explain(loaded, "test", Question("class", "integrated", (2, 0)))
    np.testing.assert_allclose(pair.value, loc[:, 2] - loc[:, 0], rtol=1e-3, atol=1e-3)


def test_noise_maps_of_a_run_add_up_in_units_of_the_utilities(loaded, explained):
    found = explained(Question("noise", "integrated"))
    pairs = jnp.asarray(found.classes)
    zeros = jnp.zeros((len(pairs), 16))
    latent = loaded.run.latent_of_features(loaded.state.params, zeros)
    start = loaded.variance_scale * scalars.pair_variance(latent, pairs)
    total = found.maps.sum(axis=(1, 2))
    assert np.abs(total).max() > 1e-2
    np.testing.assert_allclose(total, found.value - start, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.diagonal + found.factors, found.maps, rtol=1e-4, atol=1e-6)


def test_log_prob_and_information_are_of_the_prediction(loaded):
    found = explain.explain(loaded, "test", Question("log_prob", "integrated"))
    # 128 points against the 16 samples of the run.
    np.testing.assert_allclose(np.exp(found.value), found.probs[:, 0], atol=0.05)
    found = explain.explain(loaded, "test", Question("information", "integrated"))
    assert found.classes.shape == (36, 0)
    assert ((found.value > 0) & (found.value < np.log(3))).all()
    entropy = explain.explain(loaded, "test", Question("entropy", "integrated"))
    assert (entropy.value > found.value).all()
    expected = -(entropy.probs * np.log(entropy.probs)).sum(axis=1)  # of all three classes
    np.testing.assert_allclose(entropy.value, expected, atol=0.05)
    assert np.abs(found.maps).max() > 0


def test_answers_are_those_beside_the_maps(loaded, explained):
    for question in (Question("noise", "integrated"), Question("class", "grad_cam", "label")):
        found = explain.answers(loaded, "test", question)
        maps = explained(question)
        for name, values in found._asdict().items():
            np.testing.assert_allclose(values, getattr(maps, name), rtol=1e-4, err_msg=name)


def test_chosen_rows_are_found_as_alone(loaded, explained):
    question = Question("noise", "integrated")
    every = explained(question)
    rows = summary.chosen_rows(loaded, "test", question, 3)
    np.testing.assert_allclose(every.value[rows], np.sort(every.value)[::-1][:3], rtol=1e-4)
    chosen = explain.explain(loaded, "test", question, rows)
    np.testing.assert_allclose(chosen.maps, every.maps[rows], rtol=1e-4, atol=1e-6)
    wrong_and_right = summary.chosen_rows(loaded, "test", Question("class", "grad_cam"), 4)
    assert len(set(wrong_and_right.tolist())) == len(wrong_and_right) >= 2


def test_an_id_is_explained_alone_with_the_given_classes(command, noisy):
    facts, text = command(
        "--runs", noisy, "--of=noise", "--classes", "rows", "2", "--id=5", "--method=integrated"
    )
    assert "test_noise_integrated_classes_0_2_5.json" in text
    (row,) = facts["images"]["LowRank"]
    assert row["id"] == 5
    assert row["explained"] == ["rows", "checks"]
    parts = row["sum_of_diagonal"] + row["sum_of_factors"]
    assert row["sum_of_map"] == pytest.approx(parts, rel=1e-4)
    assert "runs" not in facts


def test_pixels_of_an_mlp(command, mlp):
    for method in explain.PIXELS:
        facts, _ = command("--runs", mlp, "--of=noise", f"--method={method}", "--id=0")
        assert len(facts["images"]["Diagonal"]) == 1
    with pytest.raises(SystemExit, match=r"MLP has no maps; choose --method=integrated_gradients"):
        command("--runs", mlp, "--of=class")


ERRORS = [
    (("--of=noise", "--id=999"), r"the split 'test' has no example with id 999"),
    (("--of=class", "--classes", "rows", "rows"), r"a class is given twice"),
    (("--of=class", "--classes", "row"), r"there is no class 'row'; similar names are 'rows'"),
    (("--of=noise", "--classes", "rows"), r"--classes names 1, but --of=noise .* requires 2"),
    (("--of=class", "--classes", "0", "1", "2"), r"names 3, but --of=class .* requires 1 or 2"),
    (("--of=class", "--method=cam", "--classes", "0", "1"), r"--method=cam requires 1\."),
    (("--of=information", "--classes", "0"), r"--of=information .* requires 0"),
    (("--of=entropy", "--method=cam"), r"cam does not explain --of=entropy; choose one of"),
    (("--of=noise", "--method=grad_cam"), r"grad_cam does not explain --of=noise; choose one of"),
    (("--of=log_prob", "--method=cam"), r"cam does not explain --of=log_prob; choose one of"),
    (("--of=class", "--on=other"), r"has no evaluation 'other'; its evaluations are .*--on"),
]


ERRORS_WITHOUT_NOISE = [
    ((f"--of={of}",), r"the head Deterministic has no noise; choose .* or --of=class")
    for of in ("noise", "information")
]


@pytest.mark.parametrize(
    ("run", "flags", "message"),
    [("noisy", *case) for case in ERRORS] + [("plain", *case) for case in ERRORS_WITHOUT_NOISE],
)
def test_bad_input_is_one_line_that_says_what_to_do(command, request, run, flags, message):
    with pytest.raises(SystemExit, match=message) as error:
        command("--runs", request.getfixturevalue(run), *flags)
    assert "\n" not in str(error.value)


def test_a_head_without_noise_and_one_with_a_hidden_layer_say_what_to_use(
    command, noisy, plain, loaded
):
    with pytest.raises(SystemExit, match=r"Deterministic has no noise; .* or --of=class") as error:
        command("--runs", noisy, plain, "--of=noise")
    assert str(error.value).startswith(f"error: {plain}: the head")
    head = heads.Deterministic(3, hidden_width=4)
    hidden = with_run(loaded, model=loaded.run.model.clone(head=head))
    with pytest.raises(ValueError, match=r"--method=cam: hidden_width is 4, .*--method=grad_cam"):
        explain.check(hidden, Question("class", "cam"), "test")
    explain.check(hidden, Question("class", "grad_cam"), "test")


def with_run(loaded, **fields):
    """The loaded run with other fields of its run."""
    return dataclasses.replace(loaded, run=dataclasses.replace(loaded.run, **fields))


def with_test_split(loaded, **fields):
    """The loaded run with other fields of its split "test"."""
    pipeline = loaded.run.pipeline
    splits = pipeline.dataset.splits
    splits = {**splits, "test": splits["test"]._replace(**fields)}
    dataset = pipeline.dataset._replace(splits=splits)
    return with_run(loaded, pipeline=dataclasses.replace(pipeline, dataset=dataset))


def member(run):
    """The run as one of a group, with the split "valid" for thresholds."""
    return groups.Member("LowRank", 0, run, "test", "valid")


def test_runs_over_other_images_chains_or_classes_are_not_compared(loaded):
    test, config = loaded_run.split_data(loaded, "test"), loaded.run.config
    data = config["data"] | {"eval": "value_range(0, 1)"}
    others = {
        "were evaluated on different images": with_test_split(loaded, inputs=test.inputs[::-1]),
        "were evaluated on different images; ": with_test_split(loaded, ids=test.ids[::-1]),
        "saw them through different chains, 'central_crop.* and 'value_range": with_run(
            loaded, config=config | {"data": data}
        ),
        "have different classes": dataclasses.replace(
            loaded, dataset={"class_names": ["a", "b", "c"]}
        ),
    }
    groups.check_same_images(member(loaded), member(loaded))
    for message, other in others.items():
        other = dataclasses.replace(other, directory=Path("two"))
        with pytest.raises(ValueError, match=f"^{loaded.directory} and two {message}"):
            groups.check_same_images(member(loaded), member(other))


def test_runs_are_loaded_one_at_a_time(noisy, plain, data_dir):
    load, alive, most = loaded_run.load_evaluated, [], []

    def counted(saved_run):
        most.append(sum(run() is not None for run in alive))
        found, split = load(saved_run, "test", data_dir)
        alive.append(weakref.ref(found.run))
        return found, split

    saved = comparison.groups([noisy, plain]) * 2
    question = Question("class", "grad_cam")
    for found in groups.members(saved, "test", question, counted):
        explain.explain(found.run, found.split, question, np.arange(2))
        gc.collect()
    assert most == [0, 1, 2, 2]  # the first run and the one before


def test_a_run_from_before_or_unfinished_is_named(command, noisy, tmp_path):
    copy = tmp_path / "unfinished"
    shutil.copytree(noisy, copy)
    (copy / "results.json").unlink()
    with pytest.raises(SystemExit, match=r"holds no complete run: its training is not finished"):
        command("--runs", copy, "--of=class")


def test_zero_maps_and_maps_that_are_not_finite_say_what_to_do(loaded, noisy, command, monkeypatch):
    broken = jax.tree.map(np.array, loaded.state.params)
    broken["head"]["loc"]["kernel"] = broken["head"]["loc"]["kernel"] * np.nan
    diverged = dataclasses.replace(loaded, state=loaded.state._replace(params=broken))
    with pytest.raises(ValueError, match=r"the map of example \d+, and of 35 others") as error:
        explain.explain(diverged, "test", Question("class", "grad_cam"))
    assert str(error.value).startswith(f"{noisy}: the map of")
    zero = explain.explain
    monkeypatch.setattr(
        explain, "explain", lambda *a, **k: (x := zero(*a, **k))._replace(maps=0 * x.maps)
    )
    for flags, advice in (
        ("--of=class", r"as nothing raises .* choose other --classes or --method=integrated,"),
        ("--of=noise", r"as the number does not depend on the image; choose other --classes\.$"),
        ("--of=entropy", r"as the number does not depend on the image; choose another --id\.$"),
    ):
        with pytest.raises(SystemExit, match=f"example 3 by LowRank is 0 at every place, {advice}"):
            command("--runs", noisy, flags, "--id=3")
    with pytest.raises(ValueError, match=r"36 examples of 'test', \d+ have boxes and 0 maps"):
        evaluation.located(loaded, "test", Question("class", "grad_cam"))


def test_a_run_without_boxes_gets_the_rest_and_a_note(loaded):
    without = member(with_test_split(loaded, extras={}))
    facts = summary.numbers([without], Question("class", "grad_cam"))
    (result,) = facts["runs"].values()
    assert set(result) == {"deletion"}
    assert len(result["deletion"]["map"]) == len(facts["fractions_deleted"])
    assert facts["differences"] == {}
    (note,) = facts["notes"]
    assert note.startswith("LowRank, seed 0: no localisation: the run reads no boxes; choose")


def test_a_validation_without_boxes_leaves_the_other_metrics(loaded):
    pipeline = loaded.run.pipeline
    splits = pipeline.dataset.splits
    splits = {**splits, "valid": splits["valid"]._replace(extras={})}
    pipeline = dataclasses.replace(pipeline, dataset=pipeline.dataset._replace(splits=splits))
    without = member(with_run(loaded, pipeline=pipeline))
    facts = summary.numbers([without], Question("class", "grad_cam"))
    (result,) = facts["runs"].values()
    assert {row["metric"] for row in result["localisation"]} == {"pointing", "box", "mass"}
    (note,) = facts["notes"]
    assert note.startswith("LowRank, seed 0: no max_box: the run reads no boxes; choose")


def test_features_have_no_places(loaded):
    other = with_test_split(loaded, inputs=np.zeros((36, 5), np.float32))
    with pytest.raises(ValueError, match=r"inputs of the run are features \(5,\), .* on images"):
        explain.check(other, Question("class", "grad_cam"), "test")


def test_a_group_does_not_differ_from_itself_and_by_a_constant_from_its_shift():
    rng = np.random.default_rng(0)
    ids = rng.permutation(40)
    values = rng.random((2, 40))
    first = [(ids, {"pointing": v}) for v in values]
    # Another order of the same examples, one more example, and a constant more.
    more = [(np.append(ids, 99)[::-1], {"pointing": np.append(v, 0)[::-1] + 0.25}) for v in values]

    def difference(other):
        values = {"a": dict(enumerate(first)), "b": other}
        return evaluation.differences(values)["b"]["pointing"]

    assert difference(dict(enumerate(first))) == (0, 0, 0)
    # By seed, in another order of the seeds, and of the seed that both groups have.
    for other in ({0: more[0], 1: more[1]}, {1: more[1], 0: more[0]}, {1: more[1], 7: first[0]}):
        np.testing.assert_allclose(difference(other), 0.25, rtol=1e-9)


def test_intervals_resample_groups():
    values = np.repeat(np.random.default_rng(0).integers(0, 2, 50), 8).astype(np.float64)
    groups = np.repeat(np.arange(50), 8)
    alone, together = evaluation.interval(values), evaluation.interval(values, groups)
    assert together.value == alone.value == values.mean()
    # Eight times the variance; t intervals have as many degrees of freedom as groups.
    assert (together.high - together.low) / (alone.high - alone.low) == pytest.approx(
        np.sqrt(8), rel=0.15
    )
    ids = np.arange(400)
    runs = {"a": {0: (ids, {"box": 0 * values})}, "b": {0: (ids, {"box": values})}}
    found = evaluation.differences(runs, dict(zip(ids.tolist(), groups.tolist())))
    assert tuple(found["b"]["box"]) == pytest.approx(tuple(together))


def test_groups_that_the_config_names_are_those_of_the_scored_examples(loaded):
    test = loaded_run.split_data(loaded, "test")
    grouped = with_test_split(loaded, extras=test.extras | {"groups": test.ids // 3})
    question = Question("class", "grad_cam", "label")
    assert evaluation.located(grouped, "test", question).groups is None
    config = loaded.run.config
    data = config["data"] | {"extras": (*config["data"]["extras"], "groups")}
    named = with_run(grouped, config=config | {"data": data})
    found = evaluation.located(named, "test", question)
    np.testing.assert_array_equal(found.groups, found.ids // 3)


def test_a_sheet_shows_what_the_network_saw_with_the_boxes_that_the_crop_kept(
    loaded, data_dir, monkeypatch
):
    has_box = evaluation.boxes_of(loaded, "test").any(axis=(1, 2))
    kept, lost = np.flatnonzero(has_box)[:1], np.flatnonzero(~has_box)[:1]
    with np.load(f"{data_dir}/patches.npz") as arrays:
        stored, labels = arrays["test_inputs"], arrays["test_labels"]
        box = arrays["test_boxes"][kept[0], 0]
    drawn, grid = [], overlays.grid

    def recorded(lines, title):
        drawn.append(lines)
        return grid(lines, title)

    monkeypatch.setattr(overlays, "grid", recorded)
    question = Question("class", "grad_cam", "label")
    for rows in (np.append(kept, lost), lost):
        maps = explain.explain(loaded, "test", question, rows)
        sheet.draw([member(loaded)], question, rows, [maps])
    ((first, context, map_), (second, *others)), ((alone, _),) = drawn
    for cell, row in ((first, kept[0]), (map_, kept[0]), (second, lost[0]), (alone, lost[0])):
        np.testing.assert_array_equal(cell.image, stored[row, 4:12, 4:12])  # the central 8 of 16
    name = loaded.dataset["class_names"][labels[kept[0]]]
    assert first.caption == f"id {kept[0]}\nlabel: {name}"
    # Grey in the box, as it follows the crop, and the image outside of it.
    assert context.caption == "without objects"
    top, left, bottom, right = np.round(box * 16).astype(int) - 4
    inside = np.zeros((8, 8), bool)
    inside[max(top, 0) : bottom, max(left, 0) : right] = True
    assert 0 < inside.sum() < 64
    expected = np.where(inside[..., None], 128, first.image)
    np.testing.assert_array_equal(context.image, expected)
    assert others[0] is None


def test_a_verdict_is_right_if_the_likeliest_class_is_a_label():
    probable = np.array([[2, 0], [1, 2], [0, 1]])
    fields = dict.fromkeys(explain.Explained._fields) | {"probable": probable}
    found = explain.Explained(**fields | {"probs": np.full((3, 2), [0.75, 0.25])})
    labels = np.array([[2, -1], [2, 0], [1, 0]])
    texts = [sheet.verdict(found, labels, ["a", "b", "c"], i) for i in range(3)]
    percent = "75\u00a0%, {} 25\u00a0%"
    assert texts == [
        "right: c " + percent.format("a"),
        "wrong: b " + percent.format("c"),
        "right: a " + percent.format("b"),
    ]


def test_metrics_and_thirds_without_examples_are_left_out():
    ious = np.full((2, 50), 0.6)
    scores = localisation.Scores(np.array([1.0, 0.0]), np.full(2, np.nan), ious, ious)
    ids, objectness = np.arange(2), np.array([0.1, 0.2])
    found = evaluation.Located(ids, objectness, ids == 0, {"map": scores}, 0, 0)
    rows = {row["metric"]: row for row in evaluation.table(found, None)}
    assert set(rows) == {"pointing", "box"}
    assert rows["pointing"]["mean"].value == 0.5
    np.testing.assert_equal(rows["pointing"]["by_third"], [1.0, 0.0, np.nan])
    ours = {"pointing": np.ones(2), "mass": np.full(2, np.nan)}
    values = {"a": {0: (ids, ours)}, "b": {0: (ids, ours)}}
    assert set(evaluation.differences(values)["b"]) == {"pointing"}
    assert evaluation.differences(values | {"c": {0: (ids + 2, ours)}}) == {}


def test_the_only_image_with_scores_has_no_map_of_another(loaded):
    question = Question("class", "grad_cam", "label")
    every = evaluation.located(loaded, "test", question)
    chosen = np.isin(loaded_run.split_data(loaded, "test").ids, every.ids[:1])
    boxes = loaded_run.split_data(loaded, "test").extras["boxes"]
    alone = with_test_split(loaded, extras={"boxes": boxes * chosen[:, None, None]})
    others = with_test_split(loaded, extras={"boxes": boxes * ~chosen[:, None, None]})
    others = member(others)._replace(group="others")
    found = summary.localised([member(alone), others], question)
    (result, _) = found.runs.values()
    assert result["num_scored"] == 1
    names = {row["map"] for row in result["localisation"]}
    assert names == {"map", "centred Gaussian", "entire image"}
    assert found.differences == {}
    assert found.notes == ["no differences between groups: no image has scores of all runs."]


def test_metrics_take_the_threshold_of_the_validation():
    ious = np.zeros((5, 50))
    ious[:, 10] = 0.6
    scores = localisation.Scores(np.ones(5), np.ones(5), ious, ious)
    assert set(evaluation.metrics(scores, None)) == {"pointing", "box", "mass"}
    other = ious[:, ::-1]
    validation = scores._replace(any_ious=other)
    assert evaluation.metrics(scores, scores)["max_box"].mean() == pytest.approx(2 / 3)
    assert evaluation.metrics(scores, validation)["max_box"].mean() == 0
    np.testing.assert_array_equal(evaluation.metrics(scores, None)["box"], 1)  # at 0.2


def with_lists(loaded, labels):
    """The loaded run with lists of labels under a sigmoid."""
    run = with_test_split(loaded, labels=np.asarray(labels, np.int32))
    return with_run(run, task=Multilabel())


def test_all_labels_of_an_image_are_explained_together(loaded):
    one = loaded_run.split_data(loaded, "test").labels
    two = np.stack([one, (one + 1) % 3], axis=-1)
    padded = np.stack([np.full_like(one, -1), one], axis=-1)
    found, single, other = (
        explain.explain(with_lists(loaded, x), "test", Question("class", "integrated", "label"))
        for x in (two, padded, two[:, 1:])
    )
    for name in ("value", "maps"):
        total = getattr(single, name) + getattr(other, name)
        np.testing.assert_allclose(getattr(found, name), total, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found.classes, two)
    (row,) = summary.images(explain.Explained(*(x[:1] for x in found[:6])), two[:1], "abc")
    assert row["explained"] == ["abc"[c] for c in two[0]]


def test_an_image_with_one_label_scores_as_its_list_and_one_without_labels_is_left_out(loaded):
    question = Question("class", "grad_cam_pp", "label")
    one = loaded_run.split_data(loaded, "test").labels
    single = evaluation.located(loaded, "test", question, with_controls=False)
    lists = np.stack([one, np.full_like(one, -1)], axis=-1)
    without = single.ids[:2]
    lists[without] = -1
    found = evaluation.located(with_lists(loaded, lists), "test", question, with_controls=False)
    np.testing.assert_array_equal(found.ids, single.ids[2:])
    assert found.num_zero == single.num_zero + 2
    for a, b in zip(found.by_map["map"], single.by_map["map"], strict=True):
        np.testing.assert_allclose(a, b[2:], rtol=1e-4, atol=1e-6)


def test_images_that_a_chain_leaves_as_integers_are_explained_as_floats(loaded, monkeypatch):
    """A value range that is that of the integers changes only their type."""
    monkeypatch.setattr(evaluation, "MAX_DELETED", 4)
    found = []
    for chain in ("central_crop(8)", "central_crop(8)|value_range(0, 255)"):
        chain = chains.evaluation(augment, chain)
        run = with_run(loaded, pipeline=dataclasses.replace(loaded.run.pipeline, chain=chain))
        images = explain.inputs(run, "test", np.arange(1))
        question = Question("class", "integrated_gradients")
        found.append((images.dtype, evaluation.deletion_curves(run, "test", question)))
    (first, ours), (second, theirs) = found
    assert (first, second) == (np.uint8, np.float32)
    for name, curve in theirs.items():
        np.testing.assert_allclose(ours[name], curve, rtol=1e-4, atol=1e-5)


def test_deletion_starts_at_the_mean_value(loaded):
    question = Question("noise", "integrated")
    curves = evaluation.deletion_curves(loaded, "test", question)
    expected = explain.explain(loaded, "test", question).value.mean()
    for curve in curves.values():
        assert curve[0] == pytest.approx(expected, rel=1e-4)


def test_deletion_curves_of_a_linear_scalar_follow_from_what_each_pixel_adds(loaded, monkeypatch):
    """Pixels add the more, the farther they are from the centre."""
    weights = 1 - localisation.centred_gaussian((8, 8)).astype(np.float32)
    levels = np.linspace(1, 2, 36, dtype=np.float32)  # of images of one colour each
    images = np.ones((36, 8, 8, 3), np.float32) * levels[:, None, None, None]
    explained = explain.explain(loaded, "test", Question("class", "grad_cam"))
    explained = explained._replace(maps=levels[:, None, None] * weights)
    for name, value in (
        ("explain", explained),
        ("inputs", images),
        ("mean_color", np.full(3, 0.25)),
    ):
        monkeypatch.setattr(explain, name, lambda *_, value=value: value)
    monkeypatch.setattr(
        explain, "scalar_of_inputs", lambda *_: lambda x: jnp.einsum("bhwc,hw->b", x, weights)
    )
    curves = evaluation.deletion_curves(loaded, "test", Question("class", "grad_cam"))
    numbers = np.round(deletion.FRACTIONS * 64).astype(int)
    ordered = np.sort(weights.ravel())
    for name, order in (("map", ordered[::-1]), ("centre", ordered)):
        filled = np.array([order[:n].sum() for n in numbers])
        expected = 3 * (levels.mean() * (ordered.sum() - filled) + 0.25 * filled)
        np.testing.assert_allclose(curves[name], expected, rtol=1e-4, err_msg=name)
    assert (curves["map"][1:] < curves["random"][1:]).all()
    assert (curves["random"][1:] < curves["centre"][1:]).all()
