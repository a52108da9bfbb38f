"""The effect of noise on the log-likelihood, to second order.

    python -m experiments.correlated_label_noise.expansion --out=DIR

draws Figures 3 and 4 of Collier et al. (2021), arXiv:2105.10305: the derivatives of the
log-likelihood of a label k with respect to the variances and covariances of the utilities, as
functions of the probabilities s without noise. They are computed by differentiating
`predictive.taylor`, and compared with quadrature at larger noise. The paper's curves omit the
factor 1/2, which is included here. The paper's Figure 4 shows the full square of (s_j, s_k), of
which only s_j + s_k <= 1 is possible (readings C3 and C4).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.predictive import taylor

_LABEL, _OTHER = 0, 1  # k and j; a third class has the remaining probability
# Variance at which the expansion is differentiated. The expansion is linear in it, so any value
# works at which no clip is active.
_BASE = 1e-2
_DEVIATIONS = (1.0, 2.0)  # standard deviations of the larger noise
_CORRELATION = 0.5


class VarianceSlopes(NamedTuple):
    """d log p_k / d variance, as a function of the probability s of the class with noise."""

    s: Float[np.ndarray, "m"]
    of_label: Float[np.ndarray, "m"]  # variance of the label's utility, s = s_k
    of_other: Float[np.ndarray, "m"]  # variance of another class's utility, s = s_j


def probabilities(
    label: Float[np.ndarray, "m"], other: Float[np.ndarray, "m"]
) -> Float[np.ndarray, "m 3"]:
    """Probabilities of the label, of the other class and of a third class."""
    return np.stack([label, other, 1 - label - other], axis=-1)


def grid(num: int) -> Float[np.ndarray, "num"]:
    """Midpoints of equal cells of [0, 1]."""
    return (np.arange(num) + 0.5) / num


def variance_slopes(num: int = 200) -> VarianceSlopes:
    """Figure 3, from the expansion."""
    s = grid(num)
    rest = (1 - s) * 2 / 3  # how the remaining probability is shared makes no difference
    return VarianceSlopes(
        s=s,
        of_label=_variance_slope(probabilities(s, rest), _LABEL),
        of_other=_variance_slope(probabilities(rest, s), _OTHER),
    )


def exact_variance_slopes(deviation: float, num: int = 200) -> VarianceSlopes:
    """Figure 3 for larger noise: the change of log E[softmax(u)_k], divided by the variance.

    Args:
      deviation: standard deviation of the noise.
      num: number of probabilities.
    """
    s = grid(num)
    rest = (1 - s) * 2 / 3

    def slope(probs, noisy):
        points, weights = _normal_points()
        utilities = np.log(probs)[:, None, :] + deviation * points[:, None] * np.eye(3)[noisy]
        return (_log_mean(utilities, weights) - np.log(probs[:, _LABEL])) / deviation**2

    return VarianceSlopes(
        s, slope(probabilities(s, rest), _LABEL), slope(probabilities(rest, s), _OTHER)
    )


def covariance_slopes(num: int = 100) -> Float[np.ndarray, "num num"]:
    """Figure 4, from the expansion: d log p_k / d Sigma_jk.

    Returns:
      Slopes by s_j (rows) and s_k (columns); nan where s_j + s_k > 1.
    """
    slopes = jax.vmap(jax.grad(_relative_to_covariance, argnums=1), in_axes=(0, None))
    return _on_triangle(num, lambda probs: np.asarray(slopes(_log(probs), 0.0)))


def exact_covariance_slopes(deviation: float, num: int = 100) -> Float[np.ndarray, "num num"]:
    """Figure 4 for larger noise: the difference quotient between correlations of -1/2 and 1/2.

    Args:
      deviation: standard deviation of both utilities.
      num: number of probabilities per axis.

    Returns:
      Slopes by s_j (rows) and s_k (columns); nan where s_j + s_k > 1.
    """
    points, weights = _normal_points(30)
    first, second = (x.ravel() for x in np.meshgrid(points, points))

    def slope(probs):
        def log_probs(correlation):
            mixed = correlation * first + np.sqrt(1 - correlation**2) * second
            noise = deviation * np.stack([first, mixed, 0 * first], axis=-1)
            return _log_mean(np.log(probs)[:, None, :] + noise, np.outer(weights, weights).ravel())

        return (log_probs(_CORRELATION) - log_probs(-_CORRELATION)) / (
            2 * _CORRELATION * deviation**2
        )

    return _on_triangle(num, slope)


def agreement(
    deviations: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25, 0.125),
) -> list[dict[str, float]]:
    """The largest difference between expansion and quadrature, over all probabilities.

    Returns:
      One row per standard deviation of the noise.
    """
    curves, plane = variance_slopes(50), covariance_slopes(20)

    def largest_difference(a, b):
        return float(np.nanmax(np.abs(a - b)))

    rows = []
    for deviation in deviations:
        exact = exact_variance_slopes(deviation, 50)
        rows.append(
            {
                "deviation": deviation,
                "of_label": largest_difference(exact.of_label, curves.of_label),
                "of_other": largest_difference(exact.of_other, curves.of_other),
                "of_covariance": largest_difference(exact_covariance_slopes(deviation, 20), plane),
            }
        )
    return rows


def _log(probs: Float[np.ndarray, "m 3"]) -> Float[Array, "m 3"]:
    return jnp.asarray(np.log(probs), jnp.float32)


def _relative(latent: LatentGaussian) -> Float[Array, ""]:
    """p_k / s_k, which is 1 + log(p_k / s_k) to first order in the noise."""
    return jnp.exp(taylor(None, latent)[_LABEL] - latent.loc[_LABEL])


def _variance_slope(probs: Float[np.ndarray, "m 3"], noisy: int) -> Float[np.ndarray, "m"]:
    def relative(loc, variance):
        return _relative(LatentGaussian(loc, scale_diag=jnp.sqrt(variance) * jnp.eye(3)[noisy]))

    slopes = jax.vmap(jax.grad(relative, argnums=1), in_axes=(0, None))(_log(probs), _BASE)
    return np.asarray(slopes)


def _relative_to_covariance(
    loc: Float[Array, "3"], covariance: float | Float[Array, ""]
) -> Float[Array, ""]:
    """p_k / s_k as a function of Sigma_jk, which one factor carries; both variances are fixed."""
    loading = 0.5 * jnp.sqrt(_BASE)
    loadings = jnp.array([loading, covariance / loading, 0.0])
    own = jnp.array([_BASE, _BASE, 1.0]) - loadings**2
    return _relative(
        LatentGaussian(loc, jnp.sqrt(own) * jnp.array([1.0, 1.0, 0.0]), loadings[:, None])
    )


def _on_triangle(num, slope):
    """Values of `slope` on the grid of s_j and s_k, [num, num]; nan where their sum exceeds one."""
    other, label = np.meshgrid(grid(num), grid(num), indexing="ij")
    feasible = other + label < 1 - 1e-9
    values = np.full((num, num), np.nan)
    values[feasible] = slope(probabilities(label[feasible], other[feasible]))
    return values


def _normal_points(num: int = 120) -> tuple[Float[np.ndarray, "m"], Float[np.ndarray, "m"]]:
    """Gauss-Hermite quadrature for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(num)
    return points, weights / weights.sum()


def _log_mean(
    utilities: Float[np.ndarray, "m s 3"], weights: Float[np.ndarray, "s"]
) -> Float[np.ndarray, "m"]:
    return np.log(special.softmax(utilities, axis=-1)[..., _LABEL] @ weights)


class Numbers(NamedTuple):
    """The numbers of both figures, from the expansion and from quadrature at larger noise."""

    variances: VarianceSlopes
    exact_variances: dict[float, VarianceSlopes]  # by standard deviation of the noise
    covariances: Float[np.ndarray, "num num"]
    exact_covariances: Float[np.ndarray, "num num"]


def all_numbers() -> Numbers:
    """The numbers of both figures."""
    return Numbers(
        variances=variance_slopes(),
        exact_variances={deviation: exact_variance_slopes(deviation) for deviation in _DEVIATIONS},
        covariances=covariance_slopes(),
        exact_covariances=exact_covariance_slopes(_DEVIATIONS[0]),
    )


def draw(numbers: Numbers, out: files.Path) -> list[files.Path]:
    """Draws both figures.

    Returns:
      The files written.
    """
    with figures.style_context(mathematics=True):
        curves = figures.figure(9, 3.8)
        curves.get_layout_engine().set(wspace=0.06)
        panels = curves.subplots(1, 2, sharey=True)
        titles = (
            "variance of the label's own utility, $s = s_k$",
            "variance of another class's utility, $s = s_j$",
        )
        for axes, name, title in zip(panels, ("of_label", "of_other"), titles):
            axes.plot(
                numbers.variances.s,
                getattr(numbers.variances, name),
                linewidth=2.2,
                label="second order, noise → 0",
            )
            for style, (deviation, exact) in zip(("--", ":"), numbers.exact_variances.items()):
                axes.plot(
                    exact.s,
                    getattr(exact, name),
                    style,
                    label=f"exact, standard deviation {deviation:g}",
                )
            axes.axhline(0, color="0.3", linewidth=1)
            axes.set(title=title, xlabel="probability $s$ without noise", xlim=(0, 1))
        panels[0].set_ylabel("change of log p(label)\nper unit of variance")
        panels[0].legend(loc="upper right")
        plane = figures.figure(9.6, 4.2)
        axes_pair = plane.subplots(1, 2, sharey=True)
        _draw_triangle(axes_pair[0], numbers.covariances, "second order, noise → 0")
        mesh = _draw_triangle(
            axes_pair[1],
            numbers.exact_covariances,
            f"exact, standard deviation {_DEVIATIONS[0]:g}",
        )
        axes_pair[0].plot(0.75, 0.25, "k.", zorder=4)
        axes_pair[0].annotate(
            "at most +0.125",
            (0.75, 0.25),
            (-6, 12),
            textcoords="offset points",
            fontsize=8,
            zorder=4,
        )
        axes_pair[0].set_ylabel("$s_j$, of the other class")
        plane.colorbar(
            mesh,
            ax=axes_pair,
            label="change of log p(label)\nper unit of covariance with the label",
        )
    return figures.write(curves, out / "variance_slopes") + figures.write(
        plane, out / "covariance_slopes"
    )


def _draw_triangle(axes, value, title):
    edges = np.linspace(0, 1, len(value) + 1)
    mesh = axes.pcolormesh(
        edges, edges, value, cmap=figures.DIVERGING, vmin=-1, vmax=1, rasterized=True
    )
    lines = axes.contour(
        grid(len(value)), grid(len(value)), value, (-0.6, -0.3, -0.1, 0, 0.05, 0.1), colors="k"
    )
    axes.clabel(lines, fontsize=8)
    corner = axes.fill(
        [0, 1, 1], [1, 0, 1], facecolor="0.93", edgecolor="0.6", hatch="///", linewidth=0
    )[0]
    corner.set_zorder(2)
    axes.text(
        0.73, 0.73, "impossible:\n$s_j + s_k > 1$", ha="center", va="center", fontsize=9, zorder=3
    ).set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.85})
    axes.set(title=title, xlabel="$s_k$, of the label", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(False)
    return mesh


@user_errors.one_line()
def main() -> None:
    """Writes and draws the effect of noise on the log-likelihood of a label."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--out", required=True, help="directory")
    out = files.as_path(parser.parse_args().out)
    numbers = all_numbers()
    curves = numbers.variances._asdict() | {
        f"{name}_at_{deviation:g}": getattr(exact, name)
        for deviation, exact in numbers.exact_variances.items()
        for name in ("of_label", "of_other")
    }
    files.write_csv(out / "variance_slopes.csv", _rows(curves))
    other, label = np.nonzero(~np.isnan(numbers.covariances))
    s = grid(len(numbers.covariances))
    cells = {
        "s_j": s[other],
        "s_k": s[label],
        "of_covariance": numbers.covariances[other, label],
        f"of_covariance_at_{_DEVIATIONS[0]:g}": numbers.exact_covariances[other, label],
    }
    files.write_csv(out / "covariance_slopes.csv", _rows(cells))
    rows = agreement()
    files.write_json(out / "agreement.json", rows)
    print("largest difference between expansion and quadrature, in units of the slopes")
    print(f"{'deviation':<12}{'label variance':>16}{'other variance':>16}{'covariance':>12}")
    for row in rows:
        print(
            "{deviation:<12g}{of_label:>16.5f}{of_other:>16.5f}{of_covariance:>12.5f}".format(**row)
        )
    written = draw(numbers, out) if figures.can_draw() else []
    names = [
        "variance_slopes.csv",
        "covariance_slopes.csv",
        "agreement.json",
        *(p.name for p in written),
    ]
    print(f"wrote {out}: {', '.join(names)}")


def _rows(columns):
    return [{name: f"{v:.6g}" for name, v in zip(columns, row)} for row in zip(*columns.values())]


if __name__ == "__main__":
    main()
