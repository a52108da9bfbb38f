"""IWSLT'14 German and English, from the public archive de-en.tgz.

    python -m heteroscedastic.data.text.iwslt14 de-en.tgz --data_dir=DIR

writes DIR/text/iwslt14.{train,valid,test}.{de,en}.gz: 160,239, 7,283 and 6,750 pairs, in their own
case and without Moses tokens. As in the source, training has no tags, and the apostrophe of the
test sentences is the one of ASCII. With a newer Moses train has 160,250.

Source: fairseq examples/translation/prepare-iwslt14.sh, up to its lower case and encoding.
"""

import gzip
import os
import re
from collections.abc import Mapping, Sequence

from heteroscedastic import files, user_errors
from heteroscedastic.data.storage import archives
from heteroscedastic.data.text import words
from heteroscedastic.data.text.pairs import Pairs

_LANGUAGES = ("de", "en")
_TRAIN = [f"train.tags.de-en.{language}" for language in _LANGUAGES]
_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
_TAGS = re.compile("</?(?:title|description)>")
_SEGMENT = re.compile(r'<seg id="[0-9]*">\s*(.*?)\s*</seg>')
_MOST_TOKENS, _RATIO = 175, 1.5  # of a pair in training
_NTH = 23  # every 23rd pair of training is one of validation
_NUM_PAIRS = {"train": 160_239, "valid": 7_283, "test": 6_750}  # of the recipe


def splits(archive: files.Path) -> dict[str, Pairs]:
    """The sentence pairs of train, valid and test.

    Raises:
      ValueError: the archive is damaged, lacks a file or a sentence, or has a sentence without a
        translation.
      ModuleNotFoundError: the extra [text] is not installed.
    """
    names = {*_TRAIN, *(name for test in _TESTS for name in _test_files(test))}
    texts = {}
    for member in archives.members(archive):
        name = member.name.rpartition("/")[2]
        if name in names:
            try:
                texts[name] = member.read().decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{archive}: {name} is not UTF-8 (byte {error.start}); download it again."
                ) from None
    if missing := sorted(names - set(texts)):
        raise ValueError(f"{archive} has no file {missing[0]}; download it again.")
    lines = {
        name: (_training_lines if name in _TRAIN else _segments)(text)
        for name, text in texts.items()
    }
    train, *tests = (
        _aligned(archive, lines, sides) for sides in (_TRAIN, *map(_test_files, _TESTS))
    )
    for name in sorted(names.difference(_TRAIN)):
        if "" in lines[name]:
            raise ValueError(
                f"{archive}: segment {lines[name].index('') + 1:,} of {name} is empty; download it"
                " again."
            )
    kept = _kept(train)
    is_valid = [(i + 1) % _NTH == 0 for i in range(len(kept.source))]
    return {
        "train": Pairs(*([s for s, v in zip(side, is_valid) if not v] for side in kept[:2])),
        "valid": Pairs(*([s for s, v in zip(side, is_valid) if v] for side in kept[:2])),
        "test": Pairs(*([line for pairs in tests for line in pairs[i]] for i in (0, 1))),
    }


def _test_files(name: str) -> list[str]:
    return [f"IWSLT14.{name}.de-en.{language}.xml" for language in _LANGUAGES]


def _aligned(archive: files.Path, lines: Mapping[str, list[str]], names: Sequence[str]) -> Pairs:
    """The sentences of the files of both languages, of which line n of both is one pair."""
    source, target = (lines[name] for name in names)
    if len(source) != len(target):
        raise ValueError(
            f"{archive}: {names[0]} has {len(source):,} sentences, but {names[1]} has"
            f" {len(target):,}; download it again."
        )
    return Pairs(source, target)


def _training_lines(text: str) -> list[str]:
    lines = text.removesuffix("\n").split("\n")
    kept = [line for line in lines if not any(tag in line for tag in _LEFT_OUT)]
    return [_TAGS.sub("", line).strip() for line in kept]


def _segments(text: str) -> list[str]:
    return [line.replace("\u2019", "'") for line in _SEGMENT.findall(text)]


def _kept(pairs: Pairs) -> Pairs:
    """The pairs of 1 to 175 Moses tokens a side, of which neither has 1.5 times the other's."""
    counts = [
        [len(tokens.split()) for tokens in words.tokenized(side, language)]
        for side, language in zip(pairs[:2], _LANGUAGES, strict=True)
    ]
    chosen = [
        i
        for i, pair in enumerate(zip(*counts, strict=True))
        if min(pair) >= 1 and max(pair) <= _MOST_TOKENS and max(pair) <= _RATIO * min(pair)
    ]
    return Pairs(*([side[i] for i in chosen] for side in pairs[:2]))


def _write(directory: files.Path, split: str, language: str, lines: Sequence[str]) -> None:
    content = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
    path = directory / f"iwslt14.{split}.{language}.gz"
    files.write_atomically(path, lambda file: file.write(content))


@user_errors.one_line()
def main() -> None:
    """Writes the sentence pairs of IWSLT'14 from its public archive."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("archive", help="de-en.tgz of IWSLT'14")
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of the data sets"
    )
    flags = parser.parse_args()
    if not flags.data_dir:
        parser.error("give --data_dir.")
    directory = files.as_path(flags.data_dir) / "text"
    for split, pairs in splits(files.as_path(flags.archive)).items():
        for language, side in zip(_LANGUAGES, pairs[:2]):
            _write(directory, split, language, side)
        number, expected = len(pairs.source), _NUM_PAIRS[split]
        differs = "" if number == expected else f", but the recipe has {expected:,}"
        print(f"wrote {number:,} pairs of iwslt14.{split} in {directory}{differs}")


if __name__ == "__main__":
    main()
