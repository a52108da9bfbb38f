"""A slice of Cloud TPU, managed with gcloud directly or through queued resources."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from launch.accelerators import Kind
from launch.command import CommandResult, LaunchError, Shell, UnknownError

_MAX_ATTEMPTS = 20  # to reach a cloud that was reachable before
# Messages of gcloud in lower case.
_NO_CAPACITY = ("no more capacity", "not enough resources", "insufficient capacity")


class _Form(NamedTuple):
    """Names that differ between direct creation and queued resources."""

    group: str  # group of gcloud commands
    state: str  # field of the description
    ready: str
    final: frozenset[str]  # states after which the slice must be deleted and created again
    version: str  # flag of the host software
    delete: tuple[str, ...]  # further flags of deletion


# https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes; a preempted slice
# does not resume.
_DIRECT = _Form(
    "tpu-vm",
    "state",
    "READY",
    frozenset(("PREEMPTED", "TERMINATED", "STOPPED", "HIDDEN", "UNKNOWN")),
    "--version",
    (),
)
# https://cloud.google.com/tpu/docs/queued-resources; preemption suspends the request.
_QUEUED = _Form(
    "queued-resources",
    "state.state",
    "ACTIVE",
    frozenset(("FAILED", "SUSPENDED")),
    "--runtime-version",
    ("--force",),
)


class Slice:
    """A slice by its name, which may not exist."""

    def __init__(
        self,
        shell: Shell,
        name: str,
        zone: str,
        *,
        project: str | None,
        queued: bool,
        poll: float,
        exists: bool = False,
    ):
        """Stores the settings; runs no command.

        Args:
          shell: runs the commands.
          name: name of the slice and of its queued resource.
          zone: zone of the slice.
          project: project of the slice; defaults to gcloud's project.
          queued: whether to request the slice as a queued resource.
          poll: seconds between two queries of the state.
          exists: whether a dry run, which queries no state, takes the slice for an existing one.
        """
        self.shell, self.name, self.poll = shell, name, poll
        self._where = [f"--zone={zone}", *([f"--project={project}"] if project else []), "--quiet"]
        self._form = _QUEUED if queued else _DIRECT
        absent, ready = CommandResult(1, errors="NOT_FOUND"), CommandResult(0, self._form.ready)
        self._dry_run_state, self._max_attempts = ready if exists else absent, 1

    def _words(self, verb: str, *more: str, group: str | None = None) -> list[str]:
        return ["gcloud", "compute", "tpus", group or self._form.group, verb, *more, *self._where]

    def state(self) -> str | None:
        """The state reported by gcloud; None if the slice does not exist.

        Raises:
          UnknownError: gcloud failed; after a first success, twenty times in a row.
        """
        words = self._words("describe", self.name, f"--format=value({self._form.state})")
        for attempts_left in reversed(range(self._max_attempts)):
            result = self.shell.capture(words, dry_run_result=self._dry_run_state)
            is_absent = "NOT_FOUND" in result.errors or "not found" in result.errors
            if result.code == 0 or is_absent:
                # Later failures may be a temporary loss of the network.
                self._max_attempts = _MAX_ATTEMPTS
                return None if is_absent else result.output.strip()
            message = f"gcloud cannot describe {self.name}: {result.errors.strip()}"
            if attempts_left:
                self.shell.log(message)
                time.sleep(self.poll)
        raise UnknownError(message)

    def is_ready(self) -> bool:
        """Whether the slice is ready for commands."""
        return self.state() == self._form.ready

    def acquire(self, accelerator: str, kind: Kind, spot: bool, hours: float) -> None:
        """Returns once the slice is ready; creates it if it is missing or preempted.

        Raises:
          LaunchError: the slice cannot be created, or there was no capacity for `hours`; nothing of
            it remains.
        """
        deadline, created = time.monotonic() + hours * 3600, False
        while (state := self.state()) != self._form.ready:
            if state is None:
                result = self._create(accelerator, kind, spot, hours)
                created = True
                if result.code:
                    self.remove()  # a failed creation may leave a slice
                    if not any(words in result.errors.lower() for words in _NO_CAPACITY):
                        raise LaunchError(
                            f"{self.name} could not be created and does not exist:"
                            f" {result.errors.strip()}"
                        )
                    self.shell.log(
                        f"there is no capacity for {accelerator} now: {result.errors.strip()}"
                    )
                elif self._form is _DIRECT:
                    continue  # gcloud has waited for the slice
            elif state == "FAILED" and created:
                self.remove()
                raise LaunchError(
                    f"the queued resource {self.name} failed and was deleted; check the quota and"
                    " the accelerator type."
                )
            elif state in self._form.final:
                self.shell.log(f"{self.name} is {state}; it is deleted and created again.")
                self._delete()
                continue
            if time.monotonic() > deadline:
                self.remove()
                raise LaunchError(
                    f"no {accelerator} was available for {hours:g} hours; the request was deleted."
                )
            if not self.shell.dry_run:
                time.sleep(self.poll)

    def _create(self, accelerator: str, kind: Kind, spot: bool, hours: float) -> CommandResult:
        queue = []
        if self._form is _QUEUED:
            # The request expires, in case this launcher no longer runs.
            queue = [f"--node-id={self.name}", f"--valid-until-duration={max(1, round(hours))}h"]
        more = [
            f"--accelerator-type={accelerator}",
            f"{self._form.version}={kind.version}",
            *(["--spot"] * spot),
        ]
        self._dry_run_state = CommandResult(0, self._form.ready)
        self.shell.log(f"creating {self.name} ({accelerator})")
        return self.shell.capture(self._words("create", self.name, *queue, *more))

    @property
    def where(self) -> str:
        """The kind of resource and its place, as gcloud names them."""
        return " ".join([self._form.group, *self._where[:-1]])

    def remove(self) -> bool:
        """Deletes the slice if it exists, and says whether it did.

        Raises:
          LaunchError: the slice could not be deleted and continues to cost money.
        """
        if self.state() is None:
            return False
        self._delete()
        return True

    def _delete(self) -> None:
        words = self._words("delete", self.name, *self._form.delete)
        result = self.shell.capture(words)
        if result.code:
            raise LaunchError(
                f"{self.name} could not be deleted and may continue to cost money; delete it:"
                f" {' '.join(words)}\n"
                f"gcloud reported: {result.errors.strip()}"
            )
        self.shell.log(f"{self.name} is deleted.")

    def is_lost(self, num_queries: int = 6) -> bool:
        """Whether the slice stops being ready within some queries of its state.

        The hosts of a preempted slice are lost before gcloud reports the preemption.
        """
        for query in range(num_queries):
            if not self.is_ready():
                return True
            time.sleep(self.poll if query < num_queries - 1 else 0)
        return False

    def ssh(self, worker: str, command: str) -> Sequence[str]:
        """The command that runs a shell command on a host, or on "all" hosts."""
        # A deleted slice does not close its connections, so they end after two minutes without an
        # answer.
        keep_alive = ["--ssh-flag=-oServerAliveInterval=30", "--ssh-flag=-oServerAliveCountMax=4"]
        return self._words(
            "ssh",
            self.name,
            f"--worker={worker}",
            f"--command={command}",
            *keep_alive,
            group="tpu-vm",
        )

    def scp(self, path: str, target: str) -> Sequence[str]:
        """The command that copies a file to every host."""
        return self._words("scp", path, f"{self.name}:{target}", "--worker=all", group="tpu-vm")
