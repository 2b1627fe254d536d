"""Agents by torch's names, and the current one."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

from holdfast.net.address import Address
from holdfast.rpc.client.future import Future
from holdfast.rpc.values.pickling import dump, load
from holdfast.torch_compat.autograd.contexts import CONTEXTS
from holdfast.torch_compat.rpc import agents, calls
from holdfast.torch_compat.rpc.agents import FaultyTensorPipeAgent
from holdfast.torch_compat.rpc.rrefs import PyRRef
from holdfast.torch_compat.theirs import THEIRS_FAULTY
from tests.unit.torch_compat.group import at_once, group


def test_an_agent_knows_itself_and_the_others() -> None:
    with group("a", "b") as (a, b):
        assert str(a.get_worker_info()) == "WorkerInfo(id=0, name=a)"
        assert a.get_worker_info("b") == a.get_worker_info(1) == b.get_worker_info()
        assert [one.name for one in b.get_worker_infos()] == ["a", "b"]
        assert a.is_static_group
        assert a._get_device_map(b.get_worker_info()) == {}
        assert a._devices == []


def test_what_it_tells_has_torchs_names() -> None:
    with group("a") as (a,):
        told = a.get_debug_info()
        assert told["agent.thread_pool_size"] == told["agent.num_idle_threads"] == "16"
        assert told["agent.client_active_calls"] == told["agent.server_active_calls"] == "0"
        assert agents.reference_counts() == dict.fromkeys(
            ("num_owner_rrefs", "num_pending_futures", "num_pending_users", "num_forks"), "0"
        )


def test_there_is_one_current_agent() -> None:
    assert not agents.is_set()
    with pytest.raises(RuntimeError, match="Did you initialize the RPC framework"):
        agents.current()
    with group("a") as (a,):
        assert agents.is_set()
        assert agents.current() is a
        with pytest.raises(RuntimeError, match="Current RPC agent is set!"):
            agents.set_and_start(a)


def test_the_default_timeout_can_be_set() -> None:
    with group("a"):
        assert agents.get_rpc_timeout() == 30
        agents.set_rpc_timeout(5)
        assert agents.get_rpc_timeout() == 5


def test_workers_leave_when_nothing_is_under_way() -> None:
    with group("a", "b") as (a, b):
        future = calls.invoke_rpc_builtin(b.get_worker_info(), "aten::add", -1, 1, 2)
        at_once(lambda: a.join(timeout=30), lambda: b.join(timeout=30))
        assert future.wait() == 3


_may_return = threading.Event()


def wait_for_it() -> None:
    assert _may_return.wait(60)


def test_a_worker_that_leaves_waits_for_its_own_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock:
        """Lets the call go on once a thread waits for it to end."""

        def sleep(self, seconds: float) -> None:
            _may_return.set()

    monkeypatch.setattr(agents, "SYSTEM_CLOCK", Clock())
    monkeypatch.setattr(agents, "LEAVE_WITHIN_S", 0.0)
    with group("a") as (a,):
        call = a.core.call_async("a", wait_for_it)
        a.join()
        assert _may_return.is_set()
        call.wait(60)  # it has been answered; the thread that hears that may be a moment behind


def test_a_value_that_others_hold_is_a_leak() -> None:
    with group("a", "b") as (a, b):
        rref = calls.invoke_remote_builtin(b.get_worker_info(), "aten::add", -1, 1, 2)
        rref._get_future().wait()
        agents.reset()
        agents.set_and_start(b)
        assert agents.reference_counts()["num_forks"] == "1"
        agents.destroy_references(True)
        with pytest.raises(RuntimeError, match="Leaking RRef .* held by a"):
            agents.destroy_references(False)
        agents.reset()
        agents.set_and_start(a)
        agents.delete_references()
        with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion"):
            rref.to_here()
        agents.reset()
        agents.set_and_start(b)
        agents.destroy_references(False)


def test_a_context_that_is_released_before_a_value_is_there_stays_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = SimpleNamespace(id=5)
    with group("a") as (a,):
        value: Future[Any] = Future()
        monkeypatch.setattr(a.core.rrefs, "value", lambda number: value)
        fetched = a._fetched(caller, ("life", 1, 4242, 5))
        context = CONTEXTS.take(4242)
        assert context is not None
        assert context.sources == {5}
        value.set_result(torch.ones(2, requires_grad=True))
        came = load(*dump(fetched.wait(60)))
        assert came.is_leaf
        assert came.requires_grad
        assert CONTEXTS.all() == []
        assert a._fetched(caller, ("life", 1)) is value.value()


def test_a_value_that_only_its_owner_has_is_not_counted() -> None:
    with group("a"):
        kept = PyRRef(1)
        assert agents.reference_counts()["num_owner_rrefs"] == "0"
        assert kept.local_value() == 1


def test_messages_of_a_faulty_agent_go_wrong_by_its_options() -> None:
    options = THEIRS_FAULTY.FaultyTensorPipeRpcBackendOptions(
        num_worker_threads=8,
        rpc_timeout=30,
        init_method="env://",
        messages_to_fail=["SCRIPT_CALL"],
        messages_to_delay={},
        num_fail_sends=1,
    )
    with group("a", "b", kind=FaultyTensorPipeAgent, options=options) as (_, b):
        to = b.get_worker_info()
        with pytest.raises(RuntimeError, match="failed intentionally for SCRIPT_CALL"):
            calls.invoke_rpc_builtin(to, "aten::add", -1, 1, 2).wait()
        assert calls.invoke_rpc_builtin(to, "aten::add", -1, 1, 2).wait() == 3


def test_a_store_of_other_hosts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Served:
        port = 29500

        def __init__(self, host: str) -> None:
            self.host = host

    assert agents._far_host(dist.PrefixStore("p", dist.HashStore())) is None
    monkeypatch.setattr(dist, "TCPStore", Served)
    assert agents._far_host(Served("127.0.0.1")) is None
    assert agents._far_host(Served("10.1.2.3")) == Address("10.1.2.3", 29500)


def test_workers_of_several_hosts_agree_on_a_key_by_their_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HOLDFAST_SECRET", "HOLDFAST_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    store: Any = dist.HashStore()
    far = Address("10.1.2.3", 29500)
    assert agents._key(store, far) == agents._key(store, far)
    assert agents._key(store, far) != agents._key(dist.HashStore(), far)
    monkeypatch.setenv("HOLDFAST_SECRET", "s" * 40)
    assert agents._key(store, far) == agents._key(dist.HashStore(), far)


def test_options_of_torch_are_taken_as_they_are() -> None:
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=3, rpc_timeout=7)
    with group("a", options=options) as (a,):
        assert a._get_backend_options() is options
        assert a.get_metrics()["agent.thread_pool_size"] == "3"
        assert agents.get_rpc_timeout() == 7
