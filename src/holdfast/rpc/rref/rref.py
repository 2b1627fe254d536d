"""Remote references as their users see them.

An `RRef` refers to a value that lives at its owner. It can be passed to calls, returned by them,
and kept for any length of time: the value lives as long as any worker holds a reference to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar, cast

from holdfast.errors import CallTimedOut, ReferenceFailed, UsageError
from holdfast.rpc.client.future import ASYNC_MARK, Future, expected
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.rref.current_table import current_table
from holdfast.rpc.values.funcref import named_by
from holdfast.rpc.values.references import receiver, sender
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number, Ticket
from holdfast.rpc.wire.worker_info import WorkerInfo

if TYPE_CHECKING:
    from holdfast.rpc.client.calls import Backoff
    from holdfast.rpc.rref.table import RRefTable

__all__ = ["CallingAgent", "Calls", "RRef", "call_method", "make_rref", "short"]

T = TypeVar("T")
R = TypeVar("R")
Calls: TypeAlias = Callable[
    [WorkerInfo, Callable[..., Any], Sequence[Any], None, float | None, RetryPolicy | None], R
]
"""Makes calls to other workers: a method of an agent."""


class CallingAgent(Protocol):
    """The agent whose references a table counts."""

    @property
    def call(self) -> Calls[Any]: ...
    @property
    def call_async(self) -> Calls[Future[Any]]: ...
    @property
    def remote(self) -> Calls[RRef[Any]]: ...

    def request(
        self,
        to: str,
        kind: Kind,
        value: Any,
        timeout: float | None,
        retries: Backoff | None = None,
    ) -> Future[Any]:
        """Send a request of a kind to an incarnation; return the future of its reply."""
        ...

    def deadline(self, timeout: float | None) -> tuple[float, int, str]:
        """Return a call's deadline, the milliseconds left, and the caller it is inherited from."""
        ...

    def knows(self, incarnation: str) -> bool:
        """Return whether this incarnation of a worker is alive, or may be."""
        ...

    def worker_name(self, incarnation: str) -> str:
        """Return the worker of this incarnation; the incarnation itself if that is not known."""
        ...


class RRef(Generic[T]):
    """A reference to a value that lives at another worker, or here.

    `RRef(value)` refers to a value of the current agent. `remote()` returns a reference to the
    result of a call, which stays at the callee. Dropping the last reference frees the value.
    """

    def __init__(self, value: T) -> None:
        rrefs = current_table()
        number = rrefs.own(value)
        self._set_fields(rrefs, number, rrefs.me, rrefs.incarnation, None)

    def _set_fields(
        self,
        rrefs: RRefTable,
        reference: Number,
        owner: WorkerInfo,
        incarnation: str,
        fork: Number | None,
        creation: Future[Any] | None = None,
    ) -> None:
        self._rrefs = rrefs
        self._reference = reference
        self._owner = owner
        self._incarnation = incarnation
        self._fork = fork
        self._creation = creation
        # Not __del__: the garbage collector may run it anywhere, also while our locks are held.
        self._end = weakref.finalize(self, rrefs.dropped, reference, fork)
        self._end.atexit = False

    # Its owner.

    def owner(self) -> WorkerInfo:
        """Return the worker at which the value lives."""
        return self._owner

    def owner_name(self) -> str:
        """Return the owner's name."""
        return self._owner.name

    def is_owner(self) -> bool:
        """Say whether the value lives here."""
        return self._incarnation == self._rrefs.incarnation

    def confirmed_by_owner(self) -> bool:
        """Say whether the owner is known to count this reference."""
        return self._fork is None or self._rrefs.is_confirmed(self._fork)

    # Its value.

    def to_here(self, timeout: float | None = None) -> T:
        """Return a copy of the value; if it lives here, the value itself.

        Blocks until the value has been created. Raises what its creation raised.
        """
        self._check()
        return self._fetch(timeout)

    def local_value(self) -> T:
        """Return the value, which must live here."""
        return self._local(None)

    def _local(self, timeout: float | None) -> T:
        if not self.is_owner():
            raise UsageError(
                f"local_value of {self}: the value lives at {self._owner}; use to_here"
            )
        return self._fetch(timeout)

    def _fetch(self, timeout: float | None, kind: Kind = Kind.PYTHON_RREF_FETCH_CALL) -> T:
        value: T = self._rrefs.fetch(
            self._reference, self._owner, self._incarnation, self._fork, timeout, kind
        )
        return value

    # Calls of its methods.

    def rpc_sync(self, timeout: float | None = None, retries: RetryPolicy | None = None) -> T:
        """Call methods of the value where it lives: `rref.rpc_sync().method(x)`.

        A type checker takes the proxy for the value. Only methods can be called on it.
        """
        return cast("T", _Proxy[Any](self, self._rrefs.agent.call, timeout, retries))

    def rpc_async(
        self, timeout: float | None = None, retries: RetryPolicy | None = None
    ) -> _Proxy[Future[Any]]:
        """Call methods of the value where it lives, and get futures."""
        return _Proxy(self, self._rrefs.agent.call_async, timeout, retries)

    def remote(
        self, timeout: float | None = None, retries: RetryPolicy | None = None
    ) -> _Proxy[RRef[Any]]:
        """Call methods of the value where it lives, and get references to what they return."""
        return _Proxy(self, self._rrefs.agent.remote, timeout, retries)

    def _get_future(self) -> Future[Any]:
        """Return the future of the creation."""
        if self._creation is None:
            raise UsageError(f"{self}: it was not created by remote()")
        return self._creation

    def _check(self) -> None:
        """Raise ReferenceFailed if the creation is known to have failed."""
        creation = self._creation
        error = None if creation is None or not creation.done() else creation.exception()
        if isinstance(error, CallTimedOut):
            raise ReferenceFailed(
                f"RRef creation via rpc.remote() at {self._owner} timed out, and it is possible "
                "that the value does not exist there"
            )
        if error is not None:
            raise ReferenceFailed(
                f"RRef creation via rpc.remote() failed at {self._owner}: {error}"
            )

    # Giving it to other workers.

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        self._check()
        rrefs, to, tickets, _ = sender(self)
        if rrefs is not self._rrefs:
            raise UsageError(f"{self}: it belongs to another agent of this process")
        ticket = rrefs.give(self._reference, self._fork, to)
        if ticket is None:
            raise ReferenceFailed(f"{self}: a reference to a value at {self._owner} that is gone")
        tickets.append(ticket)
        return _rebuild, (*ticket, self._owner)

    def __copy__(self) -> NoReturn:
        raise UsageError("an RRef cannot be copied; pass it on, or use to_here")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __repr__(self) -> str:
        return f"<RRef at {self._owner.name} {short(self._reference)}>"


def make_rref(
    rrefs: RRefTable,
    reference: Number,
    owner: WorkerInfo,
    incarnation: str,
    fork: Number | None,
    creation: Future[Any] | None = None,
) -> RRef[Any]:
    """Make a reference that a table counts already."""
    made: RRef[Any] = RRef.__new__(RRef)
    made._set_fields(rrefs, reference, owner, incarnation, fork, creation)
    return made


def short(reference: Number) -> str:
    """Return a reference's number in short, for messages."""
    return f"{reference.maker[:6]}.{reference.serial}"


def _rebuild(
    reference: Number, owner: str, fork: Number, parent: str, info: WorkerInfo
) -> RRef[Any]:
    ticket = Ticket(Number(*reference), owner, Number(*fork), parent)
    rrefs, is_answer = receiver()
    made: RRef[Any] = rrefs.take(ticket, info, is_answer)
    return made


class _Proxy(Generic[R]):
    """Calls methods of the value of a reference."""

    def __init__(
        self,
        rref: RRef[Any],
        make: Calls[R],
        timeout: float | None,
        retries: RetryPolicy | None,
    ) -> None:
        self._rref = rref
        self._make = make
        self._timeout = timeout
        self._retries = retries

    def __getattr__(self, name: str) -> Callable[..., R]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> R:
            rref = self._rref
            value = (rref, name, args, kwargs)
            return self._make(rref.owner(), call_method, value, None, self._timeout, self._retries)

        return call


@named_by(1)
def call_method(rref: RRef[Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a value of this worker, for a proxy at another worker."""
    method = getattr(rref._local(0), name)  # until the caller's deadline, not the default one
    return expected(method, method(*args, **kwargs))


setattr(call_method, ASYNC_MARK, True)  # in case the method is marked
