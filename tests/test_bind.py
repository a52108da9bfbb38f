import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import curation, losses, smoothing
from heteroscedastic.batch import Batch
from heteroscedastic.bind import bind, chain
from heteroscedastic.data import augment
from heteroscedastic.models import heads
from heteroscedastic.training import optimizer, schedules

BATCH = Batch(None, jnp.array([0, 2]), jnp.ones(2), jnp.arange(2), {})


def settings_of(links):
    """The links of a chain as (name, settings)."""
    return [(link.func.__name__, link.keywords) for link in links]


def test_a_function_is_bound_to_its_settings():
    bound = bind(smoothing, name="uniform", rate=0.3, over="wrong")
    np.testing.assert_array_equal(
        bound(BATCH, 3), smoothing.uniform(BATCH, 3, rate=0.3, over="wrong")
    )


def test_settings_with_a_default_may_be_left_out():
    bound = bind(smoothing, name="uniform", rate=0.3)
    np.testing.assert_array_equal(bound(BATCH, 3), smoothing.uniform(BATCH, 3, rate=0.3))


def test_a_function_without_settings_is_itself():
    logits, targets = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5])
    np.testing.assert_array_equal(
        bind(losses, name="cross_entropy")(logits, targets), losses.cross_entropy(logits, targets)
    )


def test_a_class_is_constructed_with_its_settings():
    bound = bind(heads, name="LowRank", num_classes=5, num_factors=2)
    assert bound == heads.LowRank(num_classes=5, num_factors=2)
    features = jnp.ones((3, 4))
    assert bound.init(jax.random.key(0), features).keys() == {"params"}


@pytest.mark.parametrize(
    ("module", "choices"),
    [
        (
            losses,  # __all__ hides the helpers
            [
                "cross_entropy",
                "focal",
                "generalized_cross_entropy",
                "logit_adjusted",
                "sigmoid_cross_entropy",
            ],
        ),
        (heads, ["Deterministic", "Diagonal", "LowRank", "ParameterEfficient"]),
        (
            augment,
            [
                "blend_jitter",
                "central_crop",
                "context",
                "flip_lr",
                "lighting",
                "mask_others",
                "pad_crop",
                "random_crop",
                "resize",
                "sample_boxes",
                "shift",
                "to_rgb",
                "value_range",
                "with_mirrored",
            ],
        ),
        (optimizer, ["adam", "adamw", "sgd"]),
        (schedules, ["constant", "cosine", "inverse_sqrt", "steps"]),
    ],
)
@pytest.mark.parametrize(
    "name", ["nothing", "", "jnp", "Head", "_Tower", "weighted_mean", "Array", "__doc__"]
)
def test_an_unknown_name_is_an_error_that_lists_only_public_choices(module, choices, name):
    with pytest.raises(
        ValueError, match=f"has no {name!r}; choose one of {', '.join(choices)}"
    ) as caught:
        bind(module, name=name)
    assert str(caught.value).startswith(module.__name__.rpartition(".")[2])


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (
            smoothing,
            dict(name="uniform", rate=0.1, ovr="all"),
            "uniform has no setting 'ovr'; .* rate, over",
        ),
        (
            smoothing,
            dict(name="hard", rate=0.1),
            "hard has no setting 'rate'; its settings are none",
        ),
        (
            smoothing,
            dict(name="uniform", rate=0.1, num_classes=3),
            "has no setting 'num_classes'",
        ),  # not keyword-only
        (
            heads,
            dict(name="Diagonal", num_classes=3, num_factors=2),
            "Diagonal has no setting 'num_factors'",
        ),
        (
            heads,
            dict(name="Diagonal", num_classes=3, parent=None),
            "Diagonal has no setting 'parent'",
        ),
        (smoothing, dict(name="uniform"), "uniform needs a value for 'rate'"),
        (heads, dict(name="LowRank", num_factors=2), "LowRank needs a value for 'num_classes'"),
        (schedules, dict(name="steps"), "steps needs a value for 'learning_rate', 'milestones'"),
    ],
)
def test_an_unknown_or_missing_setting_is_an_error_that_names_it(module, settings, message):
    with pytest.raises(ValueError, match=message):
        bind(module, **settings)


def test_the_bound_class_checks_the_values():
    with pytest.raises(ValueError, match="temperature is 0"):
        bind(heads, name="Diagonal", num_classes=3, temperature=0.0)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_chain_has_no_links(text):
    assert chain(augment, text) == []


@pytest.mark.parametrize(
    ("module", "text", "links"),
    [
        (augment, "flip_lr", [("flip_lr", {})]),
        (augment, "flip_lr()", [("flip_lr", {})]),
        (
            augment,
            "pad_crop(4)|flip_lr|value_range(-1, high=1.5)",
            [("pad_crop", {"size": 4}), ("flip_lr", {}), ("value_range", {"low": -1, "high": 1.5})],
        ),
        (
            augment,
            " shift( size = 2 ) | shift(1) ",
            [("shift", {"size": 2}), ("shift", {"size": 1})],
        ),
        (
            curation,
            "confuse_pairs(pairs=((3, 5), (4, 9)), rate=0.4)|subset(num_examples=10)",
            [
                ("confuse_pairs", {"pairs": ((3, 5), (4, 9)), "rate": 0.4}),
                ("subset", {"num_examples": 10}),
            ],
        ),
        (
            curation,
            "exponential(ratio=100)|undersample|transitions(((9, 1), (3, 5)), 0.2)",
            [
                ("exponential", {"ratio": 100}),
                ("undersample", {}),
                ("transitions", {"moves": ((9, 1), (3, 5)), "rate": 0.2}),
            ],
        ),
        (
            curation,
            "confuse_pairs(((0, 1),), 1e-1)",
            [("confuse_pairs", {"pairs": ((0, 1),), "rate": 0.1})],
        ),
    ],
)
def test_a_chain_gives_its_functions_in_order(module, text, links):
    assert settings_of(chain(module, text)) == links


def test_a_link_computes_the_same_as_its_function():
    example = {"image": jnp.arange(12, dtype=jnp.uint8).reshape(2, 2, 3)}
    (link,) = chain(augment, "value_range(-1.0, 1.0)")
    key = jax.random.key(0)
    np.testing.assert_array_equal(
        link(key, example)["image"],
        augment.value_range(key, example, low=-1.0, high=1.0)["image"],
    )


@pytest.mark.parametrize(
    "text",
    [
        "pad_crop(__import__('os'))",
        "pad_crop(size=open('x'))",
        "pad_crop(4 * 4)",
        "pad_crop(x)",
        "pad_crop([i for i in (1, 2)])",
        "pad_crop(*(4,))",
        "pad_crop((lambda: 4)())",
        "pad_crop(f'{4}')",
    ],
)
def test_an_argument_that_is_not_a_literal_is_an_error_and_is_not_evaluated(text):
    with pytest.raises(ValueError, match="not a number, string or tuple"):
        chain(augment, text)


@pytest.mark.parametrize(
    "text",
    [
        "4",
        "'flip_lr'",
        "augment.flip_lr",
        "augment.flip_lr()",
        "flip_lr()()",
        "__import__('os').system('true')",
        "(lambda: 0)()",
        "flip_lr + flip_lr",
        "flip_lr|(flip_lr|flip_lr)",
        "flip_lr|(flip_lr or flip_lr)",
        "pad_crop(**{'size': 4})",
        "flip_lr,",
    ],
)
def test_a_link_that_is_not_a_call_by_name_is_an_error(text):
    with pytest.raises(ValueError, match="is not a link of a chain"):
        chain(augment, text)


@pytest.mark.parametrize(
    "text", ["pad_crop(4", "|flip_lr", "flip_lr|", "flip_lr||flip_lr", "x = 4", "flip lr", "a; b"]
)
def test_a_chain_that_does_not_parse_is_an_error(text):
    with pytest.raises(ValueError, match=r"is not a chain such as 'pad_crop\(4\)\|flip_lr'"):
        chain(augment, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "flip_lr|nothing(4)",
            "augment has no 'nothing'; choose one of blend_jitter, central_crop",
        ),
        ("eval('1')", "augment has no 'eval'"),
        ("pad_crop(4, sise=4)", "pad_crop has no setting 'sise'"),
        ("pad_crop", "pad_crop needs a value for 'size'"),
        ("value_range(0)", "value_range needs a value for 'high'"),
        ("pad_crop(4, size=4)", "sets size twice"),
        ("pad_crop(size=4, size=3)", "sets size twice"),
        ("pad_crop(4, 5)", "has 2 arguments, but takes size"),
        ("flip_lr(1)", "has 1 arguments, but takes none"),
    ],
)
def test_a_link_that_does_not_bind_is_an_error_with_the_reason(text, message):
    with pytest.raises(ValueError, match=message):
        chain(augment, text)


def test_a_bound_function_can_be_bound_further():
    schedule = functools.partial(
        bind(schedules, name="constant", learning_rate=0.5), total_steps=10, steps_per_epoch=5
    )
    assert schedule(3) == 0.5
