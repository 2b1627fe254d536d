"""What distributed autograd adds to torch's graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast.torch_compat.autograd.contexts import CONTEXTS, DistAutogradContext
from holdfast.torch_compat.autograd.graph import connect, stamp, working


@pytest.fixture(name="context")
def _context() -> Iterator[DistAutogradContext]:
    CONTEXTS.begin(0)
    made = CONTEXTS.make()
    yield made
    CONTEXTS.take(made.number)


def test_tensors_leave_by_a_send_function_and_without_their_history(
    context: DistAutogradContext,
) -> None:
    """Proves GR-1."""
    a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    c = torch.ones(3, requires_grad=True) * 2
    tensors: list[Any] = [a, b, c]
    number, sender, message, places = stamp(tensors, 5, context)
    assert (number, sender, places) == (context.number, 0, (0, 2))
    assert not any(one.requires_grad for one in tensors)
    assert context._known_worker_ids() == {5}
    (node,) = context._send_functions().values()
    assert context._send_functions() == {message: node}
    assert node.name() == "torch::distributed::autograd::SendRpcBackward"
    assert [one.name() for one, _ in node.next_functions] == [
        "torch::autograd::AccumulateGrad",
        "MulBackward0",
    ]
    assert node.next_functions[0][0].variable is a


def test_tensors_arrive_as_outputs_of_one_recv_function(context: DistAutogradContext) -> None:
    """Proves GR-1."""
    tensors: list[Any] = [torch.ones(2), torch.ones(2), torch.eye(2).to_sparse()]
    connect(tensors, (context.number, 5, 17, (0, 2)))
    node = context._recv_functions()[17]
    assert node.name() == "torch::distributed::autograd::RecvRpcBackward"
    assert tensors[0].grad_fn is tensors[2].grad_fn is node
    assert tensors[1].grad_fn is None


def test_a_message_without_gradients_joins_nothing(context: DistAutogradContext) -> None:
    tensors: list[Any] = [torch.ones(2)]
    stamped = stamp(tensors, 5, context)
    assert stamped == (context.number, 0, 0, ())
    connect(tensors, stamped)
    assert tensors[0].grad_fn is None
    assert context._send_functions() == context._recv_functions() == {}
    assert context._known_worker_ids() == {5}


def test_a_reply_after_the_release_joins_no_graph() -> None:
    """Proves GR-2."""
    tensors: list[Any] = [torch.ones(2)]
    connect(tensors, (12345, 5, 17, (0,)))
    assert tensors[0].is_leaf
    assert tensors[0].requires_grad


def test_a_send_function_is_reached_from_what_was_received_after_it_alone(
    context: DistAutogradContext,
) -> None:
    """Proves GR-3."""
    leaf = torch.ones(2, requires_grad=True)
    first, second, third = [torch.ones(2)], [torch.ones(2)], [torch.ones(2)]
    connect(first, (context.number, 5, 1, (0,)))
    stamp([leaf], 5, context)
    connect(second, (context.number, 5, 2, (0,)))
    stamp([leaf], 5, context)
    connect(third, (context.number, 5, 3, (0,)))
    sends = list(context._send_functions().values())
    assert [_reached(one[0].grad_fn, sends) for one in (first, second, third)] == [
        [False, False],
        [True, False],
        [True, True],
    ]


def _reached(start: Any, nodes: list[Any]) -> list[bool]:
    seen, todo = {start}, [start]
    while todo:
        for child, _ in todo.pop().next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                todo.append(child)
    return [node in seen for node in nodes]


def test_torchs_own_backward_says_that_it_is_not_enough(context: DistAutogradContext) -> None:
    tensors: list[Any] = [torch.ones(2)]
    connect(tensors, (context.number, 5, 17, (0,)))
    with pytest.raises(RuntimeError, match=r"use torch\.distributed\.autograd\.backward"):
        tensors[0].sum().backward()


def test_a_callee_works_in_the_callers_context() -> None:
    with working((4242, 5, 0, ())):
        assert CONTEXTS.current().number == 4242
        assert CONTEXTS.current().sources == {5}
    assert CONTEXTS.here() is None
    assert CONTEXTS.take(4242) is not None
    with working(None):
        assert CONTEXTS.here() is None
