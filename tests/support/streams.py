"""Small prepared data sets, and streaming pipelines of them."""

import io

import numpy as np
from PIL import Image

from heteroscedastic.bind import chain

NAMES = ("cat", "dog", "owl")
NUM_TRAIN, NUM_TEST = 41, 9


def photograph(draws, size=None):
    """An encoded smooth image: a JPEG of random size, or a PNG of the given size."""
    coarse = draws.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    file_format, size = (
        ("PNG", size) if size else ("JPEG", tuple(map(int, draws.integers(40, 90, 2))))
    )
    file = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, file_format)
    return file.getvalue()


def examples(number, seed, corrupt, size):
    """Images with a box, a class, a human label and a list of classes.

    Those that are `corrupt` are truncated.
    """
    import tensorflow_datasets as tfds

    draws, corners = (np.random.default_rng(x) for x in (seed, (seed, 1)))
    for i in range(number):
        image = photograph(draws, size)
        yield (
            i,
            {
                "image": image[: len(image) // 2] if i in corrupt else image,
                "box": tfds.features.BBox(*np.sort(corners.random((2, 2)), axis=0).ravel()),
                "label": int(draws.integers(3)),
                "human": int(draws.integers(3)),
                "labels": np.flatnonzero(draws.random(3) < 0.4).tolist(),
            },
        )


def prepare(directory, name="pets", corrupt=(), names=NAMES, size=None):
    """Prepares a data set in three files of unequal lengths."""
    import tensorflow_datasets as tfds

    one = tfds.features.ClassLabel(names=list(names))
    features = {
        "image": tfds.features.Image(shape=(*(size or (None, None))[::-1], 3)),
        "box": tfds.features.BBoxFeature(),
        "label": one,
        "human": one,
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features | {"labels": tfds.features.Sequence(one)}),
        split_datasets={
            "train": examples(NUM_TRAIN, 0, corrupt, size),
            "test": examples(NUM_TEST, 1, (), size),
        },
        data_dir=directory,
        download_config=tfds.download.DownloadConfig(num_shards=3),
        disable_shuffling=True,
    )


def stream(
    directory,
    name="pets",
    training="inception_crop(8)|flip_lr|value_range(-1, 1)",
    evaluation="resize(8)|value_range(-1, 1)",
    seed=0,
    batch_size=8,
    curate=lambda data: data,
    reads_labels=False,
    max_labels=3,
    settings=(),
    **choices,
):
    """The streaming pipeline of a prepared data set."""
    from heteroscedastic.data.streaming import ops, sources, stream

    chosen = sources.choose(
        name, str(directory), curate, reads_labels=reads_labels, max_labels=max_labels, **choices
    )
    return stream.Streaming(
        chosen,
        seed=seed,
        batch_size=batch_size,
        training_chain=chain(ops, training),
        chain=chain(ops, evaluation),
        max_labels=max_labels,
        **{"reader_shards": 4, "window": 5} | dict(settings),
    )


def rewritten(path, change):
    """Replaces the records of a file by `change` of them."""
    import tensorflow as tf

    records = change(list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def relabelled(path, number, field, values):
    """Replaces the stored numbers of a field of one example of a file."""
    import tensorflow as tf

    def change(records):
        example = tf.train.Example.FromString(records[number])
        feature = example.features.feature[field]
        is_float = isinstance(values[0], float)
        (feature.float_list if is_float else feature.int64_list).value[:] = values
        return [*records[:number], example.SerializeToString(), *records[number + 1 :]]

    rewritten(path, change)
