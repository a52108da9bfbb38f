"""Does the learned covariance tie the words that translate one word of the source?

    python -m experiments.dataset_curation.word_pairs --table=noise_original_multi30k

reads the runs of a table of translation. lexicon.py learns from the stored pairs of training which
words of the target translate one word of the source, and are rarely in one sentence. Words are
whole ones: those that are one entry of the vocabulary, which is seldom a part of another word. For
each measure of two words it prints the rank AUC of these pairs among all pairs of words that occur
20 times in training: the probability that such a pair has the larger value. Measures are averages
over the test tokens, and absolute values of covariances are ranked; `seen` is the mean of
p_i p_j var(u_i - u_j). Beside them stand the mean of p_i p_j and the cosine of the embeddings,
which a model without noise has too.

A permutation of the words gives the AUC by chance and p. Words are permuted among those of similar
frequency, as frequent words have more translations and other covariances than rare ones. The
differences of AUCs from that of p_i p_j are paired by seed, ± half their 95 % interval. The last
columns are the partial rank correlation given p_i p_j, as noise_pairs.py prints it for images, and
p by 199 of these permutations, so that it is at least 0.005.
"""

import collections
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import stats

from experiments import derived, statistics, study
from experiments.dataset_curation import lexicon
from heteroscedastic import files, user_errors
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.covariance import average as average_lib
from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.covariance import pairs as pairs_lib
from heteroscedastic.analysis.report import comparison
from heteroscedastic.data.text import words as words_lib
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs import token_features
from heteroscedastic.runs.loaded_run import LoadedRun

_STUDY, _SPLIT = "dataset_curation", "test"
_LEAST_COUNT = 20  # occurrences of a word in training
_OF_NOISE = ("covariance", "correlation", "centred_correlation")
_OVERLAP, _SEEN, _COSINE = "p_i p_j", "seen", "embedding cosine"
_BATCH_SIZE = 512  # tokens at a time
_LEAST_WHOLE = 0.9  # of the occurrences of an entry of the vocabulary, those as a whole word


class RankTest(NamedTuple):
    """How well a measure ranks some pairs before all others, and a test of it."""

    auc: float  # ties count one half
    expected: float  # mean over permutations
    p: float  # one-sided: probability of an AUC at least as large


def rank_test(
    measure: Float[np.ndarray, "c c"],
    pairs: Int[np.ndarray, "m 2"],
    strata: Int[np.ndarray, "c"],
    num_permutations: int = 9999,
) -> RankTest:
    """Tests whether the given pairs of words have larger values than by chance.

    Args:
      measure: symmetric; the diagonal is ignored.
      pairs: words of each given pair, each pair once.
      strata: number of the group of each word within which words are permuted.
      num_permutations: to draw, from a fixed seed.

    Raises:
      ValueError: there are no pairs, or no others.

    Source: Mantel (1967), restricted to strata.
    """
    upper = np.triu_indices(len(measure), 1)
    num_pairs, num_all = len(pairs), len(upper[0])
    if not 0 < num_pairs < num_all:
        raise ValueError(
            f"{num_pairs} of {num_all} pairs of words are given; some and not all must be."
        )
    ranks = np.zeros(measure.shape)
    ranks[upper] = stats.rankdata(measure[upper])
    ranks += ranks.T

    def auc(names):
        mean = ranks[names[pairs[:, 0]], names[pairs[:, 1]]].mean()
        return (mean - (num_pairs + 1) / 2) / (num_all - num_pairs)

    observed = auc(np.arange(len(measure)))
    permuted = np.array([auc(x) for x in known_noise.permutations(strata, num_permutations)])
    # The tolerance counts values that differ only by rounding as equal.
    p = (1 + np.sum(permuted >= observed - 1e-9)) / (1 + num_permutations)
    return RankTest(float(observed), float(permuted.mean()), float(p))


def measures(run: LoadedRun, chosen: Int[np.ndarray, "c"]) -> dict[str, Float[np.ndarray, "c c"]]:
    """Measures of all pairs of the chosen words; without noise those of probabilities alone.

    Args:
      run: of the task "translation".
      chosen: words of the target.
    """
    features = token_features.features(run, _SPLIT, run.run.steps.batch_size)
    head, params = run.run.model.head, run.state.params["head"]
    found = {}
    if loaded_run_lib.has_noise(run.run.config):
        average = average_lib.average_covariance(head, params, [features])
        covariance = average_lib.covariance_rows(average, chosen)[:, chosen]
        for name in _OF_NOISE:
            values = pairs_lib.measure(name, average, covariance, chosen[:, None], chosen)
            found[name] = np.abs(values)
        found[_SEEN] = _mean(run, features, functools.partial(seen, classes=jnp.asarray(chosen)))
    found[_OVERLAP] = _mean(run, features, lambda _, probs: probs[:, chosen].T @ probs[:, chosen])
    kernel = np.asarray(head.utilities_parameters(params).kernel, np.float64)[:, chosen]
    kernel /= np.linalg.norm(kernel, axis=0)
    return found | {_COSINE: kernel.T @ kernel}


@jax.default_matmul_precision("highest")
def seen(
    latent: LatentGaussian, probs: Float[Array, "b k"], classes: Int[Array, "c"]
) -> Float[Array, "c c"]:
    """The sum over examples of p_i p_j var(u_i - u_j), without a matrix for each example.

    Args:
      latent: of the examples.
      probs: of its classes.
      classes: of the pairs.
    """
    scale_diag, loadings = latent_lib.terms(latent, classes)
    probs = probs[:, classes]
    # Common noise cancels before it is squared.
    loadings -= jnp.mean(loadings, axis=1, keepdims=True)
    variance = jnp.square(scale_diag) + jnp.sum(jnp.square(loadings), axis=-1)
    own = (probs * variance).T @ probs
    weighted = probs[..., None] * loadings
    total = own + own.T - 2 * jnp.einsum("bir,bjr->ij", weighted, weighted)
    return total * (1 - jnp.eye(len(classes)))


def _mean(run, features, value):
    """The mean over tokens of a sum that `value` computes from the latents and probabilities."""

    @jax.jit
    def batch_sum(params, part):
        latent = run.run.latent_of_features(params, part)
        return value(latent, jax.nn.softmax(run.run.predictive(None, latent), axis=-1))

    starts = range(0, len(features), _BATCH_SIZE)
    parts = (batch_sum(run.state.params, features[i : i + _BATCH_SIZE]) for i in starts)
    return sum(np.asarray(part, np.float64) for part in parts) / len(features)


class Words(NamedTuple):
    """Whole words of the target, and the pairs of them that are said in place of each other."""

    classes: Int[np.ndarray, "c"]  # entries of the vocabulary
    counts: Int[np.ndarray, "c"]  # of each as a whole word in training
    pairs: Int[np.ndarray, "m 2"]  # positions in `classes`


def whole_words(
    sources: Sequence[str], targets: Sequence[Sequence[str]], vocabulary: Sequence[str]
) -> Words:
    """The frequent whole words of the target that are seldom parts of others, and their pairs.

    Args:
      sources: tokenized sentences of training.
      targets: parts of the words of their translations.
      vocabulary: of the target.
    """
    joined = [words_lib.joined(parts) for parts in targets]
    (_, of_source), (names, of_target) = _numbered(sources), _numbered(joined)
    counts = np.bincount(np.concatenate(of_target))
    as_parts = collections.Counter(part for parts in targets for part in parts)
    whole = np.array([n >= _LEAST_WHOLE * as_parts[name] for n, name in zip(counts, names)])
    number = {word: i for i, word in enumerate(vocabulary)}
    classes = np.array([number.get(name, -1) for name in names])
    chosen = np.flatnonzero(whole & (classes >= len(words_lib.SPECIAL)) & (counts >= _LEAST_COUNT))
    position = np.full(len(names), -1)
    position[chosen] = np.arange(len(chosen))
    tied = lexicon.common_origins(
        lexicon.fitted(of_source, of_target), lexicon.fitted(of_target, of_source)
    )
    tied = tied[(position[tied] >= 0).all(axis=1)]
    pairs = np.sort(position[lexicon.rarely_together(tied, of_target)])
    return Words(classes[chosen], counts[chosen], pairs)


def partial_correlation(
    measure: Float[np.ndarray, "c c"],
    is_tied: Float[np.ndarray, "c c"],
    overlap: Float[np.ndarray, "c c"],
    strata: Int[np.ndarray, "c"],
) -> dict[str, float]:
    """`known_noise.rank_correlation` given the overlap, of values with their sign."""
    return known_noise.rank_correlation(measure - measure.min(), is_tied, 199, overlap, strata)


def _numbered(sentences: Sequence[str]) -> tuple[list[str], list[Int[np.ndarray, "_"]]]:
    """The words of the sentences, and their numbers in each."""
    split = [sentence.split(" ") for sentence in sentences]
    names = sorted({word for sentence in split for word in sentence})
    number = {name: i for i, name in enumerate(names)}
    return names, [np.array([number[word] for word in sentence]) for sentence in split]


def of_run(directory: files.Path, data_dir: str | None) -> dict[str, dict[str, float]]:
    """The test of each measure of a run, and `partial` with `partial_p` given p_i p_j."""
    if (task := loaded_run_lib.read(directory).config.get("task")) != "translation":
        raise ValueError(f"{directory} is of the task {task!r}; choose a table of translation.")
    run = loaded_run_lib.load(directory, "last", data_dir)
    text = run.run.pipeline.text
    words = text.target_words
    classes, counts, pairs = whole_words(
        [words_lib.decoded(tokens, text.source_words) for tokens in text.source["train"].split()],
        [[words[x] for x in tokens[:-1]] for tokens in text.target["train"].split()],
        words,
    )
    strata = np.log2(counts).astype(int)
    is_tied = np.zeros((len(classes), len(classes)))
    is_tied[pairs[:, 0], pairs[:, 1]] = is_tied[pairs[:, 1], pairs[:, 0]] = 1
    found = measures(run, classes)
    tests: dict[str, dict[str, float]] = {}
    for name, values in found.items():
        partial = {"rho": float("nan"), "p": float("nan")}
        if name != _OVERLAP:
            partial = partial_correlation(values, is_tied, found[_OVERLAP], strata)
        tests[name] = rank_test(values, pairs, strata)._asdict()
        tests[name] |= {"partial": partial["rho"], "partial_p": partial["p"]}
        tests[name] |= {"pairs": len(pairs), "words": len(classes)}
    jax.clear_caches()
    return tests


@user_errors.one_line()
def main() -> None:
    """Prints how well measures of word pairs find the words with one origin."""
    parser = study.argument_parser(main.__doc__, "noise_original_multi30k")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    derived.add_flag(parser)
    flags = parser.parse_args()
    directory = files.as_path(flags.out) / _STUDY / flags.table
    jobs = study.jobs(study.table(_STUDY, flags.table), flags.scale, directory)
    saved = derived.Derived(__file__, flags, jobs)
    rows: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for job in jobs:
        compute = functools.partial(of_run, job.directory, flags.data_dir)
        for measure, test in (saved.of(job, _SPLIT, compute) or {}).items():
            rows.setdefault(job.row, {}).setdefault(measure, {})[job.seed] = test
    for line in lines(rows):
        print(line)
    saved.finish(flags.save)


def lines(rows: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]]) -> list[str]:
    """The table, with a line for each measure of each row.

    Args:
      rows: row -> measure -> seed -> what `of_run` has of the measure.
    """
    columns = "row", "measure", "runs", "pairs", "words", "rank AUC", f"- {_OVERLAP}", "by chance"
    columns += "largest p", f"beyond {_OVERLAP}", "largest p"
    printed = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    differences = statistics.Differences()
    for row, measures_of_row in rows.items():
        of_overlap = {seed: t["auc"] for seed, t in measures_of_row[_OVERLAP].items()}
        for measure, by_seed in measures_of_row.items():
            tests = list(by_seed.values())
            aucs = {seed: t["auc"] for seed, t in by_seed.items()}
            cells = [row, measure, str(len(tests)), str(tests[0]["pairs"]), str(tests[0]["words"])]
            cells.append(comparison.spread(list(aucs.values()), 3))
            cells.append(
                ""
                if measure == _OVERLAP
                else differences.cell(f"- {_OVERLAP}", aucs, of_overlap, 3)
            )
            cells.append(comparison.spread([t["expected"] for t in tests], 3))
            cells.append(f"{max(t['p'] for t in tests):.2g}")
            known = [t for t in tests if np.isfinite(t["partial"])]
            cells.append(comparison.spread([t["partial"] for t in known], 3) if known else "-")
            cells.append(f"{max(t['partial_p'] for t in known):.2g}" if known else "-")
            printed.append("| " + " | ".join(cells) + " |")
    return [*printed, "", *differences.detectable()]


if __name__ == "__main__":
    main()
