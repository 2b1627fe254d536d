"""Agents of torch's kind: one here, or several in processes of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

_runs = itertools.count(1)


def new_run() -> str:
    """Return a name that no run has had."""
    return f"torch-{os.getpid()}-{next(_runs)}"


@dataclass
class Node:
    """One agent, and what its workers do."""

    entrypoint: Callable[..., Any]
    workers: int
    backend: str
    endpoint: str
    log_dir: str
    args: tuple[Any, ...] = ()
    run: str = field(default_factory=new_run)
    role: str = "default"
    nodes: tuple[int, int] = (1, 1)
    max_restarts: int = 0
    exit_barrier_s: float = 5
    master: tuple[str, int] | None = None
    tee: Std = Std.NONE
    prefix: str | None = None
    rdzv: dict[str, Any] = field(default_factory=dict)

    def make_agent(self) -> LocalElasticAgent:
        """Make the agent; its handler takes part in the run from then on."""
        params = RendezvousParameters(
            backend=self.backend,
            endpoint=self.endpoint,
            run_id=self.run,
            min_nodes=self.nodes[0],
            max_nodes=self.nodes[1],
            last_call_timeout=0,
            **self.rdzv,
        )
        spec = WorkerSpec(
            role=self.role,
            local_world_size=self.workers,
            entrypoint=self.entrypoint,
            args=self.args,
            rdzv_handler=get_rendezvous_handler(params),
            max_restarts=self.max_restarts,
            monitor_interval=0.01,
            master_addr=self.master[0] if self.master else None,
            master_port=self.master[1] if self.master else None,
        )
        return LocalElasticAgent(
            spec,
            start_method="spawn",
            exit_barrier_timeout=self.exit_barrier_s,
            logs_specs=DefaultLogsSpecs(log_dir=self.log_dir, tee=self.tee),
            log_line_prefix_template=self.prefix,
        )

    @record  # type: ignore[untyped-decorator]
    def result(self) -> RunResult:
        """Run it to its end; what fails is torch's error for it."""
        agent = self.make_agent()
        spec = agent.get_worker_group().spec
        try:
            result = agent.run()
        finally:
            spec.rdzv_handler.shutdown()
        if result.is_failed():
            raise ChildFailedError(spec.get_entrypoint_name(), result.failures)
        return result

    def returned(self) -> dict[int, Any]:
        """Run it to a good end, and return what its workers have returned, by rank."""
        result = self.result()
        assert not result.is_failed()
        return dict(result.return_values)
