"""The launcher as a function: scripts, programs and functions over etcd, and how its errors end."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.status import AgentStatus
from holdfast.errors import WorkersFailed
from holdfast.launch.config import LaunchConfig
from holdfast.launch.entrypoints import make_entrypoint
from holdfast.launch.launcher import elastic_launch, run_job
from holdfast.observe.events import Event, JobEnded, JobFailed
from holdfast.observe.sinks import MemorySink
from holdfast.rendezvous import backends
from holdfast.rendezvous.handler import Rendezvous
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.port import HeldPort
from tests.e2e import entrypoints
from tests.e2e.jobs import job_over, single

WORKERS = 4
PYTHON_SCRIPT = """\
import argparse, os

parser = argparse.ArgumentParser()
parser.add_argument("--touch-file-dir")
parser.add_argument("--local-rank", type=int)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()
assert os.environ["OF_THE_PARENT"] == "FOOBAR"
assert args.local_rank in (None, int(os.environ["LOCAL_RANK"]))
if args.fail:
    raise RuntimeError("raising, since --fail was given")
open(os.path.join(args.touch_file_dir, os.environ["RANK"]), "x").close()
"""
SHELL_SCRIPT = """\
#!/bin/sh
set -eu
[ "$OF_THE_PARENT" = FOOBAR ]
set -C
: > "$1/$RANK"
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TORCH", "PET_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OF_THE_PARENT", "FOOBAR")


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PYTHON_SCRIPT)
    return str(path)


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    """Where each worker leaves a file that has its rank for a name."""
    path = tmp_path / "touched"
    path.mkdir()
    return path


def ranks_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def ranks_of(world_size: int) -> set[str]:
    return set(map(str, range(world_size)))


def ends(events: list[Event]) -> list[Event]:
    """Return what was told of the job's end: it must be told once."""
    return [event for event in events if isinstance(event, (JobEnded, JobFailed))]


# What can be launched.


def test_a_python_script(etcd: str, script: str, touched: Path) -> None:
    launch = elastic_launch(single("etcd", etcd, WORKERS), sys.executable)
    assert launch("-u", script, f"--touch-file-dir={touched}") == {}
    assert ranks_in(touched) == ranks_of(WORKERS)


def test_a_script_that_is_told_its_local_rank(etcd: str, script: str, touched: Path) -> None:
    launch = elastic_launch(single("etcd", etcd, WORKERS), sys.executable)
    launch("-u", script, f"--touch-file-dir={touched}", "--local-rank=${local_rank}")
    assert ranks_in(touched) == ranks_of(WORKERS)


def test_a_shell_script(etcd: str, tmp_path: Path, touched: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SHELL_SCRIPT)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    assert elastic_launch(single("etcd", etcd, WORKERS), str(path))(str(touched)) == {}
    assert ranks_in(touched) == ranks_of(WORKERS)


def test_a_function(etcd: str) -> None:
    results = elastic_launch(single("etcd", etcd, WORKERS), entrypoints.ten_and_rank)()
    assert results == {0: 10, 1: 11, 2: 12, 3: 13}


@pytest.fixture
def static() -> Iterator[Callable[[int], LaunchConfig]]:
    """Yield what makes the configuration of a node with a fixed rank and a given master."""
    held = HeldPort("127.0.0.1")  # until the end: the agent can bind it all the same
    endpoint, own = f"127.0.0.1:{held.port}", {"rank": "0"}
    yield lambda workers: single("static", "", workers, rdzv_endpoint=endpoint, rdzv_configs=own)
    held.close()


def test_a_sum_with_fixed_ranks_and_a_given_master(static: Callable[[int], LaunchConfig]) -> None:
    results = elastic_launch(static(WORKERS), entrypoints.sum_of_ranks)()
    assert results == dict.fromkeys(range(WORKERS), sum(range(WORKERS)))


def test_the_store_at_a_given_master_outlives_rank_0(static: Callable[[int], LaunchConfig]) -> None:
    assert elastic_launch(static(2), entrypoints.add_after_rank_0)() == {0: 0, 1: 1}


def test_each_attempt_has_a_store_of_its_own_at_a_given_master(
    static: Callable[[int], LaunchConfig],
) -> None:
    config = replace(static(1), max_restarts=1)
    entrypoint = entrypoints.find_no_keys_of_the_attempt_before
    assert elastic_launch(config, entrypoint)() == {0: True}


# How many nodes.


def test_one_node_is_enough_where_one_or_two_may_come(
    etcd: str, script: str, touched: Path
) -> None:
    config = single("etcd", etcd, WORKERS, max_nodes=2)
    elastic_launch(config, sys.executable)("-u", script, f"--touch-file-dir={touched}")
    assert ranks_in(touched) == ranks_of(WORKERS)


def test_two_agents(etcd: str, script: str, touched: Path, tmp_path: Path) -> None:
    with job_over("etcd", etcd, tmp_path) as job:
        args = (sys.executable, "-u", script, f"--touch-file-dir={touched}")
        # The first waits that long for the second; a complete round waits for no node.
        patient = {"last_call_timeout": "60"}
        agents = [job.start(*args, nodes=(1, 2), workers=WORKERS, rdzv=patient) for _ in range(2)]
        assert [agent.returned() for agent in agents] == [{}, {}]
    assert ranks_in(touched) == ranks_of(2 * WORKERS)


# What goes wrong.


def test_failed_workers_are_an_error_of_their_own(etcd: str, script: str) -> None:
    sink = MemorySink()
    entrypoint = make_entrypoint(sys.executable, ["-u", script, "--fail"])
    with pytest.raises(WorkersFailed, match="raising, since --fail was given") as caught:
        run_job(single("etcd", etcd, WORKERS, max_nodes=2), entrypoint, sink=sink)
    assert caught.value.name == "train.py"
    [end] = ends(sink.events)
    assert isinstance(end, JobFailed)


class Unexpected(Exception):
    """What no part of the agent knows."""


@pytest.mark.parametrize("state", ["joining", "running", "ended"])
def test_an_error_of_the_agent_comes_back_as_it_was(etcd: str, state: str) -> None:
    def show(status: AgentStatus) -> None:
        looking = status.reason.startswith("looking for")  # there is no agent yet
        if status.state.value == state and not looking:
            raise Unexpected(state)

    sink = MemorySink()
    entrypoint = make_entrypoint(entrypoints.ten_and_rank)
    with pytest.raises(Unexpected):
        run_job(single("etcd", etcd, 2, max_nodes=2), entrypoint, show=show, sink=sink)
    assert len(ends(sink.events)) == 1


# What becomes of the rendezvous.


class Watched:
    """A backend that notes how its rendezvous are ended."""

    def __init__(self, backend: str) -> None:
        self._create = backends.BACKENDS[backend]
        self.calls: list[str] = []

    def __call__(self, parameters: RendezvousParameters) -> Rendezvous:
        made = self._create(parameters)
        for name in ("close", "shutdown"):
            setattr(made, name, self._noting(name, getattr(made, name)))
        return made

    def _noting(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **more: Any) -> Any:
            self.calls.append(name if not more.get("failed") else f"{name} as failed")
            return act(*args, **more)

        return noting


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The backend etcd, watched."""
    found = Watched("etcd")
    monkeypatch.setitem(backends.BACKENDS, "etcd", found)
    return found


def test_a_job_that_is_done_closes_its_run_and_leaves_it_once(etcd: str, watched: Watched) -> None:
    assert elastic_launch(single("etcd", etcd, 1), entrypoints.nothing)() == {0: None}
    assert watched.calls == ["close", "shutdown"]


def test_an_error_of_the_agent_closes_its_run_as_failed(etcd: str, watched: Watched) -> None:
    def show(status: AgentStatus) -> None:
        if status.state.value == "running":
            raise Unexpected

    with pytest.raises(Unexpected):
        run_job(single("etcd", etcd, 1), make_entrypoint(entrypoints.nothing), show=show)
    assert watched.calls == ["close as failed", "shutdown"]
