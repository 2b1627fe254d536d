"""What a Python function raised, for callers by torch's names: a text, and the type of the error.

torch's Python says the text of an error twice, in the error's `repr` and in its traceback, and
unescapes all of it at the caller. So there a text doubles at each worker that it passes, a letter
that is not ASCII becomes two, and a backslash may hide the error. Here the `repr` is short, and
nothing but the `repr` is unescaped.

Guarantees
    TX-1  The text begins with the worker, as torch says it, and the `repr` of the error, whose line
          breaks are real ones; then comes the traceback. The caller raises the type of the error,
          with this text, as it is.
    TX-2  A worker that the error passes adds to the text the traceback of that worker, and REPR_MAX
          characters at most of what the text has said before.
    TX-3  A text has TEXT_MAX characters, and a line about the gap, at most. The first half is of
          the workers that the error passed last, the second half of where it was raised.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.torch_compat.rpc.agents import current

__all__ = ["REPR_MAX", "TEXT_MAX", "raise_again", "run"]

REPR_MAX = 300
TEXT_MAX = 1 << 15
_GAP = "\n(The middle of this text, which is too long, is left out.)\n"
_ESCAPED = re.compile(r"\\([\\n'])")


class _Text(str):
    """A text that is its own `repr`: an error that shows its argument so adds no escapes to it."""

    __slots__ = ()
    __repr__ = str.__str__


def run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a Python function; return its value, or what it raised as a `RemoteException`.

    Writes what it raised to the error output, as torch does.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        text = _text_of(error)
        sys.stderr.write(f"{text}\n")
        return _internal().RemoteException(text, type(error))


def raise_again(raised: Any) -> NoReturn:
    """Raise at the caller what a function raised: by its type, if that takes one text."""
    text = _Text(raised.msg)
    try:
        error = raised.exception_type(text)
    except BaseException as failed:  # whatever its own code does
        raise RuntimeError(
            f"Failed to create original exception type. Error msg was {failed}"
            f" Original exception on remote side was {text}"
        ) from failed
    raise error


def _text_of(error: Exception) -> str:
    trace = traceback.format_exc().rstrip()  # what another worker said ends with a line break, too
    return _cut(f"On {current().get_worker_info()}:\n{_short(error)}\n{trace}\n")


def _short(error: Exception) -> str:
    """Return the `repr` of an error without escapes; its beginning, if that is long."""
    try:
        text = repr(error)
    except Exception:  # whatever its own code does
        text = f"{type(error).__name__}(...)"
    text = _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
    return text if len(text) <= REPR_MAX else f"{text[: REPR_MAX - 3]}..."


def _cut(text: str) -> str:
    if len(text) <= TEXT_MAX:
        return text
    half = TEXT_MAX // 2
    return f"{text[:half]}{_GAP}{text[-half:]}"


def _internal() -> Any:
    # Of torch's Python above us, which is imported after us.
    return sys.modules["torch.distributed.rpc.internal"]
