"""`@dataclass(frozen=True, slots=True)` as the standard library has it, made several times faster.

    from holdfast.records import dataclass

The library compiles six methods for each class, which took half of the time from a command line to
its first worker: there are well over a hundred of these classes. Here `__init__` alone is compiled,
and the other methods are functions that all classes share. What comes of it is a dataclass like any
other (`fields`, `replace`, `match`, pickling), and its instances are made a little faster, too.

All fields of such a class are arguments of `__init__`: no `field(init=False)`, no InitVar. Its
subclasses are made here, too. Classes of other kinds are left to the library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_Class = type[Any]


def _dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False, eq: bool = True
) -> Callable[[_Class], _Class]:
    if frozen and slots and eq:
        return lambda cls: _make(cls, kw_only)
    return dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only, eq=eq)


def _make(cls: _Class, kw_only: bool) -> _Class:
    # Without a text, the library would work out the signature to write one.
    cls.__doc__ = cls.__doc__ or cls.__name__
    own = {name for name, value in vars(cls).items() if value is not None}
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    compared = [field.name for field in dataclasses.fields(cls) if field.compare]
    methods = {
        "__init__": _init_of(cls),
        "__repr__": _repr,
        "__hash__": _hash_of(compared),
        "__eq__": _eq_of(compared),
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
        "__getstate__": _state,
        "__setstate__": _set_state,
    }
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


def _init_of(cls: _Class) -> Callable[..., None]:
    """Compile `__init__`: it puts each argument into its slot."""
    known: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    positional, named, body = ["self"], ["*"], []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        if not field.init:
            raise TypeError(f"{cls.__name__}.{name}: every field must be an argument")
        known[f"set_{name}"] = getattr(cls, name).__set__
        parameter = name
        if field.default is not dataclasses.MISSING:
            known[f"default_{name}"] = field.default
            parameter = f"{name}=default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"make_{name}"] = field.default_factory
            parameter = f"{name}=MISSING"
            value = f"make_{name}() if {name} is MISSING else {name}"
        (named if field.kw_only else positional).append(parameter)
        body.append(f"set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = positional + (named if len(named) > 1 else [])
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"])
    exec(text, known)  # noqa: S102  # names of fields, and nothing else
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _eq_of(names: list[str]) -> Callable[[Any, object], object]:
    values = _values_of(names)

    def equal(self: Any, other: object) -> object:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal


def _hash_of(names: list[str]) -> Callable[[Any], int]:
    values = _values_of(names)
    return lambda self: hash(values(self))


def _repr(self: Any) -> str:
    fields = [field.name for field in dataclasses.fields(self) if field.repr]
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:  # to type checkers it is the one that they know
    from dataclasses import dataclass
else:
    dataclass = _dataclass
