"""A node's steps in words: what happened to it, and what it did about that.

And what it takes to write its steps, read them and run them again (`NODE_STORY`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from holdfast.errors import PeerViolation
from holdfast.observe.replay import Replayable
from holdfast.rendezvous.decide import Decision, Rules
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
    NODE,
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
from holdfast.rendezvous.ranks import sticky_ranks
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

__all__ = ["NODE_STORY", "tell_effect", "tell_input"]


def tell_input(event: NodeInput) -> str:
    """Say what happened to a node."""
    match event:
        case NodeBegins():
            return "the node begins"
        case AskRound(why):
            return f"its agent asks for a round{f', because {why}' if why else ''}"
        case WithdrawWish():
            return "its agent takes its wish back"
        case FinishRound():
            return "its agent is done with the round"
        case ReportFailure():
            return "its agent reports a failure"
        case CloseRun(reason, failed):
            return f"its agent closes the run as {_how(failed)}: {reason}"
        case LeaveRun():
            return "its agent leaves the run"
        case KeysChanged(changes):
            return f"keys changed: {_changes(changes)}"
        case OpDone(result):
            return f"the store answers: {_result(result)}"
        case OpFailed(error):
            return f"the store fails: {type(error).__name__}: {error}"
        case NodeTick():
            return "time passes"
        case _:
            assert_never(event)


def tell_effect(effect: Effect) -> str:
    """Say what a node does, or tells its agent."""
    match effect:
        case Perform(op):
            return _op(op)
        case Follow(prefix):
            return f"follows {prefix}"
        case RoundReady(record, rank):
            return f"tells: round {record.number}, rank {rank} of {record.size}"
        case RoundOver(number, reason):
            return f"tells: round {number} is over: {reason}"
        case Explained(progress):
            return f"tells: {progress.reason}"
        case Counted(number, failures):
            return f"tells: failures up to round {number}: {failures.count}"
        case LeaseHeld(stop_at, kill_at):
            return f"tells: the lease is held: stop at {stop_at:.2f}, kill at {kill_at:.2f}"
        case TimedOut(reason):
            return f"tells: no round in time: {reason}"
        case Closed(reason, failed):
            return f"tells: the run is closed as {_how(failed)}: {reason}"
        case Left():
            return "tells: left"
        case StoreLost(reason):
            return f"tells: the store is lost: {reason}"
        case _:
            assert_never(effect)


def _how(failed: bool) -> str:
    return "failed" if failed else "done"


def _op(op: AnyOp) -> str:
    match op:
        case Guarded(_, _, inner):
            return _op(inner)
        case LeaseGrant(ttl):
            return f"takes a lease of {ttl:g} s"
        case LeaseKeep():
            return "renews its lease"
        case LeaseRevoke():
            return "gives its lease back"
        case CompareSet(key, _, None):
            return f"deletes {_name(key)}"
        case CompareSet(key, _, bytes() as value) | Set(key, value):
            return f"writes {_name(key)}: {_value(key, value)}"
        case MultiSet(((key, value), *rest)):
            return f"writes {_name(key)}: {_value(key, value)}, and {len(rest)} places"
        case Get(key):
            return f"reads {_name(key)}"
        case ListPrefix(prefix):
            return f"lists {prefix}"
        case DeletePrefix(prefix):
            return f"removes {prefix}"
        case _:  # a node performs no other
            return type(op).__name__


def _changes(changes: Iterable[Change]) -> str:
    return "; ".join(
        f"{_name(change.key)} is gone"
        if change.value is None
        else f"{_name(change.key)}: {_value(change.key, change.value)}"
        for change in changes
    )


def _result(result: object) -> str:
    match result:
        case Lease(id_, ttl):
            return f"lease {id_}, {ttl:g} s"
        case Swap(ok, _, revision):
            return f"{'written' if ok else 'refused'}, revision {revision}"
        case Entry(key, value):
            return f"{_name(key)}: {_value(key, value)}"
        case tuple():
            return f"{len(result)} keys"
        case _:
            return str(result)


def _name(key: str) -> str:
    """Return a key without the prefix that all keys of a run have."""
    return "/".join(key.rsplit("/", 2)[-2:])


def _value(key: str, value: bytes) -> str:
    """Say what a value means, by its key."""
    try:
        match key.rpartition("/")[2]:
            case "leader":
                leader = Leader.decode(value)
                return f"{leader.node}, term {leader.term}"
            case "round":
                record = RoundRecord.decode(value)
                members = f", {record.size} in {record.roll}" if record.roll else ""
                return f"{record.number} {record.status}{members}"
            case "progress":
                return Progress.decode(value).reason
            case "failures":
                return str(Failures.decode(value).count)
            case _ if "/place/" in key:
                return f"rank {MemberRank.decode(value).rank}"
            case _ if "/page/" in key:
                return " ".join(member.host for member in Page.decode(value).members)
            case _:
                said = Announcement.decode(value)
                why = f", because {said.why}" if said.why else ""
                return f"{said.host} {said.phase}, after round {said.round}{why}"
    except PeerViolation:
        return "not a value of holdfast"


NODE_STORY = Replayable(
    kind=NODE,
    inputs=(
        *(NodeBegins, AskRound, WithdrawWish, FinishRound, ReportFailure, CloseRun, LeaveRun),
        *(KeysChanged, OpDone, OpFailed, NodeTick),
    ),
    values=(
        *(Perform, Follow, RoundReady, RoundOver, Explained, Counted, LeaseHeld, TimedOut, Closed),
        *(Left, StoreLost, Decision, Rules, Announcement, Failures, Leader, Member, Page),
        *(
            Phase,
            MemberRank,
            Progress,
            RoundRecord,
            Status,
            Change,
            CompareSet,
            Entry,
            Get,
            Guarded,
            Lease,
        ),
        *(LeaseGrant, LeaseKeep, LeaseRevoke, ListPrefix, MultiSet, Set, Swap, DeletePrefix),
    ),
    functions=(sticky_ranks,),
    modules=(
        "holdfast.rendezvous.machine",
        "holdfast.rendezvous.inputs",
        "holdfast.rendezvous.effects",
        "holdfast.rendezvous.decide",
        "holdfast.rendezvous.leadership",
        "holdfast.rendezvous.model",
        "holdfast.rendezvous.ranks",
        "holdfast.rendezvous.account",
        "holdfast.rendezvous.control",
        "holdfast.rendezvous.own_lease",
        "holdfast.rendezvous.own_rank",
        "holdfast.rendezvous.presence",
        "holdfast.rendezvous.roll",
        "holdfast.rendezvous.trouble",
    ),
    tell_input=tell_input,
    tell_effect=tell_effect,
)
