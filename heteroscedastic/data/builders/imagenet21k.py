"""ImageNet-21k: 14 million images of the autumn 2011 release of ImageNet, read out of its one
archive.
"""

import collections
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from heteroscedastic.data.builders import archives

NUM_CLASSES = 21_843
_FEWEST = 21_841  # synsets that have images, as the release is usually counted
_ARCHIVE = "fall11_whole.tar"
_LIST = "imagenet21k_wordnet_ids.txt"
_SHARES = {"train": 92, "validation": 4, "test": 4}

_DESCRIPTION = f"""
The autumn 2011 release of ImageNet, one synset an image, in `{_ARCHIVE}`. There are no official splits: an image is in
train, validation or test (92, 4 and 4 %) by the SHA-256 of its file name, so that it is always in the same one.

Classes are synsets in the order of their WordNet ids. `imagenet21k/fall11`, the default, has {NUM_CLASSES:,}: the
archive may have {_FEWEST:,} or up to two more, and classes that no synset is left for are called `unused_...`
and stand last. With `{_LIST}` beside the archive, one id a line, classes are its lines, and those without images stay.
`imagenet21k/any` takes the synsets of any other such archive, however many there are.

`labels` is `label` as a list of one, for models of many yes/no labels: Collier et al. (2021) train on this set
with a sigmoid and measure global average precision, though an image has one label.
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
        tfds.core.BuilderConfig(
            name="any", description="As many classes as the archive has synsets."
        ),
    ]
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"""
    manual_dir must hold {_ARCHIVE} (1.3 TB), a tar of one tar a synset such as n02084071.tar, as it comes: it is
    for those who have registered with https://image-net.org. Do not unpack it. {_LIST}
    beside it (one WordNet id a line, as published with BiT) is optional and gives classes its order.
    Preparing needs twice the space of the archive for a time.
    """

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(),  # named once the archive is seen
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
        whole = self.builder_config.name == "fall11"
        names = class_names(wnids, listed, whole, str(path))
        self.info.features["label"].names = names
        self.info.features["labels"].feature.names = names
        return {split: self._generate_examples(path, split) for split in _SHARES}

    def _generate_examples(self, path: Any, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for synset in archives.members(path):
            wnid = _wnid(synset, path)
            for image in synset.members():
                if split_of(image.name) == split:
                    label = {"label": wnid, "labels": [wnid]}
                    yield image.name, {"image": image.read(), "file_name": image.name, **label}


def split_of(file_name: str) -> str:
    """The split of an image: shares of the first 64 bits of the SHA-256 of its file name, such as
    n02084071_1.JPEG.
    """
    place = (
        int.from_bytes(hashlib.sha256(file_name.encode()).digest()[:8]) * sum(_SHARES.values())
        >> 64
    )
    for split, share in _SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError(f"{place} is beyond all splits.")


def class_names(
    wnids: Sequence[str], listed: Sequence[str] | None, whole: bool, where: str
) -> list[str]:
    """What the classes of an archive are called, in order.

    Args:
      wnids: of the archive's synsets.
      listed: the ids of all classes, in an order of their own.
      whole: there must be as many classes as the whole release has.
      where: the archive is, for errors.

    Raises:
      ValueError: there are other synsets than there must be.
    """
    twice = [wnid for wnid, times in collections.Counter(wnids).items() if times > 1]
    if twice or not wnids:
        found = f"the synsets {twice[:3]} twice" if twice else "no synset"
        raise ValueError(f"{where} has {found}; download it again.")
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
    if not whole:
        return names
    if not _FEWEST <= len(names) <= NUM_CLASSES:
        raise ValueError(
            f"{where} has {len(names):,} synsets, but the whole release has {_FEWEST:,} to"
            f" {NUM_CLASSES:,}. If it is"
            " another one, prepare imagenet21k/any, and set head.num_classes to what it has."
        )
    return names + [f"unused_{place}" for place in range(len(names), NUM_CLASSES)]


def _wnid(member: archives.Member, path: Any) -> str:
    wnid, _, ending = member.name.rpartition("/")[2].rpartition(".")
    if ending != "tar" or not (wnid[:1] == "n" and wnid[1:].isdigit()):
        raise ValueError(
            f"{path} holds {member.name}, but must hold one tar a synset, such as n02084071.tar."
        )
    return wnid
