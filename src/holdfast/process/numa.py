"""Which processors a worker should run on, so that its memory is near.

A machine may have several NUMA nodes: processors with memory of their own, to which some of the
GPUs are attached. Worker i belongs to the node of GPU i where the driver tells of the GPUs, and to
node i modulo their number where it does not. Then a binding chooses:

    node          all processors of that NUMA node
    socket        all processors of the socket that it is on
    exclusive     a share of the node's cores that is no other worker's
    core-complex  cores of the node that share one cache; another one for each worker, while there
                  are some

Everything is read from /sys and /proc, and kept to the processors that this process may use.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path

from holdfast.errors import UsageError

__all__ = ["Binding", "cpus_for"]

_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
_GPUS = "proc/driver/nvidia/gpus"
_PCI = "sys/bus/pci/devices"
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")

_log = logging.getLogger(__name__)


class Binding(StrEnum):
    """How a worker is bound, by torchrun's names."""

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


def cpus_for(
    binding: str | None,
    local_rank: int,
    local_world_size: int,
    *,
    visible_gpus: str | None = None,
    root: Path = Path("/"),
    allowed: Iterable[int] | None = None,
) -> frozenset[int] | None:
    """Return the processors of a worker, None for all that there are.

    `visible_gpus` is CUDA_VISIBLE_DEVICES if it is set. `root` is where the kernel's folders lie,
    `allowed` the processors to choose from; None for those that this process may use.
    """
    if binding is None:
        return None
    if binding not in list(Binding):
        raise UsageError(f"binding {binding!r:.40}: must be one of {', '.join(Binding)}")
    machine = _Machine(root, frozenset(_own() if allowed is None else allowed))
    if not machine.nodes:
        _tell(f"no binding to {binding}: this machine reports no NUMA nodes")
        return None
    places = machine.places(local_world_size, visible_gpus)
    node = places[local_rank]
    # The workers of the node share it, in the order of their ranks.
    sharing = [rank for rank, place in enumerate(places) if place == node]
    turn = sharing.index(local_rank)
    match Binding(binding):
        case Binding.NODE:
            return machine.nodes[node]
        case Binding.SOCKET:
            return machine.socket(node)
        case Binding.EXCLUSIVE:
            cores = machine.grouped(node, machine.core)
            if len(cores) < len(sharing):
                _tell(f"NUMA node {node} has {len(cores)} cores for {len(sharing)} workers")
                return machine.nodes[node]
            share, extra = divmod(len(cores), len(sharing))
            first = share * turn + min(turn, extra)  # what is left over goes to the lowest ranks
            return frozenset().union(*cores[first : first + share + (turn < extra)])
        case Binding.CORE_COMPLEX:
            complexes = machine.grouped(node, machine.cached_with)
            complexes.sort(key=lambda cpus: (-len(cpus), min(cpus)))
            return complexes[turn % len(complexes)]


class _Machine:
    """What the kernel tells of the machine."""

    def __init__(self, root: Path, allowed: frozenset[int]) -> None:
        self._root = root
        found = {
            int(folder.name[4:]): _numbers(folder / "cpulist") & allowed
            for folder in (root / _NODES).glob("node[0-9]*")
        }
        # A node may have memory alone, or nothing that we may use.
        self.nodes = {number: cpus for number, cpus in sorted(found.items()) if cpus}

    def places(self, workers: int, visible_gpus: str | None) -> list[int]:
        """Return the NUMA node of each worker."""
        gpus = self._gpus(visible_gpus)
        if len(gpus) >= workers and self.nodes.keys() >= set(gpus[:workers]):
            return gpus[:workers]
        numbers = list(self.nodes)
        return [numbers[rank % len(numbers)] for rank in range(workers)]

    def _gpus(self, visible: str | None) -> list[int]:
        """Return the NUMA nodes of the GPUs that workers see, as far as they are known."""
        folder = self._root / _GPUS
        addresses = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        nodes = [_number(self._root / _PCI / address / "numa_node") for address in addresses]
        chosen = range(len(nodes)) if visible is None else _indices(visible, len(nodes))
        # A machine with one node often says -1.
        return [max(node, 0) for index in chosen if (node := nodes[index]) is not None]

    def socket(self, node: int) -> frozenset[int]:
        """Return the processors of all nodes that are on the socket of this one."""
        package = self._package(node)
        if package is None:
            return self.nodes[node]
        together = [cpus for n, cpus in self.nodes.items() if self._package(n) == package]
        return frozenset().union(*together)

    def grouped(self, node: int, group: Callable[[int], frozenset[int]]) -> list[frozenset[int]]:
        """Return the processors of a node by what they share, ordered by the first of each."""
        groups: dict[int, set[int]] = {}
        for cpu in sorted(self.nodes[node]):
            groups.setdefault(min(group(cpu), default=cpu), set()).add(cpu)
        return [frozenset(cpus) for cpus in sorted(groups.values(), key=min)]

    def core(self, cpu: int) -> frozenset[int]:
        """Return the processors that are threads of the same core."""
        return _numbers(self._root / _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list")

    def cached_with(self, cpu: int) -> frozenset[int]:
        """Return the processors that share the last cache with this one."""
        folder = self._root / _CPUS / f"cpu{cpu}" / "cache"
        levels = {_number(path / "level") or 0: path for path in sorted(folder.glob("index[0-9]*"))}
        return _numbers(levels[max(levels)] / "shared_cpu_list") if levels else frozenset()

    def _package(self, node: int) -> int | None:
        first = min(self.nodes[node])
        return _number(self._root / _CPUS / f"cpu{first}" / "topology" / "physical_package_id")


def _own() -> Iterable[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not on this system
        return ()


def _numbers(path: Path) -> frozenset[int]:
    """Read a list such as `0-3,8`; empty if there is none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return frozenset()
    numbers: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is not None:
            first = int(found[1])
            numbers.update(range(first, int(found[2] or first) + 1))
    return frozenset(numbers)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _indices(visible: str, count: int) -> list[int]:
    """Return the numbers in a list such as `0,2`; a device that is not named so is not known."""
    parts = (part.strip() for part in visible.split(","))
    return [int(p) for p in parts if re.fullmatch("[0-9]{1,6}", p) and int(p) < count]


@cache
def _tell(text: str) -> None:
    """Warn, once for each text: every worker of every attempt asks."""
    _log.warning("%s", text)
