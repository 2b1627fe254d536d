"""The functions of `holdfast.rpc`, with workers in processes of their own."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import PeerLost, TimeoutExpired, UsageError
from holdfast.rpc import current
from holdfast.rpc.api import (
    async_execution,
    get_worker_info,
    init_rpc,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
)
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.future import Future
from holdfast.rpc.membership.directory import GRACE_S, Directory
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.memory import MemoryStore
from holdfast.store.open import open_store, serve_store
from holdfast.store.ops import Op
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store
from tests.unit.rpc.api_worker import identify, stay
from tests.unit.rpc.api_world import Worker, free_port, workers
from tests.waiting import until, with_more_time


def calls_work() -> None:
    name, number, pid = rpc_sync("w1", identify)
    assert (name, number) == ("w1", 1)
    assert pid != os.getpid()
    assert get_worker_info("w1") == WorkerInfo("w1", 1)
    assert get_worker_info() == WorkerInfo("w0", 0)
    for target in (1, "w1", WorkerInfo("w1", 1)):
        assert rpc_sync(target, divmod, args=(7, 2)) == (3, 1)
    assert rpc_async("w1", int, args=("11",), kwargs={"base": 2}).wait() == 3
    assert remote("w1", divmod, args=(7, 2)).to_here() == (3, 1)
    assert rpc_sync("w0", identify) == ("w0", 0, os.getpid())


class TestMeeting:
    def test_at_an_address(self) -> None:
        with workers() as started, free_port() as port:
            where = f"tcp://127.0.0.1:{port}"
            started.append(Worker("w1", rank=1, world_size=2, init_method=where))
            assert init_rpc("w0", rank=0, world_size=2, init_method=where) == WorkerInfo("w0", 0)
            calls_work()
            started[0].let_end()
            assert shutdown() == ()
            assert [started[0].hear(), started[0].hear()] == ["ready", []]

    def test_in_a_file(self, tmp_path: Path) -> None:
        where = f"file://{tmp_path}/meeting"
        with workers() as started:
            started.append(Worker("w1", rank=1, world_size=2, init_method=where))
            init_rpc("w0", rank=0, world_size=2, init_method=where)
            calls_work()
            started[0].let_end()
            assert shutdown() == ()
            assert [started[0].hear(), started[0].hear()] == ["ready", []]

    def test_by_the_environment_as_torch_has_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with workers() as started, free_port() as port:
            common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
            for name, value in {**common, "RANK": "0"}.items():
                monkeypatch.setenv(name, value)
            started.append(Worker("w1", common | {"RANK": "1"}))
            init_rpc("w0")
            calls_work()
            started[0].let_end()
            assert shutdown() == ()

    def test_at_the_store_of_the_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serve_store() as server, workers() as started:
            common = {"HOLDFAST_STORE": server.endpoint, "WORLD_SIZE": "2"}
            for name, value in {**common, "RANK": "0"}.items():
                monkeypatch.setenv(name, value)
            started.append(Worker("w1", common | {"RANK": "1"}))
            init_rpc("w0", init_method="env://")
            calls_work()
            started[0].let_end()
            assert shutdown() == ()

    def test_at_a_given_store(self) -> None:
        with serve_store() as server, open_store(server.endpoint) as store, workers() as started:
            common = {"HOLDFAST_STORE": server.endpoint}
            # A worker with a given store meets those with the same, not those of the environment.
            started.append(Worker("w1", common, rank=1, world_size=2))

            def wait_in_vain(seconds: float) -> None:
                with pytest.raises(TimeoutExpired, match="1 of 2 workers came in time: w0"):
                    init_rpc("w0", rank=0, world_size=2, store=store, timeout=seconds)
                assert not current.is_agent_set()

            with_more_time(wait_in_vain)
            init_rpc("w0", rank=0, world_size=1, store=store)
            assert rpc_sync(0, identify) == ("w0", 0, os.getpid())
            assert shutdown() == ()

    def test_it_takes_until_all_others_know_all_too(self) -> None:
        store = MemoryStore()
        other = Directory(PrefixStore(store, "rpc/"))
        try:
            contact = Contact(WorkerInfo("w1", 1), "life", "machine", "", "")
            other.join(contact, Deadline.after(20.0))
            other.wait_for(1, Deadline.after(20.0))  # it sees itself, and says nothing

            def wait_in_vain(seconds: float) -> None:
                said = "not all have seen the others in time: w1"
                with pytest.raises(TimeoutExpired, match=said):
                    init_rpc("w0", rank=0, world_size=2, store=store, timeout=seconds)

            with_more_time(wait_in_vain)
        finally:
            other.close()


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"rank": -1}, "rank -1: must be a whole number from 0 to 32767"),
            ({"rank": 2, "world_size": 2}, "rank 2: must be a whole number from 0 to 1"),
            ({"rank": True}, "rank True: must be a whole number"),
            ({"rank": "0"}, "rank '0': must be a whole number"),
            ({"rank": 0, "world_size": 0}, "world_size 0: must be a whole number, at least 1"),
            ({"world_size": 1.0}, "world_size 1.0: must be a whole number"),
            ({"name": "a b"}, "Worker name must match"),
            ({"name": ""}, "Worker name must match"),
            ({"backend": "nosuch"}, "RPC backend 'nosuch': unknown; there are default, faulty"),
            ({"options": {"x": 1}}, "RPC backend default: takes no options"),
            ({"init_method": "file:///x"}, "give a store or an init_method, not both"),
            ({"store": None, "init_method": "http://x"}, "must be tcp://host:port, file:///path"),
            ({"store": "tcp://h:1"}, "store 'tcp://h:1': must be a Store, .*is an init_method"),
            ({"store": None}, "neither HOLDFAST_STORE nor MASTER_ADDR and MASTER_PORT are set"),
            ({"timeout": -1}, "timeout"),
            ({"rpc_timeout": -1}, "rpc_timeout -1: must be zero or more seconds"),
            ({"rpc_timeout": "9"}, "rpc_timeout '9': seconds as a number"),
            ({"keep_alive": 0}, "keep_alive 0: more than 0 and at most 86400 seconds are allowed"),
            ({"keep_alive": True}, "keep_alive True: more than 0"),
            ({"keep_alive": "9"}, "keep_alive '9': more than 0"),
        ],
    )
    def test_one_line_says_what_is_wrong(self, options: dict[str, Any], said: str) -> None:
        given = {"name": "w0", "store": MemoryStore(), **options}
        with pytest.raises(UsageError, match=said) as caught:
            init_rpc(**given)
        assert "\n" not in str(caught.value)
        assert not current.is_agent_set()

    @pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
    @pytest.mark.parametrize("text", ["x", "-1", "²", "1.0"])
    def test_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, name: str, text: str
    ) -> None:
        monkeypatch.setenv(name, text)
        with pytest.raises(UsageError, match=f"{name}='{text}': must be a whole number"):
            init_rpc("w0")

    @pytest.mark.parametrize("make", [rpc_sync, rpc_async, remote])
    def test_of_a_call(self, make: Callable[..., Any]) -> None:
        init_rpc("w0", store=MemoryStore())
        try:
            for args, said in (
                ((1, 2), r"args 1: must be a tuple or a list, as in args=\(1, 2\)"),
                (("ab",), "args 'ab': must be a tuple"),
                (({"ab"},), "args {'ab'}: must be a tuple"),
                (((1,), 2), "kwargs 2: must be a mapping of names"),
                (((), None, "x"), "timeout 'x': must be seconds, 0 for no limit, None for the "),
                (((), None, -1), "timeout -1: must be seconds, 0 for no limit"),
                (((), None, None, 3), "retries 3: must be a RetryPolicy"),
            ):
                with pytest.raises(UsageError, match=said):
                    make("w0", operator.add, *args)
            for good in ([1, 2], range(1, 3)):
                made = make("w0", operator.add, good, {})
                assert made == 3 or (made.wait() if make is rpc_async else made.to_here()) == 3
        finally:
            shutdown()

    def test_twice(self) -> None:
        init_rpc("w0", store=MemoryStore())
        try:
            with pytest.raises(UsageError, match="has an RPC agent already"):
                init_rpc("w1", store=MemoryStore())
        finally:
            shutdown()
        with pytest.raises(UsageError, match="Current RPC agent is not set!"):
            shutdown()
        init_rpc("w0", store=MemoryStore())  # and again
        shutdown()

    def test_a_name_or_a_number_that_is_taken(self) -> None:
        store = MemoryStore()
        init_rpc("w0", rank=0, store=store)
        mine = current.reset_agent()
        try:
            with pytest.raises(TimeoutExpired, match="name 'w0' is taken by another worker"):
                init_rpc("w0", rank=1, store=store, timeout=0.1)
            with pytest.raises(TimeoutExpired, match="number 0 is taken by another worker"):
                init_rpc("w1", rank=0, store=store, timeout=0.1)
            with pytest.raises(UsageError, match="Workers 0 and 1 share the same name"):
                init_rpc("w0", rank=1, world_size=2, store=store)
            # Numbers that are given tell nothing: it may be the same worker that comes again.
            with pytest.raises(TimeoutExpired, match="name 'w0' is taken by another worker"):
                init_rpc("w0", world_size=2, store=store, timeout=0.1)
            init_rpc("w1", rank=1, store=store)
            shutdown()
        finally:
            current.set_agent(mine)
            shutdown()

    def test_no_worker_of_that_name(self) -> None:
        init_rpc("w0", store=MemoryStore())
        try:
            assert get_worker_info("w0").name == "w0"  # it is known here from now on
            for target in ("w7", 7, WorkerInfo("w7", 7), None):
                with pytest.raises(UsageError, match="worker .*7|None.*: unknown; there are w0"):
                    rpc_sync(target, identify)  # type: ignore[arg-type]
        finally:
            shutdown()


class TestComingAndGoing:
    def test_workers_come_and_go(self) -> None:
        with serve_store() as server, workers() as started:
            init_rpc("w0", init_method=server.endpoint, rank=5)
            for round_ in range(2):
                started.append(Worker("w1", init_method=server.endpoint))
                assert started[-1].hear() == "ready"
                until(lambda: rpc_is_known("w1"))
                name, number, pid = rpc_sync("w1", identify)
                assert (name, number, pid) == ("w1", round_ + 1, started[-1].process.pid)
                started[-1].let_end()
                assert started[-1].hear() == []  # waits for no worker
                until(lambda: not rpc_is_known("w1"))
            assert shutdown() == ()

    def test_a_dead_worker_is_named_at_the_end(self) -> None:
        with serve_store() as server, workers() as started:
            where = server.endpoint
            started += [Worker("w1", rank=1, world_size=3, init_method=where)]
            started += [Worker("w2", rank=2, world_size=3, init_method=where)]
            with open_store(where) as store:
                init_rpc("w0", rank=0, world_size=3, store=store)
                assert [worker.hear() for worker in started] == ["ready", "ready"]
                waiting = rpc_async("w1", stay)
                started[0].process.kill()
                with pytest.raises(PeerLost, match="Connection (closed|reset) by peer"):
                    waiting.wait(20.0)
                started[1].let_end()
                assert shutdown(timeout=20.0) == ("w1",)
                assert started[1].hear() == ["w1"]

    def test_di7_a_world_of_another_size_is_refused(self) -> None:
        store = MemoryStore()
        other = Directory(PrefixStore(store, "rpc/"))
        there = Contact(WorkerInfo("w1", 1), "life", "", "", "", world_size=3)
        other.join(there, Deadline.after(20.0))
        try:
            with pytest.raises(UsageError, match=r"world_size 2: .*name=w1.* has world_size 3"):
                init_rpc("w0", rank=0, world_size=2, store=store, keep_alive=2.0, timeout=60.0)
        finally:
            other.close()

    def test_a_worker_that_does_not_want_to_end(self) -> None:
        with serve_store() as server, workers() as started:
            started.append(Worker("w1", rank=1, world_size=2, init_method=server.endpoint))
            with open_store(server.endpoint) as store:
                init_rpc("w0", rank=0, world_size=2, store=store)
                assert shutdown(timeout=0.1) == ("w1",)
                assert not current.is_agent_set()

    def test_the_end_without_a_store(self, caplog: pytest.LogCaptureFixture) -> None:
        with workers() as started:
            server = serve_store()
            started.append(Worker("w1", rank=1, world_size=2, init_method=server.endpoint))
            with open_store(server.endpoint) as store:
                init_rpc("w0", rank=0, world_size=2, store=store)
                server.close()
                assert (
                    rpc_async("w1", identify).wait(20.0)[0] == "w1"
                )  # workers that have met need none
                assert shutdown(timeout=0.3) == ("w1",)
        assert "the store where the workers meet is gone" in caplog.text

    @pytest.mark.parametrize("graceful", [True, False])
    def test_a_store_that_does_not_answer_holds_no_end_up(self, graceful: bool) -> None:
        """R1: it is waited for a moment longer than `timeout`, whatever is to be said there."""
        store = Mute(MemoryStore(), "x/")
        init_rpc("w0", store=store, rank=0, world_size=1)
        store.mute = True
        assert shutdown(graceful, timeout=0.0 if graceful else None) == ()
        assert sum(store.waits) <= GRACE_S

    def test_a_shutdown_that_is_not_graceful_waits_for_no_worker(self) -> None:
        with serve_store() as server, workers() as started:
            where = server.endpoint
            started.append(Worker("w1", rank=1, world_size=2, init_method=where))
            with open_store(where) as store:
                init_rpc("w0", rank=0, world_size=2, store=store)
                assert shutdown(graceful=False) == ()
                started[0].let_end()
                assert [started[0].hear(), started[0].hear()] == ["ready", []]

    def test_an_agent_of_ones_own(self) -> None:
        from tests.unit.rpc.world import agents

        with agents(None, None) as (agent, _):
            current.set_agent(agent)
            assert rpc_sync("w1", divmod, args=(7, 2)) == (3, 1)
            assert shutdown() == ()
            assert not current.is_agent_set()


class Mute(PrefixStore):
    """A store that stops answering; it notes how long it was waited for."""

    mute = False

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(store, prefix)
        self.waits: list[float] = []

    def _perform(self, op: Op[Any], deadline: Deadline) -> Any:
        if not self.mute:
            return super()._perform(op, deadline)
        left = deadline.remaining()
        assert left is not None
        self.waits.append(left)
        raise TimeoutExpired("no answer in time")


def rpc_is_known(name: str) -> bool:
    try:
        get_worker_info(name)
    except (UsageError, PeerLost):
        return False
    return True


@async_execution
def later(value: int) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(value)
    return future


class Desk:
    @async_execution
    def later(self, value: int) -> Future[int]:
        return later(value)

    @async_execution
    @staticmethod
    def static(value: int) -> Future[int]:
        return later(value)

    @classmethod
    @async_execution
    def of_class(cls, value: int) -> Future[int]:
        return later(value)

    async def coroutine(self, value: int) -> int:
        return value

    def unmarked(self) -> Future[int]:
        return later(3)


def test_a_function_that_returns_a_future() -> None:
    init_rpc("w0", store=MemoryStore())
    try:
        for function in (later, Desk.static, Desk.of_class):
            assert rpc_sync("w0", function, args=(3,)) == 3
    finally:
        shutdown()


def test_a_method_of_a_reference_that_answers_later() -> None:
    init_rpc("w0", store=MemoryStore())
    try:
        desk = remote("w0", Desk)
        for method in ("later", "static", "of_class", "coroutine"):
            assert getattr(desk.rpc_sync(), method)(3) == 3
            assert getattr(desk.rpc_async(), method)(3).wait(20.0) == 3
            assert getattr(desk.remote(), method)(3).to_here() == 3
        with pytest.raises(UsageError, match=r"Desk\.unmarked .*mark it with async_execution"):
            _ = desk.rpc_sync().unmarked()
        del desk
    finally:
        shutdown()
