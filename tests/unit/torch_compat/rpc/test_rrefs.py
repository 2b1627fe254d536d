"""References by torch's name for them."""

from __future__ import annotations

import pickle

import pytest
import torch

from holdfast.torch_compat.rpc import calls
from holdfast.torch_compat.rpc.rrefs import PyRRef
from tests.unit.torch_compat.group import group


def test_a_reference_to_a_value_of_ones_own() -> None:
    with group("a") as (a,):
        rref = PyRRef([1, 2])
        assert rref.is_owner()
        assert rref.confirmed_by_owner()
        assert rref.owner() == a.get_worker_info()
        assert rref.owner_name() == "a"
        assert rref.to_here() is rref.local_value()
        assert rref._get_type() is list
        assert rref._get_type(blocking=False).wait() is list
        assert str(rref) == "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))"
        with pytest.raises(RuntimeError, match="not created by remote"):
            rref._get_future()


def test_a_script_module_needs_its_interface() -> None:
    module = torch.jit.ScriptModule()
    with group("a"):
        with pytest.raises(RuntimeError, match="must provide its ModuleInterface type hint"):
            PyRRef(module)
        assert PyRRef(module, object).local_value() is module


def test_a_reference_to_a_value_of_another_worker() -> None:
    with group("a", "b") as (_, b):
        rref = calls.invoke_remote_builtin(b.get_worker_info(), "aten::add", -1, torch.ones(2), 1)
        assert not rref.is_owner()
        assert rref.owner() == b.get_worker_info()
        assert torch.equal(rref.to_here(), torch.ones(2) + 1)
        assert torch.equal(rref.to_here(60), torch.ones(2) + 1)
        rref._get_future().wait()  # the value may be here before word of its creation
        assert rref.confirmed_by_owner()
        assert str(rref) == (
            "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=0), "
            "ForkId = GloballyUniqueId(created_on=0, local_id=1))"
        )
        with pytest.raises(
            RuntimeError,
            match=r"For UserRRef\(rref_id=.*, can't call localValue\(\) on user "
            r"WorkerInfo\(id=0, name=a\). Call it on owner WorkerInfo\(id=1, name=b\)",
        ):
            rref.local_value()


def test_a_reference_whose_creation_failed_says_so() -> None:
    with group("a", "b") as (_, b):
        rref = calls.invoke_remote_builtin(b.get_worker_info(), "aten::add", -1, "x", torch.ones(1))
        rref._get_future().wait()  # it arrived; what failed is what it made
        with pytest.raises(RuntimeError, match="schema"):
            rref.to_here()


TAKE = "holdfast_test_take"
torch.jit._state._python_cu.define(f"def {TAKE}(rref: RRef[int]) -> int:\n    return 1\n")


def test_a_script_function_cannot_take_one_and_says_so() -> None:
    take = torch.jit._state._python_cu.find_function(TAKE)
    said = "Value: <OwnerRRef.* of holdfast, which TorchScript cannot take>"
    with group("a"), pytest.raises(RuntimeError, match=said):
        take(PyRRef(1))


def test_it_cannot_be_pickled_but_by_rpc() -> None:
    with group("a"), pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
        pickle.dumps(PyRRef(1))


def test_backward_runs_where_the_value_is() -> None:
    with group("a"):
        weight = torch.ones(2, requires_grad=True)
        PyRRef((weight * 3).sum()).backward()
        assert torch.equal(weight.grad, torch.full((2,), 3.0))
        with pytest.raises(RuntimeError, match="RRef should contain a tensor for .backward()"):
            PyRRef("foo").backward()


def test_backward_of_another_workers_value_needs_a_context() -> None:
    with group("a", "b") as (_, b):
        rref = calls.invoke_remote_builtin(b.get_worker_info(), "aten::add", -1, torch.ones(2), 1)
        with pytest.raises(RuntimeError, match="require 'dist_autograd_ctx_id' to be specified"):
            rref.backward()
        rref.to_here()


def test_what_was_profiled_stays_with_it() -> None:
    with group("a"):
        rref = PyRRef(1)
        rref._set_profiling_future("future")
        assert rref._get_profiling_future() == "future"
