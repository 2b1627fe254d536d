"""A node of a run at work: one thread that owns the machine, one queue that brings it events.

The shell around `machine.py`. A second thread reads the watch and only puts what it reads on the
queue; a thread that asks for something puts a request there and waits for a notice.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import HoldfastError, StoreBusy, StoreFull, UsageError
from holdfast.ids import CauseId, RunId
from holdfast.observe.events import Event, RoundAwaited, RoundEnded, RoundFormed, RunEnded
from holdfast.observe.recorder import Recorder, Recording
from holdfast.observe.sinks import LogSink, Sink
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Effect,
    Explained,
    Follow,
    LeaseHeld,
    Left,
    Notice,
    Perform,
    RoundOver,
    RoundReady,
    StoreLost,
    TimedOut,
)
from holdfast.rendezvous.inputs import (
    NODE,
    AskRound,
    KeysChanged,
    NodeBegins,
    NodeInput,
    NodeTick,
    OpDone,
    OpFailed,
)
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Progress
from holdfast.store.ops import AnyOp, Change, Lease, LeaseKeep, LeaseRevoke
from holdfast.store.store import Store, Watch
from holdfast.threads import start_thread

__all__ = ["NodeSession"]

STOP_WITHIN_S = 5.0
SIGNALS_EVERY_S = 1.0

_log = logging.getLogger("holdfast.rendezvous")

_Request = tuple[NodeInput, Callable[[], None]]


class NodeSession:
    """Run a node's machine over a store, in the background."""

    def __init__(
        self,
        run: RunId,
        node: NodeMachine,
        store: Store,
        *,
        op_timeout_s: float = 60.0,
        heartbeat_s: float = 5.0,
        sink: Sink | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._run_id = run
        self._node = node
        self._recorder = Recorder(NODE, node)
        self._wanted: list[Effect] = []
        self._sink = sink or LogSink()
        self._cause = CauseId(f"{run}/{node.id}")
        self._store = store
        self._op_timeout_s = op_timeout_s
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        # Changes that were read, requests, and None to wake up.
        self._events: queue.SimpleQueue[_Request | Change | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-rendezvous", daemon=True)
        self._watch: Watch | None = None
        self._reader: threading.Thread | None = None
        # What the machine has told, for waiting threads; `told` is notified at each notice.
        self.told = threading.Condition()
        # The newest wish for a round that the machine has heard; `ready` and `timed_out` answer it.
        self.wish: object = None
        self.ready: RoundReady | None = None
        self.over: RoundOver | None = None
        self.timed_out: TimedOut | None = None
        self.closed: Closed | None = None
        self.counted: Counted | None = None
        self.held: LeaseHeld | None = None
        self.lost: StoreLost | None = None
        self.left = False
        self.progress: Progress | None = None
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._stopping = False
        self._held_up = False  # by another process, as has been said
        self._lease: Lease | None = None
        self._full = False

    def start(self) -> None:
        """Start the thread; it takes part in the run from now on."""
        start_thread(self._thread)

    def request(self, event: NodeInput, before: Callable[[], None] = lambda: None) -> None:
        """Give the machine an input, on its thread; `before` is called there just before."""
        self._events.put((event, before))

    def recording(self) -> Recording:
        """Return the machine's last steps."""
        return self._recorder.recording()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a listener after each notice, on any thread and without a lock of ours."""
        with self.told:
            self._listeners += (listener,)

    def ask(self, why: str, wish: object) -> None:
        """Ask for a round; what is told while `self.wish is wish` is the answer."""

        def before() -> None:
            with self.told:
                self.wish, self.ready, self.timed_out = wish, None, None

        self.request(AskRound(why), before)

    def wait(self, done: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait until `done()` about what has been told; False at the deadline."""
        with self.told:
            while not done():
                if deadline.passed():
                    return False
                # A signal that comes just before a wait is handled only after it: wait in slices.
                self.told.wait(deadline.sooner(SIGNALS_EVERY_S).remaining())
            return True

    def stop(self) -> bool:
        """End the threads; say whether they ended in time. Idempotent."""
        self._stopping = True
        self._events.put(None)
        self._thread.join(STOP_WITHIN_S)
        return not self._thread.is_alive()

    def release(self, deadline: Deadline) -> None:
        """End the lease of a node that cannot say that it leaves, since the store is full.

        Call it after `stop`. The others hear at once that the node is gone.
        """
        if self._full and self._lease is not None:
            with suppress(HoldfastError):  # else it ends by itself
                self._store._perform(
                    LeaseRevoke(self._lease.id), deadline.sooner(self._heartbeat_s)
                )

    # On the machine's thread.

    def _run(self) -> None:
        try:
            self._step(NodeBegins())
            while not self._is_over():
                self._perform()
                self._take_events()
        except HoldfastError as error:
            self._tell(StoreLost(str(error)))
        except Exception as error:
            self._tell_bug(error)
        finally:
            self._follow(None)

    def _is_over(self) -> bool:
        return self._stopping or self.lost is not None

    def _now(self) -> float:
        return self._clock.monotonic()

    def _step(self, event: NodeInput) -> None:
        self._wanted += self._recorder.step(event, self._now())

    def _perform(self) -> None:
        """Do what the machine wants until it wants nothing more for now."""
        while effects := self._wanted:
            self._wanted = []
            # The operation last: what comes meanwhile is newer than all that is told here.
            for effect in sorted(effects, key=lambda effect: isinstance(effect, Perform)):
                match effect:
                    case Perform(op):
                        self._perform_op(op)
                    case Follow(prefix):
                        self._follow(prefix)
                    case _:
                        self._tell(effect)

    def _perform_op(self, op: AnyOp) -> None:
        timeout = self._heartbeat_s if isinstance(op, LeaseKeep) else self._op_timeout_s
        timeout = min(timeout, self._node.op_limit_s(self._now()))
        try:
            result = self._store._perform(op, Deadline.after(timeout, self._clock))
        except HoldfastError as error:
            self._pass_on()
            if isinstance(error, StoreBusy) and not self._held_up:
                self._held_up = True
                _log.warning("run %s: waiting: %s", self._run_id, error)
            self._full = isinstance(error, StoreFull)
            self._step(OpFailed(error))
        else:
            self._pass_on()
            self._held_up = False
            if isinstance(result, Lease):
                self._lease = result
            self._step(OpDone(result))

    def _take_events(self) -> None:
        """Wait for events, or until the machine wants to look again, and pass them on."""
        wake_at = self._node.next_wake()
        wait_s = None if wake_at is None else max(0.0, wake_at - self._now())
        first = None
        try:
            # The thread that ends it says so, and then wakes us: that may have been passed on.
            if not self._is_over():
                first = self._events.get(timeout=wait_s)
        except queue.Empty:
            pass
        if not self._pass_on(first):  # what is passed on lets time pass, too
            self._step(NodeTick())

    def _pass_on(self, first: _Request | Change | None = None) -> bool:
        """Pass on an event and all that wait: the machine decides by the newest that is known.

        Say whether there was any.
        """
        changes: list[Change] = []
        passed = False
        try:
            event = first
            while True:
                if isinstance(event, Change):
                    changes.append(event)
                elif event is not None:
                    asked, before = event
                    before()
                    self._step(asked)
                    passed = True
                event = self._events.get_nowait()
        except queue.Empty:
            pass
        if changes:
            self._step(KeysChanged(tuple(changes)))
        return passed or bool(changes)

    def _follow(self, prefix: str | None) -> None:
        """Replace the watch and its reader."""
        old, self._watch = self._watch, None
        if old is not None:
            old.close()
        if self._reader is not None:
            self._reader.join(STOP_WITHIN_S)
            self._reader = None
        if prefix is None:
            return
        try:
            self._watch = self._store.watch(prefix, prefix=True, timeout=self._op_timeout_s)
        except HoldfastError as error:
            self._tell(StoreLost(f"the store cannot be watched: {error}"))
            return
        reader = threading.Thread(
            target=self._read, args=(self._watch,), name="holdfast-rendezvous-watch", daemon=True
        )
        start_thread(reader)  # which may fail: only what runs can be joined
        self._reader = reader

    # On the reader's thread.

    def _read(self, watch: Watch) -> None:
        try:
            for change in watch:
                self._events.put(change)
        except UsageError:
            pass  # closed by _follow
        except HoldfastError as error:
            self._tell(StoreLost(f"the store cannot be watched: {error}"))
        except Exception as error:
            self._tell_bug(error)

    # On either.

    def _tell_bug(self, error: Exception) -> None:
        """End it all: a thread that dies must not leave others waiting for it."""
        _log.error("the rendezvous failed", exc_info=error)
        self._tell(StoreLost(f"a bug in holdfast: {error!r}"))

    def _tell(self, notice: Notice) -> None:
        with self.told:
            if self.lost is not None:
                return  # that was the end, and its reason stands
            match notice:
                case RoundReady():
                    self.ready, self.over = notice, None
                case RoundOver():
                    self.over = notice
                case Explained(progress):
                    self.progress = progress
                case Counted():
                    self.counted = notice
                case LeaseHeld():
                    self.held = notice
                case TimedOut():
                    self.timed_out = notice
                case Closed():
                    self.closed = notice
                case Left():
                    self.left = True
                case StoreLost():
                    self.lost = notice
                    self._events.put(None)  # the reader may be the one that tells
                case _:
                    assert_never(notice)
            self.told.notify_all()
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # not ours to die of
                _log.exception("a listener of the rendezvous failed")
        event = self._event(notice)
        if event is not None:
            self._sink.emit(event)

    def _event(self, notice: Notice) -> Event | None:
        """Return what people should hear of a notice."""
        run, cause, at = self._run_id, self._cause, self._now()
        match notice:
            case Explained(progress):
                return RoundAwaited(
                    cause=cause,
                    at=at,
                    run=run,
                    round=progress.number,
                    have=progress.have,
                    missing=progress.missing,
                    left_s=progress.left_s,
                    reason=progress.reason,
                )
            case RoundReady(record, rank):
                return RoundFormed(
                    cause=cause,
                    at=at,
                    run=run,
                    round=record.number,
                    rank=rank,
                    world_size=record.size,
                    reason=record.reason,
                )
            case RoundOver(number, reason):
                return RoundEnded(cause=cause, at=at, run=run, round=number, reason=reason)
            case Closed(reason) | TimedOut(reason) | StoreLost(reason):
                return RunEnded(cause=cause, at=at, run=run, reason=reason)
            case Counted() | LeaseHeld() | Left():
                return None
            case _:
                assert_never(notice)
