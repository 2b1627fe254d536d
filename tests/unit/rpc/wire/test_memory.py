"""Memory for received buffers: of the right kind, written whole, and used again."""

from __future__ import annotations

import gc
import sys

import pytest

from holdfast.rpc.wire import memory as memories
from holdfast.rpc.wire.codec import AS_BYTEARRAY, AS_BYTES
from holdfast.rpc.wire.memory import POOL_BYTES, landing, memory, pooled_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="maps memory as Linux does")

LARGE = 5_000_000
KINDS = {AS_BYTES: bytes, AS_BYTEARRAY: bytearray}


@pytest.mark.parametrize("size", [1, 1000, POOL_BYTES - 1, POOL_BYTES, 33_554_433])
@pytest.mark.parametrize("kind", [0, AS_BYTES, AS_BYTEARRAY])
def test_a_buffer_lands_in_an_object_of_its_kind(kind: int, size: int) -> None:
    made, view = landing(kind, size)
    view[:] = b"x" * size
    assert made == b"x" * size
    assert type(made) is KINDS.get(kind, bytearray if size < POOL_BYTES else memoryview)
    assert not view.readonly


def test_too_much_is_an_error_at_once() -> None:
    for kind in (0, AS_BYTES, AS_BYTEARRAY):
        with pytest.raises((OSError, MemoryError)):
            landing(kind, 1 << 60)


@pytest.mark.parametrize("size", [0, 1, POOL_BYTES, LARGE])
def test_memory_has_its_size_and_can_be_written(size: int) -> None:
    view = memory(size)
    view[:] = b"x" * size
    assert (view.nbytes, view.format, bytes(view)) == (size, "B", b"x" * size)


@pytest.fixture
def fresh() -> None:
    """Leave nothing in the process's pool, nor to come back to it, of tests before."""
    gc.collect()
    memories._MappingLease.pool._free.clear()


@pytest.mark.usefixtures("fresh")
def test_me1_memory_is_used_again_when_nothing_views_it() -> None:
    view = memory(LARGE)
    part = view[5:10]
    part[:] = b"12345"
    lent = pooled_bytes()
    del view
    assert pooled_bytes() == lent  # a part of it is a view
    other = memory(LARGE)
    other[:] = bytes(LARGE)
    assert bytes(part) == b"12345"
    del other
    del part
    free = pooled_bytes()
    assert free >= lent + LARGE
    again = memory(LARGE)
    assert pooled_bytes() <= free - LARGE
    del again
    assert pooled_bytes() == free


@pytest.mark.usefixtures("fresh")
def test_me1_memory_that_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    views = [memory(LARGE) for _ in range(4)]
    lent = pooled_bytes()
    limit = lent + 3 * LARGE
    monkeypatch.setattr(memories._MappingLease.pool, "_bytes_max", limit)
    views.clear()
    assert lent + LARGE <= pooled_bytes() <= limit
