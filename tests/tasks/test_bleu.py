"""BLEU of translations."""

import math
from collections import Counter

import pytest

from heteroscedastic.tasks import bleu

HYPOTHESES = ["it &apos;s a dog &apos;s life , is it ?", "the man rides 3 &amp; 4 bikes ."]
REFERENCES = ["It's a dog's life, isn't it?", "The man rides 3 & 4 red bikes."]
TOKENS = ["it &apos;s a dog &apos;s life , isn &apos;t it ?", "the man rides 3 &amp; 4 red bikes ."]
EXTRA_PAIR = ("no", "Yes")  # shares nothing


def bleu_of_tokens(hypotheses, references):
    """Papineni et al. (2002), section 2.3, on words between spaces."""
    sides = [[line.split(" ") for line in lines] for lines in (hypotheses, references)]
    logs = []
    for n in range(1, 5):
        right = total = 0
        for ours, theirs in zip(*sides):
            found, expected = (Counter(zip(*(x[i:] for i in range(n)))) for x in (ours, theirs))
            right, total = right + (found & expected).total(), total + found.total()
        if not right:
            return 0.0
        logs.append(math.log(right / total))
    ours, theirs = (sum(map(len, side)) for side in sides)
    return 100 * min(1, math.exp(1 - theirs / ours)) * math.exp(sum(logs) / 4)


def test_bleu_of_moses_tokens_is_that_of_the_paper():
    found = bleu.bleu([*HYPOTHESES, EXTRA_PAIR[0]], [*REFERENCES, EXTRA_PAIR[1]], "en")
    expected = bleu_of_tokens([*HYPOTHESES, EXTRA_PAIR[0]], [*TOKENS, EXTRA_PAIR[1].lower()])
    assert 20 < expected < 90
    assert found.scores["bleu_moses"] == pytest.approx(expected)
    # No four tokens in a row are right, which smoothing would hide.
    assert bleu.bleu(["the dog &apos;s"], ["The dog's life"], "en").scores["bleu_moses"] == 0


def test_bleu_of_text_ignores_case_and_the_tokens_of_moses():
    exact = bleu.bleu(TOKENS, [line.upper() for line in REFERENCES], "en").scores
    assert exact["bleu"] == pytest.approx(100)
