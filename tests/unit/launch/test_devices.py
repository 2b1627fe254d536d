"""How many workers a node gets, on machines that are folders made for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.launch.devices import count_workers


class Machine:
    """The kernel's folders of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, name: str, text: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def nvidia(self, files: int, known: int) -> None:
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(files))):
            self.file(f"dev/{name}")
        for n in range(known):
            self.file(f"proc/driver/nvidia/gpus/0000:{n:02}:00.0/information")

    def amd(self, *identities: int) -> None:
        for n, identity in enumerate(identities):
            self.file(f"sys/class/kfd/kfd/topology/nodes/{n}/gpu_id", f"{identity}\n")

    def render(self, *vendors: str) -> None:
        for n, vendor in enumerate(vendors, 128):
            self.file(f"dev/dri/renderD{n}")
            self.file(f"sys/class/drm/renderD{n}/device/vendor", f"{vendor}\n")

    def count(self, text: str, **variables: str) -> int:
        return count_workers(text, variables, self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def affinity() -> int:
    return len(os.sched_getaffinity(0))


def test_numbers() -> None:
    assert count_workers("1", {}) == 1
    assert count_workers("0012", {}) == 12


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "1.5", "", " 1", "many", "GPU", "\u0663", "9" * 30, "65537", "a\nb", "\udcff"],
)
def test_no_numbers(text: str) -> None:
    with pytest.raises(
        UsageError, match="must be a number from 1 to 65536, or auto, cpu, gpu or xpu"
    ):
        count_workers(text, {})


def test_this_machine_has_processors() -> None:
    assert 1 <= count_workers("cpu", {}) <= affinity()
    assert count_workers("auto", {}) >= 1


def test_the_quota_of_every_group_above_counts(machine: Machine) -> None:
    machine.file("proc/self/cgroup", "0::/job/part\n")
    machine.file("sys/fs/cgroup/job/part/cpu.max", "max 100000\n")
    assert machine.count("cpu") == affinity()
    machine.file("sys/fs/cgroup/job/cpu.max", "199999 100000\n")
    assert machine.count("cpu") == 1
    machine.file("sys/fs/cgroup/job/cpu.max", "5000 100000\n")  # less than one is one
    assert machine.count("cpu") == 1


@pytest.mark.parametrize(
    "text", ["", "4:cpu:/x\n", "0::/gone\n", "0::/odd\n"], ids=["none", "old", "gone", "odd"]
)
def test_without_a_quota_the_affinity_counts(machine: Machine, text: str) -> None:
    machine.file("proc/self/cgroup", text)
    machine.file("sys/fs/cgroup/odd/cpu.max", "1 0 0\n")
    assert machine.count("cpu") == affinity()


def test_device_files_count_before_what_the_driver_says(machine: Machine) -> None:
    machine.nvidia(files=2, known=8)  # a container with two of eight
    assert machine.count("gpu") == machine.count("auto") == 2


def test_what_the_driver_says_counts_where_there_are_no_files(machine: Machine) -> None:
    machine.nvidia(files=0, known=3)
    assert machine.count("gpu") == 3


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ("0", 1),
        ("3, 1", 2),
        ("0,1,7,2", 2),  # ends at the first that is not there
        ("0,-1,1", 1),
        ("1,1", 1),
        ("GPU-8f3a,GPU-77b0", 2),
        ("MIG-1,MIG-2,MIG-3,MIG-4,MIG-5", 5),
        ("9" * 40, 0),
        ("", 0),
        ("none", 0),
    ],
)
def test_the_user_chooses_among_the_devices(machine: Machine, chosen: str, count: int) -> None:
    machine.nvidia(files=4, known=4)
    if count:
        assert machine.count("gpu", CUDA_VISIBLE_DEVICES=chosen) == count
    else:
        with pytest.raises(UsageError):
            machine.count("gpu", CUDA_VISIBLE_DEVICES=chosen)
    expected = count or affinity()
    assert machine.count("auto", CUDA_VISIBLE_DEVICES=chosen) == expected


def test_devices_of_amd(machine: Machine) -> None:
    machine.amd(0, 4711, 4712, 4713)  # 0 is the processor
    assert machine.count("gpu") == 3
    assert machine.count("gpu", CUDA_VISIBLE_DEVICES="0,1") == 2
    assert machine.count("gpu", CUDA_VISIBLE_DEVICES="0,1", HIP_VISIBLE_DEVICES="2") == 1


def test_devices_of_intel(machine: Machine) -> None:
    machine.render("0x8086", "0x1002", "0x8086")
    machine.file("dev/dri/card0")
    assert machine.count("xpu") == machine.count("auto") == 2
    assert machine.count("xpu", ZE_AFFINITY_MASK="") == 2
    assert machine.count("xpu", ZE_AFFINITY_MASK="0.0,0.1") == 2
    assert machine.count("xpu", ZE_AFFINITY_MASK="1") == 1


@pytest.mark.parametrize("text", ["gpu", "xpu"])
def test_devices_that_are_not_there(machine: Machine, text: str) -> None:
    machine.render("0x1002")
    with pytest.raises(UsageError) as caught:
        machine.count(text, CUDA_VISIBLE_DEVICES="GPU-1")
    assert str(caught.value) == f"'{text}': this machine has none; give a number, or cpu, or auto"
    assert machine.count("auto") == affinity()
