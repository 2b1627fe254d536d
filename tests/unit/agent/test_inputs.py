"""Every input reaches the machine's method that is meant, whole; and each survives a file."""

from __future__ import annotations

import json
from signal import Signals
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.effects import Place
from holdfast.agent.inputs import (
    AGENT,
    AgentBegins,
    AgentInput,
    AgentTick,
    BarrierOver,
    Broke,
    CountFailed,
    FailureCounted,
    Held,
    Joined,
    JoinFailed,
    PeerTold,
    SawNewcomers,
    SawRoundOver,
    SawRunEnded,
    SignalCame,
    StartFailed,
    StopAsked,
    WorkersStalled,
)
from holdfast.agent.machine import AgentMachine
from holdfast.agent.story import AGENT_STORY
from holdfast.errors import (
    HoldfastError,
    InternalError,
    RendezvousClosed,
    RendezvousTimedOut,
    RunOver,
    StoreUnavailable,
)
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.spec import Exit, GroupEnded
from holdfast.rendezvous.effects import LeaseHeld
from tests.unit.agent.stories import failed, failure, place

NOW = 5.0
ERROR = StoreUnavailable("no store")
HELD = LeaseHeld(10.0, 11.0)


class Spy:
    """Takes every call for one of the machine's."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        assert callable(getattr(AgentMachine, name)), name
        return lambda *args: self.calls.append((name, *args))


CALLS: list[tuple[AgentInput, tuple[Any, ...]]] = [
    (AgentBegins(), ("start",)),
    (Held(HELD), ("held", HELD)),
    (Joined(place()), ("joined", place(), NOW)),
    (JoinFailed(ERROR), ("join_failed", ERROR, NOW)),
    (StartFailed(ERROR), ("start_failed", ERROR)),
    (failed(failure()), ("worker_exited", failed(failure()), NOW)),
    (GroupEnded((7,)), ("group_ended", (7,), NOW)),
    (FailureCounted(2, (1.0,), 9.0, ("x",)), ("counted", 2, (1.0,), 9.0, NOW, ("x",))),
    (CountFailed(ERROR), ("count_failed", ERROR, NOW)),
    (PeerTold(1, 2, (failure(),), True), ("peer_told", 1, 2, (failure(),), True, NOW)),
    (SawRoundOver("gone"), ("round_over", "gone", NOW)),
    (SawNewcomers(2), ("newcomers", 2, NOW)),
    (SawRunEnded("closed", True), ("run_ended", "closed", True, NOW)),
    (SignalCame(Signals.SIGTERM), ("signalled", Signals.SIGTERM, NOW)),
    (WorkersStalled(failure()), ("stalled", failure())),
    (StopAsked("user a", 5.0), ("stop_asked", "user a", 5.0, NOW)),
    (BarrierOver(1, "late"), ("met", 1, "late", NOW)),
    (Broke(ERROR), ("broke", ERROR)),
    (AgentTick(), ("tick", NOW)),
]


@pytest.mark.parametrize(("event", "call"), CALLS, ids=lambda one: type(one).__name__)
def test_an_input_reaches_its_method(event: AgentInput, call: tuple[Any, ...]) -> None:
    spy = Spy()
    AGENT.give(spy, event, NOW)
    assert spy.calls == [call]


def test_every_input_is_tried() -> None:
    assert {type(event) for event, _ in CALLS} == set(AGENT_STORY.inputs)


seconds = st.floats(0, 1e12)
texts = st.text(max_size=20)
counts = st.integers(0, 1000)
errors: st.SearchStrategy[HoldfastError] = st.one_of(
    st.builds(StoreUnavailable, texts, maybe_applied=st.booleans()),
    st.builds(RendezvousTimedOut, texts, waiting_for=st.tuples(texts)),
    st.builds(RendezvousClosed, texts, failed=st.booleans()),
    st.builds(RunOver, texts, failed=st.booleans()),
    st.builds(InternalError, texts),
)
failures = st.builds(
    Failure,
    rank=counts,
    local_rank=counts,
    role=texts,
    host=texts,
    pid=counts,
    exit=st.builds(Exit, st.integers(-64, 255)),
    at=seconds,
    message=texts,
    error_type=texts,
    hint=texts,
    moment=st.none() | seconds,
)
INPUTS: dict[type, st.SearchStrategy[Any]] = {
    AgentBegins: st.builds(AgentBegins),
    Held: st.builds(Held, st.none() | st.builds(LeaseHeld, seconds, seconds)),
    Joined: st.builds(Joined, st.builds(Place, counts, counts, counts, counts, counts)),
    JoinFailed: st.builds(JoinFailed, errors),
    StartFailed: st.builds(StartFailed, errors),
    WorkerExited: st.builds(
        WorkerExited, counts, counts, st.builds(Exit, counts), st.none() | failures, st.booleans()
    ),
    GroupEnded: st.builds(GroupEnded, st.lists(counts, max_size=2).map(tuple)),
    FailureCounted: st.builds(
        FailureCounted,
        counts,
        st.lists(seconds, max_size=3).map(tuple),
        seconds,
        st.lists(st.text(max_size=5), max_size=2).map(tuple),
    ),
    CountFailed: st.builds(CountFailed, errors),
    PeerTold: st.builds(
        PeerTold, counts, counts, st.lists(failures, max_size=2).map(tuple), st.booleans()
    ),
    SawRoundOver: st.builds(SawRoundOver, texts),
    SawNewcomers: st.builds(SawNewcomers, counts),
    SawRunEnded: st.builds(SawRunEnded, texts, st.booleans()),
    SignalCame: st.builds(SignalCame, st.sampled_from(Signals)),
    WorkersStalled: st.builds(WorkersStalled, failures),
    StopAsked: st.builds(StopAsked, texts, st.none() | st.floats(0, 100)),
    BarrierOver: st.builds(BarrierOver, counts, st.none() | texts),
    Broke: st.builds(Broke, errors),
    AgentTick: st.builds(AgentTick),
}


@pytest.mark.parametrize("kind", AGENT_STORY.inputs, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_input_survives_a_file(kind: type, data: st.DataObject) -> None:
    """OB-2."""
    event: Any = data.draw(INPUTS[kind])
    codec = AGENT_STORY.codec
    plain = json.loads(json.dumps(codec.encode(event)))
    found: Any = codec.decode(plain)
    assert (type(found), type(event)) == (kind, kind)
    assert codec.encode(found) == plain
    if not hasattr(event, "error"):  # errors are equal to themselves only
        assert found == event
    else:
        told, wanted = found.error, event.error
        assert (str(told), vars(told)) == (str(wanted), vars(wanted))


def test_what_a_worker_wrote_beside_its_message_is_not_written() -> None:
    """OB-3: tracebacks and error files hold source lines and values; a report has them already."""
    event = PeerTold(
        1,
        0,
        (
            Failure(
                **{name: getattr(failure(), name) for name in Failure.__slots__}
                | {"traceback": "sesame", "stack": "sesame", "error_data": {"x": "sesame"}}
            ),
        ),
        False,
    )
    written = json.dumps(AGENT_STORY.codec.encode(event))
    assert "sesame" not in written
    assert AGENT_STORY.codec.decode(json.loads(written)) == PeerTold(1, 0, (failure(),), False)
