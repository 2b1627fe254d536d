"""Every error that holdfast raises, by who must act.

    HoldfastError
    ├── UsageError (ValueError)           the caller must change the call
    ├── TimeoutExpired (TimeoutError)     a deadline passed; .waiting_for says for what
    ├── Unavailable (ConnectionError)     the environment failed; retrying may help
    │   ├── StoreUnavailable              .maybe_applied: whether a write may have happened
    │   └── LeaseLost                     the lease expired or was revoked: take a new one
    ├── Refused (PermissionError)         authentication or permission
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
    "HoldfastError",
    "InternalError",
    "LeaseLost",
    "PeerViolation",
    "Refused",
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


class Refused(HoldfastError, PermissionError):
    """Authentication or permission failed; retrying the same will not help."""

    def __init__(self, message: str, *, step: Step | None = None, address: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.address = address


class PeerViolation(HoldfastError):
    """The other side broke the protocol, or does not speak it."""

    def __init__(self, message: str, *, step: Step | None = None, address: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.address = address


class InternalError(HoldfastError):
    """A bug in holdfast."""
