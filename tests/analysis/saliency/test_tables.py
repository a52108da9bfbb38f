"""Tables of localisation, of scores that are known."""

import numpy as np

from heteroscedastic.analysis.saliency import deletion, evaluation, localisation, tables

PEAKS = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
IS_RIGHT = np.array([True, False, True, True, True, False])  # two of three hits


def run(peaks):
    """What `summary.localised` has of a run, whose objects are larger from image to image."""

    def scores(peaks):
        ious = np.repeat(0.6 * peaks[:, None], len(localisation.THRESHOLDS), axis=1)
        return localisation.Scores(peaks, np.full(6, np.nan), ious, ious)

    by_map = {"map": scores(peaks), "entire image": scores(np.ones(6))}
    found = evaluation.Located(np.arange(6), np.linspace(0, 1, 6), IS_RIGHT, by_map, 0, 0)
    return {"localisation": evaluation.table(found, None), "num_scored": 6}


def test_the_tables_have_means_right_predictions_thirds_and_both_differences():
    runs = {"hard": run(PEAKS), "soft": run(1 - PEAKS), "none": {"deletion": {}}}
    values = {
        name: {0: (np.arange(6), {"pointing": peaks})}
        for name, peaks in (("hard", PEAKS), ("soft", 1 - PEAKS))
    }
    differences = evaluation.differences(values)
    means, strict, from_controls, by_group = tables.localisation(runs, "hard", differences)
    for table in (means, strict, from_controls, by_group):
        assert {len(row) for row in table.rows} == {len(table.header)}
    assert [row[0] for row in means.rows] == [
        "hard", "hard: entire image", "soft", "soft: entire image",
    ]  # fmt: skip
    first = dict(zip(means.header, means.rows[0]))
    assert first["images"] == "6"
    assert first["pointing"].startswith("0.500 [")
    assert (first["max_box"], first["mass"]) == ("-", "-")
    assert [row[0] for row in strict.rows] == ["hard", "hard: entire image", "soft"]
    first, control = (dict(zip(strict.header, row)) for row in strict.rows[:2])
    assert first["pointing and right"] == first["box and right"] == "0.333"
    assert first["pointing, small / middle / large"] == "1.000 / 0.500 / 0.000"
    assert (first["max_box and right"], first["mass, small / middle / large"]) == ("-", "-")
    assert control["pointing and right"] == "0.667"
    assert [row[0] for row in from_controls.rows] == [
        "hard \u2212 entire image",
        "soft \u2212 entire image",
    ]
    assert from_controls.rows[0][1].startswith("-0.500 [")
    assert by_group.caption == "Difference from hard, paired by image and by seed"
    assert by_group.rows[0][:2] == ["soft", f"{0:.3f} {by_group.rows[0][1].split(' ', 1)[1]}"]


def test_without_scores_there_is_no_table_and_without_a_second_group_no_difference():
    assert tables.localisation({"hard": {}}, None, {}) == []
    captions = [table.caption for table in tables.localisation({"hard": run(PEAKS)}, "hard", {})]
    assert len(captions) == 3
    assert not any(caption.startswith("Difference") for caption in captions)


def test_deletion_has_a_line_for_each_order_of_the_pixels():
    fractions = deletion.FRACTIONS
    table = tables.deletion({"hard": {"deletion": {"map": 3 - 2 * fractions, "centre": fractions}}})
    assert table.header == ["", "0%", "5%", "10%", "25%", "50%"]
    assert table.rows == [
        ["hard", "3", "2.9", "2.8", "2.5", "2"],
        ["hard: centre", "0", "0.05", "0.1", "0.25", "0.5"],
    ]


def test_a_terminal_shows_the_columns_below_each_other():
    curves = {"deletion": {"map": np.linspace(1, 0.5, 11), "random": np.linspace(1, 0.9, 11)}}
    texts = list(tables.texts({"hard": run(PEAKS) | curves}, "hard", {}))
    assert len(texts) == 4
    for text in texts:
        _, *lines = text.rstrip("\n").split("\n")
        assert len({len(line) for line in lines}) == 1
