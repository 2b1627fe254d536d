"""The variables of Slurm, and what they mean."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.on.place import port_for
from holdfast.on.slurm import (
    SRUN,
    is_batch_script,
    is_step,
    nodes_of_job,
    one_task_per_node,
    slurm_place,
)

BATCH = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0"}
STEP = BATCH | {
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "1",
}


def test_a_task_of_a_step() -> None:
    place = slurm_place(STEP)
    assert place.run_id == "slurm-12-3-0"
    assert place.told == "Slurm job 12, step 3"
    assert (place.nodes, place.rank, place.host) == (2, 1, "n1")
    assert place.port == port_for("slurm-12-3-0")
    assert place.hosts_store is False
    assert place.workers is None
    assert place.grace_s == 25
    assert slurm_place(STEP | {"SLURM_NODEID": "0"}).hosts_store is True


def test_a_job_that_was_requeued_is_another_run() -> None:
    place = slurm_place(STEP | {"SLURM_RESTART_COUNT": "2"})
    assert place.run_id == "slurm-12-3-2"
    assert place.told == "Slurm job 12, step 3, restart 2"


@pytest.mark.parametrize(
    ("variables", "workers"),
    [
        ({"SLURM_STEP_GPUS": "0,2,3"}, 3),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"SLURM_STEP_GPUS": "1", "SLURM_GPUS_ON_NODE": "8"}, 1),
    ],
)
def test_a_worker_for_each_device(variables: dict[str, str], workers: int | None) -> None:
    assert slurm_place(STEP | variables).workers == workers


def test_steps_scripts_and_neither() -> None:
    assert is_step(STEP)
    assert not is_batch_script(STEP)
    assert is_batch_script(BATCH)
    assert not is_step(BATCH)
    assert not is_step({})
    assert not is_batch_script({})
    assert not is_step(STEP | {"SLURM_STEP_ID": "batch"})
    assert nodes_of_job(BATCH) == 2
    assert nodes_of_job({}) == 1
    assert one_task_per_node(STEP)
    assert not one_task_per_node(STEP | {"SLURM_STEP_NUM_TASKS": "4"})


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (BATCH, f"argument --on: this is no step of a Slurm job; write {SRUN}"),
        (
            STEP | {"SLURM_STEP_NUM_TASKS": "4"},
            "argument --on: this Slurm step has 4 tasks on 2 nodes; one on each is needed: ",
        ),
        (STEP | {"SLURM_NODEID": "x"}, "environment variable SLURM_NODEID: 'x' must be a number"),
        (STEP | {"SLURM_STEP_NODELIST": "n["}, "host list 'n['"),
    ],
)
def test_what_makes_no_sense(variables: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        slurm_place(variables)
    assert str(caught.value).startswith(message)
