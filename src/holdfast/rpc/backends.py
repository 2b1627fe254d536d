"""What carries messages, by name; open to others.

A backend is a function that makes a `CallTransport` from its options. Faults are one: they register
themselves, so that nothing here knows of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from holdfast.errors import UsageError
from holdfast.rpc.client.transport import CallTransport, Direct

__all__ = ["Maker", "known_backends", "make_transport", "register_backend"]

Maker: TypeAlias = Callable[[Mapping[str, Any]], CallTransport]

_makers: dict[str, Maker] = {}
# Modules that register a backend when they are imported, which is when it is first asked for.
_HOMES = {"faulty": "holdfast.faults.backends"}


def register_backend(name: str, maker: Maker) -> None:
    """Make a backend known; UsageError if the name is taken by another."""
    if name == "default" or _makers.get(name, maker) is not maker:
        raise UsageError(f"RPC backend {name!r:.60}: the name is taken")
    _makers[name] = maker


def known_backends() -> tuple[str, ...]:
    """Return the names that can be used."""
    return tuple(sorted({"default", *_HOMES, *_makers}))


def make_transport(name: str, options: Mapping[str, Any]) -> CallTransport:
    """Make the transport of a backend; UsageError names what is known."""
    if not isinstance(options, Mapping):
        raise UsageError(f"options {options!r:.60}: must be a mapping of names to values")
    if name == "default":
        if options:
            raise UsageError(f"RPC backend default: takes no options, got {sorted(options)}")
        return Direct()
    if name not in _makers and name in _HOMES:
        importlib.import_module(_HOMES[name])
    if name not in _makers:
        raise UsageError(
            f"RPC backend {name!r:.60}: unknown; there are {', '.join(known_backends())}"
        )
    return _makers[name](options)
