"""Fixtures of the tests with whole jobs: one etcd for all of them, and the backends in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.launch.config import LaunchConfig
from holdfast.store.etcd.local_server import LocalEtcdServer
from tests.e2e.jobs import BACKENDS, Job, job_over, single


@pytest.fixture(scope="session")
def etcd() -> Iterator[str]:
    with LocalEtcdServer() as server:
        yield ",".join(map(str, server.addresses))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def alone(backend: str, etcd: str) -> Callable[..., LaunchConfig]:
    """Make configurations of one node: `alone(workers, **more)`."""

    def make(workers: int, **more: Any) -> LaunchConfig:
        return single(backend, etcd, workers, **more)

    return make


@pytest.fixture
def job(backend: str, etcd: str, tmp_path: Path) -> Iterator[Job]:
    """A job of several agents."""
    with job_over(backend, etcd, tmp_path) as made:
        yield made
