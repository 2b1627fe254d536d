"""Commands for several hosts at once, here without ssh: shells that do what hosts would."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from signal import Signals

import pytest

from holdfast.errors import UsageError
from holdfast.on.ssh import HostCommand, run_on_hosts

SIGNALS = (Signals.SIGTERM, Signals.SIGINT)


def run(*scripts: str, fewest: int | None = None) -> tuple[int, list[str]]:
    told: list[str] = []
    commands = [
        HostCommand(f"host{number}", ("sh", "-c", script), b"order\n")
        for number, script in enumerate(scripts)
    ]
    least = len(scripts) if fewest is None else fewest
    return run_on_hosts(commands, least, os.environ, SIGNALS, told.append), told


def test_output_comes_with_the_host_before_each_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("read x; echo $x; echo y >&2", "printf 'no end'") == (0, [])
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[host0] order", "[host1] no end"]
    assert err == "[host0] y\n"


def test_names_are_aligned(capfd: pytest.CaptureFixture[str]) -> None:
    commands = [HostCommand(name, ("echo", "x"), b"") for name in ("a", "long")]
    assert run_on_hosts(commands, 2, os.environ, SIGNALS, print) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[a]    x", "[long] x"]


def test_a_host_that_cannot_take_part_ends_the_others() -> None:
    code, told = run("exit 127", "read order; read signal; [ $signal = SIGTERM ] && exit 143")
    assert code == 127
    assert told == [
        "host0: the command could not be run there (exit code 127)",
        "1 of at least 2 hosts are left: the job ends",
    ]


def test_a_connection_that_is_killed_is_lost() -> None:
    code, told = run("kill -9 $$")
    assert code == 69
    assert told == ["host0: the connection is lost, or its agent was killed"]


def test_a_signal_is_passed_on(tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)

    def send() -> None:
        fifo.read_bytes()
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    wait = f"read order; echo > {fifo}; read signal; [ $signal = SIGTERM ] && exit 143"
    assert run(wait) == (143, [])
    thread.join()


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="program 'no-such-ssh': No such file"):
        run_on_hosts([HostCommand("a", ("no-such-ssh",), b"")], 1, os.environ, SIGNALS, print)
