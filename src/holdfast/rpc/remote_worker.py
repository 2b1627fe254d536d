"""A worker to call, with arguments that a type checker checks.

    trainer = rpc.RemoteWorker("trainer0", timeout=5)
    loss = trainer.rpc_sync(train, batch, epochs=3)

`rpc_sync("trainer0", train, args=(batch,), kwargs={"epochs": 3}, timeout=5)` does the same; a type
checker knows what that returns, but not whether the arguments are those of `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from holdfast.rpc.agent import Target
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.current import current_agent
from holdfast.rpc.rref.rref import RRef

__all__ = ["RemoteWorker"]

P = ParamSpec("P")
T = TypeVar("T")


class RemoteWorker:
    """Calls functions at one worker. `timeout` and `retries` apply to each call, as in `rpc_sync`.

    It opens and keeps nothing: the current agent of the process makes each call.
    """

    def __init__(
        self, to: Target, *, timeout: float | None = None, retries: RetryPolicy | None = None
    ) -> None:
        self._to = to
        self._timeout = timeout
        self._retries = retries

    def __repr__(self) -> str:
        return f"RemoteWorker({self._to!r})"

    @overload
    def rpc_sync(
        self, func: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def rpc_sync(self, func: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def rpc_sync(self, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def rpc_sync(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function there and return its result."""
        agent = current_agent()
        return agent.call(self._to, func, args, kwargs, self._timeout, self._retries)

    @overload
    def rpc_async(
        self, func: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]: ...
    @overload
    def rpc_async(
        self, func: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]: ...
    @overload
    def rpc_async(self, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def rpc_async(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function there; return the future of its result."""
        agent = current_agent()
        return agent.call_async(self._to, func, args, kwargs, self._timeout, self._retries)

    @overload
    def remote(
        self, func: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> RRef[T]: ...
    @overload
    def remote(
        self, func: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs
    ) -> RRef[T]: ...
    @overload
    def remote(self, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> RRef[T]: ...

    def remote(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> RRef[Any]:
        """Call a function and leave the result there; return a reference to it."""
        agent = current_agent()
        return agent.remote(self._to, func, args, kwargs, self._timeout, self._retries)
