"""torch's file timer server by our watchdog."""

from __future__ import annotations

import queue
import signal
import subprocess
from pathlib import Path

import pytest
from torch.distributed.elastic.timer import FileTimerClient
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerRequest

from holdfast.errors import UsageError
from holdfast.torch_compat.elastic import timers
from holdfast.torch_compat.elastic.timers import FileTimerServer

WITHIN_S = 60


def test_only_a_worker_that_outlasts_its_timer_is_ended(tmp_path: Path) -> None:
    told: queue.SimpleQueue[tuple[str, FileTimerRequest | None]] = queue.SimpleQueue()
    path = tmp_path / "timers"
    server = FileTimerServer(str(path), "run", log_event=lambda *what: told.put(what))
    server.start()
    try:
        assert told.get(timeout=WITHIN_S) == ("watchdog started", None)
        client = FileTimerClient(str(path), signal=signal.SIGKILL)
        with subprocess.Popen(["sleep", "1000"]) as worker:
            client._send_request(FileTimerRequest(worker.pid, "step", 1.0, signal.SIGKILL))
            assert told.get(timeout=WITHIN_S)[0] == "timer expired"
            name, request = told.get(timeout=WITHIN_S)
            assert worker.wait(WITHIN_S) == -signal.SIGKILL
        assert (name, request is not None and request.scope_id) == ("kill worker process", "step")
        assert request is not None
        assert (request.worker_pid, request.signal) == (worker.pid, signal.SIGKILL)
        assert "step" in timers.why(worker.pid)
        assert server.get_last_progress_time() > 0
    finally:
        server.stop()
    assert told.get(timeout=WITHIN_S) == ("watchdog stopped", None)
    server.stop()
    assert told.empty()
    assert not path.exists()
    assert timers.why(worker.pid) == ""


def test_a_path_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "timers"
    path.touch()
    with pytest.raises(UsageError, match="timers"):
        FileTimerServer(str(path), "run").start()
    assert path.exists()


@pytest.mark.parametrize(
    "name", ["run_once", "register_timers", "clear_timers", "get_expired_timers"]
)
def test_what_looks_into_torchs_server_is_refused(tmp_path: Path, name: str) -> None:
    server = FileTimerServer(str(tmp_path / "timers"), "run")
    args = () if name == "run_once" else (0,)
    with pytest.raises(UsageError, match=f"{name}.* torch's alone"):
        getattr(server, name)(*args)
