"""From a configuration to what this node's agent is to do."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast import env
from holdfast.agent.job import Job
from holdfast.agent.roles import NodeInfo
from holdfast.agent.terms import Terms
from holdfast.errors import UsageError
from holdfast.launch.config import LaunchConfig
from holdfast.process.spec import Entrypoint

__all__ = ["make_job"]


def make_job(
    config: LaunchConfig,
    entrypoint: Entrypoint,
    run_id: str,
    environment: env.Environment,
    *,
    host: str,
    folder: Path,
) -> Job:
    """Return this node's part of the job; `folder` is private to it, and keeps its secret."""
    return Job(
        run_id=run_id,
        node=NodeInfo(config.role, config.nproc_per_node),
        entrypoint=entrypoint,
        terms=Terms(
            budget=config.budget,
            grace_s=config.shutdown_timeout,
            exit_barrier_s=config.exit_barrier_timeout,
            rules=config.rules,
            backoff=config.backoff,
            run_id=run_id,
        ),
        environment=env.variables(),
        host=host,
        signals=config.signals,
        master_address=config.master_addr,
        master_port=config.master_port,
        torch_store=environment.share_store,
        virtual_local_rank=config.virtual_local_rank,
        numa_binding=config.numa_binding,
        timer_file=_timer_file(environment, folder),
        secret_file=_secret_file(config, environment, folder),
        monitor_interval_s=config.monitor_interval,
        alike=_alike(config),
        join_s=config.rendezvous(run_id).join_s,
        stall_after_s=config.stall_after,
    )


def _alike(config: LaunchConfig) -> str:
    """Say what all nodes should have been told alike."""
    window_s, rules, backoff = config.restart_window_s, config.rules, config.backoff
    told = [
        f"{config.min_nodes}:{config.max_nodes} nodes",
        f"{config.max_restarts} restarts{'' if window_s is None else f' in {window_s:g} s'}",
    ]
    if rules.only:
        told.append(f"only after {' '.join(rules.only)}")
    if rules.never:
        told.append(f"not after {' '.join(rules.never)}")
    if rules.same_max is not None:
        told.append(f"{rules.same_max} same failures")
    if backoff.first_s:
        told.append(f"pauses of {backoff.first_s:g} to {backoff.most_s:g} s")
    return ", ".join(told)


def _timer_file(environment: env.Environment, folder: Path) -> Path | None:
    """Return where workers announce timers: where the user says, else in `folder`."""
    if not environment.file_timer:
        return None
    return environment.timer_file or folder / "timers"


def _secret_file(config: LaunchConfig, environment: env.Environment, folder: Path) -> Path | None:
    """Return where workers find the job's secret; never in their environment."""
    given = config.secret_file or environment.secret_file
    if given is not None:
        from holdfast.net.secret import read_secret_file

        if not given.exists():
            raise UsageError(f"secret file {str(given)!r}: no such file")
        read_secret_file(given)  # what is wrong with it is said now, not when nodes meet
    if given is not None or environment.secret is None:
        return given
    path = folder / "secret"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(str.encode(environment.secret))
    return path
