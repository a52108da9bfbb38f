"""Figure 7: the loss of an example against the utility of its class, all others being 0.

    python -m experiments.dataset_curation.logit_curves --out=DIR

writes the curves and draws them. Cross-entropy has no minimum, which is the argument of Theorem 1:
once all training labels are predicted, larger utilities lower the loss further, and the confidence
tends to 1. With label smoothing the minimum is finite. Noise of a bounded variance does not make it
finite.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from heteroscedastic import files, losses, predictive, smoothing, user_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.batch import Batch
from heteroscedastic.latent import LatentGaussian

_NUM_CLASSES, _RATE = 10, 0.1  # reading D14
_DEVIATION = 2.0
_NUM_POINTS = 4096


class Curves(NamedTuple):
    """Losses in nats, by utility of the labelled class."""

    utility: Float[np.ndarray, "n"]
    cross_entropy: Float[np.ndarray, "n"]
    label_smoothing: Float[np.ndarray, "n"]
    cross_entropy_with_noise: Float[np.ndarray, "n"]  # standard deviation 2 in each utility


def curves(utility: Float[np.ndarray, "n"]) -> Curves:
    """The curves at these utilities."""
    n = len(utility)
    loc = jnp.zeros((n, _NUM_CLASSES)).at[:, 0].set(utility)
    batch = Batch(loc, jnp.zeros(n, jnp.int32), jnp.ones(n), jnp.arange(n), {})
    hard = smoothing.hard(batch, _NUM_CLASSES)
    smooth = smoothing.uniform(batch, _NUM_CLASSES, rate=_RATE)
    counts = jnp.ones(_NUM_CLASSES)
    latent = LatentGaussian(loc, scale_diag=jnp.full_like(loc, _DEVIATION))
    # Without a key all utilities have the same points, so that the curve is smooth.
    noisy = predictive.softmax(
        None, latent, num_samples=_NUM_POINTS, points="sobol", chunk_size=256
    )
    return Curves(
        np.asarray(utility),
        *(
            np.asarray(losses.cross_entropy(logits, targets, counts))
            for logits, targets in ((loc, hard), (loc, smooth), (noisy, hard))
        ),
    )


@user_errors.one_line()
def main() -> None:
    """Writes and draws the loss against the utility of the labelled class."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--out", required=True, help="directory")
    out = files.as_path(parser.parse_args().out)
    result = curves(np.linspace(-2, 12, 561))
    files.write_csv(
        out / "logit_curves.csv",
        [
            {name: f"{v:.6g}" for name, v in zip(Curves._fields, row)}
            for row in zip(*result, strict=True)
        ],
    )
    least = result.utility[result.label_smoothing.argmin()]
    print(f"with label smoothing of {_RATE} the loss is least at {least:.3f}")
    names = ["logit_curves.csv"]
    if figures.can_draw():
        with figures.style_context():
            figure = figures.figure(6, 3.6)
            axes = figure.subplots()
            for name in Curves._fields[1:]:
                axes.plot(result.utility, getattr(result, name), label=name.replace("_", " "))
            axes.axvline(least, color="0.3", linewidth=1, linestyle=":")
            axes.set(xlabel="utility of the labelled class", ylabel="loss, nats", ylim=(0, None))
            axes.legend()
        names += [path.name for path in figures.write(figure, out / "logit_curves")]
    print(f"wrote {out}: {', '.join(names)}")


if __name__ == "__main__":
    main()
