"""Words of sentences: Moses tokens, byte-pair encoding, vocabularies.

Source: fairseq examples/translation/prepare-iwslt14.sh, whose steps these are.
"""

import collections
import contextlib
import io
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # a token never equals one, as Moses escapes < and >
START, PAD, END, UNKNOWN = range(4)
_MULTIPLE = 8  # of the size of a vocabulary
_JOINT = "@@"  # ends a part of a word that another part follows
EXTRA = 'the extra [text] of this package has it: pip install -e ".[text]"'


def tokenized(sentences: Sequence[str], language: str) -> list[str]:
    """The Moses tokens of each sentence in lower case, separated by spaces.

    Entities are escaped, as in &apos;.

    Raises:
      ModuleNotFoundError: sacremoses is not installed.
    """
    try:
        import sacremoses
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"text requires sacremoses ({error}); {EXTRA}.") from None
    tokenizer = sacremoses.MosesTokenizer(lang=language)
    return [" ".join(tokenizer.tokenize(s, return_str=True).split()).lower() for s in sentences]


def detokenized(sentences: Sequence[str], language: str) -> list[str]:
    """The text of tokenized sentences, with entities unescaped."""
    import sacremoses

    detokenizer = sacremoses.MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(sentence.split(" ")) for sentence in sentences]


def learned_merges(sentences: Iterable[str], num_merges: int) -> str:
    """The merges of a joint byte-pair encoding, as the text of a file of subword-nmt.

    Args:
      sentences: tokenized, of both languages.
      num_merges: largest number of merges; a pair that occurs once is not merged.

    Raises:
      ValueError: there is nothing to merge.
      ModuleNotFoundError: subword-nmt is not installed.

    Source: Sennrich et al. (2016), arXiv:1508.07909, Algorithm 1.
    """
    try:
        from subword_nmt import learn_bpe
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"text requires subword-nmt ({error}); {EXTRA}.") from None
    counts = collections.Counter(word for sentence in sentences for word in sentence.split(" "))
    lines = io.StringIO("".join(f"{word} {number}\n" for word, number in sorted(counts.items())))
    follows = collections.Counter()
    for word, number in counts.items():
        follows.update({pair: number for pair in itertools.pairwise(word)})
    if not follows or follows.most_common(1)[0][1] < 2:
        raise ValueError(
            "no two symbols follow each other twice in the training sentences, so there is no"
            " byte-pair encoding of them; train on more sentences."
        )
    merges = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of progress
        learn_bpe.learn_bpe(lines, merges, num_merges, is_dict=True)
    return merges.getvalue()


def split_words(sentences: Sequence[str], merges: str) -> list[list[str]]:
    """The parts of the words of each tokenized sentence; `joined` is the inverse."""
    from subword_nmt import apply_bpe

    encoding = apply_bpe.BPE(io.StringIO(merges), separator=_JOINT)
    return [encoding.segment_tokens(sentence.split(" ")) for sentence in sentences]


def joined(parts: Iterable[str]) -> str:
    """The tokenized sentence of these parts; its last word may lack its end."""
    return f"{' '.join(parts)} ".replace(f"{_JOINT} ", "").rstrip(" ")


def vocabulary(sentences: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Special words, the words of the sentences by falling frequency, and padding to 8.

    Padding words have the names of fairseq and never occur.
    """
    counts = collections.Counter(word for sentence in sentences for word in sentence)
    words = [*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))]
    missing = -len(words) % _MULTIPLE
    return (*words, *(f"madeupword{i:04d}" for i in range(missing)))


def encoded(
    sentences: Sequence[Sequence[str]], words: Sequence[str]
) -> tuple[Int[np.ndarray, "m"], Int[np.ndarray, "n"]]:
    """The numbers of all words, each sentence with its end, and the lengths of the sentences."""
    number = {word: i for i, word in enumerate(words)}
    tokens = [number.get(word, UNKNOWN) for s in sentences for word in (*s, SPECIAL[END])]
    lengths = [len(sentence) + 1 for sentence in sentences]
    return np.array(tokens, np.int32), np.array(lengths, np.int32)


def decoded(tokens: Int[np.ndarray, "t"], words: Sequence[str]) -> str:
    """The tokenized sentence of these words, up to the first end; see `encoded`."""
    return joined(words[x] for x in itertools.takewhile(lambda x: x != END, tokens.tolist()))
