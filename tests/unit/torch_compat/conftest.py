"""What agents by torch's names teach core is forgotten after each test: others test core alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.rpc.values import pickling


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = dict(pickling._taught)
    yield
    pickling._taught.clear()
    pickling._taught.update(before)
    pickling._cached = (0, 0, {})
