"""One agent and its workers, over every backend: what they are told, return, and how they fail."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clock import Deadline
from holdfast.errors import WorkersFailed
from holdfast.launch.config import LaunchConfig
from holdfast.launch.entrypoints import make_entrypoint
from holdfast.launch.launcher import elastic_launch, run_job
from holdfast.observe.events import (
    AnyEvent,
    Event,
    JobEnded,
    JobFailed,
    WorkersRestarting,
    WorkersStarted,
)
from holdfast.observe.sinks import MemorySink
from holdfast.process.outcome.failure import Failure
from holdfast.rendezvous.handler import Round
from holdfast.rendezvous.port import HeldPort
from tests.e2e import entrypoints

Alone = Callable[..., LaunchConfig]
C10D = pytest.mark.parametrize("backend", ["c10d"])

SEEN = (
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "ROLE_NAME", "GROUP_RANK", "LOCAL_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
"""What every worker can rely on."""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the tests may have set what these tests are about."""
    for name in list(os.environ):
        if name.startswith(("TORCH", "PET_")):
            monkeypatch.delenv(name)


def told(events: list[Event], *kinds: type[AnyEvent]) -> list[Event]:
    """Return the events of these kinds, in order."""
    return [event for event in events if isinstance(event, kinds)]


# What comes back.


def test_results_by_rank(alone: Alone) -> None:
    assert elastic_launch(alone(2), entrypoints.echo)("foo") == {0: "foo", 1: "foo"}


def test_a_function_that_returns_nothing(alone: Alone) -> None:
    assert elastic_launch(alone(2), entrypoints.nothing)() == {0: None, 1: None}


def test_tensors_come_back(alone: Alone) -> None:
    import torch

    results = elastic_launch(alone(2), entrypoints.random_tensor)()
    assert sorted(results) == [0, 1]
    for tensor in results.values():
        assert isinstance(tensor, torch.Tensor)
        assert tensor.shape == (100, 100)
    assert not torch.equal(results[0], results[1])


def test_gloo_sums_the_ranks(alone: Alone) -> None:
    assert elastic_launch(alone(2), entrypoints.sum_of_ranks)() == {0: 1, 1: 1}


# What a worker is told.


def test_the_environment_of_a_worker(alone: Alone) -> None:
    config = alone(2, role="trainer", max_restarts=3)
    found = elastic_launch(config, entrypoints.variables)()
    for rank, variables in found.items():
        assert [name for name in SEEN if name not in variables] == []
        assert {name: variables[name] for name in SEEN if not name.startswith("MASTER")} == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "trainer",
            "GROUP_RANK": "0",
            "LOCAL_WORLD_SIZE": "2",
            "ROLE_WORLD_SIZE": "2",
            "WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": config.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
        assert int(variables["MASTER_PORT"]) > 0
    assert found[0]["MASTER_ADDR"] == found[1]["MASTER_ADDR"] != ""


def test_a_given_master_is_passed_on_as_it_is(alone: Alone) -> None:
    # An address of documentation, which no host has: the store is left to rank 0.
    config = alone(1, master_addr="192.0.2.1", master_port=42)
    [variables] = elastic_launch(config, entrypoints.variables)().values()
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("192.0.2.1", "42")
    assert variables["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@C10D
@pytest.mark.parametrize(("mine", "told"), [("0", "0"), (None, "1")])
def test_the_users_word_on_nccl_errors_counts(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, mine: str | None, told: str
) -> None:
    if mine is not None:
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", mine)
    [variables] = elastic_launch(alone(1), entrypoints.variables)().values()
    assert variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == told


def test_timers_are_watched_where_the_user_says(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "timers"
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(path))
    assert elastic_launch(alone(1), entrypoints.timer_file)() == {0: (str(path), True)}
    assert not path.exists()


def test_a_timer_file_that_is_not_watched_is_still_told_to_the_worker(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(tmp_path / "timers")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", path)
    assert elastic_launch(alone(1), entrypoints.timer_file)() == {0: (path, False)}


def test_without_timers_a_worker_hears_of_none(alone: Alone) -> None:
    assert elastic_launch(alone(1), entrypoints.timer_file)() == {0: (None, False)}


def test_health_is_answered_while_workers_run(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldPort("0.0.0.0")
    try:
        monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(held.port))
        results = elastic_launch(alone(1), entrypoints.ask_for_health)()
        assert results == {0: (str(held.port), 200)}
    finally:
        held.close()


def test_without_a_health_port_a_worker_hears_of_none(alone: Alone) -> None:
    assert elastic_launch(alone(1), entrypoints.ask_for_health)() == {0: (None, 0)}


# How workers fail.


def test_what_a_worker_raised_reaches_its_launcher(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reply = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(reply))
    with pytest.raises(WorkersFailed, match="sad because it must") as caught:
        elastic_launch(alone(2), entrypoints.fail)()
    error = caught.value
    first = error.failures[0]
    assert isinstance(first, Failure)
    assert (error.name, error.exit_code) == ("fail", 1)
    assert first.rank == first.local_rank
    assert first.rank in {0, 1}
    assert (first.exit.code, first.error_type) == (1, "RuntimeError")
    assert "in fail" in first.traceback
    # The agent's own error file says the same of the first cause.
    said = json.loads(reply.read_text())["message"]
    assert said["message"] == first.message == "RuntimeError: sad because it must"
    assert int(said["extraInfo"]["timestamp"]) == int(first.at)
    assert first.error_data is not None
    assert first.error_data["message"]["message"] == said["message"]


def test_a_job_is_given_up_when_no_restart_is_left(alone: Alone) -> None:
    config, sink = alone(4, max_restarts=2), MemorySink()
    with pytest.raises(WorkersFailed) as caught:
        run_job(config, make_entrypoint(entrypoints.fail_on_odd_ranks), sink=sink)
    starts = [event for event in sink.events if isinstance(event, WorkersStarted)]
    assert [(event.ranks, event.restarts) for event in starts] == [
        ((0, 1, 2, 3), 0),
        ((0, 1, 2, 3), 1),
        ((0, 1, 2, 3), 2),
    ]
    assert len({pid for event in starts for pid in event.pids}) == 12
    assert len(told(sink.events, WorkersRestarting)) == 2
    assert {failure.rank for failure in caught.value.failures} <= {1, 3}
    assert "failure 3 of the job, 2 restarts are allowed: giving up" in str(caught.value)
    [end] = told(sink.events, JobEnded, JobFailed)
    assert isinstance(end, JobFailed)
    assert end.ending == "failed"


@C10D
def test_all_workers_are_restarted_when_one_was_killed(alone: Alone) -> None:
    import torch

    sink = MemorySink()
    entrypoint = make_entrypoint(entrypoints.die_once_on_rank_one)
    results = run_job(alone(2, max_restarts=3), entrypoint, sink=sink)
    assert {rank: tensor.shape for rank, tensor in results.items()} == {
        0: torch.Size([100, 100]),
        1: torch.Size([100, 100]),
    }
    starts = [event for event in sink.events if isinstance(event, WorkersStarted)]
    assert [event.restarts for event in starts] == [0, 1]
    assert set(starts[0].pids).isdisjoint(starts[1].pids)


# How it ends.


def test_a_broken_exit_barrier_does_not_fail_the_job(alone: Alone) -> None:
    calls = []

    def broken(here: Round, stopped: Callable[[], bool], deadline: Deadline) -> None:
        calls.append(here.number)
        raise RuntimeError("test error")

    sink = MemorySink()
    entrypoint = make_entrypoint(entrypoints.nothing)
    assert run_job(alone(1), entrypoint, exit_barrier=broken, sink=sink) == {0: None}
    assert calls == [1]
    [end] = told(sink.events, JobEnded, JobFailed)
    assert isinstance(end, JobEnded)
    assert (end.ending, "test error" in end.reason) == ("succeeded", True)


def test_nothing_of_a_group_is_left_when_it_is_done(alone: Alone, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    fd = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        [child] = elastic_launch(alone(1), entrypoints.leave_a_child)(str(held)).values()
        assert child > 0
        # Every process that had it open to write is gone, or it would not be at its end.
        assert os.read(fd, 1) == b""
    finally:
        os.close(fd)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@C10D
def test_every_way_to_start_a_function(alone: Alone, method: str) -> None:
    results = elastic_launch(alone(2, start_method=method), entrypoints.process_and_parent)()
    pids = {pid for pid, _ in results.values()}
    assert len(pids - {os.getpid()}) == 2
    parents = {parent for _, parent in results.values()}
    assert (parents == {os.getpid()}) is (method != "forkserver")
