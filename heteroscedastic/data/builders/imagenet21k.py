"""ImageNet-21k: the 14 million images of the autumn 2011 release, read from its archive."""

import collections
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from heteroscedastic.data.storage import archives

NUM_CLASSES = 21_843
_MIN_CLASSES = 21_841  # synsets with images, the usual count of the release
_ARCHIVE = "fall11_whole.tar"
_LIST = "imagenet21k_wordnet_ids.txt"
_PERCENTAGES = {"train": 92, "validation": 4, "test": 4}

_DESCRIPTION = f"""
The autumn 2011 release of ImageNet in `{_ARCHIVE}`, with one synset per image. There are no
official splits: train, validation and test have 92, 4 and 4 % of the images, by the SHA-256 of the
file name, so that an image is always in the same split.

Classes are synsets in the order of their WordNet ids. `imagenet21k/fall11`, the default, has
{NUM_CLASSES:,} classes: the archive may have {_MIN_CLASSES:,} synsets or up to two more; the
remaining classes are called `unused_...` and come last. If `{_LIST}` is beside the
archive, with one id per line, its lines are the classes, including those without images.
`imagenet21k/any` accepts any number of synsets.

`labels` is `label` as a list of length one, for models of many yes/no labels: Collier et al. (2021)
train on this set with a sigmoid and measure global average precision, although an image has one
label.
"""
_CITATION = """
@inproceedings{deng2009imagenet,
  title={{ImageNet}: A large-scale hierarchical image database},
  author={Deng, Jia and Dong, Wei and Socher, Richard and Li, Li-Jia and Li, Kai and Fei-Fei, Li},
  booktitle={CVPR},
  year={2009}
}
"""


class Imagenet21k(tfds.core.GeneratorBasedBuilder):
    """ImageNet-21k."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "92, 4 and 4 % by the SHA-256 of file names."}
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name="fall11", description=f"{NUM_CLASSES:,} classes."),
        tfds.core.BuilderConfig(name="any", description="One class per synset of the archive."),
    ]
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"""
    Put {_ARCHIVE} (1.3 TB) into manual_dir without unpacking it. It is a tar with one tar
    per synset, such as n02084071.tar, for users registered with https://image-net.org.
    {_LIST} beside it is optional: it has one WordNet id per line, as
    published with BiT, and defines the order of the classes. Preparing temporarily requires twice
    the space of the archive.
    """

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(),  # named once the archive is read
            "labels": tfds.features.Sequence(tfds.features.ClassLabel()),
            "file_name": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage="https://image-net.org",
            citation=_CITATION,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        directory = dl_manager.manual_dir
        archives.check_present(directory, [_ARCHIVE], self.MANUAL_DOWNLOAD_INSTRUCTIONS)
        path = directory / _ARCHIVE
        wnids = [_wnid(member, path) for member in archives.members(path)]
        listed = (directory / _LIST).read_text().split() if (directory / _LIST).exists() else None
        is_full_release = self.builder_config.name == "fall11"
        names = class_names(wnids, listed, is_full_release, str(path))
        self.info.features["label"].names = names
        self.info.features["labels"].feature.names = names
        return {split: self._generate_examples(path, split) for split in _PERCENTAGES}

    def _generate_examples(self, path: Any, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for synset in archives.members(path):
            wnid = _wnid(synset, path)
            for image in synset.members():
                if split_of(image.name) == split:
                    label = {"label": wnid, "labels": [wnid]}
                    yield image.name, {"image": image.read(), "file_name": image.name, **label}


def split_of(file_name: str) -> str:
    """The split of an image, from the first 64 bits of the SHA-256 of its file name.

    Args:
      file_name: name such as n02084071_1.JPEG.
    """
    number = int.from_bytes(hashlib.sha256(file_name.encode()).digest()[:8])
    position = number * sum(_PERCENTAGES.values()) >> 64  # uniform in 0 to 99
    for split, percentage in _PERCENTAGES.items():
        if position < percentage:
            return split
        position -= percentage
    raise AssertionError(f"position {position} is beyond all splits.")


def class_names(
    wnids: Sequence[str], listed: Sequence[str] | None, is_full_release: bool, where: str
) -> list[str]:
    """The class names of an archive, in order.

    Args:
      wnids: WordNet ids of the archive's synsets.
      listed: WordNet ids of all classes, which define their order; None sorts `wnids`.
      is_full_release: whether the number of classes must be that of the full release.
      where: location of the archive, for errors.

    Raises:
      ValueError: a synset occurs twice or is not listed, or the number of synsets is wrong.
    """
    duplicates = [wnid for wnid, count in collections.Counter(wnids).items() if count > 1]
    if duplicates or not wnids:
        problem = f"the synsets {duplicates[:3]} twice" if duplicates else "no synset"
        raise ValueError(f"{where} has {problem}; download it again.")
    if listed is not None:
        unknown = sorted(set(wnids) - set(listed))
        if unknown:
            raise ValueError(
                f"{where} has {len(unknown)} synsets that {_LIST} does not list, such as"
                f" {unknown[:3]}."
            )
        names = list(listed)
    else:
        names = sorted(wnids)
    if not is_full_release:
        return names
    if not _MIN_CLASSES <= len(names) <= NUM_CLASSES:
        raise ValueError(
            f"{where} has {len(names):,} synsets, but the full release has {_MIN_CLASSES:,} to"
            f" {NUM_CLASSES:,}. For another archive, prepare imagenet21k/any and set"
            " config.head.num_classes to its number of synsets."
        )
    return names + [f"unused_{k}" for k in range(len(names), NUM_CLASSES)]


def _wnid(member: archives.Member, path: Any) -> str:
    wnid, _, ending = member.name.rpartition("/")[2].rpartition(".")
    if ending != "tar" or not (wnid[:1] == "n" and wnid[1:].isdigit()):
        raise ValueError(
            f"{path} has {member.name}, but must have one tar per synset, such as n02084071.tar."
        )
    return wnid
