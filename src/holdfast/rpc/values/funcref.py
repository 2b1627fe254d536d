"""Functions by name: both ends know the functions that are called most, so only a name is sent.

Pickle does that too, at four times the cost. It handles everything else: callables that are not
functions, and functions that their module does not have under their own name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

from holdfast.errors import UsageError

__all__ = ["NAMED_BY", "encode_function", "named_by", "resolve_function"]

NAMED_BY = "_holdfast_named_by"
"""Marks a function that runs another one: which of its arguments is the name of that one."""

F = TypeVar("F", bound=Callable[..., Any])

_modules = sys.modules
_whole: set[str] = set()
"""Modules that are fully imported; others may lack some of their names yet."""


def encode_function(function: Any) -> Any:
    """Return the name of a function, if it can be found by that name; otherwise the function.

    UsageError if it is not callable.
    """
    kind = type(function)
    if kind is FunctionType or kind is BuiltinFunctionType:
        module, name = function.__module__, function.__qualname__
        home = _modules.get(module)
        if home is not None and home.__dict__.get(name) is function:
            return f"{module}:{name}"
    elif not callable(function):
        raise UsageError(f"func {function!r:.80}: must be something that can be called")
    return function


def named_by(position: int) -> Callable[[F], F]:
    """Mark a function that runs another one, whose name is the argument at this position."""

    def mark(function: F) -> F:
        setattr(function, NAMED_BY, position)
        return function

    return mark


def resolve_function(name: str) -> Any:
    """Return the function of a name; ImportError or AttributeError if this worker has none."""
    module, _, own = name.partition(":")
    home = _modules.get(module) if module in _whole else None
    if home is None:
        home = importlib.import_module(module)  # waits if another thread is importing it
        _whole.add(module)
    try:
        return home.__dict__[own]
    except KeyError:
        raise AttributeError(f"Can't get attribute {own!r:.80} on {home!r:.120}") from None
