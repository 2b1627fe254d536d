"""Transports of messages by name; other packages can register more.

A backend is a function that makes a `MessageTransport` from its options. Fault injection is a
backend: it registers itself, so that this module does not depend on it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from holdfast.errors import UsageError
from holdfast.rpc.client.transport import MessageTransport

__all__ = ["Maker", "known_backends", "make_transport", "register_backend"]

Maker: TypeAlias = Callable[[Mapping[str, Any]], MessageTransport]

_makers: dict[str, Maker] = {}
# Modules that register a backend on import; they are imported when it is first used.
_HOMES = {"faulty": "holdfast.faults.backends"}


def register_backend(name: str, maker: Maker) -> None:
    """Register a backend; UsageError if another one has this name."""
    if name == "default" or _makers.get(name, maker) is not maker:
        raise UsageError(f"RPC backend {name!r:.60}: the name is taken")
    _makers[name] = maker


def known_backends() -> tuple[str, ...]:
    """Return the names of all backends."""
    return tuple(sorted({"default", *_HOMES, *_makers}))


def make_transport(name: str, options: Mapping[str, Any]) -> MessageTransport | None:
    """Make the transport of a backend; UsageError lists the known backends. None: the plain one."""
    if not isinstance(options, Mapping):
        raise UsageError(f"options {options!r:.60}: must be a mapping of names to values")
    if name == "default":
        if options:
            raise UsageError(f"RPC backend default: takes no options, got {sorted(options)}")
        return None
    if name not in _makers and name in _HOMES:
        importlib.import_module(_HOMES[name])
    if name not in _makers:
        raise UsageError(
            f"RPC backend {name!r:.60}: unknown; there are {', '.join(known_backends())}"
        )
    return _makers[name](options)
