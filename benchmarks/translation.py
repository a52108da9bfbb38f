"""Throughput of a translator: python -m benchmarks.translation --data_dir=DIR

prints for a batch of packed rows of --config (by default multi30k_hom) and its neighbours with
noise heads: the tokens of the target that are no padding, tokens per second of our step relative
to a step of flax.linen and optax alone, what each head adds, and the temporary memory that the
compiler reserves. Steps are timed in turn, so that changes of the machine's speed affect all.

    python -m benchmarks.translation --temporaries

compiles the steps of IWSLT'14, 16 rows of 256 tokens with 6,632 words, for random sentences, and
prints their temporary memory alone.

    python -m benchmarks.translation --run=DIR --data_dir=DIR

prints sentences per second of greedy search and of beam search by a finished run.

    python -m benchmarks.translation --run=DIR --data_dir=DIR --lump

prints the error of the predictive `shortlist` on the latents of a finished run with noise, by the
utility of its lump: at the best power t of its bound, and at t = 1, where the lump has the utility
log sum_j exp(loc_j + variance_j / 2). The error is the root mean square over tokens of the log of
the probability of the reference word, against all classes with 16,384 Sobol points.

The plain step has no values per token, and accuracy as the only metric; like ours it has dense,
smoothed targets.
"""

import argparse
import functools
import inspect
import os
import statistics
import time
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state

from benchmarks.train import TimedStep
from experiments import study
from heteroscedastic import predictive
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.data.text import pipeline as text_pipeline
from heteroscedastic.data.text import words
from heteroscedastic.data.text.pairs import Pairs
from heteroscedastic.data.text.prepared import PreparedText, Sentences
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.models.transformer import positions, sinusoids
from heteroscedastic.runs import assembly, loaded_run, token_features, translation

HEADS = ("hom", "het_diag", "het_pe")  # ends of the names of configs
NUM_SENTENCES = 4000  # random ones


class PlainLayer(nn.Module):
    """A layer of encoder or decoder."""

    width: int
    hidden_width: int
    num_heads: int
    dropout: float

    @nn.compact
    def __call__(self, x, own_mask, train, source=None, source_mask=None):
        init = nn.initializers.glorot_uniform()
        attention = functools.partial(
            nn.MultiHeadDotProductAttention, self.num_heads, kernel_init=init
        )

        def added(x, y):
            return nn.LayerNorm(epsilon=1e-5)(
                x + nn.Dropout(self.dropout, deterministic=not train)(y)
            )

        x = added(x, attention(name="own")(x, mask=own_mask))
        if source is not None:
            x = added(x, attention(name="source")(x, source, mask=source_mask))
        y = nn.relu(nn.Dense(self.hidden_width, kernel_init=init, name="hidden")(x))
        return added(x, nn.Dense(self.width, kernel_init=init, name="out")(y))


class PlainTransformer(nn.Module):
    """An encoder and a decoder whose embedding is the kernel of the logits."""

    num_source_words: int
    num_target_words: int
    num_layers: int
    width: int
    hidden_width: int
    num_heads: int
    dropout: float

    @nn.compact
    def __call__(self, inputs, train=True):
        embed = functools.partial(
            nn.Embed, features=self.width, embedding_init=nn.initializers.normal(self.width**-0.5)
        )
        layer = functools.partial(
            PlainLayer, self.width, self.hidden_width, self.num_heads, self.dropout
        )

        def start(x, segments):
            x = x * np.float32(self.width**0.5) + sinusoids(positions(segments), self.width)
            return nn.Dropout(self.dropout, deterministic=not train)(x)

        def same(queries, keys):
            return queries[:, None, :, None] == keys[:, None, None, :]

        segments, length = inputs.target_segments, inputs.target_segments.shape[1]
        x = start(
            embed(self.num_source_words, name="source_words")(inputs.source),
            inputs.source_segments,
        )
        for i in range(self.num_layers):
            own_mask = same(inputs.source_segments, inputs.source_segments)
            x = layer(name=f"encoder_{i}")(x, own_mask, train)
        source, target_words = x, embed(self.num_target_words, name="target_words")
        x = start(target_words(inputs.previous), segments)
        own_mask = same(segments, segments) & jnp.tril(jnp.ones((length, length), bool))
        for i in range(self.num_layers):
            source_mask = same(segments, inputs.source_segments)
            x = layer(name=f"decoder_{i}")(x, own_mask, train, source, source_mask)
        return target_words.attend(x)


def plain_step(state, batch, rate):
    """One plain training step; returns the next state, the loss and the accuracy."""
    key = jax.random.fold_in(jax.random.key(0), state.step)

    def loss_of(params):
        logits = state.apply_fn({"params": params}, batch.inputs, rngs={"dropout": key})
        targets = optax.smooth_labels(jax.nn.one_hot(batch.labels, logits.shape[-1]), rate)
        values = optax.softmax_cross_entropy(logits, targets)
        return jnp.sum(values * batch.weights) / jnp.sum(batch.weights), logits

    (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    is_right = jnp.argmax(logits, -1) == batch.labels
    accuracy = jnp.sum(is_right * batch.weights) / jnp.sum(batch.weights)
    return state.apply_gradients(grads=grads), loss, accuracy


def plain(run: assembly.Run, feed) -> TimedStep:
    """The plain step of the model of a run without noise, on the batch of a feed."""
    backbone, settings = run.model.backbone, run.config["optimizer"]
    sizes = (backbone.num_layers, backbone.width, backbone.hidden_width, backbone.num_heads)
    model = PlainTransformer(
        backbone.num_source_words, run.num_classes, *sizes, dropout=backbone.dropout
    )
    batch = run.pipeline.training_batch(jax.random.key(0), run.pipeline.arrays["train"], feed)
    params = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), batch.inputs)
    tx = optax.adamw(run.steps.learning_rate, **{k: v for k, v in settings.items() if k != "name"})
    state = train_state.TrainState.create(apply_fn=model.apply, params=params["params"], tx=tx)
    step = functools.partial(plain_step, rate=run.config["smoothing"]["rate"])
    return TimedStep("plain Flax", step, state, (batch,))


def ours(name: str, run: assembly.Run, feed) -> TimedStep:
    """The training step of a run, whose arrays are on the device."""
    arguments = (*jax.device_put((run.pipeline.arrays["train"], feed)), run.root_key)
    return TimedStep(name, run.train_step, jax.jit(run.init)(run.root_key), arguments)


def random_text(config: dict) -> Pipeline:
    """The pipeline of a config for random sentences of 5 to 59 words, of its vocabularies."""
    rng = np.random.default_rng(0)
    sizes = config["backbone"]["num_source_words"], config["head"]["num_classes"]
    lengths = rng.integers(6, 61, NUM_SENTENCES).astype(np.int32)

    def sentences(size):
        tokens = rng.integers(len(words.SPECIAL), size, lengths.sum()).astype(np.int32)
        tokens[np.cumsum(lengths) - 1] = words.END
        return dict.fromkeys(("train", "valid", "test"), Sentences(tokens, lengths))

    names = [tuple(f"word {i}" for i in range(size)) for size in sizes]
    return text_pipeline.Text(
        text=PreparedText(*map(sentences, sizes), *names, "", ""),
        training=text_pipeline.curated(NUM_SENTENCES, 0, []),
        pairs=dict.fromkeys(("train", "valid", "test"), Pairs([], [])),
        length=config["data"]["row_length"],
        seed=0,
        packing_seed=0,
        batch_size=config["training"]["batch_size"],
    )


def timed_steps(name: str, pipeline: Pipeline) -> tuple[list[TimedStep], int]:
    """The plain step, ours of each head that has a config, and the real tokens of their batch."""
    prefix = name.removesuffix("_hom")
    configs = Path(__file__).parents[1] / "configs"
    chosen = [head for head in HEADS if (configs / f"{prefix}_{head}.py").exists()]
    runs = {
        head: assembly.build(study.config(f"{prefix}_{head}", {}), pipeline=pipeline)
        for head in chosen
    }
    feed = next(pipeline.training_feeds(0, 0, np.arange(pipeline.batch_size)))
    steps = [plain(runs["hom"], feed), *(ours(head, run, feed) for head, run in runs.items())]
    if steps[0].num_parameters != steps[1].num_parameters:
        raise AssertionError(
            f"the plain model has {steps[0].num_parameters:,} parameters, ours"
            f" {steps[1].num_parameters:,}."
        )
    rows = pipeline.arrays["train"].target_segments[feed.rows]
    return steps, int(np.sum(rows > 0))


def print_steps(steps: list[TimedStep], num_tokens: int) -> None:
    """Prints medians over turns, and quartiles of the ratios within turns."""
    plain_flax, base = steps[:2]
    columns = ("parameters", "temporaries, MB", "ms per step", "tokens/s", "relative to plain")
    print(f"| step | {' | '.join(columns)} | added by the head |\n| --- |{' --- |' * 6}")
    for step in steps:
        cells = [f"{step.num_parameters:,}", f"{step.temporaries / 1e6:,.0f}"]
        if step.seconds:
            seconds = statistics.median(step.seconds)
            ratios = np.divide(plain_flax.seconds, step.seconds)
            low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
            cells += [f"{1e3 * seconds:,.1f}", f"{num_tokens / seconds:,.0f}"]
            cells += [f"{middle:.3f} ({low:.3f} to {high:.3f})"]
            added = 1e3 * np.median(np.subtract(step.seconds, base.seconds))
            cells += ["" if step in (plain_flax, base) else f"{added:+,.1f} ms"]
        else:
            cells += [""] * 4
        print(f"| {step.name} | {' | '.join(cells)} |")


def print_decoding(directory: str, data_dir: str | None, split: str, max_sentences: int) -> None:
    """Prints sentences per second of the search for translations, without compilation."""
    loaded = loaded_run.load(directory, data_dir=data_dir)
    if split not in (splits := loaded.run.pipeline.sizes):
        raise ValueError(f"--split is {split!r}; the run has {', '.join(sorted(splits))}.")
    sources = loaded.run.pipeline.text.source[split].split()[:max_sentences]
    print("| beam | sentences | seconds | sentences/s | tokens per sentence |")
    print("| --- | --- | --- | --- | --- |")
    for beam_size in (1, 5):
        search = translation.model_search(
            loaded.run, loaded.state, beam_size=beam_size, length_penalty=1.0
        )
        find = functools.partial(translation.best_hypotheses, sources, 64, search, 200)
        find()  # compiles
        start = time.perf_counter()
        lengths = [len(best.words) for best in find()]
        seconds = time.perf_counter() - start
        print(
            f"| {beam_size} | {len(sources):,} | {seconds:.1f} | {len(sources) / seconds:.1f} |"
            f" {np.mean(lengths):.1f} |"
        )


def lump_errors(
    latent: LatentGaussian, labels: np.ndarray, settings: dict, num_points: int = 2**14
) -> dict[str, float]:
    """The error of a shortlist by the power of its lump, in nats of the reference words.

    Args:
      latent: of tokens.
      labels: their reference words.
      settings: of the shortlist.
      num_points: of the softmax over all classes that counts as exact.
    """

    def log_probs(estimate, **keywords):
        values = jax.jit(functools.partial(estimate, jax.random.key(0), **keywords))(latent)
        return np.take_along_axis(np.asarray(values), np.asarray(labels)[:, None], axis=-1)

    exact = log_probs(predictive.softmax, num_samples=num_points, points="sobol", chunk_size=256)
    module = inspect.getmodule(predictive.shortlist)  # whose name in its package is the function's
    powers = {
        "best t": module._best_power,
        "t = 1": lambda loc, variance: jnp.ones_like(loc[..., :1]),
    }
    errors = {}
    for name, power in powers.items():
        with mock.patch.object(module, "_best_power", power):
            estimate = log_probs(predictive.shortlist, **settings)
        errors[name] = float(np.sqrt(np.mean(np.square(estimate - exact))))
    return errors


def print_lumps(directory: str, data_dir: str | None, split: str, num_tokens: int = 256) -> None:
    """Prints `lump_errors` of evenly spaced tokens of a split for several shortlists."""
    loaded = loaded_run.load(directory, data_dir=data_dir)
    run = loaded.run
    features = token_features.features(loaded, split, run.steps.batch_size)
    chosen = np.linspace(0, len(features) - 1, num_tokens).astype(int)
    latent = jax.jit(run.latent_of_features)(loaded.state.params, features[chosen])
    labels = run.pipeline.clean_labels[split][chosen]
    print(f"error of log p of {num_tokens} reference words, nats")
    print("| words listed | points | best t | t = 1 |\n| --- | --- | --- | --- |")
    for listed, points in ((8, 1024), (32, 8), (32, 1024), (128, 1024)):
        settings = dict(num_classes=listed, num_samples=points, points="sobol", chunk_size=256)
        errors = lump_errors(latent, labels, settings)
        print(f"| {listed} | {points:,} | {errors['best t']:.4f} | {errors['t = 1']:.4f} |")


def main():
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", default="multi30k_hom")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--temporaries", action="store_true", help="compile IWSLT'14 alone")
    parser.add_argument("--run", help="finished run whose search is timed")
    parser.add_argument("--lump", action="store_true", help="compare lumps on --run instead")
    parser.add_argument("--split", default="test", help="split that --run translates")
    parser.add_argument("--sentences", type=int, default=1000, help="largest number of them")
    flags = parser.parse_args()
    if not flags.config.endswith("_hom"):
        parser.error(f"--config is {flags.config!r}; name that of the plain head, NAME_hom.")
    device = jax.devices()[0].device_kind
    print(f"jax {jax.__version__}, {device}")
    if flags.lump:
        if not flags.run:
            parser.error("--lump compares lumps on a finished run; give --run.")
        return print_lumps(flags.run, flags.data_dir, flags.split)
    if flags.run:
        return print_decoding(flags.run, flags.data_dir, flags.split, flags.sentences)
    name = "iwslt14_hom" if flags.temporaries else flags.config
    config = study.config(name, {})
    pipeline = (
        random_text(config)
        if flags.temporaries
        else assembly.build(config, flags.data_dir).pipeline
    )
    steps, num_tokens = timed_steps(name, pipeline)
    size = pipeline.batch_size * pipeline.length
    print(f"{num_tokens:,} tokens of the target in {size:,} places of a batch")
    if not flags.temporaries:
        print(f"medians of {flags.repeats} turns, quartiles of ratios")
        for _ in range(flags.repeats + 1):
            for step in steps:
                step.run()
        for step in steps:
            del step.seconds[0]  # a warm-up
    print_steps(steps, num_tokens)


if __name__ == "__main__":
    main()
