"""Transformers that translate, with each layer normalised after its residual sum.

Source: Vaswani et al. (2017), arXiv:1706.03762, section 3; sizes of fairseq's
transformer_iwslt_de_en.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from heteroscedastic.batch import SentencePairs
from heteroscedastic.bind import check_number
from heteroscedastic.latent import LatentGaussian
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


class Memory(NamedTuple):
    """The keys and values of tokens, to which other tokens attend."""

    keys: Float[Array, "*b t h e"]
    values: Float[Array, "*b t h e"]


class Sources(NamedTuple):
    """What a decoder knows of the sentences that it translates."""

    memories: tuple[Memory, ...]  # of each layer
    mask: Bool[Array, "b 1 1 s"]  # where there is a token


class _Attention(nn.Module):
    """nn.MultiHeadDotProductAttention with a memory that may be kept."""

    width: int
    num_heads: int

    def setup(self):
        init = nn.initializers.glorot_uniform()
        heads = self.num_heads, self.width // self.num_heads
        self.query = nn.DenseGeneral(heads, kernel_init=init)
        self.key = nn.DenseGeneral(heads, kernel_init=init)
        self.value = nn.DenseGeneral(heads, kernel_init=init)
        self.out = nn.DenseGeneral(self.width, axis=(-2, -1), kernel_init=init)

    def memory(self, hidden: Float[Array, "*b t d"]) -> Memory:
        return Memory(self.key(hidden), self.value(hidden))

    def __call__(
        self, hidden: Float[Array, "*b q d"], memory: Memory, mask: Bool[Array, "..."]
    ) -> Float[Array, "*b q d"]:
        return self.out(nn.dot_product_attention(self.query(hidden), *memory, mask=mask))

    def one_query(
        self, hidden: Float[Array, "*b d"], memory: Memory, mask: Bool[Array, "t"]
    ) -> Float[Array, "*b d"]:
        """As `__call__` for a single query of each memory.

        A product of a row with a matrix for each of many memories is slow on a CPU; sums are not.
        """
        logits = jnp.sum(self.query(hidden)[..., None, :, :] * memory.keys, axis=-1)
        logits /= np.sqrt(memory.keys.shape[-1]).astype(np.float32)
        logits = jnp.where(mask[:, None], logits, jnp.finfo(logits.dtype).min)
        weights = jax.nn.softmax(logits, axis=-2)
        return self.out(jnp.sum(weights[..., None] * memory.values, axis=-3))


class _Layer(nn.Module):
    """A layer of encoder or decoder: attention, for a decoder attention to the source, and MLP."""

    width: int
    hidden_width: int
    num_heads: int
    dropout: float

    def setup(self):
        self.own = _Attention(self.width, self.num_heads)
        self.source = _Attention(self.width, self.num_heads)  # without parameters in an encoder

    def __call__(
        self,
        hidden: Float[Array, "b t d"],
        own_mask: Bool[Array, "b 1 t t"],
        train: bool,
        source: Memory | None = None,
        source_mask: Bool[Array, "b 1 t s"] | None = None,
    ) -> Float[Array, "b t d"]:
        branch = self.own(hidden, self.own.memory(hidden), own_mask)
        return self._rest(hidden, branch, train, source, source_mask)

    def step(
        self,
        hidden: Float[Array, "b k d"],
        position: Int[Array, ""],
        past: Memory,
        source: Memory,
        source_mask: Bool[Array, "b 1 1 s"],
    ) -> tuple[Float[Array, "b k d"], Memory]:
        """The hidden values of the token at a position, and the past with it.

        Args:
          hidden: of the token, in k hypotheses for each sentence.
          position: of the token in its sentence.
          past: of the tokens before it, with room for it; of each hypothesis.
          source: of each sentence.
          source_mask: of the source.
        """
        past = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, position, axis=2),
            past,
            self.own.memory(hidden[..., None, :]),
        )
        branch = self.own.one_query(hidden, past, jnp.arange(past.keys.shape[2]) <= position)
        return self._rest(hidden, branch, False, source, source_mask), past

    def source_memory(self, source: Float[Array, "b s d"]) -> Memory:
        """What the tokens of the target attend to."""
        return self.source.memory(source)

    @nn.compact
    def _rest(self, hidden, branch, train, source, source_mask):
        hidden = self._added(hidden, branch, train)
        if source is not None:
            hidden = self._added(hidden, self.source(hidden, source, source_mask), train)
        branch = jax.nn.relu(self._dense(self.hidden_width, "hidden")(hidden))
        return self._added(hidden, self._dense(self.width, "out")(branch), train)

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
        hidden = self._embedded(target_words[inputs.previous], positions(segments), train)
        length = segments.shape[-1]
        own_mask = _same(segments, segments) & jnp.tril(jnp.ones((length, length), bool))
        source_mask = _same(segments, inputs.source_segments)
        for layer in self.decoder:
            hidden = layer(hidden, own_mask, train, layer.source_memory(source), source_mask)
        return hidden

    def read(self, source: Int[Array, "b s"], segments: Int[Array, "b s"]) -> Sources:
        """What the decoder reads of each sentence; a row is one sentence, of segment 1."""
        hidden = self.encoded(source, segments)
        memories = tuple(layer.source_memory(hidden) for layer in self.decoder)
        return Sources(memories, segments[:, None, None, :] == 1)

    def no_past(self, num_sentences: int, num_hypotheses: int, length: int) -> tuple[Memory, ...]:
        """The past of each layer before the first token, with room for `length` tokens."""
        heads = self.num_heads, self.width // self.num_heads
        zeros = jnp.zeros((num_sentences, num_hypotheses, length, *heads))
        return (Memory(zeros, zeros),) * self.num_layers

    def step(
        self,
        words: Float[Array, "b k d"],
        position: Int[Array, ""],
        past: tuple[Memory, ...],
        sources: Sources,
    ) -> tuple[Float[Array, "b k d"], tuple[Memory, ...]]:
        """The features of the token at a position, as `__call__` has them, and the past with it.

        Args:
          words: embedding of the word before it, in k hypotheses for each sentence.
          position: of the token in its sentence, from 0.
          past: of each layer.
          sources: of the sentences.
        """
        hidden, pasts = self._embedded(words, position, train=False), []
        for layer, own, source in zip(self.decoder, past, sources.memories, strict=True):
            hidden, own = layer.step(hidden, position, own, source, sources.mask)
            pasts.append(own)
        return hidden, tuple(pasts)

    def encoded(
        self, source: Int[Array, "b s"], segments: Int[Array, "b s"], train: bool = False
    ) -> Float[Array, "b s d"]:
        """The hidden values of each token of the source."""
        hidden = self._embedded(self.source_words(source), positions(segments), train)
        mask = _same(segments, segments)
        for layer in self.encoder:
            hidden = layer(hidden, mask, train)
        return hidden

    def _embedded(self, words, position, train):
        hidden = words * jnp.sqrt(self.width).astype(words.dtype)
        hidden += sinusoids(position, self.width).astype(words.dtype)
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

    def read(self, source: Int[Array, "b s"], segments: Int[Array, "b s"]) -> Sources:
        """What the decoder reads of each sentence; a row is one sentence, of segment 1."""
        return self.backbone.read(source, segments)

    def step(
        self,
        words: Int[Array, "b k"],
        position: Int[Array, ""],
        past: tuple[Memory, ...],
        sources: Sources,
    ) -> tuple[LatentGaussian, tuple[Memory, ...]]:
        """The latent of the token at a position, as `__call__` has it, and the past with it.

        Args:
          words: the word before it, in k hypotheses for each sentence.
          position: of the token in its sentence, from 0.
          past: of the layers of the backbone.
          sources: of the sentences.
        """
        embedded = self._embedding()[words]
        features, past = self.backbone.step(embedded, position, past, sources)
        return self.latent(features), past

    def _embedding(self) -> Float[Array, "k d"]:
        if self.is_initializing():  # the head makes its parameters when it is called
            self.head(jnp.zeros((1, self.backbone.width)))
        return self.head.utilities_parameters(self.head.variables["params"]).kernel.T
