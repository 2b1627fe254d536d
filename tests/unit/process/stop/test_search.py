"""Processes are found where they are, and only those."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.process.stop import search
from holdfast.process.stop.search import children, descendants, environment_of, members
from holdfast.testing.clock import ManualClock

# Starts a shell that starts another process and says its number; both wait for their input's end.
TREE = "sh -c 'cat <&3 & echo $!; wait' & wait"


def test_members_of_a_control_group_are_those_of_the_groups_below_it(tmp_path: Path) -> None:
    below = tmp_path / "one" / "two"
    below.mkdir(parents=True)
    (tmp_path / "cgroup.procs").write_text("3\n5\n")
    (below / "cgroup.procs").write_text("7\n")
    assert sorted(members(tmp_path)) == [3, 5, 7]
    assert members(tmp_path / "removed") == []


def test_descendants_are_found_in_every_generation() -> None:
    with subprocess.Popen(
        ["sh", "-c", f"exec 3<&0; {TREE}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        last = int(process.stdout.readline())
        assert last in descendants(process.pid)
        assert last not in list(children(process.pid))
        assert process.pid in descendants(os.getpid())
        process.kill()
        for pid in descendants(process.pid):
            os.kill(pid, 9)


def test_if_one_ends_meanwhile_all_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its children are those of another process by then."""
    tree: dict[int, list[int] | None] = {}
    trees: list[dict[int, list[int] | None]] = [{1: [2], 2: None}, {1: [3], 3: [4], 4: []}]
    reads = iter(trees)

    def told(pid: int) -> list[int]:
        if pid == 1:
            tree.clear()
            tree.update(next(reads))
        found = tree[pid]
        if found is None:
            raise FileNotFoundError
        return found

    monkeypatch.setattr(search, "children", told)
    assert descendants(1) == [3, 4]


def test_a_crowd_that_is_never_at_rest_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(pid: int) -> list[int]:
        if pid != 1:
            raise FileNotFoundError
        return [2]

    monkeypatch.setattr(search, "children", told)
    assert descendants(1) == [2]


# Environments.


def stat(state: str = "R", flags: int = 0, code: int = 1, start: int = 7, end: int = 7) -> bytes:
    """A line of /proc/PID/stat with these values."""
    fields = ["0"] * 50
    fields[0], fields[6], fields[23], fields[47], fields[48] = (
        state,
        *map(str, (flags, code, start, end)),
    )
    return f"1 (a) b) {' '.join(fields)}\n".encode()


@pytest.mark.parametrize(
    ("line", "none"),
    [
        (stat(), True),
        (stat(code=0), False),  # its environment is about to be set
        (stat(start=0, end=0), False),
        (stat(end=8), False),
        (stat("Z", start=0, end=0), True),
        (stat(flags=0x200000, start=0, end=0), True),
    ],
)
def test_a_process_has_no_environment_only_once_its_program_is_loaded(
    line: bytes, none: bool
) -> None:
    assert search._has_none(line) is none


def test_a_process_that_becomes_another_program_slowly_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, looks = ManualClock(), iter([b""] * 500 + [b"A=1\0B=2\0"])
    monkeypatch.setattr(search, "_read_environment", lambda pid: next(looks))
    monkeypatch.setattr(search, "_has_none", lambda line: False)
    assert environment_of(os.getpid(), clock)[:2] == [b"A=1", b"B=2"]
    monkeypatch.setattr(search, "_read_environment", lambda pid: b"")
    before = clock.monotonic()
    assert environment_of(os.getpid(), clock) == []
    assert clock.monotonic() - before >= search.EXEC_WITHIN_S


@pytest.mark.parametrize("size", [1, 1 << 16, 1 << 19])
def test_an_environment_is_read_whole(size: int) -> None:
    names = {f"V{number}": "x" * 1000 for number in range(size // 1000)} | {"LAST": "1"}
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env=names) as process:
        found = environment_of(process.pid)
    assert b"LAST=1" in found
    assert len(found) == len(names) + 1


def test_an_empty_environment_is_one() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={}) as process:
        assert environment_of(process.pid) == [b""]
