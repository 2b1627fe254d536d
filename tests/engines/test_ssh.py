"""`holdfast run --hosts` over a real sshd on three hosts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import Bell
from tests.engines.hosts import Command, Hosts, need
from tests.engines.pages import scripts, write

need("ssh", "sshd")

HOSTS = "ssh_hosts"
WORKER = str(Path(__file__).with_name("worker.py"))
QUICK = "--rdzv-conf=keep_alive_interval=1"

Start = Callable[..., Command]


@pytest.fixture
def start(ssh_hosts: Hosts) -> Iterator[Start]:
    """Start `holdfast run` on the login host."""
    started: list[Command] = []

    def command(*words: str) -> Command:
        started.append(ssh_hosts.login.start_command("holdfast", "run", *words))
        return started[-1]

    yield command
    for one in started:
        one.close()
    for host in ssh_hosts.nodes:
        host.has_none("holdfast")


def nothing_left(hosts: Hosts) -> None:
    for host in hosts.nodes:
        host.has_none("worker.py")


def cut(driver: Command, host: str) -> None:
    """Kill the process of the connection to a host."""
    children = Path(f"/proc/{driver.process.pid}/task/{driver.process.pid}/children")
    for pid in children.read_text().split():
        if f"\0{host}\0" in Path(f"/proc/{pid}/cmdline").read_text():
            return os.kill(int(pid), signal.SIGKILL)
    raise AssertionError(f"there is no connection to {host}")


def test_ranks_are_in_the_order_of_the_list_and_lines_have_their_host(start: Start) -> None:
    driver = start("--hosts", "c,a:2,b", WORKER, "end", "0")
    assert driver.ended() == 0, driver.err
    found = sorted(re.findall(r"^\[(\w)\] rank (\d) of 4 on (\w) ", driver.out, re.MULTILINE))
    assert found == [("a", "1", "a"), ("a", "2", "a"), ("b", "3", "b"), ("c", "0", "c")]
    assert re.search(r"^\[c\] holdfast: .* succeeded in ", driver.err, re.MULTILINE)


def test_a_failure_gives_its_code_and_the_first_cause(start: Start, ssh_hosts: Hosts) -> None:
    (ssh_hosts.shared / "hosts.txt").write_text("a slots=1  # the first\n\nroot@b\n")
    driver = start("--host-file", "hosts.txt", "--nproc-per-node=2", WORKER, "end", "7")
    assert driver.ended() == 7, driver.err
    assert "rank 0 on a failed (exit code 7)" in driver.err
    assert "First cause:" in driver.err
    assert "[a] rank 0 of 3 on a " in driver.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_hosts(
    start: Start, ssh_hosts: Hosts, bell: Bell, number: signal.Signals
) -> None:
    driver = start("--hosts=a,b,c", WORKER, "stay")
    bell.rung_by_all(3)
    shown = [line for host in ssh_hosts.nodes for line in host.processes("holdfast")]
    assert shown
    assert not [line for line in shown if re.search(r"[0-9a-f]{64}", line)]  # no secret
    driver.process.send_signal(number)
    assert driver.ended() == 128 + number, driver.err
    for rank in range(3):
        assert (ssh_hosts.shared / f"saved-{rank}").read_text() == number.name
    assert sorted(re.findall(r"saved \d", driver.out)) == ["saved 0", "saved 1", "saved 2"]
    nothing_left(ssh_hosts)


def test_a_lost_connection_ends_what_it_started_and_then_the_job(
    start: Start, ssh_hosts: Hosts, bell: Bell
) -> None:
    driver = start("--hosts=a,b,c", WORKER, "stay")
    bell.rung_by_all(3)
    cut(driver, "b")
    assert driver.ended() == 69, driver.err
    assert "holdfast: b: the connection is lost, or its agent was killed\n" in driver.err
    assert "holdfast: 2 of at least 3 hosts are left: the job ends\n" in driver.err
    nothing_left(ssh_hosts)
    assert (ssh_hosts.shared / "saved-1").read_text() == "SIGTERM"


def test_a_job_that_may_have_fewer_hosts_goes_on(
    start: Start, ssh_hosts: Hosts, bell: Bell
) -> None:
    driver = start("--hosts=a,b,c", "--nnodes=2:3", QUICK, WORKER, "stay", "2")
    bell.rung_by_all(3)
    cut(driver, "c")
    assert driver.ended() == 0, driver.err
    assert sorted(re.findall(r"rank (\d) of 2", driver.out)) == ["0", "1"]
    nothing_left(ssh_hosts)


def test_the_end_of_the_command_itself_ends_all(start: Start, ssh_hosts: Hosts, bell: Bell) -> None:
    driver = start("--hosts=a,b,c", WORKER, "stay")
    bell.rung_by_all(3)
    driver.process.kill()
    driver.ended()
    nothing_left(ssh_hosts)


def test_a_host_that_is_not_there_ends_the_job_at_once(start: Start, ssh_hosts: Hosts) -> None:
    driver = start("--hosts=a,nowhere", WORKER, "end", "0")
    assert driver.ended() == 69
    assert "[nowhere] ssh: Could not resolve hostname nowhere" in driver.err
    nothing_left(ssh_hosts)


def test_a_mistake_on_one_host_is_told(start: Start) -> None:
    driver = start("--hosts=a,b", "no-such-script.py")
    assert driver.ended() == 2
    assert re.search(r"\[[ab]\] holdfast: script 'no-such-script.py': no such file", driver.err)


@pytest.mark.parametrize("script", scripts("ssh"))
def test_the_scripts_of_the_page_run_as_they_stand(ssh_hosts: Hosts, script: str) -> None:
    write("ssh", ssh_hosts.shared)
    done = ssh_hosts.login.run("sh", script)
    assert sorted(re.findall(r"rank \d of 6 on [abc]", done.stdout)) == [
        f"rank {rank} of 6 on {'abc'[rank // 2]}" for rank in range(6)
    ], done
