"""A lease that one thread keeps alive for as long as its owner wants it.

    with LeaseKeeper(store, ttl=5.0) as keeper:
        store.set("nodes/7", b"here", lease=keeper.lease)

A lease is a claim that ends by itself when its owner dies. It does not prove that the owner
still holds it at this instant: a process that was stopped for longer than the lease finds out
when it runs again. What must not happen twice needs `compare_set`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline, check_timeout
from holdfast.errors import HoldfastError, LeaseLost, TimeoutExpired, Unavailable, UsageError
from holdfast.store.ops import Lease, check_linger, check_ttl
from holdfast.store.store import DEFAULT_TIMEOUT_S, Store
from holdfast.threads import start_thread

__all__ = ["LeaseKeeper"]

_KEEPS_PER_TTL = 3
_KEEP_TIMEOUT_MAX_S = 5.0
_CLOSE_TIMEOUT_S = 5.0
_NOT_RENEWED = "it was not renewed in time"


class LeaseKeeper:
    """Takes a lease on `open()`, or on entering `with`, and keeps it until `close()`.

    A daemon thread renews it every third of its time. Short failures of the store are lived
    through; the lease counts as lost when the store says so, or as soon as its time is over and
    no renewal was confirmed, and it stays lost. Then `lost` is true, `lease` raises LeaseLost,
    `on_lost` is called once, on the keeper's thread, and nothing is tried any more. `linger` is
    as in `grant_lease`.
    """

    def __init__(
        self,
        store: Store,
        ttl: float,
        *,
        linger: float | None = None,
        on_lost: Callable[[LeaseLost], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._ttl = check_ttl(ttl)
        self._linger = check_linger(linger)
        self._on_lost = on_lost
        self._clock = clock
        self._lease: Lease | None = None
        self._sure_until = 0.0
        self._loss: LeaseLost | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, timeout: float | None = DEFAULT_TIMEOUT_S) -> None:
        """Take the lease and begin to keep it. Blocks; raises what the store raises."""
        if self._lease is not None or self._stop.is_set():
            raise UsageError("a lease keeper is opened once")
        asked = self._clock.monotonic()
        lease = self._store.grant_lease(self._ttl, linger=self._linger, timeout=timeout)
        # It began at some moment after it was asked for, so it lives until `ttl` after `asked` at
        # least; then we can no longer be sure of it.
        self._sure_until = asked + lease.ttl
        self._lease = lease
        self._thread = threading.Thread(
            target=self._run, args=(lease, asked), name="lease-keeper", daemon=True
        )
        start_thread(self._thread)

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be over."""
        return self._loss is not None or self._is_over()

    @property
    def lease(self) -> Lease:
        """The lease, for writing with it; LeaseLost if it is over, UsageError if not open."""
        if self._loss is not None:
            raise LeaseLost(str(self._loss))
        if self._lease is None or self._stop.is_set():
            raise UsageError("the lease keeper is not open")
        if self._is_over():  # and the keeper's thread is about to find out
            raise self._loss_by(self._lease, _NOT_RENEWED)
        return self._lease

    def close(self, timeout: float | None = _CLOSE_TIMEOUT_S) -> None:
        """Stop keeping the lease and revoke it, so that its keys go now. Idempotent.

        Does not raise when the store cannot be reached: the lease then ends by itself.
        """
        deadline = Deadline.after(check_timeout(timeout))
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(deadline.remaining())
        if self._lease is not None and self._loss is None:
            try:
                self._store.revoke_lease(self._lease, timeout=deadline.remaining())
            except HoldfastError:
                pass  # out of reach, or closed: the lease ends when its time is over

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # The keeper's thread.

    def _run(self, lease: Lease, asked: float) -> None:
        period = lease.ttl / _KEEPS_PER_TTL
        due = asked
        reason = _NOT_RENEWED
        while not self._is_over():
            # Beats lie on one grid; those that were missed are left out, so there is no burst.
            due += period * max(1, -(-(self._clock.monotonic() - due) // period))
            wake = min(due, self._sure_until)
            if self._stop.wait(max(0.0, wake - self._clock.monotonic())):
                return
            asked = self._clock.monotonic()
            left = self._sure_until - asked
            if left <= 0:
                break
            try:
                self._store.keep_lease(lease, timeout=min(period, left, _KEEP_TIMEOUT_MAX_S))
                if self._is_over():  # another thread may have seen it so: it does not come back
                    reason = "its renewal came too late"
                    break
                self._sure_until = asked + lease.ttl
                reason = _NOT_RENEWED
            except LeaseLost as error:
                reason = str(error)
                break
            except (TimeoutExpired, Unavailable) as error:
                reason = str(error)
            except Exception as error:  # whatever it is, the lease is not kept any more
                reason = f"{type(error).__name__}: {error}"
                break
        if not self._stop.is_set():
            self._lose(self._loss_by(lease, reason))

    def _is_over(self) -> bool:
        """Say whether the time is over for which the lease is ours for sure."""
        if self._lease is None or self._stop.is_set():
            return False
        return self._clock.monotonic() >= self._sure_until

    def _loss_by(self, lease: Lease, reason: str) -> LeaseLost:
        return LeaseLost(f"lease {lease.id} of {self._store.endpoint} is lost: {reason}")

    def _lose(self, loss: LeaseLost) -> None:
        self._loss = loss
        if self._on_lost is not None:
            self._on_lost(loss)
