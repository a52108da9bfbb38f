"""Files of sentence pairs: NAME.SPLIT.LANGUAGE or NAME.SPLIT.LANGUAGE.gz, a sentence a line.

They lie in the folder `text` of the directory of data sets, or beside that directory: with
--data_dir=DATA/tfds in DATA/tfds/text or DATA/text. Line n of one language is the translation of
line n of the other. The set "numbers" needs no files.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from heteroscedastic import files
from heteroscedastic.data import checks, split_spec
from heteroscedastic.data.text import numbers

_BUNDLED = {"numbers": numbers.splits}
_PREPARATION = {
    "iwslt14": "python -m heteroscedastic.data.text.iwslt14 de-en.tgz --data_dir=DIR writes them",
    "multi30k": "copy train, val and test_2016_flickr of https://github.com/multi30k/dataset,"
    " folder data/task1/raw, to DIR/text/multi30k.{train,val,test2016}.{de,en}.gz",
}


class Pairs(NamedTuple):
    """Sentences of one split; line n of both sides is one pair."""

    source: list[str]
    target: list[str]
    first: int = 0  # position of the first pair in its stored split


def is_there(name: str, data_dir: str | None = None, splits: Iterable[str] = ("*",)) -> bool:
    """Whether stored splits of a set of sentence pairs exist, in any languages.

    Args:
      name: of the set.
      data_dir: directory of data sets; see the module.
      splits: names of stored splits; "*" is any.
    """
    return name in _BUNDLED or any(
        all(next(folder.glob(f"{name}.{split}.*"), None) for split in splits)
        for folder in _folders(data_dir)
    )


def read(
    name: str,
    data_dir: str | None = None,
    *,
    source: str,
    target: str,
    splits: Mapping[str, Any] | None = None,
    max_examples: int | None = None,
) -> dict[str, Pairs]:
    """The sentence pairs of each split.

    Args:
      name: of the set.
      data_dir: directory of data sets; see the module.
      source: language of the inputs, such as "de".
      target: language of the translations.
      splits: split name -> slice of a stored split, or a dict of `split` and the `name` of another
        set; None takes every stored split.
      max_examples: keeps only the first pairs of every split.

    Raises:
      FileNotFoundError: the set is missing; says where it was searched and what writes it.
      ValueError: the sides differ in length, a line is empty or not UTF-8, or a slice is invalid.
    """
    checks.limit("max_examples", max_examples)
    stored: dict[str, dict[str, Pairs]] = {}

    def of_set(set_name):
        if set_name not in stored:
            stored[set_name] = _stored(set_name, data_dir, source, target)
        return stored[set_name]

    selected = {}
    for split, entry in (splits or {split: split for split in of_set(name)}).items():
        reference = {"split": entry} if isinstance(entry, str) else entry
        pairs = of_set(reference.get("name", name))
        sizes = {stored_split: len(sides.source) for stored_split, sides in pairs.items()}
        part = split_spec.parse(reference["split"], sizes)
        stop = min(part.stop, part.start + (max_examples or part.stop))
        sides = (side[part.start : stop] for side in pairs[part.split][:2])
        selected[split] = Pairs(*sides, first=part.start)
    return selected


def _folders(data_dir: str | None) -> list[files.Path]:
    if not data_dir:
        return []
    directory = files.as_path(data_dir)
    return [directory / "text", files.absolute(directory).parent / "text"]


def _stored(name: str, data_dir: str | None, source: str, target: str) -> dict[str, Pairs]:
    """All stored splits of a set."""
    if name in _BUNDLED:
        return {split: Pairs(*sides) for split, sides in _BUNDLED[name](source, target).items()}
    for folder in _folders(data_dir):
        paths = {language: _paths(folder, name, language) for language in (source, target)}
        if any(paths.values()):
            break
    else:
        where = " and ".join(map(str, _folders(data_dir)))
        searched = where or "nothing on disk, as neither --data_dir nor TFDS_DATA_DIR is set"
        remedy = _PREPARATION.get(name, "write a sentence a line, in UTF-8")
        raise FileNotFoundError(
            f"no sentence pairs {name!r}: searched {searched} for"
            f" {name}.SPLIT.{source} and {name}.SPLIT.{target}, plain or as .gz; {remedy}, and"
            " pass --data_dir=DIR."
        )
    if alone := sorted(set(paths[source]) ^ set(paths[target])):
        raise FileNotFoundError(
            f"{folder} has {name}.{alone[0]} in one of {source} and {target} alone; a split needs"
            " both."
        )
    pairs = {
        split: Pairs(_sentences(paths[source][split]), _sentences(paths[target][split]))
        for split in paths[source]
    }
    for split, sides in pairs.items():
        if len(sides.source) != len(sides.target):
            raise ValueError(
                f"{paths[source][split]} has {len(sides.source):,} lines, but"
                f" {paths[target][split].name} has {len(sides.target):,}; line n of both must be"
                " one pair."
            )
    return pairs


def _paths(folder: files.Path, name: str, language: str) -> dict[str, files.Path]:
    """The file of each split in a language."""
    found = {}
    for path in sorted(folder.glob(f"{name}.*.{language}*")):
        split, *rest = path.name.removeprefix(f"{name}.").split(".")
        if rest in ([language], [language, "gz"]):
            found.setdefault(split, path)  # the plain file, where there are both
    return found


def _sentences(path: files.Path) -> list[str]:
    found = lines(path)
    if "" in found:
        number = found.index("") + 1
        raise ValueError(f"{path} line {number:,} is empty; remove the pair from both files.")
    return found


def lines(path: files.Path) -> list[str]:
    """The lines of a file in UTF-8, plain or .gz, without white space at their ends.

    Raises:
      ValueError: a line is not UTF-8, or the .gz file is damaged.
    """
    content = path.read_bytes()
    if path.name.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged ({error}); write it again.") from None
    content = content.removeprefix(codecs.BOM_UTF8)
    decoded = []
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        try:
            decoded.append(line.decode().strip())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} line {number:,} is not UTF-8 (byte {error.start}); convert the file."
            ) from None
    return decoded
