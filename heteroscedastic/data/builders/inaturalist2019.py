"""iNaturalist 2019: images of species with their taxonomic class, at 64x64 pixels."""

import collections
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds

from heteroscedastic.data.storage import archives

_NUM_CLASSES = 9
_SIZE = 64  # pixels
_IMAGES = "train_val2019.tar.gz"
_CATEGORIES = "categories.json.tar.gz"
_LISTS = {"train": "train2019.json.tar.gz", "validation": "val2019.json.tar.gz"}

_DESCRIPTION = f"""
The 268,243 labelled images of the iNaturalist 2019 competition, which show 1,010 species. The label
is the taxonomic class of the species, out of {_NUM_CLASSES} classes in the order of their names.
`validation` has three images per species; the labels of the test images are not public.

Each image is resized as a whole to {_SIZE}x{_SIZE} pixels, so its aspect ratio changes, by Pillow's
antialiased bilinear filter, and stored as a PNG. `file_name` is its path in the archive:
train_val2019/SUPERCATEGORY/CATEGORY/IMAGE.jpg. Images in no list have no label and are left out.
"""
_CITATION = """
@misc{inaturalist2019,
  title={{iNaturalist} 2019 Competition},
  author={{iNaturalist}},
  howpublished={https://github.com/visipedia/inat_comp/tree/master/2019},
  year={2019}
}
"""


class Inaturalist2019(tfds.core.GeneratorBasedBuilder):
    """iNaturalist 2019."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": f"Taxonomic classes, {_SIZE}x{_SIZE} pixels."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"""
    Put these files into manual_dir without unpacking them. They are linked from
    https://github.com/visipedia/inat_comp/tree/master/2019:
      {_IMAGES} (74 GB, md5 c60a6e2962c9b8ccbd458d12c8582644)
      {_LISTS["train"]} (md5 b06a6683537867c0d5c7a45f407a306d)
      {_LISTS["validation"]} (md5 5cc5509b0fe495f1c8c1362612448497)
      {_CATEGORIES} (the un-obfuscated names of August 2019)
    """

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(_SIZE, _SIZE, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(),  # named once the categories are read
            "file_name": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage="https://github.com/visipedia/inat_comp/tree/master/2019",
            citation=_CITATION,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        directory = dl_manager.manual_dir
        needed = [_IMAGES, *_LISTS.values(), _CATEGORIES]
        archives.check_present(directory, needed, self.MANUAL_DOWNLOAD_INSTRUCTIONS)
        classes = _classes(directory / _CATEGORIES)
        names = sorted(set(classes.values()))
        self.info.features["label"].names = names
        # Both lists are read first, as reading the images takes long.
        labels = {split: _labels(directory / name, classes) for split, name in _LISTS.items()}
        for split, split_labels in labels.items():
            counts = collections.Counter(split_labels.values())
            for name in names:
                print(f"{self.name}: {split} has {counts[name]:,} images of {name}", flush=True)
        return {split: self._generate_examples(directory, split, labels[split]) for split in labels}

    def _generate_examples(
        self, directory: Any, split: str, labels: Mapping[str, str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        path, missing = directory / _IMAGES, set(labels)
        for member in archives.members(path):
            name = member.name
            if name in missing:
                missing.remove(name)
                image = _resized(member.read(), f"{path}: {name}")
                yield name, {"image": image, "label": labels[name], "file_name": name}
        if missing:
            raise ValueError(
                f"{path} lacks {len(missing):,} of the {len(labels):,} images of {_LISTS[split]},"
                f" such as {sorted(missing)[:3]}; download both again."
            )


def _resized(content: bytes, where: str) -> bytes:
    """The whole image at the size of the set, as a PNG in RGB."""
    from PIL import Image  # not required by all builders

    try:
        with Image.open(io.BytesIO(content)) as image:
            small = image.convert("RGB").resize((_SIZE, _SIZE), Image.Resampling.BILINEAR)
    except Exception as error:  # damage shows as OSError, SyntaxError, struct.error and others
        raise ValueError(f"{where} is not a valid image ({error}); download it again.") from None
    file = io.BytesIO()
    small.save(file, format="png")
    return file.getvalue()


def _classes(path: Any) -> Mapping[int, str]:
    """The taxonomic class of every category."""
    classes = dict(_rows(path, {"categories": _json(path)}, "categories", "id", "class"))
    names = sorted(set(classes.values()))
    if len(names) != _NUM_CLASSES:
        raise ValueError(
            f"{path} has {len(names)} taxonomic classes, such as {names[:10]}, but must have"
            f" {_NUM_CLASSES}; download the un-obfuscated names of August 2019."
        )
    return classes


def _labels(path: Any, classes: Mapping[int, str]) -> Mapping[str, str]:
    """The taxonomic class of every image in a list."""
    tables = _json(path)
    categories = dict(_rows(path, tables, "annotations", "image_id", "category_id"))
    labels = {}
    for image_id, file_name in _rows(path, tables, "images", "id", "file_name"):
        if image_id not in categories:
            raise ValueError(f"{path}: {file_name} has no annotation; download it again.")
        if categories[image_id] not in classes:
            raise ValueError(
                f"{path}: {file_name} is of category {categories[image_id]}, which {_CATEGORIES}"
                " does not list; download both again."
            )
        labels[file_name] = classes[categories[image_id]]
    return labels


def _json(path: Any) -> Any:
    """The content of X.json in X.json.tar.gz."""
    content = archives.content(path, path.name.removesuffix(".tar.gz"))
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again.") from None


def _rows(path: Any, tables: Any, name: str, *fields: str) -> Iterator[tuple[Any, ...]]:
    """These fields of every row of a table."""
    try:
        for row in tables[name]:
            yield tuple(row[field] for field in fields)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: {name} is not a table with the fields {', '.join(fields)} ({error!r});"
            " download it again."
        ) from None
