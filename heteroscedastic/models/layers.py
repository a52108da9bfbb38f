"""A drop-in layer for existing models in flax.linen; `nnx_layers` has that for flax.nnx."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.bind import bind
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.models import heads


class HeteroscedasticDense(nn.Module):
    """A last layer with input-dependent, correlated noise on its utilities.

    `HeteroscedasticDense(k, num_factors=15)(features)` replaces `nn.Dense(k)(features)`. It returns
    logits for any softmax (or sigmoid) cross-entropy: the log of averaged probabilities (or their
    log-odds). Pass `rngs={"noise": key}` to `apply`, or `rngs=key`, as for Dropout. Without a key,
    and in `init`, every example gets the same fixed points, so a prediction depends only on its
    features: not on its position in the batch, nor on the other examples. Inside `nn.vmap` and
    `nn.scan`, flax hides a key that `split_rngs` does not name.

    The latent is sown as `intermediates/latent`, divided by the temperature.

    Attributes:
      num_classes: K.
      num_factors: rank of the correlated noise, for heads that have it: 1 or more, or None for 15,
        or for `num_classes` if that is smaller.
      head: "LowRank", "ParameterEfficient" (for many classes), "Diagonal" or "Deterministic".
      temperature: 1e-4 to 1e4; a smaller one is closer to the argmax of the noisy utilities. Tune
        it, or set bounds (lower, upper) to learn it.
      link: "softmax" for one label per example; "sigmoid" for several, which needs no samples.
      num_samples: samples per example for the softmax; memory does not grow with it. Not used
        for independent noise, whose softmax is exact (`predictive.softmax_exact`): by the head
        "Diagonal" with noise on the utilities and without `edward2`.
      points: kind of samples, see sampling.py: "sobol" (num_samples is a power of two),
        "independent" as in the paper, or "antithetic". Not used for independent noise.
      noise_on: "utilities", or "features" for noise whose parameters do not grow with K (HET-XL).
      edward2: whether the noise is that of the layers of edward2; see `heads.Diagonal`.
      dtype: of the dense layers, as in nn.Dense; None is float32, or float64 for float64 features.
        Covariance, samples and logits are float32 (or float64) with any dtype.
      kernel_init: initialiser of the kernel of the utilities, which replaces that of nn.Dense. The
        noise has its own initialisers.
      bias_init: initialiser of the bias of the utilities.

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
    dtype: DTypeLike | None = None
    kernel_init: Callable[..., Any] = heads.Head.kernel_init
    bias_init: Callable[..., Any] = heads.Head.bias_init

    def __post_init__(self):
        if self.link not in ("softmax", "sigmoid"):
            raise ValueError(f"link is {self.link!r}; choose 'softmax' or 'sigmoid'.")
        super().__post_init__()

    def setup(self):
        settings: dict[str, Any] = dict(num_classes=self.num_classes, temperature=self.temperature)
        head = getattr(heads, self.head, None)
        # A head without such a setting gets it only if it was changed; `bind` then reports it.
        if hasattr(head, "num_factors"):
            settings["num_factors"] = self._num_factors()
        elif self.num_factors:
            settings["num_factors"] = self.num_factors
        if hasattr(head, "noise_on") or self.edward2 or self.noise_on != "utilities":
            settings |= dict(noise_on=self.noise_on, edward2=self.edward2)
        utilities: Any = bind(heads, name=self.head, **settings)
        self.utilities = utilities.clone(
            dtype=self.dtype, kernel_init=self.kernel_init, bias_init=self.bias_init
        )

    def _num_factors(self) -> int:
        if self.num_factors is None:
            return min(15, self.num_classes)
        if self.num_factors < 1:
            raise ValueError(
                f"num_factors is {self.num_factors}, but head {self.head!r} needs 1 or more; omit"
                f" it for {min(15, self.num_classes)}, or use head='Diagonal' for noise without"
                " correlations."
            )
        return self.num_factors

    def __call__(self, features: Float[Array, "*b d"]) -> Float[Array, "*b k"]:
        latent = self.latent(features)
        self.sow("intermediates", "latent", latent)
        key = self.make_rng("noise") if self.has_rng("noise") else None
        if key is None and self.has_rng("params") and not self.is_initializing():
            key = self.make_rng("noise")  # from the single key of apply, which is "params"
        if self.link == "sigmoid":
            return predictive.sigmoid(key, latent)
        if latent_lib.has_independent_noise(latent):
            return predictive.softmax_exact(key, latent)
        return predictive.softmax(key, latent, num_samples=self.num_samples, points=self.points)

    def latent(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        """The Gaussian over the utilities divided by the temperature."""
        return self.utilities(features)
