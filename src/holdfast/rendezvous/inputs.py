"""What happens to a node, as data: the inputs of its machine, one closed union.

`NODE.give` hands one to the machine. The shell (`session.py`) goes this way for every input, so
that each can be recorded, written to a file and run again.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from holdfast.errors import HoldfastError
from holdfast.observe.recorder import MachineKind
from holdfast.records import dataclass
from holdfast.rendezvous.account import Account
from holdfast.rendezvous.control import Control
from holdfast.rendezvous.leadership import Leadership
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Keys
from holdfast.rendezvous.own_lease import OwnLease
from holdfast.rendezvous.own_rank import OwnRank
from holdfast.rendezvous.presence import Presence
from holdfast.rendezvous.roll import Draft
from holdfast.rendezvous.trouble import Trouble
from holdfast.store.ops import Change

__all__ = [
    "NODE",
    "AskRound",
    "CloseRun",
    "FinishRound",
    "KeysChanged",
    "LeaveRun",
    "NodeBegins",
    "NodeInput",
    "NodeTick",
    "OpDone",
    "OpFailed",
    "ReportFailure",
    "WithdrawWish",
]


@dataclass(frozen=True, slots=True)
class NodeBegins:
    """The node takes part in the run from now on."""


@dataclass(frozen=True, slots=True)
class AskRound:
    """Its user asks for a place in the next round; `why` says what ended the last one here."""

    why: str


@dataclass(frozen=True, slots=True)
class WithdrawWish:
    """Its user takes the wish for a round back."""


@dataclass(frozen=True, slots=True)
class FinishRound:
    """Its user is done with its part of the round."""


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Its user reports a failure of the round; `wall` is since 1970."""

    wall: float


@dataclass(frozen=True, slots=True)
class CloseRun:
    """Its user ends the run for all nodes; `wall` is since 1970."""

    reason: str
    failed: bool
    wall: float


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """Its user leaves the run."""


@dataclass(frozen=True, slots=True)
class KeysChanged:
    """Keys under the prefix that is followed have changed."""

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class OpDone:
    """The store has performed the operation, and this is its result."""

    result: object


@dataclass(frozen=True, slots=True)
class OpFailed:
    """The operation raised this."""

    error: HoldfastError


@dataclass(frozen=True, slots=True)
class NodeTick:
    """Time has passed."""


NodeInput: TypeAlias = (
    NodeBegins
    | AskRound
    | WithdrawWish
    | FinishRound
    | ReportFailure
    | CloseRun
    | LeaveRun
    | KeysChanged
    | OpDone
    | OpFailed
    | NodeTick
)


def _give(node: NodeMachine, event: NodeInput, now: float) -> None:
    match event:
        case NodeBegins():
            node.start(now)
        case AskRound(why):
            node.ask(why, now)
        case WithdrawWish():
            node.withdraw(now)
        case FinishRound():
            node.finish(now)
        case ReportFailure(wall):
            node.count_failure(now, wall)
        case CloseRun(reason, failed, wall):
            node.close(reason, failed, now, wall)
        case LeaveRun():
            node.leave(now)
        case KeysChanged(changes):
            node.changed(changes, now)
        case OpDone(result):
            node.done(result, now)
        case OpFailed(error):
            node.failed(error, now)
        case NodeTick():
            node.tick(now)
        case _:
            assert_never(event)


NODE: MachineKind[NodeInput] = MachineKind(
    "rendezvous",
    _give,
    (NodeMachine, Keys, Account, Control, Leadership, Draft, OwnLease, OwnRank, Presence, Trouble),
    quiet=(NodeTick,),
)
