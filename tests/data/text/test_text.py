"""Sentence pairs: files, words, the archive of IWSLT'14, and rows of several pairs."""

import gzip
import io
import tarfile

import jax
import numpy as np
import pytest
from pack import PACK, needs

from heteroscedastic.data import packing
from heteroscedastic.data.text import iwslt14, numbers, pairs, prepared, words

SENTENCES = (
    "Zwei junge weiße Männer sind im Freien, in der Nähe vieler Büsche.",
    'Er sagte: "Das ist\'s!" & ging <weg> | nach Haus [3/4].',
    "Ein Mann @@ und @@ ein Hund@@ !",
    "日本 und naïve café-Gäste",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(directory, split="train", de=b"ein hund\nhund\n", en=b"a dog\ndog\n", name="mine"):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.{split}.de").write_bytes(de)
    (directory / f"{name}.{split}.en.gz").write_bytes(gzip.compress(en))


def read(data_dir, **settings):
    return pairs.read("mine", str(data_dir), source="de", target="en", **settings)


@pytest.mark.parametrize("num_merges", [1, 5, 200])
def test_parts_of_words_join_to_the_text(num_merges):
    tokenized = words.tokenized(SENTENCES, "de")
    merges = words.learned_merges(tokenized, num_merges)
    parts = words.split_words(tokenized, merges)
    assert [words.joined(p) for p in parts] == tokenized
    assert words.joined(["hel@@", "lo", "wor@@"]) == "hello wor"  # cut off by a limit of tokens
    names = words.vocabulary(parts)
    tokens, lengths = words.encoded(parts, names)
    ends = np.split(tokens, np.cumsum(lengths)[:-1])
    assert [words.decoded(np.append(x, [words.END, 9]), names) for x in ends] == tokenized
    # Moses sets spaces and closing quotes of its own, as in "[3/4].".
    texts = [sentence.lower().replace(" ", "") for sentence in SENTENCES]
    assert [x.replace(" ", "") for x in words.detokenized(tokenized, "de")] == texts
    assert all(text == text.lower() and "<" not in text for text in tokenized)


def test_merges_are_the_most_frequent_pairs_of_symbols():
    # "aab" three times and "ab" twice: a b, with the end of the word, is the most frequent pair.
    merges = words.learned_merges(["aab aab ab", "aab ab"], 1).splitlines()[1:]
    assert merges == ["a b</w>"]
    assert words.split_words(["aab b ab"], "#version: 0.2\na b</w>") == [["a@@", "ab", "b", "ab"]]
    with pytest.raises(ValueError, match="no two symbols follow each other twice"):
        words.learned_merges(["ab cd"], 5)


def test_a_vocabulary_has_the_most_frequent_words_first_and_a_size_that_8_divides():
    found = words.vocabulary([["b", "c"], ["c", "a"]])
    assert found == (*words.SPECIAL, "c", "a", "b", "madeupword0000")
    tokens, lengths = words.encoded([["c", "x"], ["b"]], found)
    assert tokens.tolist() == [4, words.UNKNOWN, words.END, 6, words.END]
    assert lengths.tolist() == [3, 2]


def test_the_prepared_text_is_that_of_the_files_and_is_loaded_unchanged(tmp_path):
    write(tmp_path / "text")
    write(tmp_path / "text", "test", b"drei hund\n", b"three dog\n")
    found = read(tmp_path / "tfds")  # the folder lies beside the directory of data sets
    assert found["train"] == pairs.Pairs(["ein hund", "hund"], ["a dog", "dog"])
    text = prepared.prepared(found, ("de", "en"), 50)
    spelled = [" ".join(text.source_words[i] for i in s) for s in text.source["test"].split()]
    assert spelled[0].endswith(" hund </s>")
    new = prepared.encoded_source(text, ["DREI  Hund", "", "hund"], "de").split()
    np.testing.assert_array_equal(new[0], *text.source["test"].split())
    np.testing.assert_array_equal(new[2], text.source["train"].split()[1])
    assert new[1].tolist() == [words.END]
    assert not {"drei", "three"} & {*text.source_words, *text.target_words}  # not in training
    (path,) = (tmp_path / "cache").rglob("*.npz")
    again = prepared.prepared(found, ("de", "en"), 50)
    assert jax.tree.structure(again) == jax.tree.structure(text)
    jax.tree.map(np.testing.assert_array_equal, again, text)
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="cannot be loaded"):
        assert prepared.prepared(found, ("de", "en"), 50).fingerprint == text.fingerprint
    other = {**found, "test": pairs.Pairs(["zwei hund"], ["two dog"])}
    assert prepared.prepared(other, ("de", "en"), 50).fingerprint != text.fingerprint


def test_splits_are_slices_of_stored_ones_and_of_other_sets(tmp_path):
    write(tmp_path / "text")
    write(tmp_path / "text", "test", b"a\nb\nc\n", b"x\ny\nz\n", name="other")
    splits = {"train": "train[1:]", "shift": {"name": "other", "split": "test"}}
    found = read(tmp_path, splits=splits, max_examples=2)
    assert found["train"] == pairs.Pairs(["hund"], ["dog"], first=1)
    assert found["shift"] == pairs.Pairs(["a", "b"], ["x", "y"])


def test_the_mark_of_a_file_of_windows_is_no_word(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfein hund\nzwei\n"))
    assert pairs.lines(tmp_path / "a.gz") == ["ein hund", "zwei"]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (dict(en=b"a dog\n"), ValueError, r"has 2 lines, but mine\.train\.en\.gz has 1"),
        (dict(de=b"ein hund\n \n"), ValueError, r"mine\.train\.de line 2 is empty"),
        (dict(de=b"ein hund\n\xff\n"), ValueError, r"mine\.train\.de line 2 is not UTF-8"),
        (dict(name="other"), FileNotFoundError, r"no sentence pairs 'mine': searched .*text and "),
        (
            dict(en=b"a dog\n\x01\n"),  # of which Moses leaves nothing
            ValueError,
            r"split 'train' has no tokens in line 2 of 'en', .* control characters; remove",
        ),
    ],
)
def test_what_is_wrong_with_files_is_said(tmp_path, content, error, message):
    write(tmp_path / "text", **content)
    with pytest.raises(error, match=message):
        prepared.prepared(read(tmp_path), ("de", "en"), 50)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iwslt14", r"data\.text\.iwslt14 de-en\.tgz --data_dir=DIR"),
        ("multi30k", r"github\.com/multi30k/dataset.* DIR/text/multi30k\.\{train,val,test2016\}"),
    ],
)
def test_a_missing_set_is_prepared_as_the_error_says(tmp_path, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        pairs.read(name, str(tmp_path), source="de", target="en")


def test_a_split_with_one_language_is_an_error(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "mine.train.de").write_text("ein\n")
    with pytest.raises(FileNotFoundError, match=r"mine\.train in one of de and en alone"):
        read(tmp_path)


def write_archive(path, sides, encoding="utf-8", english=None):
    """An archive of these lines in German and English, and one pair in each set of the test.

    The segments `english` replace the English one of the last set.
    """
    content = {
        f"de-en/train.tags.de-en.{language}": "".join(f" {line}\n" for line in side)
        for language, side in zip(("de", "en"), sides)
    }
    for name in iwslt14._TESTS:
        for language in ("de", "en"):
            text = f'<doc>\n<seg id="1"> {name}\u2019s {language} </seg>\n</doc>\n'
            content[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = text
    if english is not None:
        content[f"de-en/IWSLT14.{name}.de-en.en.xml"] = english
    with tarfile.open(path, "w:gz") as archive:
        for name, text in content.items():
            encoded = text.encode(encoding)
            info = tarfile.TarInfo(name)
            info.size = len(encoded)
            archive.addfile(info, io.BytesIO(encoded))


def test_the_archive_gives_the_pairs_of_the_recipe(tmp_path, monkeypatch, capsys):
    dropped = [(176, 175), (175, 176), (5, 3), (3, 5), (0, 2), (2, 0)]  # words of each side
    kept = [(175, 175), (3, 2), (2, 3), *[(2, 2)] * 20]
    sides = [
        [" ".join([f"{word}{i}"] * size[side]) for i, size in enumerate([*kept, *dropped])]
        for side, word in enumerate(("wort", "word"))
    ]
    tags = ["<url>a</url>", "<talkid>1</talkid>", "<keywords>a</keywords>"]
    tags += ["<title>Titel</title>", "<description>TED: b</description>"]
    write_archive(tmp_path / "de-en.tgz", [[*tags, *side] for side in sides])
    words_of_command = [str(tmp_path / "de-en.tgz"), f"--data_dir={tmp_path}"]
    monkeypatch.setattr("sys.argv", ["iwslt14", *words_of_command])
    monkeypatch.setitem(iwslt14._NUM_PAIRS, "valid", 1)
    iwslt14.main()
    where = f"in {tmp_path / 'text'}"
    assert capsys.readouterr().out.splitlines() == [
        f"wrote 24 pairs of iwslt14.train {where}, but the recipe has 160,239",
        f"wrote 1 pairs of iwslt14.valid {where}",
        f"wrote 5 pairs of iwslt14.test {where}, but the recipe has 6,750",
    ]
    found = pairs.read("iwslt14", str(tmp_path), source="de", target="en")
    expected = [["Titel", "TED: b", *side[: len(kept)]] for side in sides]
    assert found["valid"] == pairs.Pairs(*([side[22]] for side in expected))
    assert found["train"] == pairs.Pairs(*(side[:22] + side[23:] for side in expected))
    assert found["test"].target == [f"{name}'s en" for name in iwslt14._TESTS]


def test_an_archive_in_another_encoding_is_an_error(tmp_path):
    path = tmp_path / "de-en.tgz"
    write_archive(path, [["grün"], ["green"]], encoding="utf-16")
    message = rf"{path}: train\.tags\.de-en\.de is not UTF-8 \(byte 0\); download it again"
    with pytest.raises(ValueError, match=message):
        iwslt14.splits(path)


_LAST = r"IWSLT14\.TED\.tst2012\.de-en"


@pytest.mark.parametrize(
    ("sides", "english", "message"),
    [
        ([["a", "b"], ["a"]], None, r"train\.tags\.de-en\.de has 2 sentences, but .*\.en has 1;"),
        ([["a"], ["a"]], "", rf"{_LAST}\.de\.xml has 1 sentences, but {_LAST}\.en\.xml has 0;"),
        ([["a"], ["a"]], '<seg id="1"> </seg>', rf"segment 1 of {_LAST}\.en\.xml is empty;"),
    ],
)
def test_an_archive_with_a_sentence_too_few_is_an_error_before_the_work(
    tmp_path, monkeypatch, sides, english, message
):
    monkeypatch.delattr(words, "tokenized")  # which takes minutes
    write_archive(path := tmp_path / "de-en.tgz", sides, english=english)
    with pytest.raises(ValueError, match=rf"{path}: {message} download it again"):
        iwslt14.splits(path)


def test_numbers_are_spelled():
    expected = {
        0: ("null", "zero"),
        1: ("eins", "one"),
        17: ("siebzehn", "seventeen"),
        20: ("zwanzig", "twenty"),
        21: ("einundzwanzig", "twenty-one"),
        101: ("einhunderteins", "one hundred and one"),
        999: ("neunhundertneunundneunzig", "nine hundred and ninety-nine"),
    }
    for number, (german, english) in expected.items():
        assert numbers.spelled(number, "de") == german
        assert numbers.spelled(number, "en") == english


def test_packed_rows_hold_every_pair_once_and_whole():
    rng, length = np.random.default_rng(0), 16
    lengths = rng.integers(1, 12, (2, 300))
    source, target = ([rng.integers(4, 99, n) for n in side] for side in lengths)
    ids = np.arange(1000, 1300)
    rows = packing.rows(*lengths, length, seed=1)
    arrays = packing.packed(rows, source, target, ids, length, words.PAD)
    assert sorted(pair for row in rows for pair in row) == list(range(300))
    assert rows == packing.rows(*lengths, length, seed=1) != packing.rows(*lengths, length, seed=2)
    for row, chosen in enumerate(rows):
        for segment, pair in enumerate(chosen, start=1):
            here = arrays.source_segments[row] == segment
            np.testing.assert_array_equal(arrays.source[row, here], source[pair])
            here = arrays.target_segments[row] == segment
            np.testing.assert_array_equal(arrays.target[row, here], target[pair])
            positions = packing.MAX_TOKENS * ids[pair] + np.arange(len(target[pair]))
            np.testing.assert_array_equal(arrays.ids[row, here], positions)
    is_padding = arrays.target_segments == 0
    assert (arrays.target[is_padding] == words.PAD).all()
    assert (arrays.ids[is_padding] == -1).all()
    assert (~is_padding).sum() == lengths[1].sum()
    # 0.88 with 8 open rows, and 0.63 with one.
    assert lengths.sum() >= 0.9 * 2 * length * len(rows)
    with pytest.raises(ValueError, match="a sentence has 11 tokens, but a row has 10"):
        packing.rows(*lengths, 10, seed=0)


@needs("../text")
def test_the_stored_text_has_the_pairs_of_the_recipes():
    iwslt, multi30k = (
        pairs.read(name, PACK, source="de", target="en") for name in ("iwslt14", "multi30k")
    )
    for split, sides in iwslt.items():
        assert len(sides.source) == iwslt14._NUM_PAIRS[split]
    sizes = {split: len(sides.source) for split, sides in multi30k.items()}
    assert sizes == {"train": 29_000, "val": 1_014, "test2016": 1_000}
    # The filter of training passed the validation pairs. Stored without tokens, they have others.
    assert len(iwslt14._kept(iwslt["valid"]).source) > 0.995 * iwslt14._NUM_PAIRS["valid"]


def test_a_set_is_there_where_all_its_splits_are(tmp_path):
    write(tmp_path / "text")
    assert pairs.is_there("mine", str(tmp_path))
    assert pairs.is_there("mine", str(tmp_path), ["train"])
    assert not pairs.is_there("mine", str(tmp_path), ["train", "test"])
    assert not pairs.is_there("other", str(tmp_path))
    assert pairs.is_there("numbers")
