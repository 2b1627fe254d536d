"""The rendezvous as its users see it: ask for a round, get a rank, a world and a store.

    with create_rendezvous(parameters) as rendezvous:
        here = rendezvous.next_round()
        here.rank, here.world_size, here.store, here.master_address, here.master_port

`Rendezvous` is what every backend offers, ours and those of third parties. `StoreRendezvous` is the
one that works over any store.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline, check_timeout
from holdfast.errors import (
    RendezvousClosed,
    RendezvousLost,
    RendezvousTimedOut,
    RunOver,
    UsageError,
)
from holdfast.ids import RunId
from holdfast.net.address import Address
from holdfast.observe.recorder import Recording
from holdfast.observe.sinks import Sink
from holdfast.records import dataclass
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import Closed, Counted, LeaseHeld, RoundReady
from holdfast.rendezvous.inputs import (
    CloseRun,
    FinishRound,
    LeaveRun,
    ReportFailure,
    WithdrawWish,
)
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Announcement, Failures, Keys, Member, Progress
from holdfast.rendezvous.ranks import RankPolicy, sticky_ranks
from holdfast.rendezvous.roll_reader import Roll
from holdfast.rendezvous.session import NodeSession
from holdfast.store.fenced import FencedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store

if TYPE_CHECKING:
    from holdfast.rendezvous.store_host import StoreHost

__all__ = ["Rendezvous", "Round", "RunEnd", "StoreRendezvous"]


@dataclass(frozen=True, slots=True)
class Round:
    """A complete round, as one of its members sees it.

    `store` is shared by the members of this round alone. Once the round is over it refuses every
    write with Fenced, so a node that comes late cannot disturb the rounds after it. `board` is
    shared by all nodes of the run, round after round, and refuses no node: for what is to be said
    of a round when it is over.
    """

    number: int
    rank: int
    world_size: int
    store: Store
    board: Store
    master_address: str
    master_port: int
    members: Sequence[Member]
    """The members by rank. From a store they are read by pages when they are asked for: that may
    block, and fail as `Store.get` does."""
    reason: str
    failures: int = 0
    """How many failures of the job had been counted when the round came to be."""
    endpoint: str | None = None
    """Where other processes of this node can open the store; None if they cannot."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: why, and whether its job failed."""

    reason: str
    failed: bool


class Rendezvous(ABC):
    """What a backend offers to one node of a run."""

    backend: str
    run_id: RunId
    endpoint: str
    """Where the nodes meet; for a store that this node hosts, with its real port."""

    @abstractmethod
    def next_round(self, why: str = "", *, timeout: float | None = None) -> Round:
        """Wait for the next round and return it; `why` says what ended the last one here.

        The wait is bounded by the run's join timeout, and by `timeout` if that is shorter.
        RendezvousTimedOut names the nodes there, RendezvousClosed that the run is over (and whether
        as failed), RunOver that it was so before this node came, RendezvousLost that its store is.
        One wish at a time: a later call takes over, and this one ends with UsageError.
        """

    @abstractmethod
    def over(self) -> str | None:
        """Return why the round that this node works in is over, or None while it is not."""

    @abstractmethod
    def nodes_waiting(self) -> int:
        """Return how many nodes would come in with a new round. Costs no store operation."""

    def subscribe(self, listener: Callable[[], None]) -> None:  # noqa: B027
        """Let `listener` be called whenever `over`, `nodes_waiting` or `closed` may have changed.

        It is called on any thread, holds no lock of ours, and must be quick. A backend that cannot
        tell does nothing here, so look now and then all the same.
        """

    def held(self) -> LeaseHeld | None:
        """Return until when this node's place in its round is its own; None if that never ends.

        Moves on with every renewal of the node's lease, and each move is told to subscribers. Work
        that goes on for longer may run beside that of the next round. A lease that is taken after
        the last one was lost counts from the next wish for a round.
        """
        return None

    def progress(self) -> Progress | None:
        """Return what the run waits for, as last heard: for people. None if it cannot be told."""
        return None

    def recording(self) -> Recording | None:
        """Return the last steps of the machine that decides for this node; None if there is none.

        A report of the job's failure has them, and `holdfast replay` runs them again.
        """
        return None

    @abstractmethod
    def count_failure(self, *, timeout: float | None = 30.0) -> Failures:
        """Count a failure of the round that this node works in; return the job's failures.

        `count` says how many, `times` when the newest hundred were (seconds since 1970). However
        many members report one, a round counts once; once it is over, no more.
        """

    def finish(self) -> None:  # noqa: B027
        """Say that this node's part of the round is done. Returns at once.

        From then on the round lets no node in, and it goes on when this node leaves by `shutdown`.
        If the node dies before, the round is over for the others. If the round is over for another
        reason, ask for the next one as ever; once it is, this does nothing. A backend that cannot
        tell does nothing here.
        """

    @abstractmethod
    def closed(self) -> str | None:
        """Return why the run is closed, or None while it is not."""

    def ended(self) -> RunEnd | None:
        """Return how the run was closed, or None while it is not."""
        reason = self.closed()
        return None if reason is None else RunEnd(reason, False)

    @abstractmethod
    def close(self, reason: str = "closed", *, failed: bool = False) -> None:
        """End the run for every node, for good; `failed` says whether the job has.

        What the first one said stands: closing a closed run does nothing.
        """

    @abstractmethod
    def shutdown(self) -> bool:
        """Leave; the run goes on without this node. Say whether everything ended in time.

        Idempotent. A node that hosts the store waits (bounded) until the others have left. Within
        a shutdown of the same thread, as from a signal handler, it returns False at once.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()


class StoreRendezvous(Rendezvous):
    """The rendezvous over a store; `start()` it before use.

    `master` is given to every round as it is; without it, the node of rank 0 says where it is.
    `release` is called when the node has left: it closes the store.
    """

    def __init__(
        self,
        backend: str,
        run: RunId,
        me: Announcement,
        rules: Rules,
        store: Store,
        *,
        close_s: float = 30.0,
        op_timeout_s: float = 60.0,
        heartbeat_s: float = 5.0,
        rank: RankPolicy = sticky_ranks,
        master: Address | None = None,
        release: Callable[[Keys, Deadline], bool],
        host: StoreHost | None = None,
        sink: Sink | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.backend = backend
        self.run_id = run
        self.endpoint = store.endpoint
        self._keys = Keys(run)
        self._rules = rules
        self._store = store
        self._close_s = close_s
        self._master = master
        self._release = release
        self._host = host
        self._finished = False
        self._clock = clock
        node = NodeMachine(me, self._keys, rules, rank)
        self._node = node
        self._session = NodeSession(
            run,
            node,
            store,
            op_timeout_s=min(op_timeout_s, rules.lease_s),
            heartbeat_s=heartbeat_s,
            sink=sink,
            clock=clock,
        )
        # Held while this node leaves, so that a second shutdown waits for the first one's answer.
        # A signal handler may call it inside of itself: that call must not wait for its own end.
        self._shutting = threading.RLock()
        self._shutting_now = False
        self._leaving = False
        self._shut: bool | None = None
        self._wish: object = None  # of the newest next_round()

    def start(self) -> None:
        """Take part in the run from now on."""
        self._session.start()

    def next_round(self, why: str = "", *, timeout: float | None = None) -> Round:
        session = self._session
        deadline = Deadline.after(check_timeout(timeout), self._clock)
        wish = object()
        self._check_in()
        _sentence("why", why)
        self._finished = False
        if self._host is not None:
            self._host.settle(deadline)
        with session.told:  # so that the newest wish is also the last that the machine hears
            self._wish = wish
            session.ask(why, wish)
            session.told.notify_all()

        def answered() -> bool:
            heard = session.wish is wish and bool(session.ready or session.timed_out)
            return heard or self._wish is not wish or self._ended()

        session.wait(answered, deadline)
        with session.told:
            heard = session.wish is wish
            ready, timed_out = session.ready, session.timed_out
            if heard and ready is not None:
                return self._round(ready)
            self._check_ended()
            if self._wish is not wish:
                raise UsageError(f"run {self.run_id}: another next_round() took over")
            if heard and timed_out is not None:
                raise RendezvousTimedOut(f"run {self.run_id}: {timed_out.reason}")
            # The caller's own deadline. A round that comes after all is left by withdrawing.
            session.request(WithdrawWish())
        seen = session.progress.reason if session.progress else "no leader has reported yet"
        raise RendezvousTimedOut(f"run {self.run_id}: no round within {timeout:g} s: {seen}")

    def over(self) -> str | None:
        session = self._session
        if session.lost is not None:
            return session.lost.reason
        if session.closed is not None:
            return session.closed.reason
        return session.over.reason if session.over is not None else None

    def nodes_waiting(self) -> int:
        progress, ready = self._session.progress, self._session.ready
        # Nodes that waited beside an earlier round are in this one: asking again costs a round.
        stale = progress is None or (ready is not None and progress.number < ready.record.number)
        waiting = 0 if progress is None or stale else progress.waiting
        return max(1, waiting) if self._session.over is not None else waiting

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._session.subscribe(listener)

    def held(self) -> LeaseHeld | None:
        # No other node can reach a store in this process's memory, so none takes over.
        return None if isinstance(self._store, MemoryStore) else self._session.held

    def progress(self) -> Progress | None:
        return self._session.progress

    def recording(self) -> Recording | None:
        return self._session.recording()

    def count_failure(self, *, timeout: float | None = 30.0) -> Failures:
        session = self._session
        deadline = Deadline.after(check_timeout(timeout), self._clock)
        self._check_in()
        wall = self._clock.wall()
        number: int | None = None  # of the round, once the machine has heard of its failure

        def before() -> None:
            nonlocal number
            with session.told:
                session.counted = None
            number = self._node.round

        def answer() -> Counted | None:
            counted = session.counted
            return counted if counted is not None and counted.number == number else None

        session.request(ReportFailure(wall), before)
        session.wait(lambda: answer() is not None or self._ended(), deadline)
        if (counted := answer()) is not None:
            return counted.failures
        self._check_ended()
        raise RendezvousTimedOut(f"run {self.run_id}: the failure could not be counted in time")

    def finish(self) -> None:
        self._check_in()
        self._finished = True
        self._session.request(FinishRound())

    def closed(self) -> str | None:
        return self._session.closed.reason if self._session.closed is not None else None

    def ended(self) -> RunEnd | None:
        closed = self._session.closed
        return None if closed is None else RunEnd(closed.reason, closed.failed)

    def is_ending(self) -> bool:
        """Say whether the whole job ends: the run is closed, or this node's part is done."""
        return self._finished or self._session.closed is not None

    def close(self, reason: str = "closed", *, failed: bool = False) -> None:
        session = self._session
        self._check_in()
        _sentence("reason", reason)
        wall = self._clock.wall()
        session.request(CloseRun(reason, bool(failed), wall))
        deadline = Deadline.after(self._close_s, self._clock)
        if not session.wait(lambda: session.closed is not None or self._ended(), deadline):
            raise RendezvousTimedOut(f"run {self.run_id}: it could not be closed in time")
        if session.closed is None:
            self._check_ended()

    def shutdown(self) -> bool:
        self._leaving = True
        with self._shutting:
            if self._shutting_now:
                return False  # not yet: the call that was interrupted goes on
            if self._shut is None:
                self._shutting_now = True
                try:
                    self._shut = self._leave(Deadline.after(self._close_s, self._clock))
                finally:
                    self._shutting_now = False
            return self._shut

    def _leave(self, deadline: Deadline) -> bool:
        session = self._session
        try:
            session.request(LeaveRun())
            left = session.wait(lambda: session.left or session.lost is not None, deadline)
            if left and session.stop():
                session.release(deadline)
        except BaseException:  # an interrupt: wait for no node, but leave nothing of ours
            self._shut = False
            self._release(self._keys, Deadline.after(0, self._clock))
            session.stop()
            raise
        # Else its thread may be waiting for the store, and closing that is what ends the wait.
        alone = self._release(self._keys, deadline)
        return session.stop() and alone and left

    def _check_in(self) -> None:
        if self._leaving:
            raise UsageError(f"run {self.run_id}: this node has left it")

    def _ended(self) -> bool:
        session = self._session
        return session.closed is not None or session.lost is not None or session.left

    def _check_ended(self) -> None:
        session = self._session
        closed = session.closed
        if closed is not None and closed.late:
            raise RunOver(_why_over(self.run_id, closed), failed=closed.failed)
        if closed is not None:
            text = f"run {self.run_id} is closed: {closed.reason}"
            raise RendezvousClosed(text, failed=closed.failed)
        if session.lost is not None:
            kind = UsageError if session.lost.usage else RendezvousLost
            raise kind(f"run {self.run_id}: {session.lost.reason}")
        if session.left:
            raise UsageError(f"run {self.run_id}: this node has left it")

    def _endpoint(self) -> str | None:
        """Return where workers find the store: by all members, if there are several."""
        members = self._host.addresses() if self._host is not None else ()
        if members:
            return f"tcp://{','.join(members)}"
        return None if isinstance(self._store, MemoryStore) else self._store.endpoint

    def _round(self, ready: RoundReady) -> Round:
        record = ready.record
        master = self._master or Address(record.address, record.port)
        prefix = self._keys.of_round(record.number)
        fenced = FencedStore(self._store, self._keys.round, record.encode())
        return Round(
            number=record.number,
            rank=ready.rank,
            world_size=record.size,
            store=PrefixStore(fenced, prefix),
            board=PrefixStore(self._store, self._keys.board),
            endpoint=self._endpoint(),
            master_address=master.host,
            master_port=master.port,
            members=Roll(self._store, self._keys, record),
            reason=record.reason,
            failures=record.failures,
        )


def _why_over(run: RunId, closed: Closed) -> str:
    """Say when and how a run ended, and what to do instead of joining it."""
    from datetime import UTC, datetime  # only a node that comes too late pays for it

    ended = datetime.fromtimestamp(closed.ended_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    how = "failed" if closed.failed else "ended"
    return (
        f"run {run!r} {how} at {ended} ({closed.reason}), and its store remembers that: "
        "give a new job another id (--rdzv-id), or another store"
    )


def _sentence(what: str, text: str) -> str:
    """Return the text if it is one; it ends up in what every node reads."""
    if not isinstance(text, str):
        raise UsageError(f"{what} {text!r:.80}: must be a str, not {type(text).__name__}")
    return text
