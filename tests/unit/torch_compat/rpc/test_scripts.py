"""Calls from inside TorchScript are errors, where they would have been made."""

from __future__ import annotations

import pytest
import torch
import torch.jit._recursive
from torch import Tensor
from torch.distributed import rpc

from holdfast.torch_compat.rpc import scripts

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def double(x: Tensor) -> Tensor:
    return x * 2


def call_sync(x: Tensor, go: bool) -> Tensor:
    if go:
        return rpc.rpc_sync("b", double, (x,), {})
    return double(x)


def call_async(x: Tensor) -> Tensor:
    return rpc.rpc_async("b", double, (x,), {}).wait()


def call_remote(x: Tensor) -> Tensor:
    return rpc.remote("b", double, (x,), {}).to_here()


def call_another(x: Tensor) -> Tensor:
    return call_async(x)


class Inner(torch.nn.Module):  # type: ignore[misc]  # it is torch's
    def forward(self, x: Tensor) -> Tensor:
        return rpc.rpc_sync("b", double, (x,), {})


class Outer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    @torch.jit.export  # type: ignore[untyped-decorator]
    def another(self, x: Tensor) -> Tensor:
        return rpc.remote("b", double, (x,), {}).to_here()


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler be watched while a test runs, and compile all of it anew."""
    recursive, states = torch.jit._recursive, torch.jit._state
    monkeypatch.setattr(torch._C, "_jit_script_compile", torch._C._jit_script_compile)
    name = "create_script_module_impl"
    monkeypatch.setattr(recursive, name, getattr(recursive, name))
    monkeypatch.setattr(recursive, "concrete_type_store", recursive.ConcreteTypeStore())
    monkeypatch.setattr(states, "_jit_caching_layer", {})
    scripts.watch_compiler()


def refused(name: str) -> pytest.RaisesExc[torch.jit.Error]:
    return pytest.raises(torch.jit.Error, match=rf"{name}\(\) cannot be called from inside")


def test_a_call_is_refused_where_it_is_made_and_not_before() -> None:
    """Proves SC-1 for functions, and SC-2."""
    compiled = torch.jit.script(call_sync)
    assert torch.equal(compiled(torch.ones(2), False), torch.full((2,), 2.0))
    for _ in range(2):
        with refused("rpc_sync"):
            compiled(torch.ones(2), True)


@pytest.mark.parametrize(
    ("function", "name"),
    [(call_async, "rpc_async"), (call_remote, "remote"), (call_another, "rpc_async")],
)
def test_every_way_to_call_is_refused(function: object, name: str) -> None:
    compiled = torch.jit.script(function)
    with refused(name):
        compiled(torch.ones(2))


def test_a_modules_calls_are_refused() -> None:
    """Proves SC-1 for modules, also of those that others have in them."""
    for _ in range(2):  # two modules share what was compiled
        module = torch.jit.script(Outer())
        with refused("rpc_sync"):
            module(torch.ones(2))
        with refused("remote"):
            module.another(torch.ones(2))


def test_the_error_says_what_to_do_in_one_line() -> None:
    text = scripts.OUT_OF_REACH.format("remote")
    assert "call it from Python" in text
    assert "\n" not in text
