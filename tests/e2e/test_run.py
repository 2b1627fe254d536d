"""`holdfast run` as people use it: real scripts, real exit codes, a real terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.rendezvous.port import HeldPort
from tests.unit.observe.terminal import Terminal
from tests.unit.process.workers import await_end
from tests.waiting import with_more_time

HOLDFAST = [sys.executable, "-m", "holdfast"]
LIMIT_S = 200
STAMP = r"holdfast: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"

SCRIPT = """\
import os, signal, sys
words = ["rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:]]
os.write(1, " ".join(words).encode() + b"\\n")  # in one piece: others write there, too
if os.environ["RANK"] == "1":
    match sys.argv[1:]:
        case ["raise"]:
            raise RuntimeError("a mistake")
        case ["exit"]:
            sys.exit(3)
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1:] == ["wait"]:
    signal.pause()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    kept = ("PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR")
    clean = {name: os.environ[name] for name in kept if name in os.environ}
    return {**clean, "HOME": str(home), "OMP_NUM_THREADS": "1"}


def run(variables: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOLDFAST, "run", *argv],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def test_workers_run_with_their_arguments(variables: dict[str, str], script: str) -> None:
    done = run(variables, "--nproc-per-node", "2", script, "--lr", "${local_rank}", "--", "-x")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 of 2 --lr 0 -- -x",
        "rank 1 of 2 --lr 1 -- -x",
    ]
    *lines, last = done.stderr.splitlines()
    assert [line.split("  ")[2] for line in lines] == ["joining", "running", "finished"]
    assert re.fullmatch(rf"{STAMP}  \S+  succeeded in \d+\.\d s, no restart", last)
    assert all(re.match(STAMP, line) for line in lines)


def test_the_variables_of_an_operator(variables: dict[str, str], script: str) -> None:
    more = {"PET_NPROC_PER_NODE": "3", "PET_STANDALONE": "", "PET_MODULE": "0"}
    done = run(variables | more, script)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_modules_and_programs(variables: dict[str, str], tmp_path: Path, script: str) -> None:
    found = run(variables | {"PYTHONPATH": str(tmp_path)}, "-m", "train", "x")
    assert (found.returncode, found.stdout) == (0, "rank 0 of 1 x\n"), found.stderr
    found = run(variables, "--no-python", "sh", "-c", "echo $RANK; exit 7")
    assert (found.returncode, found.stdout) == (7, "0\n"), found.stderr


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("raise", 1, "RuntimeError: a mistake"),
        ("exit", 3, "exit code 3"),
        ("kill", 137, "killed by SIGKILL"),
    ],
)
def test_a_failure_is_told_and_gives_the_exit_code(
    variables: dict[str, str], tmp_path: Path, script: str, how: str, code: int, told: str
) -> None:
    report = tmp_path / "report.json"
    done = run(variables, "--nproc-per-node=2", "--report", str(report), script, how)
    assert done.returncode == code, done.stderr
    summary = done.stderr.partition("train.py failed")[2]
    assert told in summary
    assert "rank 1" in summary
    assert "Traceback" not in done.stderr or how == "raise"
    found = json.loads(report.read_text())
    assert (found["exit_code"], found["failures"][0]["rank"]) == (code, 1)


def test_restarts_are_counted(variables: dict[str, str], script: str) -> None:
    done = run(variables, "--nproc-per-node=2", "--restarts=2/60s", script, "exit")
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("rank 1 of 2") == 3
    assert "restarts 2/2" in done.stderr


def started_with(handler: signal.Handlers, number: signal.Signals) -> list[str]:
    """Return how to start our command with a signal ignored, or not, whatever our caller did."""
    first = f"import os, signal, sys; signal.signal({number.value}, {handler.value})"
    start = f"{first}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", start, *HOLDFAST[1:]]


# A shell ignores the last two for what it starts in the background.
@pytest.mark.parametrize(
    ("name", "before"),
    [
        *[(name, signal.SIG_DFL) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")],
        *[(name, signal.SIG_IGN) for name in ("SIGINT", "SIGQUIT")],
    ],
)
def test_a_signal_ends_the_job_and_gives_its_code(
    variables: dict[str, str], script: str, name: str, before: signal.Handlers
) -> None:
    number = signal.Signals[name]
    with subprocess.Popen(
        [*started_with(before, number), "run", "--nproc-per-node=2", script, "wait"],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = sorted([process.stdout.readline(), process.stdout.readline()])
            assert lines == ["rank 0 of 2 wait\n", "rank 1 of 2 wait\n"]
            process.send_signal(number)
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert (process.returncode, out) == (128 + number, "")
    assert err.splitlines()[-1].endswith(f" s, no restart: stopped by {name}")
    key = "Ctrl-C" if name == "SIGINT" else name
    assert f"the workers have 30 s to end, a second {key} kills them" in err


def test_a_signal_that_a_shell_ignores_in_the_background_ends_the_search_for_the_others(
    variables: dict[str, str], script: str, free: int
) -> None:
    where = [f"--rdzv-endpoint=127.0.0.1:{free}", "--rdzv-conf=is_host=0"]
    with subprocess.Popen(
        [
            *started_with(signal.SIG_IGN, signal.SIGINT),
            "run",
            "--nnodes=2",
            "--rdzv-backend=c10d",
            *where,
            script,
        ],
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert "looking for the rendezvous" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_no_secret_is_left_with_the_logs_of_an_agent_that_dies(
    variables: dict[str, str], script: str, tmp_path: Path, free: int, name: str
) -> None:
    """Killed while its worker runs, or told to end while it looks for the others."""
    logs = tmp_path / "logs"
    flags = [f"--log-dir={logs}", "--tee=1"]
    if name == "SIGTERM":
        flags += ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-conf=is_host=0"]
        flags += [f"--rdzv-endpoint=127.0.0.1:{free}"]
    secrets = {"HOLDFAST_SECRET": "x" * 32, "TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    with subprocess.Popen(
        [*HOLDFAST, "run", *flags, script, "wait"],
        env=variables | secrets,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if name == "SIGTERM":
                assert "looking for the rendezvous" in process.stderr.readline()
            else:
                assert "rank 0 of 1" in process.stdout.readline()
            assert {path.name for path in logs.glob("*/*/*")} >= {"secret", "timers"}
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            process.send_signal(signal.Signals[name])
            process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    for child in children.split():  # one of them is the reaper
        await_end(int(child))
    assert process.returncode == -signal.Signals[name]
    kept = {path.name for path in logs.glob("*/*")}
    assert kept == ({"attempt_0"} if name == "SIGKILL" else set())


def test_an_interrupt_while_a_worker_starts_shows_no_traceback_of_ours(
    variables: dict[str, str], tmp_path: Path, script: str
) -> None:
    early = tmp_path / "early"
    early.mkdir()
    (early / "sitecustomize.py").write_text(
        "import os, signal\n"
        "if 'HOLDFAST_WORKER' in os.environ:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = run(variables | {"PYTHONPATH": str(early)}, "--max-restarts=0", script)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr


PIDS = Path("/sys/fs/cgroup/pids")


@pytest.mark.parametrize("most", [4, 8, 12])
def test_too_few_process_numbers_are_no_bug_of_ours(
    variables: dict[str, str], script: str, most: int
) -> None:
    group = PIDS / f"holdfast-test-{os.getpid()}-{most}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs root and the pids controller of control groups v1: {error.strerror}")
    try:
        (group / "pids.max").write_text(str(most))
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        done = subprocess.run(
            [*enter, *HOLDFAST, "run", "--warm=json", "--nproc-per-node=4", script],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    finally:
        group.rmdir()
    assert done.returncode in ((69,) if most < 12 else (0, 69)), done.stderr
    assert "Traceback" not in done.stderr


AIMED = """\
import os, signal, sys
from pathlib import Path
from holdfast.cli.main import main
from holdfast.process.output import logs
from holdfast.process.stop.containment import Containment

owner, name = {
    "kill": (Containment, "empty"),
    "remove": (logs, "remove_folder"),
    "end": (Containment, "_end_reaper"),
}[sys.argv[1]]
real = getattr(owner, name)

def hit(*args):
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    os.write(1, children.read_bytes() + b"\\n")
    os.kill(os.getpid(), int(sys.argv[2]))
    return real(*args)

setattr(owner, name, hit)
sys.exit(main(["run", "--no-python", "sh", "-c", "kill $PPID; exec sleep 1000"]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
@pytest.mark.parametrize("step", ["kill", "remove", "end"])
def test_a_second_signal_while_the_agent_tidies_up_leaves_nothing(
    variables: dict[str, str], tmp_path: Path, step: str, name: str
) -> None:
    """Not even SIGKILL: the reaper ends only when the folder with the secret is gone."""
    place = tmp_path / "temporary"
    place.mkdir()
    number = signal.Signals[name]
    done = subprocess.run(
        [sys.executable, "-c", AIMED, step, str(number.value)],
        env=variables | {"TMPDIR": str(place), "HOLDFAST_SECRET": "x" * 32},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    for child in done.stdout.split():  # the reaper, if it was there
        await_end(int(child))
    assert list(place.iterdir()) == []
    assert done.returncode in {-number, 128 + number}
    assert "Traceback" not in done.stderr


STUBBORN = """\
import os, signal, sys
if os.environ["RANK"] == "1":
    open(sys.argv[1]).close()
    raise RuntimeError("a mistake")
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\\n"))
open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""


def test_a_signal_while_a_failed_job_is_stopped_does_not_hide_the_failure(
    variables: dict[str, str], tmp_path: Path
) -> None:
    script, fifo = tmp_path / "stubborn.py", tmp_path / "fifo"
    script.write_text(STUBBORN)
    os.mkfifo(fifo)
    with subprocess.Popen(
        [*HOLDFAST, "run", "--nproc-per-node=2", "--shutdown-timeout=3", str(script), str(fifo)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "told\n"
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "First cause:\n  worker:     rank 1" in err
    assert "RuntimeError: a mistake" in err


@pytest.fixture
def host_that_waits(
    variables: dict[str, str], tmp_path: Path, free: int
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str], Path]]:
    """A host that is done and waits for the other node to leave; that node; what lets it go on."""
    door = tmp_path / "door"
    os.mkfifo(door)
    common = [
        *HOLDFAST,
        "run",
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free}",
    ]
    common += ["--event-log-handler=console", "--exit-barrier-timeout=0"]
    heed = "import os, signal, sys; signal.signal(15, signal.SIG_DFL)"
    start = [sys.executable, "-c", f"{heed}; os.execv(sys.executable, sys.argv[1:])"]
    variables["TMPDIR"] = str(tmp_path)  # a killed agent leaves it to the reaper

    def node(is_host: str, *program: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*start, *common, f"--rdzv-conf=is_host={is_host}", "--no-python", *program],
            env=variables,
            stderr=subprocess.PIPE,
            text=True,
        )

    with node("true", "true") as host, node("false", "cat", str(door)) as other:
        try:
            assert host.stderr is not None
            for line in host.stderr:
                if "JobEnded" in line:
                    break
            yield host, other, door
        finally:
            host.kill()
            other.kill()


def test_a_signal_after_the_end_does_not_change_it(
    host_that_waits: tuple[subprocess.Popen[str], subprocess.Popen[str], Path],
) -> None:
    host, other, door = host_that_waits
    for number in (0, signal.SIGTERM):  # before and after it: the other one needs what it hosts
        host.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            host.wait(0.5)
    with open(door, "wb"):
        pass
    assert (host.wait(LIMIT_S), other.wait(LIMIT_S)) == (0, 0)


def test_a_repeated_signal_after_the_end_hurries_the_exit(
    host_that_waits: tuple[subprocess.Popen[str], subprocess.Popen[str], Path],
) -> None:
    host, _, _ = host_that_waits
    for _ in range(600):  # how many are needed depends on what handles the first
        host.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.wait(0.1)
            break
    assert host.returncode == -signal.SIGTERM


# What may be wrong with the world: one clear line, the right exit code, and nothing was started.


@pytest.fixture
def taken() -> Iterator[int]:
    """A port with a listener that sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def free() -> Iterator[int]:
    """A port that no other process is given, and a server can listen on."""
    held = HeldPort("127.0.0.1")
    yield held.port
    held.close()


def troubled(variables: dict[str, str], *argv: str) -> tuple[int, str]:
    """Run; return the exit code and the last line, the only one that tells of no waiting."""
    done = run(variables, *argv)
    assert done.stdout == ""
    *others, last = done.stderr.splitlines()
    states = [line for line in others if "; waiting up to " not in line]
    assert all("  joining  " in line for line in states), done.stderr
    return done.returncode, last


def test_a_module_that_is_not_there(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    variables["PYTHONPATH"] = str(tmp_path)
    code, line = troubled(variables, "-m", "package.nothere")
    assert code == 2
    assert line.startswith("holdfast: module 'package.nothere': no module named 'package.nothere'")


def test_too_few_nodes_come(variables: dict[str, str], script: str, free: int) -> None:
    flags = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free}"]

    def wait_in_vain(seconds: float) -> None:
        conf = f"--rdzv-conf=join_timeout={seconds:g}"
        code, line = troubled(variables, *flags, conf, script)
        assert code == 75
        assert line.endswith(f"no round within {seconds:g} s: have 1 of 2: waiting for 1 more")

    with_more_time(wait_in_vain)


@pytest.mark.parametrize("backend", ["c10d", "etcd", "etcd-v2"])
def test_no_server_is_at_the_endpoint(
    variables: dict[str, str], script: str, free: int, backend: str
) -> None:
    flags = ["--nnodes=2", f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{free}"]
    flags += ["--rdzv-id=job"]

    def wait_in_vain(seconds: float) -> None:
        conf = f"--rdzv-conf=join_timeout={seconds:g}{',is_host=false' * (backend == 'c10d')}"
        code, line = troubled(variables, *flags, conf, script)
        assert code == 69
        assert f"cannot connect to 127.0.0.1:{free}: Connection refused" in line

    with_more_time(wait_in_vain)


def test_another_program_is_at_the_endpoint(
    variables: dict[str, str], script: str, taken: int
) -> None:
    flags = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{taken}"]
    code, line = troubled(variables, *flags, "--rdzv-conf=join_timeout=0.2", script)
    assert code == 69
    assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in line


def test_the_disk_of_the_logs_cannot_be_written(variables: dict[str, str], script: str) -> None:
    code, line = troubled(variables, "--log-dir=/proc/logs", "-r", "3", script)
    assert code == 2
    assert line == "holdfast: log folder '/proc/logs': cannot be made: No such file or directory"


def test_output_that_finds_no_room_is_told_and_the_job_goes_on(
    variables: dict[str, str], script: str
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*HOLDFAST, "run", "-t", "3", "--log-dir=/dev/null", script],
            env=variables,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("standard output: output is lost: No space left on device") == 1


def test_a_terminal_shows_the_node_below_and_is_given_back(
    variables: dict[str, str], script: str
) -> None:
    terminal = Terminal(12, 80)
    take = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(2, termios.TIOCSCTTY, 0)"
    start = f"{take}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", start, *HOLDFAST[1:], "run", "--nproc-per-node=2", script],
        env=variables | {"TERM": "xterm"},
        stdin=terminal.stream,
        stdout=terminal.stream,
        stderr=terminal.stream,
        check=False,
        timeout=LIMIT_S,
    )
    shown = terminal.look()
    terminal.close()
    assert done.returncode == 0, terminal.said
    assert [line for line in sorted(shown) if "rank" in line][-2:] == ["rank 0 of 2", "rank 1 of 2"]
    assert re.search(r"\S+  succeeded in \d+\.\d s, no restart", "".join(shown))
    assert terminal.screen.region == (0, 11)
    assert "running  round 1  ranks 0-1 of 2" in terminal.said


def test_nodes_at_a_standalone_store_are_asked_for_an_id(
    variables: dict[str, str], script: str
) -> None:
    with subprocess.Popen(
        [*HOLDFAST, "store", "serve", "tcp://127.0.0.1:0"],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            endpoint = server.stdout.readline().strip().removeprefix("export HOLDFAST_STORE=tcp://")
            meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
            code, line = troubled(variables, "--nnodes=2", *meet, script)
            for _ in range(2):  # one node has an id of its own each time
                done = run(variables, *meet, script)
                assert (done.returncode, done.stdout) == (0, "rank 0 of 1\n"), done.stderr
        finally:
            server.terminate()
    assert code == 2
    assert line == (
        f"holdfast: run id 'none': the store at {endpoint} outlives the job, so another is needed "
        "(--rdzv-id): give an id of its own to each job, the same on all its nodes"
    )


def test_a_run_that_has_ended_refuses_newcomers(tmp_path: Path) -> None:
    meet = ["--rdzv-backend", "file", "--rdzv-endpoint", str(tmp_path / "store")]
    command = [sys.executable, "-m", "holdfast", "run", *meet]
    script = ["--no-python", "echo", "ran"]

    def run(*words: str) -> tuple[int, str, str]:
        words = (*command, *words, *script)
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    assert run("--rdzv-id", "job7")[:2] == (0, "ran\n")
    code, said, complaint = run("--rdzv-id", "job7")
    assert (code, said) == (2, "")
    assert "run 'job7' ended at " in complaint
    assert "another id (--rdzv-id)" in complaint
    for _ in range(2):  # without an id, each has one of its own
        assert run()[:2] == (0, "ran\n")
