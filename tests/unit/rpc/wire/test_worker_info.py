"""Workers' names and numbers: what is allowed, in the seed's words."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc.wire.worker_info import WorkerInfo


def test_a_worker_prints_its_number_and_name() -> None:
    info = WorkerInfo("w0", 0)
    assert str(info) == repr(info) == "WorkerInfo(id=0, name=w0)"
    assert info == WorkerInfo("w0", 0) != WorkerInfo("w0", 1)
    assert pickle.loads(pickle.dumps(info)) == info


@pytest.mark.parametrize("name", ["a", "A-b_c:9", "-", "x" * 127])
def test_a_good_name(name: str) -> None:
    assert WorkerInfo(name, 1).name == name


@pytest.mark.parametrize("name", ["", "a b", "ü", "a.b", "a\n", "x" * 128, "\u0661", None, 3])
def test_a_bad_name(name: Any) -> None:
    with pytest.raises(UsageError) as caught:
        WorkerInfo(name, 1)
    assert str(caught.value) == (
        "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 "
        f"chars, but got {name}"
    )


@pytest.mark.parametrize("number", [0, 32767, -32768])
def test_a_good_number(number: int) -> None:
    assert WorkerInfo("w", number).id == number


@pytest.mark.parametrize("number", [32768, -32769, 1.0, True, None, "1"])
def test_a_bad_number(number: Any) -> None:
    with pytest.raises(UsageError) as caught:
        WorkerInfo("w", number)
    assert str(caught.value) == f"RPC worker id {number} out of bound of int16_t."
