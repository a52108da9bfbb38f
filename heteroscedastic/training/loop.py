"""The one loop: places arrays, compiles, trains, saves, continues, evaluates."""

import collections
import math
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from heteroscedastic import files, metrics
from heteroscedastic.data import resident
from heteroscedastic.training import assembly, evaluate, provenance, workdir
from heteroscedastic.training.assembly import Run
from heteroscedastic.training.checkpoint import Checkpoints
from heteroscedastic.training.state import TrainState

_LAG = 8  # steps that may be under way before the oldest is waited for and checked
_SECONDS_BETWEEN_LINES = 10.0


class NotFiniteError(ArithmeticError):
    """The loss or its gradient stopped being a number."""


def train(config: dict[str, Any], directory: str, data_dir: str | None = None) -> dict[str, Any]:
    """Trains what the config says, evaluates it, and leaves both in the directory.

    The same call again continues where it stopped, with the same result; on a complete run
    it does nothing.

    Args:
      config: nested dicts and plain values.
      directory: of the run.
      data_dir: where data sets lie.

    Returns:
      What results.json holds.

    Raises:
      WorkdirError: the directory holds another run.
      NotFiniteError: names the step; the last good checkpoint stays.
      SystemExit: after SIGTERM, once the state is saved.
    """
    run = assembly.build(config, data_dir)
    num_parameters = assembly.num_parameters(assembly.check_shapes(run))
    path = Path(directory)
    done = workdir.claim(path, config)
    if done is not None:
        _say(f"{path} holds this run, complete; nothing to do.")
        return done
    workdir.claim_data(path, run.description)
    _say(f"{num_parameters:,} parameters, {run.total_steps:,} steps of {run.batch_size} on {provenance.device()}.")
    trainer = _Trainer(run, path)
    try:
        trainer.train()
        results = trainer.results()
    finally:
        trainer.checkpoints.close()
    results = {"num_parameters": num_parameters, **results}
    files.write_json(path / "results.json", results)
    return results


class _Trainer:
    """A run under way: its state, its best step, and the sums since the last checkpoint."""

    def __init__(self, run: Run, path: Path):
        self.run, self.path = run, path
        self._place()
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.state = jax.device_put(jax.jit(run.init)(), self.replicated)
        self.template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state)
        self.told: dict[str, Any] = {"best_step": None, "best_score": None, "seconds": 0.0, "sums": None}
        found = self.checkpoints.last(self.template)
        if found:
            self.state, self.told = found
            _say(f"continuing from step {int(self.state.step)}.")
        self.writer = workdir.Writer(path, int(self.state.step))
        self.began = time.monotonic() - self.told["seconds"]

    def _place(self) -> None:
        """Puts the data on the devices and compiles for them: state replicated, batches cut."""
        devices = jax.device_count()
        if self.run.batch_size % devices:
            raise ValueError(
                f"config.training.batch_size is {self.run.batch_size}, but must be a multiple of the {devices} devices."
            )
        mesh = jax.make_mesh((devices,), ("batch",), axis_types=(AxisType.Auto,))
        self.replicated = NamedSharding(mesh, PartitionSpec())
        cut = NamedSharding(mesh, PartitionSpec("batch"))
        self.feed_sharding = resident.Feed(rows=cut, weights=cut, epoch=self.replicated)
        self.splits = jax.device_put(self.run.dataset.splits, self.replicated)
        # A CPU checkpoint may share memory with the state, so there its buffers are not reused.
        donated = () if jax.default_backend() == "cpu" else (0,)
        self.train_step = jax.jit(self.run.train_step, donate_argnums=donated)
        self.eval_step = jax.jit(self.run.eval_step)

    def train(self) -> None:
        """From the state's step to the last, with a checkpoint at every interval's end."""
        run, step, last_line = self.run, int(self.state.step), 0.0
        sums = self._interrupted_sums()
        pending: collections.deque = collections.deque()
        with _Terminated() as terminated:
            while step < run.total_steps:
                epoch, start = divmod(step, run.steps_per_epoch)
                order = resident.order(run.config["seed"], epoch, len(run.dataset.splits["train"].ids))
                for feed in resident.feeds(order, run.batch_size, epoch, start):
                    feed = jax.device_put(feed, self.feed_sharding)
                    self.state, part, _ = self.train_step(self.state, self.splits["train"], feed)
                    step += 1
                    pending.append((step, part))
                    ends = step % run.checkpoint_steps == 0 or step == run.total_steps
                    stops = terminated.is_set()  # read once: it may be set at any moment
                    while len(pending) > (0 if ends or stops else _LAG):
                        sums = evaluate.merged(sums, _finite(*pending.popleft()))
                    if ends:
                        self._finish_interval(step, sums)
                        sums, last_line = None, time.monotonic()
                    elif stops:
                        self._save(step, sums, score=None)
                    elif time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
                        last_line = time.monotonic()
                        _say(self._progress(step))
                    if stops:
                        self.checkpoints.wait()
                        _say(f"terminated: saved step {step} in {self.path}; the same command continues.")
                        raise SystemExit(128 + signal.SIGTERM)
                    if step == run.total_steps:
                        break

    def _interrupted_sums(self) -> Any:
        """The sums of an interval that SIGTERM cut in two."""
        if self.told["sums"] is None:
            return None
        feed = next(resident.feeds(np.arange(1), self.run.batch_size))
        shapes = jax.eval_shape(self.run.train_step, self.state, self.splits["train"], feed)[1]
        return jax.tree.unflatten(jax.tree.structure(shapes), map(np.float64, self.told["sums"]))

    def _finish_interval(self, step: int, sums: Any) -> None:
        """Metrics of the interval and of validation, then a checkpoint."""
        weight = float(sums.metrics.weight)
        values = {f"train/{name}": value for name, value in metrics.means(sums.metrics).items()}
        values["train/loss"] = float(sums.loss) / weight
        values["train/gradient_norm"] = float(sums.gradient_norm) / weight
        values["learning_rate"] = float(self.run.schedule(step - 1))
        shown, score = f"loss {values['train/loss']:.4f}", None
        validation = self.run.config["validation"]
        if validation:
            name = validation["split"]
            found = metrics.means(self._evaluate("validation", name, self.state)[0])
            values |= {f"{name}/{k}": v for k, v in found.items()}
            chosen = found[validation["metric"]]
            score = -chosen if validation["metric"] in metrics.LOWER_IS_BETTER else chosen
            shown += f"  {name} {validation['metric']} {chosen:.4f}"
            best = self.told["best_score"]
            if not math.isnan(score) and (best is None or score >= best):
                self.told |= {"best_step": step, "best_score": score}
        self.writer.write(step, {"epoch": step / self.run.steps_per_epoch, **values})
        self._save(step, None, score)
        _say(f"{self._progress(step)}  {shown}")

    def _save(self, step: int, sums: Any, score: float | None) -> None:
        self.told |= {"seconds": time.monotonic() - self.began, "sums": _sums_to_json(sums)}
        self.checkpoints.save(self.state, self.told, score)

    def _evaluate(self, name: str, split: str, state: TrainState) -> tuple[Any, Any]:
        run = self.run
        feeds = resident.feeds(np.arange(len(run.dataset.splits[split].ids)), run.batch_size)

        def step(feed, key):
            feed = jax.device_put(feed, self.feed_sharding)
            return self.eval_step(state.params, state.model_state, self.splits[split], feed, key)

        return evaluate.evaluate(step, feeds, assembly.key_for(run.config["seed"], f"eval {name}"))

    def results(self) -> dict[str, Any]:
        """Every evaluation of the config, with predictions written down."""
        self.checkpoints.wait()
        states = {"last": self.state}
        best_step = self.told["best_step"]
        evals = {}
        for name, settings in self.run.config["evals"].items():
            which = settings.get("checkpoint", "last")
            if which == "best" and "best" not in states:
                if best_step is None:
                    raise NotFiniteError("no checkpoint was ever the best, as every validation score is nan.")
                states["best"] = self.checkpoints.at(best_step, self.template)[0]
            sums, predictions = self._evaluate(name, settings["split"], states[which])
            files.write_arrays(self.path / "predictions" / f"{name}.npz", evaluate.arrays(predictions))
            evals[name] = metrics.means(sums)
            told = "  ".join(f"{k} {v:.4f}" for k, v in evals[name].items())
            _say(f"{name} ({settings['split']}, {which} checkpoint): {told}")
        return {
            "evals": evals,
            "step": int(self.state.step),
            "best_step": best_step,
            "temperature": self.run.config["head"].get("temperature", 1.0),
            "seconds": time.monotonic() - self.began,
            **provenance.provenance(),
        }

    def _progress(self, step: int) -> str:
        elapsed = time.monotonic() - self.began
        rate = step * self.run.batch_size / elapsed
        left = (self.run.total_steps - step) * elapsed / step
        epoch = step / self.run.steps_per_epoch
        return f"step {step:,}/{self.run.total_steps:,}  epoch {epoch:.1f}  {rate:,.0f} examples/s  {_clock(left)} left"


class _Terminated(threading.Event):
    """Set by SIGTERM while this context lasts, where signals can be had."""

    def __enter__(self):
        self._can = threading.current_thread() is threading.main_thread()
        if self._can:
            self._before = signal.signal(signal.SIGTERM, lambda *_: self.set())
        return self

    def __exit__(self, *_):
        if self._can:
            signal.signal(signal.SIGTERM, self._before)


def _finite(step: int, sums: Any) -> Any:
    """The sums, once loss and gradient are known to be finite."""
    for name, value in (("loss", sums.loss), ("gradient", sums.gradient_norm)):
        if not np.isfinite(value):
            raise NotFiniteError(
                f"the {name} is {float(value)} at step {step}; the last good checkpoint stays. Lower the"
                " learning rate, or set optimizer.clip_norm."
            )
    return sums


def _sums_to_json(sums: Any) -> list | None:
    return None if sums is None else [x.tolist() for x in jax.tree.leaves(sums)]


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
