"""Did a run's nodes keep their word? The judge of a simulated cluster, at every step of it.

The truth is the history of the run's keys in the store, which the server tells the judge change
by change, and every operation with its guard. What nodes tell is compared with that.

    S1  a round number has one list of members, each once; a node that is told of a round is in it
    S2  min ≤ members ≤ max
    S3  rounds follow each other by one, nothing follows the end, a complete round never changes,
        and no write that is guarded by a round is performed in another
    S4  the run is closed only by a node that closes it
    S5  each end of a round uses up one event: the announcement of one of its members went away
        (death, silence, leaving, giving up), or one of them asked of its own accord; a
        node that stays has a place in the next one
    S6  a failure is counted once for each round, while it lasts, by one at a time; a node that is
        told so while its round lasts is told the truth
    S7  a round says how many failures were counted before it, the same to all of its members
    S8  a node has left for good only if it finished before, and then no round ends by that, until
        all members have; one that died before it left, ends it (the cluster's L1)
    RM  a record names a roll that is written whole, by the node that leads, and that has one list;
        nothing is written to it later
    ND  a node works in one round at a time, and learns that it is over if it lost its lease;
        only the node that leads according to the store publishes

Also: a node that stays keeps its rank, every record says why, and a node that has left has
left nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from holdfast.ids import LeaseId, NodeId
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Effect,
    Left,
    Notice,
    RoundOver,
    RoundReady,
    TimedOut,
)
from holdfast.rendezvous.model import (
    Announcement,
    Failures,
    Keys,
    Leader,
    Member,
    MemberRank,
    Page,
    Phase,
    RoundRecord,
    Status,
)
from holdfast.store.ops import Add, AnyOp, Change, CompareSet, DeletePrefix, Guarded, MultiSet

__all__ = ["Judge"]


class Judge:
    """Watches one run. `fail` is told of every promise that is broken."""

    def __init__(
        self, keys: Keys, rules: Rules, fail: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self.keys = keys
        self.rules = rules
        self.record: RoundRecord | None = None
        """The current round, by the store's word."""
        self.rounds: dict[int, RoundRecord] = {}
        """Every round that was complete."""
        self._rolls: dict[str, tuple[Member, ...]] = {"": ()}
        self.announced: dict[NodeId, Announcement] = {}
        """The nodes that the store knows."""
        self.leader: NodeId | None = None
        self.counts: Counter[str] = Counter()
        self.on_control: Callable[[], None] = lambda: None
        """Called when the leader or the round has changed, or a page was written."""
        self.on_finish: Callable[[NodeId], None] = lambda node: None
        """Called when a node's user is done with a round."""
        self._fail = fail
        self._clock = clock
        self._values: dict[str, bytes] = {}
        self._closing = False
        self._counted: set[int] = set()
        # What may still end a round: how often a node went away, and which ask in which round.
        self._gone: Counter[NodeId] = Counter()
        self._asking: set[tuple[NodeId, int]] = set()
        # Which nodes have finished which round, and the last round of each that left after it.
        self._finished: set[tuple[NodeId, int]] = set()
        self._left: dict[NodeId, int] = {}
        # The round that each node works in, and the newest that it has been in.
        self._working: dict[NodeId, int] = {}
        self._newest: dict[NodeId, int] = {}
        # Members of the last complete round that never went away since; and when it ended.
        self._faithful: set[NodeId] = set()
        self._forming_since = 0.0

    # What users do.

    def closes(self) -> None:
        """Note that a node closes the run."""
        self._closing = True

    def asks(self, node: NodeId, number: int) -> None:
        """Hear that a node that works in a round will ask for another of its own accord."""
        self._asking.add((node, number))

    def finishes(self, node: NodeId, number: int) -> None:
        """Hear that a node's user is done with a round."""
        self._finished.add((node, number))
        self.counts["finished"] += 1
        self.on_finish(node)

    # What the store does.

    def curtailed(self, lease: LeaseId) -> None:
        """Hear that a lease will end early, since the connection of its holder was closed."""

    def performed(self, op: AnyOp) -> None:
        """Hear of an operation that the store performed, before its changes."""
        guard = op if isinstance(op, Guarded) else None
        if guard is not None and self._values.get(guard.key) != guard.expected:
            self._fail(f"S3: performed, though {guard.key!r} is not as it was: {guard.op}")
        match guard.op if guard else op:
            case CompareSet(self.keys.round, _, bytes() as desired) if guard is None:
                if RoundRecord.decode(desired).status is not Status.CLOSED:
                    self._fail("ND-2: a round is published without proof of leadership")
            case MultiSet(((key, _), *_)) if key.startswith(self.keys.rolls):
                self.counts["pages"] += 1
                if guard is None or guard.key != self.keys.leader:
                    self._fail(f"RM-2: {key!r} is written without proof of leadership")
                self.on_control()
            case DeletePrefix(prefix):
                self.counts["rounds swept"] += prefix.startswith(self.keys.rolls)
                traces = [
                    self.keys.traces(number) for number in self.rounds if self._is_old(number)
                ]
                led = guard is not None and guard.key == self.keys.leader
                if not led or not any(prefix in one for one in traces):
                    self._fail(f"RM-5: {prefix!r} was removed in {self.record}")
            case Add(key) if not key.startswith(self.keys.board):
                self.counts["writes of rounds"] += 1
                if self.record is None or not key.startswith(
                    self.keys.of_round(self.record.number)
                ):
                    self._fail(f"S3: {key!r} was written in {self.record}")
            case _:
                pass

    def changed(self, change: Change) -> None:
        """Hear of a change of a key."""
        key, value = change.key, change.value
        if key.startswith(self.keys.nodes):
            self._node_changed(NodeId(key.removeprefix(self.keys.nodes)), value)
            return
        if key.startswith(self.keys.rolls):
            self._roll_changed(key, value)
        old = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        if key == self.keys.round:
            if value is None:
                self._fail("S3: the round was deleted")
                return
            self._record_changed(RoundRecord.decode(value))
            self.on_control()
        elif key == self.keys.leader:
            self.leader = None if value is None else Leader.decode(value).node
            self.counts["leaderships"] += value is not None
            self.on_control()
        elif key == self.keys.failures and value is not None:
            before = Failures() if old is None else Failures.decode(old)
            self._failures_changed(before, Failures.decode(value))

    def _roll_changed(self, key: str, value: bytes | None) -> None:
        roll = key.removeprefix(self.keys.rolls).rsplit("/", 2)[0]
        if value is None and self._is_old(int(roll.partition("/")[0])):
            return
        if roll in self._rolls and value != self._values.get(key):
            self._fail(f"RM-3: {key!r} was changed, and a record names it")

    def _is_old(self, number: int) -> bool:
        record = self.record
        if record is None:
            return False
        return number <= record.number - (3 if record.status is Status.FORMING else 2)

    def members_of(self, record: RoundRecord) -> tuple[Member, ...]:
        """Return the members of the record's roll, as it stood when a record first named it."""
        if record.roll in self._rolls:
            return self._rolls[record.roll]
        prefix = self.keys.pages(record.roll)
        pages = sorted(key for key in self._values if key.startswith(prefix))
        members = tuple(
            member for key in pages for member in Page.decode(self._values[key]).members
        )
        places = {
            key: MemberRank.decode(value)
            for key, value in self._values.items()
            if key.startswith(self.keys.rolls + record.roll + "/place/")
        }
        right = {
            self.keys.place(record.roll, member.node): MemberRank(rank)
            for rank, member in enumerate(members)
        }
        if len(members) != record.size or places != right:
            self._fail(f"RM-2: {record} names a roll of {members} and {places}")
        if members and (members[0].address, members[0].port) != (record.address, record.port):
            self._fail(f"RM-2: the first of {members} is not where {record} says")
        self._rolls[record.roll] = members
        return members

    def _node_changed(self, node: NodeId, value: bytes | None) -> None:
        said = None if value is None else Announcement.decode(value)
        if said is not None and said.phase is Phase.LEFT:
            self.counts["finished and left"] += 1
            if (node, said.round) not in self._finished:
                self._fail(f"S8: {node} has not finished round {said.round}, and has left it")
            self._left[node] = said.round
            self._faithful.discard(node)
            self.announced.pop(node, None)
        elif said is not None:
            self.announced[node] = said
        elif self.announced.pop(node, None) is not None:
            self._gone[node] += 1
            self._faithful.discard(node)

    def _record_changed(self, new: RoundRecord) -> None:
        old, self.record = self.record, new
        if not new.reason:
            self._fail(f"RV-6: no reason is given: {new}")
        number = old.number if old else 1
        match old.status if old else Status.FORMING, new.status:
            case Status.CLOSED, _:
                self._fail(f"S3: the run was closed, and goes on: {new}")
            case _, Status.CLOSED:
                if not self._closing:
                    self._fail(f"S4: nobody closed the run, and it is closed: {new.reason}")
            case Status.FORMING, Status.COMPLETE if new.number == number:
                self._completed(new)
            case Status.COMPLETE, Status.FORMING if old and new.number == number + 1:
                if (new.roll, new.size) != (old.roll, old.size):
                    self._fail(f"RM-4: {new} does not name the roll of {old}")
                self._ended(old, new)
            case _:
                self._fail(f"S3: after {old} came {new}")

    def _completed(self, record: RoundRecord) -> None:
        self.counts["rounds"] += 1
        number, ids = record.number, [member.node for member in self.members_of(record)]
        if len(set(ids)) != len(ids) or number in self.rounds:
            self._fail(f"S1: {record}")
        if record.failures != len(self._counted):
            self._fail(f"S7: {len(self._counted)} rounds had a failure before {record}")
        if not self.rules.min_nodes <= len(ids) <= self.rules.max_nodes:
            self._fail(f"S2: {len(ids)} members, not {self.rules}")
        before = self.rounds.get(number - 1)
        for rank, member in enumerate(self.members_of(before) if before else ()):
            if member.node in ids and rank < len(ids) and ids.index(member.node) != rank:
                self._fail(f"rank {rank} of round {number - 1} is another in round {number}")
        if before is not None:
            self._check_places(set(ids))
        self.rounds[number] = record
        self._faithful = set(ids) & self.announced.keys()
        if len(self.announced) > len(ids) == self.rules.max_nodes:
            self.counts["rounds with spares"] += 1

    def _check_places(self, now: set[NodeId]) -> None:
        """Check that no node that stayed lost its place: it would only mean one more round."""
        patient = self._clock() < self._forming_since + 0.9 * self.rules.grace_s
        if patient and self._faithful - now:
            self._fail(f"S5: {sorted(self._faithful - now)} stayed and lost their places")

    def _ended(self, old: RoundRecord, new: RoundRecord) -> None:
        self._forming_since = self._clock()
        members = [member.node for member in self.members_of(old)]
        asking = [node for node in members if (node, old.number) in self._asking]
        gone = [node for node in members if self._gone[node]]
        if asking:
            self._asking.discard((asking[0], old.number))
        elif gone:
            self._gone[gone[0]] -= 1
        elif not all(self._has_left(node, old) for node in members):
            self._fail(f"S5: round {old.number} ended without an event: {new.reason}")

    def _has_left(self, node: NodeId, record: RoundRecord) -> bool:
        return self._left.get(node) == record.number

    def _failures_changed(self, old: Failures, new: Failures) -> None:
        record = self.record
        current = record is not None and (record.status, record.number) == (
            Status.COMPLETE,
            new.round,
        )
        if (
            new != old.plus(new.round, *new.times[-1:] or (0.0,))
            or new.round in self._counted
            or not current
        ):
            self._fail(f"S6: in {record}, {old} became {new}")
        self._counted.add(new.round)
        if new.count != len(self._counted):
            self._fail(f"S6: {new}, but {len(self._counted)} rounds had a failure")
        self.counts["failures counted"] += 1

    # What nodes tell.

    def told(self, node: NodeId, notice: Notice) -> None:
        """Hear what a node's machine tells its user."""
        match notice:
            case RoundReady(record, rank):
                self._told_ready(node, record, rank)
            case RoundOver(number):
                self.counts["rounds over"] += 1
                if self._working.pop(node, number) != number:
                    self._fail(f"ND-1: {node} does not work in round {number}, which is over")
            case Closed():
                if self.record is None or self.record.status is not Status.CLOSED:
                    self._fail(f"{node} takes the run for closed: {self.record}")
            case Counted(number):
                self._told_counted(node, number)
            case Left():
                # One that has said so need not hear that its lease is revoked: it ends by itself.
                leads = self.leader == node and node not in self._left
                if node in self.announced or leads:
                    self._fail(f"{node} has left, and is still in the store")
            case TimedOut():
                self.counts["joins timed out"] += 1
            case _:
                pass

    def lost_lease(self, node: NodeId, notices: Sequence[Effect]) -> None:
        """Hear that a node has lost its lease, and what it tells then (ND-3)."""
        number, record = self._working.get(node), self.record
        lasts = record is not None and (record.status, record.number) == (Status.COMPLETE, number)
        if lasts and not any(isinstance(notice, RoundOver) for notice in notices):
            self._fail(f"ND-3: {node} was silent for too long, and works on in round {number}")

    def rests(self, node: NodeId) -> None:
        """Hear that a node's user does not work in a round any more."""
        self._working.pop(node, None)

    def _told_ready(self, node: NodeId, record: RoundRecord, rank: int) -> None:
        if self.rounds.get(record.number) != record or self.members_of(record)[rank].node != node:
            self._fail(f"S1: {node} is told of rank {rank} in {record}")
        if node in self._working or record.number <= self._newest.get(node, 0):
            working = self._working.get(node)
            self._fail(f"ND-1: {node} works in {working}, is told of {record.number}")
        self._working[node] = self._newest[node] = record.number

    def _told_counted(self, node: NodeId, number: int) -> None:
        record = self.record
        lasts = record is not None and (record.status, record.number) == (Status.COMPLETE, number)
        if lasts and self._working.get(node) == number and number not in self._counted:
            self._fail(f"S6: the failure of round {number} at {node} is not counted")

    # What is true now.

    def all_in(self, nodes: list[NodeId]) -> bool:
        """Say whether these nodes are in the current round, but for those that find no place."""
        record = self.record
        if record is None or record.status is not Status.COMPLETE:
            return False
        members = {member.node for member in self.members_of(record)}
        left = {node for node in members if self._has_left(node, record)}
        full = len(members) == self.rules.max_nodes
        working = [node for node in nodes if self._working.get(node) == record.number]
        waiting = [
            node
            for node in nodes
            if node not in members
            and node in self.announced
            and self.announced[node].phase is Phase.WAITING
        ]
        return (
            bool(working)
            and set(working) | left == members
            and len(working) + len(waiting) == len(nodes)
            and (full or not waiting or self._ending(record))
        )

    def members(self) -> set[NodeId]:
        """Return the members of the current round, or of the one before while it is formed."""
        return {member.node for member in self.members_of(self.record)} if self.record else set()

    def stands(self, nodes: list[NodeId]) -> bool:
        """Say whether a round is complete with these nodes, and those that have left it."""
        record = self.record
        if record is None or record.status is not Status.COMPLETE:
            return False
        alive = {member.node for member in self.members_of(record)} & set(nodes)
        left = [node for node in self.members() if self._has_left(node, record)]
        return bool(alive) and len(alive) + len(left) == record.size

    def _ending(self, record: RoundRecord) -> bool:
        said = [self.announced.get(member.node) for member in self.members_of(record)]
        finished = any(one.phase is Phase.FINISHED for one in said if one is not None)
        return finished or any(self._has_left(node, record) for node in self.members())
