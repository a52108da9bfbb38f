"""What else might average a softmax of correlated noise: error at equal numbers of softmaxes.

    python -m benchmarks.variance_reduction

prints, by temperature, the error of estimates of E[softmax(u)] that evaluate --budget softmaxes per
example, as predictive.py measures it. Importance sampling has a power of two for each of three
classes, three quarters of them, after 128 softmaxes that find these classes and a search for each
mode. No time is measured: an estimate with the error of Sobol points or more cannot pay, as each
does the work of Sobol points and more.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from benchmarks import predictive as benchmark
from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian, Noise

_NUM_NODES = 16  # along the direction that is integrated
_NUM_MODE_STEPS = 50
_LATTICES = {128: 127, 1_024: 1_021}  # the largest prime below a budget


def noise(key, latent, num_points, points):
    """Points of the noise of the classes [s, b, k] and of the factors [s, b, r]."""
    return latent_lib.noise_source(key, latent, num_points, points)(jnp.arange(num_points))


def inner(a, b):
    """The inner product of the noise of classes and factors."""
    return jnp.sum(a.diag * b.diag, axis=-1) + jnp.sum(a.factors * b.factors, axis=-1)


def averaged(log_values):
    """log of the average over the leading axis."""
    return jax.nn.logsumexp(log_values, axis=0) - jnp.log(len(log_values))


def sampled(key, latent, budget, points):
    """The estimate that the others must beat."""
    return predictive.softmax(key, latent, num_samples=budget, points=points)


def lattice(key, latent, budget):
    """A rank-1 lattice for the factors, with a random shift and the baker's transform.

    The noise of the classes keeps its Sobol points, of which the last three are left out.
    """
    size, rank = _LATTICES[budget], latent.factor_loadings.shape[-1]
    vector = np.array([pow(_korobov(size, rank), j, size) for j in range(rank)])
    shift = jax.random.uniform(key, (*latent.loc.shape[:-1], rank))
    grid = jnp.asarray(np.arange(size)[:, None] * vector % size / size, jnp.float32)
    place = (grid[:, None] + shift) % 1.0
    place = 1.0 - jnp.abs(2.0 * place - 1.0)
    normals = ndtri(jnp.clip(place, 1e-7, 1 - 1e-7))
    points = noise(jax.random.fold_in(key, 1), latent, budget, "sobol")
    points = points._replace(diag=points.diag[:size], factors=normals)
    return averaged(jax.nn.log_softmax(latent_lib.utilities(latent, points)))


def _korobov(size, rank):
    """The generator of least worst-case error P_2 among Korobov's."""

    def error(generator):
        vector = np.array([pow(generator, j, size) for j in range(rank)])
        x = np.arange(size)[:, None] * vector % size / size
        return np.mean(np.prod(1 + 2 * np.pi**2 * (x**2 - x + 1 / 6) / (1 + np.arange(rank)), -1))

    return min(range(2, min(size, 200)), key=error)


def conditional(key, latent, budget):
    """The difference of the two likeliest classes is integrated; all else is sampled.

    The noise is moved along the direction that changes this difference, by Gauss-Hermite nodes.
    """
    pair = jax.lax.top_k(predictive.mean_field(None, latent), 2)[1]
    ends = jax.nn.one_hot(pair, latent.loc.shape[-1])
    signs = ends[..., 0, :] - ends[..., 1, :]
    factors = jnp.einsum("bk,bkr->br", signs, latent.factor_loadings)
    along = Noise(latent.scale_diag * signs, factors, None)
    length = jnp.sqrt(inner(along, along))[:, None]
    along = jax.tree.map(lambda x: x / length, along)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
    points = noise(key, latent, budget // _NUM_NODES, "sobol")
    shifts = nodes[:, None, None, None] - inner(points, along)[..., None]

    def at_node(shift):
        moved = jax.tree.map(lambda p, a: p + shift * a, points, along)
        return averaged(jax.nn.log_softmax(latent_lib.utilities(latent, moved)))

    log_weights = np.log(weights / weights.sum())[:, None, None]
    return jax.nn.logsumexp(jax.vmap(at_node)(shifts) + log_weights, axis=0)


def control(key, latent, budget):
    """The exact softmax of independent noise of the same variances as a control variate.

    It has the noise of the classes in common with the latent; its coefficient is fitted by class.
    """
    scale = jnp.sqrt(latent_lib.variance(latent))
    independent = LatentGaussian(latent.loc, scale)
    points = noise(key, latent, budget, "sobol")
    values = jax.nn.softmax(latent_lib.utilities(latent, points))
    controls = jax.nn.softmax(latent.loc + scale * points.diag)
    exact = jnp.exp(predictive.softmax_exact(None, independent, num_nodes=64))
    centred = controls - controls.mean(axis=0)
    slope = jnp.sum(centred * values, 0) / jnp.maximum(jnp.sum(centred**2, 0), 1e-12)
    probs = values.mean(axis=0) - slope * (controls.mean(axis=0) - exact)
    return jnp.log(jnp.maximum(probs, values.mean(axis=0) / 10))


def importance(key, latent, budget):
    """For each of the three likeliest classes, noise about the mode of its own integrand."""
    classes = jax.lax.top_k(predictive.mean_field(None, latent), 3)[1]
    result = sampled(key, latent, 128, "sobol")

    def log_integrand(point, one, index):
        utilities = latent_lib.utilities(one, jax.tree.map(lambda x: x[None], point))[0]
        return jax.nn.log_softmax(utilities)[index] - inner(point, point) / 2

    def mode(one, index):
        start = Noise(jnp.zeros_like(one.loc), jnp.zeros(one.factor_loadings.shape[-1]), None)

        def step(point, size):
            slope = jax.grad(log_integrand)(point, one, index)
            moved = jax.tree.map(lambda x, s: x + size * s, point, slope)
            better = log_integrand(moved, one, index) > log_integrand(point, one, index)
            return jax.tree.map(lambda a, b: jnp.where(better, a, b), moved, point), None

        sizes = 0.5 ** (jnp.arange(_NUM_MODE_STEPS) % 10)
        return jax.lax.scan(step, start, sizes)[0]

    size = 2 ** int(np.log2(budget // 3))

    def of_class(key, index):
        centre = jax.vmap(mode)(latent, index)
        points = noise(key, latent, size, "sobol")
        moved = jax.tree.map(jnp.add, points, centre)
        log_weights = -inner(points, centre) - inner(centre, centre) / 2
        values = jax.nn.log_softmax(latent_lib.utilities(latent, moved))
        own = jnp.take_along_axis(values, index[None, :, None], axis=-1)[..., 0]
        return averaged(own + log_weights)

    found = jax.vmap(of_class)(jax.random.split(key, 3), classes.T)
    return result.at[jnp.arange(len(classes)), classes.T].set(found)


FORMS = {
    "independent": lambda *x: sampled(*x, "independent"),
    "Sobol": lambda *x: sampled(*x, "sobol"),
    "lattice for the factors": lattice,
    "two likeliest classes integrated": conditional,
    "control variate": control,
    "importance sampling by class": importance,
}


def errors(latent, budget, num_keys):
    """Form -> root mean square error of log p of the three likeliest classes."""
    truth, indices = benchmark.exact_softmax(latent)
    found = {}
    for name, form in FORMS.items():
        call = jax.jit(form, static_argnums=2)
        differences = [
            jnp.take_along_axis(call(jax.random.key(i), latent, budget) - truth, indices, -1)
            for i in range(num_keys)
        ]
        found[name] = float(jnp.sqrt(jnp.mean(jnp.square(jnp.stack(differences)))))
    return found


def main() -> None:
    """Prints a table: a row for each form, a column for each temperature."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--budget", type=int, choices=_LATTICES, default=1_024)
    parser.add_argument("--size", default="8,1000,15", help="batch, classes and rank")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[1.0, 0.15])
    parser.add_argument("--keys", type=int, default=5)
    flags = parser.parse_args()
    size = tuple(map(int, flags.size.split(",")))
    columns = {
        temperature: errors(benchmark.examples(*size, temperature), flags.budget, flags.keys)
        for temperature in flags.temperatures
    }
    print(f"{flags.budget:,} softmaxes, {flags.size}, jax {jax.__version__}")
    print("| form |" + "".join(f" error, temperature {t:g} |" for t in columns))
    print("| --- |" + " --- |" * len(columns))
    for name in FORMS:
        print(f"| {name} |" + "".join(f" {column[name]:.3g} |" for column in columns.values()))


if __name__ == "__main__":
    main()
