"""The judge of remote references sees each broken promise, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from holdfast.rpc.rref.protocol import ControlMessage, ForkState, References
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number
from tests.sim.rref.judge import Handle, Judge, inconsistencies


@dataclass(eq=False)
class Worker:
    me: str
    alive: bool = True
    unsent: int = 0
    values: set[Number] = field(default_factory=set)
    handles: list[Handle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.references = References(self.me)


class Scene:
    def __init__(self) -> None:
        self.owner, self.user = Worker("o"), Worker("u")
        self.others: list[Worker] = []
        self.gone: set[str] = set()
        self.judge = Judge(self)

    def living(self) -> Sequence[Worker]:
        return [self.owner, self.user, *self.others]

    def is_known(self, worker: str) -> bool:
        return worker not in self.gone

    def hold(self) -> Handle:
        """Let the user hold a value of the owner, confirmed."""
        references = self.user.references
        ticket = references.ask("o")
        self.judge.made(ticket)
        references.confirmed(ticket.fork)
        handle = Handle(ticket.reference, "o", ticket.fork)
        self.user.handles.append(handle)
        return handle


def test_a_value_that_a_user_holds_must_not_be_freed() -> None:
    scene = Scene()
    handle = scene.hold()
    scene.judge.freed(scene.owner, handle.reference, False)
    assert not scene.judge.failures  # the request may still come
    scene.judge.created(handle.reference)
    scene.judge.freed(scene.owner, Number("x", 1), True)
    assert not scene.judge.failures
    scene.judge.freed(scene.owner, handle.reference, True)
    assert [text[:2] for text in scene.judge.failures] == ["S1"]
    assert scene.judge.counts["freed"] == 2


def test_the_dead_hold_nothing() -> None:
    scene = Scene()
    handle = scene.hold()
    scene.judge.created(handle.reference)
    scene.owner.references.died("u")
    scene.judge.freed(scene.owner, handle.reference, True)
    assert not scene.judge.failures


def test_a_value_that_its_owner_holds_must_not_be_freed() -> None:
    scene = Scene()
    number = Number("o", 1)
    scene.owner.handles.append(Handle(number, "o", None))
    scene.judge.freed(scene.owner, number, True)
    assert scene.judge.failures == [f"S1: o frees {number}, which it holds"]


def test_a_value_is_made_once() -> None:
    scene = Scene()
    scene.judge.created(Number("u", 1))
    assert scene.judge.was_created(Number("u", 1))
    scene.judge.created(Number("u", 1))
    assert [text[:2] for text in scene.judge.failures] == ["S1"]


def test_what_is_counted_must_be_found() -> None:
    scene = Scene()
    handle = scene.hold()
    for answer in ("here", "not yet"):
        scene.judge.found(scene.user, handle, answer)
    assert not scene.judge.failures
    for answer in ("freed", "missing"):
        scene.judge.found(scene.user, handle, answer)
    assert [text[:2] for text in scene.judge.failures] == ["S2", "S2"]
    scene.gone.add("o")
    scene.judge.found(scene.user, handle, "missing")
    assert len(scene.judge.failures) == 2
    assert scene.judge.counts["found"] == 1


def test_a_fork_is_refused_only_after_a_death_among_its_givers() -> None:
    scene = Scene()
    handle = scene.hold()
    assert handle.fork is not None
    ticket = scene.user.references.give(handle.fork, "v")
    assert ticket is not None
    scene.judge.given(ticket, "u", handle)
    sent = ControlMessage(Kind.RREF_FORK_REQUEST, "o", ticket.reference, ticket.fork)
    taker = Worker("v")
    scene.gone.add("u")
    scene.judge.refused(taker, sent)
    assert not scene.judge.failures
    scene.gone.clear()
    scene.judge.refused(taker, sent)
    assert [text[:2] for text in scene.judge.failures] == ["S3"]


@pytest.mark.parametrize(("hears", "broken"), [("u", []), ("v", []), ("x", ["S3"])])
def test_a_fork_is_refused_if_a_worker_that_had_it_has_heard_that_its_owner_is_gone(
    hears: str, broken: list[str]
) -> None:
    """The owner lives on for a while after its lease has ended, and refuses what comes late."""
    scene = Scene()
    scene.others = [Worker("v"), Worker("x")]
    handle = scene.hold()
    assert handle.fork is not None
    ticket = scene.user.references.give(handle.fork, "v")
    assert ticket is not None
    scene.judge.given(ticket, "u", handle)
    scene.gone.add("o")
    next(one for one in scene.living() if one.me == hears).references.died("o")
    sent = ControlMessage(Kind.RREF_FORK_REQUEST, "o", ticket.reference, ticket.fork)
    scene.judge.refused(scene.others[0], sent)
    assert [text[:2] for text in scene.judge.failures] == broken


def test_what_a_worker_knows_must_fit_at_the_end_at_the_latest() -> None:
    scene = Scene()
    scene.user.handles.append(Handle(Number("o", 1), "o", Number("u", 9)))
    scene.owner.references.own()
    (owned,) = scene.owner.references._owned.values()
    owned.holds = 0
    scene.judge.check(scene.owner)
    assert not scene.judge.failures  # not at every step
    scene.judge.ended()
    assert [text[:2] for text in scene.judge.failures] == ["S4", "S4", "L1"]
    for _ in range(16):
        scene.judge.check(scene.owner)
    assert len(scene.judge.failures) == 5


def test_what_is_left_is_named_and_failures_are_not_endless() -> None:
    scene = Scene()
    assert scene.judge.left() == []
    scene.owner.unsent = 2
    (line,) = scene.judge.left()
    assert "2 unsent" in line
    for _ in range(30):
        scene.judge.ended()
    assert len(scene.judge.failures) == 20


def test_each_invariant_is_checked() -> None:
    owner, a = References("o"), References("a")
    ticket = a.ask("o")
    owner.created(ticket.reference, ticket.fork, "a")
    a.confirmed(ticket.fork)
    assert inconsistencies(owner) == inconsistencies(a) == []
    (owned,) = owner._owned.values()
    owner._freed.add(ticket.reference)
    owner._deleted.add(ticket.fork)
    assert [text.partition(" is ")[2] for text in inconsistencies(owner)] == [
        "back after it was freed",
        "counted after its end",
    ]
    owned.forks.clear()
    assert "kept for nobody" in inconsistencies(owner)[0]
    held = a._held[ticket.fork]
    a._dead.add("o")
    a._dead.add("c")
    held.children[Number("a", 9)] = "c"
    held.state = ForkState.DELETING
    assert [text.partition(") ")[2] for text in inconsistencies(a)] == [
        "is not lost with its owner",
        "is deleting with children",
        "waits for the dead",
        "",
    ]
    held.children.clear()
    held.state, held.holders = ForkState.LOST, 0
    assert "lost for nobody" in inconsistencies(a)[0]
