"""The part of a distributed backward pass that one worker does.

The worker's graph starts at the roots, if it has them, and at its send functions, where gradients
come from others; it ends at its recv functions, whose gradients go to others, and at leaves. torch
runs all of it, in one go. A send function blocks until its gradients have come; so it must not run
before what they depend on. They depend on nothing but recv functions that were made after it: what
came back because of what was sent. The graph says so too (`graph.py`), so torch keeps that order.

Guarantees
    BP-1  Each node runs once in a pass, with the sum of all its gradients; so do its hooks. Those
          of a leaf's node, which does not run, run before and after the gradient is kept.
    BP-2  A gradient goes to the context and nowhere else: no `.grad` is touched, but for a while by
          passes with DDP (DP-2).
    BP-3  A pass ends when all of this worker's part is done and all workers to which gradients
          went have said that they are done, or with the first error. Then it ends once.
    BP-4  A pass that fails wakes up what waits for its gradients, and sends none any more.
    BP-5  One pass at a time runs in a context.
    BP-6  A worker that runs its part because another one gave it gradients waits for more as long
          as that call may take: the worker that should give them may be lost, and the caller too.
    BP-7  Gradients for the worker that asked go with the answer, which comes when this worker's
          part is done; they go before that, by a call, if this worker has to wait for others.
    BP-8  A thread that waits in a pass reads the answers itself, if what it waits for comes with
          them: when no gradient of this worker is missing elsewhere. It releases what other threads
          need before it blocks, and not before that.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd.graph import GradientEdge, _engine_run_backward

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.rpc.client.blocking import before_block
from holdfast.rpc.client.deadlines import deadline_here
from holdfast.rpc.client.future import Future
from holdfast.rpc.wire.messages import NEVER
from holdfast.torch_compat.autograd.contexts import DistAutogradContext
from holdfast.torch_compat.autograd.ddp import by_adding
from holdfast.torch_compat.autograd.graph import FIRST_EDGE
from holdfast.torch_compat.tensors.pickling import SMALL_BYTES

__all__ = ["Given", "Pass", "Roots", "Sender"]

Roots: TypeAlias = "list[tuple[GradientEdge, Any]]"
Given: TypeAlias = "tuple[int, list[Any]]"
"""The gradients of a message, with its number."""
Sender: TypeAlias = "Callable[[Pass, int, int, list[Any]], Future[list[Given] | None]]"

_NOTHING = torch.empty(0)
"""The gradient by which a send function starts: its own ones come from afar."""

NOT_ASKED = -1
READ_S = 0.002
"""How long a thread that waits for gradients reads answers itself. A call that brings them does not
wake it meanwhile, and then other threads read answers for it."""


class Pass:
    """A pass at this worker.

    `send` passes gradients on: those of the message of that number, to the worker of that number.
    `asker` is the life of the worker that was first to give gradients here, if one was, and
    `asking` its number.
    """

    def __init__(
        self,
        context: DistAutogradContext,
        number: int,
        retain_graph: bool,
        send: Sender,
        asker: str = "",
        asking: int = NOT_ASKED,
    ) -> None:
        self.context = context
        self.number = number
        self.retain_graph = retain_graph
        self.asker = asker
        self._asking = asking
        self.future: Future[None] = Future(self)
        self.asked: set[int] = set()  # the workers to which gradients went
        self._sent: list[Future[Any]] = []
        self._back: list[Given] = []  # what goes with the answer
        self._given = 0  # how many recv functions have run
        self._send = send
        self._changed = threading.Condition()
        self._come: dict[int, list[Any]] = {}
        self._at = NEVER
        self.has_heard = False  # whether others have given gradients
        self._under_way = 1  # what was sent and not answered, and this worker's own part

    # What others give.

    def come(self, message: int, gradients: list[Any]) -> None:
        """Hear the gradients of a send function."""
        with self.context.lock:
            is_known = message in self.context.sends
        if not is_known:
            error = RuntimeError(f"Could not find send function for autograd message id: {message}")
            self.fail(error)
            raise error
        with self._changed:
            self._come[message] = gradients
            self.has_heard = True
            self._changed.notify_all()

    # What the graph asks for.

    def await_gradients(self, message: int) -> list[Any]:
        """Return the gradients of a send function, once they are there."""

        def is_over() -> bool:
            return message in self._come or self.future.done()

        if not is_over():
            self._hand_over()
            before_block()
            if self._given == len(self.context.recvs):
                self.drive(is_over, Deadline.after(READ_S))
        with self._changed:
            has_ended = self._changed.wait_for(is_over, self._left())
            self._check()
            if not has_ended:
                raise RuntimeError(
                    f"no gradients have come for autograd message {message} in the time of the call"
                )
            return self._come.pop(message)

    def _left(self) -> float | None:
        """Return how many seconds there are left to wait; None for as long as it takes."""
        if self._at == NEVER:
            return None
        return max(0.0, self._at - SYSTEM_CLOCK.monotonic())

    def send_gradients(self, message: int, worker: int, gradients: list[Any]) -> None:
        """Send the gradients of a recv function to where the send function is."""
        gradients = [_plain(gradient) for gradient in gradients]
        with self._changed:
            self._check()
            self._given += 1
            if worker == self._asking:
                self._back.append((message, gradients))
                return
        self._pass_on(message, worker, gradients)

    def _pass_on(self, message: int, worker: int, gradients: list[Any]) -> None:
        with self._changed:
            self._under_way += 1
            self.asked.add(worker)
        sent = self._send(self, message, worker, gradients)
        self._sent.append(sent)
        sent._add(self._answered)

    def _hand_over(self) -> None:
        """Send now what was to go with the answer (BP-7)."""
        with self._changed:
            back, self._back = self._back, []
        for message, gradients in back:
            self._pass_on(message, self._asking, gradients)

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Read the answers of the workers that gradients went to, for a thread that waits."""
        while self._sent and not done():
            driver = self._sent.pop().driver
            if driver is not None:
                driver.drive(done, deadline)

    def answer(self) -> list[Given]:
        """Return the gradients that go with the answer; raise if the pass has failed."""
        self.future.value()
        return self._back

    def _check(self) -> None:
        if self.future.done():
            self.future.value()

    # Running.

    def run(self, roots: Roots) -> None:
        """Run this worker's part. If it fails the pass does."""
        self._at = deadline_here() if self.asker else NEVER
        try:
            self._take_turn()
            try:
                self._run(roots)
            finally:
                self._end_turn()
            if self._under_way > 1:  # what they do may depend on what goes with the answer
                self._hand_over()
        except BaseException as error:
            self.fail(error)
            raise
        self._one_done()

    def _take_turn(self) -> None:
        context = self.context
        if context.running is not None:
            before_block()
        with context.turns:
            is_mine = context.turns.wait_for(
                lambda: context.running is None or self.future.done(), self._left()
            )
            self._check()
            if not is_mine:
                raise RuntimeError("another backward pass has run in this context all the time")
            context.running = self

    def _end_turn(self) -> None:
        with self.context.turns:
            self.context.running = None
            self.context.turns.notify_all()

    def _run(self, roots: Roots) -> None:
        with self.context.lock:
            sends = list(self.context.sends.values())
        starts = [edge for edge, _ in roots] + [GradientEdge(send, 0) for send in sends]
        gradients = [gradient for _, gradient in roots] + [_NOTHING] * len(sends)
        leaves = _leaves([edge.node for edge in starts])
        if self.context.reduces:
            variables = [leaf.variable for leaf in leaves]
            run = partial(
                torch.autograd.backward, starts, gradients, retain_graph=self.retain_graph
            )
            self._keep(leaves, by_adding(variables, run, self._left()))
            return
        ends = [GradientEdge(leaf, 0) for leaf in leaves]
        # What `torch.autograd.grad` does, which would check the gradients of the roots before.
        found = _engine_run_backward(
            *(tuple(starts), tuple(gradients), self.retain_graph, False, (*ends, FIRST_EDGE), True),
            accumulate_grad=False,
        )
        del gradients
        kept = [_before(*pair) for pair in zip(leaves, found[:-1], strict=True)]
        self._keep(leaves, kept)
        for pair in zip(leaves, kept, strict=True):
            _after(*pair)

    def _keep(self, leaves: list[Any], gradients: list[Any]) -> None:
        """Add gradients of leaves to those of the context, in memory of their own."""
        found = [
            (leaf.variable, gradient)
            for leaf, gradient in zip(leaves, gradients, strict=True)
            if gradient is not None
        ]
        users = Counter(_memory(gradient) for _, gradient in found)
        with self.context.lock:
            kept = self.context.gradients
            for variable, gradient in found:
                if variable in kept:
                    kept[variable] = kept[variable] + gradient
                elif users[_memory(gradient)] > 1 or not _is_dense(gradient):
                    kept[variable] = _copy(gradient)
                else:
                    kept[variable] = gradient

    # The end.

    def _answered(self, sent: Future[Any]) -> None:
        error = sent.exception()
        try:
            for message, gradients in (sent.value() or ()) if error is None else ():
                self.come(message, gradients)
        except RuntimeError:
            return  # it has failed
        if error is None:
            self._one_done()
        else:
            self.fail(error)

    def _one_done(self) -> None:
        with self._changed:
            self._under_way -= 1
            is_over = not self._under_way
        if is_over and self._leave():
            self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it has ended already."""
        if self._leave():
            self.future.set_exception(error)
        with self._changed:
            self._changed.notify_all()
        with self.context.turns:
            self.context.turns.notify_all()

    def _leave(self) -> bool:
        """Say whether it is now that it ends (BP-3)."""
        with self.context.lock:
            self.context.over.add(self.number)
            return self.context.passes.pop(self.number, None) is not None


def _leaves(starts: list[Any]) -> list[Any]:
    """Return the leaves of the graph that starts at these nodes, without the token's."""
    found: list[Any] = []
    todo = starts
    seen = {FIRST_EDGE.node, *todo}
    while todo:
        node = todo.pop()
        if getattr(node, "variable", None) is not None:
            found.append(node)
            continue
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                todo.append(child)
    return found


def _plain(gradient: Any) -> Any:
    """Return a gradient as it costs least to send: a small one without its strides."""
    if gradient is None or gradient.layout is not torch.strided or gradient.nbytes > SMALL_BYTES:
        return gradient
    return gradient.contiguous()


def _before(leaf: Any, gradient: Any) -> Any:
    """Return what the hooks that run before a leaf's node make of its gradient, if it has one."""
    if gradient is not None:
        for hook in _hooks(leaf.register_prehook):
            found = hook((gradient,))
            if found is not None:
                (gradient,) = found if isinstance(found, tuple) else (found,)
    return gradient


def _after(leaf: Any, gradient: Any) -> None:
    """Run the hooks that run after a leaf's node, if it has a gradient."""
    if gradient is not None:
        for hook in _hooks(leaf.register_hook):
            hook((), (gradient,))


def _hooks(register: Callable[[Any], Any]) -> list[Callable[..., Any]]:
    """Return the hooks of a node: torch shows them to code that registers one itself."""
    own = register(_hooks)
    found = own.hooks_dict_ref()
    own.remove()
    return list(found.values())


def _memory(gradient: Any) -> int:
    if gradient.layout is torch.sparse_coo:
        gradient = gradient._values()
    return int(gradient.data_ptr())


def _is_dense(gradient: Any) -> bool:
    """Say whether no element of it stands for several, and none is left out."""
    if gradient.layout is torch.sparse_coo:
        return bool(gradient._values().is_contiguous() and gradient._indices().is_contiguous())
    return gradient.layout is not torch.strided or bool(
        torch.ops.aten.is_non_overlapping_and_dense(gradient)
    )


def _copy(gradient: Any) -> Any:
    if gradient.layout is torch.strided:
        return gradient.clone(memory_format=torch.contiguous_format)
    return gradient.clone()
