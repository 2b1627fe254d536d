"""What is called at the other process, by every subject of the RPC measurements."""

from __future__ import annotations

import functools
import pickle
import time
from typing import Any

__all__ = [
    "answer",
    "array",
    "arrived",
    "asked",
    "block",
    "nothing",
    "nothing_with",
    "same",
    "small",
    "tiny",
]


def nothing(*_: object) -> None:
    """Do nothing, with whatever is given."""


def nothing_with(**_: object) -> None:
    """Do nothing, with whatever is given by name."""


def block(seconds: float) -> None:
    """Block without the interpreter lock, as a disk does, or a kernel that computes."""
    time.sleep(seconds)


def same(value: Any) -> Any:
    return value


@functools.cache
def array(library: str, size: int) -> Any:
    """Return so many bytes as an array of numpy or a tensor of torch, the same one each time.

    Noise, because pages of zeros take no memory, and compress well.
    """
    import numpy as np

    noise = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    return _as(library, noise)


@functools.cache
def small(library: str) -> Any:
    """Return a 2 by 2 matrix of floats."""
    import numpy as np

    return _as(library, np.ones((2, 2), dtype=np.float32))


def tiny() -> Any:
    """Return an array of four numbers."""
    import numpy as np

    return np.arange(4, dtype=np.float64)


def _as(library: str, value: Any) -> Any:
    if library == "numpy":
        return value
    import torch

    return torch.from_numpy(value).clone()  # by its own allocator


# For subjects that carry bytes only.


def asked(function: Any, args: tuple[Any, ...]) -> bytes:
    return pickle.dumps((function, args), 5)


def answer(request: bytes) -> bytes:
    function, args = pickle.loads(request)
    return pickle.dumps(function(*args), 5)


def arrived(reply: bytes) -> Any:
    return pickle.loads(reply)
