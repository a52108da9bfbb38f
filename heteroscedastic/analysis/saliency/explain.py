"""Maps of the examples of a finished run."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from heteroscedastic.analysis.saliency import attribution, noise, pixels, scalars
from heteroscedastic.runs import assembly, by_example
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

PLACES = ("cam", "grad_cam", "grad_cam_pp", "integrated")  # from the maps of the backbone
PIXELS = ("integrated_gradients", "smooth_grad")  # for every backbone
POSITIVE = ("grad_cam", "grad_cam_pp")  # keep what raises the number
DEFAULT_METHODS = {
    "class": "grad_cam_pp",
    "log_prob": "integrated",
    "noise": "integrated",
    "entropy": "integrated",
    "information": "integrated",
}
OF_ALL_CLASSES = ("entropy", "information")
_OF_NOISE = ("noise", "information")  # 0 without noise
_NUM_POINTS = 128  # of log_prob, entropy and information
_NUM_PROBABLE = 3


class Question(NamedTuple):
    """What to explain, and how.

    `of` is "class" (a utility, or the difference of two), "log_prob", "noise" (var(u_i - u_j), or
    under a sigmoid var(u_k)), "entropy" (of the prediction) or "information" (mutual information of
    label and noise).
    """

    of: str
    method: str  # one of PLACES or PIXELS
    # Of noise, "predicted" is the default. "label" is the label of each example, or all of a list:
    # the sum of their utilities or log-probabilities.
    classes: tuple[int, ...] | str = "predicted"


class Answers(NamedTuple):
    """What a run says about n examples; the fields are those of `Explained`."""

    ids: Int[np.ndarray, "n"]
    probable: Int[np.ndarray, "n p"]
    probs: Float[np.ndarray, "n p"]
    classes: Int[np.ndarray, "n c"]
    value: Float[np.ndarray, "n"]


class Explained(NamedTuple):
    """Maps of n examples, and what they explain."""

    ids: Int[np.ndarray, "n"]
    probable: Int[np.ndarray, "n p"]  # the likeliest classes, in descending order
    probs: Float[np.ndarray, "n p"]
    classes: Int[np.ndarray, "n c"]  # those explained, padded with -1; none for OF_ALL_CLASSES
    value: Float[np.ndarray, "n"]  # of the scalar
    maps: Float[np.ndarray, "n h w"]  # by place or by pixel
    diagonal: Float[np.ndarray, "n h w"] | None = None  # parts of a noise map
    factors: Float[np.ndarray, "n h w"] | None = None


def check(loaded_run: LoadedRun, question: Question, split: str) -> None:
    """Raises a ValueError that names the run and says what to do if it cannot answer a question."""
    suitable = ("integrated", *PIXELS) if question.of == "noise" else PLACES + PIXELS
    suitable = suitable if question.of == "class" else tuple(m for m in suitable if m != "cam")
    if question.method not in suitable:
        raise ValueError(
            f"--method={question.method} does not explain --of={question.of}; choose one of"
            f" {', '.join(suitable)}."
        )
    if objection := _objection(loaded_run, question, split):
        raise ValueError(f"{loaded_run.directory}: {objection}")


def _objection(loaded_run: LoadedRun, question: Question, split: str) -> str | None:
    """Why a run cannot answer a question, and what to do."""
    run, given = loaded_run.run, question.classes
    inputs = loaded_run_lib.split_data(loaded_run, split).inputs
    if inputs.ndim != 4:
        return (
            f"the inputs of the run are features {inputs.shape[1:]}, which have no places; choose a"
            " run on images."
        )
    if question.of in _OF_NOISE and not loaded_run_lib.has_noise(run.config):
        return "the head Deterministic has no noise; choose a run with another head, or --of=class."
    if question.method in PLACES and not hasattr(run.model.backbone, "maps"):
        return (
            f"{type(run.model.backbone).__name__} has no maps; choose --method="
            f"{' or --method='.join(PIXELS)}, which explain pixels."
        )
    if question.method == "cam":
        try:
            run.model.head.utilities_parameters(loaded_run.state.params["head"])
        except ValueError as error:
            return f"--method=cam: {error} Choose --method=grad_cam."
    numbers = {
        "class": (1,) if question.method == "cam" else (1, 2),
        "log_prob": (1,),
        "noise": (2,) if run.task.link == "softmax" else (1,),
    }.get(question.of, (0,))
    if not isinstance(given, str) and len(given) not in numbers:
        expected = " or ".join(map(str, numbers))
        return (
            f"--classes names {len(given)}, but --of={question.of} with --method={question.method}"
            f" requires {expected}."
        )
    return None


def explain(
    loaded_run: LoadedRun,
    split: str,
    question: Question,
    rows: Int[np.ndarray, "n"] | None = None,
    color: Float[np.ndarray, "c"] | None = None,
) -> Explained:
    """The maps of examples of a split; see `check` for what a run supports.

    Predictions use fixed points in place of random samples, so that they depend on the image alone.

    Args:
      loaded_run: the run.
      split: of its data.
      question: what to explain.
      rows: positions in the split; all of them by default.
      color: `mean_color`, for integrated gradients.

    Raises:
      ValueError: a map is not finite.
    """
    run = loaded_run.run

    def of_maps(state, maps, batch):
        apply = functools.partial(run.latent_of_features, state.params)
        asked = _asked(run, question, apply, jnp.mean(maps, axis=(1, 2)), state, batch)
        return asked.facts | _of_places(run, question, state, maps, asked)

    def of_pixels(state, batch):
        apply = functools.partial(run.latent_of_inputs, state.params, state.model_state)
        images = pixels.as_float(batch.inputs)
        asked = _asked(run, question, apply, images, state, batch)
        if question.method == "smooth_grad":
            key = assembly.key_for(run.config["seed"], "saliency")
            keys = jax.vmap(functools.partial(jax.random.fold_in, key))(batch.ids)
            return asked.facts | {"maps": pixels.smooth_grad(keys, images, asked.function)}
        start = jnp.asarray(color)
        maps = pixels.integrated_gradients(images, asked.function, start)
        return asked.facts | {"maps": maps}

    if question.method == "integrated_gradients" and color is None:
        color = mean_color(loaded_run, split)
    mapped, function = (
        (by_example.map_maps, of_maps)
        if question.method in PLACES
        else (by_example.map_batches, of_pixels)
    )
    explained = Explained(**mapped(loaded_run, split, function, rows))
    wrong = ~np.isfinite(explained.maps).all(axis=(1, 2))
    if wrong.any():
        raise ValueError(
            f"{loaded_run.directory}: the map of example {explained.ids[wrong][0]}, and of"
            f" {wrong.sum() - 1} others, is not finite; the weights of this checkpoint have"
            " diverged, or choose another --method."
        )
    return explained


def answers(loaded_run: LoadedRun, split: str, question: Question) -> Answers:
    """What `explain` says about all examples of a split, without the maps."""
    run = loaded_run.run

    def of_features(state, features, batch):
        apply = functools.partial(run.latent_of_features, state.params)
        return _asked(run, question, apply, features, state, batch).facts

    return Answers(**by_example.map_features(loaded_run, split, of_features))


def is_right(
    found: Answers | Explained, labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]
) -> Bool[np.ndarray, "n"]:
    """Whether the likeliest class of each example is a label."""
    return (labels.reshape(len(labels), -1) == found.probable[:, :1]).any(axis=-1)


def mean_color(loaded_run: LoadedRun, split: str) -> Float[np.ndarray, "c"]:
    """The mean of each channel over the images of a split, as the network sees them."""
    colors = by_example.map_batches(
        loaded_run, split, lambda state, batch: jnp.mean(batch.inputs, axis=(1, 2))
    )
    return colors.mean(axis=0, dtype=np.float64).astype(np.float32)


def inputs(
    loaded_run: LoadedRun, split: str, rows: Int[np.ndarray, "n"]
) -> Shaped[np.ndarray, "n H W c"]:
    """The images of these rows, as the network sees them."""
    return by_example.map_batches(loaded_run, split, lambda state, batch: batch.inputs, rows)


def scalar_of_inputs(
    loaded_run: LoadedRun, question: Question, classes: Any, state: Any, images: Any
) -> pixels.Function:
    """The explained number as a function of images, for given classes of each of `images`."""
    run = loaded_run.run
    apply = functools.partial(run.latent_of_inputs, state.params, state.model_state)
    scalar = _scalar(run, question, apply(images), classes, state)
    return lambda changed: scalar(apply(changed))


class _Asked(NamedTuple):
    """What is asked of a batch."""

    facts: dict[str, Any]  # fields of `Answers`
    classes: Any
    function: Any  # S


def _asked(run, question, apply, inputs, state, batch) -> _Asked:
    latent = apply(inputs)
    logits = run.parts.predictive(None, latent)
    probs = (jax.nn.sigmoid if run.task.link == "sigmoid" else jax.nn.softmax)(logits)
    likeliest, probable = jax.lax.top_k(probs, min(_NUM_PROBABLE, probs.shape[-1]))
    classes = _classes(run, question, latent, probs, batch.labels)
    scalar = _scalar(run, question, latent, classes, state)
    facts = {"ids": batch.ids, "probable": probable, "probs": likeliest}
    facts |= {"classes": classes, "value": scalar(latent)}
    return _Asked(facts, classes, lambda x: scalar(apply(x)))


def _classes(run, question, latent, probs, labels):
    """The classes to explain of each example [b, c]."""
    if question.of in OF_ALL_CLASSES:
        return jnp.zeros((len(probs), 0), jnp.int32)
    if not isinstance(question.classes, str):
        return jnp.tile(jnp.asarray(question.classes, jnp.int32), (len(probs), 1))
    if question.of == "noise":
        return noise.default_classes(latent, probs, run.task.link)
    if question.classes == "label":
        return labels.reshape(len(labels), -1)
    return jnp.argmax(probs, axis=-1)[:, None]


def _scalar(run, question, latent, classes, state):
    """The scalar of a question: (latent) -> one number per example."""
    temperature = run.model.head.temperature_of(state.params["head"])
    points = {"num_samples": _NUM_POINTS, "points": "sobol"}
    is_list = question.of != "noise" and question.classes == "label"
    is_pair = classes.shape[-1] == 2 and not is_list
    if question.of == "noise":
        function = scalars.pair_variance if is_pair else scalars.label_variance
        classes = classes if is_pair else classes[:, 0]
    elif question.of == "class":
        function = scalars.utility_difference if is_pair else scalars.utility
    else:
        settings = {"noise": scalars.fixed_noise(latent, **points), "link": run.task.link}
        if question.of == "log_prob":
            return functools.partial(scalars.log_prob, classes=classes, **settings)
        of_all = {"entropy": scalars.entropy, "information": scalars.mutual_information}
        return functools.partial(of_all[question.of], **settings)
    settings = {"pairs" if is_pair else "classes": classes}
    return functools.partial(function, temperature=temperature, **settings)


def _of_places(run, question, state, maps, asked):
    head, params = run.model.head, state.params["head"]
    if question.of == "noise":
        found = noise.noise_maps(maps, head.noise_parameters(params), asked.classes)
        parts = {"diagonal": found.diagonal, "factors": found.factors}
        return parts | {"maps": found.diagonal + found.factors}
    if question.method == "cam":
        return {"maps": attribution.cam(maps, head.utilities_parameters(params), asked.classes)}
    method = getattr(attribution, question.method)
    return {"maps": method(maps, asked.function)}
