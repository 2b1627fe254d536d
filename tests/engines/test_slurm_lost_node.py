"""A node of a real Slurm is lost: in a Slurm of its own, which has one node less afterwards."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.jobs import Bell
from tests.engines.hosts import made_hosts, need
from tests.engines.slurm import made_slurm
from tests.waiting import until

need("munged", "slurmd", "slurmctld", "sbatch")

WORKER = str(Path(__file__).with_name("worker.py"))
SCRIPT = f"""\
#!/bin/bash
srun --kill-on-bad-exit=0 --no-kill holdfast run --on slurm --nnodes 1:2 \\
    --rdzv-conf keep_alive_interval=1 {WORKER} stay 1
"""


def test_a_lost_node_does_not_end_the_job(tmp_path: Path) -> None:
    with (
        made_hosts(["n1", "n2"], tmp_path / "hosts") as hosts,
        made_slurm(hosts) as slurm,
        Bell(hosts.shared / "bell") as bell,
    ):
        job = slurm.submit(SCRIPT, "--nodes=2", "--ntasks-per-node=1", "--no-kill")
        bell.rung_by_all(2)
        hosts["n2"].lose()
        until(lambda: "n1  succeeded in" in slurm.output(job), lambda: slurm.output(job))
        assert "rank 0 of 1 on n1" in slurm.output(job)
        hosts["n1"].has_none("worker.py")
