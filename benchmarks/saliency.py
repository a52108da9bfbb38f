"""Time of maps beside an evaluation, and memory of noise maps: python -m benchmarks.saliency

prints the time of the class activation map, Grad-CAM++ and the noise map of a batch as a multiple
of its evaluation (backbone, head and predictive), each compiled as one program and timed in turn;
and the temporaries of the noise maps of a batch at 21,843 classes and 50 shared factors, by the
compiler, which runs nothing. With --sections it prints instead the seconds and the size of the
report's sections about maps for one run on --images random images of the size of Tiny-ImageNet.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments import study
from heteroscedastic import predictive
from heteroscedastic.analysis.saliency import attribution, noise, scalars
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.runs import loop


def programs(model: Classifier, inputs: jax.Array, num_samples: int) -> dict:
    """The compiled programs by name: variables -> maps, or log-probabilities."""
    present = jnp.ones(len(inputs), bool)

    def maps_of(variables):
        maps = model.apply(variables, inputs, present, method="maps")
        return maps, lambda f: model.apply(variables, f, method="latent")

    def evaluation(variables):
        latent = model.apply(variables, inputs, present)
        return predictive.softmax(None, latent, num_samples=num_samples, points="sobol")

    def classes_of(latent):
        return jnp.argmax(latent.loc, axis=-1)

    def prediction(maps, head):
        latent = head(jnp.mean(maps, axis=(1, 2)))
        return latent, predictive.softmax(None, latent, num_samples=num_samples, points="sobol")

    def cam(variables):
        maps, head = maps_of(variables)
        latent, logits = prediction(maps, head)
        utilities = model.head.utilities_parameters(variables["params"]["head"])
        return logits, attribution.cam(maps, utilities, classes_of(latent))

    def grad_cam_pp(variables):
        maps, head = maps_of(variables)
        latent, logits = prediction(maps, head)
        classes = classes_of(latent)
        return logits, attribution.grad_cam_pp(maps, lambda f: scalars.utility(head(f), classes))

    def noise_maps(variables):
        maps, head = maps_of(variables)
        latent, logits = prediction(maps, head)
        parameters = model.head.noise_parameters(variables["params"]["head"])
        pairs = noise.default_classes(latent, jax.nn.softmax(logits))
        return logits, noise.noise_maps(maps, parameters, pairs)

    functions = (evaluation, cam, grad_cam_pp, noise_maps)
    return {function.__name__: jax.jit(function) for function in functions}


def temporaries(num_classes: int, num_factors: int, num_features: int, batch: int) -> int:
    """Bytes of temporaries of the noise maps of a batch of 7 x 7 places, by the compiler."""
    head = heads.ParameterEfficient(num_classes, num_factors=num_factors)
    shape = jax.ShapeDtypeStruct
    params = jax.eval_shape(head.init, jax.random.key(0), jnp.zeros((1, num_features)))["params"]

    def maps_of(params, maps, classes):
        return noise.noise_maps(maps, head.noise_parameters(params), classes)

    maps, classes = shape((batch, 7, 7, num_features), jnp.float32), shape((batch, 2), jnp.int32)
    compiled = jax.jit(maps_of).lower(params, maps, classes).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def trained(
    directory: Path, backbone: str, num_images: int, pixels: int, num_classes: int, batch: int
) -> Path:
    """A finished run of one step with a low-rank head, on random images with boxes.

    Args:
      directory: of the data and of the run.
      backbone: its name.
      num_images: of the test split, and of the validation split at most 1,000.
      pixels: height and width.
      num_classes: 2 or more.
      batch: examples of training.
    """
    rng, arrays = np.random.default_rng(0), {"class_names": np.arange(num_classes).astype(str)}
    splits = {"train": batch, "valid": min(1000, num_images), "test": num_images}
    for split, number in splits.items():
        corners = rng.uniform(0, 0.5, (number, 1, 2))
        boxes = np.concatenate([corners, corners + 0.5], axis=-1)
        arrays[f"{split}_inputs"] = rng.integers(0, 256, (number, pixels, pixels, 3), np.uint8)
        arrays[f"{split}_labels"] = rng.integers(0, num_classes, number)
        arrays[f"{split}_boxes"] = boxes.astype(np.float32)
    np.savez(directory / "random.npz", **arrays)
    chain = "value_range(-1, 1)"
    data = dict(name="random", train=chain, eval=chain, extras=("boxes",), max_boxes=1)
    settings = {
        "data": data | {"validation_fraction": 0.0},
        "curation": "",
        "backbone": dict(name=backbone),
        "head.num_classes": num_classes,
        "training.batch_size": batch,
        "training.num_epochs": 1.0,
        "validation": None,
        "evals": {
            split: dict(split=split, checkpoint="last", answers=None) for split in ("valid", "test")
        },
    }
    loop.train(study.config("digits_het_full", settings), str(directory / "run"), str(directory))
    return directory / "run"


def print_sections(run: Path, data_dir: Path) -> None:
    """Prints seconds and size of each section about maps, compilation included."""
    # The report requires matplotlib, and the other tables do not.
    from heteroscedastic.analysis.report import comparison, objects_section, page, saliency_section

    run_set = comparison.load(comparison.groups([run]), data_dir=str(data_dir))
    empty = len(page.page("", "", []).encode())
    print("| section | s | MB of the page |\n| --- | --- | --- |")
    sections = saliency_section.doubts, objects_section.looks, objects_section.localisation
    for function in sections:
        start = time.perf_counter()
        section = function(run_set)
        size = len(page.page("", "", [section]).encode()) - empty
        seconds = time.perf_counter() - start
        print(f"| {section.title} | {seconds:.1f} | {size / 1e6:.2f} |", flush=True)


def main() -> None:
    """Prints the table of times and a line about memory, or the table of sections."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--num_classes", type=int, default=200)
    parser.add_argument("--num_samples", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--backbone", default="ResNet10")
    parser.add_argument("--sections", action="store_true", help="measure sections of the report")
    parser.add_argument("--images", type=int, default=10_000, help="of the report's evaluation")
    flags = parser.parse_args()
    if flags.sections:
        sizes = flags.backbone, flags.images, flags.pixels, flags.num_classes, flags.batch
        with tempfile.TemporaryDirectory() as directory:
            print_sections(trained(Path(directory), *sizes), Path(directory))
        return
    model = Classifier(getattr(backbones, flags.backbone)(), heads.LowRank(flags.num_classes))
    size = (flags.batch, flags.pixels, flags.pixels, 3)
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    variables = jax.jit(model.init)(jax.random.key(0), inputs, jnp.ones(flags.batch, bool))
    calls = programs(model, inputs, flags.num_samples)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(flags.repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call(variables))
            if turn:  # the first compiles
                seconds[name].append(time.perf_counter() - start)
    whole = statistics.median(seconds["evaluation"])
    print(
        f"{flags.backbone}, LowRank, batch {size}, {flags.num_classes} classes, {jax.devices()[0]}:"
    )
    print("| program | ms | of an evaluation |\n| --- | --- | --- |")
    for name, times in seconds.items():
        print(f"| {name} | {1e3 * statistics.median(times):.1f} |", end="")
        print(f" {statistics.median(times) / whole:.2f} |")
    size = temporaries(21_843, 50, 2_048, 32) / 2**20
    print(f"noise maps at 21,843 classes, 50 shared factors, batch 32: {size:,.0f} MiB temporaries")


if __name__ == "__main__":
    main()
