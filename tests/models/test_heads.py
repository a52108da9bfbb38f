import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.models import heads

D, K, R = 7, 5, 3
BASE = (D + 1) * K


def num_parameters(head):
    shapes = jax.eval_shape(head.init, key(), jnp.zeros((2, D)))
    return sum(x.size for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (heads.Deterministic(K), BASE),
        (heads.Diagonal(K), 2 * BASE),
        (heads.LowRank(K, num_factors=R), 2 * BASE + (D + 1) * K * R),
        (heads.ParameterEfficient(K, num_factors=R), 3 * BASE + K * R),
        (heads.LowRank(K, num_factors=0), 2 * BASE),
        (heads.ParameterEfficient(K, num_factors=0), 2 * BASE),
    ],
)
def test_parameters_are_as_many_as_the_formula_says(head, expected):
    assert num_parameters(head) == expected


def test_the_papers_counts_come_out():
    # Collier et al. (2021), reading C2: 44.8M for v(x), 2.2B for V(x) at D 2048, K 21843, R 50.
    shapes = jax.eval_shape(heads.ParameterEfficient(21843, num_factors=50).init, key(), jnp.zeros((1, 2048)))["params"]
    assert sum(x.size for x in jax.tree.leaves(shapes["factor_scale"])) == 44_756_307
    full = jax.eval_shape(heads.LowRank(21843, num_factors=50).init, key(), jnp.zeros((1, 2048)))["params"]
    assert full["factor_loadings"]["kernel"].size == 2_236_723_200
    # ResNet-152v2 with rank 15 has 92,969,128 parameters and with a dense layer 60,185,128.
    extra = [
        sum(x.size for x in jax.tree.leaves(jax.eval_shape(h.init, key(), jnp.zeros((1, 2048)))))
        for h in (heads.Deterministic(1000), heads.LowRank(1000, num_factors=15))
    ]
    assert extra[1] - extra[0] == 92_969_128 - 60_185_128


@pytest.mark.parametrize("name", ["Deterministic", "Diagonal", "LowRank", "ParameterEfficient"])
def test_latents_are_float32_whatever_the_features_are(name):
    head = getattr(heads, name)(K)
    features = jax.random.normal(key(), (2, D)).astype(jnp.bfloat16)
    latent = head.apply(head.init(key(), features), features)
    assert {x.dtype for x in jax.tree.leaves(latent)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ["Deterministic", "Diagonal", "LowRank", "ParameterEfficient"])
def test_the_temperature_is_a_change_of_units_of_the_same_parameters(name):
    features = jax.random.normal(key(), (2, D))
    variables = getattr(heads, name)(K).init(key(), features)
    plain, tempered = (getattr(heads, name)(K, temperature=t).apply(variables, features) for t in (1.0, 0.15))
    np.testing.assert_allclose(tempered.loc, plain.loc / 0.15, rtol=1e-5)
    np.testing.assert_allclose(
        latent_lib.covariance(tempered), latent_lib.covariance(plain) / 0.15**2, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", ["Diagonal", "LowRank", "ParameterEfficient"])
def test_the_noise_depends_on_the_input_and_has_no_mean(name):
    features = jax.random.normal(key(), (2, D))
    head = getattr(heads, name)(K)
    latent = head.apply(head.init(key(), features), features)
    variance = np.asarray(latent_lib.variance(latent))
    assert (np.abs(variance[0] - variance[1]) > 1e-4).all()
    mean = latent_lib.sample(key(), latent, 40_000).mean(0)
    assert (np.abs(mean - latent.loc) < 5 * np.sqrt(variance / 40_000)).all()


def test_scales_stay_positive_and_finite_at_extremes():
    head = heads.Diagonal(K)
    features = jnp.ones((1, D))
    variables = head.init(key(), features)
    for size in (-1e4, 1e4):
        scale = head.apply(variables, size * features).scale_diag
        assert (scale > 0).all()
        assert np.isfinite(scale).all()


def test_the_parameter_efficient_head_never_makes_the_full_loadings():
    b, k, r = 4, 6, 50
    head = heads.ParameterEfficient(k, num_factors=r)
    variables = head.init(key(), jnp.zeros((b, D)))

    def loss(variables, features):
        return predictive.softmax(key(), head.apply(variables, features), num_samples=2).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(variables, jnp.zeros((b, D)))
    shapes = set()

    def collect(jaxpr):
        for equation in jaxpr.eqns:
            shapes.update(tuple(v.aval.shape) for v in equation.outvars)
            for value in jax.tree.leaves(tuple(equation.params.values())):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    collect(inner)

    collect(jaxpr.jaxpr)
    assert (k, r) in shapes  # the shared ones, so the search does look inside
    assert not [s for s in shapes if {b, k, r} <= set(s)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(num_classes=K, temperature=0.0), "temperature is 0.0"),
        (dict(num_classes=K, num_factors=-1), "num_factors is -1"),
        (dict(num_classes=0), "num_classes is 0"),
    ],
)
def test_values_out_of_range_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        heads.LowRank(**settings)
