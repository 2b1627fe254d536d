"""Fixtures: one empty space of each backend for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast.store.store import Store
from tests.contract.backends import BACKENDS, Backend, Opener, Spaces


class Space:
    """One shared space: opens clients of it, and closes them at the end."""

    def __init__(self, backend: Backend, opener: Opener, stack: ExitStack) -> None:
        self.backend = backend
        self._opener = opener
        self._stack = stack

    def open(self) -> Store:
        return self._stack.enter_context(self._opener())

    def needs_atomic_multi_set(self) -> None:
        if not self.backend.atomic_multi_set:
            pytest.skip(f"{self.backend.name} writes the keys of a multi_set one by one")

    def needs_atomic_guards(self) -> None:
        if not self.backend.atomic_guards:
            pytest.skip(f"{self.backend.name} looks at a guard before the write, not with it")


@pytest.fixture(scope="session", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    found = request.param
    assert isinstance(found, Backend)
    return found


@pytest.fixture(scope="session")
def spaces(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spaces]:
    with backend.serve(tmp_path_factory.mktemp("contract")) as made:
        yield made


@pytest.fixture
def space(backend: Backend, spaces: Spaces) -> Iterator[Space]:
    with spaces() as opener, ExitStack() as stack:
        yield Space(backend, opener, stack)


@pytest.fixture
def store(space: Space) -> Store:
    return space.open()


@pytest.fixture
def other(space: Space, store: Store) -> Store:
    """A second client of the same space."""
    return space.open()
