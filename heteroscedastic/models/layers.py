"""The drop-in layer for other people's Flax models."""

from flax import linen as nn
from jaxtyping import Array, Float

from heteroscedastic import predictive
from heteroscedastic.bind import bind
from heteroscedastic.models import heads


class HeteroscedasticDense(nn.Module):
    """A last layer with input-dependent, correlated noise on its utilities.

    `HeteroscedasticDense(k, num_factors=15)(features)` stands in place of `nn.Dense(k)(features)`
    and returns logits that any softmax (or sigmoid) cross-entropy takes: they are the log of
    averaged probabilities (or their log-odds). Give `rngs={"noise": key}` to `apply`, as for
    Dropout. Without it every example gets the same fixed points, so that a prediction depends on
    its features alone: not on its place in the batch, nor on the other examples.

    The latent is sown as `intermediates/latent`, in units of the temperature.

    Attributes:
      num_classes: K.
      num_factors: rank of the correlated part, of heads that have one: 1 or more, or None for 15,
        and at most `num_classes`.
      head: "LowRank", "ParameterEfficient" (for many classes), "Diagonal" or "Deterministic".
      temperature: 1e-4 to 1e4; smaller is closer to the argmax of the noisy utilities. Tune it, or
        give bounds (lower, upper) between which it is learned.
      link: "softmax" for one label an example; "sigmoid" for several, which needs no samples.
      num_samples: of the softmax an example, in constant memory.
      points: of the samples, see sampling.py: "sobol" (num_samples is a power of two),
        "independent" as in the paper, or "antithetic".
      noise_on: "utilities", or "features" for a noise whose parameters do not grow with K (HET-XL).
      edward2: whether the noise is that of edward2's layers, see `heads.Diagonal`.

    Source: Collier et al. (2021), arXiv:2105.10305.
    """

    num_classes: int
    num_factors: int | None = None
    head: str = "LowRank"
    temperature: float | tuple[float, float] = 1.0
    link: str = "softmax"
    num_samples: int = 128
    points: str = "sobol"
    noise_on: str = "utilities"
    edward2: bool = False

    def __post_init__(self):
        if self.link not in ("softmax", "sigmoid"):
            raise ValueError(f"link {self.link!r} is unknown; choose 'softmax' or 'sigmoid'.")
        super().__post_init__()

    def setup(self):
        settings = dict(num_classes=self.num_classes, temperature=self.temperature)
        if hasattr(getattr(heads, self.head, None), "num_factors"):
            settings["num_factors"] = self._num_factors()
        elif self.num_factors:
            settings["num_factors"] = self.num_factors
        if self.edward2 or self.noise_on != "utilities" or self.head != "Deterministic":
            settings |= dict(noise_on=self.noise_on, edward2=self.edward2)
        self.utilities = bind(heads, name=self.head, **settings)

    def _num_factors(self) -> int:
        if self.num_factors is None:
            return min(15, self.num_classes)
        if self.num_factors < 1:
            raise ValueError(
                f"num_factors is {self.num_factors}, but head {self.head!r} needs 1 or more; leave"
                " it out for"
                f" {min(15, self.num_classes)}, or take head='Diagonal' for noise without"
                " correlations."
            )
        return self.num_factors

    def __call__(self, features: Float[Array, "*b d"]) -> Float[Array, "*b k"]:
        latent = self.utilities(features)
        self.sow("intermediates", "latent", latent)
        key = self.make_rng("noise") if self.has_rng("noise") else None
        if self.link == "sigmoid":
            return predictive.sigmoid(key, latent)
        return predictive.softmax(key, latent, num_samples=self.num_samples, points=self.points)
