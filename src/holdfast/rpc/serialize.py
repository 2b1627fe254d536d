"""Values as bytes, and back: calls, results and errors.

Pickle, protocol 5: what is large lies outside of the pickle, in buffers that are sent from where
they are and received into the memory that the value keeps. Arrays of numpy do that by themselves;
tensors of torch are taught to, if torch is loaded. What pickle cannot do (lambdas, closures,
classes made within functions) is left to cloudpickle.

Only peers that have proved that they hold the job's secret get here: they are the same user's code.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

from holdfast.errors import RemoteError, UsageError
from holdfast.rpc.messages import Buffer

__all__ = ["OUTSIDE_BYTES", "dump", "dump_error", "load", "load_error"]

OUTSIDE_BYTES = 16 * 1024
"""Smaller buffers cost less inside of the pickle."""

_BANNER = "It was raised at {worker}:\n\n{text}"


def dump(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return a value as a body and the buffers that it refers to.

    The buffers are the value's own memory: it must not change before they are sent. UsageError if
    it cannot be pickled.
    """
    outside: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Put a buffer outside; return whether it stays inside instead."""
        with memoryview(buffer) as view:
            inside = view.nbytes < OUTSIDE_BYTES or not view.c_contiguous
        if not inside:
            outside.append(buffer)
        return inside

    try:
        if "torch" in sys.modules:
            body = _dump_with_tensors(value, keep)
        else:
            body = pickle.dumps(value, 5, buffer_callback=keep)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        outside.clear()
        body = _dump_anything(value, keep, error)
    return body, [buffer.raw() for buffer in outside]


def load(body: Buffer, buffers: list[Buffer]) -> Any:
    """Read a value; it owns the memory of the buffers from now on."""
    return pickle.loads(body, buffers=buffers)  # noqa: S301  # see above


def dump_error(error: BaseException, worker: str) -> tuple[bytes, list[Buffer]]:
    """Return an error that is to be raised at the caller."""
    text = "".join(traceback.format_exception(error))
    try:
        whole = pickle.dumps(error, 5)
    except Exception:  # whatever its own code does
        whole = b""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return pickle.dumps((whole, name, _text(error), text, worker), 5), []


def load_error(body: Buffer, buffers: list[Buffer]) -> BaseException:
    """Read an error: of its own type if that can be made here, else a RemoteError.

    One that would end this process (SystemExit, KeyboardInterrupt) never comes back as such.
    """
    whole, name, message, text, worker = load(body, buffers)
    note = _BANNER.format(worker=worker, text=text)
    error: object = None
    if whole:
        try:
            error = load(whole, [])
        except Exception:  # whatever its own code does
            error = None
    if not isinstance(error, Exception):
        error = RemoteError(
            f"{name}: {message}", type_name=name, traceback_text=text, worker=worker
        )
    error.add_note(note)
    return error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # whatever its own code does
        return "(it cannot say what it is)"


def _dump_with_tensors(value: Any, keep: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    file = io.BytesIO()
    _TensorPickler(file, 5, buffer_callback=keep).dump(value)
    return file.getvalue()


def _dump_anything(
    value: Any, keep: Callable[[pickle.PickleBuffer], bool], error: Exception
) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        raise UsageError(
            f"{value!r:.200}: cannot be pickled ({error}); lambdas and closures need cloudpickle"
        ) from error
    try:
        body: bytes = cloudpickle.dumps(value, 5, buffer_callback=keep)
    except Exception:
        raise UsageError(f"{value!r:.200}: cannot be pickled: {error}") from error
    return body


class _TensorPickler(pickle.Pickler):
    """Puts the memory of plain tensors outside of the pickle; others pickle as torch does."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor or not _is_plain(torch, value):
            return NotImplemented
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        facts = (str(value.dtype).removeprefix("torch."), tuple(value.shape))
        return _rebuild_tensor, (pickle.PickleBuffer(flat), *facts, value.requires_grad)


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Say whether a tensor is nothing but memory, a type and a shape."""
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_leaf
        and tensor.nbytes >= OUTSIDE_BYTES
        and not tensor.__dict__
    )


def _rebuild_tensor(memory: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import importlib

    torch = importlib.import_module("torch")
    view = memoryview(memory)
    # What came inside of a pickle cannot be written to, and a tensor must be.
    memory = bytearray(view) if view.readonly else memory
    tensor = torch.frombuffer(memory, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor
