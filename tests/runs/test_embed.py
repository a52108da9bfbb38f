import io
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from PIL import Image
from small_runs import plain

from heteroscedastic.data.storage import encoded, store
from heteroscedastic.runs import embed, loaded_run, loop


def command(monkeypatch, *words, data="digits"):
    monkeypatch.setattr(sys, "argv", ["embed", f"--data={data}", *words])
    embed.main()


def write_images(directory, sizes, labels):
    """A data set of encoded images of these sizes."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    contents = [io.BytesIO() for _ in images]
    for image, content in zip(images, contents):
        Image.fromarray(image).save(content, "PNG")
    data, offsets = encoded.pack([content.getvalue() for content in contents])
    arrays = {"train_encoded": data, "train_offsets": offsets, "train_labels": np.array(labels)}
    np.savez(directory / "mine.npz", class_names=np.array(["a", "b"]), **arrays)
    return images


def write_weights(path, net):
    variables = {kind: {"backbone": x} for kind, x in net.variables.items()}
    np.savez(path, **traverse_util.flatten_dict(variables, sep="/"))


def test_features_are_those_of_the_backbone(monkeypatch, tmp_path):
    words = "--backbone=ConvNet", "--size=12", "--seed=3", "--batch_size=50", f"--out={tmp_path}"
    command(monkeypatch, *words)
    arrays = np.load(tmp_path / "digits_ConvNet_12.npz")
    net = embed.network("ConvNet", None, None, 12, 3)
    images = store.load("digits").splits["test"].inputs[:5].astype(np.float32)
    images = jnp.broadcast_to(images, (*images.shape[:3], 3))
    resized = jnp.round(jax.image.resize(images, (5, 12, 12, 3), "bilinear", antialias=True))
    expected = net.backbone.apply(net.variables, 2 * resized / 255 - 1, jnp.ones(5, bool))
    np.testing.assert_allclose(arrays["test_inputs"][:5], expected, atol=2e-3)
    assert arrays["train_inputs"].dtype == np.float16
    for split, data in store.load("digits").splits.items():
        np.testing.assert_array_equal(arrays[f"{split}_labels"], data.labels)
        np.testing.assert_array_equal(arrays[f"{split}_ids"], data.ids)
    loaded = store.load("digits_ConvNet_12", str(tmp_path))
    assert loaded.class_names == store.load("digits").class_names
    recipe = json.loads((tmp_path / "digits_ConvNet_12.json").read_text())
    assert recipe["weights"] == "random, seed 3"


def test_a_stopped_command_resumes_to_the_same_bytes(monkeypatch, tmp_path):
    words = ["--backbone=ConvNet", "--batch_size=64"]
    monkeypatch.setattr(embed, "_PART_SIZE", 500)
    command(monkeypatch, *words, f"--out={tmp_path / 'whole'}")
    original, calls = embed.embedded, []

    def stops(*args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*args)

    monkeypatch.setattr(embed, "embedded", stops)
    with pytest.raises(SystemExit):
        command(monkeypatch, *words, f"--out={tmp_path / 'stopped'}")
    assert not (tmp_path / "stopped" / "digits_ConvNet.npz").exists()
    calls.clear()
    parts = tmp_path / "stopped" / "digits_ConvNet_parts"
    (parts / ".train_00000500.npz.123.tmp").touch()  # of a process that was killed
    monkeypatch.setattr(embed, "embedded", lambda *args: (calls.append(1), original(*args))[1])
    command(monkeypatch, *words, f"--out={tmp_path / 'stopped'}")
    assert len(calls) == 3  # of five parts, two were there
    first, second = (
        (tmp_path / name / "digits_ConvNet.npz").read_bytes() for name in ("whole", "stopped")
    )
    assert first == second
    assert not parts.exists()


def test_a_run_gives_its_own_features(monkeypatch, tmp_path):
    loop.train(plain(**{"training.num_epochs": 1.0}), str(tmp_path / "run"))
    command(monkeypatch, f"--run={tmp_path / 'run'}", f"--out={tmp_path}")
    (path,) = tmp_path.glob("digits_*.npz")
    run = loaded_run.load(tmp_path / "run")
    split = run.run.dataset.splits["test"]
    feed = run.run.pipeline.example("test", training=False)
    feed = feed._replace(rows=np.arange(len(feed.rows)))
    expected, _ = run.run.features(run.state.params, run.state.model_state, split, feed)
    np.testing.assert_allclose(np.load(path)["test_inputs"][:5], expected[:5], atol=1e-2, rtol=1e-2)


def test_the_weights_of_a_run_are_on_all_devices(tmp_path):
    loop.train(plain(**{"training.num_epochs": None, "training.num_steps": 1}), str(tmp_path))
    apply = embed.features_of(embed.network_of_run(str(tmp_path), None, None), None)
    for array in jax.tree.leaves(apply.args):
        assert isinstance(array.sharding, jax.sharding.NamedSharding)
        assert array.sharding.is_fully_replicated


def test_images_of_several_sizes_require_a_size(monkeypatch, tmp_path):
    images = write_images(tmp_path, [(20, 9), (5, 7), (12, 12)], [0, 1, 0])
    words = ["--backbone=ConvNet", "--batch_size=4"]
    words += [f"--data_dir={tmp_path}", f"--out={tmp_path}"]
    with pytest.raises(SystemExit, match="images differ in size; give --size"):
        command(monkeypatch, *words, data="mine")
    command(monkeypatch, *words, "--size=12", data="mine")
    net = embed.network("ConvNet", None, None, 12, 0)
    resized = [
        jnp.round(jax.image.resize(jnp.float32(image), (12, 12, 3), "bilinear", antialias=True))
        for image in images
    ]
    scaled = 2 * jnp.stack(resized) / 255 - 1
    expected = net.backbone.apply(net.variables, scaled, jnp.ones(3, bool))
    result = np.load(tmp_path / "mine_ConvNet_12.npz")["train_inputs"]
    np.testing.assert_allclose(result, expected, atol=0.03 * np.std(expected))


def test_weights_of_a_file_require_the_chain_of_their_pixels(monkeypatch, tmp_path):
    net = embed.network("ConvNet", None, None, 8, 0)
    write_weights(tmp_path / "weights.npz", net)
    images = write_images(tmp_path, [(8, 8)] * 2, [0, 1])
    words = ["--backbone=ConvNet", f"--weights={tmp_path / 'weights.npz'}", "--batch_size=2"]
    words += [f"--data_dir={tmp_path}", f"--out={tmp_path}"]
    with pytest.raises(SystemExit, match="give --chain, for ResNets of torchvision") as error:
        command(monkeypatch, *words, data="mine")
    chain = re.search("--chain='.*'", str(error.value))[0].replace("'", "")
    with pytest.raises(SystemExit, match=r"weights.npz does not fit MLP: it lacks params/Dense_0"):
        command(monkeypatch, "--backbone=MLP", *words[1:], chain, data="mine")
    command(monkeypatch, *words, chain, data="mine")
    scaled = (np.stack(images) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    expected = net.backbone.apply(net.variables, jnp.float32(scaled), jnp.ones(2, bool))
    result = np.load(tmp_path / "mine_ConvNet.npz")["train_inputs"]
    np.testing.assert_allclose(result, expected, atol=2e-3 * np.ptp(expected))


def test_other_features_in_the_same_place_are_an_error(monkeypatch, tmp_path):
    command(monkeypatch, "--backbone=ConvNet", f"--out={tmp_path}")
    with pytest.raises(SystemExit, match="exists already"):
        command(monkeypatch, "--backbone=ConvNet", f"--out={tmp_path}")
    with pytest.raises(SystemExit, match="is of other features than these"):
        command(monkeypatch, "--backbone=ConvNet", "--seed=1", f"--out={tmp_path}")


@pytest.mark.parametrize("changed", ["weights", "labels"])
def test_features_of_changed_data_or_weights_are_not_resumed(monkeypatch, tmp_path, changed):
    """With the same names and sizes."""
    weights = tmp_path / "weights.npz"
    words = ["--backbone=ConvNet", f"--weights={weights}", "--chain=to_rgb|value_range(-1, 1)"]
    words += [f"--data_dir={tmp_path}", f"--out={tmp_path / 'out'}"]

    def write(seed, labels):
        write_weights(weights, embed.network("ConvNet", None, None, 8, seed))
        write_images(tmp_path, [(8, 8)] * 2, labels)

    original, calls = embed.embedded, []

    def stops(*args):
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*args)

    write(0, [0, 1])
    monkeypatch.setattr(embed, "_PART_SIZE", 1)
    with monkeypatch.context() as patch:
        patch.setattr(embed, "embedded", stops)
        with pytest.raises(SystemExit):
            command(patch, *words, data="mine")
    write(*((1, [0, 1]) if changed == "weights" else (0, [1, 0])))
    with pytest.raises(SystemExit, match="is of other features than these"):
        command(monkeypatch, *words, data="mine")
    write(0, [0, 1])
    command(monkeypatch, *words, data="mine")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backbone=ResNet9"], "backbones has no 'ResNet9'"),
        (["--backbone=ResNet50", "--weights=pretrained"], "no public weights of 'ResNet50'"),
        (["--backbone=ConvNet", "--weights=absent.npz", "--chain="], "absent.npz, is missing"),
        (["--backbone=ConvNet", "--chain=flip"], "flip"),
    ],
)
def test_bad_words_are_named(monkeypatch, tmp_path, words, message):
    with pytest.raises(SystemExit, match=message):
        command(monkeypatch, *words, f"--out={tmp_path}")


def test_a_command_that_failed_does_not_block_the_corrected_one(monkeypatch, tmp_path, capsys):
    for words, message in (
        (["--chain=flip"], "flip"),
        (["--chain=value_range(-1, 1)"], "do not fit the parameters of the backbone; give a --ch"),
    ):
        with pytest.raises(SystemExit, match=message):
            command(monkeypatch, "--backbone=ConvNet", *words, f"--out={tmp_path}")
    command(monkeypatch, "--backbone=ConvNet", f"--out={tmp_path}")
    with pytest.raises(SystemExit):
        command(monkeypatch, f"--run={tmp_path}", "--seed=1", f"--out={tmp_path}")
    assert "--seed is of random weights; leave it out with --weights" in capsys.readouterr().err


def test_features_too_large_for_float16_are_an_error():
    with pytest.raises(ValueError, match="float16 ends at 65504"):
        embed.embedded(lambda x: x.reshape(len(x), -1) * 1e5, np.ones((3, 2, 2, 1)), 2)


@pytest.mark.parametrize("flag", ["--extras", "--fields"])
def test_further_fields_have_the_name_of_the_other_commands_and_the_former_one(flag, monkeypatch):
    words = ["embed", "--data=mine", "--backbone=MLP", "--out=here", flag, "boxes", "groups"]
    monkeypatch.setattr(sys, "argv", words)
    assert embed._parsed().extras == ["boxes", "groups"]
