"""The part of a distributed backward pass that one worker does.

The worker's graph starts at the roots, if it has them, and at its send functions, where gradients
come from others; it ends at its recv functions, whose gradients go to others, and at leaves. torch
runs the nodes; this file says which ones, and when. A recv function is run for when the gradients
of all send functions that lead to it have come; the leaves when all have.

Not all nodes on the way may run at once: what branches off towards something that must still wait
is caught behind the last node that runs, and is where a later run begins.

Guarantees
    EN-1  Each node runs once in a pass, with the sum of all its gradients; so do its hooks.
    EN-2  A gradient goes to the context and nowhere else: no `.grad` is touched.
    EN-3  A pass ends when all of this worker's part is done and all workers to whom gradients
          went have said that they are done, or with the first error. Then it ends once.
    EN-4  A pass that ends with an error runs nothing any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch.autograd.graph import GradientEdge

from holdfast.rpc.future import Future
from holdfast.torch_compat.contexts import DistAutogradContext
from holdfast.torch_compat.graph import Recv

__all__ = ["Graph", "Pass"]

Edge: TypeAlias = "tuple[Any, int]"
"""A node, and which of its gradients."""
Pending: TypeAlias = "dict[Edge, list[Any]]"


class Graph:
    """The graph of one worker, from its roots and send functions on.

    `needs` says of each node which send functions lead to it, as bits.
    """

    def __init__(self, roots: Iterable[Edge], sends: list[Any], ends: set[Any]) -> None:
        self._ends = ends
        self.leaves: list[Any] = []
        self.parents: dict[Any, list[Any]] = {}
        self._edges: dict[Any, list[Edge]] = {}
        for node, _ in roots:
            self._add(node)
        for send in sends:
            for node, _ in send.next_functions:
                self._add(node)
        self._order = self._sorted()
        self.needs = dict.fromkeys(self._order, 0)
        for bit, send in enumerate(sends):
            for node, _ in send.next_functions:
                if node is not None:
                    self.needs[node] |= 1 << bit
        for node in self._order:
            for child, _ in self._edges[node]:
                self.needs[child] |= self.needs[node]

    def _add(self, first: Any) -> None:
        todo = [first]
        while todo:
            node = todo.pop()
            if node is None or node in self._edges:
                continue
            is_leaf = hasattr(node, "variable")
            if is_leaf and node not in self._ends:
                self.leaves.append(node)
            is_end = is_leaf or node in self._ends
            edges = [] if is_end else [one for one in node.next_functions if one[0] is not None]
            self._edges[node] = edges
            self.parents.setdefault(node, [])
            for child, _ in edges:
                self.parents.setdefault(child, []).append(node)
                todo.append(child)

    def _sorted(self) -> list[Any]:
        """Return the nodes, each before those that its gradients go to."""
        missing = {node: len(parents) for node, parents in self.parents.items()}
        order = [node for node, count in missing.items() if not count]
        for node in order:  # it grows
            for child, _ in self._edges[node]:
                missing[child] -= 1
                if not missing[child]:
                    order.append(child)
        return order

    def towards(self, targets: Iterable[Any], done: set[Any]) -> set[Any]:
        """Return the nodes from which targets are reached, without those that are done."""
        found: set[Any] = set()
        todo = [parent for target in targets for parent in self.parents[target]]
        while todo:
            node = todo.pop()
            if node not in found and node not in done:
                found.add(node)
                todo.extend(self.parents[node])
        return found


_running: set[int] = set()  # threads that run a part of a pass


class Pass:
    """A pass at this worker. `send` passes the gradients of a recv function on, by a future."""

    def __init__(
        self,
        context: DistAutogradContext,
        number: int,
        retain_graph: bool,
        roots: Pending,
        send: Callable[[Pass, int, Recv, list[Any]], Future[Any]],
    ) -> None:
        self.context = context
        self.number = number
        self.retain_graph = retain_graph
        self.future: Future[None] = Future()
        self._send = send
        with context.lock:
            self._sends, self._recvs = dict(context.sends), dict(context.recvs)
        ends = {recv.node for recv in self._recvs.values()}
        self._graph = Graph(roots, list(self._sends.values()), ends)
        self._bits = {name: 1 << place for place, name in enumerate(self._sends)}
        # The recv functions to run for, with what they need; the leaves need all.
        self._waiting = {
            name: self._graph.needs[recv.node]
            for name, recv in self._recvs.items()
            if recv.node in self._graph.needs
        }
        self._have_leaves_run = False
        self._pending: Pending = {edge: list(gradients) for edge, gradients in roots.items()}
        self._done: set[Any] = set()
        # Under the lock:
        self._lock = threading.Lock()
        self._come: list[tuple[int, list[Any]]] = []
        self._ready = 0
        self._under_way = 1  # what was sent and not answered, and this worker's own part
        self._is_running = False

    def come(self, name: int, gradients: list[Any]) -> None:
        """Hear the gradients of a send function; go on."""
        if name not in self._sends:
            raise RuntimeError(f"Could not find send function for autograd message id: {name}")
        with self._lock:
            self._come.append((name, gradients))
        self.go_on()

    def go_on(self) -> None:
        """Run what can be run now, unless another thread does; then that one will."""
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
        try:
            while self._step():
                pass
        except BaseException:
            self._is_running = False
            raise

    def _step(self) -> bool:
        with self._lock:
            self._count_in()
            now = [name for name, needs in self._waiting.items() if not needs & ~self._ready]
            is_last = self._ready == (1 << len(self._sends)) - 1 and not self._have_leaves_run
            if self.future.done() or not (now or is_last):
                self._is_running = False
                return False
        for name in now:
            del self._waiting[name]
        self._run_recvs(now)
        if is_last:
            self._have_leaves_run = True
            self._run_leaves()
            self._ended(None)
        return True

    def _count_in(self) -> None:
        for name, gradients in self._come:
            self._ready |= self._bits[name]
            edges = self._sends[name].next_functions
            for edge, gradient in zip(edges, gradients, strict=True):
                if edge[0] is not None:
                    self._pending.setdefault(edge, []).append(gradient)
        self._come = []

    # Running.

    def _run_recvs(self, names: list[int]) -> None:
        recvs = [self._recvs[name] for name in names]
        found = iter(self._run([(one.node, i) for one in recvs for i in range(len(one.like))]))
        for name, recv in zip(names, recvs, strict=True):
            gradients = [next(found) for _ in recv.like]
            full = [recv.zeros(i) if one is None else one for i, one in enumerate(gradients)]
            with self._lock:
                self._under_way += 1
            self._send(self, name, recv, full).add_done_callback(self._ended)

    def _run_leaves(self) -> None:
        leaves = self._graph.leaves
        found = self._run([(leaf, 0) for leaf in leaves])
        self._done.clear()
        self._keep(
            {
                leaf.variable: gradient
                for leaf, gradient in zip(leaves, found, strict=True)
                if gradient is not None
            }
        )

    def _keep(self, gradients: dict[Any, Any]) -> None:
        """Add gradients of leaves to those of the context, in memory of their own."""
        seen: set[int] = set()
        with self.context.lock:
            kept = self.context.gradients
            for variable, gradient in gradients.items():
                memory = _memory(gradient)
                if variable in kept:
                    kept[variable] = kept[variable] + gradient
                elif memory in seen or not _is_dense(gradient):
                    kept[variable] = _copy(gradient)
                else:
                    kept[variable] = gradient
                seen.add(memory)

    def _run(self, targets: list[Edge]) -> Iterable[Any]:
        """Run what leads to targets, and return their gradients."""
        if not targets:
            return []
        ends = {node for node, _ in targets}
        nodes = self._graph.towards(ends, self._done)
        begin = [edge for edge in self._pending if edge[0] in nodes or edge[0] in ends]
        pairs = [(edge, one) for edge in begin for one in self._pending.pop(edge)]
        self._done |= nodes
        me = threading.get_ident()
        hooks = [
            node.register_hook(self._catcher(branches, me))
            for node in nodes
            if (branches := self._branches(node, nodes, ends))
        ]
        is_outermost = me not in _running
        _running.add(me)
        try:
            found: Iterable[Any] = torch.autograd.grad(
                [GradientEdge(*edge) for edge, _ in pairs],
                [GradientEdge(*edge) for edge in targets],
                [gradient for _, gradient in pairs],
                retain_graph=self.retain_graph,
                allow_unused=True,
            )
        finally:
            if is_outermost:
                _running.discard(me)
            for hook in hooks:
                hook.remove()
        return found

    def _branches(self, node: Any, nodes: set[Any], ends: set[Any]) -> list[tuple[int, Edge]]:
        """Return which gradients of a node go where nothing runs yet, and where that is."""
        return [
            (place, edge)
            for place, edge in enumerate(node.next_functions)
            if edge[0] is not None and edge[0] not in nodes and edge[0] not in ends
        ]

    def _catcher(self, branches: list[tuple[int, Edge]], runner: int) -> Callable[[Any, Any], None]:
        def catch(gradients: Any, _: Any) -> None:
            here = threading.get_ident()
            if here != runner and here in _running:
                return  # that is another pass over the same node
            for place, edge in branches:
                if gradients[place] is not None:
                    self._pending.setdefault(edge, []).append(gradients[place])

        return catch

    # The end.

    def _ended(self, sent: Future[Any] | None) -> None:
        """Hear that one of what is under way has ended."""
        error = None if sent is None else sent.exception()
        if error is not None:
            self.fail(error)
            return
        with self._lock:
            self._under_way -= 1
            is_over = not self._under_way
        if is_over and self._leave():
            self.future.set_result(None)

    def fail(self, error: BaseException) -> bool:
        """End with an error; False if it has ended already (EN-3)."""
        is_first = self._leave()
        if is_first:
            self.future.set_exception(error)
        return is_first

    def _leave(self) -> bool:
        with self.context.lock:
            self.context.over.add(self.number)
            return self.context.passes.pop(self.number, None) is not None


def _memory(gradient: Any) -> int:
    if gradient.layout is torch.sparse_coo:
        gradient = gradient._values()
    return int(gradient.data_ptr())


def _is_dense(gradient: Any) -> bool:
    """Say whether no element of it stands for several, and none is left out."""
    if gradient.layout is torch.sparse_coo:
        return bool(gradient._values().is_contiguous() and gradient._indices().is_contiguous())
    return gradient.layout is not torch.strided or bool(
        gradient.is_contiguous() or gradient.is_non_overlapping_and_dense()
    )


def _copy(gradient: Any) -> Any:
    if gradient.layout is torch.strided:
        return gradient.clone(memory_format=torch.contiguous_format)
    return gradient.clone()
