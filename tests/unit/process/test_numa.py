"""Workers run near their memory and their GPU, on trees like those of real machines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.process import numa
from holdfast.process.numa import cpus_for

ALL = range(64)


@pytest.fixture(autouse=True)
def forget_what_was_told() -> Iterator[None]:
    numa._tell.cache_clear()
    yield
    numa._tell.cache_clear()


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def make_machine(
    root: Path,
    nodes: Sequence[str],
    *,
    sockets: Sequence[int] = (),
    threads: int = 2,
    complex_cores: int = 2,
    gpus: Sequence[int] = (),
) -> Path:
    """Make the folders of a machine: `nodes` are their processors, `gpus` the nodes they are at.

    `threads` processors in a row are a core, `complex_cores` cores in a row share a cache.
    """
    for number, cpus in enumerate(nodes):
        write(root / f"sys/devices/system/node/node{number}/cpulist", cpus)
        for cpu in numa._numbers(root / f"sys/devices/system/node/node{number}/cpulist"):
            folder = root / f"sys/devices/system/cpu/cpu{cpu}"
            if sockets:
                write(folder / "topology/physical_package_id", sockets[number])
            core = cpu - cpu % threads
            write(folder / "topology/thread_siblings_list", f"{core}-{core + threads - 1}")
            size = threads * complex_cores
            first = cpu - cpu % size
            # In no order, as the kernel gives no promise of one.
            for index, (level, shared) in enumerate(
                [(1, f"{core}-{core + threads - 1}"), (3, f"{first}-{first + size - 1}"), (2, cpu)]
            ):
                write(folder / f"cache/index{index}/level", level)
                write(folder / f"cache/index{index}/shared_cpu_list", shared)
    for number, node in enumerate(gpus):
        address = f"0000:{number:02x}:00.0"
        (root / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
        write(root / "sys/bus/pci/devices" / address / "numa_node", node)
    return root


def cpus(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(cpu for first, last in ranges for cpu in range(first, last + 1))


def bound(
    root: Path,
    binding: str,
    workers: int,
    *,
    visible_gpus: str | None = None,
    allowed: Sequence[int] = ALL,
) -> list[frozenset[int] | None]:
    return [
        cpus_for(binding, rank, workers, visible_gpus=visible_gpus, root=root, allowed=allowed)
        for rank in range(workers)
    ]


def test_workers_go_to_the_nodes_in_turn(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-3,8-11", "4-7,12-15"])
    zero, one = cpus((0, 3), (8, 11)), cpus((4, 7), (12, 15))
    assert bound(root, "node", 3) == [zero, one, zero]


def test_a_worker_goes_to_the_node_of_its_gpu(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-7", "8-15"], gpus=[1, 1, 0, 0])
    zero, one = cpus((0, 7)), cpus((8, 15))
    assert bound(root, "node", 4) == [one, one, zero, zero]
    assert bound(root, "node", 2) == [one, one]
    assert bound(root, "node", 2, visible_gpus="3, 0") == [zero, one]


@pytest.mark.parametrize("visible", ["", "0", "GPU-1,GPU-2", "7,8"])
def test_where_gpus_are_not_known_by_number_workers_go_in_turn(
    tmp_path: Path, visible: str
) -> None:
    root = make_machine(tmp_path, ["0-7", "8-15"], gpus=[1, 1])
    assert bound(root, "node", 2, visible_gpus=visible) == [cpus((0, 7)), cpus((8, 15))]


def test_more_workers_than_gpus_go_in_turn(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-7", "8-15"], gpus=[1])
    assert bound(root, "node", 2) == [cpus((0, 7)), cpus((8, 15))]


def test_a_gpu_of_no_node_is_at_the_first(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-7", "8-15"], gpus=[-1, -1])
    assert bound(root, "node", 2) == [cpus((0, 7))] * 2


def test_a_gpu_that_the_kernel_does_not_place_is_not_known(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-7", "8-15"], gpus=[1, 1])
    (root / "sys/bus/pci/devices/0000:00:00.0/numa_node").unlink()
    assert bound(root, "node", 2) == [cpus((0, 7)), cpus((8, 15))]


def test_only_processors_that_may_be_used_are(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-7", "8-15", ""], gpus=[1])
    assert bound(root, "node", 1, allowed=[1, 2, 9]) == [frozenset({9})]
    # Nothing of the node of its GPU is left.
    assert bound(root, "node", 1, allowed=[1, 2]) == [frozenset({1, 2})]
    # Nodes with memory alone are passed over.
    assert bound(root, "node", 3) == [cpus((0, 7)), cpus((8, 15)), cpus((0, 7))]


def test_a_socket_may_have_several_nodes(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-3", "4-7", "8-11", "12-15"], sockets=[0, 0, 1, 1])
    assert bound(root, "socket", 3) == [cpus((0, 7)), cpus((0, 7)), cpus((8, 15))]


def test_where_sockets_are_not_told_a_node_is_one(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-3", "4-7"])
    assert bound(root, "socket", 2) == [cpus((0, 3)), cpus((4, 7))]


def test_exclusive_workers_share_no_core(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-9", "10-15"], gpus=[0, 1, 0, 1])
    # Five cores of two threads for two workers, then three: the lower rank has the extra one.
    assert bound(root, "exclusive", 4) == [
        cpus((0, 5)),
        cpus((10, 13)),
        cpus((6, 9)),
        cpus((14, 15)),
    ]


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (5, 5), (8, 3), (11, 4), (32, 7)])
def test_exclusive_shares_cover_the_node_evenly(tmp_path: Path, cores: int, workers: int) -> None:
    root = make_machine(tmp_path, [f"0-{cores - 1}"], threads=1)
    shares = [share or frozenset() for share in bound(root, "exclusive", workers)]
    assert sorted(cpu for share in shares for cpu in share) == list(range(cores))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_too_few_cores_are_shared_after_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_machine(tmp_path, ["0-3"])
    assert bound(root, "exclusive", 3) == [cpus((0, 3))] * 3
    assert [r.getMessage() for r in caplog.records] == ["NUMA node 0 has 2 cores for 3 workers"]


def test_workers_get_caches_of_their_own_while_there_are_some(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-11"])
    found = bound(root, "core-complex", 4)
    assert found == [cpus((0, 3)), cpus((4, 7)), cpus((8, 11)), cpus((0, 3))]


def test_the_largest_cache_that_is_left_comes_first(tmp_path: Path) -> None:
    root = make_machine(tmp_path, ["0-11"])
    allowed = [0, 1, 2, 4, 5, 6, 7, 8]
    found = bound(root, "core-complex", 3, allowed=allowed)
    assert found == [cpus((4, 7)), cpus((0, 2)), frozenset({8})]


@pytest.mark.parametrize(
    ("binding", "expected"),
    [("exclusive", [cpus((0, 1)), cpus((2, 3))]), ("core-complex", [{0}, {1}])],
)
def test_where_cores_and_caches_are_not_told_each_processor_is_one(
    tmp_path: Path, binding: str, expected: list[frozenset[int]]
) -> None:
    write(tmp_path / "sys/devices/system/node/node0/cpulist", "0-3")
    assert bound(tmp_path, binding, 2) == expected


@pytest.mark.parametrize("text", [None, "", "many", "\N{SNOWMAN}"])
def test_a_machine_that_tells_nothing_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    if text is not None:
        write(tmp_path / "sys/devices/system/node/node0/cpulist", text)
    assert bound(tmp_path, "node", 2) == [None, None]
    assert [r.getMessage() for r in caplog.records] == [
        "no binding to node: this machine reports no NUMA nodes"
    ]


def test_without_a_binding_nothing_is_read(tmp_path: Path) -> None:
    assert cpus_for(None, 0, 1, root=tmp_path / "nowhere") is None


def test_a_binding_that_is_none_is_refused() -> None:
    with pytest.raises(
        UsageError, match="binding 'nodes': must be one of node, socket, exclusive, core-complex"
    ):
        cpus_for("nodes", 0, 1)


@pytest.mark.parametrize("binding", list(numa.Binding))
def test_this_machine(binding: str) -> None:
    """Whatever it is: a worker gets processors that it may use, or all of them."""
    found = cpus_for(binding, 0, 1)
    assert found is None or (found and found <= os.sched_getaffinity(0))


def test_a_system_without_affinity_binds_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    root = make_machine(tmp_path, ["0-3"])
    assert cpus_for("node", 0, 1, root=root) is None
