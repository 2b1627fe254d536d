"""Every input reaches the machine's method that is meant, whole; and each survives a file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Fenced, HoldfastError, LeaseLost, StoreBusy, StoreUnavailable
from holdfast.ids import LeaseId
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
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.story import NODE_STORY
from holdfast.store.ops import Change, Entry, Lease, Swap

NOW = 5.0
ERROR = StoreUnavailable("no store")
CHANGES = (Change("k", b"v", 1), Change("l", None, 2))


class Spy:
    """Takes every call for one of the machine's."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        assert callable(getattr(NodeMachine, name)), name
        return lambda *args: self.calls.append((name, *args))


CALLS: list[tuple[NodeInput, tuple[Any, ...]]] = [
    (NodeBegins(), ("start", NOW)),
    (AskRound("why"), ("ask", "why", NOW)),
    (WithdrawWish(), ("withdraw", NOW)),
    (FinishRound(), ("finish", NOW)),
    (ReportFailure(9.0), ("count_failure", NOW, 9.0)),
    (CloseRun("over", True, 9.0), ("close", "over", True, NOW, 9.0)),
    (LeaveRun(), ("leave", NOW)),
    (KeysChanged(CHANGES), ("changed", CHANGES, NOW)),
    (OpDone(5), ("done", 5, NOW)),
    (OpFailed(ERROR), ("failed", ERROR, NOW)),
    (NodeTick(), ("tick", NOW)),
]


@pytest.mark.parametrize(("event", "call"), CALLS, ids=lambda one: type(one).__name__)
def test_an_input_reaches_its_method(event: NodeInput, call: tuple[Any, ...]) -> None:
    spy = Spy()
    NODE.give(spy, event, NOW)
    assert spy.calls == [call]


def test_every_input_is_tried() -> None:
    assert {type(event) for event, _ in CALLS} == set(NODE_STORY.inputs)


seconds = st.floats(0, 1e12)
texts = st.text(max_size=20)
values = st.binary(max_size=20)
revisions = st.integers(0, 1 << 62)
errors: st.SearchStrategy[HoldfastError] = st.one_of(
    st.builds(StoreUnavailable, texts, maybe_applied=st.booleans()),
    st.builds(StoreBusy, texts, waiting_for=st.tuples(texts)),
    st.builds(LeaseLost, texts),
    st.builds(Fenced, texts),
)
entries = st.builds(Entry, texts, values, revisions)
results = st.one_of(
    *(st.none(), st.booleans(), revisions, seconds, entries),
    st.lists(entries, max_size=3).map(tuple),
    st.builds(Lease, st.builds(LeaseId, revisions), seconds),
    st.builds(Swap, st.booleans(), st.none() | values, revisions),
)
changes = st.builds(Change, texts, st.none() | values, revisions)
INPUTS: dict[type, st.SearchStrategy[Any]] = {
    NodeBegins: st.builds(NodeBegins),
    AskRound: st.builds(AskRound, texts),
    WithdrawWish: st.builds(WithdrawWish),
    FinishRound: st.builds(FinishRound),
    ReportFailure: st.builds(ReportFailure, seconds),
    CloseRun: st.builds(CloseRun, texts, st.booleans(), seconds),
    LeaveRun: st.builds(LeaveRun),
    KeysChanged: st.builds(KeysChanged, st.lists(changes, max_size=3).map(tuple)),
    OpDone: st.builds(OpDone, results),
    OpFailed: st.builds(OpFailed, errors),
    NodeTick: st.builds(NodeTick),
}


@pytest.mark.parametrize("kind", NODE_STORY.inputs, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_input_survives_a_file(kind: type, data: st.DataObject) -> None:
    """OB-2."""
    event: Any = data.draw(INPUTS[kind])
    codec = NODE_STORY.codec
    plain = json.loads(json.dumps(codec.encode(event)))
    found: Any = codec.decode(plain)
    assert (type(found), type(event)) == (kind, kind)
    assert codec.encode(found) == plain
    if isinstance(event, OpFailed):  # errors are equal to themselves only
        told, wanted = found.error, event.error
        assert (str(told), vars(told)) == (str(wanted), vars(wanted))
    else:
        assert found == event
