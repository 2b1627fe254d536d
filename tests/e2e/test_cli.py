"""The command line as people use it: real processes, real signals, a real shell's pipes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import holdfast
from tests.waiting import until

HOLDFAST = [sys.executable, "-m", "holdfast"]
LIMIT_S = 200


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Let what a test starts hear SIGINT, though a shell's background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has never used holdfast, whose `holdfast` is ours."""
    tools = tmp_path / "bin"
    tools.mkdir()
    script = tools / "holdfast"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(HOLDFAST)} "$@"\n')
    script.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    for name in ("XDG_STATE_HOME", "PYTHONUNBUFFERED"):  # the latter hides what buffers do
        clean.pop(name, None)
    return {**clean, "HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONUTF8": "1"}


@contextmanager
def started(variables: dict[str, str], *argv: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; at the end it is killed if it still runs."""
    with subprocess.Popen(
        [*HOLDFAST, *argv], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def served(variables: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Serve a store; gives the server, and the variables with HOLDFAST_STORE."""
    with started(variables, "store", "serve", "tcp://127.0.0.1:0") as server:
        line = line_of(server)
        found = re.fullmatch(r"export (HOLDFAST_STORE)=(tcp://127\.0\.0\.1:[1-9]\d*)\n", line)
        assert found, line
        yield server, {**variables, found[1]: found[2]}


Shell = Callable[[str], str]


@pytest.fixture
def shell(variables: dict[str, str]) -> Iterator[Shell]:
    """A shell in which HOLDFAST_STORE leads to a store; gives its output, stderr among it."""
    with served(variables) as (_, with_store):

        def run(script: str) -> str:
            return subprocess.run(
                ["bash", "-c", script],
                check=False,
                env=with_store,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            ).stdout

        yield run


def test_the_verbs_from_a_shell(shell: Shell) -> None:
    assert shell(
        """
        holdfast store set greeting 'hello, world'
        holdfast store get greeting
        holdfast store append greeting '!'
        holdfast store get greeting
        holdfast store add visits 3
        holdfast store add visits -1
        holdfast store list
        holdfast store wait visits
        holdfast store delete greeting; echo $?
        holdfast store get greeting; echo $?
        holdfast store add visits one; echo $?
        holdfast store set word x; holdfast store add word 1; echo $?
        holdfast store wait nothing --timeout 2; echo $?
        """
    ) == (
        "hello, world\n13\nhello, world!\n3\n2\ngreeting\nvisits\n2\n0\n1\n"
        "holdfast store add: argument AMOUNT: 'one' must be an integer of 64 bits, signed "
        "(see holdfast store add --help)\n2\n"
        "holdfast: add: key 'word' holds b'x', which is not a decimal integer\n2\n"
        "holdfast: wait: still missing 'nothing'\n75\n"
    )


def test_a_reader_that_stops_early_causes_no_error(shell: Shell) -> None:
    setting = "for k in a b c; do holdfast store set $k 1; done"
    assert shell(f"{setting}; holdfast store list | head -1; echo ${{PIPESTATUS[0]}}") == "a\n0\n"
    assert shell("holdfast store list | true; echo ${PIPESTATUS[0]}") == "0\n"
    assert shell("holdfast --help | true; echo ${PIPESTATUS[0]}") == "0\n"


def test_output_that_cannot_be_written(shell: Shell) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    assert shell("holdfast store set k v; holdfast store get k > /dev/full; echo $?") == (
        "holdfast: standard output: No space left on device\n74\n"
    )
    assert shell("holdfast store get k >&-; echo $?") == "0\n"


def test_without_stderr_there_is_still_an_exit_code(shell: Shell) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    assert shell("holdfast store wait no --timeout 2 2> /dev/full; echo $?") == "75\n"
    assert shell("holdfast store wait no --timeout 2 2>&-; echo $?") == "75\n"
    assert shell("holdfast run --no-python sh -c 'exit 3' 2> /dev/full; echo $?") == "3\n"
    assert shell("holdfast run --no-python sh -c 'exit 3' 2>&-; echo $?") == "3\n"


def test_a_watch_shows_what_is_and_what_comes(variables: dict[str, str]) -> None:
    with served(variables) as (_, with_store):

        def holdfast(*argv: str) -> None:
            subprocess.run([*HOLDFAST, *argv], check=True, env=with_store, timeout=LIMIT_S)

        holdfast("store", "set", "jobs/1", "new")
        with started(with_store, "store", "watch", "jobs/") as watch:
            assert line_of(watch) == "1\tset\tjobs/1\tnew\n"
            holdfast("store", "set", "other", "x")
            holdfast("store", "set", "jobs/2", "a\tb")
            assert line_of(watch) == "3\tset\tjobs/2\ta\\tb\n"
            holdfast("store", "delete", "jobs/1")
            assert line_of(watch) == "4\tdeleted\tjobs/1\n"
            watch.send_signal(signal.SIGINT)
            assert watch.wait(LIMIT_S) == 130
            assert watch.communicate() == ("", "")


def test_a_wait_ends_at_ctrl_c(variables: dict[str, str]) -> None:
    with (
        served(variables) as (_, with_store),
        started(with_store, "store", "wait", "never", "--timeout", "inf") as wait,
    ):
        until_connected(wait.pid)
        wait.send_signal(signal.SIGINT)
        assert wait.wait(LIMIT_S) == 130
        assert wait.communicate() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(variables: dict[str, str], number: int) -> None:
    with (
        served(variables) as (server, with_store),
        started(with_store, "store", "wait", "never", "--timeout", "inf") as client,
    ):
        until_connected(client.pid)  # a server with clients ends just the same
        server.send_signal(number)
        out, err = server.communicate(timeout=LIMIT_S)
        assert server.returncode == 0
        assert out == ""
        where = with_store["HOLDFAST_STORE"]
        assert err.splitlines()[0] == f"serving {where}"
        assert err.splitlines()[-1] == f"stopped serving {where}: closed"
    assert "Traceback" not in err
    secret = secret_of(variables)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


def secret_of(variables: dict[str, str]) -> Path:
    return Path(variables["HOME"], ".local", "state", "holdfast", "secret")


def until_connected(pid: int) -> None:
    """Wait until a process has an established TCP connection, as the kernel shows it."""

    def connected() -> bool:
        sockets = set()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed while we looked
                sockets.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(entry)))
        rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        return any(row.split()[3] == "01" and row.split()[9] in sockets for row in rows)

    until(connected)


def test_a_server_for_other_machines_is_told_by_name(variables: dict[str, str]) -> None:
    secret = {"HOLDFAST_SECRET": "sixteen bytes or more"}
    with started({**variables, **secret}, "store", "serve", "tcp://0.0.0.0:0") as server:
        line = line_of(server)
        assert re.fullmatch(rf"export HOLDFAST_STORE=tcp://{socket.gethostname()}:\d+\n", line)
    assert not secret_of(variables).exists()


def test_the_module_and_the_script_are_the_same(variables: dict[str, str]) -> None:
    script = Path(sys.executable).with_name("holdfast")
    commands = [[*HOLDFAST, "--version"]]
    if script.exists():
        commands.append([str(script), "--version"])
    for command in commands:
        shown = subprocess.check_output(command, env=variables, text=True, timeout=LIMIT_S)
        assert shown == f"holdfast {holdfast.__version__}\n"


def test_a_busy_port(variables: dict[str, str]) -> None:
    with served(variables) as (_, with_store):
        where = with_store["HOLDFAST_STORE"]
        done = subprocess.run(
            [*HOLDFAST, "store", "serve", where],
            check=False,
            env=variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert (done.returncode, done.stdout) == (2, "")
        address = where.removeprefix("tcp://")
        assert done.stderr == f"holdfast: cannot listen on {address}: Address already in use\n"


# Imports first, since another user may not be able to read where Python lies.
AS_NOBODY = """
import encodings.idna, os, sys
import holdfast.store.client
from holdfast.cli.main import main, parser
parser()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_refused(variables: dict[str, str]) -> None:
    with (
        served(variables) as (_, with_store),
        tempfile.TemporaryDirectory(dir="/tmp") as home,  # others may enter; pytest's is closed
    ):
        os.chown(home, 65534, 65534)
        theirs = {**with_store, "HOME": home}

        def get(extra: dict[str, str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-c", AS_NOBODY, "store", "get", "k"],
                check=False,
                env={**theirs, **extra},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )

        # Their own secret, made for them, does not open our store; and ours they cannot read.
        done = get({})
        assert (done.returncode, done.stdout) == (77, "")
        where = with_store["HOLDFAST_STORE"].removeprefix("tcp://")
        assert done.stderr.startswith(f"holdfast: handshake with {where}: ")
        assert secret_of(theirs).stat().st_uid == 65534
        assert secret_of(theirs).read_bytes() != secret_of(variables).read_bytes()
        done = get({"HOLDFAST_SECRET_FILE": str(secret_of(variables))})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(": Permission denied\n")
