"""`holdfast run` under the real launchers of Open MPI and MPICH, on two hosts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.jobs import Bell
from tests.engines.hosts import PACKAGES, PATH, Hosts, need
from tests.engines.pages import scripts, write

need("ssh", "sshd")

HOSTS = "ssh_hosts"
WORKER = str(Path(__file__).with_name("worker.py"))
LAUNCHERS = {
    "mpirun.openmpi": "--allow-run-as-root --host a,b --map-by node -np 2",
    "mpirun.mpich": "-hosts a,b -ppn 1 -np 2",
}


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if not shutil.which(name, path=PATH):
        pytest.skip(f"Debian packages are missing: {PACKAGES[name]}")
    return name


def command(launcher: str, *words: str) -> list[str]:
    return [launcher, *LAUNCHERS[launcher].split(), "holdfast", "run", *words]


@pytest.mark.parametrize("script", scripts("mpi"))
def test_the_scripts_of_the_page_run_as_they_stand(ssh_hosts: Hosts, script: str) -> None:
    name = "mpirun.openmpi" if script == "open-mpi.sh" else "mpirun.mpich"
    if not shutil.which(name, path=PATH):
        pytest.skip(f"Debian packages are missing: {PACKAGES[name]}")
    write("mpi", ssh_hosts.shared)
    done = ssh_hosts["a"].run("sh", script)
    assert sorted(re.findall(r"rank \d of 4 on [ab]", done.stdout)) == [
        f"rank {rank} of 4 on {'ab'[rank // 2]}" for rank in range(4)
    ], done
    assert (
        len(re.findall(r"^holdfast: --on mpi: .*: node [01] of 2, ", done.stderr, re.MULTILINE))
        == 2
    )


def test_a_failure_is_the_launchers_too(ssh_hosts: Hosts, launcher: str) -> None:
    words = command(launcher, "--on=mpi", WORKER, "end", "7")
    done = ssh_hosts["a"].run(*words, check=False)
    # MPICH combines the codes of its processes.
    assert done.returncode == 7 if launcher == "mpirun.openmpi" else done.returncode != 0, done
    assert "rank 0 on a failed (exit code 7)" in done.stderr


def test_a_launcher_that_is_stopped_leaves_nothing(
    ssh_hosts: Hosts, bell: Bell, launcher: str
) -> None:
    first = ssh_hosts["a"]
    words = command(launcher, WORKER, "stay")
    driver = first.start_command("sh", "-c", 'echo $$ > /mnt/pid; exec "$@"', "sh", *words)
    try:
        bell.rung_by_all(2)
        first.run("kill", "-TERM", (ssh_hosts.shared / "pid").read_text().strip())
        driver.ended()  # with 0 at times, from MPICH
        for name in ("a", "b"):
            ssh_hosts[name].has_none("worker.py")
    finally:
        driver.close()


def test_without_a_launcher_it_is_told_what_to_write(ssh_hosts: Hosts) -> None:
    done = ssh_hosts["a"].run("holdfast", "run", "--on=mpi", WORKER, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "holdfast: argument --on: neither Open MPI's nor MPICH's mpirun has started this; "
        "write mpirun -n 2 holdfast run …\n"
    )
