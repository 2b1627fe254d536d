"""Values as bytes: calls, results and errors. A first form; replaced by the whole."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from holdfast.errors import RemoteError
from holdfast.rpc.messages import Buffer

__all__ = ["dump", "dump_error", "load", "load_error"]


def dump(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return a value as a body and the buffers that it refers to."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return body, [buffer.raw() for buffer in buffers]


def load(body: Buffer, buffers: list[Buffer]) -> Any:
    """Read a value."""
    return pickle.loads(body, buffers=buffers)


def dump_error(error: BaseException, worker: str) -> tuple[bytes, list[Buffer]]:
    """Return an error that is to be raised over there."""
    text = "".join(traceback.format_exception(error))
    return pickle.dumps((error, type(error).__name__, str(error), text, worker), 5), []


def load_error(body: Buffer, buffers: list[Buffer]) -> BaseException:
    """Read an error."""
    error, name, message, text, worker = pickle.loads(body)
    if isinstance(error, BaseException):
        error.add_note(f"On {worker}:\n{text}")
        return error
    return RemoteError(message, type_name=name, traceback_text=text, worker=worker)
