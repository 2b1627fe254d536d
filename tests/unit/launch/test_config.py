"""A configuration is right, or it is refused in one line that names what is wrong."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from holdfast.agent.policy import RestartBudget
from holdfast.errors import UsageError
from holdfast.launch.config import LaunchConfig, parse_signals


def config(**fields: Any) -> LaunchConfig:
    nodes = {"min_nodes": 1, "max_nodes": 2, "run_id": "job", "rdzv_endpoint": "node0:29400"}
    return LaunchConfig(**{**nodes, "nproc_per_node": 4, **fields})


def test_three_numbers_are_enough() -> None:
    found = LaunchConfig(1, 1, 4)
    assert (found.min_nodes, found.max_nodes, found.nproc_per_node) == (1, 1, 4)
    assert found.budget == RestartBudget(3)
    assert found.signals == (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT)
    assert (found.shutdown_timeout, found.exit_barrier_timeout) == (30.0, 300.0)


def test_what_the_seeds_give() -> None:
    found = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=4,
        run_id="",
        rdzv_endpoint="localhost:2379",
        monitor_interval=0.1,
        rdzv_backend="etcd",
        start_method="spawn",
        max_restarts=0,
        rdzv_configs={},
    )
    parameters = found.rendezvous("made-up")
    assert (parameters.backend, parameters.endpoint) == ("etcd", "localhost:2379")
    assert (parameters.run_id, parameters.join_s) == ("made-up", 600.0)


def test_it_cannot_be_changed() -> None:
    given: dict[str, str | float | None] = {"join_timeout": "77"}
    found = config(rdzv_configs=given)
    given["join_timeout"] = "8"
    assert found.rendezvous("r").join_s == 77.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.max_nodes = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_rendezvous_hears_of_the_secret() -> None:
    assert config(secret_file=Path("/s")).rendezvous("r").secret_file == Path("/s")


def test_its_own_timeout_beats_the_other_ways_to_say_it() -> None:
    found = config(rdzv_configs={"join_timeout": "7", "timeout": 8}, rdzv_timeout=60)
    assert found.rendezvous("r").join_s == 60.0


def test_a_window_of_restarts() -> None:
    assert config(max_restarts=2, restart_window_s=60).budget == RestartBudget(2, 60)


@pytest.mark.parametrize(
    "fields",
    [
        {"master_addr": "::1", "master_port": 1},
        {"master_addr": "[::1]", "master_port": 65535},
        {"master_addr": "node-0.job", "local_addr": "10.0.0.1"},
        {"warm": ("torch", "my.module"), "numa_binding": "core-complex"},
        {"secret_file": Path("s"), "report_file": Path("r"), "event_log_handler": "console"},
        {"rdzv_backend": "of-a-package", "rdzv_configs": {"its": "own"}, "rdzv_endpoint": ""},
        {"restart_on": ("oom",), "no_restart_on": ("SIGABRT",), "max_same_failures": 2},
        {"stall_after": 600},
        {"restart_backoff": 5.0, "restart_backoff_max": 5.0},
        {"start_method": "forkserver", "signals_to_handle": "", "shutdown_timeout": 0},
    ],
)
def test_right_values(fields: dict[str, Any]) -> None:
    found = config(**fields)
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"min_nodes": 0}, "nodes 0:2: must be MIN:MAX with 1 <= MIN <= MAX"),
        ({"min_nodes": 3}, "nodes 3:2: must be MIN:MAX with 1 <= MIN <= MAX"),
        ({"max_nodes": "2"}, "nodes 1:'2': must be MIN:MAX with 1 <= MIN <= MAX"),
        ({"nproc_per_node": 0}, "nproc_per_node 0: must be a whole number from 1 to 65536"),
        ({"nproc_per_node": 1 << 17}, "nproc_per_node 131072: must be a whole number from 1 to"),
        ({"nproc_per_node": True}, "nproc_per_node True: must be a whole number from 1 to 65536"),
        ({"nproc_per_node": "gpu"}, "nproc_per_node 'gpu': must be a whole number from 1 to 65536"),
        ({"run_id": "../x"}, "run id '../x': 1 to 128 letters, digits, '.', '_' and '-' are"),
        ({"run_id": ""}, "run_id '': a job of up to 2 nodes needs one; give the same name on each"),
        ({"restart_on": "oom"}, "restart_on 'oom': must be a tuple, not str"),
        ({"no_restart_on": ("0",)}, "cause '0': must be an exit code, SIGNAME"),
        ({"stall_after": 0}, "stall_after 0: must be more than 0 seconds"),
        ({"restart_backoff": -1}, "restart_backoff -1: must be zero or more seconds"),
        ({"restart_backoff": 99}, "restart backoff 99 to 60 seconds: must be FIRST or FIRST:MOST"),
        ({"max_same_failures": 1}, "max same failures 1: must be a whole number from 2 to 100"),
        ({"role": ""}, "role '': must be 1 to 128 printable characters"),
        ({"role": "a\nb"}, "role 'a\\nb': must be 1 to 128 printable characters"),
        ({"role": 7}, "role 7: must be 1 to 128 printable characters"),
        ({"rdzv_backend": ""}, "rendezvous backend ''"),
        ({"rdzv_endpoint": 7}, "rendezvous endpoint 7: must be a str"),
        (
            {"rdzv_endpoint": ""},
            "rdzv_endpoint '': a job of up to 2 nodes needs one; give the same host:port on each",
        ),
        (
            {"rdzv_endpoint": "", "rdzv_backend": "static", "min_nodes": 2},
            "rdzv_endpoint '': a job of up to 2 nodes needs one",
        ),
        ({"rdzv_configs": "a=b"}, "rdzv_configs 'a=b': must be a Mapping, not str"),
        ({"rdzv_configs": {"last_cal_timeout": 1}}, "did you mean 'last_call_timeout'?"),
        ({"rdzv_timeout": -1}, "rdzv_timeout -1: must be zero or more seconds"),
        ({"max_restarts": -1}, "max restarts -1: must be 0, 1, 2 ..."),
        ({"restart_window_s": 0}, "window of restarts 0: must be more than 0 seconds"),
        ({"monitor_interval": 0}, "monitor_interval 0: must be more than 0 seconds"),
        ({"monitor_interval": "1"}, "monitor_interval '1': must be more than 0 seconds"),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout nan: must be zero or more seconds"),
        ({"exit_barrier_timeout": float("inf")}, "exit_barrier_timeout inf: must be zero or more"),
        ({"exit_barrier_timeout": True}, "exit_barrier_timeout True: must be zero or more"),
        ({"start_method": "thread"}, "start_method 'thread': must be one of spawn, fork, forks"),
        ({"logs": {}}, "logs {}: must be a LogOptions, not dict"),
        ({"local_addr": "a:1"}, "local address 'a:1': must be a host name or an IP address"),
        ({"master_addr": "a b"}, "master_addr 'a b': must be a host name or an IP address"),
        ({"master_addr": 7}, "master_addr 7: must be a host name or an IP address"),
        ({"master_port": 0}, "master_port 0: must be a whole number from 1 to 65535"),
        ({"master_port": 65536}, "master_port 65536: must be a whole number from 1 to 65535"),
        ({"event_log_handler": "x"}, "event_log_handler 'x': must be one of null, console"),
        ({"signals_to_handle": 15}, "signals_to_handle 15: must be a str, not int"),
        ({"signals_to_handle": "SIGFOO"}, "signals_to_handle 'SIGFOO': unknown; write names"),
        ({"signals_to_handle": "SIGKILL"}, "signals_to_handle 'SIGKILL': no process can handle"),
        ({"virtual_local_rank": 1}, "virtual_local_rank 1: must be a bool, not int"),
        ({"warm": ["torch"]}, "warm ['torch']: must be a tuple, not list"),
        ({"warm": ("a", "b-c")}, "warm 'b-c': must be the name of a module"),
        ({"warm": (7,)}, "warm 7: must be the name of a module"),
        ({"numa_binding": "all"}, "numa_binding 'all': must be one of node, socket, exclusive"),
        ({"secret_file": "s"}, "secret_file 's': must be a Path, not str"),
        ({"metrics_port": "9x"}, "metrics_port '9x': must be a port of loopback from 0"),
        ({"page": "x"}, "page 'x': must be a port of loopback from 0"),
        ({"metrics_port": 9100}, "metrics_port 9100: must be a port of loopback from 0"),
        ({"report_file": b"r"}, "report_file b'r': must be a Path, not bytes"),
    ],
)
def test_wrong_values_are_refused_in_one_line(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        config(**fields)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_signals_are_read_in_order_each_once() -> None:
    assert parse_signals(" SIGUSR1, SIGTERM,,SIGUSR1") == (Signals.SIGUSR1, Signals.SIGTERM)
