"""A small copy of a prepared set, with its features and splits, and digits as images.

It takes the place of a set that is not on disk, so that a smoke run of any config reads record
files as a full run does. Requires TensorFlow Datasets and scikit-learn.
"""

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import UInt8

from heteroscedastic.data.storage import digits, tfds
from heteroscedastic.links import LabelForm

NUM_EXAMPLES = 32  # of every split
MAX_CLASSES = 64  # labels are below it, even if the set has more classes
_NUM_FILES = 4  # of every split
# Heights and widths of images, where the set does not fix them.
_SIZES = ((48, 64), (64, 48), (56, 56), (72, 40))
_LIST_LENGTHS = 4  # lists of boxes or labels have 0 to 3 entries; the first one is empty
_VERSION = "1.0.0"  # of a set without a builder


def write(
    name: str,
    data_dir: str,
    splits: Sequence[str],
    *,
    label: str = "label",
    labels: LabelForm = "one",
    has_boxes: bool = False,
    size: int | None = None,
    num_classes: int = 10,
) -> None:
    """Prepares the copy.

    Args:
      name: name of the set in TFDS.
      data_dir: directory of the copy.
      splits: splits to write.
      label: field of the labels, if the set has no builder.
      labels: one label per example or a list, if the set has no builder.
      has_boxes: whether examples have boxes, if the set has no builder.
      size: height and width of the images, if the set has no builder; None varies them.
      num_classes: number of classes, if no builder defines it.

    Raises:
      ModuleNotFoundError: TensorFlow Datasets is not installed.
      ValueError: the set has features that cannot be imitated, such as audio.
    """
    library = tfds.library()
    try:
        builder = library.builder(name, data_dir=data_dir)
        features, version = builder.info.features, str(builder.version)
        config = builder.builder_config.name if builder.builder_config else None
        name = builder.name
    except library.core.DatasetNotFoundError:
        features, version, config = _schema(label, labels, has_boxes, size), _VERSION, None
    _name_classes(features, num_classes)
    images = digits.digits().splits["train"].inputs[..., 0]
    library.disable_progress_bar()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        _quiet(),
    ):  # the library reports downloads and empty folders
        library.dataset_builders.store_as_tfds_dataset(
            name=name,
            version=version,
            config=config,
            features=features,
            split_datasets={
                split: _examples(features, split, place, images)
                for place, split in enumerate(splits)
            },
            data_dir=data_dir,
            description="A small copy for smoke runs; its images are digits.",
            download_config=library.download.DownloadConfig(num_shards=_NUM_FILES),
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _schema(label: str, labels: LabelForm, has_boxes: bool, size: int | None) -> Any:
    library = tfds.library()
    one = library.features.ClassLabel()
    image = library.features.Image(shape=(size, size, 3), encoding_format="jpeg")
    fields = {"image": image, "file_name": library.features.Text(), "groups": np.int64}
    fields[label] = library.features.Sequence(one) if labels == "list" else one
    if has_boxes:
        fields["boxes"] = library.features.Sequence(library.features.BBoxFeature())
    return library.features.FeaturesDict(fields)


def _name_classes(feature: Any, num_classes: int) -> None:
    """Names the classes of features whose builder reads the names from downloaded files."""
    library = tfds.library()
    if isinstance(feature, library.features.FeaturesDict):
        for part in feature.values():
            _name_classes(part, num_classes)
    elif isinstance(feature, library.features.Sequence):
        _name_classes(feature.feature, num_classes)
    elif isinstance(feature, library.features.ClassLabel) and feature.num_classes is None:
        feature.names = [str(k) for k in range(num_classes)]


def _examples(
    features: Any, split: str, place: int, images: np.ndarray
) -> Iterator[tuple[str, Any]]:
    draws = np.random.Generator(np.random.Philox(key=place))
    for i in range(NUM_EXAMPLES):
        name = f"{split}_{i:05d}.JPEG"
        yield name, _value(features, "", name, i, draws, images)


def _value(
    feature: Any, field: str, name: str, i: int, draws: np.random.Generator, images: np.ndarray
) -> Any:
    """The value of a feature of example i."""
    kinds = tfds.library().features

    def part_value(part, part_name):
        return _value(part, part_name, name, i, draws, images)

    match feature:
        case kinds.FeaturesDict():
            return {key: part_value(part, key) for key, part in feature.items()}
        case kinds.Sequence():
            length = _length(feature) or i % _LIST_LENGTHS
            values = [part_value(feature.feature, field) for _ in range(length)]
            one_label = isinstance(feature.feature, kinds.ClassLabel)
            return sorted(set(values)) if one_label else values
        case kinds.ClassLabel():
            return int(draws.integers(min(feature.num_classes, MAX_CLASSES)))
        case kinds.BBoxFeature():
            low, high = draws.uniform(0, 0.4, 2), draws.uniform(0.6, 1, 2)
            return kinds.BBox(*map(float, (*low, *high)))
        case kinds.Image():
            return image(
                images[draws.integers(len(images))],
                feature.shape,
                feature.encoding_format or "jpeg",
                i,
            )
        case kinds.Text():
            return name
        case kinds.Tensor() if type(feature) in (kinds.Tensor, kinds.Scalar) and _is_number(
            feature
        ):
            # Pairs of examples are groups.
            number = {"groups": i // 2, "image/id": i}.get(field, 0)
            return np.full([n or 1 for n in feature.shape], number, feature.np_dtype)
    raise ValueError(f"field {field!r} is {feature}, which a small copy does not support.")


def _is_number(feature: Any) -> bool:
    return np.dtype(feature.np_dtype).kind in "biuf"


def _length(sequence: Any) -> int | None:
    """The length of lists of this feature, if the set fixes it."""
    info = sequence.get_tensor_info()
    while isinstance(info, dict):
        info = next(iter(info.values()))
    return info.shape[0]


def image(
    digit: UInt8[np.ndarray, "8 8"], shape: Sequence[int | None], encoding: str, i: int
) -> bytes:
    """A digit as an encoded image.

    Args:
      digit: pixels.
      shape: height, width and channels; None where the set does not fix them.
      encoding: "jpeg" or "png".
      i: number of the example. Sizes that are not fixed vary with it, and every fourth image of a
        set of colour images is grey.
    """
    from PIL import Image

    height, width = (fixed or free for fixed, free in zip(shape, _SIZES[i % len(_SIZES)]))
    picture = Image.fromarray(digit).resize((width, height), Image.Resampling.BICUBIC)
    if (shape[2] or 3) == 3 and i % 4:
        picture = Image.merge("RGB", (picture, Image.eval(picture, lambda x: 255 - x), picture))
    file = io.BytesIO()
    picture.save(file, format=encoding)
    return file.getvalue()
