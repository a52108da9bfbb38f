"""What noise does to the log-likelihood, to second order: python -m
experiments.correlated_label_noise.expansion --out=DIR.

Figures 3 and 4 of Collier et al. (2021), arXiv:2105.10305: the derivatives of the log-likelihood of
a label k by the variances and the covariances of the utilities, where s are the probabilities
without noise. They are read off `predictive.taylor` by differentiation, beside what quadrature
gives at noise that is not small. Of the paper's curves the factor 1/2 is dropped; here it stands.
Its Figure 4 is of the whole square of (s_j, s_k), of which s_j + s_k <= 1 is possible (readings C3
and C4).
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

_LABEL, _OTHER = 0, 1  # k and j; a third class has the rest of the probability
_BASE = (
    1e-2  # variance at which the expansion is differentiated; it is linear, so any without a clip
)
_DEVIATIONS = (1.0, 2.0)  # of the noise that is not small
_CORRELATION = 0.5


class VarianceSlopes(NamedTuple):
    """By the probability s of the class whose utility is noisy, d log p_k / d variance."""

    s: Float[np.ndarray, "m"]
    of_label: Float[np.ndarray, "m"]  # its own variance, s = s_k
    of_other: Float[np.ndarray, "m"]  # the variance of another class, s = s_j


def shares(
    label: Float[np.ndarray, "m"], other: Float[np.ndarray, "m"]
) -> Float[np.ndarray, "m 3"]:
    """Probabilities of the label, of the other class, and of a third."""
    return np.stack([label, other, 1 - label - other], axis=-1)


def grid(num: int) -> Float[np.ndarray, "num"]:
    """Middles of equal cells of [0, 1]."""
    return (np.arange(num) + 0.5) / num


def variance_slopes(num: int = 200) -> VarianceSlopes:
    """Figure 3, from the expansion."""
    s = grid(num)
    alone = (1 - s) * 2 / 3  # how the rest is shared makes no difference
    return VarianceSlopes(
        s=s,
        of_label=_by_variance(shares(s, alone), _LABEL),
        of_other=_by_variance(shares(alone, s), _OTHER),
    )


def exact_variance_slopes(deviation: float, num: int = 200) -> VarianceSlopes:
    """Figure 3, as log E[softmax(u)_k] changes in all up to this noise, over its variance."""
    s = grid(num)
    alone = (1 - s) * 2 / 3

    def slope(probs, noisy):
        points, weights = _normal_points()
        moved = np.log(probs)[:, None, :] + deviation * points[:, None] * np.eye(3)[noisy]
        return (_log_mean(moved, weights) - np.log(probs[:, _LABEL])) / deviation**2

    return VarianceSlopes(s, slope(shares(s, alone), _LABEL), slope(shares(alone, s), _OTHER))


def covariance_slopes(num: int = 100) -> Float[np.ndarray, "num num"]:
    """Figure 4, from the expansion: d log p_k / d Sigma_jk by s_j (rows) and s_k; nan where they
    pass one.
    """
    slopes = jax.vmap(jax.grad(_relative_to_covariance, argnums=1), in_axes=(0, None))
    return _on_triangle(num, lambda probs: np.asarray(slopes(_log(probs), 0.0)))


def exact_covariance_slopes(deviation: float, num: int = 100) -> Float[np.ndarray, "num num"]:
    """Figure 4 between correlations of -1/2 and 1/2 of two utilities of this deviation, over the
    covariance.
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
    """By deviation of the noise, the largest difference over all probabilities of expansion and
    quadrature.
    """
    near, plane = variance_slopes(50), covariance_slopes(20)

    def furthest(a, b):
        return float(np.nanmax(np.abs(a - b)))

    rows = []
    for deviation in deviations:
        exact = exact_variance_slopes(deviation, 50)
        rows.append(
            {
                "deviation": deviation,
                "of_label": furthest(exact.of_label, near.of_label),
                "of_other": furthest(exact.of_other, near.of_other),
                "of_covariance": furthest(exact_covariance_slopes(deviation, 20), plane),
            }
        )
    return rows


def _log(probs: Float[np.ndarray, "m 3"]) -> Float[Array, "m 3"]:
    return jnp.asarray(np.log(probs), jnp.float32)


def _relative(latent: LatentGaussian) -> Float[Array, ""]:
    """p_k / s_k, which to first order in the noise is 1 + log(p_k / s_k)."""
    return jnp.exp(taylor(None, latent)[_LABEL] - latent.loc[_LABEL])


def _by_variance(probs: Float[np.ndarray, "m 3"], noisy: int) -> Float[np.ndarray, "m"]:
    def relative(loc, variance):
        return _relative(LatentGaussian(loc, scale_diag=jnp.sqrt(variance) * jnp.eye(3)[noisy]))

    slopes = jax.vmap(jax.grad(relative, argnums=1), in_axes=(0, None))(_log(probs), _BASE)
    return np.asarray(slopes)


def _relative_to_covariance(
    loc: Float[Array, "3"], covariance: float | Float[Array, ""]
) -> Float[Array, ""]:
    """By Sigma_jk alone: one factor carries it, and the variances of both classes stay."""
    loading = 0.5 * jnp.sqrt(_BASE)
    loadings = jnp.array([loading, covariance / loading, 0.0])
    own = jnp.array([_BASE, _BASE, 1.0]) - loadings**2
    return _relative(
        LatentGaussian(loc, jnp.sqrt(own) * jnp.array([1.0, 1.0, 0.0]), loadings[:, None])
    )


def _on_triangle(num, slope):
    """[num, num] by s_j and s_k, of those whose sum is below one."""
    other, label = np.meshgrid(grid(num), grid(num), indexing="ij")
    feasible = other + label < 1 - 1e-9
    values = np.full((num, num), np.nan)
    values[feasible] = slope(shares(label[feasible], other[feasible]))
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
    """The numbers of both figures, and of both at noise that is not small."""

    variances: VarianceSlopes
    exact_variances: dict[float, VarianceSlopes]  # by the deviation of the noise
    covariances: Float[np.ndarray, "num num"]
    exact_covariances: Float[np.ndarray, "num num"]


def all_numbers() -> Numbers:
    """Those of both figures."""
    return Numbers(
        variances=variance_slopes(),
        exact_variances={deviation: exact_variance_slopes(deviation) for deviation in _DEVIATIONS},
        covariances=covariance_slopes(),
        exact_covariances=exact_covariance_slopes(_DEVIATIONS[0]),
    )


def draw(numbers: Numbers, out: files.Path) -> list[files.Path]:
    """Draws both figures; returns what was written."""
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
                    label=f"exact, noise of deviation {deviation:g}",
                )
            axes.axhline(0, color="0.3", linewidth=1)
            axes.set(title=title, xlabel="probability $s$ without noise", xlim=(0, 1))
        panels[0].set_ylabel("change of log p(label)\nper unit of variance")
        panels[0].legend(loc="upper right")
        plane = figures.figure(9.6, 4.2)
        places = plane.subplots(1, 2, sharey=True)
        _triangle(places[0], numbers.covariances, "second order, noise → 0")
        drawn = _triangle(
            places[1], numbers.exact_covariances, f"exact, noise of deviation {_DEVIATIONS[0]:g}"
        )
        places[0].plot(0.75, 0.25, "k.", zorder=4)
        places[0].annotate(
            "at most +0.125",
            (0.75, 0.25),
            (-6, 12),
            textcoords="offset points",
            fontsize=8,
            zorder=4,
        )
        places[0].set_ylabel("$s_j$, of the other class")
        plane.colorbar(
            drawn, ax=places, label="change of log p(label)\nper unit of covariance with the label"
        )
    return figures.write(curves, out / "variance_slopes") + figures.write(
        plane, out / "covariance_slopes"
    )


def _triangle(axes, value, title):
    edges = np.linspace(0, 1, len(value) + 1)
    drawn = axes.pcolormesh(
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
    return drawn


@user_errors.one_line()
def main() -> None:
    """Writes and draws what noise does to the log-likelihood of a label."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--out", required=True, help="directory")
    out = files.as_path(parser.parse_args().out)
    numbers = all_numbers()
    told = numbers.variances._asdict() | {
        f"{name}_at_{deviation:g}": getattr(exact, name)
        for deviation, exact in numbers.exact_variances.items()
        for name in ("of_label", "of_other")
    }
    files.write_csv(out / "variance_slopes.csv", _rows(told))
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
    print("largest difference of the expansion from quadrature, in units of the slopes")
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
