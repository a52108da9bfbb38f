"""The streaming pipeline compared with decoding alone: python benchmarks/input.py --data_dir=DIR.

Reports images per second on one core, for a JPEG data set prepared by TFDS. "bare" is the minimum
that a random crop requires: drawing the window, decoding only the window, and resizing, from files
in memory. "full" decodes the full image before the crop. "ours" also reads record files, parses,
shuffles deterministically, flips and batches. With --boxes, "boxes" also reads the boxes and moves
them with the crop, and "context" also fills them in 15 % of the images. All are measured in turn,
so that other load on the machine affects them alike; ratios are medians over turns.

With --stages, reports microseconds per image of each stage of "ours" instead: the processor time of
the pipeline that ends with the stage, less that of the one that ends before it.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_BATCH, _SHARDS, _WINDOW = 64, 16, 128
_CROP = "inception_crop({size}{how})"


def copied(name: str, data_dir: str, out: str, times: int) -> int:
    """Writes a copy of a prepared data set whose train split repeats the files of all splits.

    Returns:
      The number of examples of the train split.
    """
    source = max((p for p in (Path(data_dir) / name).iterdir() if p.is_dir()), key=lambda p: p.name)
    folder = Path(out) / name / source.name
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and ".tfrecord" not in path.name:
            shutil.copyfile(path, folder / path.name)
    info = json.loads((folder / "dataset_info.json").read_text())
    files = [
        path
        for split in info["splits"]
        for path in sorted(source.glob(f"*-{split['name']}.tfrecord-*"))
    ] * times
    lengths = [length for split in info["splits"] for length in split["shardLengths"]] * times
    for i, path in enumerate(files):
        (folder / f"{name}-train.tfrecord-{i:05}-of-{len(files):05}").symlink_to(path.resolve())
    info["splits"] = [{"name": "train", "shardLengths": lengths, "numBytes": "0"}]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return sum(map(int, lengths))


def encoded(data_dir: str, name: str) -> list[bytes]:
    """The encoded images of a copied set, each once."""
    from heteroscedastic.data.storage import tfds
    from heteroscedastic.data.streaming.records import Records

    tf, records = tfds.tensorflow(), Records(name, data_dir)
    paths = sorted(set(map(os.path.realpath, records.files("train").paths)))
    stored = next(iter(tf.data.TFRecordDataset(paths).batch(10**6)))
    return records.parse(tf.range(len(stored)), stored, "label", 1, {})[0].numpy().tolist()


def bare(
    images: list[bytes], size: int, full_decode: bool, dct_method: str
) -> Callable[[int], None]:
    """A function that crops a number of images, cycling through `images`."""
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    def window(number, image):
        begin, extent = drawn(image, tf.stack((0, number)))
        if full_decode:
            pixels = tf.io.decode_jpeg(image, channels=3, dct_method=dct_method)
            pixels = tf.slice(pixels, begin, tf.stack((extent[0], extent[1], -1)))
        else:
            box = tf.stack((begin[0], begin[1], extent[0], extent[1]))
            pixels = tf.image.decode_and_crop_jpeg(image, box, channels=3, dct_method=dct_method)
        return tf.image.resize(pixels, (size, size))

    numbered = tf.data.Dataset.from_tensor_slices(images).repeat().enumerate()

    def run(number):
        windows = numbered.take(number).map(window, num_parallel_calls=tf.data.AUTOTUNE)
        assert num_elements(windows.prefetch(8)) == number

    return run


def drawn(image: Any, seed: Any) -> tuple[Any, Any]:
    """Corner and extent of a random window of a JPEG."""
    import tensorflow as tf

    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(image),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=100,
    )
    return begin, extent


def num_elements(dataset: Any) -> int:
    """The number of elements of a tf.data.Dataset, all of which are computed."""
    import tensorflow as tf

    counted = tf.autograph.experimental.do_not_convert(lambda number, *_: number + 1)
    return int(dataset.reduce(np.int64(0), counted))


def ours(
    data_dir: str,
    name: str,
    size: int,
    dct_method: str,
    max_boxes: int | None = None,
    operation: str | None = None,
) -> Callable[[int], None]:
    """A function that reads a number of images with our pipeline, one epoch per call.

    Args:
      data_dir: directory of the set.
      name: of the set.
      size: of the crops, in pixels.
      dct_method: see `ops.decode`.
      max_boxes: of an image; None reads no boxes.
      operation: of the chain, after the crop.
    """
    from heteroscedastic.bind import chain
    from heteroscedastic.data.streaming import ops, sources, stream

    how = f", dct_method={dct_method!r}" if dct_method else ""
    operations = (_CROP.format(size=size, how=how), operation, "flip_lr", "value_range(-1, 1)")
    text = "|".join(filter(None, operations))

    def pipeline(number):
        splits = {"train": f"train[:{number}]"}
        boxes = {} if max_boxes is None else {"extras": ("boxes",), "max_boxes": max_boxes}
        chosen = sources.choose(
            name, data_dir, lambda data: data, reads_labels=False, splits=splits, **boxes
        )
        links = chain(ops, text)
        return stream.Streaming(
            chosen,
            seed=0,
            batch_size=_BATCH,
            training_chain=links,
            chain=links,
            reader_shards=_SHARDS,
        )

    epochs: Iterator[int] = iter(range(10**9))

    def run(number):
        num_seen = sum(
            feed.weights.sum()
            for feed in pipeline(number).training_feeds(next(epochs), 0, np.arange(_BATCH))
        )
        assert num_seen == number

    return run


def stages(data_dir: str, name: str, size: int) -> dict[str, Callable[[int], None]]:
    """Functions that run the first stages of our pipeline on a number of images, by last stage."""
    import tensorflow as tf

    from heteroscedastic.bind import chain
    from heteroscedastic.data.streaming import graph, ops, reader_shards, sources

    class Unparsed(sources.Source):
        def parser(self, max_labels):
            return lambda positions, records: (records, tf.zeros_like(positions), {})

    def without_pixels(seed, example):
        return example | {"image": tf.zeros((1, 1, 1), tf.uint8)}

    def window(seed, example):
        values = tf.concat(drawn(example["image"], seed), 0)
        return example | {"image": tf.cast(tf.reshape(values, (6, 1, 1)), tf.uint8)}

    epochs: Iterator[int] = iter(range(10**9))

    def stored(number, kind=sources.Source):
        splits, epoch = {"train": f"train[:{number}]"}, next(epochs)
        chosen = sources.choose(name, data_dir, lambda x: x, reads_labels=False, splits=splits)
        source = kind(*chosen.sources["train"])
        lengths = source.records.files(source.part.split).lengths
        plans = [
            reader_shards.read_plan(
                shard, lengths, 0, _WINDOW, reader_shards.generator(0, epoch, i)
            )
            for i, shard in enumerate(reader_shards.shards(source.ids, _SHARDS))
        ]
        steps = -(-number // _BATCH)
        return source, graph.stored_examples(source, plans, _WINDOW, _BATCH // _SHARDS, steps, 16)

    def mapped(number, links):
        source, examples = stored(number)
        function = graph.chain_function(source.records.image_shape, {}, links)
        example = graph.example_function(function, graph.epoch_key(0, 0), [])
        return examples.map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def crop(pixels, end=""):
        return chain(ops, _CROP.format(size=pixels, how="") + end)

    datasets = {
        "read, shuffle, interleave": lambda number: stored(number, Unparsed)[1],
        "parse": lambda number: stored(number)[1],
        "ids and seeds": lambda number: mapped(number, [without_pixels]),
        "header and window": lambda number: mapped(number, [window]),
        "decode": lambda number: mapped(number, crop(1)),
        "resize and round": lambda number: mapped(number, crop(size)),
        "flip": lambda number: mapped(number, crop(size, "|flip_lr")),
        "batch": lambda number: mapped(number, crop(size, "|flip_lr")).batch(_BATCH),
    }

    def drained(make):
        return lambda number: num_elements(make(number).prefetch(tf.data.AUTOTUNE))

    by_stage = {stage: drained(make) for stage, make in datasets.items()}
    return by_stage | {"hand-over": ours(data_dir, name, size, "")}


def print_stages(forms: dict[str, Callable[[int], None]], number: int, num_turns: int) -> None:
    """Prints a table of microseconds per image: up to each stage, and of the stage alone."""
    turns = []
    for _ in range(num_turns):
        micros = {name: 1e6 / rate(run, _BATCH, number) for name, run in forms.items()}
        turns.append(micros)
        print("  ".join(f"{name} {value:,.0f}" for name, value in micros.items()), flush=True)
    print("| stage | us up to it | us of it (quartiles) |\n| --- | --- | --- |")
    for before, name in zip([None, *forms], forms):
        own = [turn[name] - (turn[before] if before else 0.0) for turn in turns]
        low, middle, high = statistics.quantiles(own, n=4)
        total = statistics.median(turn[name] for turn in turns)
        print(f"| {name} | {total:,.0f} | {middle:,.0f} ({low:,.0f} to {high:,.0f}) |")


def rate(run: Callable[[int], None], few: int, many: int) -> float:
    """Images per second of processor time between `few` and `many`, which excludes start-up."""
    seconds = []
    for number in (few, many):
        began = time.process_time()
        run(number)
        seconds.append(time.process_time() - began)
    return (many - few) / (seconds[1] - seconds[0])


def main() -> None:
    """Prints one line per turn, then medians."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--data_dir",
        default=os.environ.get("TFDS_DATA_DIR"),
        required="TFDS_DATA_DIR" not in os.environ,
    )
    parser.add_argument("--name", default="imagenet2012", help="a prepared data set of JPEG images")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--times",
        type=int,
        default=16,
        help="how often a turn reads each image, preferably a multiple of 16",
    )
    parser.add_argument("--boxes", type=int, help="also read at most so many boxes per image")
    parser.add_argument(
        "--forms",
        nargs="+",
        help="those to measure, such as ours boxes; ratios are to the first, by default bare",
    )
    parser.add_argument(
        "--stages", action="store_true", help="the stages of ours in place of forms"
    )
    parser.add_argument("--core", type=int, help="core to run on; defaults to the last available")
    flags = parser.parse_args()
    if flags.turns < 2:
        parser.error(f"--turns is {flags.turns}, but quartiles require at least 2.")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    core = max(os.sched_getaffinity(0)) if flags.core is None else flags.core
    os.sched_setaffinity(0, {core})  # before TensorFlow starts its threads

    with tempfile.TemporaryDirectory() as out:
        number = copied(flags.name, flags.data_dir, out, flags.times)
        images = encoded(out, flags.name)
        if flags.stages:
            print_stages(stages(out, flags.name, flags.size), number, flags.turns)
            return
        forms = {
            "bare": bare(images, flags.size, False, ""),
            "ours": ours(out, flags.name, flags.size, ""),
            "full": bare(images, flags.size, True, ""),
            "bare, accurate": bare(images, flags.size, False, "INTEGER_ACCURATE"),
            "ours, accurate": ours(out, flags.name, flags.size, "INTEGER_ACCURATE"),
        }
        if flags.boxes:
            forms["boxes"] = ours(out, flags.name, flags.size, "", flags.boxes)
            forms["context"] = ours(out, flags.name, flags.size, "", flags.boxes, "context(0.15)")
        if unknown := set(flags.forms or ()) - set(forms):
            parser.error(f"no form {unknown.pop()!r}; choose of {', '.join(map(repr, forms))}.")
        forms = {name: forms[name] for name in flags.forms or forms}
        print(
            f"{len(images)} files of {np.mean(list(map(len, images))) / 1e3:.0f} KB, core {core}",
            flush=True,
        )
        turns = []
        for _ in range(flags.turns):
            turns.append({name: rate(run, _BATCH, number) for name, run in forms.items()})
            print(
                "  ".join(f"{name} {value:,.0f}" for name, value in turns[-1].items()), flush=True
            )
    first = next(iter(forms))
    for name in forms:
        median = statistics.median(turn[name] for turn in turns)
        ratios = [turn[name] / turn[first] for turn in turns]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name:16} {median:7,.0f} images/s  {middle:.3f} of {first} (quartiles {low:.3f} to"
            f" {high:.3f})"
        )


if __name__ == "__main__":
    main()
