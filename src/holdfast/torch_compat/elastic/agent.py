"""torch's agent of one node, with our rounds and our processes under it.

The loop is torch's: it starts workers, looks after them, and decides about restarts, by methods
that programs and tests replace. What is added is what only our rounds can do: ranks that are
agreed upon by nodes which may die meanwhile, a node that is done and need not be waited for, a
failure that all nodes hear of, a signal that ends this node and no other.

Guarantees
    TA-1  A node that dies while ranks are agreed upon costs a round, not the job.
    TA-2  When a node gives up, the run is over for all, and its first cause is what they hear.
    TA-3  A node that is asked to end by a signal leaves the run, which goes on without it.
    TA-4  A run has taken some time: `_total_execution_time` is at least 1.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from typing import Any

from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
)
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError

from holdfast.clock import SYSTEM_CLOCK
from holdfast.torch_compat.elastic.rendezvous import HoldfastRendezvousHandler, RoundEndedEarly

__all__ = ["LocalElasticAgent"]

_log = logging.getLogger("holdfast.torch_compat")


class LocalElasticAgent(local_elastic_agent.LocalElasticAgent):  # type: ignore[misc]
    """Supervises the workers of this node."""

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Do the job, and say how it ended."""
        begun = SYSTEM_CLOCK.monotonic()
        try:
            result = super().run(role)
        except SignalException:
            self._leave()
            raise
        finally:
            took_s = SYSTEM_CLOCK.monotonic() - begun
            self._total_execution_time = max(1, math.ceil(took_s))
        if result is not None and result.is_failed():
            self._tell_failure(result)
        return result

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        while True:
            try:
                super()._rendezvous(worker_group)
            except RoundEndedEarly:
                _log.info("the round ended before it began: there will be another")
            else:
                return

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        handler = spec.rdzv_handler
        if not isinstance(handler, HoldfastRendezvousHandler):
            assigned: list[Worker] = super()._assign_worker_ranks(
                store, group_rank, group_world_size, spec
            )
            return assigned
        return [
            Worker(
                local_rank=ranks.local_rank,
                global_rank=ranks.rank,
                role_rank=ranks.role_rank,
                world_size=ranks.world_size,
                role_world_size=ranks.role_world_size,
            )
            for ranks in handler.exchange(spec.role, spec.local_world_size)
        ]

    def _exit_barrier(self) -> None:
        handler = self._handler()
        if handler is not None:
            with contextlib.suppress(RendezvousError, ValueError):  # the run may have ended
                handler.finish()
        super()._exit_barrier()

    def _tell_failure(self, result: RunResult) -> None:
        handler = self._handler()
        if handler is None or not result.failures:
            return
        name = self._worker_group.spec.get_entrypoint_name()
        rank, failure = ChildFailedError(name, result.failures).get_first_failure()
        handler.fail(
            f"rank {rank} failed on {socket.gethostname()}: {_first_line(failure.message)}"
        )

    def _leave(self) -> None:
        handler = self._handler()
        if handler is not None:
            handler.leave()

    def _handler(self) -> HoldfastRendezvousHandler | None:
        handler = self._worker_group.spec.rdzv_handler
        return handler if isinstance(handler, HoldfastRendezvousHandler) else None


def _first_line(message: str | dict[str, Any]) -> str:
    """Return what a failure says, as torch keeps it: text, or what an error file has."""
    text = message.get("message", "") if isinstance(message, dict) else message
    return (str(text).strip().splitlines() or [""])[0][:200]
