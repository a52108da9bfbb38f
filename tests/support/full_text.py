"""A text pipeline with the vocabularies of a config, and one short pair in each split."""

import numpy as np

from heteroscedastic.data.text import pipeline, words
from heteroscedastic.data.text.pairs import Pairs
from heteroscedastic.data.text.prepared import PreparedText, Sentences


def text(config):
    """The pipeline of a config whose sentences tests do not have."""
    data, splits = config["data"], ("train", "valid", "test")
    sentence = Sentences(np.array([4, words.END], np.int32), np.array([2], np.int32))
    names = [
        tuple(f"word {i}" for i in range(number))
        for number in (config["backbone"]["num_source_words"], config["head"]["num_classes"])
    ]
    sides = [dict.fromkeys(splits, sentence) for _ in range(2)]
    return pipeline.Text(
        text=PreparedText(*sides, *names, "", ""),
        training=pipeline.curated(1, 0, []),
        pairs=dict.fromkeys(splits, Pairs([], [])),
        length=data["row_length"],
        seed=0,
        packing_seed=0,
        batch_size=config["training"]["batch_size"],
    )
