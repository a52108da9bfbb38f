import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key

from heteroscedastic.models import heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.resnet import ResNet


def load(name):
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "settings",
    [dict(stage_sizes=(1, 1), bottleneck=True), dict(stage_sizes=(1, 1), bottleneck=False, stem="cifar")],
    ids=["imagenet", "cifar"],
)
def test_the_plain_model_is_ours_without_the_mask(settings):
    plain = load("train").PlainResNet(**settings, num_classes=3, width=4)
    ours = Classifier(ResNet(**settings, width=4, stem_width=4), heads.Deterministic(3))
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(6, 16, 16, 3)), jnp.float32)
    present = jnp.ones(6, bool)
    variables = jax.jit(ours.init)(key(), inputs, present)
    # Every number is moved, so that no scale of zero hides a branch.
    variables = jax.tree.map(lambda x: x + 0.1, variables)
    theirs = {
        "params": {**variables["params"]["backbone"], **variables["params"]["head"]},
        "batch_stats": variables["batch_stats"]["backbone"],
    }
    made = jax.eval_shape(plain.init, key(), inputs)
    assert jax.tree.map(jnp.shape, theirs) == jax.tree.map(jnp.shape, made)

    apply_ours, apply_plain = (functools.partial(m.apply, train=True, mutable=["batch_stats"]) for m in (ours, plain))
    latent, updated = jax.jit(apply_ours)(variables, inputs, present)
    logits, their_updated = jax.jit(apply_plain)(theirs, inputs)
    np.testing.assert_allclose(logits, latent.loc, rtol=1e-3, atol=1e-3)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        their_updated["batch_stats"],
        updated["batch_stats"]["backbone"],
    )
