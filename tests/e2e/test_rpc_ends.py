"""The end of workers, and their beginning: killed, stopped, started again, shut down."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import PeerLost
from holdfast.net.auth import derive_key
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.client import dialer
from holdfast.rpc.client.future import wait_all
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.e2e import rpc_jobs as jobs
from tests.e2e.rpc_world import KEY, workers
from tests.waiting import until

SOON = 30.0


def wait_beside(agent: Agent) -> tuple[threading.Thread, list[BaseException]]:
    """Let a thread wait for w1; return it, and a list to which it adds how that ended."""
    caught: list[BaseException] = []

    def call() -> None:
        try:
            agent.call("w1", jobs.wait_at, ("sync",))
        except PeerLost as error:
            caught.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    until(lambda: bool(agent.call("w1", jobs.counted, ("sync",))))
    return caller, caught


def test_sixteen_workers_call_each_other_all_at_once() -> None:
    names = [f"w{number}" for number in range(16)]
    with workers(16) as (agent, _):
        current.set_agent(agent)
        try:
            totals = [agent.call_async(name, jobs.call_all, (names, 3)) for name in names]
            assert wait_all(totals) == [3 * (16 + 16 + 16 * 3)] * 16
        finally:
            current.reset_agent()


def test_the_death_of_a_peer_fails_all_waiting_calls_and_a_new_one_is_found() -> None:
    with workers(2) as (agent, others):
        waiting = [agent.call_async("w1", jobs.wait_at, (f"{n}",)) for n in range(3)]
        caller, caught = wait_beside(agent)
        before = agent.find("w1")
        peer = agent.peer("w1")
        others.signal("w1", signal.SIGKILL)
        for future in waiting:
            with pytest.raises(PeerLost, match="Connection (closed|reset) by peer") as lost:
                future.wait()
            assert lost.value.peer == "w1"
            assert lost.value.incarnation == before.incarnation
        caller.join()
        assert isinstance(caught[0], RuntimeError)
        others.end("w1")
        others.start("w1")
        until(lambda: agent.find("w1").incarnation != before.incarnation)
        assert agent.call("w1", jobs.add, (1,)) == 1
        assert agent.call_async("w1", jobs.add, (2,)).wait() == 2
        # What was meant for the old one stays refused, and is never run by the new one.
        until(lambda: peer.lost is not None)
        request = (jobs.count, ("stale",), None)
        body, buffers, _ = agent.rrefs.pack(before.incarnation, request)
        stale = Message(Kind.PYTHON_CALL, 0, body, buffers)
        with pytest.raises(PeerLost):
            peer.exchange(stale)
        assert agent.call("w1", jobs.counted, ("stale",)) == 0


def test_a_stopped_worker_is_lost_after_its_lease_and_ignored_from_then_on() -> None:
    with workers(3, lease_s=5.0) as (agent, others):
        current.set_agent(agent)
        try:
            waiting = agent.call_async("w1", jobs.wait_at, ("silent",))
            # The one that will be stopped is calling us, and goes on with that when it wakes up.
            calling = agent.call_async("w1", jobs.nested, ("w1", "w0", 1))
            assert calling.wait() == 1
            until(lambda: bool(agent.call("w1", jobs.counted, ("silent",))))
            stale = agent.find("w1").incarnation
            others.signal("w1", signal.SIGSTOP)
            with pytest.raises(PeerLost, match="Connection closed by peer"):
                waiting.wait()
            assert agent.call("w2", jobs.add, (1,)) == 1  # others are not held up
            assert stale in agent._dispatcher._dead
        finally:
            current.reset_agent()


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_that_is_frozen_at_the_first_call_to_it_is_called_when_it_wakes(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PE-4: its lease lasts, so it is not lost, however many attempts to connect take too long."""
    monkeypatch.setattr(dialer, "TRY_S", 0.05)
    tries, connect = threading.Semaphore(0), dialer.Dialer._connect

    def count(self: dialer.Dialer, deadline: Deadline) -> Connection:
        tries.release()
        return connect(self, deadline)

    monkeypatch.setattr(dialer.Dialer, "_connect", count)
    with workers(2, lease_s=60.0) as (agent, others):
        others.signal("w1", signal.SIGSTOP)
        answers: list[int] = []
        call = agent.call if waits else (lambda *args: agent.call_async(*args).wait())
        caller = threading.Thread(target=lambda: answers.append(call("w1", jobs.add, (1,))))
        caller.start()
        for _ in range(3):
            assert tries.acquire(timeout=SOON)
        monkeypatch.setattr(dialer, "TRY_S", SOON)
        others.signal("w1", signal.SIGCONT)
        caller.join()
        assert answers == [1]


SHUT_DOWN = r"Connection closed by peer \(this agent has been shut down\)"


def test_shutting_down_ends_calls_under_way() -> None:
    with workers(2) as (agent, _):
        futures = [agent.call_async("w1", jobs.wait_at, (f"{n}",)) for n in range(5)]
        caller, caught = wait_beside(agent)
        agent.close()
        caller.join()
        assert len(caught) == 1
        for future in futures:
            with pytest.raises(PeerLost, match=SHUT_DOWN):
                future.wait()
        with pytest.raises(PeerLost, match=SHUT_DOWN):
            agent.call("w1", jobs.add, (1,))
        with pytest.raises(PeerLost, match=SHUT_DOWN):
            agent.call_async("w1", jobs.add, (1,)).wait()


class Table:
    """The addresses of workers, without a store."""

    def __init__(self) -> None:
        self.known: dict[object, Any] = {}

    def find(self, target: object) -> Any:
        return self.known[target]

    def find_incarnation(self, incarnation: str) -> Any:
        for contact in self.known.values():
            if contact.incarnation == incarnation:
                return contact
        raise PeerLost(incarnation)


def test_two_agents_in_one_process_call_each_other_and_an_unknown_one_is_refused() -> None:
    table = Table()
    keys = (KEY, KEY, derive_key(b"another job", "rpc"))
    agents = [
        Agent(WorkerInfo(f"a{number}", number), table, key) for number, key in enumerate(keys)
    ]
    try:
        for each in agents:
            each.start("127.0.0.1")
            assert each.contact is not None
            table.known[each.info.name] = each.contact
        one, two, stranger = agents
        assert one.call("a1", jobs.add, (1,)) == two.call("a0", jobs.add, (1,)) == 1
        assert wait_all([one.call_async("a1", jobs.add, (n,)) for n in range(9)]) == list(range(9))
        with pytest.raises(PeerLost, match="secret"):
            stranger.call("a0", jobs.add, (1,))
        with pytest.raises(PeerLost, match="secret"):
            stranger.call_async("a0", jobs.add, (1,)).wait()
    finally:
        for each in agents:
            each.close()
            each.close()
