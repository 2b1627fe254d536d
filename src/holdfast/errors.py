"""Every error that holdfast raises, by the party that must act.

    HoldfastError
    ├── UsageError (ValueError)           the caller must change the call
    ├── TimeoutExpired (TimeoutError)     a deadline passed; .waiting_for says for what
    │   ├── RendezvousTimedOut            no round came; the message names the nodes there
    │   ├── StoreBusy                     another process holds the store up; the message names it
    │   └── CallTimedOut (RuntimeError)   a call was not answered in time; .deadline_of
    ├── Unavailable (ConnectionError)     the environment failed; retrying may help
    │   ├── StoreUnavailable              .maybe_applied: whether a write may have happened
    │   │   ├── StoreFull                 it takes no more writes until room is made in it
    │   │   └── RendezvousLost            the store of the run is lost, and the run with it
    │   ├── LeaseLost                     the lease expired or was revoked: take a new one
    │   ├── RendezvousClosed              the run is over for every node
    │   │   └── RunOver                   it was so before this node came
    │   ├── PeerLost (RuntimeError)       a worker is gone; .peer .incarnation
    │   ├── Overloaded (RuntimeError)     too much is under way: wait for some of it
    │   └── WorkersStuck                  processes that even SIGKILL did not end; .pids
    ├── Refused (PermissionError)         authentication or permission
    │   └── Fenced                        a guard has changed: what you belonged to is over
    ├── PeerViolation                     the other side broke the protocol
    ├── RemoteError (RuntimeError)        the other side raised; .type_name .traceback_text .worker
    ├── CallCancelled (RuntimeError)      the caller that waited for it has given it up
    ├── ReferenceFailed (RuntimeError)    a remote reference has no value, and will have none
    ├── WorkersFailed                     the job's own code failed; .failures, the cause first
    ├── Stopped                           a user stopped the job; .by
    ├── Signalled                         this process was told to end; .signal
    └── InternalError                     a bug in holdfast; please report it

The names in brackets are builtins that the error also is, so that `except TimeoutError` works.

Errors carry fields, and no code ever parses their text. An error of connecting says at which
`Step` it failed and which address was tried, because "connection failed" alone costs people hours.
All fields have defaults, so that every error survives pickling.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

__all__ = [
    "CallCancelled",
    "CallTimedOut",
    "Fenced",
    "HoldfastError",
    "InternalError",
    "LeaseLost",
    "Overloaded",
    "PeerLost",
    "PeerViolation",
    "ReferenceFailed",
    "Refused",
    "RemoteError",
    "RendezvousClosed",
    "RendezvousLost",
    "RendezvousTimedOut",
    "RunOver",
    "Signalled",
    "Step",
    "Stopped",
    "StoreBusy",
    "StoreFull",
    "StoreUnavailable",
    "TimeoutExpired",
    "Unavailable",
    "UsageError",
    "WorkerExit",
    "WorkerFailure",
    "WorkersFailed",
    "WorkersStuck",
    "exit_code",
]


class Step(StrEnum):
    """The steps of connecting, in the order in which they are taken."""

    RESOLVE = "name resolution"
    TCP = "TCP connection"
    HANDSHAKE = "handshake"
    VERSION = "protocol version"
    SECRET = "secret"


class HoldfastError(Exception):
    """The base of every error that holdfast raises on purpose."""


class UsageError(HoldfastError, ValueError):
    """The call is wrong; the message names the value, the place and what is allowed."""


class TimeoutExpired(HoldfastError, TimeoutError):
    """A deadline passed.

    `waiting_for` names what did not come. `maybe_applied` is true for a write whose
    request had left before the deadline: it may still take effect.
    """

    def __init__(
        self, message: str, *, waiting_for: tuple[str, ...] = (), maybe_applied: bool = False
    ) -> None:
        super().__init__(message)
        self.waiting_for = waiting_for
        self.maybe_applied = maybe_applied


class StoreBusy(TimeoutExpired):
    """Another process of this host holds the store's lock, and did not release it in time."""


class RendezvousTimedOut(TimeoutExpired):
    """No round came in time; the message says which nodes were there and which missing."""


class CallTimedOut(TimeoutExpired, RuntimeError):
    """A call was not answered in time; it may have run, or run still.

    `deadline_of` is the worker whose call set the deadline: a call that is made within another one
    inherits what is left of its time. It is empty if the call's own limit has passed.
    """

    def __init__(
        self,
        message: str,
        *,
        waiting_for: tuple[str, ...] = (),
        maybe_applied: bool = False,
        deadline_of: str = "",
    ) -> None:
        super().__init__(message, waiting_for=waiting_for, maybe_applied=maybe_applied)
        self.deadline_of = deadline_of


class Unavailable(HoldfastError, ConnectionError):
    """The environment failed; retrying may help."""

    def __init__(self, message: str, *, step: Step | None = None, address: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.address = address


class StoreUnavailable(Unavailable):
    """The store cannot be reached, or lost its state.

    `maybe_applied` is true for a write whose request had left: it may have taken effect.
    """

    def __init__(
        self,
        message: str,
        *,
        step: Step | None = None,
        address: str = "",
        maybe_applied: bool = False,
    ) -> None:
        super().__init__(message, step=step, address=address)
        self.maybe_applied = maybe_applied


class StoreFull(StoreUnavailable):
    """The store takes no more writes until room is made in it; retrying does not help."""


class LeaseLost(Unavailable):
    """The lease expired or was revoked; its keys are gone. Take a new lease."""


class RendezvousLost(StoreUnavailable):
    """The store of the run cannot be used any more; the run is lost to this node."""


class RendezvousClosed(Unavailable):
    """The run is over for every node; the message says why, `failed` whether its job failed."""

    def __init__(
        self, message: str, *, step: Step | None = None, address: str = "", failed: bool = False
    ) -> None:
        super().__init__(message, step=step, address=address)
        self.failed = failed


class RunOver(RendezvousClosed):
    """The run had ended before this node came: a run ends once, and a new job needs a new name."""


class WorkersStuck(Unavailable):
    """Processes did not end even by SIGKILL, and were left behind; `pids` are theirs."""

    def __init__(
        self,
        message: str,
        *,
        step: Step | None = None,
        address: str = "",
        pids: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message, step=step, address=address)
        self.pids = pids


class PeerLost(Unavailable, RuntimeError):
    """A worker is gone: its process ended, or it has been silent for too long.

    `incarnation` tells this life of the worker from a later one under the same name.
    """

    def __init__(self, message: str, *, peer: str = "", incarnation: str = "") -> None:
        super().__init__(message)
        self.peer = peer
        self.incarnation = incarnation

    def anew(self) -> PeerLost:
        """Return another one that says the same, for each caller that is told.

        An error keeps all that it passes on its way up, for as long as the error is kept.
        """
        return PeerLost(str(self), peer=self.peer, incarnation=self.incarnation)


class Overloaded(Unavailable, RuntimeError):
    """More is under way to a worker than is allowed at once. Nothing was sent."""


class Refused(HoldfastError, PermissionError):
    """Authentication or permission failed; retrying the same will not help."""

    def __init__(self, message: str, *, step: Step | None = None, address: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.address = address


class Fenced(Refused):
    """A guarded write came too late: the key that guards it has changed. Nothing was written."""


class PeerViolation(HoldfastError):
    """The other side broke the protocol, or does not speak it."""

    def __init__(self, message: str, *, step: Step | None = None, address: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.address = address


class WorkerExit(Protocol):
    """How a worker's process ended, as `WorkersFailed` tells it."""

    @property
    def code(self) -> int:
        """Its exit code, or minus the number of the signal that killed it."""
        ...

    @property
    def shell_code(self) -> int:
        """The code that a shell would give: the process's own, or 128 + the signal."""
        ...


class WorkerFailure(Protocol):
    """What `WorkersFailed` says of each worker; what the fields mean is told at `Failure`."""

    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def exit(self) -> WorkerExit: ...
    @property
    def at(self) -> float: ...
    @property
    def message(self) -> str: ...
    @property
    def traceback(self) -> str: ...
    @property
    def stack(self) -> str: ...
    @property
    def hint(self) -> str: ...
    @property
    def error_file(self) -> str: ...
    @property
    def error_data(self) -> dict[str, Any] | None: ...
    @property
    def repeated(self) -> int: ...


class RemoteError(HoldfastError, RuntimeError):
    """What a call raised over there, where its own type cannot be made again here."""

    def __init__(
        self,
        message: str,
        *,
        type_name: str = "",
        traceback_text: str = "",
        worker: str = "",
    ) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback_text = traceback_text
        self.worker = worker


class CallCancelled(HoldfastError, RuntimeError):
    """A future was cancelled; the call that it stood for may have run, or run still."""


class ReferenceFailed(HoldfastError, RuntimeError):
    """A remote reference whose creation failed, whose owner is gone, or that was deleted."""


class WorkersFailed(HoldfastError):
    """Workers failed, and the budget of restarts is spent; the message is the whole report.

    `name` is the entry point. `failures` are those of the last attempt on every node, the first
    cause first.
    """

    def __init__(
        self, message: str, *, name: str = "", failures: tuple[WorkerFailure, ...] = ()
    ) -> None:
        super().__init__(message)
        self.name = name
        self.failures = failures

    @property
    def exit_code(self) -> int:
        """The first cause's code, as a shell would give it; never 0, since the job failed.

        SAME_FAILURE if the job was given up since the same failure came again and again.
        """
        if self.failures and self.failures[0].repeated:
            return SAME_FAILURE
        return (self.failures[0].exit.shell_code if self.failures else 0) or 1


class Signalled(HoldfastError):
    """This process was told by a signal to end, and has ended its part of the job."""

    def __init__(self, message: str, *, signal: int = 0) -> None:
        super().__init__(message)
        self.signal = signal

    @property
    def exit_code(self) -> int:
        """The code that a shell would give for the signal."""
        return 128 + self.signal


class Stopped(HoldfastError):
    """A user stopped the whole job, by `holdfast stop`; `by` says which user."""

    def __init__(self, message: str, *, by: str = "") -> None:
        super().__init__(message)
        self.by = by


class InternalError(HoldfastError):
    """A bug in holdfast."""


BUG = 70
SAME_FAILURE = 80
CODES: tuple[tuple[type[HoldfastError], int], ...] = (
    (UsageError, 2),
    (RunOver, 2),
    (TimeoutExpired, 75),
    (Unavailable, 69),
    (PeerViolation, 76),
    (Refused, 77),
    (Stopped, 79),
)


def exit_code(error: HoldfastError) -> int:
    """Return what the command line exits with for an error; `cli/exits.py` says what it means."""
    if isinstance(error, (WorkersFailed, Signalled)):
        return error.exit_code
    return next((code for kind, code in CODES if isinstance(error, kind)), BUG)
