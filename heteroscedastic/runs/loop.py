"""The training loop: places arrays, compiles, trains, saves, resumes, evaluates."""

import functools
import itertools
import math
import time
from typing import Any

import jax
import numpy as np

from heteroscedastic import files, metrics
from heteroscedastic.data import dataset, split_spec
from heteroscedastic.distributed import consistency, hosts
from heteroscedastic.distributed.in_flight import NotFiniteError, StepsInFlight, finite
from heteroscedastic.distributed.preemption import EXIT_CODE, Agreement, StopEvent, StoppedError
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs import (
    assembly,
    cached_maps,
    compiled,
    prioritization,
    progress,
    provenance,
    translation,
    warm_start,
    workdir,
)
from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.runs.clock import Clock
from heteroscedastic.runs.trace import Trace
from heteroscedastic.selection import Selected
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
      directory: directory of the run, on a disk or as gs://BUCKET/...; several hosts must share it.
      data_dir: directory of the data sets.
      allow_changed: whether to resume a run whose JAX flags were different, with a warning.

    Returns:
      The content of results.json.

    Raises:
      ChangedError: the run began under other JAX flags, which change its numbers.
      HostMistakeError: the hosts of the run differ in code, versions, flags, devices, data or
        config, or do not share the directory.
      InitError: the source that config.warm_start names is missing or does not fit the model.
      WorkdirError: the directory holds another run or a damaged file, or another process uses it.
      CheckpointError: a required checkpoint cannot be read, or one could not be written.
      OSError: another file could not be written; names the file. The same call resumes the run.
      NotFiniteError: a loss or gradient is not finite; names the step. The last checkpoint before
        that step stays.
      SystemExit: after SIGTERM, SIGINT or SIGHUP, once the state is saved.
    """
    start_time = time.monotonic()
    path = files.as_path(directory)
    files.reach(path)
    if data_dir:
        files.reach(files.as_path(data_dir))
    run = assembly.build(config, data_dir)
    config = run.config
    # Read now, as the checkout may change before the run ends.
    current_provenance = provenance.provenance()
    consistency.agree_on(provenance.host_values(current_provenance, config, run.description))
    placement = Placement(
        run.steps.batch_size, num_microbatches=run.steps.num_microbatches, **run.layout
    )
    shapes = compiled.check_shapes(run, placement)
    num_parameters = assembly.num_parameters(shapes)
    target = None
    if not hosts.from_first(lambda: (path / "config.json").exists()):
        # Errors are raised before the directory is claimed.
        warm_start.read(config["warm_start"], shapes)
        translation.check_libraries(config["evals"])
        target = prioritization.target_of(run, data_dir)
    with workdir.claimed(path, config) as complete_results:
        if complete_results is not None:
            hosts.log(f"{path} holds this run, complete; nothing to do.")
            return complete_results
        translation.check_libraries(config["evals"])
        target = target or prioritization.target_of(run, data_dir)
        consistency.check_shared(path)
        owner = hosts.from_first(lambda: workdir.claim_data(path, run.description))
        hosts.log(
            f"{num_parameters:,} parameters, {'about ' if run.prioritizes else ''}"
            f"{run.steps.total:,} steps of {run.steps.batch_size} examples"
            f" on {provenance.device()}."
        )
        for line in dataset.change_lines(run.description):
            hosts.log(line)
        if target is not None:
            target.log_shared()
        checkpoints = Checkpoints(path / "checkpoints", owner)
        # Checked before arrays are read, as the flags change their types.
        provenance.check_unchanged(checkpoints.metadata(), current_provenance, allow_changed)
        trainer = _Trainer(
            run, path, placement, checkpoints, current_provenance, owner, start_time, target
        )
        with StopEvent() as trainer.stop_event, trainer.checkpoints:
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
        current_provenance: dict[str, Any],
        owner: str,
        start_time: float,
        target: prioritization.Target | None = None,
    ):
        self.run, self.path, self.placement, self.checkpoints = run, path, placement, checkpoints
        self.target = target
        self.provenance, self.owner, self.stop_event = current_provenance, owner, StopEvent()
        self.arrays = placement.put(run.pipeline.arrays, placement.replicated)
        self.slots = placement.slots(run.steps.batch_size)
        self.programs = compiled.programs(run, placement)
        self.metadata: dict[str, Any] = {
            "best_step": None,
            "best_score": None,
            "clock": None,
            "sums": None,
        }
        if target is not None:
            self.metadata["target"] = target.description
        checkpoint = self.checkpoints.last(self.programs.template)
        if checkpoint:
            saved_state, saved_metadata = checkpoint
            self.state = self.programs.padded(saved_state)
            self.metadata |= saved_metadata
            prioritization.check_same_target(target, saved_metadata)
            run.pipeline.leave_out(self.metadata.get("left_out", {}))
            hosts.log(f"continuing from step {int(self.state.step)}.")
        else:
            source = warm_start.read(run.config["warm_start"], self.programs.template)
            self.state = self.programs.start(run.root_key, source.arrays if source else {})
            if source:
                hosts.agree(source.description["digest"], "initial arrays (config.warm_start)")
                self.metadata["init"] = source.description
                hosts.log(
                    f"starting from {warm_start.source_name(source.description)}:"
                    f" {source.description['num_arrays']} arrays."
                )
        if cached_maps.is_on(run):
            train = cached_maps.with_maps(run, placement, self.state, self.arrays["train"])
            self.arrays = {**self.arrays, "train": train}
        commits = self.metadata.get("commits", [])
        self.metadata["commits"] = [*commits, *{self.provenance["commit"]}.difference(commits[-1:])]
        self.metadata["environment"] = self.provenance["environment"]
        # An initial state is not saved: it is computed again as fast as it would be read.
        self.saved_step = int(self.state.step)
        # If the run stopped after the last step of an interval but before the checkpoint at its
        # end, the line of that interval is written again.
        step = int(self.state.step) - (self.metadata["sums"] is not None)
        saved_lines = self.metadata.get("metrics", None if checkpoint else [])
        self.writer = workdir.Writer(path, step, saved_lines)
        self.clock = Clock(start_time, self.metadata.get("clock"))
        if run.prioritizes:
            # The choice of the epoch under way, and the scores at its start or end.
            self.scores = prioritization.on_host(self.state.scores)
            self.epoch = prioritization.epoch_of(run, self.scores)
            self.record = prioritization.Record(run, path, owner, self.epoch.index)
        else:
            self.epoch = run.equal_epoch(int(self.state.step))
        self.progress = progress.Progress(run, self.clock)
        self.agreement = Agreement(int(self.state.step))
        self.trace = Trace(run.config["training"]["profile_steps"], path, int(self.state.step))

    def train(self) -> None:
        """Trains from the current step to the last, with a checkpoint after every interval."""
        run, step = self.run, int(self.state.step)
        sums = self._interrupted_sums()
        # A prioritized epoch that has not begun ends no interval. The intervals that ended with the
        # epoch before, which may have another length, are written.
        is_between = run.prioritizes and step == self.epoch.start
        if self.metadata["sums"] is not None and not is_between and self._ends_interval(step):
            self._finish_interval(step, sums)
            sums = None
        if self.epoch.num_steps and (step == self.epoch.end or self._is_complete(step)):
            self._leave_epoch()  # again, as the checkpoint may be older than the line
        in_flight, train_step = StepsInFlight(hosts.is_alone()), self._first_step
        try:
            while not self._is_complete(step):
                chosen = self._enter_epoch(step)
                index, start = self.epoch.index, step - self.epoch.start
                feeds = self.stop_event.feeds(
                    run.pipeline.training_feeds(index, start, self.slots, chosen)
                )
                for feed in self.clock.timed_feeds(feeds, in_flight.is_idle):
                    feed = self.placement.feed(feed, run.steps.batch_size)
                    self.trace.before(step + 1, self.state)
                    arguments = self.state, self.arrays["train"], feed, run.root_key
                    self.state, part, _ = train_step(*arguments)
                    step, train_step = step + 1, self.programs.train_step
                    self.clock.end_start(step)
                    self.trace.after(step, self.state)
                    in_flight.add(step, part)
                    ends = self._ends_interval(step)
                    # Read once, as a signal may set the event at any time.
                    stops = self.agreement.stops(self.stop_event, step, ends)
                    leaves = step == self.epoch.end or self._is_complete(step)
                    waits = ends or stops or (leaves and run.prioritizes)
                    for done in in_flight.done(everything=waits):
                        sums = evaluate.merged(sums, self._checked(*done))
                    if stops:
                        self._leave(step, sums)
                    if leaves:
                        self._leave_epoch()
                    if ends:
                        self._finish_interval(step, sums)
                        sums = None
                    elif self.progress.is_due():
                        hosts.log(self.progress.line(step, self.epoch))
                    if self._is_complete(step):
                        break
                # Without this check, an epoch that ends early would be repeated for ever.
                if not self._is_complete(step) and step < self.epoch.end:
                    raise ValueError(
                        f"the training data ended at step {step:,}, but epoch {index} has"
                        f" {self.epoch.num_steps:,} steps."
                    )
        except StoppedError:  # while waiting for input or compiling the first step
            for done in in_flight.done(everything=True):
                sums = evaluate.merged(sums, self._checked(*done))
            self._leave(step, sums)

    def _is_complete(self, step: int) -> bool:
        """Whether the last epoch of the run has ended."""
        return self.epoch.num_steps > 0 and self.epoch.num_full(step) >= self.run.steps.total_full

    def _checked(self, step: int, sums: Any) -> Any:
        """The sums of a step, after a check that they and its scores are finite."""
        sums = finite(step, sums)
        if sums.score is not None and not math.isfinite(sums.score):
            prioritization.check_finite(self.run, prioritization.on_host(self.state.scores), step)
        return sums

    def _enter_epoch(self, step: int) -> Selected | None:
        """Determines the epoch of the next step; returns its examples."""
        if not self.run.prioritizes:
            self.epoch = self.run.equal_epoch(step)
            return self.run.selected(self.epoch.index)
        if step == self.epoch.end:
            with self.clock.timed("scores"):
                self._choose(step)
        return prioritization.selected(self.scores)

    def _choose(self, step: int) -> None:
        """Chooses the examples of the next epoch."""
        run, seconds = self.run, self._epoch_seconds()
        values, target_scores = self.scores.values, None
        epoch, settings = self.epoch.index + 1, run.config["prioritization"]
        reads = run.scores_are_read and prioritization.chooses(run, epoch)
        if settings["scores"] == "evaluation" and (reads or settings["record"]):
            values = np.asarray(self._scores(run, self.programs.score_step, self.state, epoch))
        elif settings["scores"] == "target" and reads:
            values = self.target.scores(epoch)
        elif settings["scores"] == "target_final" and reads:
            values = self._final_scores
        if run.target_scores_are_read and reads:
            target_scores = self._final_scores
        scores = self.scores._replace(values=values)
        choice = prioritization.choice(run, scores, step, target_scores)
        self.scores = choice.scores
        placed = self.placement.put(self.scores, self.placement.replicated)
        self.state = self.state._replace(scores=placed)
        self.epoch = prioritization.epoch_of(run, self.scores)
        self.metadata["epoch"] = choice.facts | {"seconds_before": seconds}

    def _leave_epoch(self) -> None:
        """Reads the scores of a prioritized epoch at its end, and writes its record."""
        if not self.run.prioritizes:
            return
        if self.run.scores_in_training:
            self.scores = self.scores._replace(values=np.asarray(self.state.scores.values))
        facts = dict(self.metadata["epoch"])
        before, after = facts.pop("seconds_before"), self._epoch_seconds()
        seconds = {f"seconds_{name}": after[name] - before[name] for name in after}
        steps = {"num_steps": self.epoch.num_steps}
        self.record.add(facts | steps | seconds)
        if self.run.config["prioritization"]["record"]:
            self.record.save(self.scores)

    def _epoch_seconds(self) -> dict[str, float]:
        """Seconds of the run in scoring and choosing examples, and in training steps."""
        return {"scores": self.clock.seconds_of("scores"), "steps": self.clock.training()}

    @functools.cached_property
    def _final_scores(self) -> np.ndarray:
        """The scores of the training examples by the target's last weights."""
        loaded = self.target.loaded()
        program = compiled.score_step(loaded.run, self.placement)
        scores = np.asarray(self._scores(loaded.run, program, loaded.state, 0))
        self.target.check_finite(scores, "by its last weights")
        return scores

    def _scores(self, run: Run, program: Any, state: TrainState, epoch: int) -> jax.Array:
        """The scores of all training examples, without augmentation."""
        agreement, counter = Agreement(0), itertools.count(1)
        key = jax.random.fold_in(assembly.key_for(self.run.config["seed"], "scores"), epoch)
        scores = np.zeros(run.pipeline.sizes["train"], np.float32)
        scores = self.placement.put(scores, self.placement.replicated)
        feeds = self.stop_event.feeds(run.pipeline.feeds("train", self.slots))
        for i, feed in enumerate(feeds):
            if agreement.stops(self.stop_event, next(counter)):
                raise StoppedError
            feed = self.placement.feed(feed, self.run.steps.batch_size)
            arguments = state.params, state.model_state, self.arrays["train"], feed
            call = functools.partial(program, *arguments, jax.random.fold_in(key, i), scores)
            scores = self.stop_event.unless_set(call)
        return scores

    def _first_step(self, *arguments: Any) -> Any:
        hosts.log("compiling the training step.")
        outputs = self.stop_event.unless_set(
            functools.partial(self.programs.train_step, *arguments)
        )
        self.progress.restart()
        return outputs

    def _ends_interval(self, step: int) -> bool:
        length = self.run.steps.per_checkpoint
        passed = self.epoch.num_full(step, length) > self.epoch.num_full(step - 1, length)
        return passed or self._is_complete(step)

    def _leave(self, step: int, sums: Any = None) -> None:
        self._save(step, sums)
        self.checkpoints.wait()
        saved = f"step {step} is saved in {self.path}" if step else "no step was finished"
        hosts.log(f"terminated: {saved}; the same command resumes the run.")
        raise SystemExit(EXIT_CODE)

    def _interrupted_sums(self) -> Any:
        """The sums of the interval that a signal interrupted, or None."""
        if self.metadata["sums"] is None:
            return None
        shapes = jax.eval_shape(self.run.train_step, *compiled.shapes(self.run, self.placement))
        return evaluate.unlisted(self.metadata["sums"], shapes[1])

    def _finish_interval(self, step: int, sums: Any) -> None:
        """Writes the metrics of the interval and of validation, then a checkpoint."""
        last = self.epoch.num_full(step) - 1
        values, summary = {"learning_rate": float(self.run.steps.learning_rate(last))}, ""
        if sums is not None:  # None for the saved sums of another version
            weight = float(sums.metrics.weight)
            values |= {
                f"train/{name}": value for name, value in self.run.task.means(sums.metrics).items()
            }
            values["train/loss"] = float(sums.loss) / weight
            values["train/gradient_norm"] = float(sums.gradient_norm) / weight
            if sums.divergence is not None:
                values["train/divergence"] = float(sums.divergence) / weight
            if sums.score is not None:
                values["train/score"] = float(sums.score) / weight
            summary = f"loss {values['train/loss']:.4f}"
        validation = self.run.config["validation"]
        if validation:
            split, metric = validation["split"], validation["metric"]
            means = self._means("validation", validation, sums)
            values |= {f"{split}/{name}": value for name, value in means.items()}
            score = -means[metric] if metric in metrics.LOWER_IS_BETTER else means[metric]
            summary += f"  {split} {metric} {means[metric]:.4f}"
            best = self.metadata["best_score"]
            if not math.isnan(score) and (best is None or score >= best):
                self.metadata |= {"best_step": step, "best_score": score}
        for name, settings in self.run.config["evals"].items():
            if settings.get("during"):
                means = self._means(name, settings, sums)
                values |= {f"evals/{name}/{metric}": value for metric, value in means.items()}
        self.writer.write(step, {"epoch": self.epoch.passed(step), **values})
        bound = self.clock.bound()
        self._save(step, None)
        hosts.log(f"{self.progress.line(step, self.epoch)}  {summary}  {bound}")
        self.clock.begin_interval()

    def _save(self, step: int, sums: Any) -> None:
        # The saved checkpoint of this step may hold the sums of the interval that ends with it. A
        # restart from that checkpoint finishes the interval again.
        if step == self.saved_step:
            return
        self.saved_step = step
        self.metadata |= {
            "clock": self.clock.state(),
            "sums": evaluate.listed(sums),
            "left_out": self._left_out(),
            "metrics": list(self.writer.lines),
        }
        # What all hosts leave out, as after a restart.
        self.run.pipeline.leave_out(self.metadata["left_out"])
        with self.clock.timed("checkpoints"):
            self.checkpoints.save(
                self.programs.trimmed(self.state), self.metadata, self.metadata["best_step"]
            )

    def _means(self, name: str, settings: dict[str, Any], training_sums: Any) -> dict[str, float]:
        """The metrics of an evaluation during training."""
        sums, _ = self._evaluate(name, settings, self.state, training_sums, keeps_predictions=False)
        return self.run.task.means(sums)

    def _evaluate(
        self,
        name: str,
        settings: dict[str, Any],
        state: TrainState,
        training_sums: Any = None,
        keeps_predictions: bool = True,
    ) -> tuple[Any, Any]:
        run, agreement, counter = self.run, Agreement(0), itertools.count(1)
        split, static = settings["split"], compiled.static(run, settings)

        def step(feed, key):
            if agreement.stops(self.stop_event, next(counter)):
                raise StoppedError
            arguments = (
                state.params,
                state.model_state,
                self.arrays[split],
                self.placement.feed(feed, run.steps.batch_size),
                key,
            )
            # The first call compiles, which may take long.
            return self.stop_event.unless_set(
                functools.partial(self.programs.eval_step, *arguments, **static)
            )

        feeds = self.stop_event.feeds(run.pipeline.feeds(split, self.slots))
        key, start_time = assembly.key_for(run.config["seed"], f"eval {name}"), time.monotonic()
        try:
            with self.clock.timed("evaluation"):
                sums, predictions = evaluate.evaluate(step, feeds, key, keeps_predictions)
        except StoppedError:
            self._leave(int(self.state.step), training_sums)
        self.progress.evaluated(split, time.monotonic() - start_time)
        return sums, predictions

    def results(self) -> dict[str, Any]:
        """The metrics of every evaluation of the config; writes the predictions."""
        step, states = int(self.state.step), {"last": self.state}
        self.clock.end_start(step)  # for a process that made no training step
        with self.clock.timed("checkpoints"):
            self.checkpoints.wait()
        best_step = self.metadata["best_step"]
        evals, signatures = {}, {}
        for name, settings in self.run.config["evals"].items():
            checkpoint = settings["checkpoint"]
            if checkpoint == "best" and "best" not in states:
                if best_step is None:
                    raise NotFiniteError(
                        f"config.evals.{name} requires the best checkpoint, but there is none, as"
                        " every validation score is nan; lower the learning rate, or set"
                        f" config.evals.{name}.checkpoint='last'."
                    )
                states["best"] = self._best(best_step)
            sums, predictions = self._evaluate(name, settings, states[checkpoint])
            arrays = evaluate.arrays(predictions)
            if hosts.is_first():
                data_name = split_spec.data_name(self.run.config["data"], settings["split"])
                document = self.run.task.document(arrays, data_name)
                workdir.write_predictions(self.path, name, arrays, self.owner, document)
            evals[name] = self.run.task.means(sums) | self.run.task.extra_results(arrays)
            if limits := translation.limits(settings):
                found = self._translations(settings["split"], limits, states[checkpoint])
                if hosts.is_first():
                    workdir.write_sentences(self.path, name, found.sentences)
                evals[name] |= found.scores
                signatures |= found.signatures
            title = f"{name} ({settings['split']}, {checkpoint} checkpoint):"
            hosts.log(progress.table(title, evals[name]))
        return {
            "evals": evals,
            "step": step,
            "best_step": best_step,
            "temperature": assembly.temperature(self.run, self.state),
            "seconds": self.clock.seconds(),
            "goodput": self.clock.goodput(),
            "metrics_digest": self.writer.digest(),
            **{name: self.metadata[name] for name in ("init", "target") if name in self.metadata},
            **({"left_out": left_out} if (left_out := self._left_out()) else {}),
            **({"signatures": signatures} if signatures else {}),
            **self.provenance,
            "commit": provenance.joined_commits(self.metadata["commits"]),
        }

    def _translations(
        self, split: str, limits: dict[str, Any], state: TrainState
    ) -> translation.Translations:
        agreement, counter = Agreement(0), itertools.count(1)

        def search(source, max_tokens):
            if agreement.stops(self.stop_event, next(counter)):
                raise StoppedError
            part = source[self.placement.slots(len(source))]
            arguments = state.params, state.model_state, self.placement.feed(part, len(source))
            bound = {**limits, "max_tokens": max_tokens}
            return self.stop_event.unless_set(
                functools.partial(self.programs.hypotheses, *arguments, **bound)
            )

        try:
            with self.clock.timed("evaluation"):
                return translation.translations(self.run, split, search, limits["max_tokens"])
        except StoppedError:
            self._leave(int(self.state.step))

    def _left_out(self) -> dict[str, list[int]]:
        """Ids of the images that a host could not decode, by split."""
        by_host = hosts.from_all(self.run.pipeline.left_out())
        by_split = {
            split: sorted({i for ids in by_host for i in ids.get(split, ())})
            for split in self.run.pipeline.sizes
        }
        return {split: ids for split, ids in by_split.items() if ids}

    def _best(self, step: int) -> TrainState:
        try:
            return self.programs.padded(self.checkpoints.restore(step, self.programs.template)[0])
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; it is the best checkpoint, which evaluations of config.evals require."
                " Restore it from a copy, or train again with another --workdir."
            ) from error
