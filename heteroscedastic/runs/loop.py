"""The training loop: places arrays, compiles, trains, saves, resumes, evaluates."""

import functools
import itertools
import math
import time
from typing import Any

import jax

from heteroscedastic import files, metrics
from heteroscedastic.data import dataset
from heteroscedastic.distributed import consistency, hosts
from heteroscedastic.distributed.in_flight import NotFiniteError, StepsInFlight, finite
from heteroscedastic.distributed.preemption import EXIT_CODE, Agreement, StoppedError, Terminated
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs import assembly, compiled, progress, provenance, warm_start, workdir
from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.runs.clock import Clock
from heteroscedastic.runs.trace import Trace
from heteroscedastic.training import evaluate
from heteroscedastic.training.state import TrainState


def train(
    config: dict[str, Any],
    directory: str,
    data_dir: str | None = None,
    *,
    allow_changed: bool = False,
) -> dict[str, Any]:
    """Trains and evaluates a config, and writes the run to the directory.

    The same call resumes an interrupted run, with the same result. For a complete run it does
    nothing.

    Args:
      config: nested dicts and plain values.
      directory: of the run, on a disk or as gs://BUCKET/...; one that all hosts share, where there
        are several.
      data_dir: where data sets lie.
      allow_changed: continues under other JAX flags than the run had, with a warning.

    Returns:
      What results.json holds.

    Raises:
      ChangedError: the run was under other JAX flags, which change its numbers.
      HostMistakeError: the hosts of the run differ in code, versions, flags, devices, data or
        config, or do not share the directory.
      InitError: what config.warm_start names is not there or does not fit.
      WorkdirError: the directory holds another run or a damaged file, or another process is at
        work on it.
      CheckpointError: a checkpoint that is needed cannot be read, or one could not be written.
      OSError: another file could not be written; names it, and the same call continues.
      NotFiniteError: names the step; the last good checkpoint stays.
      SystemExit: after SIGTERM, SIGINT or SIGHUP, once the state is saved.
    """
    since = time.monotonic()
    path = files.as_path(directory)
    for place in (path, *([files.as_path(data_dir)] if data_dir else [])):
        files.reach(place)
    run = assembly.build(config, data_dir)
    config = run.config
    made_with = provenance.provenance()  # now, as the checkout may be another one when the run ends
    consistency.agree_on(
        provenance.of_host(made_with, config, run.pipeline.description["fingerprint"])
    )
    shapes = assembly.check_shapes(run)
    num_parameters = assembly.num_parameters(shapes)
    placement = Placement(
        run.steps.batch_size, num_microbatches=run.steps.num_microbatches, **run.layout
    )
    if not hosts.from_first(lambda: (path / "config.json").exists()):
        warm_start.read(
            config["warm_start"], shapes
        )  # so that an error comes before the directory is claimed
    with workdir.claimed(path, config) as done:
        if done is not None:
            hosts.log(f"{path} holds this run, complete; nothing to do.")
            return done
        consistency.check_shared(path)
        owner = hosts.from_first(lambda: workdir.claim_data(path, run.pipeline.description))
        hosts.log(
            f"{num_parameters:,} parameters, {run.steps.total:,} steps of {run.steps.batch_size} on"
            f" {provenance.device()}."
        )
        for line in dataset.curation_lines(run.pipeline.description):
            hosts.log(line)
        checkpoints = Checkpoints(path / "checkpoints", owner)
        # Before arrays are read, whose types the flags change.
        provenance.check_unchanged(checkpoints.metadata(), made_with, allow_changed)
        trainer = _Trainer(run, path, placement, checkpoints, made_with, owner, since)
        with Terminated() as trainer.terminated, trainer.checkpoints:
            trainer.train()
            results = provenance.stamped(
                {"num_parameters": num_parameters, **trainer.results()}, owner
            )
        hosts.from_first(lambda: workdir.write_results(path, results))
        return results


class _Trainer:
    """A run in progress: its state, its best step, and the sums since the last checkpoint."""

    def __init__(
        self,
        run: Run,
        path: files.Path,
        placement: Placement,
        checkpoints: Checkpoints,
        made_with: dict[str, Any],
        owner: str,
        since: float,
    ):
        self.run, self.path, self.placement, self.checkpoints = run, path, placement, checkpoints
        self.provenance, self.owner, self.terminated = made_with, owner, Terminated()
        self.arrays = placement.put(run.pipeline.arrays, placement.replicated)
        self.places = placement.places(run.steps.batch_size)
        self.programs = compiled.programs(run, placement)
        self.told: dict[str, Any] = {
            "best_step": None,
            "best_score": None,
            "clock": None,
            "sums": None,
        }
        found = self.checkpoints.last(self.programs.template)
        if found:
            self.state, self.told = self.programs.at_work(found[0]), self.told | found[1]
            run.pipeline.leave_out(self.told.get("left_out", {}))
            hosts.log(f"continuing from step {int(self.state.step)}.")
        else:
            source = warm_start.read(run.config["warm_start"], self.programs.template)
            self.state = self.programs.start(source.arrays if source else {})
            if source:
                hosts.agree(source.told["digest"], "arrays to start from (config.warm_start)")
                self.told["init"] = source.told
                hosts.log(
                    f"starting from {warm_start.words(source.told)}: {source.told['num_arrays']}"
                    " arrays."
                )
        commits = self.told.get("commits", [])
        self.told["commits"] = [*commits, *{self.provenance["commit"]}.difference(commits[-1:])]
        self.told["environment"] = self.provenance["environment"]
        self.saved_step = int(self.state.step)  # a start is made again as fast as it is read
        # The line of an interval that was cut at its end, or in validation, is written again.
        step = int(self.state.step) - (self.told["sums"] is not None)
        self.writer = workdir.Writer(path, step, self.told.get("metrics", None if found else []))
        self.clock = Clock(since, self.told.get("clock"))
        self.progress = progress.Progress(run, self.clock)
        self.agreement = Agreement(int(self.state.step))
        self.trace = Trace(run.config["training"]["profile_steps"], path, int(self.state.step))

    def train(self) -> None:
        """From the state's step to the last, with a checkpoint at every interval's end."""
        run, step = self.run, int(self.state.step)
        sums = self._interrupted_sums()
        if self.told["sums"] is not None and self._ends_interval(step):
            self._finish_interval(step, sums)
            sums = None
        under_way, train_step = StepsInFlight(hosts.is_alone()), self._first_step
        try:
            while step < run.steps.total:
                epoch, start = run.steps.epochs.position(step)
                feeds = self.terminated.feeds(
                    run.pipeline.training_feeds(epoch, start, self.places)
                )
                for feed in self.clock.waited_for(feeds, under_way.is_idle):
                    feed = self.placement.feed(feed, run.steps.batch_size)
                    self.trace.before(step + 1, self.state)
                    self.state, part, _ = train_step(self.state, self.arrays["train"], feed)
                    step, train_step = step + 1, self.programs.train_step
                    self.clock.starts(step)
                    self.trace.after(step, self.state)
                    under_way.add(step, part)
                    ends = self._ends_interval(step)
                    stops = self.agreement.stops(
                        self.terminated, step, ends
                    )  # read once: it may be set at any moment
                    for done in under_way.done(everything=ends or stops):
                        sums = evaluate.merged(sums, finite(*done))
                    if stops:
                        self._leave(step, sums)
                    if ends:
                        self._finish_interval(step, sums)
                        sums = None
                    elif self.progress.is_due():
                        hosts.log(self.progress.line(step))
                    if step == run.steps.total:
                        break
                # An epoch that ends early would begin again without end.
                if step < run.steps.total and run.steps.epochs.position(step)[0] == epoch:
                    raise ValueError(
                        f"the training data ended at step {step:,}, but epoch {epoch} has"
                        f" {run.steps.epochs.num_steps(epoch):,} steps."
                    )
        except StoppedError:  # while an input did not come, or the first step was compiled
            for done in under_way.done(everything=True):
                sums = evaluate.merged(sums, finite(*done))
            self._leave(step, sums)

    def _first_step(self, *arguments: Any) -> Any:
        hosts.log("compiling the training step.")
        made = self.terminated.unless_set(functools.partial(self.programs.train_step, *arguments))
        self.progress.restart()
        return made

    def _ends_interval(self, step: int) -> bool:
        return step % self.run.steps.per_checkpoint == 0 or step == self.run.steps.total

    def _leave(self, step: int, sums: Any = None) -> None:
        self._save(step, sums)
        self.checkpoints.wait()
        saved = f"step {step} is saved in {self.path}" if step else "no step was made"
        hosts.log(f"terminated: {saved}; the same command continues.")
        raise SystemExit(EXIT_CODE)

    def _interrupted_sums(self) -> Any:
        """The sums of an interval that SIGTERM interrupted, or None."""
        if self.told["sums"] is None:
            return None
        feed = self.run.pipeline.example("train", training=True)
        shapes = jax.eval_shape(self.run.train_step, self.state, self.arrays["train"], feed)[1]
        return evaluate.unlisted(self.told["sums"], shapes)

    def _finish_interval(self, step: int, sums: Any) -> None:
        """Writes the metrics of the interval and of validation, then a checkpoint."""
        values, shown = {"learning_rate": float(self.run.steps.learning_rate(step - 1))}, ""
        if sums is not None:  # as but those of another version are
            weight = float(sums.metrics.weight)
            values |= {
                f"train/{name}": value for name, value in metrics.means(sums.metrics).items()
            }
            values["train/loss"] = float(sums.loss) / weight
            values["train/gradient_norm"] = float(sums.gradient_norm) / weight
            shown = f"loss {values['train/loss']:.4f}"
        validation = self.run.config["validation"]
        if validation:
            name = validation["split"]
            found = metrics.means(self._evaluate("validation", validation, self.state, sums)[0])
            values |= {f"{name}/{k}": v for k, v in found.items()}
            chosen = found[validation["metric"]]
            score = -chosen if validation["metric"] in metrics.LOWER_IS_BETTER else chosen
            shown += f"  {name} {validation['metric']} {chosen:.4f}"
            best = self.told["best_score"]
            if not math.isnan(score) and (best is None or score >= best):
                self.told |= {"best_step": step, "best_score": score}
        self.writer.write(step, {"epoch": self.run.steps.epochs.passed(step), **values})
        bound = self.clock.bound()
        self._save(step, None)
        hosts.log(f"{self.progress.line(step)}  {shown}  {bound}")
        self.clock.begins_interval()

    def _save(self, step: int, sums: Any) -> None:
        if (
            step == self.saved_step
        ):  # or with the sums of an interval that is finished only now; if lost, it is again
            return
        self.saved_step = step
        self.told |= {
            "clock": self.clock.state(),
            "sums": evaluate.listed(sums),
            "left_out": self._left_out(),
        }
        self.told["metrics"] = list(self.writer.lines)
        self.run.pipeline.leave_out(
            self.told["left_out"]
        )  # of all hosts, as a restart will know them
        with self.clock.counts("checkpoints"):
            self.checkpoints.save(
                self.programs.as_saved(self.state), self.told, self.told["best_step"]
            )

    def _evaluate(
        self,
        name: str,
        settings: dict[str, Any],
        state: TrainState,
        training_sums: Any = None,
    ) -> tuple[Any, Any]:
        run, agreement, counter = self.run, Agreement(0), itertools.count(1)
        split, answers = settings["split"], settings.get("answers")

        def step(feed, key):
            if agreement.stops(self.terminated, next(counter)):
                raise StoppedError
            arguments = (
                state.params,
                state.model_state,
                self.arrays[split],
                self.placement.feed(feed, run.steps.batch_size),
                key,
            )
            return self.terminated.unless_set(
                functools.partial(self.programs.eval_step, *arguments, answers=answers)
            )  # it may compile

        feeds, began = (
            self.terminated.feeds(run.pipeline.feeds(split, self.places)),
            time.monotonic(),
        )
        try:
            with self.clock.counts("evaluation"):
                found = evaluate.evaluate(
                    step, feeds, assembly.key_for(run.config["seed"], f"eval {name}")
                )
        except StoppedError:
            self._leave(int(self.state.step), training_sums)
        self.progress.evaluated(split, time.monotonic() - began)
        return found

    def results(self) -> dict[str, Any]:
        """The metrics of every evaluation of the config; writes the predictions."""
        step, states = int(self.state.step), {"last": self.state}
        self.clock.starts(step)  # where no step was left to do
        with self.clock.counts("checkpoints"):
            self.checkpoints.wait()
        best_step = self.told["best_step"]
        evals = {}
        for name, settings in self.run.config["evals"].items():
            which = settings["checkpoint"]
            if which == "best" and "best" not in states:
                if best_step is None:
                    raise NotFiniteError(
                        "no checkpoint was ever the best, as every validation score is nan."
                    )
                states["best"] = self._best(best_step)
            sums, predictions = self._evaluate(name, settings, states[which])
            arrays = evaluate.arrays(predictions)
            if hosts.is_first():
                workdir.write_predictions(self.path, name, arrays, self.owner)
            evals[name] = metrics.means(sums) | self.run.task.extra_results(arrays)
            hosts.log(
                progress.table(f"{name} ({settings['split']}, {which} checkpoint):", evals[name])
            )
        return {
            "evals": evals,
            "step": step,
            "best_step": best_step,
            "temperature": assembly.temperature(self.run, self.state),
            "seconds": self.clock.seconds(),
            "goodput": self.clock.goodput(),
            "metrics_digest": self.writer.digest(),
            **({"init": self.told["init"]} if "init" in self.told else {}),
            **({"left_out": left_out} if (left_out := self._left_out()) else {}),
            **self.provenance,
            "commit": " then ".join(map(str, self.told["commits"])),
        }

    def _left_out(self) -> dict[str, list[int]]:
        """Ids of images that could not be decoded, by split."""
        found = hosts.from_all(self.run.pipeline.left_out())
        ids = {
            split: sorted({i for one in found for i in one.get(split, ())})
            for split in self.run.pipeline.sizes
        }
        return {split: of for split, of in ids.items() if of}

    def _best(self, step: int) -> TrainState:
        try:
            return self.programs.at_work(self.checkpoints.restore(step, self.programs.template)[0])
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; it is the best one, and evaluations of config.evals ask for it. Bring"
                " it back from a copy,"
                " or begin again in another --workdir."
            ) from error
