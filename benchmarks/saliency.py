"""Time of maps beside an evaluation, and memory of noise maps: python -m benchmarks.saliency

prints the time of the class activation map, Grad-CAM++ and the noise map of a batch as a multiple
of its evaluation (backbone, head and predictive), each compiled as one program and timed in turn;
and the temporaries of the noise maps of a batch at 21,843 classes and 50 shared factors, by the
compiler, which runs nothing. With --sections it prints instead the seconds and the size of the
report's sections about maps, for one run on --images validation images of Tiny-ImageNet.
"""

import argparse
import os
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


def trained(directory: Path, backbone: str, num_images: int, data_dir: str | None) -> Path:
    """A run of a few steps on Tiny-ImageNet with its boxes and a low-rank head.

    Args:
      directory: of the run.
      backbone: its name.
      num_images: of the validation split of Tiny-ImageNet, of which the sections are.
      data_dir: the directory of the data sets.
    """
    splits = dict(train="train[:1%]", valid="train[99%:]", test=f"validation[:{num_images}]")
    settings = {
        "data.splits": splits,
        "data.max_classes": None,
        "data.extras": ("boxes",),
        "backbone": dict(name=backbone),
        "training.num_epochs": 1.0,
        "validation": None,
        "evals": {
            split: dict(split=split, checkpoint="last", answers=None) for split in ("valid", "test")
        },
    }
    loop.train(study.config("tiny_imagenet_het_full", settings), str(directory), data_dir)
    return directory


def print_sections(run: Path, data_dir: str | None) -> None:
    """Prints seconds and size of the sections about maps, in the order of the report.

    Compilation is included. The first section is about correlated noise; it also computes the
    features, which the report keeps for all sections.
    """
    # The report requires matplotlib, and the other tables do not.
    from heteroscedastic.analysis.report import (
        comparison,
        covariance_section,
        objects_section,
        page,
        saliency_section,
    )

    run_set = comparison.load(comparison.groups([run]), data_dir=data_dir)
    empty = len(page.page("", "", []).encode())
    print("| section | s | MB of the page |\n| --- | --- | --- |")
    for function in (
        covariance_section.class_pairs,
        saliency_section.doubts,
        objects_section.looks,
        objects_section.localisation,
    ):
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
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    if flags.sections:
        with tempfile.TemporaryDirectory() as directory:
            run = trained(Path(directory), flags.backbone, flags.images, flags.data_dir)
            print_sections(run, flags.data_dir)
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
