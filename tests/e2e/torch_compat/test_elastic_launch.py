"""torch's launcher: functions, scripts and commands, and what programs replace of it by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock, patch

import pytest
import torch.distributed.run
from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.etcd_server import EtcdServer
from torch.distributed.launcher.api import (
    LaunchConfig,
    _get_entrypoint_name,
    elastic_launch,
    launch_agent,
)

from holdfast.rendezvous.port import HeldPort
from tests.e2e import entrypoints
from tests.e2e.reporting import TIMEOUT_S
from tests.e2e.torch_compat.agents import new_run

Config = Callable[..., LaunchConfig]

RUN = "torch.distributed.launcher.api.LocalElasticAgent.run"
AGENTS_RUN = "torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent.run"
RECORD = "torch.distributed.elastic.events.record"
GET_HANDLER = "torch.distributed.elastic.rendezvous.registry.get_rendezvous_handler"

SCRIPT = """
import os, pathlib, sys
folder, *told = sys.argv[1:]
assert not told or told == [f"--local-rank={os.environ['LOCAL_RANK']}"], told
assert os.environ["SAID_BY_THE_PARENT"] == "yes"
(pathlib.Path(folder) / os.environ["RANK"]).touch()
"""


@pytest.fixture
def config(etcd: str, log_dir: str) -> Config:
    """Make configurations over etcd: `config(workers, **more)`."""

    def make(workers: int = 4, nodes: tuple[int, int] = (1, 1), **more: Any) -> LaunchConfig:
        rdzv_configs = {"last_call_timeout": 0} | more.pop("rdzv_configs", {})
        fields: dict[str, Any] = {
            "run_id": new_run(),
            "rdzv_backend": "etcd",
            "rdzv_endpoint": etcd,
            "max_restarts": 0,
            "logs_specs": DefaultLogsSpecs(log_dir=log_dir),
        }
        return LaunchConfig(*nodes, workers, rdzv_configs=rdzv_configs, **(fields | more))

    return make


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SAID_BY_THE_PARENT", "yes")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    folder = tmp_path / "touched"
    folder.mkdir()
    return folder


def ranks_in(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


# What can be launched.


def test_a_python_script(config: Config, script: str, touched: Path) -> None:
    elastic_launch(config(), sys.executable)("-u", script, str(touched))
    assert ranks_in(touched) == [0, 1, 2, 3]


def test_a_script_that_is_told_its_local_rank(config: Config, script: str, touched: Path) -> None:
    args = ("-u", script, str(touched), "--local-rank=${local_rank}")
    elastic_launch(config(), sys.executable)(*args)
    assert ranks_in(touched) == [0, 1, 2, 3]


def test_a_shell_script(config: Config, tmp_path: Path, touched: Path) -> None:
    path = tmp_path / "script.sh"
    path.write_text('#!/bin/sh\n: > "$1/$RANK"\n')
    path.chmod(0o700)
    elastic_launch(config(), str(path))(str(touched))
    assert ranks_in(touched) == [0, 1, 2, 3]


def test_a_function(config: Config) -> None:
    returned = elastic_launch(config(), entrypoints.ten_and_rank)()
    assert returned == {0: 10, 1: 11, 2: 12, 3: 13}


def test_a_sum_with_fixed_ranks_and_a_given_master(config: Config) -> None:
    held = HeldPort("127.0.0.1")  # until the end: the agent can bind it all the same
    static = config(
        2,
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{held.port}",
        rdzv_configs={"rank": 0},
    )
    assert elastic_launch(static, entrypoints.sum_of_ranks)() == {0: 1, 1: 1}
    assert elastic_launch(static, entrypoints.add_after_rank_0)() == {0: 0, 1: 1}
    held.close()


def test_one_node_is_enough_where_one_or_two_may_come(config: Config) -> None:
    returned = elastic_launch(config(2, (1, 2)), entrypoints.ten_and_rank)()
    assert returned == {0: 10, 1: 11}


def test_the_command(script: str, touched: Path, tmp_path: Path) -> None:
    args = ["--standalone", "--nproc-per-node=2", f"--log-dir={tmp_path}", script, str(touched)]
    torch.distributed.run.main(args)
    assert ranks_in(touched) == [0, 1]


def test_the_command_of_a_script_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("raise RuntimeError('not today')")
    args = ["--standalone", "--nproc-per-node=1", f"--log-dir={tmp_path}", str(path)]
    with pytest.raises(ChildFailedError, match="RuntimeError: not today"):
        torch.distributed.run.main(args)


MAIN = """
import os, sys
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, LocalElasticAgent, elastic_launch

def ten_and_rank():
    return 10 + int(os.environ["RANK"])

if __name__ == "__main__":
    assert LocalElasticAgent.__module__.startswith("holdfast."), LocalElasticAgent
    logs = DefaultLogsSpecs(log_dir=sys.argv[1])
    config = LaunchConfig(1, 1, 2, logs, "main", rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    print(elastic_launch(config, ten_and_rank)())
"""


def run_by_command(*args: str) -> str:
    command = [sys.executable, "-m", "holdfast.torch_compat", *args]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_program_of_torchs_by_our_command(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(MAIN)
    assert run_by_command(str(path), str(tmp_path)) == "{0: 10, 1: 11}\n"


def test_torchs_command_by_ours(script: str, touched: Path, tmp_path: Path) -> None:
    options = ("--standalone", "--nproc-per-node=2", f"--log-dir={tmp_path}")
    run_by_command("-m", "torch.distributed.run", *options, script, str(touched))
    assert ranks_in(touched) == [0, 1]


def test_a_server_of_ones_own(config: Config) -> None:
    server = EtcdServer()
    server.start()
    try:
        where = f"{server.get_host()}:{server.get_port()}"
        assert server.get_endpoint() == where
        there = config(1, rdzv_backend="etcd-v2", rdzv_endpoint=where)
        assert elastic_launch(there, entrypoints.echo)("foo") == {0: "foo"}
    finally:
        server.stop()


# What goes wrong.


def test_failed_workers_are_an_error_of_their_own(config: Config) -> None:
    with patch(RECORD) as record, pytest.raises(ChildFailedError, match="sad because it must"):
        elastic_launch(config(4, (1, 2)), entrypoints.fail)()
    record.assert_called_once()


def test_what_recording_an_event_raises_goes_on(config: Config) -> None:
    with patch(RECORD, side_effect=OSError("full")), pytest.raises(OSError, match="full"):
        elastic_launch(config(1), entrypoints.nothing)()


def test_what_recording_the_event_of_a_mocked_agent_raises_goes_on(config: Config) -> None:
    with (
        patch(AGENTS_RUN) as run,
        patch(RECORD, side_effect=OSError("full")),
        pytest.raises(OSError, match="full"),
    ):
        elastic_launch(config(4, (1, 2)), sys.executable)("-u", "script.py")
    run.assert_called_once()


def test_an_error_of_the_agent_comes_back_as_it_was(config: Config) -> None:
    class Odd(Exception):
        pass

    with patch(AGENTS_RUN, side_effect=Odd), patch(RECORD) as record, pytest.raises(Odd):
        elastic_launch(config(), entrypoints.nothing)()
    record.assert_called_once()


# What becomes of the run.


def test_an_agent_and_a_handler_of_ones_own(config: Config) -> None:
    agent, handler = Mock(), Mock()
    agent.run.return_value = RunResult(WorkerState.SUCCEEDED)
    with (
        patch("torch.distributed.launcher.api.LocalElasticAgent", return_value=agent) as made,
        patch(GET_HANDLER, return_value=handler),
        patch(RECORD, wraps=events.record) as record,
    ):
        assert elastic_launch(config(), sys.executable)("-u", "script.py") == {}
    made.assert_called_once()
    assert made.call_args.kwargs["spec"].rdzv_handler is handler
    handler.shutdown.assert_called_once()
    record.assert_called_once()  # with what is no event
    assert record.call_args.args[0] is agent.get_event_succeeded.return_value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_run_open(config: Config, number: signal.Signals) -> None:
    handler = MagicMock()
    handler.get_run_id.return_value = "some"
    with (
        patch(RUN, side_effect=SignalException("test", number)),
        patch(GET_HANDLER, return_value=handler),
        patch("torch.distributed.launcher.api.events.record") as record,
        pytest.raises(SignalException),
    ):
        launch_agent(config(1), entrypoints.nothing, [])
    handler.shutdown.assert_not_called()
    record.assert_called_once()


def test_an_error_of_the_agent_closes_the_run(config: Config) -> None:
    handler = MagicMock()
    handler.get_run_id.return_value = "some"
    with (
        patch(RUN, side_effect=RuntimeError("any other")),
        patch(GET_HANDLER, return_value=handler),
        patch("torch.distributed.launcher.api.events.record") as record,
        pytest.raises(RuntimeError, match="any other"),
    ):
        launch_agent(config(1), entrypoints.nothing, [])
    handler.shutdown.assert_called_once()
    record.assert_called_once()


def test_the_name_of_an_entry_point() -> None:
    assert _get_entrypoint_name(entrypoints.nothing, []) == "nothing"
    assert _get_entrypoint_name(sys.executable, []) == ""
    assert _get_entrypoint_name(sys.executable, ["-u"]) == ""
    assert _get_entrypoint_name(sys.executable, ["-u", "script.py"]) == "script.py"
    assert _get_entrypoint_name(None, []) == ""


def test_workers_have_it_too(config: Config) -> None:
    (seen,) = elastic_launch(config(1), entrypoints.variables)().values()
    assert seen["PYTHONPATH"].split(os.pathsep)[0].endswith("torch_compat/site")
