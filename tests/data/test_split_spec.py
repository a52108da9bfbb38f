import pytest

from heteroscedastic.data import split_spec

SIZES = {"train": 50_000, "test": 37, "un-labelled": 3}
EXPRESSIONS = [
    *("train", "test", "un-labelled"),
    *(
        "train[:25%]",
        "train[25%:50%]",
        "train[75%:]",
        "train[-10%:]",
        "train[:-10%]",
        "train[10:20%]",
    ),
    *("train[100:200]", "train[:1]", "train[-1:]", "train[:-1]", "train[49999:]", "train[0:50000]"),
    *("test[:50%]", "test[50%:]", "test[:33.3%]", "test[33.3%:66.6%]", "test[-50%:-25%]"),
    *(f"un-labelled[:{percent}%]" for percent in (17, 49, 50, 51, 83, 100)),
]
INVALID = [
    "train[",
    "train[]",
    "train[:]",
    "train[5]",
    "train[1.5:]",
    "train[%:]",
    "train[:50001]",
    "train[-50001:]",
]


def tfds_slice(expression):
    """The slice that TFDS reads."""
    tfds = pytest.importorskip("tensorflow_datasets")
    infos = {
        name: tfds.core.SplitInfo(
            name=name, shard_lengths=[size], num_bytes=0, filename_template=None
        )
        for name, size in SIZES.items()
    }
    (instruction,) = tfds.core.ReadInstruction.from_spec(expression).to_absolute(infos)
    size = SIZES[instruction.splitname]
    return (
        instruction.splitname,
        instruction.from_ or 0,
        size if instruction.to is None else instruction.to,
    )


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_slice_equals_that_of_tfds(expression):
    assert split_spec.parse(expression, SIZES) == tfds_slice(expression)


@pytest.mark.parametrize("expression", INVALID)
def test_an_expression_that_tfds_rejects_is_an_error(expression):
    with pytest.raises(ValueError, match=r"split|slice|literal"):
        tfds_slice(expression)
    with pytest.raises(ValueError, match=r"is not a slice|empty or out of"):
        split_spec.parse(expression, SIZES)


@pytest.mark.parametrize("percent", [2, 10, 33, 50, 98])
def test_two_percentages_divide_a_split(percent):
    first, second = (
        split_spec.parse(e, SIZES) for e in (f"test[:{percent}%]", f"test[{percent}%:]")
    )
    assert (first.start, first.stop, second.stop) == (0, second.start, 37)


@pytest.mark.parametrize("expression", ["test[5:5]", "test[20:10]", "test[:1%]", "test[-1%:]"])
def test_an_empty_slice_is_an_error(expression):
    with pytest.raises(ValueError, match="empty or out of range"):
        split_spec.parse(expression, SIZES)


def test_a_split_has_the_set_of_its_entry():
    splits = dict(test="test[:5]", other=dict(name="coco/2017", split="validation"))
    data = dict(name="mine", validation_fraction=0.1, splits=splits)
    names = [split_spec.data_name(data, s) for s in ("test", "other", "train", "valid")]
    assert names == ["mine", "coco/2017", "mine", "mine"]
    assert split_spec.data_name(dict(name="text"), "valid") == "text"


def test_the_error_of_an_unknown_split_lists_the_stored_splits():
    with pytest.raises(
        ValueError,
        match=r"'valid\[:5\]' names no stored split; the stored splits are train, test, un-",
    ):
        split_spec.parse("valid[:5]", SIZES)


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        (
            dict(train="train[50000:]", valid="train[:50000]"),
            dict(train="train[50%:]", valid="train[:50%]"),
        ),
        (
            dict(train="train[:800]", valid="train[800:1000]"),
            dict(train="train[:33%]", valid="train[33%:67%]"),
        ),
        (
            dict(train="train[:-5000]", valid="train[-5000:]"),
            dict(train="train[:50%]", valid="train[50%:]"),
        ),
        (dict(a="train[10:-10]", test="test[:100]"), dict(a="train[33%:67%]", test="test[:50%]")),
        (
            dict(train="train", few="train[:1%]", bad="?"),
            dict(train="train", few="train[:1%]", bad="?"),
        ),
    ],
)
def test_shares_keep_the_order_of_bounds_and_disjoint_slices_stay_disjoint(expressions, expected):
    assert split_spec.shares(expressions) == expected
    sizes = {"train": 32, "test": 32}
    parts = [
        split_spec.parse(e, sizes)
        for e in split_spec.shares(expressions).values()
        if e != "?" and "1%" not in e
    ]
    rows = [(p.split, i) for p in parts for i in range(p.start, p.stop)]
    assert len(rows) == len(set(rows))
