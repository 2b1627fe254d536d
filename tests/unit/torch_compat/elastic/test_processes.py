"""torch's worker processes by ours, without an agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, Std
from torch.distributed.elastic.multiprocessing.errors import _NOT_AVAILABLE
from torch.numa.binding import AffinityMode, NumaOptions

from holdfast.errors import HoldfastError
from holdfast.process.outcome.failure import Failure
from holdfast.process.spec import Exit
from holdfast.process.stop.handle import is_ending
from holdfast.torch_compat.elastic.processes import start_processes
from tests.waiting import until

Start = Callable[..., PContext]
WITHIN_S = 60

# What the workers do.


def add(one: int, other: int) -> int:
    return one + other


def fail_or_stay(fails: bool) -> None:
    if fails:
        raise RuntimeError("on purpose")
    signal.pause()


def leave_a_daemon(told: str) -> None:
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(f"{told}.new").write_text(str(daemon.pid))
    os.rename(f"{told}.new", told)
    signal.pause()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def say(text: str) -> None:
    print(text, flush=True)
    print(text.upper(), file=sys.stderr, flush=True)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """torch's contexts take these over for good."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start workers with these arguments each: `start(entrypoint, args…, **more)`."""
    started: list[PContext] = []

    def begin(entrypoint: Any, *args: tuple[Any, ...], **more: Any) -> PContext:
        context = start_processes(
            name="unit",
            entrypoint=entrypoint,
            args=dict(enumerate(args)),
            envs={rank: {"RANK": str(rank)} for rank in range(len(args))},
            logs_specs=more.pop("logs_specs", None) or DefaultLogsSpecs(log_dir=str(tmp_path)),
            **more,
        )
        started.append(context)
        return context

    yield begin
    for context in started:
        context.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_functions_return(start: Start, method: str) -> None:
    context = start(add, (1, 2), (3, 4), start_method=method)
    result = context.wait(WITHIN_S)
    assert result is not None
    assert not result.is_failed()
    assert result.return_values == {0: 3, 1: 7}
    assert context.wait(0) is result, "it stays as it was"


def test_a_command_takes_text_and_returns_nothing(start: Start, tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects=Std.OUT)
    context = start("echo", (1, [2]), ("x",), logs_specs=specs)
    result = context.wait(WITHIN_S)
    assert result is not None
    assert result.return_values == {0: None, 1: None}
    assert Path(result.stdouts[0]).read_text() == "1 [2]\n"
    assert Path(result.stdouts[1]).read_text() == "x\n"


def test_streams_go_where_torch_says(start: Start, tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects={0: Std.ALL, 1: Std.ERR})
    result = start(say, ("a",), ("b",), logs_specs=specs).wait(WITHIN_S)
    assert result is not None
    assert Path(result.stdouts[0]).read_text() == "a\n"
    assert Path(result.stderrs[0]).read_text() == "A\n"
    assert (result.stdouts[1], Path(result.stderrs[1]).read_text()) == ("", "B\n")


def test_tp2_one_that_fails_stops_the_others(start: Start) -> None:
    context = start(fail_or_stay, (False,), (True,))
    pids = context.pids()
    result = context.wait(WITHIN_S)
    assert result is not None
    assert set(result.failures) == {1}, "who was asked to end has not failed"
    failure = result.failures[1]
    assert (failure.pid, failure.exitcode, failure.local_rank) == (pids[1], 1, 1)
    assert failure.message["message"] == "RuntimeError: on purpose"
    assert context.pids() == pids
    assert all(map(gone, pids.values()))


def test_nothing_that_workers_have_started_outlives_their_context(
    start: Start, tmp_path: Path
) -> None:
    """TP-1 and TP-4."""
    told = tmp_path / "daemon"
    context = start(leave_a_daemon, (str(told),))
    until(told.exists)
    pids = [*context.pids().values(), int(told.read_text())]
    context.close()
    context.close()
    assert all(gone(pid) or is_ending(pid) for pid in pids)


def test_a_signal_is_told_with_what_is_known(start: Start) -> None:
    result = start(die, ()).wait(WITHIN_S)
    assert result is not None
    failure = result.failures[0]
    assert failure.exitcode == -signal.SIGKILL
    assert failure.message.startswith(f"Signal 9 (SIGKILL) received by PID {failure.pid}")


def test_a_death_without_a_message_comes_before_the_loss_of_a_peer(start: Start) -> None:
    context = start(add, (1, 2), (3, 4))
    assert context.wait(WITHIN_S) is not None
    lost = Failure(
        rank=0,
        local_rank=0,
        role="unit",
        host="",
        pid=1,
        exit=Exit(1),
        at=100.0,
        message="RuntimeError: Connection closed by peer",
    )
    died = replace(lost, rank=1, local_rank=1, exit=Exit(-9), at=100.5, message=str(Exit(-9)))
    context._failures = [lost, died]
    assert list(context._judge().failures) == [1, 0], "TP-3"


def test_where_no_logs_are_kept_the_cause_is_known_all_the_same(start: Start) -> None:
    result = start(fail_or_stay, (True,), logs_specs=DefaultLogsSpecs(log_dir=os.devnull)).wait(
        WITHIN_S
    )
    assert result is not None
    failure = result.failures[0]
    assert failure.message["message"] == "RuntimeError: on purpose"
    assert failure.error_file == _NOT_AVAILABLE


def test_a_wait_that_times_out_returns_none(start: Start) -> None:
    context = start(fail_or_stay, (False,))
    assert context.wait(0) is None
    assert context.wait(0.05, period=0.01) is None
    context.close(signal.SIGTERM, timeout=WITHIN_S)
    assert gone(context.pids()[0])
    context.close()


def test_what_cannot_be_started_leaves_nothing(start: Start) -> None:
    with pytest.raises(HoldfastError, match="no-such-program"):
        start("./no-such-program", (), ())


def test_a_context_starts_once(start: Start) -> None:
    context = start(add, (1, 2))
    with pytest.raises(ValueError, match="started already"):
        context.start()


def test_every_local_rank_has_its_arguments(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="local rank mapping mismatch"):
        start_processes("unit", add, {0: (1, 2)}, {}, DefaultLogsSpecs(log_dir=str(tmp_path)))


def test_ends_are_reported_though_sigchld_was_ignored(start: Start) -> None:
    earlier = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        result = start(add, (1, 2)).wait(WITHIN_S)
    finally:
        signal.signal(signal.SIGCHLD, earlier)
    assert result is not None
    assert result.return_values == {0: 3}


def test_processors_by_torchs_options(start: Start) -> None:
    options = NumaOptions(affinity_mode=AffinityMode.NODE)
    result = start(os.sched_getaffinity, (0,), numa_options=options).wait(WITHIN_S)
    assert result is not None
    assert result.return_values[0] <= os.sched_getaffinity(0)
