"""torch's agent, where it has more to do over our rounds."""

from __future__ import annotations

import signal
from typing import Any
from unittest.mock import Mock, patch

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from holdfast.agent.roles import NodeInfo, divide
from holdfast.torch_compat.elastic.agent import LocalElasticAgent
from holdfast.torch_compat.elastic.rendezvous import HoldfastRendezvousHandler, RoundEndedEarly


def nothing() -> None:
    return


def make(handler: Any) -> LocalElasticAgent:
    spec = WorkerSpec("role", 2, handler, entrypoint=nothing, monitor_interval=0.01, max_restarts=0)
    return LocalElasticAgent(spec, logs_specs=Mock())


def our_handler() -> Any:
    handler = Mock(spec=HoldfastRendezvousHandler)
    where = RendezvousStoreInfo("127.0.0.1", 1)
    handler.next_rendezvous.return_value = RendezvousInfo(HashStore(), 0, 1, where)
    handler.exchange.return_value = divide((NodeInfo("role", 2),))[0].worker_ranks()
    handler.get_run_id.return_value = "unit"
    handler.get_backend.return_value = "c10d"
    handler.num_nodes_waiting.return_value = 0
    return handler


def run(agent: LocalElasticAgent, *results: RunResult | Exception) -> RunResult:
    """Run it with workers of which this is seen."""
    with (
        patch.object(agent, "_start_workers", return_value={0: 7, 1: 8}),
        patch.object(agent, "_monitor_workers", side_effect=results),
    ):
        return agent.run()


def test_it_is_torchs_agent() -> None:
    assert issubclass(LocalElasticAgent, SimpleElasticAgent)


def test_ranks_come_from_our_round_and_a_round_that_is_over_is_followed_by_the_next() -> None:
    """TA-1 and TA-4."""
    handler = our_handler()
    ranks = handler.exchange.return_value
    handler.exchange.side_effect = [RoundEndedEarly, ranks]
    agent = make(handler)
    done = RunResult(WorkerState.SUCCEEDED, return_values={0: 0, 1: 1})
    assert run(agent, done) is done
    assert handler.next_rendezvous.call_count == 2
    assert [worker.global_rank for worker in agent.get_worker_group().workers] == [0, 1]
    handler.finish.assert_called_once_with()
    handler.fail.assert_not_called()
    assert agent._total_execution_time >= 1  # seconds, rounded up: of a run as slow as it likes


def test_a_run_that_has_ended_does_not_fail_a_node_that_is_done() -> None:
    handler = our_handler()
    handler.finish.side_effect = RendezvousClosedError("over")
    done = RunResult(WorkerState.SUCCEEDED, return_values={0: 0, 1: 1})
    assert run(make(handler), done) is done


@pytest.mark.parametrize(
    "message", ["first\nsecond", {"message": "first\nsecond", "extraInfo": {}}]
)
def test_ta2_when_it_gives_up_all_nodes_hear_the_first_cause(message: Any) -> None:
    handler = our_handler()
    failure = ProcessFailure(local_rank=1, pid=8, exitcode=1, error_file="")
    failure.message = message
    result = run(make(handler), RunResult(WorkerState.FAILED, failures={1: failure}))
    assert result.is_failed()
    ((reason,), _) = handler.fail.call_args
    assert reason.startswith("rank 1 failed on ")
    assert reason.endswith(": first")


def test_ta3_a_signal_makes_it_leave_the_run() -> None:
    handler = our_handler()
    with pytest.raises(SignalException):
        run(make(handler), SignalException("told", signal.SIGTERM))
    handler.leave.assert_called_once_with()
    handler.shutdown.assert_not_called()


def test_a_handler_of_another_package_is_used_as_torch_does() -> None:
    handler = our_handler()
    strange = Mock(spec=["next_rendezvous", "num_nodes_waiting", "get_run_id", "get_backend"])
    strange.next_rendezvous.return_value = handler.next_rendezvous.return_value
    strange.num_nodes_waiting.return_value = 0
    strange.get_run_id.return_value = strange.get_backend.return_value = "strange"
    agent = make(strange)
    failed = ProcessFailure(local_rank=0, pid=7, exitcode=1, error_file="")
    assert run(agent, RunResult(WorkerState.FAILED, failures={0: failed})).is_failed()
    assert [worker.global_rank for worker in agent.get_worker_group().workers] == [0, 1]
    with pytest.raises(SignalException):
        run(make(strange), SignalException("told", signal.SIGTERM))
    done = RunResult(WorkerState.SUCCEEDED, return_values={0: 0, 1: 1})
    assert run(make(strange), done) is done
