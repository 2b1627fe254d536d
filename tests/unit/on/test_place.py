"""What a launcher says becomes flags."""

from __future__ import annotations

import pytest

from holdfast.ids import run_id
from holdfast.on.place import PORTS, NodePlace, name_of, port_for


def place(**more: object) -> NodePlace:
    facts: dict[str, object] = {
        "engine": "x",
        "told": "job 7",
        "run_id": "x-7",
        "nodes": 3,
        "rank": 1,
        "host": "n0",
        "port": 20007,
        "hosts_store": False,
    }
    return NodePlace(**facts | more)  # type: ignore[arg-type]


def test_a_place_gives_values_to_flags() -> None:
    assert place().flags() == {
        "nnodes": "3",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "n0:20007",
        "rdzv_id": "x-7",
    }
    found = place(host="fd00::1", workers=8, grace_s=25.0).flags()
    assert found["rdzv_endpoint"] == "[fd00::1]:20007"
    assert found["nproc_per_node"] == "8"
    assert found["shutdown_timeout"] == "25"


@pytest.mark.parametrize(
    ("backend", "own", "hosts_store", "conf"),
    [
        ("c10d", True, True, "rank=1,is_host=true"),
        ("c10d", True, False, "rank=1,is_host=false"),
        ("c10d", True, None, "rank=1"),
        ("c10d", False, True, "rank=1"),
        ("static", True, True, "rank=1"),
        ("etcd", True, True, ""),
    ],
)
def test_what_it_adds_depends_on_what_the_user_has_chosen(
    backend: str, own: bool, hosts_store: bool | None, conf: str
) -> None:
    assert place(hosts_store=hosts_store).conf(backend, own_endpoint=own) == conf


def test_a_port_follows_from_the_run() -> None:
    ports = {port_for(f"slurm-{job}-0-0") for job in range(100)}
    assert len(ports) > 90
    assert all(port in PORTS for port in ports)
    assert port_for("a") == port_for("a")


def test_a_name_has_only_what_an_id_may_have() -> None:
    assert name_of("mpi", "kvs_1:2 é/3") == "mpi-kvs_1-2---3"
    assert run_id(name_of("x", "y" * 500))
