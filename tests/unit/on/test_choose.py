"""Which launcher's word counts."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.on.choose import Choice, choose, concerns
from tests.unit.on.test_mpi import MPICH, OPEN_MPI
from tests.unit.on.test_slurm import BATCH, STEP


def auto(variables: dict[str, str], *, meeting_given: bool = False) -> Choice:
    return choose("auto", variables, meeting_given=meeting_given)


def test_what_is_said_counts() -> None:
    assert choose("slurm", {}, meeting_given=True) == Choice("slurm")
    assert choose("mpi", STEP, meeting_given=False) == Choice("mpi")
    assert choose("none", STEP, meeting_given=False) == Choice("")
    with pytest.raises(UsageError, match="argument --on: 'pbs' must be one of auto, none, slurm"):
        choose("pbs", {}, meeting_given=False)


def test_auto_takes_a_launchers_word_in_a_step_with_one_task_on_each_of_several_nodes() -> None:
    assert auto(STEP) == Choice("slurm")
    assert auto(OPEN_MPI) == Choice("mpi")
    assert auto(MPICH) == Choice("mpi")
    assert auto(STEP | OPEN_MPI) == Choice("mpi")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1"},
        STEP | {"SLURM_STEP_NUM_TASKS": "4"},
        STEP | {"SLURM_STEP_NUM_TASKS": "x"},
        STEP | {"HOLDFAST_GROUP": "x"},
        BATCH | {"SLURM_JOB_NUM_NODES": "1"},
        OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"},
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        MPICH | {"MPI_LOCALNRANKS": "2"},
    ],
)
def test_auto_leaves_all_else_alone(variables: dict[str, str]) -> None:
    assert auto(variables) == Choice("")


@pytest.mark.parametrize("variables", [STEP, OPEN_MPI, MPICH, BATCH])
def test_auto_leaves_alone_what_a_user_has_said(variables: dict[str, str]) -> None:
    assert auto(variables, meeting_given=True) == Choice("")


def test_a_script_without_srun_gets_advice() -> None:
    choice = auto(BATCH)
    assert choice.engine == ""
    assert "has 2 nodes" in choice.advice
    assert "srun --ntasks-per-node=1" in choice.advice


def test_when_there_is_something_to_choose() -> None:
    assert not concerns("auto", {})
    assert concerns("auto", BATCH)
    assert concerns("auto", MPICH)
    assert concerns("none", {})
