import itertools

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
ON_FEATURES = (D + 1) * D
NOISY = [
    getattr(heads, name)(K, noise_on=noise_on, edward2=edward2)
    for name, noise_on, edward2 in itertools.product(
        ("Diagonal", "LowRank", "ParameterEfficient"), ("utilities", "features"), (False, True)
    )
]
SOME = [heads.Deterministic(K), heads.Diagonal(K), heads.LowRank(K), NOISY[-1]]


def head_id(head):
    """The head in the name of a test."""
    if isinstance(head, heads.Deterministic):
        return "Deterministic"
    return f"{type(head).__name__}-{head.noise_on}" + ("-edward2" if head.edward2 else "")


def num_parameters(head):
    shapes = jax.eval_shape(head.init, key(), jnp.zeros((2, D)))
    return sum(x.size for x in jax.tree.leaves(shapes))


def random_variables(head, features):
    """Random variables, different from the initial ones."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(head.init, key(), features)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), x.dtype), shapes)


def plain_moments(head, variables, features):
    """Covariance of the noise, and mean and covariance of the utilities, in float64."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    x = np.asarray(features, np.float64)

    def affine(name):
        kernel, bias = params[name]["kernel"], params[name]["bias"]
        return np.tensordot(x, kernel, 1) + bias

    d = np.log1p(np.exp(affine("scale_diag"))) + 1e-3
    shift, noise = (
        np.zeros_like(d),
        np.stack([np.outer(row, row) if head.edward2 else np.diag(row**2) for row in d]),
    )
    if "factor_loadings" in params:
        noise += np.stack([v @ v.T for v in affine("factor_loadings")])
    if "factor_scale" in params:
        v = affine("factor_scale")
        noise += (
            v[:, :, None]
            * (params["shared_loadings"] @ params["shared_loadings"].T)
            * v[:, None, :]
        )
        shift = v * params.get("shared_bias", 0.0)
    readout = params["loc"]["kernel"] if head.noise_on == "features" else np.eye(K)
    return noise, affine("loc") + shift @ readout, readout.T @ noise @ readout


@pytest.mark.parametrize("head", [heads.Deterministic(K), *NOISY], ids=head_id)
def test_the_map_of_the_utilities_gives_their_mean_at_every_temperature(head):
    head = head.clone(temperature=2.0)
    features = jax.random.normal(key(), (4, D))
    variables = random_variables(head, features)
    kernel, bias = head.utilities_parameters(variables["params"])
    expected = 2.0 * head.apply(variables, features).loc
    np.testing.assert_allclose(features @ kernel + bias, expected, rtol=1e-4, atol=1e-5)


def test_a_hidden_layer_has_no_map_of_the_utilities():
    head = heads.Deterministic(K, hidden_width=R)
    params = random_variables(head, jnp.zeros((1, D)))["params"]
    with pytest.raises(ValueError, match=r"^hidden_width is 3, .* only a head with hidden_width 0"):
        head.utilities_parameters(params)


def test_utilities_that_start_at_zero_have_a_gradient():
    features = jax.random.normal(key(), (4, D))
    head = heads.Deterministic(K, zero_start=True)
    variables = head.init(key(), features)
    np.testing.assert_array_equal(head.apply(variables, features).loc, np.zeros((4, K)))
    gradient = jax.grad(lambda v: jax.nn.log_softmax(head.apply(v, features).loc)[:, 0].sum())(
        variables
    )
    assert (np.abs(gradient["params"]["loc"]["kernel"]) > 0).all()
    assert np.abs(heads.Deterministic(K).init(key(), features)["params"]["loc"]["kernel"]).min() > 0


@pytest.mark.parametrize("kind", [heads.LowRank, heads.ParameterEfficient])
@pytest.mark.parametrize("edward2", [False, True])
def test_kernels_and_shared_loadings_have_their_initial_distribution(kind, edward2):
    d, k, r = 400, 200, 50
    head = kind(k, num_factors=r, edward2=edward2)
    params = dict(jax.jit(head.init)(key(), jnp.ones((1, d)))["params"])
    shared = params.pop("shared_loadings", None)
    np.testing.assert_array_equal(params.pop("shared_bias", 0), 0)
    for layer in params.values():
        assert np.std(layer["kernel"]) == pytest.approx(d**-0.5, rel=0.05)
        np.testing.assert_array_equal(layer["bias"], 0)
    if kind is heads.ParameterEfficient:
        expected = r**-0.5 if edward2 else (2 / (k + r)) ** 0.5
        assert np.std(shared) == pytest.approx(expected, rel=0.05)
        # A uniform distribution reaches sqrt(3) standard deviations, a truncated normal more.
        assert (np.abs(shared).max() > 1.8 * expected) == edward2


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (heads.Deterministic(K), BASE),
        (heads.Diagonal(K), 2 * BASE),
        (heads.LowRank(K, num_factors=R), 2 * BASE + (D + 1) * K * R),
        (heads.ParameterEfficient(K, num_factors=R), 3 * BASE + K * R),
        (heads.LowRank(K, num_factors=0), 2 * BASE),
        (heads.ParameterEfficient(K, num_factors=0), 2 * BASE),
        (heads.Diagonal(K, noise_on="features"), BASE + ON_FEATURES),
        (heads.LowRank(K, num_factors=R, noise_on="features"), BASE + (1 + R) * ON_FEATURES),
        (
            heads.ParameterEfficient(K, num_factors=R, noise_on="features"),
            BASE + 2 * ON_FEATURES + D * R,
        ),
        (heads.LowRank(K, num_factors=R, edward2=True), 2 * BASE + (D + 1) * K * R),
        (heads.ParameterEfficient(K, num_factors=R, edward2=True), 3 * BASE + K * R + K),
        (heads.Deterministic(K, temperature=(0.3, 3.0)), BASE + 1),
        (heads.Deterministic(K, hidden_width=R), (D + 1) * R + (R + 1) * K),
    ],
)
def test_the_number_of_parameters_follows_the_formula(head, expected):
    assert num_parameters(head) == expected


def test_the_number_of_parameters_is_that_of_the_paper():
    # Collier et al. (2021), reading C2: 44.8M for v(x), 2.2B for V(x) at D 2048, K 21843, R 50.
    shapes = jax.eval_shape(
        heads.ParameterEfficient(21843, num_factors=50).init, key(), jnp.zeros((1, 2048))
    )["params"]
    assert sum(x.size for x in jax.tree.leaves(shapes["factor_scale"])) == 44_756_307
    full = jax.eval_shape(heads.LowRank(21843, num_factors=50).init, key(), jnp.zeros((1, 2048)))[
        "params"
    ]
    assert full["factor_loadings"]["kernel"].size == 2_236_723_200
    # ResNet-152v2 with rank 15 has 92,969,128 parameters and with a dense layer 60,185,128.
    extra = [
        sum(x.size for x in jax.tree.leaves(jax.eval_shape(h.init, key(), jnp.zeros((1, 2048)))))
        for h in (heads.Deterministic(1000), heads.LowRank(1000, num_factors=15))
    ]
    assert extra[1] - extra[0] == 92_969_128 - 60_185_128
    # Table 10: with a hidden layer of 11,500 units it has 93,200,628.
    wide = heads.Deterministic(1000, hidden_width=11_500)
    shapes = jax.eval_shape(wide.init, key(), jnp.zeros((1, 2048)))
    assert sum(x.size for x in jax.tree.leaves(shapes)) - extra[0] == 93_200_628 - 60_185_128


def test_a_hidden_layer_precedes_the_utilities_and_their_temperature():
    features = jax.random.normal(key(), (4, D))
    head = heads.Deterministic(K, hidden_width=R, temperature=2.0)
    variables = random_variables(head, features)
    params = jax.tree.map(np.asarray, variables["params"])
    hidden = np.maximum(
        np.asarray(features) @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0
    )
    expected = (hidden @ params["loc"]["kernel"] + params["loc"]["bias"]) / 2
    np.testing.assert_allclose(head.apply(variables, features).loc, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", [h for h in NOISY if h.noise_on == "features"], ids=head_id)
def test_parameters_of_noise_on_features_do_not_grow_with_the_number_of_classes(head):
    few, many = (num_parameters(head.clone(num_classes=k)) - (D + 1) * k for k in (2, 500))
    assert few == many


@pytest.mark.parametrize("head", NOISY, ids=head_id)
def test_mean_and_covariance_agree_with_the_definition(head):
    features = jax.random.normal(key(), (2, D))
    variables = random_variables(head, features)
    latent = head.apply(variables, features)
    _, mean, covariance = plain_moments(head, variables, features)
    np.testing.assert_allclose(latent.loc, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(latent_lib.covariance(latent), covariance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", NOISY, ids=head_id)
def test_the_noise_parameters_give_the_covariance_of_the_noise(head):
    features = np.random.default_rng(1).normal(size=(2, D))
    head = head.clone(temperature=(0.3, 3.0))  # is not part of these parameters
    variables = random_variables(head, jnp.asarray(features, jnp.float32))
    noise = head.noise_parameters(variables["params"])

    def values(layer):
        return np.tensordot(features, np.asarray(layer.kernel, np.float64), 1) + layer.bias

    scale = np.asarray(heads.standard_deviations(values(noise.scale_diag)), np.float64)
    assert scale.shape == (2, noise.num_entries)
    actual = scale[:, :, None] * scale[:, None, :]
    actual = actual if noise.scale_is_factor else actual * np.eye(noise.num_entries)
    if noise.factor_loadings is not None:
        actual += np.einsum("bnr,bmr->bnm", *[values(noise.factor_loadings)] * 2)
    if noise.factor_scale is not None:
        loadings = values(noise.factor_scale)[..., None] * noise.shared_loadings
        actual += np.einsum("bnr,bmr->bnm", loadings, loadings)
    expected, _, _ = plain_moments(head, variables, features)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert (noise.readout is None) == (head.noise_on == "utilities")


def test_a_head_without_noise_has_no_noise_parameters():
    head = heads.Deterministic(K, hidden_width=R)
    params = head.init(key(), jnp.ones((1, D)))["params"]
    assert head.noise_parameters(params) == heads.NoiseParameters(num_entries=K)


def test_heads_with_noise_are_known_by_name():
    assert [heads.has_noise(name) for name in heads.__all__] == [False, True, True, True]
    with pytest.raises(ValueError, match="heads has no 'Full'; choose one of Deterministic, "):
        heads.has_noise("Full")


@pytest.mark.parametrize("head", [h for h in NOISY if isinstance(h, heads.LowRank)], ids=head_id)
def test_the_readout_has_the_gradient_of_the_noise(head):
    features = jax.random.normal(key(), (2, D))
    variables = random_variables(head, features)

    def total(variables):
        return jnp.sum(latent_lib.variance(head.apply(variables, features)))

    actual = jax.jit(jax.grad(total))(variables)["params"]["loc"]["kernel"]
    noise, _, _ = plain_moments(head, variables, features)  # d tr(W' S W) / dW = 2 S W
    expected = (
        2 * noise.sum(0) @ variables["params"]["loc"]["kernel"]
        if head.noise_on == "features"
        else 0 * actual
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", [SOME[0], *NOISY], ids=head_id)
def test_latents_of_bfloat16_features_are_float32(head):
    features = jax.random.normal(key(), (2, D)).astype(jnp.bfloat16)
    latent = head.apply(head.init(key(), features), features)
    assert {x.dtype for x in jax.tree.leaves(latent)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("head", SOME, ids=head_id)
def test_the_temperature_divides_the_utilities(head):
    features = jax.random.normal(key(), (2, D))
    variables = random_variables(head, features)
    plain, tempered = (head.clone(temperature=t).apply(variables, features) for t in (1.0, 0.15))
    np.testing.assert_allclose(tempered.loc, plain.loc / 0.15, rtol=1e-5)
    np.testing.assert_allclose(
        latent_lib.covariance(tempered),
        latent_lib.covariance(plain) / 0.15**2,
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("head", SOME, ids=head_id)
def test_a_learned_temperature_equals_a_fixed_one_of_the_same_value(head):
    features = jax.random.normal(key(), (2, D))
    learning = head.clone(temperature=(0.3, 3.0))
    variables = random_variables(learning, features)
    reached = float(learning.temperature_of(variables["params"]))
    learned = learning.apply(variables, features)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5),
        learned,
        head.clone(temperature=reached).apply(variables, features),
    )
    assert head.clone(temperature=reached).temperature_of(variables["params"]) == reached


def test_a_learned_temperature_starts_in_the_middle_and_stays_within_its_bounds():
    head, features = heads.Diagonal(K, temperature=(0.3, 3.0)), jnp.ones((1, D))
    params = head.init(key(), features)["params"]
    assert head.temperature_of(params) == pytest.approx(1.65)
    reached = [
        float(head.temperature_of(params | {"temperature": jnp.float32(t)}))
        for t in (-1e3, -5, -1, 1, 5, 1e3)
    ]
    assert (np.diff(reached) > 0).all()
    assert (reached[0], reached[-1]) == pytest.approx((0.3, 3.0))


@pytest.mark.parametrize("head", SOME, ids=head_id)
def test_the_temperature_has_the_gradient_of_the_loss(head):
    head, features = head.clone(temperature=(0.3, 3.0)), jax.random.normal(key(), (2, D))
    variables = random_variables(head, features)

    @jax.jit
    @jax.value_and_grad
    def loss(theta):
        params = variables["params"] | {"temperature": theta}
        return -predictive.softmax(key(), head.apply({"params": params}, features), num_samples=50)[
            :, 0
        ].sum()

    (below, _), (_, actual), (above, _) = (loss(theta) for theta in (0.45, 0.5, 0.55))
    assert abs(actual) > 1e-3
    np.testing.assert_allclose(actual, (above - below) / 0.1, rtol=0.02)


@pytest.mark.parametrize("head", SOME[1:], ids=head_id)
def test_the_noise_depends_on_the_input_and_has_no_mean(head):
    features = jax.random.normal(key(), (2, D))
    latent = head.apply(random_variables(head, features), features)
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


def test_the_parameter_efficient_head_never_computes_the_full_loadings():
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
    assert (k, r) in shapes  # the shared loadings, so the search covers inner programs
    assert not [s for s in shapes if {b, k, r} <= set(s)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(num_classes=K, temperature=0.0), "temperature is 0.0"),
        (dict(num_classes=K, num_factors=-1), "num_factors is -1"),
        (dict(num_classes=0), "num_classes is 0"),
        (
            dict(num_classes=K, temperature=1e30),
            r"temperature is 1e\+30, but must be a number from 0.0001 to 10000",
        ),
        (dict(num_classes=K, temperature=(0.3, 1e30)), "<= lower < upper <="),
        (dict(num_classes=K, temperature=float("inf")), "temperature is inf"),
        (dict(num_classes=K, temperature=float("nan")), "temperature is nan"),
        (
            dict(num_classes=K, temperature=(3.0, 0.3)),
            r"temperature is \(3.0, 0.3\), but bounds .* lower < upper",
        ),
        (dict(num_classes=K, temperature=(1.0, 1.0)), "<= lower < upper <="),
        (dict(num_classes=K, temperature=(0.0, 1.0)), "<= lower < upper <="),
        (dict(num_classes=K, temperature=(1.0, float("inf"))), "<= lower < upper <="),
        (
            dict(num_classes=K, noise_on="logits"),
            "noise_on is 'logits'; choose 'utilities' or 'features'",
        ),
    ],
)
def test_values_out_of_range_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        heads.LowRank(**settings)
