"""A slice of Cloud TPU: found, created, asked and deleted with gcloud, at once or by way of the
queue.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from launch.accelerators import Kind
from launch.command import Done, LaunchError, Shell, UnknownError

_LOOKS = 20  # before a cloud that could be reached before is given up
_NO_CAPACITY = (
    "no more capacity",
    "not enough resources",
    "insufficient capacity",
)  # as gcloud says it, in lower case


class _Form(NamedTuple):
    """What the two ways of having a slice call the same things."""

    group: str  # of gcloud's commands
    state: str  # field of what is described
    ready: str
    ended: frozenset[str]  # states that lead nowhere; it must be deleted, and made again
    version: str  # flag for the software of the hosts
    delete: tuple[str, ...]


# https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes; a preempted slice
# does not come back.
_AT_ONCE = _Form(
    "tpu-vm",
    "state",
    "READY",
    frozenset(("PREEMPTED", "TERMINATED", "STOPPED", "HIDDEN", "UNKNOWN")),
    "--version",
    (),
)
# https://cloud.google.com/tpu/docs/queued-resources; it is suspended once its slice is preempted.
_QUEUED = _Form(
    "queued-resources",
    "state.state",
    "ACTIVE",
    frozenset(("FAILED", "SUSPENDED")),
    "--runtime-version",
    ("--force",),
)


class Slice:
    """One slice by its name, whether it is there or not."""

    def __init__(
        self, shell: Shell, name: str, zone: str, *, project: str | None, queued: bool, poll: float
    ):
        """Looks at nothing yet.

        Args:
          shell: that runs the commands.
          name: of the slice, and of the request in the queue.
          zone: where it is.
          project: whose it is; gcloud's own if not given.
          queued: whether it is asked for by way of the queue.
          poll: seconds between two looks.
        """
        self.shell, self.name, self.poll = shell, name, poll
        self._where = [f"--zone={zone}", *([f"--project={project}"] if project else []), "--quiet"]
        self._form = _QUEUED if queued else _AT_ONCE
        self._assumed, self._looks = Done(1, errors="NOT_FOUND"), 1

    def _words(self, verb: str, *more: str, group: str | None = None) -> list[str]:
        return ["gcloud", "compute", "tpus", group or self._form.group, verb, *more, *self._where]

    def state(self) -> str | None:
        """As gcloud says it; None if there is no such slice.

        Raises:
          UnknownError: gcloud cannot tell; where it once could, not for twenty looks.
        """
        words = self._words("describe", self.name, f"--format=value({self._form.state})")
        for left in reversed(range(self._looks)):
            done = self.shell.ask(words, assumed=self._assumed)
            is_absent = "NOT_FOUND" in done.errors or "not found" in done.errors
            if done.code == 0 or is_absent:
                self._looks = (
                    _LOOKS  # from now on it may be this machine that is cut off for a while
                )
                return None if is_absent else done.output.strip()
            told = f"gcloud cannot tell whether {self.name} is there: {done.errors.strip()}"
            if left:
                self.shell.say(told)
                time.sleep(self.poll)
        raise UnknownError(told)

    def is_ready(self) -> bool:
        """Whether it can be worked on."""
        return self.state() == self._form.ready

    def acquire(self, accelerator: str, kind: Kind, spot: bool, hours: float) -> None:
        """Returns once the slice is ready: as it is, or created, also in place of one that was
        preempted.

        Raises:
          LaunchError: it cannot be created, or there was no room for so many hours; nothing is left
            of it.
        """
        deadline, created = time.monotonic() + hours * 3600, False
        while (state := self.state()) != self._form.ready:
            if state is None:
                done = self._create(accelerator, kind, spot, hours)
                created = True
                if done.code:
                    self.remove()  # what a failed creation may leave
                    if not any(words in done.errors.lower() for words in _NO_CAPACITY):
                        raise LaunchError(
                            f"{self.name} could not be created, and is not there:"
                            f" {done.errors.strip()}"
                        )
                    self.shell.say(f"there is no room for {accelerator} now: {done.errors.strip()}")
                elif self._form is _AT_ONCE:
                    continue  # gcloud has waited for it
            elif state == "FAILED" and created:
                self.remove()
                raise LaunchError(
                    f"the request {self.name} failed in the queue and was deleted; see quota and"
                    " type."
                )
            elif state in self._form.ended:
                self.shell.say(f"{self.name} is {state}, so it is deleted and made again.")
                self._delete()
                continue
            if time.monotonic() > deadline:
                self.remove()
                raise LaunchError(
                    f"there was no {accelerator} for {hours:g} hours; nothing is left of the"
                    " request."
                )
            time.sleep(self.poll)

    def _create(self, accelerator: str, kind: Kind, spot: bool, hours: float) -> Done:
        queue = []
        if self._form is _QUEUED:
            # The request ends by itself, should nobody be there to look after what it brings.
            queue = [f"--node-id={self.name}", f"--valid-until-duration={max(1, round(hours))}h"]
        more = [
            f"--accelerator-type={accelerator}",
            f"{self._form.version}={kind.version}",
            *(["--spot"] * spot),
        ]
        self._assumed = Done(0, self._form.ready)
        self.shell.say(f"creating {self.name} ({accelerator})")
        return self.shell.ask(self._words("create", self.name, *queue, *more))

    def remove(self) -> None:
        """Deletes whatever is there of it.

        Raises:
          LaunchError: it could not be deleted, and so costs on.
        """
        if self.state() is not None:
            self._delete()

    def _delete(self) -> None:
        words = self._words("delete", self.name, *self._form.delete)
        done = self.shell.ask(words)
        if done.code:
            raise LaunchError(
                f"{self.name} could not be deleted and may go on costing money; delete it:"
                f" {' '.join(words)}\n"
                f"gcloud said: {done.errors.strip()}"
            )
        self.shell.say(f"{self.name} is deleted.")

    def leaves(self, looks: int = 6) -> bool:
        """Whether it stops being ready within some looks: hosts of a preempted slice are lost
        before it is told.
        """
        for look in range(looks):
            if not self.is_ready():
                return True
            time.sleep(self.poll if look < looks - 1 else 0)
        return False

    def ssh(self, worker: str, command: str) -> Sequence[str]:
        """The words that run a command on a host, or on "all" of them."""
        # A slice that is gone does not end its connections; without an answer for two minutes they
        # are ended here.
        alive = ["--ssh-flag=-oServerAliveInterval=30", "--ssh-flag=-oServerAliveCountMax=4"]
        return self._words(
            "ssh", self.name, f"--worker={worker}", f"--command={command}", *alive, group="tpu-vm"
        )

    def scp(self, path: str, to: str) -> Sequence[str]:
        """The words that copy a file to every host."""
        return self._words("scp", path, f"{self.name}:{to}", "--worker=all", group="tpu-vm")
