"""What an agent is to do, as a value."""

from __future__ import annotations

from dataclasses import replace

from holdfast.agent.job import Job
from holdfast.agent.machine import Terms
from holdfast.agent.policy import RestartBudget
from holdfast.agent.roles import NodeInfo
from holdfast.process.spec import Script


def test_a_job_shows_no_environment() -> None:
    """It may hold secrets, and the value ends up in logs."""
    job = Job(
        run_id="job",
        node=NodeInfo("trainer", 2),
        entrypoint=Script("train.py"),
        terms=Terms(budget=RestartBudget(0)),
        environment={"TOKEN": "hidden"},
        host="a",
    )
    assert "hidden" not in repr(job)
    assert replace(job, environment={}) != job
    assert (job.signals, job.torch_store, job.master_address) == ((), True, None)
