"""Sentence pairs as numbers of words, which later processes load from the user's cache."""

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from heteroscedastic import files
from heteroscedastic.data.text import words as words_lib
from heteroscedastic.data.text.pairs import Pairs

_VERSION = 1  # of the preparation; a change of its results is another version
_LIBRARIES = ("sacremoses", "subword-nmt")


class Sentences(NamedTuple):
    """Sentences of one side of a split, as numbers of words; each ends with `words.END`."""

    tokens: Int[np.ndarray, "m"]  # of all sentences, one after another
    lengths: Int[np.ndarray, "n"]

    def split(self) -> list[Int[np.ndarray, "_"]]:
        """The tokens of each sentence."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1])


class PreparedText(NamedTuple):
    """Sentence pairs as numbers of words."""

    source: dict[str, Sentences]  # by split
    target: dict[str, Sentences]
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    merges: str  # of the byte-pair encoding
    fingerprint: str  # of the sentences and of all that they became


def prepared(
    pairs: Mapping[str, Pairs], languages: tuple[str, str], num_merges: int
) -> PreparedText:
    """Tokens, byte-pair encoding and vocabularies of sentence pairs.

    The encoding is joint, and it and the vocabularies are of all pairs of split "train". The
    result is loaded from `files.user_cache()` where the same was prepared before.

    Args:
      pairs: by split.
      languages: of source and target.
      num_merges: largest number of merges of the encoding.

    Raises:
      ValueError: there is no split "train", or a sentence has no tokens.
      ModuleNotFoundError: the extra [text] is not installed.
    """
    if "train" not in pairs:
        raise ValueError(f"there is no split 'train'; the splits are {', '.join(sorted(pairs))}.")
    fingerprint = _fingerprint(pairs, languages, num_merges)
    arrays = files.cached_arrays(
        "text", fingerprint, lambda: _prepared(pairs, languages, num_merges)
    )
    return _text(arrays, fingerprint)


def encoded_source(text: PreparedText, sentences: Sequence[str], language: str) -> Sentences:
    """New sentences of the source, by the encoding and the vocabulary of a prepared text.

    A sentence without words is its end alone.

    Args:
      text: the prepared text.
      sentences: of any case, without line ends.
      language: of the source of the text, such as "de".

    Raises:
      ModuleNotFoundError: the extra [text] is not installed.
    """
    tokenized = words_lib.tokenized(sentences, language)
    parts = words_lib.split_words(tokenized, text.merges)
    return Sentences(*words_lib.encoded(parts, text.source_words))


def _fingerprint(pairs: Mapping[str, Pairs], languages: tuple[str, str], num_merges: int) -> str:
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            versions[library] = ""
    return files.digest([_VERSION, versions, languages, num_merges, sorted(pairs.items())])


def _prepared(
    pairs: Mapping[str, Pairs], languages: tuple[str, str], num_merges: int
) -> dict[str, np.ndarray]:
    """The arrays of a prepared text."""
    tokenized = {
        split: [words_lib.tokenized(side, language) for side, language in zip(sides[:2], languages)]
        for split, sides in pairs.items()
    }
    for split, sides in tokenized.items():
        for side, language in zip(sides, languages):
            if "" in side:
                raise ValueError(
                    f"split {split!r} has no tokens in line"
                    f" {pairs[split].first + side.index('') + 1:,} of {language!r}, which consists"
                    " of control characters; remove the pair from both files."
                )
    merges = words_lib.learned_merges([s for side in tokenized["train"] for s in side], num_merges)
    parts = {
        split: [words_lib.split_words(side, merges) for side in sides]
        for split, sides in tokenized.items()
    }
    vocabularies = [words_lib.vocabulary(side) for side in parts["train"]]
    arrays = {
        "source_words": np.array(vocabularies[0]),
        "target_words": np.array(vocabularies[1]),
        "merges": np.array(merges),
    }
    for index, side in enumerate(("source", "target")):
        for split, sides in parts.items():
            sentences = Sentences(*words_lib.encoded(sides[index], vocabularies[index]))
            arrays |= {f"{side} {split} {name}": x for name, x in sentences._asdict().items()}
    return arrays


def _text(arrays: Mapping[str, np.ndarray], fingerprint: str) -> PreparedText:
    sides = [
        {
            split: Sentences(*(arrays[f"{side} {split} {name}"] for name in Sentences._fields))
            for split in _splits(list(arrays), side)
        }
        for side in ("source", "target")
    ]
    source_words, target_words = (
        tuple(arrays[name].tolist()) for name in ("source_words", "target_words")
    )
    return PreparedText(*sides, source_words, target_words, str(arrays["merges"]), fingerprint)


def _splits(names: Sequence[str], side: str) -> list[str]:
    end = f" {Sentences._fields[0]}"
    start = f"{side} "
    return [n[len(start) : -len(end)] for n in names if n.startswith(start) and n.endswith(end)]
