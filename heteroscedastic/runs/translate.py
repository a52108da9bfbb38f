"""Translations of new sentences by a finished run: python -m heteroscedastic.runs.translate

    python -m heteroscedastic.runs.translate --run=runs/multi30k_hom --input=FILE --out=FILE

reads a sentence a line, in UTF-8, plain or as .gz, and writes a translation a line, in their order;
a line without words has an empty one. Tokens, byte-pair encoding and vocabulary are those of the
run. They follow from its sentences, so its data must be available: all its splits.
"""

import argparse
import os
from collections.abc import Sequence

import numpy as np

from heteroscedastic import files, user_errors
from heteroscedastic.bind import check_number
from heteroscedastic.data.packing import MAX_TOKENS
from heteroscedastic.data.text import pairs, prepared, words
from heteroscedastic.runs import compilation_cache, loaded_run, schema, translation
from heteroscedastic.runs.assembly import Run


def translations(
    run: Run,
    sentences: Sequence[str],
    search: translation.Search,
    *,
    batch_size: int,
    max_tokens: int,
    source: str = "the text",
) -> list[str]:
    """The translation of each sentence, by the best hypothesis; empty for one without words.

    Args:
      run: of the task "translation".
      sentences: in the source language of the run, of any case.
      search: of its model.
      batch_size: largest number of sentences of each search.
      max_tokens: largest number of tokens of a translation, with its end.
      source: of the sentences, for errors.

    Raises:
      ValueError: a sentence is too long.
    """
    text, data = run.pipeline.text, run.config["data"]
    encoded = prepared.encoded_source(text, sentences, data["source"])
    if (longest := np.max(encoded.lengths, initial=0)) > MAX_TOKENS:
        line = np.argmax(encoded.lengths) + 1
        raise ValueError(
            f"{source} line {line:,} has {longest:,} tokens, but a sentence may have"
            f" {MAX_TOKENS:,}; split it into several lines."
        )
    rows = np.flatnonzero(encoded.lengths > 1)  # the others have an end alone
    sources, translated = encoded.split(), [""] * len(sentences)
    found = translation.best_hypotheses(
        [sources[row] for row in rows], min(batch_size, len(rows)), search, max_tokens
    )
    tokenized = [words.decoded(best.words, text.target_words) for best in found]
    for row, sentence in zip(rows, words.detokenized(tokenized, data["target"]), strict=True):
        translated[row] = sentence
    return translated


def _parsed() -> argparse.Namespace:
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--input", required=True, help="file of sentences, one a line")
    parser.add_argument("--out", required=True, help="file of the translations")
    parser.add_argument("--checkpoint", default="last", choices=("last", "best"))
    parser.add_argument("--beam_size", type=int, default=5, help="hypotheses; 1 is greedy")
    parser.add_argument("--length_penalty", type=float, default=1.0)
    parser.add_argument("--max_tokens", type=int, default=200, help="of a translation")
    parser.add_argument("--batch_size", type=int, default=64, help="sentences of each search")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    for name in translation.SETTINGS:
        check_number(f"--{name}", getattr(flags, name), **schema.RANGES["evals"][name])
    check_number("--batch_size", flags.batch_size, integer=True, at_least=1)
    return flags


@user_errors.one_line()
def main() -> None:
    """Translates the sentences of a file by a finished run."""
    flags = _parsed()
    path, out = files.as_path(flags.input), files.as_path(flags.out)
    if out.exists():
        raise ValueError(f"{out} exists already; remove it, or give another --out.")
    if out.name.endswith(".gz"):
        raise ValueError(f"--out={out} would be plain text; give a name that does not end in .gz.")
    sentences = pairs.lines(path)
    if not any(sentences):
        raise ValueError(f"{path} has no sentence; write one a line.")
    if (task := loaded_run.read(flags.run).config.get("task")) != "translation":
        raise ValueError(
            f"{flags.run} is of the task {task!r}, which has no translations; give a run of the"
            " task 'translation'."
        )
    compilation_cache.enable()
    loaded = loaded_run.load(flags.run, flags.checkpoint, flags.data_dir)
    limits = dict(beam_size=flags.beam_size, length_penalty=flags.length_penalty)
    search = translation.model_search(loaded.run, loaded.state, **limits)
    translated = translations(
        loaded.run,
        sentences,
        search,
        batch_size=flags.batch_size,
        max_tokens=flags.max_tokens,
        source=flags.input,
    )
    content = "".join(f"{sentence}\n" for sentence in translated).encode()
    files.write_atomically(out, lambda file: file.write(content))
    print(f"wrote {out}: {len(translated):,} translations")


if __name__ == "__main__":
    main()
