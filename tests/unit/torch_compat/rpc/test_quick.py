"""The short path of calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.rpc import internal
from torch.distributed.rpc.functions import async_execution

from holdfast.torch_compat.autograd.contexts import CONTEXTS, DistAutogradContext
from holdfast.torch_compat.rpc.quick import shorten
from holdfast.torch_compat.rpc.rrefs import PyRRef
from tests.unit.torch_compat.group import TRIPLE, group

SYNC, ASYNC = internal.RPCExecMode.SYNC, internal.RPCExecMode.ASYNC
LONG = "the long way"
SEND, RECV = (f"torch::distributed::autograd::{name}RpcBackward" for name in ("Send", "Recv"))


def double(value: Any) -> Any:
    return value * 2


def keyword(*, value: int) -> int:
    return value


def same(value: Any) -> Any:
    return value


def fail(kind: type[Exception]) -> None:
    raise kind("no way")


def gone() -> None:
    """Is not there when it is called."""


class Odd(ValueError):
    pass


@async_execution  # type: ignore[untyped-decorator]
def promised(value: Any) -> Any:
    future = torch.futures.Future()
    future.set_result(value)
    return future


@async_execution  # type: ignore[untyped-decorator]
def unpromised(value: Any) -> Any:
    return value


def confirmed(value: Any) -> bool:
    return bool(value["here"][0].confirmed_by_owner())


class Callable:
    def __call__(self) -> None:
        pass


class Reduced:
    """What only torch's pickler knows how to pickle."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        raise TypeError("only within RPC")


def reducer(reduced: Reduced) -> Any:
    return rebuilt, (reduced.value._serialize(),)


def rebuilt(data: Any) -> Reduced:
    return Reduced(PyRRef._deserialize(data))


def confirmed_within(reduced: Reduced) -> bool:
    return bool(reduced.value.confirmed_by_owner())


class Kept:
    """The same, of a tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value


def kept_reducer(kept: Kept) -> Any:
    return Kept, (kept.value,)


class Refused:
    """What nothing can pickle."""

    def __reduce__(self) -> Any:
        raise TypeError("only within RPC")


class Local(PyRRef):
    """As torch makes one of its own for references to local values."""


class Torch:
    """torch's package, of which only the long way is another one."""

    def __init__(self) -> None:
        pickler = internal._InternalRPCPickler()
        self.api = SimpleNamespace(
            RRef=Local,
            RPCExecMode=internal.RPCExecMode,
            _default_pickler=pickler,
            _internal_rpc_pickler=pickler,
            _invoke_rpc=lambda *args: LONG,
            remote=lambda *args: LONG,
        )
        self.remote = self.api.remote
        shorten(self)

    def sync(self, to: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        found = self.api._invoke_rpc(to, func, SYNC, args, kwargs)
        return found if found is LONG else found.wait()

    def later(self, to: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return self.api._invoke_rpc(to, func, ASYNC, args, kwargs)


def test_a_function_is_called_by_its_name() -> None:
    rpc = Torch()
    with group("a", "b") as (_, b):
        assert rpc.sync("b", double, 21) == 42
        assert rpc.sync(1, keyword, value=3) == 3
        assert rpc.api._invoke_rpc(b.get_worker_info(), min, SYNC, [4, 5]).wait() == 4
        future = rpc.later("b", double, torch.ones(2))
        assert isinstance(future, torch.futures.Future)
        assert torch.equal(future.wait(), torch.full((2,), 2.0))
        assert rpc.remote("b", double, (4,)).to_here() == 8


def test_an_operator_is_called_by_its_name() -> None:
    rpc = Torch()
    with group("a", "b"):
        for call in (rpc.sync, lambda *args, **more: rpc.later(*args, **more).wait()):
            found = call("b", torch.add, torch.ones(2), 1, alpha=3)
            assert torch.equal(found, torch.full((2,), 4.0))
            with pytest.raises(RuntimeError, match="schema"):
                call("b", torch.add, "x")
        assert torch.equal(
            rpc.remote("b", torch.add, (torch.ones(2), 1)).to_here(), torch.full((2,), 2.0)
        )


@pytest.mark.parametrize(
    "func",
    [
        lambda: None,
        Callable(),
        Odd,
        torch.jit._state._python_cu.find_function(TRIPLE),
        "no function",
    ],
)
def test_what_has_no_name_goes_the_long_way(func: Any) -> None:
    rpc = Torch()
    with group("a", "b"):
        assert rpc.sync("b", func) is rpc.later("b", func) is rpc.remote("b", func) is LONG


def test_a_script_function_that_promises_goes_the_long_way(monkeypatch: Any) -> None:
    script = torch.jit._state._python_cu.find_function(TRIPLE)
    monkeypatch.setattr(promised, "_wrapped_async_rpc_function", script)
    with group("a", "b"):
        assert Torch().sync("b", promised) is LONG


def test_calls_with_a_pickler_of_the_programs_own_go_the_long_way() -> None:
    rpc = Torch()
    rpc.api._default_pickler = internal._InternalRPCPickler()
    with group("a", "b"):
        assert rpc.sync("b", double) is LONG


def test_calls_that_are_profiled_go_the_long_way() -> None:
    rpc = Torch()
    with group("a", "b"), torch.autograd.profiler.profile():
        assert rpc.sync("b", double) is LONG


@pytest.fixture(name="context")
def _context() -> Iterator[DistAutogradContext]:
    CONTEXTS.begin(0)
    made = CONTEXTS.make()
    yield made
    CONTEXTS.take(made.number)


def test_a_call_within_a_context_joins_the_graph(context: DistAutogradContext) -> None:
    """Proves MG-2."""
    rpc = Torch()
    given = torch.ones(2, requires_grad=True)
    with group("a", "b"):
        for found in (
            rpc.sync("b", double, [given]),
            rpc.later("b", promised, [given, given]).wait(),
            [rpc.sync("b", torch.add, given, 1)],
            rpc.remote("b", double, ([given],)).to_here(),
        ):
            assert {one.grad_fn.name() for one in found} == {RECV}
    assert context._known_worker_ids() == {0, 1}  # both are in this process, and one answers
    assert {node.name() for node in context._send_functions().values()} == {SEND}
    assert len(context._send_functions()) == len(context._recv_functions()) == 8


def test_what_only_torchs_pickler_can_pickle_joins_the_graph(context: DistAutogradContext) -> None:
    rpc = Torch()
    with group("a", "b"):
        rpc.api._internal_rpc_pickler._register_reducer(Kept, kept_reducer)
        found = rpc.sync("b", same, Kept(torch.ones(2, requires_grad=True)))
        assert found.value.grad_fn.name() == RECV
    assert len(context._recv_functions()) == 2


def test_what_cannot_be_pickled_leaves_nothing_in_the_graph(context: DistAutogradContext) -> None:
    """Proves MG-1."""
    rpc = Torch()
    given = torch.ones(2, requires_grad=True)
    with group("a", "b"):
        with pytest.raises(TypeError, match="only within RPC"):
            rpc.sync("b", same, given, Refused())
        assert context._send_functions() == {}
        assert rpc.sync("b", double, given).grad_fn.name() == RECV


def test_a_function_that_fails_within_a_context_is_told_as_outside(
    context: DistAutogradContext,
) -> None:
    rpc = Torch()
    with group("a", "b"), pytest.raises(ValueError, match="no way"):
        rpc.sync("b", fail, ValueError)


def test_a_process_without_an_agent_gets_torchs_error() -> None:
    assert Torch().remote("b", double) is LONG


@pytest.mark.parametrize(
    ("raised", "heard", "text"),
    [
        (ValueError, ValueError, "On WorkerInfo.*\nValueError.*no way.*\nTraceback"),
        (Odd, ValueError, "Odd: "),
        (KeyError, RuntimeError, "KeyError: "),
    ],
)
def test_what_a_function_raises_is_raised_as_torch_does(
    raised: Any, heard: Any, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rpc = Torch()
    with group("a", "b"):
        for call in (rpc.sync, lambda *args: rpc.later(*args).wait()):
            with pytest.raises(heard, match=text) as error:
                call("b", fail, raised)
            assert type(error.value) is heard
        rref = rpc.remote("b", fail, (raised,))
        with pytest.raises(raised, match="no way"):
            rref.to_here()
    capfd.readouterr()  # torch's Python prints it at the callee


def test_what_is_missing_over_there_is_said_in_torchs_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rpc = Torch()
    with group("a", "b"), monkeypatch.context() as patch:
        patch.setattr(
            "holdfast.torch_compat.rpc.quick.encode_function", lambda _: f"{__name__}:missing"
        )
        with pytest.raises(RuntimeError, match="missing.*RPC pickler does not serialize"):
            rpc.sync("b", gone)
    capfd.readouterr()


def test_a_function_may_promise_its_answer() -> None:
    rpc = Torch()
    with group("a", "b"):
        assert rpc.sync("b", promised, 1) == 1
        assert rpc.later("b", promised, 2).wait() == 2
        assert rpc.remote("b", promised, (3,)).to_here() == 3
        with pytest.raises(RuntimeError, match=r"must return a torch.futures.Future .* builtins"):
            rpc.sync("b", unpromised, 1)


def test_what_cannot_be_pickled_is_not_sent() -> None:
    """Proves QK-1."""
    rpc = Torch()
    with group("a", "b") as (_, b):
        for call in (rpc.sync, rpc.later):
            with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
                call("b", same, threading.Lock())
            with pytest.raises(RuntimeError, match="Can not pickle torch.futures.Future"):
                call("b", same, torch.futures.Future())
        assert b.core.metrics()["agent.server_calls"] == "0"
        with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
            rpc.remote("b", same, (threading.Lock(),))


def test_what_cannot_be_pickled_over_there_is_an_error_too() -> None:
    with group("a", "b"), pytest.raises(RuntimeError, match="cannot be pickled"):
        Torch().sync("b", threading.Lock)


@pytest.mark.parametrize("kind", [PyRRef, Local])
def test_references_go_and_come_within_values(kind: type[PyRRef]) -> None:
    """Proves QK-2."""
    rpc = Torch()
    with group("a", "b"):
        mine = kind([1, 2])
        back = rpc.sync("b", same, {"here": [mine]})["here"][0]
        assert type(back) is PyRRef
        assert back.local_value() == [1, 2]
        assert rpc.sync("b", confirmed, {"here": [mine]})
        theirs = rpc.remote("b", double, (5,))
        assert rpc.later("b", same, (theirs, mine)).wait()[0].to_here() == 10


def test_what_torchs_pickler_has_a_reducer_for_is_pickled_by_that() -> None:
    rpc = Torch()
    internal._internal_rpc_pickler._register_reducer(Reduced, reducer)  # it pickles the payloads
    rpc.api._internal_rpc_pickler._register_reducer(Reduced, reducer)
    try:
        with group("a", "b"):
            reduced = Reduced(PyRRef("x"))
            assert rpc.sync("b", same, [reduced])[0].value.local_value() == "x"
            assert rpc.sync("b", confirmed_within, reduced)
    finally:
        del internal._internal_rpc_pickler._class_reducer_dict[Reduced]


@pytest.mark.filterwarnings("ignore:.*deprecated")  # by torch, like all of TorchScript
def test_a_script_module_is_a_value_like_others() -> None:
    module = torch.jit.script(torch.nn.Linear(2, 1))
    with group("a", "b"):
        found = Torch().sync("b", same, module)
    assert torch.equal(found.weight, module.weight)


def test_the_callee_must_be_a_worker() -> None:
    rpc = Torch()
    with group("a", "b"):
        with pytest.raises(RuntimeError, match="could not find destination"):
            rpc.sync("c", double, 1)
        with pytest.raises(ValueError, match="Cannot get WorkerInfo from name"):
            rpc.sync(1.5, double, 1)


def test_calls_that_may_take_a_moment_only_go_the_long_way() -> None:
    rpc = Torch()
    with group("a", "b") as (a, _):
        assert rpc.api._invoke_rpc("b", double, SYNC, (1,), None, 0.9) is LONG
        for timeout in (-1, 0, 1.5):
            assert rpc.api._invoke_rpc("b", double, SYNC, (1,), None, timeout).wait() == 2
        a.core.timeout_s = 0.1
        assert rpc.api._invoke_rpc("b", double, SYNC, (1,)) is LONG
        assert rpc.api._invoke_rpc("b", double, SYNC, (1,), None, 0).wait() == 2


def test_a_call_has_its_time() -> None:
    rpc = Torch()
    with group("a", "b"):
        try:
            with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
                rpc.api._invoke_rpc("b", wait, SYNC, (), None, 1.0)
        finally:
            _go_on.set()


_go_on = threading.Event()


def wait() -> None:
    assert _go_on.wait(60)
