"""Where tensors arrive; what needs a GPU is in tests/e2e/torch_compat/test_cuda.py."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch.distributed import rpc

from holdfast.rpc.values import pickling
from holdfast.rpc.values.references import here
from holdfast.torch_compat.rpc import calls
from holdfast.torch_compat.tensors.devices import Devices, Gradients, visible
from holdfast.torch_compat.tensors.pickling import reduce_tensor
from tests.unit.torch_compat.group import group

CPU, GPU0, GPU1, META = (torch.device(name) for name in ("cpu", "cuda:0", "cuda:1", "meta"))


class Core:
    """What is needed of an agent here: that one can be told from another."""


def devices(towards: Any, back: Any, core: Core | None = None) -> Devices:
    return Devices(core or Core(), None, towards, back)  # type: ignore[arg-type]


def test_dv1_a_request_goes_by_the_map_and_an_answer_by_the_callers_map_backwards() -> None:
    one = devices({"b": {GPU0: GPU1}}, {"b": {GPU0: CPU}})
    assert one.where("b", GPU0, is_answer=False) == GPU1
    assert one.where("b", GPU0, is_answer=True) == CPU


def test_a_gradient_goes_the_way_back_and_else_the_way_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = devices({"b": {GPU0: GPU1, GPU1: GPU1}}, {"b": {GPU0: CPU}})
    for is_answer in (False, True):
        monkeypatch.setattr(here, "packing", (None, "b", [], is_answer))
        Gradients([]).__reduce__()
        assert one.where("b", GPU0, is_answer) == CPU
        assert one.where("b", GPU1, is_answer) == GPU1
    monkeypatch.setattr(here, "packing", (None, "b", [], False))  # another message
    assert one.where("b", GPU0, is_answer=False) == GPU1


def test_what_is_on_the_cpu_stays_there_unless_the_map_names_it() -> None:
    assert devices({}, {}).where("b", CPU, is_answer=False) == CPU
    assert devices({"b": {CPU: GPU0}}, {}).where("b", CPU, is_answer=False) == GPU0
    assert devices({"b": {CPU: GPU0}}, {}).where("c", CPU, is_answer=False) == CPU


@pytest.mark.parametrize(("is_answer", "way"), [(False, "Request"), (True, "Response")])
def test_dv1_a_device_that_no_map_names_is_an_error_that_says_how_to_name_it(
    is_answer: bool, way: str
) -> None:
    one = devices({"b": {GPU1: GPU1}}, {"b": {GPU1: GPU1}})
    with pytest.raises(RuntimeError) as raised:
        one.where("b", GPU0, is_answer)
    assert "only supports CPU tensors by default" in str(raised.value)
    assert "call `set_device_map` on `TensorPipeRpcBackendOptions`" in str(raised.value)
    assert f"{way} device mapping is not available for destination b" in str(raised.value)
    assert "cuda:0" in str(raised.value)


def mapped(**map_: str) -> Any:
    made = rpc.TensorPipeRpcBackendOptions(rpc_timeout=30)
    made.set_device_map("b", map_)
    return made


def doubled(x: Any) -> Any:
    return x.device.type, x * 2


@pytest.mark.parametrize(
    "tensor",
    [torch.rand(3), torch.rand(3, 4).T, torch.rand(2, requires_grad=True), torch.empty(0)],
    ids=["plain", "strided", "requires a gradient", "empty"],
)
def test_a_tensor_on_the_cpu_comes_and_goes_where_there_are_maps(tensor: Any) -> None:
    with group("a", "b", options=mapped(cpu="cpu")) as (_, other):
        to = other.get_worker_info()
        assert pickling._taught[torch.Tensor] is not reduce_tensor
        found = calls.invoke_rpc_builtin(to, "aten::mul", -1, tensor, 2).wait()
        assert torch.equal(found, tensor * 2)


def test_a_sparse_tensor_comes_and_goes_where_there_are_maps() -> None:
    tensor = torch.eye(3).to_sparse()
    with group("a", "b", options=mapped(cpu="cpu")) as (_, other):
        found = calls.invoke_rpc_builtin(other.get_worker_info(), "aten::mul", -1, tensor, 2).wait()
    assert found.layout is torch.sparse_coo
    assert torch.equal(found.to_dense(), torch.eye(3) * 2)


def test_a_tensor_elsewhere_is_refused_before_it_is_sent() -> None:
    tensor = torch.empty(2, device="meta")
    with group("a", "b", options=mapped(cpu="cpu")) as (one, other):
        before = one.core.metrics()["agent.client_calls"]
        with pytest.raises(RuntimeError, match=r"Request device mapping .* destination b .*meta"):
            calls.invoke_rpc_builtin(other.get_worker_info(), "aten::mul", -1, tensor, 2)
        assert one.core.metrics()["agent.client_calls"] == before


def test_core_asks_nothing_more_of_a_tensor_where_there_are_no_devices(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Devices, "_of", WeakKeyDictionary())  # there may be agents that were
    devices({}, {})
    assert pickling._taught[torch.Tensor] is reduce_tensor


def test_core_asks_as_long_as_any_agent_has_devices(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Devices, "_of", WeakKeyDictionary())
    agent = Core()
    devices({"b": {CPU: CPU}}, {}, agent)
    devices({}, {})
    assert pickling._taught[torch.Tensor] is not reduce_tensor
    del agent
    devices({}, {})
    assert pickling._taught[torch.Tensor] is reduce_tensor


def test_one_that_is_not_complete_is_seen_by_no_other(monkeypatch: Any) -> None:
    kept = [Core(), Core()]
    asked: list[int] = []

    def is_available() -> bool:
        asked.append(1)
        if len(asked) == 1:  # another one is made meanwhile
            devices({}, {}, kept[1])
        return False

    monkeypatch.setattr(Devices, "_of", WeakKeyDictionary())
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    devices({}, {}, kept[0])
    assert len(asked) == len(Devices._of) == 2


def test_they_are_entered_and_walked_by_one_at_a_time(monkeypatch: Any) -> None:
    walked: list[int] = []

    class Guarded(WeakKeyDictionary[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            assert Devices._lock.locked()
            super().__setitem__(key, value)

        def values(self) -> Any:
            assert Devices._lock.locked()
            walked.append(len(self))
            return super().values()

    monkeypatch.setattr(Devices, "_of", Guarded())
    agent = Core()
    devices({}, {}, agent)
    assert walked == [1]


def test_without_a_gpu_none_is_visible(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert visible() == []
