"""The requests of torch's protocol as data: all of them, comparable and unchangeable."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from holdfast.store.c10d import messages as c10d
from tests.unit.store.c10d.vectors import VECTORS


def test_every_kind_of_request_was_recorded() -> None:
    recorded = {type(request) for vector in VECTORS for request in vector.requests}
    assert recorded == set(get_args(c10d.Request))
    assert len(recorded) == 19


def test_requests_are_values() -> None:
    assert c10d.Set(b"k", b"v") == c10d.Set(b"k", b"v")
    assert len({c10d.Get(b"k"), c10d.Get(b"k"), c10d.Delete(b"k")}) == 2
    with pytest.raises(FrozenInstanceError):
        c10d.Get(b"k").key = b"x"  # type: ignore[misc]
