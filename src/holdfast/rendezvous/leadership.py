"""What a leader knows, decides and does: the nodes that it sees, and what becomes of the round.

Pure, as `machine.py` of which it is a part: a new one is made for each leadership.
"""

from __future__ import annotations

from holdfast.errors import PeerViolation, UsageError
from holdfast.ids import LeaseId, NodeId
from holdfast.rendezvous.decide import Decision, Rules, Situation, decide
from holdfast.rendezvous.model import (
    SWEEP_MAX,
    Announcement,
    Keys,
    Leader,
    Member,
    Progress,
    RoundRecord,
    Status,
)
from holdfast.rendezvous.ranks import RankPolicy
from holdfast.rendezvous.roll import Draft, read_roll
from holdfast.store.ops import (
    AnyOp,
    Change,
    CompareSet,
    DeletePrefix,
    Entry,
    Get,
    Guarded,
    KeyWrite,
    ListPrefix,
    MultiSet,
    Set,
)

__all__ = ["Leadership"]

PROGRESS_EVERY_S = 0.25
"""Progress is told no more often than this, so that a thousand joins are not a thousand tales."""


class Leadership:
    """One node's time as the leader, which began at the store's revision `since`.

    `me` is the leader's own entry: whatever it writes is guarded by that (ND-2).
    """

    def __init__(self, since: int, me: Leader, keys: Keys, rules: Rules, rank: RankPolicy) -> None:
        self._since = since
        self._me = me
        self._proof = me.encode()
        self._keys = keys
        self._rules = rules
        self._rank = rank
        # Every announced node with its revision; None until the first list is there.
        self._nodes: dict[NodeId, tuple[int, Announcement]] | None = None
        self._early: list[Change] = []  # heard before that list, which may be older
        # The newest roll whose members are known, and the round that is being written down.
        self._roll: tuple[str, tuple[Member, ...]] = ("", ())
        self._draft: Draft | None = None
        self._drafts = 0
        # The newest round whose traces are removed, and those that are to be removed now (RM-5).
        self._swept = 0
        self._sweep: list[str] = []
        # Since when this leader sees the current round being formed, and with enough nodes.
        self._forming: tuple[int, float] = (0, 0.0)
        self._enough_since: float | None = None
        # How many failures had been counted before a round: its number, and how many.
        self._failures = (1, 0)
        self._reading = 0  # the round for which they are being read
        self._told: Progress | None = None
        self._tell_at = 0.0
        self.decision: Decision | None = None
        """The newest decision; None if something has changed since."""

    def see_all(self, entries: tuple[Entry, ...]) -> None:
        """Take the list of everything that is announced."""
        self._nodes = {}
        for entry in entries:
            if entry.key.startswith(self._keys.nodes):
                self._see(entry.key, entry.value, entry.revision)
        self.decision = None
        early, self._early = self._early, []
        for change in early:
            self.see(change)

    def see(self, change: Change) -> None:
        """Take a change of an announcement, unless the list has overtaken it."""
        if self._nodes is None:
            self._early.append(change)
            return
        node = NodeId(change.key.removeprefix(self._keys.nodes))
        known = self._nodes[node][0] if node in self._nodes else self._since
        if change.revision <= known:
            return
        if self._draft is not None and self._draft.names(node):
            self._draft = None  # it is gone, or asks for something else
        if change.value is not None:
            self._see(change.key, change.value, change.revision)
        elif node in self._nodes:
            del self._nodes[node]
            self.decision = None

    def _see(self, key: str, value: bytes, revision: int) -> None:
        try:
            found = Announcement.decode(value)
        except PeerViolation:
            return  # not a node that we could work with
        if found.nodes not in ("", self._rules.nodes):
            return  # it ends as soon as it sees the leader (ND-7)
        if self._nodes is not None and self._keys.node(found.node) == key:
            self._nodes[found.node] = (revision, found)
            self.decision = None

    def performed(
        self, op: MultiSet | ListPrefix | DeletePrefix, result: object, record: RoundRecord | None
    ) -> tuple[Entry, ...]:
        """Hear that what `next_op` wanted was done; return what was read of control keys.

        These are newer than the election, and no other node has published a round since (ND-2): so
        is the record that this leader goes by. PeerViolation if a roll is not what it should be.
        """
        match op, result:
            case MultiSet(), int():
                if self._draft is not None:
                    self._draft.wrote(op)
            case DeletePrefix(prefix), int():
                self._sweep = [left for left in self._sweep if left != prefix]
            case ListPrefix(self._keys.root), tuple():
                self.see_all(result)
                return tuple(one for one in result if not one.key.startswith(self._keys.nodes))
            case ListPrefix(prefix), tuple():
                if record is not None and prefix == self._keys.pages(record.roll):
                    self._roll = (record.roll, read_roll(result, self._keys, record))
                    self.decision = None
            case _:
                raise UsageError(f"{result!r:.80} is no result of {op!r:.80}")
        return ()

    def record_changed(self, record: RoundRecord) -> None:
        """Hear of another record; the leader itself may have published it."""
        draft, self._draft = self._draft, None
        if draft is not None and draft.record == record:
            self._roll = (record.roll, draft.members)
        self.decision = None

    def must_read_failures(self, record: RoundRecord | None) -> bool:
        """Say whether the failures before the round that is being formed must be read first.

        What was heard of them may be older than the round's beginning: it does not serve (RV-7).
        """
        if record is None or record.status is not Status.FORMING:
            return False
        self._reading = record.number
        return record.number != self._failures[0]

    def read_failures(self, count: int) -> None:
        """Hear how many were read, if that was begun after `must_read_failures`."""
        if self._reading:
            self._failures = (self._reading, count)
            self.decision = self._draft = None

    def decide(self, record: RoundRecord | None, now: float) -> Decision | None:
        """Return the decision, made afresh if something has changed or its time has come."""
        old = self.decision
        if self._nodes is None or self._must_read_roll(record):
            return None
        if self._draft is not None:  # all of its members still ask; others may wait
            self.decision = self._draft.decision
            return self.decision
        if old is not None and (old.wake_at is None or now < old.wake_at):
            return old
        record = record or RoundRecord(1, Status.FORMING, "the run begins")
        if record.number != self._forming[0]:
            self._forming = (record.number, now)
            self._enough_since = None
        arrived = sorted(self._nodes.values(), key=lambda seen: seen[0])
        nodes = {node.node: node for _, node in arrived}
        since, enough_since = self._forming[1], self._enough_since
        seen = Situation(record, self._roll[1], nodes, since, enough_since, self._failures[1])
        decision = decide(seen, self._rules, now, self._rank)
        if decision.record is not None and decision.record.status is Status.COMPLETE:
            self._drafts += 1
            roll = f"{record.number}/{self._me.node}.{self._me.term}.{self._drafts}"
            self._draft = Draft(roll, decision, decision.record, self._keys)
            decision = self._draft.decision
        self.decision = decision
        if decision.progress.have < self._rules.min_nodes:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        return decision

    def _must_read_roll(self, record: RoundRecord | None) -> bool:
        if record is None or record.status is Status.CLOSED:
            return False
        return record.roll != self._roll[0]

    # What to do.

    def next_op(
        self, record: RoundRecord | None, raw: bytes | None, lease: LeaseId, now: float
    ) -> AnyOp | None:
        """Return what a leader must do next: see the nodes, publish its decision, or tell it."""
        if self._nodes is None:
            return ListPrefix(self._keys.root)
        if record is not None and self._must_read_roll(record):
            return ListPrefix(self._keys.pages(record.roll))
        if self.must_read_failures(record):
            return Get(self._keys.failures)
        if self._draft is not None and (page := self._draft.next_op()) is not None:
            return self._guard(page)
        if self.decision is not None and self.decision.record is not None:
            return self._guard(CompareSet(self._keys.round, raw, self.decision.record.encode()))
        news = self.news()
        if news is not None and self.may_tell(now):
            return self._guard(Set(self._keys.progress, news.encode(), lease))
        return self._sweep_op(record)

    def _sweep_op(self, record: RoundRecord | None) -> AnyOp | None:
        """Return what removes the traces of an old round; None if none is left (RM-5)."""
        if record is None or record.status is not Status.COMPLETE:
            return None
        last = record.number - 2
        for number in range(max(self._swept, last - SWEEP_MAX) + 1, last + 1):
            self._sweep += self._keys.traces(number)
        self._swept = max(self._swept, last)
        return self._guard(DeletePrefix(self._sweep[0])) if self._sweep else None

    def _guard(self, op: KeyWrite) -> AnyOp:
        return Guarded(self._keys.leader, self._proof, op)

    def news(self) -> Progress | None:
        """Return the progress if the others have not heard it yet."""
        if self.decision is None or self.decision.record is not None:
            return None
        new = self.decision.progress
        return None if new == self._told else new

    def told(self, progress: Progress | None, now: float) -> None:
        """Hear that the others can read this progress now, be it an older one that came late."""
        self._told = progress
        self._tell_at = now + PROGRESS_EVERY_S

    def next_wake(self) -> float | None:
        """Return when to decide or to tell, even if nothing happens."""
        moments = []
        if self.decision is not None and self.decision.wake_at is not None:
            moments.append(self.decision.wake_at)
        if self.news() is not None:
            moments.append(self._tell_at)
        return min(moments, default=None)

    def may_tell(self, now: float) -> bool:
        """Say whether it is time to tell again."""
        return now >= self._tell_at
