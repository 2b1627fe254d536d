"""Messages within a context, as core pickles them: a head stands before the values, a seal after.

By the short path of calls (`rpc/quick.py`) core pickles values as they are, in one pass, and no
list of tensors is made before. So the graph is joined during that pass. At the sender, pickling
the head begins to collect the tensors that require gradients, and pickling the seal makes the send
function of those that were met. At the receiver the head has joined the context, and the seal,
which is read last, makes the tensors that arrived outputs of one recv function, in place.

Guarantees
    MG-1  A value that cannot be pickled leaves nothing in the graph: the send function is made when
          all else has been pickled.
    MG-2  Each tensor that requires gradients is joined by the message that carries it. A message
          that is pickled meanwhile (a reducer makes a call) collects its own.
    MG-3  The answer of a call joins the context of the call, unless that has been released.
"""

from __future__ import annotations

from typing import Any

from holdfast.rpc.values.references import Packing, here
from holdfast.torch_compat.autograd.contexts import CONTEXTS, DistAutogradContext
from holdfast.torch_compat.autograd.graph import receive, send
from holdfast.torch_compat.tensors.pickling import Reducer, collecting

__all__ = ["Arriving", "ContextAnswer", "MessageHead", "MessageSeal"]


class MessageHead:
    """What stands before the values of a message, at the sender."""

    def __init__(self, context: DistAutogradContext, is_answer: bool = False) -> None:
        self.context = context
        self.tensors: list[Any] = []
        self.outer: Any = None
        self._is_answer = is_answer
        self._packing: Packing | None = None

    def collect(self, tensor: Any, reduce: Reducer) -> Any:
        """Reduce a tensor that requires a gradient; None if it is of another message (MG-2)."""
        if here.packing is not self._packing:
            return None
        self.tensors.append(tensor)
        return _came, (self, *reduce(tensor.detach()))

    def __reduce__(self) -> Any:
        # Maybe for the second time: a value that pickle refuses is pickled by cloudpickle.
        self.tensors.clear()
        self._packing = here.packing
        # An answer is pickled within no other message. A head that is left behind, since its answer
        # could not be pickled, is not kept.
        self.outer = None if self._is_answer else collecting.head
        collecting.head = self
        number, me = self.context.number, CONTEXTS.worker
        return _answering if self._is_answer else _opened, (number, me)


class MessageSeal:
    """What stands after the values of a message, at the sender."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head

    def __reduce__(self) -> Any:
        head = self._head
        collecting.head = head.outer
        return _sealed, (head, send(head.tensors, head.context) if head.tensors else 0)


class Arriving:
    """The head of a message at the receiver: the context, the sender, and tensors to be joined."""

    def __init__(self, context: int, sender: int) -> None:
        self.context = context
        self.sender = sender
        self.tensors: list[Any] = []


class ContextAnswer:
    """The value of a call, on its way back to a worker within the context of the call (MG-3)."""

    def __init__(self, value: Any, call: Arriving) -> None:
        self._value = value
        self._call = call

    def __reduce__(self) -> Any:
        try:
            context = CONTEXTS.find(self._call.context)
        except RuntimeError:  # it has been released
            return _same, (self._value,)
        with context.lock:
            context.workers.add(self._call.sender)
        head = MessageHead(context, is_answer=True)
        return _read, (head, self._value, MessageSeal(head))


def _opened(context: int, sender: int) -> Arriving:
    CONTEXTS.join(context, sender)
    return Arriving(context, sender)


def _answering(context: int, sender: int) -> Arriving:
    return Arriving(context, sender)


def _came(message: Arriving, rebuild: Any, parts: Any) -> Any:
    tensor = rebuild(*parts)
    if tensor._is_view():  # only a tensor that is no view can be joined in place
        tensor = tensor.detach()
    message.tensors.append(tensor)
    return tensor


def _sealed(message: Arriving, number: int) -> None:
    if message.tensors:
        receive(message.tensors, message.context, number, message.sender)


def _read(message: Arriving, value: Any, seal: None) -> Any:
    return value


def _same(value: Any) -> Any:
    return value
