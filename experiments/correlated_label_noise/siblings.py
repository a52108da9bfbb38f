"""Classes of Tiny-ImageNet that are siblings in WordNet, and label noise among them.

    python -m experiments.correlated_label_noise.siblings --data_noun=DIR/data.noun \
        --wnids=DIR/label_wnids.txt

writes siblings.json: the hypernyms that two or more of the 200 classes share, with their classes.
`data.noun` is that of WordNet 3.0, whose offsets are the ids of ImageNet; Debian's package
wordnet-base has it. The classes are in the order of `label_wnids.txt`. 65 classes have siblings.
"""

from pathlib import Path
from typing import NamedTuple

from heteroscedastic import files, user_errors

PATH = Path(__file__).with_name("siblings.json")


class Synset(NamedTuple):
    """An entry of WordNet."""

    word: str  # the first one
    hypernyms: tuple[str, ...]  # their ids


def synsets(text: str) -> dict[str, Synset]:
    """The nouns of WordNet by id, such as n02084071.

    Args:
      text: contents of data.noun; wndb(5) of WordNet 3.0 describes the format.
    """
    found = {}
    for line in text.splitlines():
        if line.startswith(" "):  # the licence
            continue
        fields = line.split(" | ")[0].split()
        start = 4 + 2 * int(fields[3], 16)
        pointers = fields[start + 1 : start + 1 + 4 * int(fields[start])]
        hypernyms = [f"n{i}" for symbol, i in zip(pointers[::4], pointers[1::4]) if symbol == "@"]
        found[f"n{fields[0]}"] = Synset(fields[4].replace("_", " "), tuple(hypernyms))
    return found


def groups(wnids: list[str], nouns: dict[str, Synset]) -> list[dict]:
    """The hypernyms that several classes share: id, word and numbers of the classes.

    Raises:
      ValueError: a class is no noun of this WordNet.
    """
    children: dict[str, list[int]] = {}
    for number, wnid in enumerate(wnids):
        if wnid not in nouns:
            raise ValueError(f"{wnid} is no noun of this WordNet; give data.noun of WordNet 3.0.")
        for parent in nouns[wnid].hypernyms:
            children.setdefault(parent, []).append(number)
    return [
        {"hypernym": parent, "word": nouns[parent].word, "classes": classes}
        for parent, classes in sorted(children.items())
        if len(classes) > 1
    ]


def moves(siblings: list[dict]) -> tuple[tuple[int, int], ...]:
    """Pairs of a class and its wrong label: the next class of the same group, in a circle."""
    return tuple(
        (a, b)
        for group in siblings
        for a, b in zip(group["classes"], group["classes"][1:] + group["classes"][:1])
    )


def curation(rate: float) -> str:
    """The setting `curation` that moves this share of the labels of each class with siblings."""
    return f"transitions(moves={moves(files.read_json(PATH)['groups'])}, rate={rate})"


@user_errors.one_line()
def main() -> None:
    """Writes the siblings among the classes of Tiny-ImageNet."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--data_noun", required=True, help="data.noun of WordNet 3.0")
    parser.add_argument("--wnids", required=True, help="ids of the classes, one per line")
    flags = parser.parse_args()
    wnids = Path(flags.wnids).read_text().split()
    found = groups(wnids, synsets(Path(flags.data_noun).read_text(encoding="latin1")))
    source = "WordNet 3.0, copyright 2006 by Princeton University; see siblings.py"
    files.write_json(PATH, {"source": source, "wnids": wnids, "groups": found})
    print(f"wrote {PATH}: {len(found)} groups, {len(moves(found))} classes")


if __name__ == "__main__":
    main()
