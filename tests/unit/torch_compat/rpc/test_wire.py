"""Payloads: what torch's pickler makes of a value, on its way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.rpc

from holdfast.rpc.values.pickling import dump, load
from holdfast.torch_compat.rpc.wire import arrived, leave, pack, seal, unpack


def sent(payload: Any) -> tuple[Any, int]:
    """Return a payload as it arrives, and how many bytes that took."""
    body, buffers = dump(payload)
    size = len(body) + sum(memoryview(one).nbytes for one in buffers)
    return load(bytes(body), [bytearray(one) for one in buffers]), size


def test_a_value_with_tensors_arrives_whole() -> None:
    value = {"a": [torch.arange(6).reshape(2, 3), "b"], "c": torch.ones(2, requires_grad=True)}
    found = unpack(sent(pack(value))[0])
    assert torch.equal(found["a"][0], value["a"][0])
    assert found["a"][1] == "b"
    assert found["c"].requires_grad
    assert found["c"].is_leaf


def test_a_reference_that_was_left_behind_takes_no_others_place() -> None:
    """Proves WI-1."""
    lost = leave("of a value that could not be pickled")
    mine = leave("mine")
    assert lost != mine
    _, _, references, _ = seal(b"", [])
    assert references is not None
    assert references[mine] == "mine"
    assert seal(b"", []) == (b"", [], None, None)


def test_packing_within_packing_keeps_the_outer_ones_references() -> None:
    outer = leave("outer")
    assert pack(1)[2] is None
    assert seal(b"", [])[2] == {outer: "outer"}


def test_references_are_read_within_a_payload_only() -> None:
    with pytest.raises(RuntimeError, match="only be read as part of an RPC"):
        arrived(0)
