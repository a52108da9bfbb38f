import csv
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.correlated_label_noise import expansion
from heteroscedastic import files


def test_variance_slopes_are_equations_11_and_12_with_the_factor_one_half():
    slopes = expansion.variance_slopes(40)
    s = slopes.s
    np.testing.assert_allclose(slopes.of_label, (1 - s) * (1 - 2 * s) / 2, atol=2e-6)
    np.testing.assert_allclose(slopes.of_other, -s * (1 - 2 * s) / 2, atol=2e-6)


def test_covariance_slopes_are_the_corrected_cross_term_for_possible_probabilities():
    num = 40
    slopes, s = expansion.covariance_slopes(num), expansion.grid(num)
    s_j, s_k = s[:, None], s[None, :]
    possible = s_j + s_k < 1 - 1e-9
    np.testing.assert_array_equal(np.isnan(slopes), ~possible)
    np.testing.assert_allclose(slopes[possible], (-s_j * (1 - 2 * s_k))[possible], atol=2e-6)
    assert np.nanmax(slopes) == pytest.approx(0.125, abs=1 / num)  # reading C4
    j, k = np.unravel_index(np.nanargmax(slopes), slopes.shape)
    assert (s[j], s[k]) == pytest.approx((0.25, 0.75), abs=2 / num)
    assert (np.sign(slopes[possible]) == np.sign(s_k - 0.5 + 0 * s_j)[possible]).all()


def test_slopes_follow_from_the_hessian_of_the_softmax():
    probs = np.array([0.3, 0.6, 0.1])
    hessian = jax.hessian(lambda u: jax.nn.softmax(u)[0])(jnp.log(probs)) / probs[0]
    of_label = expansion._variance_slope(probs[None], 0)[0]
    of_other = expansion._variance_slope(probs[None], 1)[0]
    np.testing.assert_allclose([of_label, of_other], np.diag(hessian)[:2] / 2, rtol=1e-4, atol=1e-6)
    of_covariance = jax.grad(expansion._relative_to_covariance, argnums=1)(jnp.log(probs), 0.0)
    # Sigma contains the covariance twice, as (j, k) and as (k, j), and the expansion has a half.
    assert float(of_covariance) == pytest.approx(float(hessian[0, 1]), rel=1e-4)


def test_quadrature_converges_to_the_expansion_for_small_noise():
    rows = expansion.agreement((0.2, 0.1, 0.05))
    for name in ("of_label", "of_other", "of_covariance"):
        errors = np.array([row[name] for row in rows])
        # The error is proportional to the variance.
        np.testing.assert_allclose(errors[:-1] / errors[1:], 4, rtol=0.05)
        assert errors[-1] < 2e-3


def test_quadrature_agrees_with_sampling():
    s, deviation = 0.3, 1.5
    slopes = expansion.exact_variance_slopes(deviation, 5)
    assert slopes.s[1] == s
    draws = np.random.default_rng(0).normal(size=400_000)
    odds = np.log(s / (1 - s)) + deviation * draws
    # Noise in one utility does not change the ratio of the other two probabilities.
    cases = (
        (slopes.of_label[1], 1 / (1 + np.exp(-odds)), s),
        (slopes.of_other[1], 1 / (1 + np.exp(odds)), 1 - s),
    )
    for slope, probability, without_noise in cases:
        error = probability.std() / np.sqrt(len(draws)) / probability.mean() / deviation**2
        change = np.log(probability.mean() / without_noise)
        assert slope == pytest.approx(change / deviation**2, abs=5 * error)


def test_noise_of_any_size_has_no_effect_at_even_odds():
    slopes = expansion.exact_variance_slopes(3.0, 5)
    assert slopes.s[2] == 0.5
    assert slopes.of_label[2] == pytest.approx(0, abs=1e-12)
    assert slopes.of_other[2] == pytest.approx(0, abs=1e-12)


@pytest.mark.extended
def test_the_command_writes_numbers_and_figures(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, of the extra `analysis`")
    monkeypatch.setattr(sys, "argv", ["expansion", f"--out={tmp_path / 'out'}"])
    expansion.main()
    names = {
        f"{stem}.{kind}"
        for stem in ("variance_slopes", "covariance_slopes")
        for kind in ("csv", "png", "svg")
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"agreement.json"}
    with (tmp_path / "out" / "covariance_slopes.csv").open() as file:
        rows = [[float(x) for x in row.values()] for row in csv.DictReader(file)]
    assert all(s_j + s_k < 1 for s_j, s_k, *_ in rows)
    assert len(files.read_json(tmp_path / "out" / "agreement.json")) == 5
    assert "deviation" in capsys.readouterr().out
