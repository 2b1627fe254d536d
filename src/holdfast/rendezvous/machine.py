"""One node of a run as a machine: it announces itself, leads if it is elected, follows if not.

Rule 1: everything that a node does about rounds is in this file and in `decide.py`.
Rule 2: this file does no I/O and reads no clock. The shell (`session.py`) performs the effects, one
    store operation at a time, and tells the machine what came of each.

Theory. What the node wants (a lease, its announcement stored, a leader, a published decision) is
state; `_next_op` compares it with what is known to be true and returns the operation that is
needed next. So an operation that failed needs no special care: it is still needed, and comes
again. Whatever may have happened without us hearing of it is recognised by its bytes.

Nodes follow `ctl/`: the leader, the round, the leader's progress. The leader alone follows all
announcements. A publication is guarded by the leader's own entry: once that is gone or another's,
the store refuses it, however late it comes (the fencing token is checked where it counts).

Guarantees
    ND-1  A node works in at most one round, and only in a complete one that names it.
    ND-2  A leader that was replaced publishes nothing any more.
    ND-3  A node that was silent for longer than its lease learns that its round is over.
    ND-4  A failure is counted once for each round, and only while that round is the current one.
    ND-5  The operations of a node that does not lead do not grow with the number of nodes.
    ND-6  Every wish ends: in a round, in a timeout with its reason, in the end of the run, or in
          the loss of the store.
    ND-7  A node that was told of other numbers of nodes than the leader ends at once, and says so.
    ND-8  A node without a lease takes none in a closed run, and leaves it without the store: the
          store's host may be gone, since it waits only for the nodes that are announced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.errors import Fenced, HoldfastError, LeaseLost, PeerViolation, UsageError
from holdfast.ids import NodeId
from holdfast.rendezvous.account import Account
from holdfast.rendezvous.control import Control
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Effect,
    Explained,
    Follow,
    Left,
    Notice,
    Perform,
    RoundOver,
    RoundReady,
    StoreLost,
    TimedOut,
    disagreement,
)
from holdfast.rendezvous.leadership import Leadership
from holdfast.rendezvous.model import (
    Announcement,
    Failures,
    Keys,
    Leader,
    Phase,
    Progress,
    RoundRecord,
    Status,
)
from holdfast.rendezvous.own_lease import OwnLease
from holdfast.rendezvous.own_rank import OwnRank
from holdfast.rendezvous.presence import Presence
from holdfast.rendezvous.ranks import RankPolicy, sticky_ranks
from holdfast.rendezvous.trouble import Trouble, borne_s
from holdfast.store.ops import (
    AnyOp,
    Change,
    CompareSet,
    DeletePrefix,
    Entry,
    Get,
    Guarded,
    Lease,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiSet,
    Set,
    Swap,
)

__all__ = ["NodeMachine"]


class NodeMachine:
    """The machine of one node."""

    def __init__(
        self, me: Announcement, keys: Keys, rules: Rules, rank: RankPolicy = sticky_ranks
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._nodes = rules.nodes
        self._rank = rank
        self._effects: list[Effect] = []
        # The operation that is being performed, and how the store bears with them.
        self._busy: AnyOp | None = None
        self._busy_at = 0.0
        self._trouble = Trouble(rules.lease_s)
        # This node: what it would announce, what is announced, and under which lease.
        self._me = replace(me, nodes=rules.nodes)
        self._active = False
        self._presence = Presence(keys.node(me.node))
        self._own_rank = OwnRank(keys, me.node)
        self._lease = OwnLease(rules.keep_alive_s)
        self._leaving = False
        self._stopped = False
        self._join_by: float | None = None
        # The round that it works in, as published; and whether its end has been told.
        self._round_raw: bytes | None = None
        self._over_told = False
        self._account = Account(keys)
        self._closing: Closed | None = None
        self._control = Control()
        self._looked = False  # for a leader, at least once
        self._record: RoundRecord | None = None
        self._explained: Progress | None = None
        # Leading: the number of this node's next leadership, and the current one.
        self._term = 0
        self._leadership: Leadership | None = None

    # What the user of the node wants.

    def start(self, now: float) -> None:
        """Begin: take a lease and follow the run."""
        self._effects.append(Follow(self._keys.control))
        self._pump(now)

    def ask(self, why: str, now: float) -> None:
        """Ask for a place in the next round; `why` says what ended the last one here."""
        if self._record is not None and self._record.status is Status.CLOSED:
            self._tell_closed(self._record)
            return
        self._active = True
        self._effects += self._lease.asked()
        self._me = replace(self._me, phase=Phase.WAITING, why=why[:200], wish=self._me.wish + 1)
        self._round_raw = None
        if self._record is None:
            self._join_by = now + self._rules.join_s
        else:
            # It may name us already: a leader counts on the nodes that waited when it last looked.
            self._wait_or_work(self._record, now)
        self._pump(now)

    def withdraw(self, now: float) -> None:
        """Take the wish for a round back, and leave the round if one came at that very moment."""
        self._active = False
        self._join_by = None
        self._me = replace(self._me, phase=Phase.WAITING)
        self._round_raw = None
        self._pump(now)

    def finish(self, now: float) -> None:
        """Say that this node's part of its round is done, if that still lasts (RV-8)."""
        if self._active and self._me.phase is Phase.WORKING and not self._over_told:
            self._me = replace(self._me, phase=Phase.FINISHED)
        self._pump(now)

    def count_failure(self, now: float, wall: float) -> None:
        """Count a failure of the round that this node works in (ND-4); `wall` is since 1970.

        `Counted` with the number of that round is the answer.
        """
        self._account.report(self.round, wall)
        self._pump(now)

    def close(self, reason: str, failed: bool, now: float, wall: float = 0.0) -> None:
        """End the run for all nodes; `failed` says whether the job has, `wall` is since 1970."""
        self._closing = Closed(reason[:200] or "closed", failed, wall)
        self._pump(now)

    def leave(self, now: float) -> None:
        """Leave the run; it goes on without this node (RV-4)."""
        self._leaving = True
        if self._me.phase is Phase.FINISHED and not self._over_told:
            self._me = replace(self._me, phase=Phase.LEFT)
        self._pump(now)

    # What happens.

    def changed(self, changes: Iterable[Change], now: float) -> None:
        """Hear of changes under the prefix that is followed."""
        if self._stopped:
            return
        for change in changes:
            if change.key.startswith(self._keys.nodes):
                if self._leadership is not None:
                    self._leadership.see(change)
            else:
                self._control_changed(change.key, change.value, change.revision, now)
        self._pump(now)

    def done(self, result: object, now: float) -> None:
        """Hear what the operation that was performed returned."""
        op, self._busy = self._busy, None
        self._trouble.answered(isinstance(op, LeaseKeep))
        if op is not None:
            self._performed(op, result, now)
        self._pump(now)

    def failed(self, error: HoldfastError, now: float) -> None:
        """Hear that the operation that was performed raised this."""
        op, self._busy = self._busy, None
        match error:
            case LeaseLost():
                self._trouble.answered(renewal=False)
                self._begin_anew("this node was silent for longer than its lease")
            case Fenced() if isinstance(op, Guarded):
                self._trouble.answered(renewal=False)
                self._fenced(op)
            case UsageError():
                self._stop(StoreLost(str(error)))
            case _ if isinstance(op, LeaseRevoke) and self._me.phase is Phase.LEFT:
                self._stop(Left())  # all is said: the host waits for no more, and may be gone
            case _:
                if isinstance(op, CompareSet) and op.key == self._presence.key:
                    self._presence.unanswered(op)
                bear_s = borne_s(error, self._rules.join_s)
                if self._trouble.failed(self._busy_at, now, isinstance(op, LeaseKeep), bear_s):
                    self._stop(StoreLost(f"the store cannot be used: {error}"))
        self._pump(now)

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._pump(now)

    def op_limit_s(self, now: float) -> float:
        """Return how long the operation that is wanted may take: nothing else is done meanwhile."""
        limit = min(self._trouble.op_limit_s(now), self._lease.room_s(self._busy, now))
        return limit if self._join_by is None else min(limit, max(0.1, self._join_by - now))

    def next_wake(self) -> float | None:
        """Return when `tick` is due even if nothing happens."""
        if self._stopped or self._busy is not None:
            return None
        moments = [] if self._join_by is None else [self._join_by]
        if (retry_at := self._trouble.retry_at) is not None:
            return min([retry_at, *moments])  # nothing else is done before that
        if self._lease.lease is not None:
            moments.append(self._lease.keep_at)
        leading = self._leadership.next_wake() if self._leadership is not None else None
        if leading is not None:
            moments.append(leading)
        return min(moments, default=None)

    def take_effects(self) -> list[Effect]:
        """Return what to do, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def id(self) -> NodeId:
        """The node's id."""
        return self._me.node

    @property
    def reason(self) -> str:
        """What the run waits for: as the leader last said, or decided if it is this node."""
        return self._explained.reason if self._explained is not None else ""

    @property
    def round(self) -> int:
        """The last round that this node was in; 0 for none."""
        return self._me.round

    @property
    def leading(self) -> bool:
        """Say whether this node decides, as far as it knows."""
        return self._leadership is not None

    # One operation after the other.

    def _pump(self, now: float) -> None:
        """Ask for the next operation that is needed, unless one is being performed."""
        if self._stopped:
            return
        self._check_join(now)
        leader = self._leadership
        if leader is not None and (decision := leader.decide(self._record, now)) is not None:
            self._explain(decision.progress)
        retry_at = self._trouble.retry_at
        if self._busy is not None or (retry_at is not None and now < retry_at):
            return
        if (op := self._next_op(now)) is not None:
            self._busy, self._busy_at = op, now
            self._effects.append(Perform(op))
        else:
            self._trouble.over()  # what failed is needed no more

    def _next_op(self, now: float) -> AnyOp | None:
        lease = self._lease.lease
        if lease is None:
            if self._leaving:
                self._stop(Left())
            needless = self._leaving or (self._record and self._record.status is Status.CLOSED)
            return None if needless else LeaseGrant(self._rules.lease_s, self._rules.linger_s)
        if self._closing is not None and (op := self._close_op(self._closing)) is not None:
            return op
        announce = self._presence.next_op(self._me if self._active else None, lease.id)
        if self._leaving:
            return (self._me.phase is Phase.LEFT and announce) or LeaseRevoke(lease.id)
        if now >= self._lease.keep_at:
            return LeaseKeep(lease.id)
        place = self._own_rank.next_op(self._record, self._me.round) if self._waits() else None
        return place or announce or self._count_op() or self._lead_op(lease, now)

    def _close_op(self, wish: Closed) -> AnyOp | None:
        if self._record is not None and self._record.status is Status.CLOSED:
            self._closing = None
            return None
        number = self._record.number if self._record else 1
        failed, at = wish.failed, wish.ended_at
        closed = RoundRecord(number, Status.CLOSED, wish.reason, failed=failed, ended_at=at)
        return CompareSet(self._keys.round, self._control.value(self._keys.round), closed.encode())

    def _count_op(self) -> AnyOp | None:
        raw = self._control.value(self._keys.failures)
        wanted = self._account.next_op(self._me.round, self._round_raw, raw)
        if isinstance(wanted, Counted):
            self._tell(wanted)
            return None
        return wanted

    def _lead_op(self, lease: Lease, now: float) -> AnyOp | None:
        leadership, value = self._leadership, self._control.value
        if leadership is None:
            if self._looked and value(self._keys.leader) is not None:
                return None
            return CompareSet(self._keys.leader, None, self._leader().encode(), lease.id)
        return leadership.next_op(self._record, value(self._keys.round), lease.id, now)

    def _leader(self) -> Leader:
        return Leader(self._me.node, self._term, self._nodes)

    # What came of an operation.

    def _performed(self, op: AnyOp, result: object, now: float) -> None:
        inner = op.op if isinstance(op, Guarded) else op
        match inner, result:
            case LeaseGrant(), Lease():
                self._effects += self._lease.granted(result, self._busy_at, now)
            case LeaseKeep(), _:
                self._effects += self._lease.renewed(self._busy_at, now)
            case LeaseRevoke(), _ if self._leaving:
                self._stop(Left())
            case LeaseRevoke(), _:
                self._begin_anew("this node gave its lease back, to take a new one")
            case Set(key, value), int():
                self._control_changed(key, value, result, now)
            case CompareSet(self._presence.key), Swap():
                self._presence.answered(inner, result)
            case CompareSet(key), Swap():
                self._looked = self._looked or key == self._keys.leader
                self._control_changed(key, result.value, result.revision, now)
            case MultiSet() | ListPrefix() | DeletePrefix(), _:
                if self._leadership is not None:
                    for entry in self._leadership.performed(inner, result, self._record):
                        self._control_changed(*entry, now)
            case Get(key), Entry() | None if key != self._keys.failures:
                if self._own_rank.answered(key, result, self._record) and self._waits():
                    self._take_place()
            case Get(), _:
                known = Failures.decode(result.value) if isinstance(result, Entry) else Failures()
                if self._leadership is not None:
                    self._leadership.read_failures(known.count)
                counted = self._account.read(known, self._me.round, self._round_raw)
                self._effects += [] if counted is None else [counted]
            case _:
                raise UsageError(f"{result!r:.80} is no result of {op!r:.80}")

    def _begin_anew(self, why: str) -> None:
        """Take another lease, since the last one is gone with all that it held (ND-3)."""
        self._lease.lost(in_round=self._me.phase is not Phase.WAITING)
        self._presence.lost()
        self._step_down()
        self._over(why)

    def _fenced(self, op: Guarded[object]) -> None:
        if op.key == self._keys.leader:
            self._step_down()  # ND-2
        else:
            self._round_raw = None  # the round is over, so its failures count no more (ND-4)

    # Following.

    def _control_changed(self, key: str, value: bytes | None, revision: int, now: float) -> None:
        if not self._control.is_news(key, value, revision):
            return
        try:
            if key == self._keys.round and value is not None:
                self._record_changed(RoundRecord.decode(value), now)
            elif key == self._keys.progress:
                progress = None if value is None else Progress.decode(value)
                if self._leadership is not None:
                    self._leadership.told(progress, now)
                elif progress is not None:
                    self._explain(progress)
            elif key == self._keys.leader:
                self._leader_changed(value, revision)
            elif key == self._keys.failures and value is not None:
                Failures.decode(value)
        except PeerViolation as error:
            self._stop(StoreLost(f"key {key!r} holds a foreign value: {error}"))

    def _leader_changed(self, value: bytes | None, revision: int) -> None:
        if value is not None and (theirs := Leader.decode(value).nodes) not in ("", self._nodes):
            self._stop(StoreLost(disagreement(self._nodes, theirs), usage=True))
            return
        elected = value == self._leader().encode()  # perhaps without an answer that said so
        if elected and not self.leading:
            me = self._leader()
            self._leadership = Leadership(revision, me, self._keys, self._rules, self._rank)
            self._effects.append(Follow(self._keys.root))
        elif self.leading and not elected:
            self._step_down()

    def _record_changed(self, record: RoundRecord, now: float) -> None:
        self._record = record
        if self._leadership is not None:
            self._leadership.record_changed(record)
        if record.status is Status.CLOSED:
            self._join_by = None
            # Closed first: a node that hears only that its round is over asks for another.
            self._tell_closed(record)
            self._over(record.reason)
            return
        if self._waits():
            self._wait_or_work(record, now)
        elif record.number > self._me.round:
            self._over(record.reason)

    def _tell_closed(self, record: RoundRecord) -> None:
        """Tell of the end, and whether it was there before this node: revisions say so."""
        revision = self._control.revision(self._keys.round)
        late = self._closing is None and not 0 < self._presence.came <= revision
        self._tell(Closed(record.reason, record.failed, record.ended_at, late))

    def _waits(self) -> bool:
        return self._active and self._me.phase is Phase.WAITING

    def _wait_or_work(self, record: RoundRecord, now: float) -> None:
        # A spare beside a complete round waits for as long as that lasts.
        forming = record.status is Status.FORMING
        self._join_by = now + self._rules.join_s if forming else None
        self._take_place()

    def _take_place(self) -> None:
        """Work in a round that names this node, once its place is known."""
        record, rank = self._record, self._own_rank.rank(self._record)
        if record is None or rank is None:
            return
        if record.status is Status.FORMING:
            # We were in the last round, even if we have never heard of it: this wish is newer.
            self._me = replace(self._me, round=max(self._me.round, record.number - 1))
        elif record.number > self._me.round:
            self._me = replace(self._me, phase=Phase.WORKING, round=record.number, why="")
            self._round_raw = self._control.value(self._keys.round)
            self._over_told = False
            self._tell(RoundReady(record, rank))

    def _over(self, reason: str) -> None:
        if self._active and self._me.phase is not Phase.WAITING and not self._over_told:
            self._over_told = True
            self._tell(RoundOver(self._me.round, reason))

    def _explain(self, progress: Progress) -> None:
        old, self._explained = self._explained, progress
        if progress != old:
            self._tell(Explained(progress))

    def _check_join(self, now: float) -> None:
        if self._join_by is None or now < self._join_by:
            return
        self._join_by = None
        self._active = False
        seen = self._explained.reason if self._explained else "no leader has reported yet"
        self._tell(TimedOut(f"no round within {self._rules.join_s:g} s: {seen}"))

    # Leading.

    def _step_down(self) -> None:
        if self._leadership is not None and not self._leaving:  # its host may be gone by now
            self._effects.append(Follow(self._keys.control))
        self._leadership = None
        self._looked = False
        self._term += 1

    def _tell(self, notice: Notice) -> None:
        self._effects.append(notice)

    def _stop(self, notice: Notice) -> None:
        if not self._stopped:
            self._stopped = True
            self._tell(notice)
