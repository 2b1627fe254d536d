"""RPC for a process that has one agent: the functions of `holdfast.rpc`.

    rpc.init_rpc("worker0", rank=0, world_size=2)
    rpc.rpc_sync("worker1", operator.add, args=(1, 2))
    rpc.shutdown()

Everything here is a convenience over an `Agent`; a process may have several of those.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

from holdfast import env
from holdfast.clock import Deadline, check_timeout
from holdfast.errors import HoldfastError, UsageError
from holdfast.rpc import current
from holdfast.rpc.agent import Agent, Target
from holdfast.rpc.backends import make_transport
from holdfast.rpc.bootstrap import Bootstrap, bootstrap
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.future import ASYNC_MARK, Future
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.membership.directory import GRACE_S, KEEP_ALIVE_S, Directory
from holdfast.rpc.rref.rref import RRef
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.ops import check_ttl
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "async_execution",
    "debug_info",
    "get_worker_info",
    "init_rpc",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
]

DEFAULT_TIMEOUT_S = 60.0
STAY_WITHIN_S = 5.0
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_ends: dict[Agent, _End] = {}
_log = logging.getLogger("holdfast.rpc")


def init_rpc(
    name: str,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    store: Store | None = None,
    backend: str = "default",
    options: Mapping[str, Any] | None = None,
    rpc_timeout: float = DEFAULT_TIMEOUT_S,
    timeout: float | None = DEFAULT_TIMEOUT_S,
    keep_alive: float = KEEP_ALIVE_S,
) -> WorkerInfo:
    """Become a worker of this name, and wait until all `world_size` workers know each other.

    Workers bootstrap at `store`, or at `init_method`: `tcp://host:port` (rank 0 serves it),
    `file:///path`, or `env://`. The default is `env://`: the variables that `holdfast run` set for
    this process, or MASTER_ADDR and MASTER_PORT, RANK and WORLD_SIZE. Without a `world_size`,
    workers join and leave freely, and this does not wait for others; without a `rank`, a number is
    assigned.

    A worker that does not renew its lease for `keep_alive` seconds, because its host was cut off or
    its process was stopped, is lost for the others, which ignore it even if it resumes.

    `backend` names the transport of messages (see `register_backend`); `options` are passed to it.
    """
    WorkerInfo(name, 0)  # checks the name, before anything is opened
    if current.is_agent_set():
        raise UsageError("init_rpc: this process has an RPC agent already; shut it down first")
    transport = make_transport(backend, options or {})
    timeout_s = check_timeout(rpc_timeout, "rpc_timeout") or 0.0  # 0: no limit, as for a call
    deadline = Deadline.after(check_timeout(timeout))
    keep_alive_s = check_ttl(keep_alive, "keep_alive")

    def lost(contact: Contact) -> Callable[[], None]:
        return agent.forget_worker(contact)

    with ExitStack() as undo:
        if transport is not None:
            undo.callback(transport.close)
        meeting: Bootstrap = bootstrap(
            undo, env.variables(), rank, world_size, init_method, store, deadline
        )
        place = PrefixStore(meeting.store, meeting.prefix)
        directory = Directory(place, lost=lost, keep_alive_s=keep_alive_s)
        number = meeting.rank
        if number is None:
            # If workers join and leave freely, 0 is reserved for the one that serves the store:
            # it may join later.
            number = directory.next_id(1 if meeting.world_size is None else 0, deadline)
        info = WorkerInfo(name, number)
        agent = Agent(info, directory, meeting.key, timeout_s=timeout_s, transport=transport)
        undo.callback(agent.close)
        agent.start(meeting.host)
        if agent.contact is None:
            raise UsageError("this agent has not been started")
        contact = replace(agent.contact, world_size=meeting.world_size or 0)
        current.set_agent(agent)
        undo.callback(_reset, agent)
        undo.callback(directory.close)
        fixed = meeting.world_size is not None and meeting.rank is not None
        directory.join(contact, deadline, fixed)
        if meeting.world_size is not None:
            directory.meet(contact, meeting.world_size, deadline)
        _ends[agent] = _End(directory, meeting, contact, undo.pop_all())
    return info


def shutdown(graceful: bool = True, timeout: float | None = DEFAULT_TIMEOUT_S) -> tuple[str, ...]:
    """End the current agent; return the names of the workers that did not come in time.

    Graceful: wait until all workers want to end, so that no call is cut off. If workers join and
    leave freely, this does not wait for others. It always returns, at the latest a few seconds
    after `timeout`.
    """
    agent = current.current_agent()
    deadline = Deadline.after(check_timeout(timeout))
    end = _ends.pop(agent, None)
    if end is None:  # made without init_rpc, or another thread is ending it
        _reset(agent)
        agent.close()
        return ()
    try:
        return _part(agent, end, graceful, deadline)
    finally:
        end.stack.close()


@dataclass(frozen=True, slots=True)
class _End:
    """The state needed to end an agent that `init_rpc` has made."""

    directory: Directory
    meeting: Bootstrap
    me: Contact
    stack: ExitStack


def _part(agent: Agent, end: _End, graceful: bool, deadline: Deadline) -> tuple[str, ...]:
    """Leave the job; return the names of the workers that did not come in time."""
    directory, me = end.directory, end.me
    try:
        if not graceful or end.meeting.world_size is None:
            if graceful:
                agent.rrefs.part(lambda: 0.0)
            directory.say_done(me, deadline.sooner(GRACE_S))
            return ()
        missing = directory.finish(me, deadline)
        agent.rrefs.part(deadline.sooner(GRACE_S if missing else STAY_WITHIN_S).remaining)
        if end.meeting.serves:  # the others read in this store that they may end
            directory.wait_alone(me, deadline.sooner(STAY_WITHIN_S))
    except HoldfastError as error:
        _log.warning("shutdown: the store where the workers meet is gone: %s", error)
        directory.close(0.0)  # it would wait for the store as well
        others = {contact.info.name for contact in directory.everybody()} - {me.info.name}
        return tuple(sorted(others)) if graceful else ()
    return missing


def _reset(agent: Agent) -> None:
    if current.is_agent_set() and current.current_agent() is agent:
        current.reset_agent()


@overload
def rpc_sync(
    to: Target,
    func: Callable[..., Coroutine[Any, Any, T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> T: ...
@overload
def rpc_sync(
    to: Target,
    func: Callable[..., Future[T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> T: ...
@overload
def rpc_sync(
    to: Target,
    func: Callable[..., T],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> T: ...
def rpc_sync(
    to: Target,
    func: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> Any:
    """Call a function at a worker and return its result.

    `timeout` in seconds, 0 for none, None for the agent's default. With `retries` the call is sent
    again when a connection breaks, and still runs at most once.
    """
    if kwargs or (args is not None and type(args) is not tuple):
        _check_arguments(args, kwargs)
    agent = current.agent or current.current_agent()
    return agent.call(to, func, args or (), kwargs, timeout, retries)


def _check_arguments(args: object, kwargs: object) -> None:
    """Refuse invalid arguments. A caller with only a tuple, the common case, skips this."""
    some = args is None or isinstance(args, (tuple, list, Sequence))
    if not some or isinstance(args, (str, bytes)):
        raise UsageError(f"args {args!r:.60}: must be a tuple or a list, as in args=(1, 2)")
    if kwargs is not None and not isinstance(kwargs, (dict, Mapping)):
        raise UsageError(f"kwargs {kwargs!r:.60}: must be a mapping of names to arguments")


@overload
def rpc_async(
    to: Target,
    func: Callable[..., Coroutine[Any, Any, T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> Future[T]: ...
@overload
def rpc_async(
    to: Target,
    func: Callable[..., Future[T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> Future[T]: ...
@overload
def rpc_async(
    to: Target,
    func: Callable[..., T],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> Future[T]: ...
def rpc_async(
    to: Target,
    func: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> Future[Any]:
    """Call a function at a worker; return the future of its result."""
    if kwargs or (args is not None and type(args) is not tuple):
        _check_arguments(args, kwargs)
    agent = current.agent or current.current_agent()
    return agent.call_async(to, func, args or (), kwargs, timeout, retries)


@overload
def remote(
    to: Target,
    func: Callable[..., Coroutine[Any, Any, T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> RRef[T]: ...
@overload
def remote(
    to: Target,
    func: Callable[..., Future[T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> RRef[T]: ...
@overload
def remote(
    to: Target,
    func: Callable[..., T],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> RRef[T]: ...
def remote(
    to: Target,
    func: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: RetryPolicy | None = None,
) -> RRef[Any]:
    """Call a function at a worker and leave the result there; return a reference to it."""
    if kwargs or (args is not None and type(args) is not tuple):
        _check_arguments(args, kwargs)
    agent = current.agent or current.current_agent()
    return agent.remote(to, func, args or (), kwargs, timeout, retries)


def get_worker_info(name: str | None = None) -> WorkerInfo:
    """Return the worker of this name, or this worker."""
    agent = current.current_agent()
    return agent.info if name is None else agent.find(name).info


def debug_info() -> dict[str, str]:
    """Return what the current agent is doing, in numbers and words, by name (`metrics.py`)."""
    return current.current_agent().debug_info()


def async_execution(function: F) -> F:
    """Mark a function that returns a future: its callers get the future's value."""
    setattr(getattr(function, "__func__", function), ASYNC_MARK, True)  # of a static method, too
    return function
