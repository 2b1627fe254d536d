"""Workers by name: what a name may be, and the pair of name and number."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.errors import UsageError

__all__ = ["ID_MAX", "NAME_MAX", "WorkerInfo"]

NAME_MAX = 128
ID_MAX = (1 << 15) - 1
_NAME = re.compile(r"[A-Za-z0-9\-_:]+")


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker: its name, unique in the job, and its number."""

    name: str
    id: int

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) >= NAME_MAX:
            raise UsageError(
                "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than "
                f"{NAME_MAX} chars, but got {name!s:.200}"
            )
        if type(self.id) is not int or not -ID_MAX - 1 <= self.id <= ID_MAX:
            raise UsageError(f"RPC worker id {self.id!s:.40} out of bound of int16_t.")

    def __str__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"

    __repr__ = __str__
