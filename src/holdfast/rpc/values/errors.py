"""Errors as bytes, and back: what a call raised is raised at its caller.

Guarantees
    RS-1  The caller always gets an error: the original, or a RemoteError; never one that would end
          the caller's process.
    RS-2  A copy (`anew`) says the same as the original, and keeps nothing that the original passes.
    RS-3  Each worker that an error passes adds one note: the traceback of that worker alone, of
          TEXT_MAX characters at most. NOTES_MAX of these notes are kept: the first ones, which say
          where the error was raised, and the latest ones.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, cast

from holdfast.errors import RemoteError
from holdfast.rpc.values.pickling import load
from holdfast.rpc.wire.messages import Buffer

__all__ = ["NOTES_MAX", "TEXT_MAX", "anew", "dump_error", "in_short", "load_error"]

TEXT_MAX = 1 << 15
NOTES_MAX = 16

_OURS = "holdfast.rpc."
_BANNER = "It was raised at {worker}:\n\n{text}"


class _Note(str):
    """A note that RPC has added to an error. `left_out`: how many notes before it were removed."""

    __slots__ = ("left_out",)
    left_out: int

    def __new__(cls, text: str, left_out: int = 0) -> Self:
        note = super().__new__(cls, text)
        note.left_out = left_out
        return note


def dump_error(error: BaseException, worker: str) -> tuple[bytes, list[Buffer]]:
    """Return an error as bytes, to be raised at the caller."""
    ways = []
    with contextlib.suppress(BaseException):  # its own code may raise anything
        ways.append(pickle.dumps(error, 5))
        ways.append(pickle.dumps(_Parts(error), 5))
    return pickle.dumps((ways, *_words(error), _notes_of(error), worker), 5), []


def load_error(body: Buffer, buffers: Sequence[Buffer]) -> BaseException:
    """Read an error: of its own type if that can be made here, otherwise a RemoteError.

    An error that would end this process (SystemExit, KeyboardInterrupt) becomes a RemoteError.
    """
    ways, name, message, text, notes, worker = load(body, buffers)
    note = _Note(_BANNER.format(worker=worker, text=text))
    for way in ways:
        with contextlib.suppress(BaseException):  # its own code may raise anything
            error = load(way, [])
            if isinstance(error, Exception):
                _add_note(vars(error).setdefault("__notes__", []), note)  # some forbid `add_note`
                return error
    remote = RemoteError(message, type_name=name, traceback_text=text, worker=worker)
    remote.__notes__ = notes
    _add_note(notes, note)
    return remote


def _add_note(notes: list[Any], note: _Note) -> None:
    """Add the note of one more worker. If there are too many, remove one in the middle."""
    notes.append(note)
    ours = [n for n, known in enumerate(notes) if isinstance(known, _Note)]
    if len(ours) <= NOTES_MAX:
        return
    goes, after = ours[NOTES_MAX // 2], ours[NOTES_MAX // 2 + 1]
    left_out = notes[goes].left_out + 1
    # The count is in front of the first note after the gap.
    gap = f"({left_out} notes of workers that it passed are left out.)"
    notes[after] = _Note(f"{gap}\n\n{notes[after]}", left_out)
    del notes[goes]


def anew(error: BaseException, worker: str) -> BaseException:
    """Return a copy of an error that says the same, for each caller that it is raised at.

    An error keeps everything that it passes on its way up, for as long as the error is kept. An
    error that cannot be copied is replaced by a RemoteError.
    """
    made: Any = None
    for way in (copy.copy, _Parts.copy):
        with contextlib.suppress(BaseException):  # its own code may raise anything
            made = way(error)
        if type(made) is type(error) and made is not error:
            break
    else:
        name, message, text = _words(error)
        made = RemoteError(message, type_name=name, traceback_text=text, worker=worker)
        made.__notes__ = _notes_of(error)
    for name in ("__traceback__", "__cause__", "__context__", "__suppress_context__"):
        BaseException.__setattr__(made, name, getattr(error, name))  # some forbid setting these
    if isinstance(vars(made).get("__notes__"), list):
        vars(made)["__notes__"] = [*vars(made)["__notes__"]]
    return cast("BaseException", made)


class _Parts:
    """An error that is sent as its class, its `args` and its attributes.

    Pickle rebuilds an error by a call of its class with `args`. That fails if the class passes
    other arguments to its base class; some classes also forbid setting attributes.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        error = self._error
        return _put_together, (type(error), error.args, vars(error))

    @classmethod
    def copy(cls, error: BaseException) -> Any:
        make, parts = cls(error).__reduce__()
        return make(*parts)


def _put_together(kind: type, args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


def _words(error: BaseException) -> tuple[str, str, str]:
    """Return the name of an error's type, its message with that name, and its traceback.

    The traceback is without the notes: these are sent with the error, and a traceback with them
    would grow at each worker by the notes of all workers before.
    """
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    trace = traceback.TracebackException(type(error), error, _users_part(error))
    trace.__notes__ = None
    return name, f"{name}: {_text(error)}", _cut("".join(trace.format()))


def in_short(error: BaseException) -> str:
    """Return an error's type and message, as in the last line of its traceback."""
    trace = traceback.TracebackException(type(error), error, None)
    trace.__notes__ = None
    return _cut("".join(trace.format_exception_only()).strip())


def _cut(text: str) -> str:
    """Remove the middle of a text that is too long."""
    if len(text) <= TEXT_MAX:
        return text
    half = TEXT_MAX // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters are left out …\n{text[-half:]}"


def _notes_of(error: BaseException) -> list[str]:
    """Return the notes of an error that are strings, as plain `str` or `_Note`."""
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list):
        return []
    texts = [note for note in notes if isinstance(note, str)]
    return [note if type(note) is _Note else str.__str__(note) for note in texts]


def _users_part(error: BaseException) -> TracebackType | None:
    """Return a traceback from where it leaves our own code, or all of it if it never does."""
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OURS):
        trace = trace.tb_next
    return trace or error.__traceback__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # its own code may raise anything
        return "(it cannot say what it is)"
