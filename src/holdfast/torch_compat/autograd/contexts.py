"""Contexts of distributed autograd: what this worker knows of a backward pass that may come.

A context is made by one worker and carried along by its calls, so that each worker which those
reach has a context of the same number. The worker that made it releases it, and tells those that it
called; each of them releases its own, and tells on.

Guarantees
    CX-1  A number of a context or of a message is never used twice: its upper 16 bits are its
          maker's number, the others count up.
    CX-2  A worker that releases a context tells each worker that it knows to have it, except the
          one that has told it, and retries if need be. A worker tells once, after GATHER_S: one
          message carries all that was released meanwhile.
    CX-3  A released context ends the passes that run in it.
    CX-4  A context ends here too when no worker would release it: when a worker that has brought it
          here has disconnected, its maker is asked. If that has it, it tells this worker when it
          releases it; if it has not, or is gone, it is released here.
    CX-5  A pass fails when the worker that has asked for it has disconnected: what it asked for
          is of no use.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import HoldfastError, PeerLost
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.wire.hello import WorkerHello
from holdfast.rpc.wire.messages import Kind

__all__ = [
    "CONTEXTS",
    "GATHER_S",
    "NO_CONTEXT",
    "Contexts",
    "DistAutogradContext",
    "Releases",
    "asker_lost",
    "left",
    "release",
    "share",
]

ID_BITS = 48
NO_CONTEXT = -1
GATHER_S = 0.01
"""How long a release is held back, so that one message carries those of many steps."""


class DistAutogradContext:
    """What one worker knows of one context.

    Under its lock: the send and recv functions, in the order in which they were made, and the
    token of that order (`graph.py`); the workers that have the context from this one, and those
    that this one has it from; the passes that have not ended, by number; and the gradients.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        self.sends: dict[int, Any] = {}
        self.recvs: dict[int, Any] = {}
        self.workers: set[int] = set()
        self.sources: set[int] = set()
        self.passes: dict[int, Any] = {}
        self.over: set[int] = set()  # the passes that have ended
        self.gradients: dict[Any, Any] = {}
        self.reduces = False  # whether DDP has a part in it
        self.is_released = False
        self.token: Any = None
        # Under a lock of its own, since it is waited for: the pass that runs.
        self.turns = threading.Condition()
        self.running: Any = None

    @property
    def maker(self) -> int:
        """The worker that made it."""
        return self.number >> ID_BITS

    def _context_id(self) -> int:
        return self.number

    def _send_functions(self) -> dict[int, Any]:
        with self.lock:
            return dict(self.sends)

    def _recv_functions(self) -> dict[int, Any]:
        with self.lock:
            return dict(self.recvs)

    def _known_worker_ids(self) -> set[int]:
        with self.lock:
            return set(self.workers)


class _CurrentContext(threading.local):
    number = NO_CONTEXT


class Contexts:
    """All contexts of this worker, and for each thread which one it works in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: int | None = None
        self._numbers = itertools.count()
        self._messages = itertools.count()
        self._known: dict[int, DistAutogradContext] = {}
        self._here = _CurrentContext()

    def begin(self, worker: int) -> None:
        """Set this worker's number; it can be set once."""
        if not 0 <= worker < 1 << (63 - ID_BITS):
            raise RuntimeError(f"worker_id needs to be in the range [0, 65535]: got {worker}")
        with self._lock:
            if self._worker is not None and self._worker != worker:
                raise RuntimeError(
                    "Container is already initialized! "
                    f"(worker_id {self._worker}; cannot become {worker})"
                )
            self._worker = worker

    @property
    def worker(self) -> int:
        """This worker's number."""
        if self._worker is None:
            raise RuntimeError(
                "Need to initialize distributed autograd using torch.distributed.autograd._init()"
            )
        return self._worker

    @property
    def largest(self) -> int:
        """The largest number that a context of this worker can have."""
        return (1 << ID_BITS) - 1 + (self.worker << ID_BITS)

    def new_message(self) -> int:
        """Return the number of a message, or of a pass."""
        return (self.worker << ID_BITS) + next(self._messages)

    # Contexts.

    def make(self) -> DistAutogradContext:
        """Make a context, in which this thread then works."""
        if self._here.number != NO_CONTEXT:
            raise RuntimeError(
                "Already have an autograd context id for this thread. "
                f"{self._here.number}: contexts cannot be nested"
            )
        context = self.join((self.worker << ID_BITS) + next(self._numbers))
        self._here.number = context.number
        return context

    def join(self, number: int, source: int | None = None) -> DistAutogradContext:
        """Return a context; one is made if this worker has none yet. `source` has brought it."""
        with self._lock:
            context = self._known.get(number)
            if context is None:
                context = self._known[number] = DistAutogradContext(number)
        if source is not None:
            with context.lock:
                context.sources.add(source)
        return context

    def find(self, number: int) -> DistAutogradContext:
        """Return a context; RuntimeError if there is none of that number."""
        context = self._known.get(number)  # without the lock: it is one instruction
        if context is None:
            raise RuntimeError(f"Could not find autograd context with id: {number}")
        return context

    def take(self, number: int) -> DistAutogradContext | None:
        """Return a context and know it no more; None if there is none."""
        if self._here.number == number:
            self._here.number = NO_CONTEXT
        with self._lock:
            return self._known.pop(number, None)

    # The one that this thread works in.

    def here(self) -> DistAutogradContext | None:
        """Return it; None if there is none, or it has been released."""
        number = self._here.number
        return None if number == NO_CONTEXT else self._known.get(number)

    def current(self) -> DistAutogradContext:
        """Return it; RuntimeError if there is none."""
        if self._here.number == NO_CONTEXT:
            raise RuntimeError(
                "Current thread doesn't have a valid autograd context. Please wrap your code "
                "using: `with torch.distributed.autograd.context() as context_id` to generate a "
                "valid context"
            )
        return self.find(self._here.number)

    @contextmanager
    def within(self, number: int) -> Iterator[None]:
        """Let this thread work in a context for a while."""
        outer, self._here.number = self._here.number, number
        try:
            yield
        finally:
            self._here.number = outer

    def all(self) -> list[DistAutogradContext]:
        """Return all of them."""
        with self._lock:
            return list(self._known.values())

    def end_passes(self, error: Exception, asker: str | None = None) -> None:
        """Let passes fail that run here: all, or those that this life of a worker asked for."""
        for context in self.all():
            with context.lock:
                passes = list(context.passes.values())
            for one in passes:
                if asker is None or one.asker == asker:
                    one.fail(error)

    # For people.

    def counts(self) -> dict[str, str]:
        """Return how many there are of what, by torch's names."""
        known = self.all()
        return {
            "num_current_backward_passes": str(sum(len(one.passes) for one in known)),
            "num_autograd_contexts": str(len(known)),
        }


CONTEXTS = Contexts()
"""Those of this process."""


class Releases:
    """The released contexts of which other workers have not been told yet, by worker."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._untold: dict[int, list[int]] = {}

    def add(self, workers: Iterable[int], number: int) -> None:
        """Tell these workers soon that a context has been released."""
        with self._lock:
            is_first = not self._untold
            for worker in workers:
                self._untold.setdefault(worker, []).append(number)
            is_first = is_first and bool(self._untold)
        if is_first:
            self._agent.core._scheduler.submit(self.tell, GATHER_S)

    def tell(self) -> None:
        """Tell them now."""
        with self._lock:
            untold, self._untold = self._untold, {}
        for worker, numbers in untold.items():
            try:
                to = self._agent.places.find(worker).incarnation
                kind = Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ
                self._agent.core.request(to, kind, numbers, None, retries=RetryPolicy())
            except (HoldfastError, RuntimeError):  # it is gone, and its contexts with it
                continue


def release(agent: Any, number: int, told_by: int | None = None) -> bool:
    """Release a context, and let others release theirs; False if this worker has none (CX-2)."""
    context = CONTEXTS.take(number)
    if context is None:
        return False
    with context.lock:
        context.is_released = True
        passes = list(context.passes.values())
        workers = context.workers - {told_by}
    for one in passes:
        one.fail(RuntimeError(f"autograd context {number} was released during its backward pass"))
    agent.releases.add(workers, number)
    return True


def left(agent: Any, caller: WorkerHello) -> None:
    """Hear that a worker has disconnected (CX-4, CX-5)."""
    CONTEXTS.end_passes(asker_lost(caller.name), caller.incarnation)
    for context in CONTEXTS.all():
        with context.lock:
            has_brought_it = caller.id in context.sources
        if has_brought_it and context.maker != CONTEXTS.worker:
            _ask_maker(agent, context.number, context.maker)


def asker_lost(who: str) -> PeerLost:
    """Return the error of a pass whose caller has disconnected."""
    return PeerLost(f"{who}: Connection closed by peer (it had asked for a backward pass)")


def _ask_maker(agent: Any, number: int, maker: int) -> None:
    def heard(done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, PeerLost) or (error is None and not done.value()):
            release(agent, number)

    try:
        asked = agent.core.call_async(maker, share, (number, CONTEXTS.worker))
    except (HoldfastError, RuntimeError):  # it has left the group, or we do
        release(agent, number)
    else:
        asked.add_done_callback(heard)


def share(number: int, worker: int) -> bool:
    """Say whether this worker has a context; if it has, that one will hear of its release."""
    try:
        context = CONTEXTS.find(number)
    except RuntimeError:
        return False
    with context.lock:
        context.workers.add(worker)
        return not context.is_released
