"""Checks of configs at full size without data: binds all functions and traces one step."""

import functools
import json
import re

import jax
import jax.numpy as jnp

from heteroscedastic import curation, losses, predictive, smoothing, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.bind import bind, chain
from heteroscedastic.models import backbones, heads
from heteroscedastic.runs import schema
from heteroscedastic.training import optimizer, schedules

_CROP = re.compile(r"(?:inception|random)_crop\((\d+)")  # the group is the image size
# Data sets without such a crop that tests do not have: size after the training chain.
_SIZES = {"cifar100": 32, "eurosat/rgb": 32, "inaturalist2019": 64}
_BATCH = 2
_PRESENT = jnp.ones(_BATCH, bool)


def image_size(config):
    """The image size of a config whose data tests do not have; None for another config."""
    crop = _CROP.search(config["data"].get("train", ""))
    return int(crop[1]) if crop else _SIZES.get(config["data"]["name"])


def num_parameters(config, multilabel):
    """Checks the shapes of a training step; returns the number of trainable parameters.

    Args:
      config: one that has an `image_size`.
      multilabel: whether examples have lists of labels.
    """
    config = schema.checked(config)
    chain(curation, config["curation"])
    width, backbone = _backbone(json.dumps(config["backbone"]), image_size(config))
    head = jax.eval_shape(
        _step(json.dumps(config), multilabel), jax.ShapeDtypeStruct((_BATCH, width), jnp.float32)
    )
    params = {"backbone": backbone, "head": head}
    schedule = functools.partial(
        bind(schedules, **config["schedule"]), total_steps=90, steps_per_epoch=1
    )
    update = bind(optimizer, **config["optimizer"])(schedule)
    updates, _ = jax.eval_shape(
        lambda params: update.update(params, update.init(params), params), params
    )
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    return sum(x.size for x in jax.tree.leaves(params))


@functools.cache
def _backbone(settings, pixels):
    """The number of features, and the shapes of the parameters."""
    model = bind(backbones, **json.loads(settings))
    images = jax.ShapeDtypeStruct((_BATCH, pixels, pixels, 3), jnp.float32)
    features, variables = jax.eval_shape(
        lambda x: model.init_with_output(jax.random.key(0), x, _PRESENT, train=True), images
    )
    return features.shape[-1], variables["params"]


def _step(config, multilabel):
    """A function from features to the gradient of the loss in the head's parameters."""
    config = json.loads(config)
    head = bind(heads, **config["head"])
    estimator, loss = bind(predictive, **config["predictive"]), bind(losses, **config["loss"])
    targets_of, weights_of = (
        bind(smoothing, **config["smoothing"]),
        bind(weighting, **config["weighting"]),
    )
    num_classes = config["head"]["num_classes"]
    labels = jnp.zeros((_BATCH, 3) if multilabel else _BATCH, jnp.int32)
    data = config["data"]
    extras = {"boxes": jnp.zeros((_BATCH, data["max_boxes"], 4))} if data["extras"] else {}
    batch = Batch(None, labels, jnp.ones(_BATCH), jnp.arange(_BATCH), extras)

    def step(features):
        params = head.init(jax.random.key(0), features)["params"]

        def objective(params):
            logits = estimator(jax.random.key(1), head.apply({"params": params}, features))
            targets = targets_of(batch, num_classes)
            weights = weights_of(targets, jnp.ones(num_classes))
            return losses.weighted_mean(loss(logits, targets, jnp.ones(num_classes)), weights)

        return jax.grad(objective)(params)

    return step
