"""The part of a distributed backward pass that one worker does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd.graph import GradientEdge

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.rpc.client.future import Future
from holdfast.torch_compat.autograd import engine
from holdfast.torch_compat.autograd.contexts import CONTEXTS, DistAutogradContext
from holdfast.torch_compat.autograd.engine import Pass
from holdfast.torch_compat.autograd.graph import connect, stamp

WITHIN_S = 30


@pytest.fixture(name="context")
def _context() -> Iterator[DistAutogradContext]:
    CONTEXTS.begin(0)
    made = CONTEXTS.make()
    yield made
    CONTEXTS.take(made.number)


def through(context: DistAutogradContext, *tensors: Any) -> Any:
    """Send tensors to this worker itself; return them as they arrive."""
    table = list(tensors)
    connect_to = stamp(table, 0, context)
    table = [one.clone() for one in table]  # as all that arrives, in memory of its own
    connect(table, connect_to)
    return table if len(table) > 1 else table[0]


def to_itself(one: Pass, message: int, worker: int, gradients: list[Any]) -> Future[Any]:
    one.come(message, gradients)
    done: Future[Any] = Future()
    done.set_result(None)
    return done


def new(
    context: DistAutogradContext,
    send: Any = to_itself,
    retain: bool = False,
    asker: str = "",
    asking: int = -1,
) -> Pass:
    one = Pass(context, CONTEXTS.new_message(), retain, send, asker, asking)
    context.passes[one.number] = one
    return one


def root(tensor: Any) -> list[tuple[GradientEdge, Any]]:
    return [(GradientEdge(tensor.grad_fn, tensor.output_nr), torch.ones_like(tensor))]


def run_aside(act: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_gradients_are_those_that_torch_finds_in_the_whole_graph(
    context: DistAutogradContext,
) -> None:
    """Proves BP-1, BP-2."""
    a, b = (torch.rand(3, 3, requires_grad=True) for _ in "ab")
    hooked = []

    def clamp(gradient: Any) -> Any:
        hooked.append(gradient)
        return gradient.clamp(-1, 1)

    def loss(go: Callable[..., Any]) -> Any:
        x = go(a * b)
        x.register_hook(clamp)
        y = go(x + a)  # what was received is sent on, and used here as well
        u, v = go(y @ x, b)
        return (u * v + x).sum()

    loss(lambda *all_of: all_of if len(all_of) > 1 else all_of[0]).backward()
    right = (a.grad, b.grad)
    a.grad = b.grad = None
    locally, hooked[:] = list(hooked), []
    one = new(context)
    one.run(root(loss(lambda *all_of: through(context, *all_of))))
    one.future.wait(WITHIN_S)
    assert a.grad is None
    assert b.grad is None
    assert torch.allclose(context.gradients[a], right[0])
    assert torch.allclose(context.gradients[b], right[1])
    assert len(hooked) == len(locally) == 1
    assert torch.allclose(hooked[0], locally[0])
    assert set(context.gradients) == {a, b}


def test_gradients_of_several_passes_are_added_up(context: DistAutogradContext) -> None:
    a = torch.ones(2, requires_grad=True)
    loss = (through(context, a * 3)).sum()
    for _ in range(2):
        one = new(context, retain=True)
        one.run(root(loss))
        one.future.wait(WITHIN_S)
    assert context.gradients[a].tolist() == [6, 6]


def test_the_hooks_of_a_leafs_node_run_once_though_it_does_not(
    context: DistAutogradContext,
) -> None:
    """Proves BP-1."""
    leaf = torch.ones(2, requires_grad=True)
    loss = through(context, leaf * 3).sum() + leaf.sum()
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    seen: list[Any] = []

    def after(made: Any, given: Any) -> None:
        seen.append((made, [one.tolist() for one in given], leaf in context.gradients))

    node.register_prehook(lambda given: (given[0] * 10,))
    node.register_prehook(lambda given: seen.append(given[0].tolist()))
    node.register_hook(after)
    node.register_hook(after).remove()
    one = new(context)
    one.run(root(loss))
    one.future.wait(WITHIN_S)
    assert seen == [[40, 40], ((), [[40, 40]], True)]
    assert context.gradients[leaf].tolist() == [40, 40]
    leaf.grad = None
    leaf.sum().backward()
    assert leaf.grad.tolist() == [10, 10]  # nothing of ours is left at the node
    assert len(seen) == 4


def test_gradients_share_no_memory(context: DistAutogradContext) -> None:
    a, b = (torch.ones(2, requires_grad=True) for _ in "ab")
    one = new(context)
    one.run(root((a + b).sum()))
    context.gradients[a].add_(1)
    assert context.gradients[b].tolist() == [1, 1]


def test_a_pass_ends_when_the_workers_that_got_gradients_are_done(
    context: DistAutogradContext,
) -> None:
    """Proves BP-3."""
    answers: list[Future[Any]] = []

    def send(one: Pass, message: int, worker: int, gradients: list[Any]) -> Future[Any]:
        assert (message, worker) == (17, 5)
        assert [gradient.tolist() for gradient in gradients] == [[1, 1], [0, 0]]
        answers.append(Future())
        return answers[0]

    tensors: list[Any] = [torch.ones(2), torch.ones(2)]
    connect(tensors, (context.number, 5, 17, (0, 1)))
    one = new(context, send)
    one.run(root(tensors[0].sum()))
    assert not one.future.done()
    assert one.asked == {5}
    answers[0].set_result(None)
    assert one.future.done()
    assert context.passes == {}
    one.fail(RuntimeError("too late"))
    assert one.future.exception() is None


def test_a_pass_fails_with_the_workers_that_got_gradients(context: DistAutogradContext) -> None:
    """Proves BP-3."""
    answer: Future[Any] = Future()
    received = [torch.ones(2)]
    connect(received, (context.number, 5, 17, (0,)))
    one = new(context, lambda *_: answer)
    one.run(root(received[0].sum()))
    answer.set_exception(RuntimeError("lost"))
    with pytest.raises(RuntimeError, match="lost"):
        one.future.wait(WITHIN_S)


def test_a_pass_that_fails_waits_for_nothing_any_more(context: DistAutogradContext) -> None:
    """Proves BP-4."""
    sent: list[Any] = []
    received = [torch.ones(2)]
    connect(received, (context.number, 5, 17, (0,)))
    stamp([received[0] * 2], 5, context)  # its gradients never come
    one = new(context, lambda *args: sent.append(args))
    thread, raised = run_aside(lambda: one.run([]))
    one.fail(RuntimeError("somebody is lost"))
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert [str(error) for error in raised] == ["somebody is lost"]
    assert sent == []
    with pytest.raises(RuntimeError, match="somebody is lost"):
        one.send_gradients(17, 5, [])


def test_a_callee_waits_for_gradients_no_longer_than_its_caller(
    context: DistAutogradContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves BP-6."""
    stamp([torch.ones(2, requires_grad=True)], 5, context)
    monkeypatch.setattr(engine, "deadline_here", SYSTEM_CLOCK.monotonic)
    one = new(context, asker="another life")
    with pytest.raises(RuntimeError, match="no gradients have come for autograd message"):
        one.run([])
    context.running = one
    with pytest.raises(RuntimeError, match="another backward pass has run in this context"):
        new(context, asker="another life").run([])


def test_the_beginner_of_a_pass_has_no_time_limit(
    context: DistAutogradContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is left of the call in which it is begun: torch's backward has no deadline."""
    stamp([torch.ones(2, requires_grad=True)], 5, context)
    monkeypatch.setattr(engine, "deadline_here", SYSTEM_CLOCK.monotonic)
    one = new(context)
    thread, raised = run_aside(lambda: one.run([]))
    thread.join(0.05)
    assert thread.is_alive()
    one.fail(RuntimeError("it has waited"))
    thread.join(WITHIN_S)
    assert [str(error) for error in raised] == ["it has waited"]


def test_gradients_of_what_was_not_sent_are_refused(context: DistAutogradContext) -> None:
    one = new(context)
    with pytest.raises(RuntimeError, match="Could not find send function.*: 99"):
        one.come(99, [])
    assert one.future.done()
    assert context.passes == {}


def test_passes_of_a_context_run_one_after_the_other(context: DistAutogradContext) -> None:
    """Proves BP-5."""
    leaf = torch.ones(2, requires_grad=True)
    message = stamp([leaf], 5, context)[2]
    first, second, third = (new(context, retain=True) for _ in range(3))
    has_turn = threading.Event()

    def await_gradients(message: int) -> list[Any]:
        has_turn.set()
        return Pass.await_gradients(first, message)

    first.await_gradients = await_gradients  # type: ignore[method-assign]
    one, failed = run_aside(lambda: first.run([]))
    assert has_turn.wait(WITHIN_S)
    assert context.running is first
    others = [run_aside(lambda: second.run([])), run_aside(lambda: third.run([]))]
    second.come(message, [torch.ones(2)])
    third.fail(RuntimeError("not wanted any more"))
    others[1][0].join(WITHIN_S)
    assert [str(error) for error in others[1][1]] == ["not wanted any more"]
    assert context.running is first
    assert not second.future.done()
    first.come(message, [torch.full((2,), 10.0)])
    one.join(WITHIN_S)
    others[0][0].join(WITHIN_S)
    assert not failed
    assert first.future.done()
    assert second.future.done()
    assert context.gradients[leaf].tolist() == [11, 11]


def between(context: DistAutogradContext, sender: int, number: int) -> int:
    """Receive a tensor from a worker and send it on to worker 5; return the message of that."""
    received = [torch.ones(2)]
    connect(received, (context.number, sender, number, (0,)))
    return stamp([received[0] * 3], 5, context)[2]


def test_gradients_for_the_worker_that_asked_go_with_the_answer(
    context: DistAutogradContext,
) -> None:
    """Proves BP-7."""
    message = between(context, 5, 17)
    one = new(context, lambda *_: pytest.fail("sent by a call"), asker="life of 5", asking=5)
    one.come(message, [torch.ones(2)])
    one.run([])
    ((number, (gradient,)),) = one.answer()
    assert number == 17
    assert gradient.tolist() == [3, 3]


def test_they_go_before_if_this_worker_waits_for_others(context: DistAutogradContext) -> None:
    """Proves BP-7."""
    stamp([torch.ones(2, requires_grad=True)], 6, context)  # its gradients are what is waited for
    (waited_for,) = context.sends
    message = between(context, 5, 17)
    sent: list[int] = []

    def send(one: Pass, number: int, worker: int, gradients: list[Any]) -> Future[Any]:
        sent.append(number)
        one.come(waited_for, [torch.ones(2)])  # which only then come
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    one = new(context, send, asker="life of 5", asking=5)
    one.come(message, [torch.ones(2)])
    one.run([])
    assert sent == [17]
    assert one.answer() == []


def test_they_go_before_if_others_are_still_at_work(context: DistAutogradContext) -> None:
    """Proves BP-7."""
    first, second = between(context, 5, 17), between(context, 6, 18)
    sent: dict[int, Future[Any]] = {}

    def send(one: Pass, number: int, worker: int, gradients: list[Any]) -> Future[Any]:
        return sent.setdefault(number, Future())

    one = new(context, send, asker="life of 5", asking=5)
    one.come(first, [torch.ones(2)])
    one.come(second, [torch.ones(2)])
    one.run([])
    assert sorted(sent) == [17, 18]
    for answer in sent.values():
        answer.set_result(None)
    assert one.answer() == []


class Reading:
    """Drives a call: a thread that waits reads its answer."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        assert not done()
        self._answer()


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_thread_that_waits_reads_the_answer_that_brings_its_gradients(
    context: DistAutogradContext, is_waiting: bool
) -> None:
    """Proves BP-8."""
    leaf = torch.ones(2, requires_grad=True)
    message = stamp([leaf * 2], 5, context)[2]
    received = [torch.ones(2)]
    connect(received, (context.number, 5, 17, (0,)))
    back = [(message, [torch.ones(2)])] if is_waiting else None

    def send(one: Pass, *_: Any) -> Future[Any]:
        answer: Future[Any] = Future(Reading(lambda: answer.set_result(back)))
        if not is_waiting:
            one.come(message, [torch.ones(2)])
        return answer

    one = new(context, send)
    one.run(root(received[0].sum()))
    assert one.future.done() == is_waiting
    one.future.wait(WITHIN_S)
    assert context.gradients[leaf].tolist() == [2, 2]


def test_an_answer_with_gradients_of_what_was_not_sent_ends_the_pass(
    context: DistAutogradContext,
) -> None:
    received = [torch.ones(2)]
    connect(received, (context.number, 5, 17, (0,)))
    answer: Future[Any] = Future()
    one = new(context, lambda *_: answer)
    one.run(root(received[0].sum()))
    answer.set_result([(99, [])])
    with pytest.raises(RuntimeError, match="Could not find send function.*: 99"):
        one.future.wait(WITHIN_S)
