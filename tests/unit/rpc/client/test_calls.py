"""Open calls, within limits and late at their deadlines; what is retried, and acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CallTimedOut, Overloaded, PeerLost, UsageError
from holdfast.rpc.client.calls import (
    ACK_BYTES,
    Again,
    End,
    OpenCalls,
    Receiver,
    Request,
    RetryTable,
    Try,
    after_failure,
    is_failure,
    timed_out,
)
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.wire.acknowledgement import OPEN_CALLS_MAX, decode_acknowledgement
from holdfast.rpc.wire.messages import NEVER, RETRYABLE, Kind, Message

ONCE = Message(Kind.PYTHON_CALL, 7, b"f", budget_ms=5000, once=True)
CONTROL = Message(next(iter(RETRYABLE)), 8)
REPLY, FAILURE = Message(Kind.REPLY, 7), Message(Kind.FAILURE, 7)
LOST, LATE = PeerLost("the connection broke"), TimeoutError()
POLICY = RetryPolicy(max_retries=2, delay_s=1.0, backoff=2.0)
TO = Receiver("life", "w1")


def table(calls_max: int = 100, bytes_max: int = 1000) -> OpenCalls[str]:
    return OpenCalls("are open", calls_max, bytes_max)


def test_ca1_a_call_is_removed_once() -> None:
    calls = table()
    calls.add(1, "one", NEVER, 5)
    assert (len(calls.open), 1 in calls.open, calls.numbers) == (1, True, [1])
    assert calls.remove(1) == "one"
    assert calls.remove(1) is None
    assert (len(calls.open), 1 in calls.open, calls.count_bytes()) == (0, False, 0)


def test_ca2_a_call_beyond_the_number_is_refused_and_changes_nothing() -> None:
    calls = table(calls_max=2)
    calls.add(1, "one", NEVER, 5)
    calls.add(2, "two", NEVER, 5)
    with pytest.raises(Overloaded, match="2 calls and 10 bytes are open: at most 2 and 1000"):
        calls.add(3, "three", 1.0, 5)
    assert (calls.numbers, calls.count_bytes(), calls.soonest) == ([1, 2], 10, NEVER)


def test_ca2_bytes_are_limited_and_one_call_alone_may_be_larger() -> None:
    calls = table(bytes_max=10)
    calls.add(1, "large", NEVER, 50)
    with pytest.raises(Overloaded, match="1 calls and 50 bytes"):
        calls.add(2, "small", NEVER, 1)
    calls.remove(1)
    calls.add(2, "small", NEVER, 4)
    calls.add(3, "fits", NEVER, 6)
    with pytest.raises(Overloaded):
        calls.add(4, "beyond", NEVER, 1)


def test_ca3_a_call_is_late_at_its_deadline_and_not_before() -> None:
    calls = table()
    calls.add(1, "later", 3.0, 1)
    calls.add(2, "sooner", 2.0, 1)
    calls.add(3, "never", NEVER, 1)
    assert calls.soonest == 2.0
    assert calls.soonest > 1.9
    assert calls.soonest <= 2.0
    assert calls.late(2.0) == [2]
    assert calls.late(3.0) == [1, 2]
    for call in calls.late(2.0):
        calls.remove(call)
    calls.look_again()
    assert calls.soonest == 3.0
    calls.remove(1)
    calls.look_again()
    assert calls.soonest == NEVER


def test_a_later_try_of_a_call_replaces_the_open_one() -> None:
    calls = table(calls_max=1)
    calls.add(1, "first try", NEVER, 5)
    calls.add(1, "second try", 2.0, 7)
    assert (len(calls.open), calls.count_bytes(), calls.soonest) == (1, 7, 2.0)
    assert calls.remove(1) == "second try"
    assert calls.remove(1) is None
    assert calls.count_bytes() == 0


def test_the_error_of_a_late_call_names_the_call_whose_deadline_it_was() -> None:
    own = timed_out(1500, "")
    assert str(own).startswith("RPC ran for more than set timeout (1500 ms)")
    assert own.deadline_of == ""
    assert str(timed_out(1500, "", "no connection")).endswith(": no connection")
    inherited = timed_out(20, "w0")
    assert "the 20 ms that were left of the call of w0" in str(inherited)
    assert inherited.deadline_of == "w0"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 9), st.integers(0, 8), st.integers(0, 5)),
            st.tuples(st.just("remove"), st.integers(0, 9), st.just(0), st.just(0)),
            st.tuples(st.just("expire"), st.just(0), st.integers(0, 8), st.just(0)),
        ),
        max_size=40,
    )
)
def test_ca1_ca2_ca3_hold_for_any_sequence(steps: list[tuple[str, int, int, int]]) -> None:
    calls, model = table(calls_max=4, bytes_max=10), dict[int, tuple[str, float, int]]()
    for step, call, at, size in steps:
        open_bytes = sum(each[2] for each in model.values())
        match step:
            case "add":
                open_bytes -= model.pop(call, (None, 0, 0))[2]
                if len(model) >= 4 or (open_bytes and open_bytes + size > 10):
                    with pytest.raises(Overloaded):
                        calls.add(call, str(call), at, size)
                else:
                    calls.add(call, str(call), at, size)
                    model[call] = (str(call), at, size)
            case "remove":
                assert calls.remove(call) == model.pop(call, (None,))[0]
            case "expire":
                late = [call for call, (_, until, _) in model.items() if until <= at]
                assert calls.late(at) == late
                assert at >= calls.soonest or not late
                for each in late:
                    assert calls.remove(each) == model.pop(each)[0]
                calls.look_again()
                assert calls.soonest == min((at for _, at, _ in model.values()), default=NEVER)
        assert calls.numbers == list(model)
        assert calls.count_bytes() == sum(each[2] for each in model.values())
        assert calls.soonest <= min((at for _, at, _ in model.values()), default=NEVER)


# What follows on a failed try.


def after(
    failure: Message | Exception,
    tried: int = 1,
    *,
    request: Message = ONCE,
    now: float = 0.0,
    at: float = NEVER,
    to: Receiver = TO,
) -> Again | End:
    return after_failure(request, tried, failure, POLICY, to, now, at)


def ended(decision: Again | End) -> str:
    assert isinstance(decision, End)
    assert isinstance(decision.outcome, Exception)
    return str(decision.outcome)


def test_ry1_every_reply_to_a_request_that_runs_once_is_final() -> None:
    assert not is_failure(ONCE, REPLY)
    assert not is_failure(ONCE, FAILURE)
    assert not is_failure(CONTROL, REPLY)
    assert is_failure(CONTROL, FAILURE)
    assert is_failure(ONCE, LOST)
    assert is_failure(CONTROL, LATE)


@pytest.mark.parametrize("failure", [LOST, LATE], ids=["lost", "late"])
def test_ry1_without_a_reply_it_is_tried_again_after_the_delay_of_its_policy(
    failure: Exception,
) -> None:
    assert after(failure, 1) == Again(1.0)
    assert after(failure, 2) == Again(2.0)


def test_ry1_an_error_of_this_worker_ends_only_requests_that_must_run_once() -> None:
    refusal = UsageError("cannot be sent")
    assert after(refusal) == End(refusal)
    assert after(refusal, request=CONTROL) == Again(1.0)
    assert after(FAILURE, request=CONTROL) == Again(1.0)


def test_ry1_overloaded_is_final_only_if_nothing_was_sent() -> None:
    full = Overloaded("too much is under way")
    assert after(full, 1) == End(full)
    assert after(full, 2) == Again(2.0)


def test_ry2_no_try_is_made_at_the_deadline_or_later() -> None:
    assert after(LOST, now=3.0, at=4.1) == Again(1.0)
    for now in (3.1, 4.0, 4.1, 5.0):
        assert isinstance(after(LOST, now=now, at=4.1), End)


def test_ry2_no_try_is_made_after_the_receiver_was_lost() -> None:
    gone = PeerLost("its lease ended")
    assert after(LOST, to=TO._replace(lost=gone)) == End(gone)
    assert after(FAILURE, request=CONTROL, to=TO._replace(lost=gone)) == End(gone)


def test_ry3_the_end_at_the_deadline_cancels_and_says_why() -> None:
    too_late = after(LOST, 2, now=9.0, at=10.0)
    assert isinstance(too_late, End)
    assert too_late.cancel
    assert "5000 ms" in ended(too_late)
    assert "try 2 failed (the connection broke), and another one would come" in ended(too_late)
    assert ended(after(LOST, now=10.0, at=10.0)).endswith("with an error: the connection broke")
    assert ended(after(LATE, now=10.0, at=10.0)).endswith("with an error")
    named = Message(Kind.PYTHON_CALL, 7, budget_ms=5, once=True, deadline_of="w0")
    expired = after(LATE, request=named, now=1.0, at=1.0)
    assert isinstance(expired, End)
    assert isinstance(expired.outcome, CallTimedOut)
    assert expired.outcome.deadline_of == "w0"


def test_when_the_policy_is_exhausted_the_error_says_how_often_it_was_tried() -> None:
    lost = after(LOST, 3)
    assert isinstance(lost, End)
    assert not lost.cancel
    assert isinstance(lost.outcome, PeerLost)
    assert (lost.outcome.peer, lost.outcome.incarnation) == ("w1", "life")
    assert str(lost.outcome) == f"{POLICY.exhausted()} the connection broke"
    late = after(LATE, 3)
    assert isinstance(late, End)
    assert isinstance(late.outcome, CallTimedOut)
    assert ended(late) == f"{POLICY.exhausted()} No answer came in time."
    assert ended(after(TimeoutError("slow"), 3)) == f"{POLICY.exhausted()} slow"
    assert after(FAILURE, 3, request=CONTROL) == End(FAILURE)


# Requests that are retried.


def table_with(
    *calls: int, to: str = "life", size: int = 1
) -> tuple[RetryTable[Request], list[Request]]:
    table: RetryTable[Request] = RetryTable()
    message = Message(Kind.PYTHON_CALL, 0, b"f")
    requests = [Request("life", replace(message), NEVER, POLICY) for _ in calls]
    for request, call in zip(requests, calls, strict=True):
        table.add(request, call)
    return table, requests


def told(note: Message | None) -> tuple[int, list[int]]:
    assert note is not None
    return note.call, list(decode_acknowledgement(note))


def test_a_request_has_its_number_and_says_whether_it_must_run_once() -> None:
    table, (request,) = table_with(7)
    assert (request.message.call, request.message.once) == (7, True)
    control = Request("other", replace(CONTROL), NEVER, POLICY)
    table.add(control, 8)
    assert not control.message.once
    assert len(table) == 2
    assert table.requests() == [request, control]
    assert table.requests("other") == [control]
    assert table.requests("nobody") == []


def test_ry5_a_try_is_begun_once_and_only_while_the_request_is_open() -> None:
    table, (request,) = table_with(7)
    assert table.begin(request, 0, 0.0) == Try(1, request.message, NEVER, None)
    assert table.begin(request, 0, 0.0) is None
    assert request.trying == 1
    assert table.put_off(request, 5.0)
    assert request.trying == 0  # the next one is waited for
    assert table.begin(request, 1, 5.0) is not None
    assert not table.end(request, None)
    assert table.begin(request, 2, 9.0) is None
    assert request.trying == 0
    assert len(table) == 0


def test_ry2_a_request_that_was_stopped_is_not_put_off() -> None:
    table, (request,) = table_with(7)
    table.begin(request, 0, 0.0)
    request.stopped = True
    assert not table.put_off(request, 5.0)
    assert table.begin(request, 1, 5.0) is None


def test_a_try_has_the_limit_of_its_policy_and_later_ones_the_time_that_is_left() -> None:
    table: RetryTable[Request] = RetryTable()
    policy = RetryPolicy(try_s=2.0)
    request = Request("life", Message(Kind.PYTHON_CALL, 0, b"f", budget_ms=5000), 5.0, policy)
    table.add(request, 7)
    first, second = table.begin(request, 0, 0.0), table.begin(request, 1, 4.5)
    assert first is not None
    assert (first.until, first.message.budget_ms) == (2.0, 5000)
    assert second is not None
    assert (second.until, second.message.budget_ms) == (5.0, 500)
    last = table.begin(request, 2, 5.0)
    assert last is not None
    assert last.message.budget_ms == 1  # 0 would mean: without limit


def test_a_request_that_has_ended_keeps_no_large_message() -> None:
    table, (request,) = table_with(7)
    table.end(request, 1)
    assert (request.message.call, request.message.once) == (7, True)
    assert request.message.body == b""


# Acknowledgements.


def test_one_note_acknowledges_many_replies() -> None:
    table, (five, three, six) = table_with(5, 3, 6)
    (other,) = [Request("b", Message(Kind.PYTHON_CALL, 0), NEVER, POLICY)]
    table.add(other, 9)
    assert table.end(five, 10)
    assert not table.end(three, 10)
    assert table.end(other, 10)
    assert told(table.acknowledge("life")) == (6, [])
    assert table.acknowledge("life") is None
    assert table.end(six, 10)
    assert told(table.acknowledge("b")) == (10, [])


def test_only_kept_replies_are_acknowledged() -> None:
    table, (request,) = table_with(7)
    control = Request("life", replace(CONTROL), NEVER, POLICY)
    table.add(control, 8)
    assert not table.end(control, 5)
    assert not table.end(request, None)
    assert table.acknowledge("life") is None


def test_many_bytes_are_acknowledged_before_the_next_request() -> None:
    table, (one, two, three, four, five) = table_with(1, 2, 3, 4, 5)
    table.end(one, ACK_BYTES - 1)
    attempt = table.begin(three, 0, 0.0)
    assert attempt is not None
    assert attempt.note is None
    table.end(two, 1)
    attempt = table.begin(four, 0, 0.0)
    assert attempt is not None
    assert told(attempt.note) == (3, [])
    attempt = table.begin(five, 0, 0.0)
    assert attempt is not None
    assert attempt.note is None


@pytest.mark.parametrize(
    ("open_calls", "expected"),
    [
        ([2, 4], (6, [2, 4])),
        ([2, 9], (6, [2])),  # a later one need not be named
        (range(100, 200), (6, [])),
    ],
)
def test_ry4_open_calls_are_named(
    open_calls: Iterable[int], expected: tuple[int, list[int]]
) -> None:
    table, (last, *_) = table_with(5, *open_calls)
    table.end(last, 1)
    assert told(table.acknowledge("life")) == expected


@pytest.mark.parametrize("more", [0, 2])
def test_ry4_calls_older_than_the_first_that_cannot_be_named_are_acknowledged(more: int) -> None:
    open_calls = list(range(1, 2 * OPEN_CALLS_MAX + 1 + more, 2))
    table, requests = table_with(*open_calls, 1000)
    table.end(requests[-1], 1)
    floor = 2 * OPEN_CALLS_MAX + 1 if more else 1001
    assert told(table.acknowledge("life")) == (floor, open_calls[:OPEN_CALLS_MAX])
