"""How many workers `auto`, `gpu`, `xpu` and `cpu` mean on this machine, found without torch.

cpu   the processors that this process may use: its affinity, and its control groups' quota
gpu   the devices of NVIDIA or AMD that CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES) leaves
xpu   the devices of Intel that ZE_AFFINITY_MASK leaves
auto  those of gpu if there are any, or else of xpu, or else of cpu
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from holdfast.agent.roles import WORKERS_MAX
from holdfast.errors import UsageError

__all__ = ["count_workers"]

_INTEL = "0x8086"


def count_workers(text: str, variables: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return how many workers a node gets for `--nproc-per-node`.

    `root` is where the kernel's folders lie.
    """
    if text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= WORKERS_MAX:
        return int(text[:10])
    match text:
        case "auto":
            return _gpus(variables, root) or _xpus(variables, root) or _cpus(root)
        case "cpu":
            return _cpus(root)
        case "gpu" | "xpu":
            found = (_gpus if text == "gpu" else _xpus)(variables, root)
            if not found:
                raise UsageError(f"{text!r}: this machine has none; give a number, or cpu, or auto")
            return found
        case _:
            raise UsageError(
                f"{text!r:.40} must be a number from 1 to {WORKERS_MAX}, or auto, cpu, gpu or xpu"
            )


def _cpus(root: Path) -> int:
    """Count the processors: never less than one."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        usable = os.cpu_count() or 1
    return max(1, min([usable, *_quotas(root)]))


def _quotas(root: Path) -> list[int]:
    """Return the whole processors that each control group above this process leaves it."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in lines if line.startswith("0::/")), "/")
    group = PurePosixPath(own.lstrip("/"))
    quotas = []
    for folder in (group, *group.parents):
        try:
            limit, period = (root / "sys/fs/cgroup" / folder / "cpu.max").read_text().split()
            quotas.append(int(limit) // int(period))
        except (OSError, ValueError):  # none of its own, or "max"
            continue
    return quotas


def _gpus(variables: Mapping[str, str], root: Path) -> int:
    # A container is given device files; the driver may tell it of the whole machine.
    nvidia = _count(root / "dev", r"nvidia[0-9]+") or _count(root / "proc/driver/nvidia/gpus")
    cuda = variables.get("CUDA_VISIBLE_DEVICES")
    if nvidia:
        return _visible(cuda, nvidia)
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    amd = sum(_text(nodes / name / "gpu_id") not in {"", "0"} for name in _names(nodes))
    return _visible(variables.get("HIP_VISIBLE_DEVICES", cuda), amd)


def _xpus(variables: Mapping[str, str], root: Path) -> int:
    cards = root / "sys/class/drm"
    intel = sum(
        _text(cards / name / "device/vendor") == _INTEL
        for name in _names(root / "dev/dri", r"renderD[0-9]+")
    )
    return _visible(variables.get("ZE_AFFINITY_MASK") or None, intel)


def _visible(chosen: str | None, present: int) -> int:
    """Count the devices that a list such as `0,2` or `GPU-8f3…` leaves of those present.

    The list ends at the first entry that names none, as the drivers have it. An empty one leaves
    nothing; None leaves all. `0.1` is a part of device 0.
    """
    if chosen is None:
        return present
    seen: set[str] = set()
    for entry in (part.strip() for part in chosen.split(",")):
        number = entry.partition(".")[0]
        by_number = number.isascii() and number.isdigit() and int(number[:10]) < present
        by_name = present > 0 and entry.startswith(("GPU-", "MIG-"))
        if entry in seen or not (by_number or by_name):
            break
        seen.add(entry)
    return len(seen)


def _count(folder: Path, pattern: str = ".*") -> int:
    return len(_names(folder, pattern))


def _names(folder: Path, pattern: str = ".*") -> list[str]:
    try:
        return [name for name in os.listdir(folder) if re.fullmatch(pattern, name)]
    except OSError:  # no such folder here, or none that we may look into
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
