"""One agent of torch's kind and its workers, over every backend."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import (
    TORCHELASTIC_HEALTH_CHECK_PORT,
    TORCHELASTIC_TIMER_FILE,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from holdfast.rendezvous.port import HeldPort
from tests.e2e import entrypoints
from tests.e2e.test_agent_single import SEEN
from tests.e2e.torch_compat import workers
from tests.e2e.torch_compat.agents import Node

Single = Callable[..., Node]
C10D = pytest.mark.parametrize("backend", ["c10d"])
NCCL = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@pytest.fixture
def single(backend: str, endpoint: str, log_dir: str) -> Single:
    """Make a node that is alone: `single(entrypoint, workers, **more)`."""

    def make(entrypoint: Callable[..., Any], workers: int = 1, **more: Any) -> Node:
        return Node(entrypoint, workers, backend, endpoint, log_dir, **more)

    return make


# What comes back.


def test_tensors_come_back(single: Single) -> None:
    (tensor,) = single(entrypoints.random_tensor).returned().values()
    assert isinstance(tensor, torch.Tensor)
    assert tensor.shape == (100, 100)


def test_a_function_that_returns_nothing(single: Single) -> None:
    assert single(entrypoints.nothing, 2).returned() == {0: None, 1: None}


def test_results_by_rank(single: Single) -> None:
    assert single(entrypoints.echo, 2, args=("foo",)).returned() == {0: "foo", 1: "foo"}


def test_gloo_sums_the_ranks(single: Single) -> None:
    assert single(entrypoints.sum_of_ranks, 2).returned() == {0: 1, 1: 1}


# What workers are told.


def test_the_environment_of_a_worker(single: Single) -> None:
    (seen,) = single(entrypoints.variables).returned().values()
    assert not [name for name in SEEN if name not in seen]


def test_a_given_master_is_passed_on_as_it_is(single: Single) -> None:
    (seen,) = single(entrypoints.variables, master=("test_host", 42)).returned().values()
    assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("test_host", "42")


@C10D
@pytest.mark.parametrize(("said", "heard"), [("0", "0"), (None, "1")])
def test_the_users_word_on_nccl_errors_counts(
    single: Single, monkeypatch: pytest.MonkeyPatch, said: str | None, heard: str
) -> None:
    if said is not None:
        monkeypatch.setenv(NCCL, said)
    (seen,) = single(entrypoints.variables).returned().values()
    assert seen[NCCL] == heard


@C10D
def test_the_agents_store_is_the_workers_unless_the_user_says_no(
    single: Single, monkeypatch: pytest.MonkeyPatch
) -> None:
    (seen,) = single(entrypoints.variables).returned().values()
    assert seen["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    (seen,) = single(entrypoints.variables).returned().values()
    assert seen["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_a_worker_knows_the_timer_file_of_the_user(
    single: Single, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(tmp_path / "timers")
    monkeypatch.setenv(TORCHELASTIC_TIMER_FILE, path)
    assert single(entrypoints.timer_file).returned() == {0: (path, False)}


@C10D
def test_a_worker_that_outlasts_its_timer_is_ended(
    single: Single, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(TORCHELASTIC_TIMER_FILE, str(tmp_path / "timers"))
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    with pytest.raises(ChildFailedError) as caught:
        single(workers.stay_longer_than_announced).result()
    assert caught.value.failures[0].signal_name() == "SIGKILL"
    assert "timer" in caught.value.failures[0].message


def test_without_timers_a_worker_hears_of_none(single: Single) -> None:
    assert single(entrypoints.timer_file).returned() == {0: (None, False)}


def test_health_is_answered_while_workers_run(
    single: Single, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldPort("127.0.0.1")  # until the end: the server can bind it all the same
    monkeypatch.setenv(TORCHELASTIC_HEALTH_CHECK_PORT, str(held.port))
    assert single(entrypoints.ask_for_health).returned() == {0: (str(held.port), 200)}
    held.close()


def test_without_a_health_port_a_worker_hears_of_none(single: Single) -> None:
    assert single(entrypoints.ask_for_health).returned() == {0: (None, 0)}


# What goes wrong.


def test_what_a_worker_raised_reaches_the_caller_of_the_agent(
    single: Single, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reply = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(reply))
    with pytest.raises(ChildFailedError) as caught:
        single(entrypoints.fail, 2).result()
    rank, failure = caught.value.get_first_failure()
    told = json.loads(reply.read_text())["message"]
    assert rank in {0, 1}
    assert failure.local_rank == rank
    assert failure.exitcode == 1
    assert told["message"] == failure.error_file_data["message"]["message"]
    assert told["message"] == "RuntimeError: sad because it must"
    assert int(told["extraInfo"]["timestamp"]) == failure.timestamp


def test_an_agent_gives_up_when_no_restart_is_left(single: Single) -> None:
    agent = single(entrypoints.fail_on_odd_ranks, 4, max_restarts=2).make_agent()
    result = agent.run()
    assert result.is_failed()
    assert set(result.failures) <= {1, 3}
    assert agent._remaining_restarts == 0
    assert agent.get_worker_group().state == WorkerState.FAILED
    assert agent._total_execution_time > 0
    agent.get_worker_group().spec.rdzv_handler.shutdown()


@C10D
def test_all_workers_are_restarted_when_one_was_killed(single: Single) -> None:
    returned = single(workers.die_once_on_rank_one, 2, max_restarts=3).returned()
    assert returned == {0: 1, 1: 1}


@C10D
def test_a_killed_worker_is_told_as_such(single: Single) -> None:
    with pytest.raises(ChildFailedError) as caught:
        single(workers.die_once_on_rank_one, 2).result()
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.exitcode, failure.signal_name()) == (1, -9, "SIGKILL")
    assert failure.message.startswith(f"Signal 9 (SIGKILL) received by PID {failure.pid}")
    assert set(caught.value.failures) == {1}


@C10D
def test_nothing_of_a_worker_is_left(single: Single, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reading = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        single(entrypoints.leave_a_child, args=(str(held),)).returned()
        assert os.read(reading, 1) == b""  # no process holds the other end
    finally:
        os.close(reading)


# What programs and tests replace by name.


def test_a_broken_exit_barrier_does_not_fail_the_job(
    single: Single, caplog: pytest.LogCaptureFixture
) -> None:
    with patch("torch.distributed.elastic.utils.store.barrier", side_effect=OSError) as barrier:
        assert single(entrypoints.nothing).returned() == {0: None}
    barrier.assert_called_once()
    barrier.reset_mock()  # it holds the store, as does what was logged
    caplog.clear()


def test_processes_that_were_started_are_closed_once(single: Single) -> None:
    context = Mock()
    context.pids.return_value = {0: 0}
    where = "torch.distributed.elastic.agent.server.local_elastic_agent.start_processes"
    with patch(where, return_value=context):
        agent = single(entrypoints.nothing).make_agent()
        with patch.object(agent, "_monitor_workers") as monitor:
            monitor.return_value = RunResult(WorkerState.SUCCEEDED, return_values={0: 0})
            assert agent.run("worker").return_values == {0: 0}
    context.pids.assert_called()
    context.close.assert_called_once()
    agent.get_worker_group().spec.rdzv_handler.shutdown()


class Trivial(SimpleElasticAgent):  # type: ignore[misc]  # it is torch's
    """An agent of a program's own, whose workers are done at once."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        return {worker.local_rank: worker.global_rank for worker in worker_group.workers}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        pass

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        ids = {worker.global_rank: worker.id for worker in worker_group.workers}
        return RunResult(WorkerState.SUCCEEDED, return_values=ids)

    def _shutdown(self, death_sig: Any = None, timeout: int = 30) -> None:
        pass


def test_an_agent_of_ones_own(single: Single) -> None:
    spec = single(entrypoints.nothing, 2).make_agent().get_worker_group().spec
    assert Trivial(spec).run().return_values == {0: 0, 1: 1}
    spec.rdzv_handler.shutdown()
