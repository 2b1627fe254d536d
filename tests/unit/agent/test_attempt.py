"""The workers of one round on one node: what they are given, and what they leave."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.agent.attempt import Attempt, Membership, Report
from holdfast.agent.job import Job
from holdfast.agent.roles import NodeInfo, divide
from holdfast.process.output.logs import AttemptLogs, RunLogs
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import Function, Launch, Program
from holdfast.rendezvous.handler import Round
from holdfast.store.memory import MemoryStore
from tests.unit.agent.troupe import PlayedGroup, a_job

NODES = (NodeInfo("trainer", 1), NodeInfo("trainer", 2))


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


@pytest.fixture
def logs() -> Iterator[RunLogs]:
    logs = RunLogs(LogOptions(), "job")
    logs.open()
    yield logs
    logs.close()


def membership(store: MemoryStore, **changes: Any) -> Membership:
    given: dict[str, Any] = {
        "number": 4,
        "rank": 1,
        "world_size": 2,
        "store": store,
        "board": store,
        "master_address": "127.0.0.1",
        "master_port": 29500,
        "members": (),
        "reason": "",
        "failures": 2,
    }
    here = Round(**given | changes)
    return Membership(here, divide(NODES)[here.rank], True)


def attempt(job: Job, where: Membership, logs: RunLogs) -> tuple[Attempt, PlayedGroup]:
    groups: list[PlayedGroup] = []

    def make(launches: Sequence[Launch], _: AttemptLogs, report: Report) -> PlayedGroup:
        groups.append(PlayedGroup(launches, report))
        return groups[0]

    return Attempt(job, 3, where, logs, make, lambda event: None), groups[0]


def test_each_worker_gets_its_ranks_its_folder_and_its_arguments(
    store: MemoryStore, logs: RunLogs
) -> None:
    job = a_job(entrypoint=Program("work", ("--gpu=${local_rank}",)))
    made, group = attempt(job, membership(store), logs)
    made.start()
    assert [launch.rank for launch in group.launches] == [1, 2]
    assert [launch.entrypoint.args for launch in group.launches] == [("--gpu=0",), ("--gpu=1",)]
    environment = group.launches[1].environment
    assert environment["RANK"] == "2"
    assert environment["LOCAL_RANK"] == "1"
    assert environment["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert environment["TORCHELASTIC_MAX_RESTARTS"] == "1"
    assert environment["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert environment["MASTER_PORT"] == "29500"
    folders = {launch.folder for launch in group.launches}
    assert len(folders) == 2
    assert all(folder.is_dir() and "attempt_3" in str(folder) for folder in folders)
    assert made.pids() == {0: 1000, 1: 1001}
    assert made.results() == {}  # it is no function
    assert made.close() == ()


def test_a_given_master_replaces_that_of_the_round(store: MemoryStore, logs: RunLogs) -> None:
    job = a_job(master_address="gpu-7", master_port=1234)
    made, group = attempt(job, membership(store), logs)
    environment = group.launches[0].environment
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("gpu-7", "1234")
    made.close()


def test_what_functions_returned_comes_back_by_rank(store: MemoryStore, logs: RunLogs) -> None:
    made, group = attempt(a_job(entrypoint=Function(print, (1,))), membership(store), logs)
    for launch in group.launches:
        launch.result_file.write_bytes(pickle.dumps(launch.rank * 10))
    assert made.results() == {1: 10, 2: 20}
    made.close()
