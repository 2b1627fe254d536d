"""What an agent is to do, everything decided: a frozen value made by the launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from signal import Signals

from holdfast.agent.roles import NodeInfo
from holdfast.agent.terms import Terms
from holdfast.process.spec import Entrypoint
from holdfast.records import dataclass

__all__ = ["Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One node's part of a job.

    `environment` is what workers inherit, before the variables of their rank. `master_address`
    and `master_port` replace the round's, as they are. `torch_store` says whether node 0 serves
    torch's store protocol at the master's address. `alike` is what every node should have been told
    alike, in words: a node that was told otherwise warns. `join_s` is how long a round may take to
    come, None if that is not known; `stall_after_s` after which time without progress a worker
    counts as failed, None for never.
    """

    run_id: str
    node: NodeInfo
    entrypoint: Entrypoint
    terms: Terms
    environment: Mapping[str, str] = field(repr=False)
    host: str
    signals: tuple[Signals, ...] = ()
    master_address: str | None = None
    master_port: int | None = None
    torch_store: bool = True
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    timer_file: Path | None = None
    secret_file: Path | None = None
    monitor_interval_s: float = 0.1
    alike: str = ""
    join_s: float | None = None
    stall_after_s: float | None = None
