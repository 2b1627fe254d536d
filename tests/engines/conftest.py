"""Fixtures of the tests of engines: hosts, made once for each module, and a fresh shared folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.e2e.jobs import Bell
from tests.engines.hosts import Hosts, made_hosts, serving_ssh
from tests.engines.slurm import Slurm, made_slurm


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three nodes that are reached by ssh."""
    folder = tmp_path_factory.mktemp("hosts") / "all"
    with made_hosts(["a", "b", "c"], folder) as hosts, serving_ssh(hosts):
        yield hosts


@pytest.fixture(scope="module")
def slurm_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The two nodes of a Slurm."""
    with made_hosts(["n1", "n2"], tmp_path_factory.mktemp("hosts") / "all") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def slurm(slurm_hosts: Hosts) -> Iterator[Slurm]:
    """The Slurm itself."""
    with made_slurm(slurm_hosts) as made:
        yield made


@pytest.fixture
def bell(request: pytest.FixtureRequest) -> Iterator[Bell]:
    """A bell that workers on all hosts can ring; nothing is left of an earlier test there."""
    hosts: Hosts = request.getfixturevalue(request.module.HOSTS)
    for path in hosts.shared.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with Bell(hosts.shared / "bell") as made:
        yield made
