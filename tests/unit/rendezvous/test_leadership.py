"""What a leader sees, decides and tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import UsageError
from holdfast.ids import LeaseId, NodeId, RunId
from holdfast.rendezvous import roll
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import RoundOver, RoundReady
from holdfast.rendezvous.leadership import PROGRESS_EVERY_S, Leadership
from holdfast.rendezvous.model import (
    SWEEP_MAX,
    Announcement,
    Keys,
    Leader,
    Page,
    Phase,
    Progress,
    RoundRecord,
    Status,
)
from holdfast.rendezvous.ranks import sticky_ranks
from holdfast.store.ops import (
    AnyOp,
    Change,
    CompareSet,
    Delete,
    DeletePrefix,
    Entry,
    Get,
    Guarded,
    ListPrefix,
    MultiSet,
    Set,
)
from tests.unit.rendezvous.by_hand import NO_STORE, World, pair, record
from tests.unit.rendezvous.by_hand import RULES as PAIR_RULES

KEYS = Keys(RunId("job"))
ME = Leader(NodeId("a"), 2, "2:3")
PROOF = ME.encode()
LEASE = LeaseId(3)
RULES = Rules(min_nodes=2, max_nodes=3, join_s=100, last_call_s=10)


def node(name: str, phase: Phase = Phase.WAITING) -> Announcement:
    return Announcement(NodeId(name), f"host-{name}", "127.0.0.1", 1, phase, 0, None, "")


def entry(name: str, revision: int) -> Entry:
    return Entry(KEYS.node(NodeId(name)), node(name).encode(), revision)


def change(name: str, revision: int, *, gone: bool = False) -> Change:
    return Change(KEYS.node(NodeId(name)), None if gone else node(name).encode(), revision)


def leadership(*entries: Entry, since: int = 5) -> Leadership:
    leader = Leadership(since, ME, KEYS, RULES, sticky_ranks)
    leader.see_all(entries)
    return leader


def told(world: World) -> Progress:
    found = world.entry(KEYS.progress)
    assert found is not None
    return Progress.decode(found.value)


def reason(leader: Leadership, now: float = 0.0) -> str:
    decision = leader.decide(None, now)
    assert decision is not None
    return decision.reason


def test_a_blind_leader_decides_and_tells_nothing() -> None:
    leader = Leadership(5, ME, KEYS, RULES, sticky_ranks)
    assert leader.next_op(None, None, LEASE, 0.0) == ListPrefix(KEYS.root)
    assert leader.decide(None, 0.0) is None
    assert (leader.news(), leader.next_wake()) == (None, None)
    leader.see_all(())
    assert reason(leader) == "have 0 of 2: waiting for 2 more"


def test_a_change_that_is_heard_before_an_older_list_is_taken_with_it() -> None:
    """What a leader waits for and what it watches come on two ways."""
    leader = Leadership(5, ME, KEYS, RULES, sticky_ranks)
    leader.see(change("a", 9))
    leader.see(change("b", 10, gone=True))
    assert leader.decide(None, 0.0) is None
    leader.see_all((entry("b", 7), entry("c", 8)))
    assert [seen.node for _, seen in (leader._nodes or {}).values()] == ["c", "a"]
    leader.see_all((entry("b", 11),))  # what was heard early is taken once
    assert reason(leader).startswith("have 1 of 2")


def test_changes_after_the_list_are_taken_and_older_ones_are_not() -> None:
    leader = leadership(entry("a", 7))
    leader.see(change("a", 6, gone=True))  # the list is newer
    assert reason(leader).startswith("have 1 of 2")
    leader.see(change("b", 4))  # before this leadership: the list would have it
    assert reason(leader).startswith("have 1 of 2")
    leader.see(change("b", 8))
    assert reason(leader) == "have 2, enough: last call for up to 3"
    leader.see(change("b", 9, gone=True))
    assert reason(leader).startswith("have 1 of 2")
    leader.see(change("b", 10, gone=True))  # not known any more: nothing new
    assert leader.decision is not None


def test_what_is_no_announcement_is_no_node() -> None:
    other = Entry(KEYS.node(NodeId("x")), node("a").encode(), 7)  # says that it is another
    junk = Entry(KEYS.node(NodeId("y")), b"junk", 7)
    control = Entry(KEYS.leader, b"", 7)
    assert reason(leadership(other, junk, control)).startswith("have 0 of 2")


@pytest.mark.parametrize(("nodes", "have"), [("", 1), ("2:3", 1), ("3:3", 0)])
def test_nd7_a_node_that_expects_other_numbers_of_nodes_is_not_counted(
    nodes: str, have: int
) -> None:
    """It has not seen the leader yet, and ends when it does: no round is to begin or end by it."""
    odd = replace(node("a"), nodes=nodes)
    leader = leadership(Entry(KEYS.node(odd.node), odd.encode(), 7))
    assert reason(leader).startswith(f"have {have} of 2")


def test_nodes_count_by_their_arrival() -> None:
    leader = leadership(entry("a", 9), entry("b", 8), entry("c", 7), entry("d", 6))
    decision = leader.decide(None, 0.0)
    assert decision is not None
    assert decision.record is not None
    assert [member.node for member in decision.members] == ["b", "c", "d"]


def test_the_last_call_begins_when_there_are_enough_and_again_after_a_loss() -> None:
    leader = leadership(entry("a", 6), entry("b", 7))
    first = leader.decide(None, 100.0)
    assert first is not None
    assert first.wake_at == 110.0
    assert leader.decide(None, 109.0) is first  # nothing has changed
    leader.see(change("b", 8, gone=True))
    leader.decide(None, 109.0)
    leader.see(change("c", 9))
    again = leader.decide(None, 109.5)
    assert again is not None
    assert again.wake_at == 119.5
    done = leader.decide(None, 119.5)
    assert done is not None
    assert done.record is not None


def test_a_new_round_has_a_last_call_of_its_own() -> None:
    leader = leadership(entry("a", 6), entry("b", 7))
    leader.decide(None, 100.0)
    leader.decision = None
    decision = leader.decide(RoundRecord(2, Status.FORMING, ""), 105.0)
    assert decision is not None
    assert decision.wake_at == 115.0


def test_a_wish_older_than_the_last_round_starts_no_last_call() -> None:
    leader = leadership(entry("a", 6), entry("b", 7))  # both wishes are of round 0
    forming = RoundRecord(2, Status.FORMING, "", size=1, roll="1/z")
    page = Entry(KEYS.page("1/z", 0), Page((node("a").member(),)).encode(), 5)
    leader.performed(ListPrefix(KEYS.pages("1/z")), (page,), forming)
    waiting = leader.decide(forming, 100.0)
    assert waiting is not None
    assert waiting.reason == "have 1 of 2: waiting for 1 more (host-a)"
    fresh = replace(node("a"), round=1)
    leader.see(Change(KEYS.node(fresh.node), fresh.encode(), 8))
    called = leader.decide(forming, 105.0)
    assert called is not None
    assert called.wake_at == 115.0


def test_progress_is_told_once_and_not_too_often() -> None:
    leader = leadership(entry("a", 6))
    leader.decide(None, 0.0)
    news = leader.news()
    assert news is not None
    assert leader.may_tell(0.0)
    assert leader.next_wake() == 0.0
    leader.told(news, 0.0)
    assert leader.news() is None
    assert leader.next_wake() is None
    leader.see(change("b", 7))
    leader.decide(None, 0.1)
    assert leader.news() is not None
    assert not leader.may_tell(0.1)
    assert leader.next_wake() == PROGRESS_EVERY_S
    assert leader.may_tell(PROGRESS_EVERY_S)


def test_less_time_left_is_no_news() -> None:
    leader = leadership(entry("a", 6), entry("b", 7))
    leader.decide(None, 0.0)
    news = leader.news()
    assert news is not None
    leader.told(news, 0.0)
    leader.decision = None
    later = leader.decide(None, 5.0)
    assert later is not None
    assert later.progress.left_s == 5.0
    assert leader.news() is None


def test_a_record_is_published_and_not_told() -> None:
    leader = leadership(entry("a", 6), entry("b", 7), entry("c", 8))
    leader.decide(None, 0.0)
    assert leader.news() is None


def test_failures_are_read_afresh_for_every_round_that_is_formed() -> None:
    """RV-7."""
    leader = leadership(*(entry(name, 6) for name in "abc"))
    first, second = (RoundRecord(number, Status.FORMING, "") for number in (2, 3))
    assert not leader.must_read_failures(None)  # the first round: none can have been counted
    assert not leader.must_read_failures(replace(first, status=Status.COMPLETE))
    leader.read_failures(7)  # a reading that began before the round
    assert leader.must_read_failures(first)
    for forming, count in ((first, 1), (second, 4)):
        assert leader.must_read_failures(forming)
        leader.read_failures(count)
        assert not leader.must_read_failures(forming)
        decision = leader.decide(forming, 0.0)
        assert decision is not None
        assert decision.record is not None
        assert decision.record.failures == count


def test_a_leader_reads_publishes_and_tells_under_its_guard() -> None:
    """ND-2."""
    leader = leadership(entry("a", 6), entry("b", 7))
    forming = RoundRecord(2, Status.FORMING, "")
    leader.decide(forming, 0.0)
    assert leader.next_op(forming, b"old", LEASE, 0.0) == Get(KEYS.failures)
    leader.read_failures(0)
    decision = leader.decide(forming, 0.0)
    assert decision is not None
    tell: AnyOp = Guarded(KEYS.leader, PROOF, Set(KEYS.progress, decision.progress.encode(), LEASE))
    assert leader.next_op(forming, b"old", LEASE, 0.0) == tell
    leader.told(decision.progress, 0.0)
    assert leader.next_op(forming, b"old", LEASE, 0.0) is None
    done = leader.decide(forming, 10.0)
    assert done is not None
    assert done.record is not None
    page = leader.next_op(forming, b"old", LEASE, 10.0)
    assert isinstance(page, Guarded)
    assert (page.key, page.expected) == (KEYS.leader, PROOF)
    assert isinstance(page.op, MultiSet)
    leader.performed(page.op, 9, forming)
    publish = CompareSet(KEYS.round, b"old", done.record.encode())
    assert leader.next_op(forming, b"old", LEASE, 10.0) == Guarded(KEYS.leader, PROOF, publish)


class TestTheRoll:
    def drafted(self) -> tuple[Leadership, RoundRecord]:
        leader = leadership(*(entry(name, 6) for name in "abc"))
        decision = leader.decide(None, 0.0)
        assert decision is not None
        assert decision.record is not None
        return leader, decision.record

    def write(self, leader: Leadership) -> list[str]:
        """Write what the leader wants to write before its record; return the keys."""
        keys = []
        while isinstance(op := leader.next_op(None, None, LEASE, 0.0), Guarded) and isinstance(
            op.op, MultiSet
        ):
            keys += [key for key, _ in op.op.items]
            leader.performed(op.op, 9, None)
        return keys

    def test_rm2_it_is_written_by_pages_before_the_record(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(roll, "PAGE_MEMBERS", 2)
        leader, made = self.drafted()
        assert made.roll == "1/a.2.1"
        assert self.write(leader) == [
            KEYS.page(made.roll, 0),
            KEYS.place(made.roll, NodeId("a")),
            KEYS.place(made.roll, NodeId("b")),
            KEYS.page(made.roll, 1),
            KEYS.place(made.roll, NodeId("c")),
        ]
        publish = CompareSet(KEYS.round, None, made.encode())
        assert leader.next_op(None, None, LEASE, 0.0) == Guarded(KEYS.leader, PROOF, publish)

    def test_rm3_a_member_that_is_gone_begins_another(self) -> None:
        leader, made = self.drafted()
        self.write(leader)
        leader.see(change("c", 9, gone=True))
        leader.see(change("d", 10))
        again = leader.decide(None, 0.0)
        assert again is not None
        assert again.record is not None
        assert (made.roll, again.record.roll) == ("1/a.2.1", "1/a.2.2")
        assert [member.node for member in again.members] == ["a", "b", "d"]
        assert len(self.write(leader)) == 4

    def test_a_newcomer_begins_none(self) -> None:
        leader, made = self.drafted()
        leader.see(change("d", 10))
        decision = leader.decide(None, 0.0)
        assert decision is not None
        assert decision.record == made

    def test_a_page_of_another_attempt_counts_for_nothing(self) -> None:
        leader, _ = self.drafted()
        leader.performed(MultiSet((("other", b""),)), 9, None)
        assert len(self.write(leader)) == 4
        leader.record_changed(RoundRecord(2, Status.CLOSED, "over"))
        leader.performed(MultiSet((("other", b""),)), 9, None)  # came late

    def test_its_own_record_needs_no_reading(self) -> None:
        leader, made = self.drafted()
        leader.record_changed(made)
        over = leader.decide(made, 0.0)
        assert over is not None
        assert over.reason == made.reason

    def test_rm4_a_later_leader_reads_it(self) -> None:
        leader = leadership(entry("a", 6))
        made = RoundRecord(4, Status.COMPLETE, "so", size=2, roll="4/z")
        assert leader.decide(made, 0.0) is None
        op = leader.next_op(made, b"", LEASE, 0.0)
        assert op == ListPrefix(KEYS.pages("4/z"))
        members = tuple(node(name).member() for name in "ab")
        page = Entry(KEYS.page("4/z", 0), Page(members).encode(), 5)
        leader.performed(op, (page,), None)  # no record is known: another roll
        assert leader.decide(made, 0.0) is None
        leader.performed(op, (page,), made)
        decision = leader.decide(made, 0.0)
        assert decision is not None
        assert decision.reason == "round 4 is over: host-b is gone"

    def test_a_list_brings_the_control_keys_too(self) -> None:
        leader = Leadership(5, ME, KEYS, RULES, sticky_ranks)
        control = Entry(KEYS.round, b"", 7)
        found = (control, entry("a", 6))
        assert leader.performed(ListPrefix(KEYS.root), found, None) == (control,)
        assert reason(leader).startswith("have 1 of 2")

    def test_an_odd_result_is_refused(self) -> None:
        with pytest.raises(UsageError, match="'odd' is no result of ListPrefix"):
            leadership().performed(ListPrefix(KEYS.root), "odd", None)


class TestOldRounds:
    """RM-5."""

    def swept(self, leader: Leadership, number: int) -> list[str]:
        """Let a round be complete, and return what the leader removes then."""
        made = RoundRecord(number, Status.COMPLETE, "so", size=1, roll=f"{number}/z")
        page = Entry(KEYS.page(made.roll, 0), Page((node("a").member(),)).encode(), 5)
        leader.performed(ListPrefix(KEYS.pages(made.roll)), (page,), made)
        decision = leader.decide(made, 0.0)
        assert decision is not None
        leader.told(decision.progress, 0.0)
        prefixes = []
        while (op := leader.next_op(made, b"", LEASE, 0.0)) is not None:
            assert isinstance(op, Guarded)
            assert (op.key, op.expected) == (KEYS.leader, PROOF)
            assert isinstance(op.op, DeletePrefix)
            assert leader.next_op(made, b"", LEASE, 0.0) == op  # until it is done
            leader.performed(op.op, 9, made)
            prefixes.append(op.op.prefix)
        return prefixes

    def test_a_round_that_runs_removes_the_one_before_the_last(self) -> None:
        said = replace(node("a", Phase.WORKING), round=99)
        leader = leadership(Entry(KEYS.node(said.node), said.encode(), 7))
        assert self.swept(leader, 1) == self.swept(leader, 2) == []
        assert self.swept(leader, 3) == ["roll/job/1/", "round/job/1/", "board/job/1/"]
        assert self.swept(leader, 3) == []
        assert self.swept(leader, 4) == ["roll/job/2/", "round/job/2/", "board/job/2/"]

    def test_a_new_leader_removes_the_last_few(self) -> None:
        said = replace(node("a", Phase.WORKING), round=99)
        leader = leadership(Entry(KEYS.node(said.node), said.encode(), 7))
        found = self.swept(leader, 50)
        numbers = range(49 - SWEEP_MAX, 49)
        assert found == [prefix for number in numbers for prefix in KEYS.traces(number)]

    def test_nothing_is_removed_while_no_round_runs(self) -> None:
        leader = leadership(entry("a", 7))
        forming = RoundRecord(9, Status.FORMING, "so")
        decision = leader.decide(forming, 0.0)
        assert decision is not None
        leader.told(decision.progress, 0.0)
        assert leader.must_read_failures(forming)
        leader.read_failures(0)
        leader.decide(forming, 0.0)
        assert leader.next_op(forming, b"", LEASE, 0.0) is None
        assert leader.next_op(None, b"", LEASE, 0.0) is None

    def test_rounds_leave_no_more_than_a_few_keys(self) -> None:
        world, a, b = pair()
        counts = []
        for number in range(2, 30):
            for each in (a, b):
                each.node.ask("again", world.now)
            world.run(1)
            assert record(world).number == number
            world.put(KEYS.of_round(number) + "x", b"")
            world.put(f"{KEYS.board}{number}/done/0", b"")
            counts.append(len(world.space))
        assert counts[2] == counts[-1]


class TestANodeThatLeads:
    def test_progress_that_comes_late_is_told_anew(self) -> None:
        """Members rely on it: a node that waits beside a round is admitted."""
        world, a, _b = pair(replace(PAIR_RULES, max_nodes=3, last_call_s=0))
        world.run(PROGRESS_EVERY_S)
        (old,) = [op for op in a.ops if isinstance(op, Guarded) and isinstance(op.op, Set)][-1:]
        world.add("c")
        world.run(PROGRESS_EVERY_S)
        assert told(world).waiting == 1
        world.apply(old)
        assert told(world).waiting == 0
        world.run(PROGRESS_EVERY_S)
        assert told(world).waiting == 1

    def test_the_leader_dies_and_another_takes_over(self) -> None:
        world, a, b = pair()
        world.kill(a)
        world.run(PAIR_RULES.lease_s + 0.1)
        assert b.node.leading
        assert b.the(RoundOver).reason == "round 1 is over: host-a is gone"

    def test_a_replaced_leader_publishes_nothing(self) -> None:
        """ND-2: its decision was on its way when it lost the lead."""
        world, a, b = pair()
        a.hold = Guarded
        b.node.ask("one", world.now)
        world.settle()
        assert isinstance(a.held, Guarded)  # the new record, about to be published
        a.stopped = True
        world.run(PAIR_RULES.lease_s + 1)
        assert b.node.leading
        published = record(world)
        a.stopped = False
        a.let_go()
        assert record(world) == published
        world.settle()
        assert not a.node.leading
        assert b.node.leading

    def test_a_leader_hears_of_its_replacement(self) -> None:
        world, a, _b = pair()
        world.put(KEYS.leader, Leader(NodeId("b"), 7).encode())
        world.settle()
        assert not a.node.leading
        assert a.prefix == KEYS.control

    def test_an_election_that_was_won_without_hearing_of_it(self) -> None:
        world = World(PAIR_RULES)
        a = world.add("a")
        a.hold = CompareSet
        world.settle()
        held = a.held
        assert isinstance(held, CompareSet)
        world.apply(held)  # it happened; the answer was lost
        a.node.failed(NO_STORE, world.now)
        a.hold = a.held = None
        world.run(1)
        assert a.node.leading

    def test_an_election_that_was_won_is_heard_of_by_the_watch(self) -> None:
        """The node has looked before: it would not try again, and no node would lead."""
        world, a, b = pair()
        b.hold = CompareSet
        world.kill(a)
        world.run(PAIR_RULES.lease_s + 0.1)
        assert isinstance(b.held, CompareSet)
        world.apply(b.held)
        b.hold = b.held = None
        b.node.failed(NO_STORE, world.now)  # the answer was lost
        world.settle()
        assert b.node.leading
        world.run(1)
        assert b.the(RoundOver).reason == "round 1 is over: host-a is gone"

    def test_a_node_that_does_not_lead_does_not_pay_for_others(self) -> None:
        """ND-5."""
        counts = []
        for size in (2, 40):
            world = World(replace(PAIR_RULES, min_nodes=size, max_nodes=size))
            nodes = [world.add(f"n{number}") for number in range(size)]
            world.run(1)
            assert all(node.take(RoundReady) for node in nodes)
            assert [node.node.leading for node in nodes].count(True) == 1
            followers = [node for node in nodes if not node.node.leading]
            counts.append(max(len(node.ops) for node in followers))
            assert all(node.prefix == KEYS.control for node in followers)
            assert not any(isinstance(op, ListPrefix) for node in followers for op in node.ops)
        assert counts[0] == counts[1]

    def test_changes_of_nodes_are_nothing_to_a_follower(self) -> None:
        world, _a, b = pair()
        entry = world.entry(KEYS.node(NodeId("a")))
        assert entry is not None
        b.node.changed([Change(entry.key, None, entry.revision + 99)], world.now)
        world.settle()
        assert b.take(RoundOver) == []

    def test_a_leader_that_loses_its_lead_while_it_lists(self) -> None:
        world = World(PAIR_RULES)
        a = world.add("a")
        a.hold = ListPrefix
        world.settle()
        world.put(KEYS.leader, Leader(NodeId("z"), 0).encode())
        a.inbox, changes = [], a.inbox
        a.node.changed(changes, world.now)
        assert not a.node.leading
        a.let_go()
        world.settle()
        assert not a.node.leading

    def test_a_leader_that_loses_its_lead_while_it_tells(self) -> None:
        world, a, _b = pair()
        a.hold = Guarded
        world.add("s")
        world.run(1)
        held = a.held
        assert isinstance(held, Guarded)
        assert isinstance(held.op, Set)
        result = world.apply(held)
        world.apply(Delete(KEYS.leader))
        changes, a.inbox = a.inbox, []
        a.node.changed(changes, world.now)
        assert not a.node.leading
        a.hold = a.held = None
        a.node.done(result, world.now)
        world.run(1)
        assert a.node.leading  # again, since no other node did
