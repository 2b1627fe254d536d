"""Kills by the kernel, out of memory: by its files, and for real."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.outcome.memory import MemoryWatch

V1_TOP = Path("/sys/fs/cgroup/memory")
MEBI = 1 << 20


class Machine:
    """A machine's files, as the kernel would show them."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.groups = root / "sys fs" / "cgroup"
        self.own: list[str] = []
        self.mounts: list[str] = []
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "vmstat").write_text("nr_free 7\noom_kill 5\nlast 1\n")

    def mount(self, kind: str, controllers: str, path: str, *, root: str = "/") -> Path:
        """Mount a hierarchy; our process is in `path` of it."""
        place = self.groups / (controllers or "unified")
        place.mkdir(parents=True)
        shown = str(place).replace(" ", "\\040")
        self.mounts.append(f"35 31 0:32 {root} {shown} rw,relatime - {kind} none rw,{controllers}")
        self.own.append(f"{len(self.own)}:{controllers}:{path}")
        return place

    def watch(self, cgroup: Path | None = None) -> MemoryWatch:
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in self.own))
        (self.proc / "self" / "mountinfo").write_text(
            "22 1 0:20 / /proc rw - proc proc rw\n" + "".join(f"{line}\n" for line in self.mounts)
        )
        return MemoryWatch.take(cgroup, proc=self.proc)


def account(folder: Path, kills: int, *, limit: str = "max", name: str = "memory.events") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 4\n")
    (folder / "memory.max").write_text(f"{limit}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_our_own_group_tells_for_sure(machine: Machine) -> None:
    top = machine.mount("cgroup2", "", "/job/agent")
    own = top / "job" / "agent"
    account(own, 2)
    account(own.parent, 7, limit=str(512 * MEBI))
    watch = machine.watch()
    assert watch.killed() is None
    account(own, 3)
    told = f"killed by the kernel: out of memory (control group {own}, limit 512 MiB)"
    assert watch.killed_another() == f"a process beside it was {told}"
    assert watch.killed() == told
    assert watch.killed() is None
    assert watch.killed_another() is None


def test_each_kill_is_told_once(machine: Machine) -> None:
    own = machine.mount("cgroup2", "", "/a") / "a"
    account(own, 0)
    watch = machine.watch()
    account(own, 2)
    assert [bool(watch.killed()) for _ in range(3)] == [True, True, False]


def test_of_a_group_above_it_is_only_probable(machine: Machine) -> None:
    top = machine.mount("cgroup2", "", "/slice/scope")
    (top / "slice" / "scope").mkdir(parents=True)
    account(top / "slice", 1)
    account(top / "slice", 1, name="memory.events.local")
    watch = machine.watch()
    account(top / "slice", 2)  # in some other group below it, not in itself
    assert watch.killed() is None
    account(top / "slice", 2, name="memory.events.local")
    assert watch.killed() == (
        "probably killed by the kernel: out of memory"
        f" (control group {top / 'slice'}, no limit of its own)"
    )


def test_a_group_above_without_local_counts_tells_by_its_counts(machine: Machine) -> None:
    top = machine.mount("cgroup2", "", "/slice/scope")
    (top / "slice" / "scope").mkdir(parents=True)
    account(top / "slice", 1)
    watch = machine.watch()
    account(top / "slice", 2)
    assert "probably" in (watch.killed() or "")


def test_version_1_has_other_names(machine: Machine) -> None:
    machine.mount("cgroup", "cpu,cpuacct", "/elsewhere")
    top = machine.mount("cgroup", "hugetlb,memory", "/job")
    own = top / "job"
    own.mkdir()
    for folder, limit in ((top, 0x7FFFFFFFFFFFF000), (own, 64 * MEBI)):
        (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    watch = machine.watch()
    (own / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert watch.killed() == (
        f"killed by the kernel: out of memory (control group {own}, limit 64 MiB)"
    )


def test_the_workers_own_group_is_watched_beside_ours(machine: Machine) -> None:
    top = machine.mount("cgroup2", "", "/job")
    account(top / "job", 0)
    account(top / "workers", 0, limit=str(MEBI))
    watch = machine.watch(top / "workers")
    account(top / "workers", 1, limit=str(MEBI))
    assert f"{top / 'workers'}, limit 1 MiB" in (watch.killed() or "")


def test_in_a_container_the_mount_begins_where_we_are(machine: Machine) -> None:
    top = machine.mount("cgroup2", "", "/docker/abc", root="/docker/abc")
    account(top, 0)
    watch = machine.watch()
    account(top, 1)
    assert f"control group {top}," in (watch.killed() or "")


@pytest.mark.parametrize("path", ["/../../other", "/gone"])
def test_a_path_that_leads_nowhere_here_means_the_top(machine: Machine, path: str) -> None:
    top = machine.mount("cgroup2", "", path)
    account(top, 0)
    watch = machine.watch()
    account(top, 1)
    assert f"control group {top}," in (watch.killed() or "")


def test_without_accounts_the_whole_machine_is_watched(machine: Machine) -> None:
    machine.mount("cgroup2", "", "/")
    machine.mount("cgroup", "cpu", "/")
    watch = machine.watch()
    assert watch.killed() is None
    (machine.proc / "vmstat").write_text("nr_free 7\noom_kill 6\n")
    assert watch.killed() == "probably killed by the kernel: out of memory (the whole machine)"


def test_a_group_that_is_gone_tells_nothing(machine: Machine) -> None:
    own = machine.mount("cgroup2", "", "/a") / "a"
    account(own, 3)
    watch = machine.watch()
    (own / "memory.events").unlink()
    assert watch.killed() is None


def test_where_there_is_no_such_thing_nothing_is_found(tmp_path: Path) -> None:
    watch = MemoryWatch.take(tmp_path / "none", proc=tmp_path / "none")
    assert watch.killed() is None
    assert watch.killed_another() is None


# A real kernel.


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A real control group that may use 48 MiB."""
    group = V1_TOP / f"holdfast-test-{secrets.token_hex(4)}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(48 * MEBI))
        if (swap := group / "memory.memsw.limit_in_bytes").exists():
            swap.write_text(str(48 * MEBI))
        yield group
    finally:
        group.rmdir()


EATER = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
held = bytearray()
while True:
    held += os.urandom(1 << 20)
"""

AGENT = """
import os, subprocess, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
from holdfast.process.outcome.memory import MemoryWatch
watch = MemoryWatch.take()
eater = subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]])
assert eater.returncode == -9, eater
print(watch.killed())
print(watch.killed())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a memory control group here")
def test_a_real_kill_in_a_given_group_is_recognised(small_group: Path) -> None:
    watch = MemoryWatch.take(small_group)
    command = [sys.executable, "-c", EATER, str(small_group / "cgroup.procs")]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    assert watch.killed() == (
        f"killed by the kernel: out of memory (control group {small_group}, limit 48 MiB)"
    )
    assert watch.killed() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a memory control group here")
def test_a_real_kill_in_our_own_group_is_recognised(small_group: Path) -> None:
    command = [sys.executable, "-c", AGENT, str(small_group / "cgroup.procs"), EATER]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        f"killed by the kernel: out of memory (control group {small_group}, limit 48 MiB)",
        "None",
    ]
