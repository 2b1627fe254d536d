"""Distributed autograd, by the names of torch's binding.

Both workers are in one process, so they share its contexts; torch's own tests have real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.autograd import Function

from holdfast.rpc.client.future import Future
from holdfast.rpc.values.pickling import dump, load
from holdfast.torch_compat import autograd_binding
from holdfast.torch_compat.autograd.contexts import CONTEXTS
from holdfast.torch_compat.autograd.engine import Pass
from holdfast.torch_compat.autograd.graph import connect, stamp
from holdfast.torch_compat.autograd_binding import AUTOGRAD_NAMES, backward, get_gradients
from holdfast.torch_compat.rpc import agents, calls
from tests.unit.torch_compat.group import group

WITHIN_S = 30


@contextmanager
def context() -> Iterator[int]:
    """Do what torch's own `context` does."""
    AUTOGRAD_NAMES["_init"](0)
    number = AUTOGRAD_NAMES["_new_context"]()._context_id()
    try:
        yield number
    finally:
        AUTOGRAD_NAMES["_release_context"](number)


class Failing(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        raise ValueError("no gradient of that")


def myself() -> tuple[str, int]:
    """Return the worker that asks: this one."""
    return str(agents.current().core.contact.incarnation), 0


def add(to: Any, a: Any, b: Any) -> Any:
    return calls.invoke_rpc_builtin(to, "aten::add", -1, a, b).wait()


def test_all_of_torchs_names_are_there() -> None:
    theirs = vars(torch._C._distributed_autograd)
    assert {name for name in theirs if not name.startswith("__")} == set(AUTOGRAD_NAMES)


def test_da1_gradients_go_through_calls_into_the_context() -> None:
    a, b = (torch.rand(3, requires_grad=True) for _ in "ab")
    with group("a", "b") as (_, other), context() as number:
        to = other.get_worker_info()
        made = add(to, a * 2, b)
        reference = calls.invoke_remote_builtin(to, "aten::mul", -1, made, a)
        loss = (reference.to_here() + add(to, made, made)).sum()
        backward(number, [loss])
        found = get_gradients(number)
        assert AUTOGRAD_NAMES["_get_debug_info"]()["num_current_backward_passes"] == "0"
        assert CONTEXTS.find(number)._known_worker_ids() == {0, 1}
    ((a * 2 + b) * a + 2 * (a * 2 + b)).sum().backward()
    assert torch.allclose(found[a], a.grad)
    assert torch.allclose(found[b], b.grad)


def test_a_context_is_over_when_it_is_released() -> None:
    with group("a"):
        with context() as number:
            assert AUTOGRAD_NAMES["_current_context"]()._context_id() == number
            AUTOGRAD_NAMES["_is_valid_context"](number)
            assert AUTOGRAD_NAMES["_get_max_id"]() > number
        for name in ("_retrieve_context", "_is_valid_context", "_release_context"):
            with pytest.raises(RuntimeError, match="Could not find autograd context with id"):
                AUTOGRAD_NAMES[name](number)
        with pytest.raises(RuntimeError, match="Could not find autograd context with id"):
            get_gradients(number)


@pytest.mark.parametrize(
    ("roots", "kind", "text"),
    [
        (None, TypeError, "incompatible function arguments"),
        ([1], TypeError, "incompatible function arguments"),
        ([], RuntimeError, "No tensors provided for gradient computation"),
        ([torch.ones(1)], RuntimeError, "requires_grad not set on"),
        ([torch.ones(2, requires_grad=True)], RuntimeError, "all roots need to be scalar"),
        ([torch.ones(1, requires_grad=True)], RuntimeError, "a valid gradient function"),
    ],
)
def test_roots_that_cannot_be_are_refused(roots: Any, kind: type[Exception], text: str) -> None:
    with group("a"), context() as number, pytest.raises(kind, match=text):
        backward(number, roots)


def test_an_error_of_the_graph_here_is_raised_as_it_is() -> None:
    value = torch.ones(2, requires_grad=True)
    with group("a"), context() as number, pytest.raises(ValueError, match="no gradient of that"):
        backward(number, [Failing.apply(value).sum()])


def test_an_error_of_what_others_set_going_is_said_to_be_one() -> None:
    value = torch.ones(2, requires_grad=True)
    with group("a", "b") as (_, other), context() as number:
        loss = add(other.get_worker_info(), Failing.apply(value), value).sum()
        with pytest.raises(RuntimeError, match="Error on Node 0: no gradient of that"):
            backward(number, [loss])
        assert CONTEXTS.find(number).passes == {}


def test_a_pass_that_cannot_be_joined_any_more_says_so() -> None:
    with group("a"), context() as number:
        with pytest.raises(RuntimeError, match="Error on Node 0: Could not find send function"):
            autograd_binding.take_gradients(myself(), number, 5, 1, [], False)
        assert CONTEXTS.find(number).passes == {}
        autograd_binding.end_pass(number, 6, "lost")
        with pytest.raises(RuntimeError, match="backward pass 6 is over"):
            autograd_binding.take_gradients(myself(), number, 6, 1, [], False)
        autograd_binding.end_pass(number + 1, 6, "lost")


def test_a_pass_that_ends_while_it_is_to_begin_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with group("a"), context() as number:

        def make(*args: Any) -> Pass:
            # Another thread hears of it now.
            autograd_binding.end_pass(number, 4, "a worker is lost")
            return Pass(*args)

        monkeypatch.setattr(autograd_binding, "Pass", make)
        leaf = torch.ones(2, requires_grad=True)
        mine = CONTEXTS.find(number)
        message = stamp([leaf], 5, mine)[2]
        with pytest.raises(RuntimeError, match="backward pass 4 is over"):
            autograd_binding.take_gradients(myself(), number, 4, message, [leaf], False)
        assert mine.passes == {}


def test_a_worker_that_has_left_tells_no_other() -> None:
    with group("a") as (me,), context() as number:
        mine = CONTEXTS.find(number)
        mine.workers.add(0)
        agents.reset()
        autograd_binding._fail_elsewhere(mine, 4, "a worker is lost", set())
        agents.set_and_start(me)
        assert me.core.metrics()["agent.client_calls"] == "0"


def test_a_pass_that_fails_at_one_worker_is_ended_at_those_that_it_knows() -> None:
    """Proves DA-2."""
    with group("a", "b") as (_, other), context() as number:
        leaf = torch.ones(2, requires_grad=True)
        add(other.get_worker_info(), leaf, leaf)
        mine = CONTEXTS.find(number)
        theirs = Pass(mine, 4, False, lambda *_: Future())
        autograd_binding._enter(theirs)
        autograd_binding._fail_elsewhere(mine, 4, "a worker is lost", set())
        with pytest.raises(RuntimeError, match="a worker is lost"):
            theirs.future.wait(WITHIN_S)


def test_a_worker_with_a_failed_pass_tells_each_worker_that_it_knows() -> None:
    """Proves DA-2."""
    with group("a", "b") as (me, _), context() as number:
        mine = CONTEXTS.find(number)
        mine.workers.update({0})
        failing = Pass(mine, 4, False, lambda *_: Future())
        failing.asked.update({0, 1})
        before = int(me.core.metrics()["agent.client_calls"])
        backward(number, [torch.ones(2, requires_grad=True).sum()])
        autograd_binding._enter(failing)
        failing.fail(RuntimeError("a worker is lost"))
        assert int(me.core.metrics()["agent.client_calls"]) == before + 2


def test_a_worker_without_a_part_in_a_failed_pass_passes_the_failure_on_once() -> None:
    """Proves DA-2."""
    with group("a", "b") as (me, _), context() as number:
        CONTEXTS.find(number).workers.update({1})
        before = int(me.core.metrics()["agent.client_calls"])
        autograd_binding.end_pass(number, 4, "a worker is lost")
        assert int(me.core.metrics()["agent.client_calls"]) == before + 1
        autograd_binding.end_pass(number, 4, "a worker is lost")
        assert int(me.core.metrics()["agent.client_calls"]) == before + 1


def test_a_pass_does_not_begin_for_a_worker_that_has_disconnected() -> None:
    """Proves CX-5."""
    with group("a", "b") as (_, other), context() as number:
        leaf = torch.ones(2, requires_grad=True)
        add(other.get_worker_info(), leaf, leaf)
        (message, *_) = CONTEXTS.find(number)._send_functions()
        with pytest.raises(RuntimeError, match="it had asked for a backward pass"):
            autograd_binding.take_gradients(
                ("an earlier life", 1), number, 4, message, [leaf], False
            )


def test_gradients_for_the_worker_that_asked_are_the_answer() -> None:
    """Proves DA-1, BP-7."""
    with group("a"), context() as number:
        mine = CONTEXTS.find(number)
        tensors: list[Any] = [torch.ones(2)]
        connect(tensors, (number, 0, 17, (0,)))
        message = stamp([tensors[0] * 3], 0, mine)[2]
        answer = autograd_binding.take_gradients(
            myself(), number, 4, message, [torch.ones(2)], False
        )
        ((to, (gradient,)),) = load(*dump(answer))
        assert to == 17
        assert gradient.tolist() == [3, 3]
        assert mine.passes == {}


def test_no_pass_begins_in_a_context_that_is_released() -> None:
    with group("a"):
        with context() as number:
            released = CONTEXTS.find(number)
        with pytest.raises(RuntimeError, match="Could not find autograd context"):
            autograd_binding._enter(Pass(released, 1, False, lambda *_: Future()))
