"""Which launcher's word counts: what `--on` says, and what `auto` makes of it.

`auto` takes a launcher's word only where nothing else can be meant: in a step of several nodes with
one task on each, and only if the user has said nothing about how nodes meet.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import UsageError
from holdfast.on.mpi import is_started_by_mpi, tasks_on_node
from holdfast.on.slurm import SRUN, is_batch_script, is_step, nodes_of_job, one_task_per_node
from holdfast.records import dataclass

__all__ = ["ENGINES", "Choice", "choose", "concerns"]

ENGINES = ("auto", "none", "slurm", "mpi")


@dataclass(frozen=True, slots=True)
class Choice:
    """The launcher whose word counts, "" for none, and what the user should know."""

    engine: str
    advice: str = ""


def concerns(word: str, variables: Mapping[str, str]) -> bool:
    """Say whether there is anything to choose."""
    return word != "auto" or "SLURM_JOB_ID" in variables or is_started_by_mpi(variables)


def choose(word: str, variables: Mapping[str, str], *, meeting_given: bool) -> Choice:
    """Choose; `meeting_given`: a flag or a variable says where or how many nodes meet."""
    if word not in ENGINES:
        raise UsageError(f"argument --on: {word!r:.40} must be one of {', '.join(ENGINES)}")
    if word != "auto":
        return Choice("" if word == "none" else word)
    # A worker of ours has its launcher's variables, too, and may run a job of its own.
    if meeting_given or "HOLDFAST_GROUP" in variables:
        return Choice("")
    try:
        return _by_itself(variables)
    except UsageError:  # what makes no sense to us was not meant for us
        return Choice("")


def _by_itself(variables: Mapping[str, str]) -> Choice:
    # MPI first: in a Slurm job its launcher starts its own processes by srun.
    if is_started_by_mpi(variables):
        size = variables.get("OMPI_COMM_WORLD_SIZE") or variables["PMI_SIZE"]
        return Choice("mpi" if size != "1" and tasks_on_node(variables) == 1 else "")
    if is_step(variables):
        several = variables.get("SLURM_STEP_NUM_NODES", "1") != "1"
        return Choice("slurm" if several and one_task_per_node(variables) else "")
    if is_batch_script(variables) and (nodes := nodes_of_job(variables)) > 1:
        return Choice(
            "",
            f"this Slurm job has {nodes} nodes, and this job of holdfast runs on this one alone; "
            f"to use all of them, write {SRUN}",
        )
    return Choice("")
