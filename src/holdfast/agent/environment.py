"""The variables that a worker is given: a contract, and the table of it.

A worker begins with the environment of its agent. On top come the variables of `GIVEN`; what the
user has set stays as it is, except where the table says otherwise.

Guarantees
    EN-1  Every variable of the table is set as it says, whatever the agent's own environment had.
    EN-2  What the table does not name reaches the worker unchanged; only what the agent was told
          for itself (`KEPT_BACK`) does not.
    EN-3  The job's secret is in no variable: a worker is told the file that holds it.
    EN-4  The user's TORCH_NCCL_ASYNC_ERROR_HANDLING and OMP_NUM_THREADS beat ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.agent.roles import WorkerRanks
from holdfast.errors import UsageError
from holdfast.records import dataclass

__all__ = [
    "GIVEN",
    "KEPT_BACK",
    "RoundFacts",
    "Variable",
    "common_environment",
    "limits_threads",
    "worker_environment",
]

KEPT_BACK = ("HOLDFAST_SECRET", "HOLDFAST_WORKER")
"""Variables of the agent that its workers never see."""

_THREADS = "OMP_NUM_THREADS"
_NCCL = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_CUDA = "CUDA_VISIBLE_DEVICES"
_HIP = "HIP_VISIBLE_DEVICES"


class Variable(NamedTuple):
    """One row of the table; `when` says when it is set, or is empty if always."""

    name: str
    meaning: str
    example: str
    when: str = ""


GIVEN = (
    Variable("RANK", "the worker's rank among all workers of the job", "5"),
    Variable("WORLD_SIZE", "how many workers the job has", "8"),
    Variable("LOCAL_RANK", "its rank on its node; 0 with virtual local ranks", "1"),
    Variable("LOCAL_WORLD_SIZE", "how many workers its node has", "4"),
    Variable("GROUP_RANK", "the rank of its node", "1"),
    Variable("GROUP_WORLD_SIZE", "how many nodes the job has", "2"),
    Variable("ROLE_NAME", "its role", "trainer"),
    Variable("ROLE_RANK", "its rank among the workers of its role", "5"),
    Variable("ROLE_WORLD_SIZE", "how many workers have its role", "8"),
    Variable("MASTER_ADDR", "the host for `env://`; if you give one, exactly that", "node0"),
    Variable("MASTER_PORT", "the port for `env://`; if you give one, exactly that", "29500"),
    Variable("TORCHELASTIC_RUN_ID", "the name of the job", "train-7"),
    Variable("TORCHELASTIC_RESTART_COUNT", "how often workers were restarted after a failure", "0"),
    Variable("TORCHELASTIC_MAX_RESTARTS", "how many failures the job may have", "3"),
    Variable(
        "TORCHELASTIC_USE_AGENT_STORE",
        "whether `env://` is a client of the agent's store, or rank 0 hosts one",
        "True",
    ),
    Variable("TORCHELASTIC_ERROR_FILE", "where the worker writes its error", "…/error.json"),
    Variable(
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        "the signals that the agent passes on to its workers",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    Variable(_NCCL, "whether NCCL ends a worker whose collective failed", "1", "unless you set it"),
    Variable(
        _THREADS,
        "how many threads libraries of a worker use",
        "1",
        "if the node has several workers, unless you set it",
    ),
    Variable(
        _CUDA, "the one device that the worker sees, as device 0", "3", "with virtual local ranks"
    ),
    Variable(
        _HIP,
        "the same, for AMD's devices",
        "3",
        "with virtual local ranks, if you set it for the agent",
    ),
    Variable(
        "TORCHELASTIC_TIMER_FILE",
        "where the worker announces its timers",
        "…/timers",
        "if timers are watched, or you set it",
    ),
    Variable(
        "HOLDFAST_SECRET_FILE",
        "the file that holds the job's secret; only its owner can read it",
        "…/secret",
        "if the job has a secret",
    ),
    Variable(
        "HOLDFAST_STORE",
        "the store where the job's nodes meet, and its workers can too",
        "tcp://node0:29400",
        "if workers can reach it",
    ),
    Variable("HOLDFAST_ROUND", "the round of the run", "1"),
    Variable("HOLDFAST_PROGRESS_FILE", "where `holdfast.progress` tells its step", "…/progress"),
    Variable("HOLDFAST_GROUP", "the mark by which the agent finds its processes", "5f1c9a…"),
)
"""Every variable that a worker is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """What all workers of a node are told in one round."""

    run_id: str
    master_address: str
    master_port: int
    restart_count: int
    max_restarts: int
    use_agent_store: bool
    signals_to_handle: str
    round: int
    store: str | None = None
    virtual_local_rank: bool = False
    timer_file: Path | None = None
    secret_file: Path | None = None


def limits_threads(base: Mapping[str, str], local_world_size: int) -> bool:
    """Say whether workers get one thread each, which their user should hear of once."""
    return local_world_size > 1 and _THREADS not in base


def common_environment(base: Mapping[str, str], local_world_size: int) -> dict[str, str]:
    """Return what all workers of a node have in their environment, whatever the round."""
    found = {name: value for name, value in base.items() if name not in KEPT_BACK}
    found.setdefault(_NCCL, "1")
    if limits_threads(base, local_world_size):
        found[_THREADS] = "1"
    return found


def worker_environment(
    base: Mapping[str, str],
    ranks: WorkerRanks,
    facts: RoundFacts,
    error_file: Path,
    progress_file: Path,
) -> dict[str, str]:
    """Return the whole environment of one worker; `base` is that of its agent."""
    found = common_environment(base, ranks.local_world_size)
    found |= {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_RANK": str(ranks.local_rank),
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "GROUP_RANK": str(ranks.group_rank),
        "GROUP_WORLD_SIZE": str(ranks.group_world_size),
        "ROLE_NAME": ranks.role,
        "ROLE_RANK": str(ranks.role_rank),
        "ROLE_WORLD_SIZE": str(ranks.role_world_size),
        "MASTER_ADDR": facts.master_address,
        "MASTER_PORT": str(facts.master_port),
        "TORCHELASTIC_RUN_ID": facts.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(facts.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(facts.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(facts.use_agent_store),
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": facts.signals_to_handle,
        "HOLDFAST_ROUND": str(facts.round),
        "HOLDFAST_PROGRESS_FILE": str(progress_file),
    }
    if facts.virtual_local_rank:
        found["LOCAL_RANK"] = "0"
        found |= _one_device(base, ranks.local_rank)
    if facts.timer_file is not None:
        found["TORCHELASTIC_TIMER_FILE"] = str(facts.timer_file)
    if facts.store is not None:
        found["HOLDFAST_STORE"] = facts.store
    if facts.secret_file is not None:
        found["HOLDFAST_SECRET_FILE"] = str(facts.secret_file)
    return found


def _one_device(base: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return the variables that leave a worker one device: its own, of those the agent sees."""
    chosen = {}
    for name in (_CUDA, _HIP):
        visible = base.get(name)
        if visible:
            devices = visible.split(",")
            if local_rank >= len(devices):
                raise UsageError(
                    f"{name}={visible:.80}: has no device for local rank {local_rank}; "
                    "with virtual local ranks every worker of the node needs one"
                )
            chosen[name] = devices[local_rank].strip()
    if not chosen and _CUDA not in base:
        chosen[_CUDA] = str(local_rank)
    return chosen
