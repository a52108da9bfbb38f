"""The one loop: places arrays, compiles, trains, saves, continues, evaluates."""

import functools
import itertools
import logging
import math
import time
from typing import Any

import jax
import numpy as np

from heteroscedastic import files, metrics
from heteroscedastic.data import dataset
from heteroscedastic.training import assembly, class_axis, compiled, evaluate, hosts, init, provenance, workdir
from heteroscedastic.training.assembly import Run
from heteroscedastic.training.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training.clock import Clock
from heteroscedastic.training.hosts import say
from heteroscedastic.training.placement import Placement
from heteroscedastic.training.state import TrainState
from heteroscedastic.training.termination import EXIT_CODE, Agreement, StoppedError, Terminated
from heteroscedastic.training.trace import Trace
from heteroscedastic.training.under_way import UnderWay

_SECONDS_BETWEEN_LINES = 10.0


class NotFiniteError(ArithmeticError):
    """The loss or its gradient stopped being a number."""


def train(config: dict[str, Any], directory: str, data_dir: str | None = None) -> dict[str, Any]:
    """Trains what the config says, evaluates it, and leaves both in the directory.

    The same call again continues where it stopped, with the same result; on a complete run
    it does nothing.

    Args:
      config: nested dicts and plain values.
      directory: of the run, on a disk or as gs://BUCKET/...; one that all hosts share, where there are several.
      data_dir: where data sets lie.

    Returns:
      What results.json holds.

    Raises:
      InitError: what config.init names is not there or does not fit.
      WorkdirError: the directory holds another run or a damaged file, or another process is at
        work on it.
      CheckpointError: a checkpoint that is needed cannot be read, or one could not be written.
      OSError: another file could not be written; names it, and the same call continues.
      NotFiniteError: names the step; the last good checkpoint stays.
      SystemExit: after SIGTERM, once the state is saved.
    """
    since = time.monotonic()
    run = assembly.build(config, data_dir)
    config = run.config
    shapes = assembly.check_shapes(run)
    num_parameters = assembly.num_parameters(shapes)
    placement = Placement(run.batch_size, num_microbatches=run.num_microbatches, **run.layout)
    path = files.place(directory)
    settings = config.get("init")
    if settings and not hosts.from_first(lambda: (path / "config.json").exists()):
        init.read(settings, shapes)  # so that one that does not fit is told before the directory is claimed
    with workdir.claimed(path, config) as done:
        if done is not None:
            say(f"{path} holds this run, complete; nothing to do.")
            return done
        hosts.from_first(lambda: workdir.claim_data(path, run.description))
        owner = provenance.owner(config, run.description["fingerprint"])
        hosts.agree(f"{owner} {run.layout}", "configs or data")
        say(f"{num_parameters:,} parameters, {run.total_steps:,} steps of {run.batch_size} on {provenance.device()}.")
        for line in dataset.curation_lines(run.description):
            say(line)
        trainer = _Trainer(run, path, placement, owner, since)
        with Terminated() as trainer.terminated, trainer.checkpoints:
            trainer.train()
            results = {"num_parameters": num_parameters, **trainer.results()}
        hosts.from_first(lambda: files.write_json(path / "results.json", results))
        return results


class _Trainer:
    """A run under way: its state, its best step, and the sums since the last checkpoint."""

    def __init__(self, run: Run, path: files.Place, placement: Placement, owner: str, since: float):
        self.run, self.path, self.placement = run, path, placement
        self.terminated = Terminated()
        self.arrays = placement.put(run.pipeline.arrays, placement.replicated)
        self.places = placement.places(run.batch_size)
        pad, trim = (functools.partial(f, run.class_axis) for f in (class_axis.padded, class_axis.trimmed))
        saved = jax.eval_shape(run.init)
        as_saved, at_work = (placement.of_state(x, run.class_axis) for x in (saved, jax.eval_shape(pad, saved)))
        self.template = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), saved, as_saved)
        self.at_work, self.as_saved = pad, trim
        if as_saved != at_work:
            self.at_work = jax.jit(pad, out_shardings=at_work)
            self.as_saved = jax.jit(trim, out_shardings=as_saved)
        # A CPU checkpoint may share memory with the state, so there its buffers are not reused.
        donates = jax.default_backend() != "cpu"
        self.train_step = compiled.train_step(run, placement, at_work, donates)
        self.eval_step = jax.jit(run.eval_step, out_shardings=placement.replicated)
        self.checkpoints = Checkpoints(path / "checkpoints", owner)
        self.told: dict[str, Any] = {"best_step": None, "best_score": None, "clock": None, "sums": None}
        found = self.checkpoints.last(self.template)
        if found:
            self.state, self.told = self.at_work(found[0]), found[1]
            run.pipeline.leave_out(self.told.get("left_out", {}))
            say(f"continuing from step {int(self.state.step)}.")
        else:
            source = init.read(run.config["init"], saved) if run.config.get("init") else None
            start = jax.jit(lambda arrays: pad(init.applied(run.init(), arrays)), out_shardings=at_work)
            self.state = start(source.arrays if source else {})
            if source:
                hosts.agree(source.told["digest"], "arrays to start from (config.init)")
                self.told["init"] = source.told
                say(f"starting from {init.words(source.told)}: {source.told['num_arrays']} arrays.")
        # Now, as the checkout may be another one when the run ends.
        self.provenance = provenance.provenance()
        commits = self.told.get("commits", [])
        self.told["commits"] = [*commits, *{self.provenance["commit"]}.difference(commits[-1:])]
        self.saved_step = int(self.state.step) if found else None
        # The line of an interval that was cut at its end, or in validation, is written again.
        self.writer = workdir.Writer(path, int(self.state.step) - (self.told["sums"] is not None))
        self.clock = Clock(since, self.told.get("clock"))
        self.agreement = Agreement(int(self.state.step))
        self.trace = Trace(run.config["training"].get("profile_steps"), path, int(self.state.step))

    def train(self) -> None:
        """From the state's step to the last, with a checkpoint at every interval's end."""
        run, step, last_line = self.run, int(self.state.step), 0.0
        sums = self._interrupted_sums()
        if self.told["sums"] is not None and self._ends_interval(step):
            self._finish_interval(step, sums)
            sums = None
        under_way = UnderWay(hosts.is_alone())
        while step < run.total_steps:
            epoch, start = divmod(step, run.steps_per_epoch)
            feeds = run.pipeline.training_feeds(epoch, start, self.places)
            for feed in self.clock.waited_for(feeds, under_way.is_idle):
                feed = self.placement.feed(feed, run.batch_size)
                step += 1
                self.trace.before(step, self.state)
                self.state, part, _ = self.train_step(self.state, self.arrays["train"], feed)
                self.clock.starts()
                self.trace.after(step, self.state)
                under_way.add(step, part)
                ends = self._ends_interval(step)
                stops = self.agreement.stops(self.terminated, step, ends)  # read once: it may be set at any moment
                for done in under_way.done(everything=ends or stops):
                    sums = evaluate.merged(sums, _finite(*done))
                if stops:
                    self._leave(sums)
                if ends:
                    self._finish_interval(step, sums)
                    sums, last_line = None, time.monotonic()
                elif time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
                    last_line = time.monotonic()
                    say(self._progress(step))
                if step == run.total_steps:
                    break
            if step < min(run.total_steps, (epoch + 1) * run.steps_per_epoch):  # or this would never end
                raise ValueError(
                    f"the training data ended at step {step:,}, but epoch {epoch} has {run.steps_per_epoch:,} steps."
                )

    def _ends_interval(self, step: int) -> bool:
        return step % self.run.checkpoint_steps == 0 or step == self.run.total_steps

    def _leave(self, sums: Any = None) -> None:
        step = int(self.state.step)
        self._save(step, sums)
        self.checkpoints.wait()
        say(f"terminated: step {step} is saved in {self.path}; the same command continues.")
        raise SystemExit(EXIT_CODE)

    def _interrupted_sums(self) -> Any:
        """The sums of an interval that SIGTERM cut in two, or whose end it came at."""
        if self.told["sums"] is None:
            return None
        feed = self.run.pipeline.example("train", training=True)
        shapes = jax.eval_shape(self.run.train_step, self.state, self.arrays["train"], feed)[1]
        if len(jax.tree.leaves(shapes)) != len(self.told["sums"]):
            logging.warning("this checkpoint was saved by another version; the interval's metrics begin again.")
            return None
        return jax.tree.unflatten(jax.tree.structure(shapes), map(np.float64, self.told["sums"]))

    def _finish_interval(self, step: int, sums: Any) -> None:
        """Metrics of the interval and of validation, then a checkpoint; where SIGTERM comes first, that before them."""
        values, shown = {"learning_rate": float(self.run.schedule(step - 1))}, ""
        if sums is not None:  # as but those of another version are
            weight = float(sums.metrics.weight)
            values |= {f"train/{name}": value for name, value in metrics.means(sums.metrics).items()}
            values["train/loss"] = float(sums.loss) / weight
            values["train/gradient_norm"] = float(sums.gradient_norm) / weight
            shown = f"loss {values['train/loss']:.4f}"
        validation = self.run.config["validation"]
        if validation:
            name = validation["split"]
            found = metrics.means(self._evaluate("validation", name, self.state, sums)[0])
            values |= {f"{name}/{k}": v for k, v in found.items()}
            chosen = found[validation["metric"]]
            score = -chosen if validation["metric"] in metrics.LOWER_IS_BETTER else chosen
            shown += f"  {name} {validation['metric']} {chosen:.4f}"
            best = self.told["best_score"]
            if not math.isnan(score) and (best is None or score >= best):
                self.told |= {"best_step": step, "best_score": score}
        self.writer.write(step, {"epoch": step / self.run.steps_per_epoch, **values})
        bound = self.clock.bound()
        self._save(step, None)
        say(f"{self._progress(step)}  {shown}  {bound}")
        self.clock.begins_interval()

    def _save(self, step: int, sums: Any) -> None:
        if step == self.saved_step:  # or with the sums of an interval that is finished only now; if lost, it is again
            return
        self.saved_step = step
        listed = None if sums is None else [x.tolist() for x in jax.tree.leaves(sums)]
        self.told |= {"clock": self.clock.told(), "sums": listed, "left_out": self._left_out()}
        self.run.pipeline.leave_out(self.told["left_out"])  # of all hosts, as a restart will know them
        with self.clock.counts("checkpoints"):
            self.checkpoints.save(self.as_saved(self.state), self.told, self.told["best_step"])

    def _evaluate(self, name: str, split: str, state: TrainState, training_sums: Any = None) -> tuple[Any, Any]:
        run, agreement, counter = self.run, Agreement(0), itertools.count(1)

        def step(feed, key):
            if agreement.stops(self.terminated, next(counter)):
                raise StoppedError
            feed = self.placement.feed(feed, run.batch_size)
            return self.eval_step(state.params, state.model_state, self.arrays[split], feed, key)

        feeds = run.pipeline.feeds(split, self.places)
        try:
            with self.clock.counts("evaluation"):
                return evaluate.evaluate(step, feeds, assembly.key_for(run.config["seed"], f"eval {name}"))
        except StoppedError:
            self._leave(training_sums)

    def results(self) -> dict[str, Any]:
        """Every evaluation of the config, with predictions written down."""
        self.clock.starts()  # where no step was left to do
        with self.clock.counts("checkpoints"):
            self.checkpoints.wait()
        step, states = int(self.state.step), {"last": self.state}
        best_step = self.told["best_step"]
        evals = {}
        for name, settings in self.run.config["evals"].items():
            which = settings.get("checkpoint", "last")
            if which == "best" and "best" not in states:
                if best_step is None:
                    raise NotFiniteError("no checkpoint was ever the best, as every validation score is nan.")
                states["best"] = self._best(best_step)
            sums, predictions = self._evaluate(name, settings["split"], states[which])
            if hosts.is_first():
                files.write_arrays(self.path / "predictions" / f"{name}.npz", evaluate.arrays(predictions))
            evals[name] = metrics.means(sums)
            told = "  ".join(f"{k} {v:.4f}" for k, v in evals[name].items())
            say(f"{name} ({settings['split']}, {which} checkpoint): {told}")
        return {
            "evals": evals,
            "step": step,
            "best_step": best_step,
            "temperature": assembly.temperature(self.run, self.state),
            "seconds": self.clock.seconds(),
            "goodput": self.clock.goodput(),
            **({"init": self.told["init"]} if "init" in self.told else {}),
            **({"left_out": left_out} if (left_out := self._left_out()) else {}),
            **self.provenance,
            "commit": " then ".join(map(str, self.told["commits"])),
        }

    def _left_out(self) -> dict[str, list[int]]:
        """Ids of images that could not be decoded, by split, where there are any."""
        found = hosts.from_all(self.run.pipeline.left_out())
        ids = {split: sorted({i for one in found for i in one.get(split, ())}) for split in self.run.pipeline.sizes}
        return {split: of for split, of in ids.items() if of}

    def _best(self, step: int) -> TrainState:
        try:
            return self.at_work(self.checkpoints.at(step, self.template)[0])
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; it is the best one, and evaluations of config.evals ask for it. Bring it back from a copy,"
                " or begin again in another --workdir."
            ) from error

    def _progress(self, step: int) -> str:
        rate, left = self.clock.rate(step, self.run.total_steps)
        told = f"{rate * self.run.batch_size:,.0f} examples/s  {left} left"
        return f"step {step:,}/{self.run.total_steps:,}  epoch {step / self.run.steps_per_epoch:.1f}  {told}"


def _finite(step: int, sums: Any) -> Any:
    """The sums, once loss and gradient are known to be finite."""
    for name, value in (("loss", sums.loss), ("gradient", sums.gradient_norm)):
        if not np.isfinite(value):
            raise NotFiniteError(
                f"the {name} is {float(value)} at step {step}; the last good checkpoint stays. Lower the"
                " learning rate, or set optimizer.clip_norm."
            )
    return sums
