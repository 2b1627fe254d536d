"""The launcher: what it returns and raises, what it gives the workers, and what it leaves."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import health
from holdfast.agent.machine import AgentMachine, State
from holdfast.agent.status import AgentStatus
from holdfast.errors import (
    RendezvousTimedOut,
    Signalled,
    StoreUnavailable,
    UsageError,
    WorkersFailed,
)
from holdfast.launch.config import LaunchConfig
from holdfast.launch.launcher import elastic_launch, run_job
from holdfast.launch.recordings import read_machines
from holdfast.observe.events import Event, JobEnded
from holdfast.observe.replay import LoadedRecording
from holdfast.observe.sinks import MemorySink
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import Function, Program, Script
from holdfast.process.watchdog import expires
from holdfast.rendezvous.machine import NodeMachine
from holdfast.store import client


def config(workers: int = 1, **changes: Any) -> LaunchConfig:
    return LaunchConfig(
        1, 1, workers, **{"rdzv_endpoint": "localhost:0", "max_restarts": 0, **changes}
    )


def ten_more(base: int) -> int:
    return base + int(os.environ["RANK"])


def raise_an_error() -> None:
    raise ValueError("no such luck")


def what_is_given(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def wait_to_be_told() -> None:
    signal.pause()


def test_results_come_back_by_rank() -> None:
    assert elastic_launch(config(2), ten_more)(10) == {0: 10, 1: 11}


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_a_function_takes_keyword_arguments(start_method: str) -> None:
    launch = elastic_launch(config(start_method=start_method), ten_more)
    assert launch(base=10) == {0: 10}


def test_the_configuration_comes_first() -> None:
    with pytest.raises(
        UsageError, match=r"must be a LaunchConfig, and comes first: elastic_launch"
    ):
        elastic_launch(ten_more, config())  # type: ignore[call-overload]


def limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def test_the_agent_may_open_many_files_and_its_workers_as_many_as_before() -> None:
    before = soft, hard = limits()
    few = min(soft, hard - 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    seen = set()
    try:
        results = run_job(config(), Function(limits), show=lambda _: seen.add(limits()))
        assert limits() == (few, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert results == {0: (few, hard)}
    assert seen == {(hard, hard)}


def test_the_endpoint_is_shown_before_it_is_contacted() -> None:
    shown: list[AgentStatus] = []
    static = config(rdzv_backend="static", rdzv_endpoint="127.0.0.1:4000")
    run_job(static, Function(ten_more, (0,)), show=shown.append)
    assert shown[0].state is State.JOINING
    assert shown[0].reason == "looking for the rendezvous at 127.0.0.1:4000"


def leave_if_first() -> int:
    rank = int(os.environ["RANK"])
    if rank == 0:
        sys.exit()
    return rank


def test_a_worker_that_leaves_well_has_returned_nothing_and_others_are_heard() -> None:
    assert elastic_launch(config(2), leave_if_first)() == {0: None, 1: 1}


def test_a_command_has_no_results(tmp_path: Path) -> None:
    script = tmp_path / "touch.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).touch()")
    assert run_job(config(), Script(str(script), (str(tmp_path / "done"),))) == {}
    assert (tmp_path / "done").exists()


def test_a_failure_is_raised_reported_and_left_where_the_caller_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, report = tmp_path / "reply.json", tmp_path / "report.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(reply))
    with pytest.raises(WorkersFailed, match="no such luck") as caught:
        run_job(config(report_file=report), Function(raise_an_error))
    assert caught.value.exit_code == 1
    assert caught.value.failures[0].message == "ValueError: no such luck"
    assert json.loads(reply.read_text())["message"]["message"] == "ValueError: no such luck"
    assert json.loads(report.read_text())["failures"][0]["type"] == "ValueError"


def lose_the_store_and_fail(server: int) -> None:
    os.kill(server, signal.SIGKILL)
    raise ValueError("no such luck")


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_failure_is_told_when_the_store_is_lost_while_it_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """AG-9: the error is that of the store; its note and the report have the failure, whole."""
    monkeypatch.setattr(client, "RECONNECT_WITHIN_S", 0.5)
    command = [sys.executable, "-m", "holdfast", "store", "serve", "tcp://127.0.0.1:0"]
    report = tmp_path / "report.json"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split("tcp://")[1].split()[0]
        told = config(rdzv_endpoint=address, report_file=report, max_restarts=restarts)
        with pytest.raises(StoreUnavailable, match="is lost") as caught:
            run_job(told, Function(lose_the_store_and_fail, (server.pid,)))
    [note] = caught.value.__notes__
    assert "First cause:" in note
    assert 'raise ValueError("no such luck")' in note
    found = json.loads(report.read_text())
    assert found["exit_code"] == 69
    assert "is lost" in found["reason"]
    assert 'raise ValueError("no such luck")' in found["failures"][0]["traceback"]


def test_a_report_that_cannot_be_written_hides_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(WorkersFailed):
        run_job(config(report_file=tmp_path / "no" / "report"), Function(raise_an_error))
    assert "report" in caplog.text


def test_what_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    events = MemorySink()
    with pytest.raises(UsageError, match="missing"):
        run_job(config(), Script(str(tmp_path / "missing.py")), sink=events)
    assert events.events == []


def test_a_secret_file_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nofile': no such file"):
        run_job(config(secret_file=tmp_path / "nofile"), Function(ten_more, (0,)))


def steps_of(report: Path) -> dict[str, list[str | None]]:
    """Return for each machine of a report what was recorded where that differs, for each step."""
    machines = read_machines(json.loads(report.read_text()))
    return {
        one.replayable.kind.name: [step.recorded for step in one.replay()]
        for one in machines
        if isinstance(one, LoadedRecording)
    }


def test_a_report_has_the_steps_of_both_machines(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with pytest.raises(WorkersFailed):
        run_job(config(report_file=report), Function(raise_an_error))
    steps = steps_of(report)
    assert steps.keys() == {"agent", "rendezvous"}
    for recorded in steps.values():
        assert recorded
        assert set(recorded) == {None}


def test_a_report_lies_beside_the_logs_that_are_kept(tmp_path: Path) -> None:
    logs = LogOptions(log_dir=tmp_path / "logs")
    assert run_job(config(logs=logs), Function(ten_more, (1,))) == {0: 1}
    assert list((tmp_path / "logs").glob("*/report.json")) == []
    with pytest.raises(WorkersFailed):
        run_job(config(logs=logs), Function(raise_an_error))
    [report] = (tmp_path / "logs").glob("*/report.json")
    assert json.loads(report.read_text())["failures"][0]["type"] == "ValueError"
    assert steps_of(report).keys() == {"agent", "rendezvous"}
    with pytest.raises(WorkersFailed):  # where the user says, and nowhere else
        run_job(config(logs=logs, report_file=tmp_path / "r.json"), Function(raise_an_error))
    assert [*(tmp_path / "logs").glob("*/report.json")] == [report]


def test_a_job_that_no_worker_failed_has_a_report_too(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    waiting = LaunchConfig(
        *(2, 2, 1),
        run_id="job",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"is_host": "true"},
        rdzv_timeout=0.5,
        report_file=report,
    )
    with pytest.raises(RendezvousTimedOut):
        run_job(waiting, Function(ten_more, (1,)))
    found = json.loads(report.read_text())
    assert (found["failures"], found["exit_code"]) == ([], 75)
    assert "no round within" in found["reason"]
    assert steps_of(report).keys() == {"agent", "rendezvous"}


@pytest.mark.parametrize("machine", ["agent", "rendezvous"])
def test_a_machine_that_raises_is_in_the_report_with_what_it_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    """OB-6: the bug shows again when the report is replayed, and is gone with its cause."""
    report = tmp_path / "report.json"

    def bug(self: object, *_: object) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        if machine == "agent":
            patch.setattr(AgentMachine, "joined", bug)
        else:
            patch.setattr(NodeMachine, "ask", bug)
        with pytest.raises((KeyError, StoreUnavailable)):
            run_job(config(report_file=report), Function(ten_more, (1,)))
        assert json.loads(report.read_text())["exit_code"] in (69, 70)
        assert set(steps_of(report)[machine]) == {None}
    [*_, recorded] = steps_of(report)[machine]
    assert recorded is not None
    assert "raises KeyError: 'a bug'" in recorded


def test_error_files_are_named_only_if_they_stay(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed) as caught:
        run_job(config(), Function(raise_an_error))
    assert caught.value.failures[0].error_file == ""
    logs = LogOptions(log_dir=tmp_path / "logs")
    with pytest.raises(WorkersFailed) as caught:
        run_job(config(logs=logs), Function(raise_an_error))
    assert Path(caught.value.failures[0].error_file).is_file()


@pytest.mark.parametrize("planted", ["link", "dangling link", "fifo", "folder"])
def test_a_report_replaces_a_regular_file_only(tmp_path: Path, planted: str) -> None:
    """A link that another user planted in /tmp, say, leads it nowhere."""
    report, victim = tmp_path / "report.json", tmp_path / "victim"
    match planted:
        case "link":
            victim.write_text("precious")
            report.symlink_to(victim)
        case "dangling link":
            report.symlink_to(victim)
        case "fifo":
            os.mkfifo(report)
        case _:
            report.mkdir()
    with pytest.raises(UsageError, match=r"report '.*report.json': must be a regular file"):
        run_job(config(report_file=report), Function(raise_an_error))
    assert not victim.exists() or victim.read_text() == "precious"


def test_a_link_that_is_planted_while_the_job_runs_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report, victim = tmp_path / "report.json", tmp_path / "victim"
    with pytest.raises(WorkersFailed):
        run_job(config(report_file=report), Function(plant, (str(report), str(victim))))
    assert not victim.exists()
    assert "must be a regular file" in caplog.text


def plant(report: str, victim: str) -> None:
    os.symlink(victim, report)
    raise ValueError("no such luck")


def test_a_report_replaces_an_earlier_one_whole(tmp_path: Path) -> None:
    report, kept = tmp_path / "report.json", tmp_path / "kept.json"
    report.write_text("x" * 100_000)
    os.link(report, kept)
    with pytest.raises(WorkersFailed):
        run_job(config(report_file=report), Function(raise_an_error))
    assert json.loads(report.read_text())["failures"]
    assert kept.read_text() == "x" * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "report.json"]


@pytest.mark.parametrize("end", ["", " ", "\n"])
def test_a_secret_reaches_workers_by_a_private_file(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET", f"not for everybody's eyes{end}")
    seen = elastic_launch(config(), read_the_secret)()[0]
    assert seen == {"variable": None, "text": "not for everybody's eyes", "mode": 0o600}


def test_a_job_succeeds_though_sigchld_was_ignored() -> None:
    earlier = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert set(elastic_launch(config(), os.getppid)()) == {0}
    finally:
        signal.signal(signal.SIGCHLD, earlier)


def test_the_secret_is_not_kept_with_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET", "not for everybody's eyes")
    elastic_launch(config(logs=LogOptions(log_dir=tmp_path)), read_the_secret)()
    assert [path.name for path in tmp_path.glob("*/*")] == ["attempt_0"]


def read_the_secret() -> dict[str, object]:
    path = Path(os.environ["HOLDFAST_SECRET_FILE"])
    return {
        "variable": os.environ.get("HOLDFAST_SECRET"),
        "text": path.read_text(),
        "mode": stat.S_IMODE(path.stat().st_mode),
    }


def test_timers_are_watched_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "TORCHELASTIC_TIMER_FILE"
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    ours = elastic_launch(config(), what_is_given)(name)[0][name]
    assert ours is not None
    assert Path(ours).name == "timers"
    assert not Path(ours).exists()
    path = tmp_path / "given"
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(path))
    assert elastic_launch(config(), what_is_given)(name) == {0: {name: str(path)}}
    assert not path.exists()
    path.write_text("taken")
    assert elastic_launch(config(), ten_more)(0) == {0: 0}
    assert "timers are not watched" in caplog.text


def hang() -> None:
    with expires(after=0.1, scope="a step"):
        threading.Event().wait()


def test_a_worker_whose_timer_expires_is_reported_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    with pytest.raises(WorkersFailed, match="the agent ended it: its timer 'a step#1'") as caught:
        elastic_launch(config(), hang)()
    assert caught.value.failures[0].exit.code == -signal.SIGKILL


def test_health_is_served_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []

    class Server:
        def __init__(self, where: str, status: Any, metrics: Any) -> None:
            self.status = status
            assert status() == {"state": "starting"}
            served.append(where)

        def start(self) -> None:
            served.append("start")

        def close(self) -> None:
            assert self.status()["state"] == "ended"
            served.append("close")

    monkeypatch.setattr(health, "HealthServer", Server)
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "127.0.0.1:0")
    run_job(config(), Function(ten_more, (0,)))
    assert served == ["127.0.0.1:0", "start", "close"]


def test_a_signal_ends_it_and_says_which_and_is_no_failure(tmp_path: Path) -> None:
    report = tmp_path / "report.json"

    def interrupt(status: AgentStatus) -> None:
        if status.state is State.RUNNING:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Signalled) as caught:
        run_job(config(report_file=report), Function(wait_to_be_told), show=interrupt)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert not report.exists()


def test_it_works_outside_the_main_thread() -> None:
    results: list[dict[int, Any]] = []
    thread = threading.Thread(target=lambda: results.append(elastic_launch(config(), ten_more)(1)))
    thread.start()
    thread.join(60)
    assert results == [{0: 1}]


def test_the_exit_barrier_can_be_replaced_and_fails_nothing() -> None:
    calls: list[int] = []

    def broken(here: Any, stopped: Any, deadline: Any) -> None:
        calls.append(here.number)
        raise RuntimeError("no barrier today")

    assert run_job(config(), Function(ten_more, (5,)), exit_barrier=broken) == {0: 5}
    assert calls == [1]


def test_an_error_of_the_agent_is_raised_as_it_is() -> None:
    def fail(status: AgentStatus) -> None:
        raise ZeroDivisionError("in the agent")

    with pytest.raises(ZeroDivisionError, match="in the agent"):
        run_job(config(), Function(ten_more, (0,)), show=fail)


def test_warm_standbys_serve_functions_and_are_no_use_to_programs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warm = config(warm=("json",))
    assert run_job(warm, Function(ten_more, (3,))) == {0: 3}
    assert caplog.text == ""
    assert run_job(warm, Program("true")) == {}
    assert "no worker is kept warm" in caplog.text


def test_events_are_told_as_json_if_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        run_job(config(event_log_handler="console"), Function(ten_more, (0,)))
    told = [json.loads(line) for line in caplog.messages if line.startswith("{")]
    assert "JobEnded" in [one["event"] for one in told]


def test_events_go_where_the_caller_wants() -> None:
    sink = MemorySink()
    run_job(config(), Function(ten_more, (0,)), sink=sink)
    ends: list[Event] = [event for event in sink.events if isinstance(event, JobEnded)]
    assert [str(event).endswith("all workers are done") for event in ends] == [True]
