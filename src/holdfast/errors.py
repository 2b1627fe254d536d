"""Every error that holdfast raises, by who must act.

    HoldfastError
    ├── UsageError (ValueError)           the caller must change the call
    ├── TimeoutExpired (TimeoutError)     a deadline passed; .waiting_for says for what
    │   └── RendezvousTimedOut            no round came; the message says who was there
    ├── Unavailable (ConnectionError)     the environment failed; retrying may help
    │   ├── StoreUnavailable              .maybe_applied: whether a write may have happened
    │   │   └── RendezvousLost            the store of the run is lost, and the run with it
    │   ├── LeaseLost                     the lease expired or was revoked: take a new one
    │   └── RendezvousClosed              the run is over for every node
    ├── Refused (PermissionError)         authentication or permission
    │   └── Fenced                        a guard has changed: what you belonged to is over
    ├── PeerViolation                     the other side broke the protocol
    └── InternalError                     a bug in holdfast; please report it

The names in brackets are builtins that the error also is, so that `except TimeoutError` works.

Errors carry fields, and no code ever parses their text. An error of connecting says at which
`Step` it failed and which address was tried, because "connection failed" alone costs people hours.
All fields have defaults, so that every error survives pickling.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "Fenced",
    "HoldfastError",
    "InternalError",
    "LeaseLost",
    "PeerViolation",
    "Refused",
    "RendezvousClosed",
    "RendezvousLost",
    "RendezvousTimedOut",
    "Step",
    "StoreUnavailable",
    "TimeoutExpired",
    "Unavailable",
    "UsageError",
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


class RendezvousTimedOut(TimeoutExpired):
    """No round came in time; the message says who was there and who was missing."""


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


class LeaseLost(Unavailable):
    """The lease expired or was revoked; its keys are gone. Take a new lease."""


class RendezvousLost(StoreUnavailable):
    """The store of the run cannot be used any more; the run is lost to this node."""


class RendezvousClosed(Unavailable):
    """The run is over for every node; the message says why."""


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


class InternalError(HoldfastError):
    """A bug in holdfast."""
