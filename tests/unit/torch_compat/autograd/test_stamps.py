"""Messages within a context, as core pickles them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.errors import UsageError
from holdfast.rpc.values.pickling import dump, load, teach
from holdfast.rpc.values.references import here
from holdfast.torch_compat.autograd.contexts import CONTEXTS, DistAutogradContext
from holdfast.torch_compat.autograd.stamps import Arriving, ContextAnswer, MessageHead, MessageSeal
from holdfast.torch_compat.tensors.pickling import reduce_tensor

LATER = 5 << 48


@pytest.fixture(name="context")
def _context(monkeypatch: pytest.MonkeyPatch) -> Iterator[DistAutogradContext]:
    teach(torch.Tensor, reduce_tensor)
    CONTEXTS.begin(0)
    made = CONTEXTS.make()
    monkeypatch.setattr(here, "packing", packing())
    yield made
    CONTEXTS.take(made.number)


def packing(is_answer: bool = False) -> Any:
    """Return what core has while it packs a message."""
    return SimpleNamespace(not_given=lambda tickets: None), "b", [], is_answer


def sent(context: DistAutogradContext, *values: Any) -> tuple[Any, ...]:
    """Return a message with these values as it arrives."""
    head = MessageHead(context)
    arrived, *read, _ = load(*dump((head, *values, MessageSeal(head))))
    assert (arrived.context, arrived.sender) == (context.number, 0)
    return tuple(read)


def leaf(*shape: int) -> Any:
    return torch.ones(shape, requires_grad=True)


def test_tensors_are_joined_wherever_they_are(context: DistAutogradContext) -> None:
    """Proves MG-2."""
    a, b, c = leaf(2), torch.ones(2), leaf(3, 2) * 2
    ((x, y), more) = sent(context, [a, b], {"c": c, "again": a})
    (send,) = context._send_functions().values()
    (received,) = context._recv_functions().values()
    assert [node.name() for node, _ in send.next_functions] == [
        "torch::autograd::AccumulateGrad",
        "MulBackward0",
    ]
    assert x is more["again"]
    assert x.grad_fn is more["c"].grad_fn is received
    assert more["c"].output_nr == 1
    assert y.grad_fn is None
    assert not y.requires_grad
    assert torch.equal(more["c"], c)


@pytest.mark.parametrize(
    "tensor",
    [
        leaf(2, 3).t(),
        leaf(1).expand(2000, 4),  # arrives as a view of the one element
        leaf(5000),
        torch.eye(2).to_sparse().requires_grad_(),
        torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
    ],
)
def test_tensors_of_any_kind_are_joined(context: DistAutogradContext, tensor: Any) -> None:
    (came,) = sent(context, tensor)
    assert came.grad_fn is next(iter(context._recv_functions().values()))
    assert torch.equal(came.to_dense(), tensor.to_dense())


def test_a_message_without_gradients_adds_nothing_to_the_graph(
    context: DistAutogradContext,
) -> None:
    (came,) = sent(context, torch.ones(2))
    assert came.grad_fn is None
    assert context._send_functions() == context._recv_functions() == {}


def test_what_cannot_be_pickled_adds_nothing_to_the_graph(context: DistAutogradContext) -> None:
    """Proves MG-1."""
    head = MessageHead(context)
    with pytest.raises(UsageError):
        dump((head, leaf(2), Refused(), MessageSeal(head)))
    assert context._send_functions() == {}
    (came,) = sent(context, leaf(2))
    assert len(context._send_functions()) == 1
    assert came.grad_fn is not None


class Refused:
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


def test_what_pickle_refuses_is_joined_by_cloudpickle(context: DistAutogradContext) -> None:
    """Proves MG-1."""
    double, came = sent(context, lambda value: value * 2, leaf(2))
    assert double(2) == 4
    assert came.grad_fn is not None
    assert len(context._send_functions()) == 1


class Calling:
    """A value whose pickling sends another message, and a tensor after it."""

    def __init__(self, context: DistAutogradContext) -> None:
        self._context = context

    def __reduce__(self) -> Any:
        outer, here.packing = here.packing, packing()
        try:
            sent(self._context, leaf(2))
            plain, _ = load(*dump((leaf(2), "in no context")))
        finally:
            here.packing = outer
        assert plain.is_leaf
        return list, ((leaf(4),),)


def test_a_message_that_is_pickled_meanwhile_collects_its_own(
    context: DistAutogradContext,
) -> None:
    """Proves MG-2."""
    sent(context, leaf(3), Calling(context), leaf(5))
    inner, outer = context._send_functions().values()
    shapes = [
        [tuple(edge.variable.shape) for edge, _ in node.next_functions] for node in (inner, outer)
    ]
    assert shapes == [[(2,)], [(3,), (4,), (5,)]]


def test_an_answer_joins_the_context_of_its_call(
    context: DistAutogradContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves MG-3."""
    monkeypatch.setattr(here, "packing", packing(is_answer=True))
    found = load(*dump(ContextAnswer({"value": leaf(2)}, Arriving(context.number, 7))))
    assert found["value"].grad_fn is next(iter(context._recv_functions().values()))
    assert context._known_worker_ids() == {7}


def test_an_answer_that_cannot_be_pickled_leaves_nothing_behind(
    context: DistAutogradContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves MG-1, MG-2."""
    monkeypatch.setattr(here, "packing", packing(is_answer=True))
    with pytest.raises(UsageError):
        dump(ContextAnswer([leaf(2), Refused()], Arriving(context.number, 7)))
    monkeypatch.setattr(here, "packing", packing(is_answer=True))  # another answer, in no context
    came = load(*dump([leaf(2)]))[0]
    assert came.is_leaf
    assert came.requires_grad
    assert context._send_functions() == {}


def test_an_answer_in_a_released_context_joins_no_graph(context: DistAutogradContext) -> None:
    """Proves MG-3."""
    came = load(*dump(ContextAnswer(leaf(2), Arriving(LATER, 7))))
    assert came.is_leaf
    assert came.requires_grad


def test_a_request_brings_its_context(context: DistAutogradContext) -> None:
    theirs = DistAutogradContext(LATER)
    head = MessageHead(theirs)
    load(*dump((head, MessageSeal(head))))
    joined = CONTEXTS.take(LATER)
    assert joined is not None
    assert joined.sources == {0}
