"""Tables on frozen features."""

import re
from pathlib import Path

import numpy as np
import pytest
from pack import PACK, needs

from experiments import run, study
from experiments.correlated_label_noise import frozen, siblings
from heteroscedastic import curation as curation_lib
from heteroscedastic import files
from heteroscedastic.data import chains

NOUNS = """  1 This is the licence
00000001 03 n 01 thing 0 000 | all
00000002 03 n 02 ball 0 sphere 0 001 @ 00000001 n 0000 | round
00000003 03 n 01 red_ball 0 002 @ 00000002 n 0000 ~ 00000009 n 0000 | red
00000004 03 n 01 blue_ball 1 002 @ 00000002 n 0000 @ 00000001 n 0000 | blue
00000005 03 n 01 cube 0 001 @i 00000002 n 0000 | an instance
"""


def jobs_of(name):
    """The jobs of the first two seeds."""
    chosen = frozen.TABLES[name]
    scale = chosen.scales["features"]
    assert scale.seeds in (tuple(range(10)), tuple(range(20)))
    chosen = chosen._replace(scales={"features": scale._replace(seeds=(0, 1))})
    return study.jobs(chosen, "features", Path("runs/study") / name)


def test_factors_and_remedies_use_the_runs_of_the_primary_table():
    primary = {job.directory: job.fingerprint for job in jobs_of("frozen_features")}
    assert {job.config["data"]["label"] for job in jobs_of("frozen_features")} == {"worse_label"}
    for name in ("frozen_features_factors", "frozen_features_remedies"):
        jobs = jobs_of(name)
        shared = [job for job in jobs if job.directory in primary]
        assert {job.row for job in shared} >= {"plain", "low_rank_6"}
        assert all(job.fingerprint == primary[job.directory] for job in shared)
        training = {str(job.config["training"] | job.config["evals"]) for job in jobs}
        assert len(training) == 1


def test_missing_features_are_an_error_that_names_the_command(monkeypatch, tmp_path, capsys):
    flags = "--study=correlated_label_noise --table=tiny_imagenet_siblings_20 --scale=features"
    flags += f" --rows plain --out={tmp_path} --data_dir={tmp_path}"
    monkeypatch.setattr("sys.argv", ["run", *flags.split()])
    with pytest.raises(SystemExit) as error:
        run.main()
    text = f"{error.value} {capsys.readouterr().err}"
    assert re.search(r"tiny_imagenet_EfficientNetLite0_224\.npz are not in .*runs\.embed", text)
    assert "--data=tiny_imagenet --backbone=EfficientNetLite0" in text


def test_siblings_share_a_hypernym_and_move_in_a_circle():
    nouns = siblings.synsets(NOUNS)
    assert nouns["n00000003"] == siblings.Synset("red ball", ("n00000002",))
    assert nouns["n00000005"].hypernyms == ()  # an instance is no kind
    wnids = ["n00000005", "n00000004", "n00000003"]
    found = siblings.groups(wnids, nouns)
    assert found == [{"hypernym": "n00000002", "word": "ball", "classes": [1, 2]}]
    assert siblings.moves(found) == ((1, 2), (2, 1))
    with pytest.raises(ValueError, match="n9 is no noun of this WordNet"):
        siblings.groups(["n9"], nouns)


@pytest.mark.parametrize("rate", [0.2, 0.4])
def test_the_planted_noise_stays_among_siblings(rate):
    (link,) = chains.parse(curation_lib, siblings.curation(rate))
    labels = np.repeat(np.arange(200), 200).astype(np.int32)
    ids = np.arange(len(labels))
    _, noisy = link(0, ids, labels, 200)
    stored = files.read_json(siblings.PATH)["groups"]
    group_of = {c: i for i, group in enumerate(stored) for c in group["classes"]}
    wrong = noisy != labels
    assert all(group_of[a] == group_of[b] for a, b in zip(labels[wrong], noisy[wrong]))
    has_sibling = np.isin(labels, list(group_of))
    assert len(group_of) == 65
    assert wrong[has_sibling].mean() == pytest.approx(rate, abs=0.015)


@needs("tiny_imagenet")
def test_the_siblings_are_of_the_classes_in_their_order():
    (path,) = Path(PACK).glob("tiny_imagenet/*/label_wnids.txt")
    assert files.read_json(siblings.PATH)["wnids"] == path.read_text().split()
