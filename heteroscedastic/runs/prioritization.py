"""Choice of the examples of each epoch of a run by their scores, and its record.

A run with `config.prioritization` writes a line of epochs.jsonl at the end of each epoch and, with
`record`, scores/EPOCH.npz, which a run that has it as its target reads.
"""

import dataclasses
import functools
import json
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from jaxtyping import Float, Int

from heteroscedastic import files
from heteroscedastic.data import resident, split_spec
from heteroscedastic.distributed import hosts
from heteroscedastic.distributed.in_flight import NotFiniteError
from heteroscedastic.runs import loaded_run, pipelines, provenance
from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.loaded_run import LoadedRun, SavedRun
from heteroscedastic.selection import Selected
from heteroscedastic.training.epochs import Epoch
from heteroscedastic.training.state import Scores

EPOCHS = "epochs.jsonl"
_MAX_IDS = 5  # in an error
_MAX_CLASSES = 1000  # above which a line has no numbers by class


class Choice(NamedTuple):
    """The examples of an epoch, and what epochs.jsonl says of them."""

    scores: Scores  # in numpy
    facts: dict[str, Any]


def chooses(run: Run, epoch: int) -> bool:
    """Whether examples are chosen anew before an epoch."""
    settings = run.config["prioritization"]
    after_warmup = epoch - settings["warmup_epochs"]
    is_due = after_warmup >= 0 and after_warmup % settings["every_epochs"] == 0
    return run.selection is not None and is_due


def choice(
    run: Run,
    scores: Scores,
    step: int,
    target_scores: Float[np.ndarray, "n"] | None = None,
) -> Choice:
    """The examples of the epoch after that of the scores.

    Args:
      run: with prioritization.
      scores: with the values that the choice is made from, in numpy.
      step: steps of the run before the epoch.
      target_scores: of the target's last weights, if the selection reads them.
    """
    epoch, n = int(scores.epoch) + 1, len(scores.values)
    former = scores.rows[scores.rows < n]
    check_finite(run, scores, step)  # also those that are recorded and not read
    has_scores = bool(scores.values.any())  # before the first scores, all are 0
    if chooses(run, epoch):
        chosen = run.selected(epoch, scores.values, target_scores)
    elif epoch < run.config["prioritization"]["warmup_epochs"] or run.selection is None:
        chosen = Selected(np.arange(n), np.ones(n))
    else:
        chosen = selected(scores)
    padding, number = n - len(chosen.rows), run.pipeline.occurrences * len(chosen.rows)
    new = Scores(
        epoch=np.int32(epoch),
        num_steps=np.int32(resident.steps_per_epoch(number, run.steps.batch_size)),
        rows=np.pad(chosen.rows.astype(np.int32), (0, padding), constant_values=n),
        start=np.int32(step),
        values=scores.values,
        weights=np.pad(chosen.weights.astype(np.float32), (0, padding)),
    )
    return Choice(new, _facts(run, epoch, chosen, former, scores.values if has_scores else None))


def selected(scores: Scores) -> Selected:
    """The examples of the epoch under way."""
    is_chosen = scores.rows < len(scores.rows)
    return Selected(scores.rows[is_chosen], scores.weights[is_chosen])


def epoch_of(run: Run, scores: Scores) -> Epoch:
    """The epoch under way."""
    numbers = (int(x) for x in (scores.epoch, scores.start, scores.num_steps))
    return Epoch(*numbers, run.steps.full_length)


def check_finite(run: Run, scores: Scores, step: int) -> None:
    """Raises a NotFiniteError with ids and step where a score is not finite."""
    if examples := _not_finite(run, scores.values):
        raise NotFiniteError(
            f"the score of the training examples {examples} is not finite at step {step}; the last"
            " good checkpoint stays. Lower the learning rate, or set optimizer.clip_norm."
        )


def _not_finite(run: Run, values: Float[np.ndarray, "n"]) -> str:
    """The first ids of the examples whose scores are not finite, and their number."""
    rows = np.flatnonzero(~np.isfinite(values))
    ids = ", ".join(map(str, run.dataset.splits["train"].ids[rows[:_MAX_IDS]]))
    return ids + (f" and {len(rows) - _MAX_IDS} more" if len(rows) > _MAX_IDS else "")


def _facts(run, epoch, chosen, former, values):
    """What epochs.jsonl says of a choice; None where it is not known."""
    train = run.dataset.splits["train"]
    is_chosen = np.zeros(len(train.ids), bool)
    is_chosen[chosen.rows] = True
    facts = {
        "epoch": epoch,
        "num_examples": len(chosen.rows),
        "overlap": _mean(np.isin(chosen.rows, former)) if len(former) else None,
        "class_counts": None,
        "wrong_label_fraction": None,
        "chosen_score": None if values is None else _mean(values[is_chosen]),
        "other_score": None if values is None else _mean(values[~is_chosen]),
    }
    if train.labels.ndim == 1:
        num_classes = run.num_classes
        if num_classes <= _MAX_CLASSES:
            counts = np.bincount(train.labels[chosen.rows], minlength=num_classes)
            facts["class_counts"] = counts.tolist()
        clean = run.pipeline.clean_labels["train"]
        if not np.array_equal(clean, train.labels):
            is_known = clean[chosen.rows] >= 0
            is_wrong = (clean != train.labels)[chosen.rows]
            facts["wrong_label_fraction"] = _mean(is_wrong[is_known])
    return facts


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values, dtype=np.float64)) if len(values) else None


class Record:
    """The lines of epochs.jsonl, and the scores of each epoch. Only the first host writes."""

    def __init__(self, run: Run, path: files.Path, owner: str, epoch: int):
        """Removes the lines of the epochs from `epoch` on, which a resumed run writes again."""
        self._run, self._path, self._owner = run, path, owner
        lines = lines_of(path)
        self._lines = [line for line in lines if line["epoch"] < epoch]
        if hosts.is_first() and len(self._lines) < epoch:
            logging.warning(
                "%s lacks %d of the %d epochs before this one, as it was changed or removed; the"
                " run continues without them.",
                *(path / EPOCHS, epoch - len(self._lines), epoch),
            )
        if hosts.is_first() and len(self._lines) != len(lines):
            self._write()

    def add(self, facts: dict[str, Any]) -> None:
        """Writes the line of an epoch at its end."""
        self._lines = [x for x in self._lines if x["epoch"] < facts["epoch"]] + [facts]
        if hosts.is_first():
            self._write()

    def save(self, scores: Scores) -> None:
        """Writes the scores of an epoch at its end."""
        if hosts.is_first():
            name = str(scores.epoch)
            arrays = {"ids": self._run.dataset.splits["train"].ids, "scores": scores.values}
            files.write_arrays(
                self._path / "scores" / f"{name}.npz",
                provenance.stamped_arrays(name, arrays, self._owner),
            )

    def _write(self) -> None:
        text = "".join(json.dumps(line) + "\n" for line in self._lines)
        files.write_atomically(self._path / EPOCHS, lambda file: file.write(text.encode()))


def lines_of(path: files.Path) -> list[dict[str, Any]]:
    """The lines of epochs.jsonl in order, without those that are damaged; none without the file."""
    try:
        text = (path / EPOCHS).read_bytes().decode(errors="replace")
    except OSError:
        return []
    lines: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and isinstance(epoch := values.get("epoch"), int):
            lines[epoch] = values
    return [line for _, line in sorted(lines.items())]


class Target:
    """The run that config.prioritization.target names, complete and of the same classes."""

    def __init__(self, run: Run, data_dir: str | None = None):
        """Reads the target, and checks that the run can have it.

        Args:
          run: that has the target.
          data_dir: directory of the data sets.

        Raises:
          FileNotFoundError: the directory holds no complete run.
          ValueError: the target has other classes, other examples or another number of epochs, or
            was trained on examples that the run holds out, of `excess` on those that it holds out
            for other than validation.
          CheckpointError: the last checkpoint of the target is missing or cannot be read.
        """
        self._run, self._name = run, run.config["prioritization"]["target"]
        self._data_dir = data_dir
        self.saved: SavedRun = loaded_run.read(self._name)
        if self.saved.dataset["class_names"] != list(run.pipeline.class_names):
            raise ValueError(f"{self._label} has other classes than this run.")
        if run.config["prioritization"]["scores"] == "target":
            self._check_files()
        else:
            theirs, ours = (c["data"]["eval"] for c in (self.saved.config, run.config))
            if theirs != ours:
                raise ValueError(
                    f"{self._label} evaluates images by {theirs!r}, but config.data.eval is"
                    f" {ours!r}; its last weights can score only images of the same operations."
                )
            self._check_scaling()
            self._check_held_out()
            self.loaded()  # its weights are first needed after the warm-up, when an error is late

    def _check_scaling(self) -> None:
        """`standardize` scales features by mean and deviation of the training examples."""
        theirs, ours = (c["data"]["standardize"] for c in (self.saved.config, self._run.config))
        if theirs != ours or (ours and not self._has_same_data):
            examples = " of other examples" if theirs == ours else ""
            raise ValueError(
                f"{self._label} has data.standardize={theirs}{examples}, and this run"
                f" {ours}; its last weights can score only features of the same scale. Scale the"
                " features before both runs, and set standardize=False in both."
            )

    @property
    def _has_same_data(self) -> bool:
        return provenance.data_key(self.saved.dataset) == provenance.data_key(self._run.description)

    def _stored_splits(self, split: str) -> list[tuple[str, str]]:
        """The sets and stored splits of their training examples and of our split."""
        theirs, ours = (c["data"] for c in (self.saved.config, self._run.config))
        return [
            (data["name"], split_spec.stored_split(data, name))
            for data, name in ((theirs, "train"), (ours, split))
        ]

    @property
    def _label(self) -> str:
        return f"config.prioritization.target {self._name!r}"

    @property
    def description(self) -> dict[str, str]:
        """What results.json says of the target."""
        return {"workdir": self._name, "digest": provenance.digest(self.saved.results)}

    @functools.cached_property
    def _training_ids(self) -> Int[np.ndarray, "m"]:
        if self._has_same_data:
            return self._run.dataset.splits["train"].ids
        return pipelines.training_ids(self.saved.config, self._data_dir)

    def _seen(self, split: str) -> Int[np.ndarray, "m"]:
        """Ids of the examples of our split that the target was trained on."""
        theirs, ours = self._stored_splits(split)
        if theirs != ours:  # ids are positions in a stored split
            return np.empty(0, np.int32)
        return np.intersect1d(self._training_ids, self._run.dataset.splits[split].ids)

    def _check_held_out(self) -> None:
        allowed = {"train"}
        if self._run.config["prioritization"]["scores"] != "target_final":
            # The examples of a holdout loss may be those of validation.
            validation = self._run.config["validation"]
            allowed.add(validation["split"] if validation else "valid")
        remedy = "give both runs the same config.data (seed, validation_fraction, splits)"
        if self._run.target_scores_are_read:
            remedy = "train the target on other examples"
        for split in self._run.dataset.splits:
            if split not in allowed and len(ids := self._seen(split)):
                raise ValueError(
                    f"{self._label} was trained on {len(ids):,} examples of this run's split"
                    f" {split!r}, such as id {ids[0]}, which its scores would leak; {remedy}."
                )

    def log_shared(self) -> None:
        """Logs how many training examples `excess` shares with its target, if any."""
        if self._run.target_scores_are_read and (number := len(self._seen("train"))):
            hosts.log(
                f"{self._label} was trained on {number:,} of the"
                f" {len(self._run.dataset.splits['train'].ids):,} training examples of this run;"
                " the reducible holdout loss requires a target of other examples."
            )

    def _check_files(self) -> None:
        their_data, our_data = self._stored_splits("train")
        if their_data != our_data:
            raise ValueError(
                f"{self._label} was trained on split {their_data[1]!r} of {their_data[0]!r}, but"
                f" this run is trained on {our_data[1]!r} of {our_data[0]!r}; its scores are of its"
                " own examples, so give both runs the same config.data."
            )
        their_score, our_score = (
            (c.get("score") or {}).get("name") for c in (self.saved.config, self._run.config)
        )
        if our_score is not None and their_score not in (None, our_score):
            raise ValueError(
                f"{self._label} recorded the score {their_score!r}, but config.score.name is"
                f" {our_score!r}; give both runs the same config.score."
            )
        folder = self.saved.directory / "scores"
        recorded = {p.stem for p in folder.glob("*.npz")}
        theirs, ours = (c["training"]["num_epochs"] for c in (self.saved.config, self._run.config))
        if recorded and theirs != ours:
            raise ValueError(
                f"{self._label} has {theirs:g} epochs, but this run has {ours:g}; scores of an"
                " epoch choose for the epoch of the same number, so give both runs the same"
                " config.training.num_epochs."
            )
        needed = int(np.ceil(ours))
        missing = [epoch for epoch in range(needed) if str(epoch) not in recorded]
        if missing:
            has = f"those of {len(recorded)} epochs" if recorded else "none"
            raise ValueError(
                f"{self._label} lacks the scores of epoch {missing[0]} of the {needed} epochs of"
                f" this run (it has {has}); train it with config.prioritization.record=True."
            )
        self.scores(0)

    def scores(self, epoch: int) -> Float[np.ndarray, "n"]:
        """The scores that the target saved of an epoch, in the order of our rows.

        Raises:
          ValueError: the file is damaged or of another run, its examples are not ours, or a score
            is not finite.
        """
        path = self.saved.directory / "scores" / f"{epoch}.npz"
        remedy = "train the target again"
        try:
            arrays = files.read_arrays(path)
        except Exception as error:  # zip, zlib or numpy, whichever meets the damage first
            raise ValueError(f"{path} cannot be read ({error}); {remedy}.") from None
        stamp = {name: str(arrays.pop(name, "")) for name in ("owner", "digest")}
        owner = self.saved.results.get("owner", stamp["owner"])
        expected = provenance.stamped_arrays(path.stem, arrays, owner)
        if stamp != {name: str(expected[name]) for name in stamp}:
            raise ValueError(f"{path} was changed, or belongs to another run; {remedy}.")
        order = np.argsort(arrays["ids"])
        ids = self._run.dataset.splits["train"].ids
        theirs, ours = arrays["ids"][order], np.sort(ids)
        if not np.array_equal(theirs, ours):
            differing = np.setxor1d(theirs, ours)
            raise ValueError(
                f"{self._label} was trained on other examples: {len(differing):,} ids differ, such"
                f" as {differing[0]}. Give both runs the same config.data (seed,"
                " validation_fraction, splits) and config.curation."
            )
        scores = arrays["scores"][order][np.searchsorted(theirs, ids)]
        self.check_finite(scores, f"in {path}")
        return scores

    def check_finite(self, scores: Float[np.ndarray, "n"], where: str) -> None:
        """Raises a ValueError with ids where a score of the target is not finite."""
        if examples := _not_finite(self._run, scores):
            raise ValueError(
                f"{self._label}: the target's score of the training examples {examples} is not"
                f" finite {where}; train the target again, with a lower learning rate."
            )

    def loaded(self) -> LoadedRun:
        """The target with its last weights and our examples and score, on one device."""
        target = loaded_run.with_pipeline(self.saved, self._run.pipeline)
        parts = target.run.parts._replace(score=self._run.parts.score)
        return dataclasses.replace(target, run=dataclasses.replace(target.run, parts=parts))


def target_of(run: Run, data_dir: str | None = None) -> Target | None:
    """The target of a run, checked; None if it has none."""
    return Target(run, data_dir) if run.config.get("prioritization", {}).get("target") else None


def check_same_target(target: Target | None, metadata: dict[str, Any]) -> None:
    """Raises a ValueError where a run resumes with another target than it began with."""
    if target is None or metadata["target"]["digest"] == target.description["digest"]:
        return
    raise ValueError(
        f"config.prioritization.target {target.description['workdir']!r} was trained again since"
        " this run began; give another --workdir to start with the new target."
    )


def on_host(scores: Scores) -> Scores:
    """The scores in numpy."""
    return jax.tree.map(np.asarray, jax.device_get(scores))
