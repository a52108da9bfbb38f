"""Runs whose targets depend on extras of the examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from small_runs import plain

from experiments import study
from heteroscedastic import boxes
from heteroscedastic.data.storage import store
from heteroscedastic.runs import assembly, compiled, loop, predictions, run_record, smoke, workdir
from heteroscedastic.training import evaluate

NUM = {"train": 24, "test": 10}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A directory with two sets: images with boxes, and images with invalid soft labels."""
    directory, draws = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    arrays = {"class_names": np.array(["cat", "dog", "eel"])}
    for split, number in NUM.items():
        arrays[f"{split}_inputs"] = draws.integers(0, 256, (number, 8, 8, 3)).astype(np.uint8)
        arrays[f"{split}_labels"] = draws.integers(0, 3, number)
    corners = {split: np.sort(draws.random((n, 2, 2, 2)), axis=2) for split, n in NUM.items()}
    rows = {f"{split}_boxes": x.reshape(-1, 2, 4) for split, x in corners.items()}
    np.savez(directory / "boxes.npz", **arrays, **rows)
    votes = np.tile([0.5, 0.5, 0], (NUM["train"], 1))
    votes[7] = [0.5, 0.5, 0.5]
    np.savez(directory / "votes.npz", **arrays, train_votes=votes)
    return str(directory)


def config(name, smoothing, extras):
    overrides = {
        "data.name": name,
        "data.extras": extras,
        "smoothing": smoothing,
        "backbone": dict(name="MLP", widths=(4,)),
        "head": dict(name="Deterministic", num_classes=3),
        "predictive": dict(name="deterministic"),
        "training.batch_size": 12,
    }
    return study.config("own_images", overrides)


def evaluated(extras, data_dir):
    """A run with these extras, and the function from a feed to predictions by zero parameters."""
    run = assembly.build(config("boxes", dict(name="hard"), extras), data_dir)
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), run.shapes)
    test = jax.tree.map(jnp.asarray, run.pipeline.arrays["test"])

    def predictions(feed):
        return run.eval_step(state.params, state.model_state, test, feed, jax.random.key(0))[1]

    return run, predictions, next(iter(run.pipeline.feeds("test", np.arange(12))))


def test_predictions_have_the_objectness_of_boxes_that_the_config_names(data_dir):
    run, predictions, feed = evaluated(("boxes",), data_dir)
    arrays = evaluate.arrays(jax.tree.map(np.asarray, jax.jit(predictions)(feed)))
    expected = boxes.objectness(jnp.asarray(run.dataset.splits["test"].extras["boxes"]))
    np.testing.assert_allclose(arrays["extra_objectness"][:10], expected, rtol=1e-5)
    assert run.task.extra_results(arrays)["objectness"] > 0


def test_predictions_have_no_objectness_of_boxes_that_the_config_does_not_name(data_dir):
    _, predictions, feed = evaluated((), data_dir)
    assert jax.eval_shape(predictions, feed).extras == {}


def test_the_shapes_of_a_run_with_adaptive_targets_are_checked(data_dir):
    compiled.check_shapes(
        assembly.build(config("boxes", dict(name="adaptive"), ("boxes",)), data_dir)
    )


def test_a_run_whose_soft_labels_are_no_distribution_fails_before_it_trains(data_dir):
    given = config("votes", dict(name="given", field="votes"), ("votes",))
    with pytest.raises(
        ValueError,
        match=r"^config\.data: .*votes\.npz: train_votes: the example of id 7 sums to 1\.5",
    ):
        assembly.build(given, data_dir)
    assembly.build({**given, "smoothing": dict(name="hard")}, data_dir)


def test_noise_that_soft_labels_would_not_have_is_an_error(data_dir):
    given = config("votes", dict(name="given", field="votes"), ("votes",))
    with pytest.raises(ValueError, match=r"'symmetric' changes labels, but config\.smoothing"):
        assembly.build({**given, "curation": "symmetric(rate=0.4)"}, data_dir)


def test_boxes_that_extras_do_not_name_choose_no_examples(data_dir):
    given = config("boxes", dict(name="hard"), ())
    given["data"]["with_boxes"] = True
    with pytest.raises(ValueError, match=r"config\.data\.extras does not name the boxes; set"):
        assembly.build(given, data_dir)


def test_a_run_learns_from_the_soft_labels_of_each_example(data_dir, tmp_path):
    arrays = dict(np.load(f"{data_dir}/boxes.npz"))
    votes = np.random.default_rng(0).dirichlet(np.ones(3), NUM["train"]).astype(np.float32)
    np.savez(tmp_path / "boxes.npz", **arrays, train_votes=votes)
    given = trained_on_all(
        config("boxes", dict(name="given", field="votes"), ("votes",)), train="value_range(-1, 1)"
    )
    given["evals"] = dict(train=dict(split="train"))
    given["training"] |= dict(num_epochs=1.0, checkpoint_epochs=1.0)
    given["schedule"] |= dict(learning_rate=1e-30)  # predictions are those of the first step
    loop.train(given, str(tmp_path / "run"), str(tmp_path))
    (metrics,) = run_record.metrics(tmp_path / "run")
    saved = predictions.read(tmp_path / "run", "train")
    log_probs = np.asarray(jax.nn.log_softmax(saved.logits))
    losses = -np.sum(votes[saved.ids] * log_probs, axis=1)
    entropies = -np.sum(votes * np.log(votes), axis=1)
    assert metrics["train/loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert metrics["train/divergence"] == pytest.approx((losses - entropies).mean(), rel=1e-3)


def test_soft_labels_of_a_stream_are_checked_as_it_is_read(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    from heteroscedastic.data.storage import sample

    sample.write("cifar10_h", str(tmp_path), ["train", "test"])  # its soft labels are zeros
    streamed = config("cifar10_h", dict(name="given", field="soft_label"), ("soft_label",))
    streamed["data"] |= dict(pipeline="streaming", reader_shards=4)
    streamed["head"]["num_classes"] = 10
    pipeline = assembly.build(streamed, str(tmp_path)).pipeline
    with pytest.raises(
        ValueError, match=r"train: soft_label: the example of id \d+ sums to 0, but"
    ):
        next(iter(pipeline.training_feeds(0, 0, np.arange(12))))


@pytest.mark.parametrize(
    ("smoothing", "extras", "message"),
    [
        (dict(name="adaptive"), (), r"set config\.data\.extras=\('boxes',\)\."),
        (dict(name="adaptive"), ("a",), r"set config\.data\.extras=\('a', 'boxes'\)\."),
        (dict(name="given", field="soft"), ("a",), r"set config\.data\.extras=\('a', 'soft'\)\."),
    ],
)
def test_a_smoothing_whose_extra_no_example_has_fails_before_data_is_read(
    tmp_path, smoothing, extras, message
):
    for check in (assembly.build, smoke.smoke):
        with pytest.raises(ValueError, match=rf"^config\.smoothing .*{message}$") as caught:
            check(config("absent", smoothing, extras), str(tmp_path))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["adaptive", "given", "by_class"])
def test_a_smoke_run_whose_stand_in_lacks_what_targets_depend_on_has_hard_targets(tmp_path, name):
    np.save(tmp_path / "table.npy", np.eye(3))
    smoothing, extras = {
        "adaptive": (dict(name="adaptive"), ("boxes",)),
        "given": (dict(name="given", field="votes"), ("votes",)),
        "by_class": (dict(name="by_class", rate=0.1, table=str(tmp_path / "table.npy")), ()),
    }[name]
    shrunk, _ = smoke.smoke(config("absent", smoothing, extras), str(tmp_path))
    assert shrunk["smoothing"] == dict(name="hard")
    compiled.check_shapes(assembly.build(shrunk, str(tmp_path)))


def test_a_smoke_run_of_data_with_boxes_keeps_adaptive_targets(data_dir):
    shrunk, _ = smoke.smoke(config("boxes", dict(name="adaptive", beta=0.5), ("boxes",)), data_dir)
    assert shrunk["smoothing"] == dict(name="adaptive", beta=0.5, over="wrong", objectness="own")


def test_a_table_by_class_suits_a_config_that_takes_as_many_classes_as_the_data_has(
    data_dir, tmp_path
):
    np.save(tmp_path / "table.npy", np.eye(3))
    smoothing = dict(name="by_class", rate=0.1, table=str(tmp_path / "table.npy"))
    stated = config("boxes", smoothing, ())
    stated["head"]["num_classes"] = None
    assembly.check(stated)
    compiled.check_shapes(assembly.build(stated, data_dir))


def test_a_run_whose_table_by_class_changed_does_not_resume(data_dir, tmp_path):
    table, directory = tmp_path / "table.npy", tmp_path / "run"
    given = config("boxes", dict(name="by_class", rate=0.1, table=str(table)), ())

    def owner(rows):
        np.save(table, rows)
        run = assembly.build(given, data_dir)
        with workdir.claimed(directory, run.config):
            return workdir.claim_data(directory, run.description)

    first = owner(np.eye(3))
    assert owner(np.eye(3, dtype=int)) == first  # the same numbers
    np.save(table, np.roll(np.eye(3), 1, axis=0))
    with pytest.raises(
        workdir.WorkdirError,
        match=r"/run began with another table of config\.smoothing [^\n]*; restore the file, or ",
    ):
        loop.train(given, str(directory), data_dir)
    (directory / "dataset.json").unlink()
    assert owner(np.roll(np.eye(3), 1, axis=0)) != first  # other checkpoints are not its own


def test_the_description_of_a_run_without_a_table_is_that_of_its_data(data_dir):
    run = assembly.build(config("boxes", dict(name="hard"), ()), data_dir)
    assert run.description == run.pipeline.description


def trained_on_all(given, **data):
    """The config without a validation split, with these settings of `data`."""
    return {
        **given,
        "data": {**given["data"], "validation_fraction": 0.0, **data},
        "validation": None,
        "evals": dict(test=dict(split="test")),
    }


def without_a_box(data_dir, tmp_path):
    """A directory with the set "boxes"; two training examples have no box, or none with an area."""
    arrays = dict(np.load(f"{data_dir}/boxes.npz"))
    arrays["train_boxes"][4] = (0.2, 0.3, 0.2, 0.9)
    arrays["train_boxes"][9] = 0
    np.savez(tmp_path / "boxes.npz", **arrays)
    return str(tmp_path)


NEEDS_A_BOX = [
    (dict(name="adaptive"), "value_range(-1, 1)"),
    (dict(name="hard"), "context(rate=0.1)|value_range(-1, 1)"),
    (dict(name="hard"), "mask_others|value_range(-1, 1)"),
]


@pytest.mark.parametrize(("smoothing", "chain"), NEEDS_A_BOX)
def test_a_training_example_without_a_box_is_an_error_unless_it_is_left_out(
    data_dir, tmp_path, smoothing, chain
):
    directory = without_a_box(data_dir, tmp_path)
    given = trained_on_all(config("boxes", smoothing, ("boxes",)), train=chain)
    with pytest.raises(
        ValueError, match=r"^config\.data: .*train: the example of id 4 has no box, but .*True\.$"
    ):
        assembly.build(given, directory)
    run = assembly.build(trained_on_all(given, with_boxes=True), directory)
    ids = run.pipeline.example_ids["train"]
    np.testing.assert_array_equal(ids, np.setdiff1d(np.arange(NUM["train"]), (4, 9)))
    assert run.pipeline.sizes["test"] == NUM["test"]


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """A directory with the prepared set `toys`, of which not all examples have a box."""
    pytest.importorskip("tensorflow_datasets")
    from heteroscedastic.data.storage import sample

    directory = str(tmp_path_factory.mktemp("toys"))
    sample.write("toys", directory, ["train", "test"], has_boxes=True, size=8, num_classes=3)
    return directory


# For targets and for a chain; which of them need a box is the law of the data in memory.
@pytest.mark.parametrize(("smoothing", "chain"), mostly_extended(NEEDS_A_BOX[:2], NEEDS_A_BOX[1:2]))
def test_a_training_example_of_a_stream_without_a_box_is_an_error_unless_it_is_left_out(
    toys, smoothing, chain
):
    streamed = trained_on_all(
        config("toys", smoothing, ("boxes",)),
        **dict(pipeline="streaming", reader_shards=4, train=chain),
    )
    stored = store.load("toys", toys, extras=("boxes",)).splits["train"]
    has_box = stored.extras["boxes"].any(axis=(1, 2))
    assert not has_box.all()
    pipeline = assembly.build(streamed, toys).pipeline
    with pytest.raises(ValueError, match=r"the example of id \d+ has no box, but .*set it to True"):
        list(pipeline.training_feeds(0, 0, np.arange(12)))
    assert len(list(pipeline.feeds("train", np.arange(12)))) > 0  # without an error
    streamed["data"]["with_boxes"] = True
    run = assembly.build(streamed, toys)
    np.testing.assert_array_equal(run.pipeline.example_ids["train"], stored.ids[has_box])
    assert run.pipeline.sizes["test"] == len(store.load("toys", toys).splits["test"].ids)
    for feed in run.pipeline.training_feeds(0, 0, np.arange(12)):
        assert has_box[feed.ids[feed.weights > 0]].all()


def test_a_set_without_any_box_is_an_error_where_only_examples_with_one_are_kept(
    data_dir, tmp_path
):
    arrays = dict(np.load(f"{data_dir}/boxes.npz"))
    arrays["train_boxes"][:] = 0
    np.savez(tmp_path / "boxes.npz", **arrays)
    given = trained_on_all(config("boxes", dict(name="hard"), ("boxes",)), with_boxes=True)
    with pytest.raises(ValueError, match=r"train has no example with a box, but .* to False\.$"):
        assembly.build(given, str(tmp_path))


@pytest.mark.parametrize("microbatches", mostly_extended([1, 2], [2]))
def test_the_divergence_from_soft_targets_is_the_loss_above_their_entropy(tmp_path, microbatches):
    settings = {
        "backbone": dict(name="MLP", widths=(4,)),
        "training.num_epochs": 1.0,
        "training.microbatches": microbatches,
        "smoothing": dict(name="uniform", rate=0.3, over="wrong"),
    }
    loop.train(plain(**settings), str(tmp_path / "soft"))
    (soft,) = run_record.metrics(tmp_path / "soft")
    entropy = -(0.7 * np.log(0.7) + 0.3 * np.log(0.3 / 9))
    assert soft["train/divergence"] == pytest.approx(soft["train/loss"] - entropy, abs=1e-4)
    if microbatches == 1:
        hard = {**settings, "smoothing": dict(name="hard")}
        loop.train(plain(**hard), str(tmp_path / "hard"))
        (metrics,) = run_record.metrics(tmp_path / "hard")
        assert "train/divergence" not in metrics
