"""Values as JSON, and back: records, enums, errors, containers, and the objects of a machine.

A value is written with the name of its class beside its fields, and read back only if a `Codec`
knows a class of that name. JSON's own lists stand for tuples, since records hold tuples; lists,
sets and dicts, which a machine's state holds, have tags of their own.

Guarantees
    OB-2  What is read back equals what was written, and its containers are of the same types.
    OB-3  A field declared with `repr=False` is a secret, or bulk: it is not written. It comes back
          as its default, or as HIDDEN if it has none.
    OB-7  Reading takes classes that it was given, and nothing else; whatever else is wrong with
          what is read is one UsageError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from holdfast import errors
from holdfast.errors import HoldfastError, UsageError
from holdfast.observe.recorder import Part

__all__ = ["HIDDEN", "Codec"]

HIDDEN = "(hidden)"

_ERRORS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HoldfastError)
}


class Codec:
    """Writes and reads values of these classes, of these objects that change, these functions.

    Errors of holdfast, containers and JSON's own types are always known.
    """

    def __init__(
        self,
        types: Iterable[type],
        parts: Iterable[type] = (),
        functions: Iterable[Callable[..., object]] = (),
    ) -> None:
        self._types: dict[str, Any] = {kind.__name__: kind for kind in types}
        self._parts = {kind.__name__: kind for kind in parts}
        self._functions = {function.__name__: function for function in functions}

    def encode(self, value: object) -> object:
        """Return a value as JSON's types. UsageError if it holds what is not known."""
        match value:
            case Enum():
                return {"$type": self._name(value), "name": value.name}
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else {"$float": str(value)}
            case bytes():
                return _encode_bytes(value)
            case dict():
                pairs = [[self.encode(key), self.encode(item)] for key, item in value.items()]
                return {"$map": pairs}
            case set():
                return {"$set": sorted(map(self.encode, value), key=repr)}
            case list():
                return {"$list": [self.encode(item) for item in value]}
            case tuple() if hasattr(value, "_fields"):
                return self._named(self._name(value), zip(value._fields, value, strict=True))
            case tuple():
                return [self.encode(item) for item in value]
            case HoldfastError():
                return self._encode_error(value)
            case Part(kind, attributes) if kind in self._parts.values():
                return self._named(kind.__name__, attributes.items())
            case _ if is_dataclass(value) and not isinstance(value, type):
                shown = [field.name for field in fields(value) if field.repr]
                return self._named(
                    self._name(value), ((name, getattr(value, name)) for name in shown)
                )
            case _ if value in self._functions.values():
                return {"$function": value.__name__}  # type: ignore[attr-defined]
        raise _unknown(value)

    def decode(self, plain: object) -> Any:
        """Return the value that was encoded. UsageError says what cannot be read (OB-7)."""
        try:
            return self._decode(plain)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UsageError(f"{type(error).__name__}: {error}") from None

    def _named(self, name: str, items: Iterable[tuple[str, object]]) -> dict[str, object]:
        return {"$type": name} | {key: self.encode(item) for key, item in items}

    def _name(self, value: object) -> str:
        name = type(value).__name__
        if self._types.get(name) is not type(value):
            raise _unknown(value)
        return name

    def _encode_error(self, error: HoldfastError) -> dict[str, object]:
        """Write an error as the class of the tree that it is, which is what machines look at."""
        kind = next(base for base in type(error).__mro__ if base in _ERRORS.values())
        own = vars(error).items()
        known = {name: self.encode(item) for name, item in own if not name.startswith("_")}
        return {"$error": kind.__name__, "text": str(error), "fields": known}

    def _decode(self, plain: object) -> Any:
        if isinstance(plain, list):
            return tuple(map(self._decode, plain))
        if not isinstance(plain, dict):
            return plain
        match plain:
            case {"$float": text}:
                return float(text)
            case {"$text": text}:
                return text.encode()
            case {"$bytes": digits}:
                return bytes.fromhex(digits)
            case {"$map": pairs}:
                return {self._decode(key): self._decode(item) for key, item in pairs}
            case {"$set": held}:
                return set(map(self._decode, held))
            case {"$list": held}:
                return list(map(self._decode, held))
            case {"$function": name}:
                return self._functions[name]
            case {"$error": name, "text": text, "fields": own}:
                known = {key: self._decode(item) for key, item in own.items()}
                return _ERRORS[name](text, **known)
            case {"$type": name, **items}:
                return self._build(name, items)
        raise UsageError(f"{plain!r:.80} is no value that was recorded")

    def _build(self, name: str, items: dict[str, object]) -> Any:
        if name in self._parts:
            part: Any = object.__new__(self._parts[name])
            for key, item in items.items():
                setattr(part, key, self._decode(item))
            return part
        kind = self._types.get(name)
        if kind is None:
            raise UsageError(f"{name!r:.80} is no class that is recorded")
        if issubclass(kind, Enum):
            return kind[items["name"]]
        own = {key: self._decode(item) for key, item in items.items()}
        if is_dataclass(kind):
            own |= {field.name: HIDDEN for field in fields(kind) if _must_be_given(field)}
        return kind(**own)


def _must_be_given(field: Field[Any]) -> bool:
    defaults = (field.default, field.default_factory)
    return not field.repr and all(default is MISSING for default in defaults)


def _encode_bytes(value: bytes) -> dict[str, object]:
    try:
        return {"$text": value.decode()}
    except UnicodeDecodeError:
        return {"$bytes": value.hex()}


def _unknown(value: object) -> UsageError:
    return UsageError(f"value {value!r:.80}: a {type(value).__name__} cannot be recorded")
