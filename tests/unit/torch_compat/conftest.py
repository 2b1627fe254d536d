"""What agents by torch's names teach core is forgotten after each test: others test core alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.rpc import serialize


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = dict(serialize._taught)
    yield
    serialize._taught.clear()
    serialize._taught.update(before)
    serialize._cached = (0, 0, {})
