"""What a subject of the RPC measurements is: two processes, and calls from one to the other.

They meet in an empty folder, which is all that they are told.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

__all__ = ["Caller", "Function", "Subject"]

Function = Callable[..., Any]


class Caller(Protocol):
    """Calls the callee, for one thread."""

    def call(self, function: Function, *args: Any) -> Any:
        """Return what the function returned over there."""

    def start(self, function: Function, *args: Any) -> Callable[[], object]:
        """Begin a call; return what waits for it. Calls are waited for in their order."""


class Subject:
    """What is measured. One process serves; another connects and asks for callers."""

    label: ClassVar[str]
    module: ClassVar[str]
    """It has to be installed."""
    library: ClassVar[str] = "numpy"
    """Whose arrays are sent: torch's by subjects that know them; others send numpy's faster."""
    megabytes_max: ClassVar[int] = 256
    """Larger arrays would take it seconds."""
    measures: ClassVar[tuple[str, ...]] = ("no-op", "matrix", "pipelined", "callers", "large")

    @classmethod
    def installed(cls) -> bool:
        return importlib.util.find_spec(cls.module) is not None

    def serve(self, folder: Path, ready: Callable[[], None]) -> None:
        """Answer calls, in this thread or in others; say `ready` when one may connect."""
        ready()

    def connect(self, folder: Path) -> None:
        """Do once what all callers need."""

    def caller(self) -> Caller:
        """Return a caller for this thread: itself, where threads may share one."""
        return self

    def call(self, function: Function, *args: Any) -> Any:
        raise NotImplementedError

    def start(self, function: Function, *args: Any) -> Callable[[], object]:
        raise NotImplementedError

    def close(self) -> None:
        """End what would outlive this process."""
