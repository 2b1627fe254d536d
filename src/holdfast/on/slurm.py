"""The word of Slurm: the variables that `srun` gives each task of a step.

A run is a job, a step of it, and how often Slurm has started the job again: so a job that was
requeued never meets what is left of itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import UsageError
from holdfast.on.hostlist import expand
from holdfast.on.place import NodePlace, name_of, port_for

__all__ = ["SRUN", "is_batch_script", "is_step", "nodes_of_job", "one_task_per_node", "slurm_place"]

SRUN = "srun --ntasks-per-node=1 --kill-on-bad-exit=0 holdfast run …"

_GRACE_S = 25.0
"""Slurm's KillWait is 30 seconds unless its administrator says otherwise."""


def is_step(variables: Mapping[str, str]) -> bool:
    """Say whether srun has started this process."""
    return variables.get("SLURM_STEP_ID", "").isdigit() and "SLURM_STEP_NODELIST" in variables


def is_batch_script(variables: Mapping[str, str]) -> bool:
    """Say whether this is a job's script itself, or a shell within it: no step."""
    return "SLURM_JOB_ID" in variables and not is_step(variables)


def nodes_of_job(variables: Mapping[str, str]) -> int:
    """Return how many nodes the job has; 1 if it does not say."""
    text = variables.get("SLURM_JOB_NUM_NODES", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 1


def one_task_per_node(variables: Mapping[str, str]) -> bool:
    """Say whether a step has as many tasks as nodes."""
    return _number(variables, "SLURM_STEP_NUM_TASKS") == len(_nodes(variables))


def slurm_place(variables: Mapping[str, str]) -> NodePlace:
    """Return the place of a task of a step. UsageError if this is none, or has others beside it."""
    if not is_step(variables):
        raise UsageError(f"argument --on: this is no step of a Slurm job; write {SRUN}")
    nodes, tasks = _nodes(variables), _number(variables, "SLURM_STEP_NUM_TASKS")
    if tasks != len(nodes):
        raise UsageError(
            f"argument --on: this Slurm step has {tasks} tasks on {len(nodes)} nodes; "
            f"one on each is needed: {SRUN}"
        )
    job, step = variables.get("SLURM_JOB_ID", ""), variables["SLURM_STEP_ID"]
    restarts = variables.get("SLURM_RESTART_COUNT") or "0"
    run_id = name_of("slurm", job, step, restarts)
    rank = _number(variables, "SLURM_NODEID")
    again = f", restart {restarts}" if restarts != "0" else ""
    return NodePlace(
        engine="slurm",
        told=f"Slurm job {job}, step {step}{again}",
        run_id=run_id,
        nodes=len(nodes),
        rank=rank,
        host=nodes[0],
        port=port_for(run_id),
        hosts_store=rank == 0,
        workers=_devices(variables),
        grace_s=_GRACE_S,
    )


def _nodes(variables: Mapping[str, str]) -> tuple[str, ...]:
    return expand(variables.get("SLURM_STEP_NODELIST", ""))


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise UsageError(f"environment variable {name}: {text!r:.40} must be a number")
    return int(text)


def _devices(variables: Mapping[str, str]) -> int | None:
    """Return how many GPUs the step has on this node; None if Slurm does not say."""
    if listed := variables.get("SLURM_STEP_GPUS", ""):
        return len(listed.split(","))
    if variables.get("SLURM_GPUS_ON_NODE", "0") != "0":
        return _number(variables, "SLURM_GPUS_ON_NODE")
    return None
