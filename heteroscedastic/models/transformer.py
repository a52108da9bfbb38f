"""Transformers that translate, with each layer normalised after its residual sum.

Source: Vaswani et al. (2017), arXiv:1706.03762, section 3; sizes of fairseq's
transformer_iwslt_de_en.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from heteroscedastic.batch import SentencePairs
from heteroscedastic.bind import check_number
from heteroscedastic.models.classifier import Classifier

_EPSILON = 1e-5  # of the normalisation
_LONGEST_WAVE = 10_000.0


def positions(segments: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """The position of each token in its segment, from 0; a segment is a run of equal numbers."""
    places = jnp.arange(segments.shape[-1])
    starts = jnp.diff(segments, axis=-1, prepend=-1) != 0
    return places - jax.lax.cummax(jnp.where(starts, places, 0), axis=1)


def sinusoids(position: Int[Array, "*b"], width: int) -> Float[Array, "*b d"]:
    """Sines, then cosines, of position / 10,000^(i / (d/2 - 1)) for i = 0 to d/2 - 1.

    The two halves are fairseq's; in the paper sines and cosines alternate.
    """
    half = width // 2
    rates = _LONGEST_WAVE ** -(np.arange(half, dtype=np.float32) / max(1, half - 1))
    angles = position[..., None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class _Layer(nn.Module):
    """A layer of encoder or decoder: attention, for a decoder attention to the source, and MLP."""

    width: int
    hidden_width: int
    num_heads: int
    dropout: float

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "b t d"],
        own_mask: Bool[Array, "b 1 t t"],
        train: bool,
        source: Float[Array, "b s d"] | None = None,
        source_mask: Bool[Array, "b 1 t s"] | None = None,
    ) -> Float[Array, "b t d"]:
        hidden = self._added(hidden, self._attention("own")(hidden, mask=own_mask), train)
        if source is not None:
            branch = self._attention("source")(hidden, source, mask=source_mask)
            hidden = self._added(hidden, branch, train)
        branch = jax.nn.relu(self._dense(self.hidden_width, "hidden")(hidden))
        return self._added(hidden, self._dense(self.width, "out")(branch), train)

    def _attention(self, name):
        init = nn.initializers.glorot_uniform()
        return nn.MultiHeadDotProductAttention(self.num_heads, kernel_init=init, name=name)

    def _dense(self, width, name):
        return nn.Dense(width, kernel_init=nn.initializers.glorot_uniform(), name=name)

    def _added(self, hidden, branch, train):
        branch = nn.Dropout(self.dropout, deterministic=not train)(branch)
        return nn.LayerNorm(epsilon=_EPSILON)(hidden + branch)


class _Transformer(nn.Module):
    """An encoder and a decoder of the same size.

    Embeddings are multiplied by the square root of the width. Dropout applies to the embeddings
    with their positions, and to each branch before it is added.

    Attributes:
      num_source_words: size of the vocabulary of the source.
      dropout: rate in [0, 1).
    """

    num_source_words: int
    dropout: float
    num_layers: ClassVar[int]  # of each side
    width: ClassVar[int]
    hidden_width: ClassVar[int]  # of the MLPs
    num_heads: ClassVar[int] = 4

    def __post_init__(self):
        check_number("num_source_words", self.num_source_words, integer=True, at_least=1)
        check_number("dropout", self.dropout, at_least=0, below=1)
        super().__post_init__()

    def setup(self):
        layer = (self.width, self.hidden_width, self.num_heads, self.dropout)
        self.source_words = nn.Embed(
            self.num_source_words,
            self.width,
            embedding_init=nn.initializers.normal(self.width**-0.5),
        )
        self.encoder = [_Layer(*layer) for _ in range(self.num_layers)]
        self.decoder = [_Layer(*layer) for _ in range(self.num_layers)]
        self.embedding_dropout = nn.Dropout(self.dropout)

    def __call__(
        self,
        inputs: SentencePairs,
        present: Bool[Array, "b t"],
        train: bool = False,
        *,
        target_words: Float[Array, "k d"],
    ) -> Float[Array, "b t d"]:
        """The features of each token of the target, from the source and the tokens before it.

        Args:
          inputs: rows of sentence pairs.
          present: ignored; the segments say what attends to what.
          train: whether to apply dropout.
          target_words: embedding of each word of the target.
        """
        source = self.encoded(inputs.source, inputs.source_segments, train)
        segments = inputs.target_segments
        hidden = self._embedded(target_words[inputs.previous], segments, train)
        length = segments.shape[-1]
        own_mask = _same(segments, segments) & jnp.tril(jnp.ones((length, length), bool))
        source_mask = _same(segments, inputs.source_segments)
        for layer in self.decoder:
            hidden = layer(hidden, own_mask, train, source, source_mask)
        return hidden

    def encoded(
        self, source: Int[Array, "b s"], segments: Int[Array, "b s"], train: bool = False
    ) -> Float[Array, "b s d"]:
        """The hidden values of each token of the source."""
        hidden = self._embedded(self.source_words(source), segments, train)
        mask = _same(segments, segments)
        for layer in self.encoder:
            hidden = layer(hidden, mask, train)
        return hidden

    def _embedded(self, words, segments, train):
        hidden = words * jnp.sqrt(self.width).astype(words.dtype)
        hidden += sinusoids(positions(segments), self.width).astype(words.dtype)
        return self.embedding_dropout(hidden, deterministic=not train)


def _same(queries: Int[Array, "b t"], keys: Int[Array, "b s"]) -> Bool[Array, "b 1 t s"]:
    """Whether query and key are of the same pair."""
    return queries[:, None, :, None] == keys[:, None, None, :]


class TransformerIwslt(_Transformer):
    """6 + 6 layers of width 512: fairseq's transformer_iwslt_de_en."""

    num_layers = 6
    width = 512
    hidden_width = 1024


class TransformerSmall(_Transformer):
    """3 + 3 layers of width 128, for a small set or a processor without accelerator."""

    num_layers = 3
    width = 128
    hidden_width = 256


class Translator(Classifier):
    """A transformer and a head that share the embedding of the target's words.

    The kernel of the head's utilities is the embedding of the words that the decoder reads, and
    there is no bias: a parameter of the head alone, with the class axis of the head.
    """

    def features(
        self, inputs: SentencePairs, present: Bool[Array, "b t"], train: bool = False
    ) -> Float[Array, "b t d"]:
        """The features of each token of the target."""
        return self.backbone(inputs, present, train, target_words=self._embedding())

    def _embedding(self) -> Float[Array, "k d"]:
        if self.is_initializing():  # the head makes its parameters when it is called
            self.head(jnp.zeros((1, self.backbone.width)))
        return self.head.utilities_parameters(self.head.variables["params"]).kernel.T
