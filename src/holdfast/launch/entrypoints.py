"""Entry points as people give them: a function, or a command with its arguments.

A command that runs Python code with this interpreter is taken for the code: it then leaves its
errors behind without any decorator. Any other command is run as it stands.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import UsageError
from holdfast.process.spec import Entrypoint, Function, Module, Program, Script, StartMethod

__all__ = ["make_entrypoint"]


def make_entrypoint(
    entrypoint: Callable[..., Any] | str,
    args: Sequence[Any] = (),
    start_method: str = "spawn",
    kwargs: Mapping[str, Any] | None = None,
) -> Entrypoint:
    """Return what to run in each worker."""
    if callable(entrypoint):
        return Function(entrypoint, tuple(args), StartMethod(start_method), dict(kwargs or {}))
    if not isinstance(entrypoint, str) or not entrypoint:
        raise UsageError(f"entry point {entrypoint!r:.80}: must be a function or a command")
    if kwargs:
        raise UsageError(
            f"command {entrypoint!r:.80}: keyword argument {min(kwargs)!r} is not allowed; "
            "a command takes words only"
        )
    words = tuple(_word(arg) for arg in args)
    if not _is_this_python(entrypoint):
        return Program(_word(entrypoint), words)
    match words[1:] if words[:1] == ("-u",) else words:
        case ("-m", module, *rest):
            return Module(module, tuple(rest))
        case (script, *rest) if script and not script.startswith("-"):
            return Script(script, tuple(rest))
        case _:  # an option that only the interpreter knows, or nothing to run
            return Program(entrypoint, words)


def _word(arg: object) -> str:
    if not isinstance(arg, str) or "\0" in arg:
        raise UsageError(f"argument {arg!r:.80}: a command takes text without NUL characters")
    return arg


def _is_this_python(command: str) -> bool:
    """Say whether a command is the running interpreter, in the same virtual environment."""
    found = shutil.which(command)
    if found is None or not sys.executable:
        return False
    # A virtual environment is known by the folder; all of them share the file itself.
    folder, name = os.path.split(os.path.abspath(found))
    here, _ = os.path.split(os.path.abspath(sys.executable))
    return folder == here and os.path.samefile(os.path.join(folder, name), sys.executable)
