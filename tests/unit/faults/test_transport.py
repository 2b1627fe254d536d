"""Each fault, as agents see it that do not know of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.errors import CallTimedOut, PeerLost
from holdfast.faults import transport as transport_module
from holdfast.faults.plan import Action, Fired, Moment, parse_plan
from holdfast.faults.transport import FaultyTransport
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.server.dedup import DedupTable
from holdfast.rpc.wire.messages import Kind, Message
from tests.unit.rpc.world import agents
from tests.waiting import until

WITHIN_S = 60.0

calls: Counter[str] = Counter()
order: list[str] = []
came = threading.Event()
gate = threading.Event()


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    calls.clear()
    order.clear()
    came.clear()
    gate.clear()


def count(name: str) -> int:
    """What the callee runs; it is this process, so that tests see it."""
    order.append(name)
    calls[name] += 1
    return calls[name]


def stand(name: str) -> int:
    came.set()
    assert gate.wait(20.0)
    return count(name)


def note_first(memory: memoryview) -> None:
    count(bytes(memory[:5]).decode())


def let_go() -> None:
    gate.set()


@contextmanager
def under(plan: str, *, connected: bool = True) -> Iterator[Agent]:
    """Give an agent whose messages to `w1` go wrong by a plan."""
    with agents(FaultyTransport(parse_plan(plan)), None) as (agent, _):
        if connected:  # a call with a short deadline could expire before there is a connection
            peer = agent.peer("w1")
            peer.transmit(Message(Kind.CANCEL, 0))  # no fault happens to such a note
            until(lambda: peer._pipe is not None)
        yield agent


def fired(agent: Agent) -> dict[Action, int]:
    assert isinstance(agent.transport, FaultyTransport)
    return agent.transport.fired()


def until_called(name: str, times: int) -> None:
    until(lambda: calls[name] >= times, lambda: calls)


class TestRequests:
    def test_none(self) -> None:
        with under("") as agent:
            assert agent.call("w1", count, ("a",)) == 1
            assert agent.call_async("w1", count, ("a",)).wait() == 2
            assert fired(agent) == {}

    def test_fail(self) -> None:
        with under("fail PYTHON_CALL each=2") as agent:
            for _ in range(2):
                with pytest.raises(PeerLost, match="failed intentionally for PYTHON_CALL"):
                    agent.call("w1", count, ("a",))
            assert agent.call("w1", count, ("a",)) == 1
            failed = agent.call_async("w1", count, ("b",))
            assert failed.done()
            assert isinstance(failed.exception(), PeerLost)
            assert fired(agent) == {Action.FAIL: 3}
        assert calls == {"a": 1}

    def test_a_failure_is_known_at_once_also_without_a_connection(self) -> None:
        with under("fail PYTHON_CALL times=1", connected=False) as agent:
            failed = agent.call_async("w1", count, ("b",))
            assert failed.done()
            assert isinstance(failed.exception(), PeerLost)
            assert agent.call("w1", count, ("a",)) == 1
            assert fired(agent) == {Action.FAIL: 1}

    def test_each_try_is_decided_about_whether_there_is_a_connection_or_not(self) -> None:
        with under("fail PYTHON_CALL", connected=False) as agent:
            policy = RetryPolicy(max_retries=9, delay_s=0.005, backoff=1.0)
            for _ in range(2):  # the acknowledgement of the first one opens a connection
                with pytest.raises(PeerLost, match="failed intentionally"):
                    agent.call("w1", count, ("a",), retries=policy)
            assert fired(agent) == {Action.FAIL: 20}

    def test_a_late_message_arrives_though_its_call_expired_without_a_connection(self) -> None:
        with under("delay PYTHON_CALL seconds=0.01", connected=False) as agent:
            with pytest.raises(CallTimedOut):
                agent.call("w1", count, ("a",), timeout=1e-6)
            until_called("a", 1)
            assert agent.call("w1", count, ("b",)) == 1
        assert calls == {"a": 1, "b": 1}

    def test_a_partition_begins_though_there_is_no_connection(self) -> None:
        with under("partition PYTHON_CALL times=1 seconds=60", connected=False) as agent:
            for _ in range(2):
                with pytest.raises(CallTimedOut):
                    agent.call("w1", count, ("a",), timeout=1e-6)
            with pytest.raises(CallTimedOut):
                agent.call("w1", count, ("a",), timeout=0.5)
        assert calls == {}

    def test_the_first_message_to_a_peer_has_the_faults_too(self) -> None:
        with under("duplicate PYTHON_CALL times=1", connected=False) as agent:
            assert agent.call("w1", count, ("a",)) == 1
            assert fired(agent) == {Action.DUPLICATE: 1}

    def test_drop(self) -> None:
        with under("drop PYTHON_CALL nth=1") as agent:
            with pytest.raises(CallTimedOut, match="RPC ran for more than"):
                agent.call("w1", count, ("a",), timeout=0.05)
            assert agent.call("w1", count, ("a",)) == 1
            assert fired(agent) == {Action.DROP: 1}

    def test_delay(self) -> None:
        with under("delay PYTHON_CALL seconds=0.05") as agent:
            with pytest.raises(CallTimedOut):
                agent.call("w1", count, ("a",), timeout=0.01)
            until_called("a", 1)  # it arrives all the same, though no caller waits for it
            assert agent.call("w1", count, ("b",)) == 1
            assert agent.call("w1", count, ("b",), timeout=0) == 2

    def test_a_message_that_is_delayed_arrives_as_it_was_given(self) -> None:
        memory = bytearray(b"first") * 20_000
        with under("delay PYTHON_CALL seconds=0.05") as agent:
            with pytest.raises(CallTimedOut):
                agent.call("w1", note_first, (memoryview(memory),), timeout=0.01)
            memory[:] = b"later" * 20_000
            until_called("first", 1)
            assert order == ["first"]

    def test_duplicate(self) -> None:
        with under("duplicate PYTHON_CALL") as agent:
            assert [agent.call("w1", count, ("a",)) for _ in range(20)] == [*range(1, 21)]
            assert fired(agent) == {Action.DUPLICATE: 20}
        assert calls == {"a": 20}  # each of them once

    def test_duplicates_do_not_fill_the_callees_memory(self) -> None:
        transport = FaultyTransport(parse_plan("duplicate PYTHON_CALL"))
        with agents(transport, None) as (agent, callee):
            table = callee._dispatcher._dedup = DedupTable(kept=1000)
            for _ in range(1100):
                agent.call("w1", count, ("a",))
            assert table.kept() < 1000
        assert calls == {"a": 1100}

    def test_duplicates_do_not_end_older_calls_that_are_still_to_be_sent(self) -> None:
        with under("fail PYTHON_CALL nth=1\nduplicate PYTHON_CALL") as agent:
            policy = RetryPolicy(max_retries=3, delay_s=0.2)
            older = agent.call_async("w1", count, ("a",), retries=policy)
            assert agent.call("w1", count, ("b",)) == 1
            assert older.wait() == 1
        assert calls == {"a": 1, "b": 1}

    def test_duplicate_and_delay(self) -> None:
        with under("duplicate PYTHON_CALL\ndelay PYTHON_CALL seconds=0.01") as agent:
            assert agent.call("w1", count, ("a",)) == 1
        assert calls == {"a": 1}

    def test_reorder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transport_module, "REORDER_S", 60.0)  # the next one may take its time
        with under("reorder PYTHON_CALL nth=1") as agent:
            first = agent.call_async("w1", count, ("first",))
            assert agent.call("w1", count, ("second",)) == 1
            assert first.wait() == 1
        assert order == ["second", "first"]

    def test_reorder_when_nothing_follows(self) -> None:
        with under("reorder PYTHON_CALL") as agent:
            assert agent.call("w1", count, ("alone",)) == 1

    @pytest.mark.parametrize("action", ["reset", "corrupt"])
    def test_a_broken_connection(self, action: str) -> None:
        with under(f"{action} PYTHON_CALL nth=2") as agent:
            waiting = agent.call_async("w1", stand, ("waiting",))
            assert came.wait(20.0)
            with pytest.raises(PeerLost, match="Connection (closed|reset) by peer"):
                agent.call("w1", count, ("a",))
            # It takes others with it, as a connection does; and the next call opens another.
            with pytest.raises(PeerLost, match="Connection (closed|reset) by peer"):
                waiting.wait(20.0)
            assert agent.call("w1", count, ("a",)) == 1
            let_go()
            assert list(fired(agent).values()) == [1]

    def test_partition(self) -> None:
        with under("partition PYTHON_CALL times=1 seconds=60") as agent:
            for _ in range(2):
                with pytest.raises(CallTimedOut):
                    agent.call("w1", count, ("a",), timeout=0.02)
            assert fired(agent) == {Action.PARTITION: 1}

    def test_a_partition_ends(self) -> None:
        with under("partition PYTHON_CALL times=1 seconds=0.2") as agent:
            with pytest.raises(CallTimedOut):
                agent.call("w1", count, ("a",), timeout=0.02)
            policy = RetryPolicy(max_retries=50, delay_s=0.01, backoff=1.0, try_s=0.05)
            assert agent.call("w1", count, ("a",), retries=policy) == 1
            assert fired(agent) == {Action.PARTITION: 1}

    def test_what_is_dropped_at_the_same_time_does_not_end_a_partition(self) -> None:
        transport = FaultyTransport(parse_plan(""))
        transport._cut(
            "w1", [Fired(Action.PARTITION, Moment.REQUEST, Kind.PYTHON_CALL, "w1", 60.0)]
        )
        transport._cut("w1", [Fired(Action.DROP, Moment.REQUEST, Kind.PYTHON_CALL, "w1", 0.0)])
        assert transport._is_cut("w1")
        assert not transport._is_cut("w2")
        transport.close()

    def test_only_some_peers(self) -> None:
        transport = FaultyTransport(parse_plan("fail to=w1"))
        with agents(transport, None, None) as (agent, _, _):
            assert agent.call("w2", count, ("a",)) == 1
            with pytest.raises(PeerLost):
                agent.call("w1", count, ("a",))

    def test_calls_to_oneself_go_the_same_way(self) -> None:
        with under("fail to=w0") as agent, pytest.raises(PeerLost):
            agent.call("w0", count, ("a",))
        assert calls == {}


class TestReplies:
    def test_drop(self) -> None:
        with under("drop reply PYTHON_CALL nth=1") as agent:
            with pytest.raises(CallTimedOut):
                agent.call("w1", count, ("a",), timeout=2.0)
            assert agent.call("w1", count, ("a",)) == 2  # it had run

    def test_delay(self) -> None:
        with under("delay reply PYTHON_CALL seconds=0.05 nth=1") as agent:
            late = agent.call_async("w1", count, ("a",))
            assert late.wait() == 1
        with under("delay reply PYTHON_CALL seconds=60 nth=1") as agent:
            late = agent.call_async("w1", count, ("a",))
            assert agent.call("w1", count, ("b",)) == 1
            assert not late.done()

    @pytest.mark.parametrize("action", ["reset", "corrupt"])
    def test_a_broken_connection(self, action: str) -> None:
        with under(f"{action} reply PYTHON_CALL nth=1") as agent:
            with pytest.raises(PeerLost, match="Connection reset by peer"):
                agent.call("w1", count, ("a",))
            assert agent.call("w1", count, ("a",)) == 2

    def test_what_never_came_back_is_no_reply(self) -> None:
        with under("fail PYTHON_CALL times=1\ndrop reply PYTHON_CALL") as agent:
            with pytest.raises(PeerLost):
                agent.call("w1", count, ("a",))
            assert fired(agent) == {Action.FAIL: 1}


class TestRunning:
    def test_a_connection_that_breaks_while_the_callee_runs(self) -> None:
        with under("reset running PYTHON_CALL nth=1") as agent:
            with pytest.raises(PeerLost, match="Connection reset by peer"):
                agent.call("w1", stand, ("a",))
            let_go()
            until_called("a", 1)  # it has run, and its caller does not know
            assert agent.call("w1", count, ("a",)) == 2

    def test_a_retry_gets_the_answer_of_the_run(self) -> None:
        with under("reset running PYTHON_CALL nth=1") as agent:
            policy = RetryPolicy(max_retries=5, delay_s=0.01)
            assert agent.call("w1", count, ("a",), retries=policy) == 1
            assert fired(agent) == {Action.RESET: 1}
        assert calls == {"a": 1}


class TestEnds:
    """No caller waits for ever for a message that went wrong on purpose."""

    @pytest.mark.parametrize("synchronous", [True, False])
    @pytest.mark.parametrize("ends", ["we", "the peer"])
    @pytest.mark.parametrize(
        "plan",
        [
            "drop PYTHON_CALL",
            "drop reply PYTHON_CALL",
            "delay PYTHON_CALL seconds=600",
            "delay reply PYTHON_CALL seconds=600",
            "partition PYTHON_CALL seconds=600",
        ],
    )
    def test_a_caller_that_waits_gets_the_error(
        self, plan: str, ends: str, synchronous: bool
    ) -> None:
        transport = FaultyTransport(parse_plan(plan))
        with agents(transport, None) as (agent, peer):
            heard: list[BaseException | None] = []

            def call() -> None:
                try:
                    agent.call("w1", count, ("a",), timeout=0)
                except PeerLost as error:
                    heard.append(error)

            thread = threading.Thread(target=call)
            future = None
            if synchronous:
                thread.start()
            else:
                future = agent.call_async("w1", count, ("a",), timeout=0)
            until(lambda: fired(agent))
            if ends == "we":
                agent.close()
            else:
                assert peer.contact is not None
                agent.lost(peer.contact)
            if future is None:
                thread.join(WITHIN_S)
                assert not thread.is_alive()
            else:
                heard.append(future.exception(WITHIN_S))
        (error,) = heard
        assert isinstance(error, PeerLost)
        why = "this agent has been shut down" if ends == "we" else "it is gone"
        assert f"Connection closed by peer ({why})" in str(error)

    def test_a_call_without_a_deadline_ends_after_a_while(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport_module, "DROPPED_REPLY_S", 0.01)
        with under("drop PYTHON_CALL") as agent, pytest.raises(CallTimedOut):
            agent.call("w1", count, ("a",), timeout=0)

    def test_only_so_many_requests_without_a_reply_are_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport_module, "CALLS_MAX", 2)
        with under("drop PYTHON_CALL nth=2\ndrop PYTHON_CALL nth=3") as agent:
            assert agent.call("w1", count, ("first",)) == 1
            dropped = [agent.call_async("w1", count, ("a",), timeout=0) for _ in range(2)]
            assert agent.call("w1", count, ("b",)) == 1
            assert isinstance(agent.transport, FaultyTransport)
            assert len(agent.transport._asked) == 1
            assert not any(future.done() for future in dropped)


class TestErrors:
    def test_an_error_is_not_kept_by_the_frame_that_raised_it(self) -> None:
        """What a failed call held is free at once: references are counted by that."""
        import gc
        import weakref

        class Held:
            pass

        gc.disable()
        try:
            with under("fail PYTHON_CALL") as agent:
                held = Held()
                gone = weakref.ref(held)

                def use(held: Held) -> None:
                    agent.call("w1", count, ("a",))

                try:
                    use(held)
                except PeerLost:
                    pass
                del held
                assert gone() is None
        finally:
            gc.enable()

    def test_what_a_late_call_raises_comes_back(self) -> None:
        with under("delay PYTHON_CALL seconds=0.01") as agent:
            wrong = agent.call_async("w1", divmod, (1, 0))
            with pytest.raises(ZeroDivisionError):
                wrong.wait(20.0)
