"""A node's steps in words."""

from __future__ import annotations

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.ids import LeaseId, NodeId
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Effect,
    Explained,
    Follow,
    LeaseHeld,
    Left,
    Perform,
    RoundOver,
    RoundReady,
    StoreLost,
    TimedOut,
)
from holdfast.rendezvous.inputs import (
    AskRound,
    CloseRun,
    FinishRound,
    KeysChanged,
    LeaveRun,
    NodeBegins,
    NodeInput,
    NodeTick,
    OpDone,
    OpFailed,
    ReportFailure,
    WithdrawWish,
)
from holdfast.rendezvous.model import (
    Announcement,
    Failures,
    Leader,
    Member,
    MemberRank,
    Page,
    Phase,
    Progress,
    RoundRecord,
    Status,
)
from holdfast.rendezvous.story import NODE_STORY, tell_effect, tell_input
from holdfast.store.ops import (
    Add,
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
from tests.unit.rendezvous.by_hand import KEYS

A = NodeId("a")
LEASE = LeaseId(7)
MINE = KEYS.node(A)
ME = Announcement(A, "host-a", "10.0.0.1", 1, Phase.WAITING, 2, None, "")
ROUND = RoundRecord(3, Status.COMPLETE, "enough", size=1, roll="3/a.0.1")
PAGE = Page((Member(A, "host-a", "10.0.0.1", 1), Member(NodeId("b"), "host-b", "", 1)))
PROGRESS = Progress(1, 1, 0, (), None, "have 1 of 2")

INPUTS: list[tuple[NodeInput, str]] = [
    (NodeBegins(), "the node begins"),
    (AskRound(""), "its agent asks for a round"),
    (AskRound("a failure"), "its agent asks for a round, because a failure"),
    (WithdrawWish(), "its agent takes its wish back"),
    (FinishRound(), "its agent is done with the round"),
    (ReportFailure(1.0), "its agent reports a failure"),
    (CloseRun("spent", True, 1.0), "its agent closes the run as failed: spent"),
    (LeaveRun(), "its agent leaves the run"),
    (
        KeysChanged((Change(MINE, None, 4), Change(KEYS.round, ROUND.encode(), 5))),
        "keys changed: node/a is gone; ctl/round: 3 complete, 1 in 3/a.0.1",
    ),
    (OpDone(Lease(LEASE, 15.0)), "the store answers: lease 7, 15 s"),
    (OpDone(Swap(True, b"", 4)), "the store answers: written, revision 4"),
    (OpDone(Swap(False, b"", 4)), "the store answers: refused, revision 4"),
    (OpDone((Entry("k", b"v", 1),) * 2), "the store answers: 2 keys"),
    (
        OpDone(Entry(KEYS.failures, Failures(2).encode(), 1)),
        "the store answers: ctl/failures: 2",
    ),
    (
        OpDone(Entry(KEYS.place("3/a.0.1", A), MemberRank(4).encode(), 1)),
        "the store answers: place/a: rank 4",
    ),
    (OpDone(None), "the store answers: None"),
    (OpFailed(StoreUnavailable("gone")), "the store fails: StoreUnavailable: gone"),
    (NodeTick(), "time passes"),
]


@pytest.mark.parametrize(("event", "told"), INPUTS)
def test_inputs(event: NodeInput, told: str) -> None:
    assert tell_input(event) == told


def test_every_input_is_told() -> None:
    assert {type(event) for event, _ in INPUTS} == set(NODE_STORY.inputs)


EFFECTS: list[tuple[Effect, str]] = [
    (Follow(KEYS.control), "follows rdzv/job/ctl/"),
    (RoundReady(ROUND, 0), "tells: round 3, rank 0 of 1"),
    (RoundOver(3, "b is gone"), "tells: round 3 is over: b is gone"),
    (Explained(PROGRESS), "tells: have 1 of 2"),
    (Counted(3, Failures(2)), "tells: failures up to round 3: 2"),
    (LeaseHeld(1.0, 2.5), "tells: the lease is held: stop at 1.00, kill at 2.50"),
    (TimedOut("nobody came"), "tells: no round in time: nobody came"),
    (Closed("done", False), "tells: the run is closed as done: done"),
    (Left(), "tells: left"),
    (StoreLost("gone"), "tells: the store is lost: gone"),
    (Perform(LeaseGrant(15.0)), "takes a lease of 15 s"),
    (Perform(LeaseKeep(LEASE)), "renews its lease"),
    (Perform(LeaseRevoke(LEASE)), "gives its lease back"),
    (Perform(CompareSet(MINE, b"", None)), "deletes node/a"),
    (Perform(CompareSet(MINE, None, ME.encode())), "writes node/a: host-a waiting, after round 2"),
    (
        Perform(CompareSet(KEYS.leader, None, Leader(A, 1).encode())),
        "writes ctl/leader: a, term 1",
    ),
    (
        Perform(Guarded(KEYS.leader, b"", Set(KEYS.progress, PROGRESS.encode()))),
        "writes ctl/progress: have 1 of 2",
    ),
    (Perform(Set(KEYS.round, b"?")), "writes ctl/round: not a value of holdfast"),
    (Perform(Get(KEYS.failures)), "reads ctl/failures"),
    (Perform(ListPrefix(KEYS.root)), "lists rdzv/job/"),
    (Perform(DeletePrefix("round/job/1/")), "removes round/job/1/"),
    (
        Perform(MultiSet(((KEYS.page("3/a.0.1", 0), PAGE.encode()), ("a", b""), ("b", b"")))),
        "writes page/000000: host-a host-b, and 2 places",
    ),
    (
        Perform(Set(KEYS.round, RoundRecord(1, Status.FORMING, "").encode())),
        "writes ctl/round: 1 forming",
    ),
]


@pytest.mark.parametrize(("effect", "told"), EFFECTS)
def test_effects(effect: Effect, told: str) -> None:
    assert tell_effect(effect) == told
    codec = NODE_STORY.codec
    assert codec.decode(codec.encode(effect)) == effect


def test_an_announcement_says_why() -> None:
    why = Announcement(A, "host-a", "", 1, Phase.WAITING, 2, None, "a failure").encode()
    assert tell_input(OpDone(Entry(MINE, why, 1))).endswith("after round 2, because a failure")


def test_an_operation_that_no_node_performs_is_named() -> None:
    assert tell_effect(Perform(Add("k", 1))) == "Add"
