"""A control group is made where we may, and what dead agents left there is removed."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

import pytest

from holdfast.clock import Deadline
from holdfast.process.stop import cgroup
from holdfast.process.stop.cgroup import make_cgroup, remove_cgroup
from holdfast.testing.clock import ManualClock

NAME = "holdfast-agent-" + 32 * "a"


@pytest.mark.parametrize("missing", ["/proc/mounts", "/proc/self/cgroup"])
def test_without_cgroup2_there_is_none_and_the_curious_are_told(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read_text = Path.read_text

    def emptied(path: Path) -> str:
        return "" if str(path) == missing else read_text(path)

    monkeypatch.setattr(Path, "read_text", emptied)
    with caplog.at_level(logging.DEBUG, "holdfast.process"):
        assert make_cgroup() is None
    assert "no control group" in caplog.text


def test_an_old_kernel_leaves_no_control_group_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(cgroup, "_own_cgroup", lambda: tmp_path)  # where cgroup.kill never appears
    assert make_cgroup() is None
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.procs"]


def test_a_control_group_of_a_dead_agent_is_removed_by_a_later_one() -> None:
    """CG-1."""
    made = make_cgroup()
    if made is None:
        pytest.skip("no control group of version 2 can be made here")
    path, lock = made
    (path / "nested").mkdir()
    later = make_cgroup()
    assert later is not None
    assert path.exists()
    os.close(lock)
    last = make_cgroup()
    assert last is not None
    assert not path.exists()
    for other, its_lock in (later, last):
        os.close(its_lock)
        remove_cgroup(other, Deadline.after(0), ManualClock())


@pytest.mark.parametrize("name", [NAME, "holdfast-agent-x", f"{NAME}b", "system.slice"])
def test_only_an_empty_one_of_ours_that_no_agent_holds_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """CG-1, by plain folders, which behave alike."""
    monkeypatch.setattr(cgroup, "_own_cgroup", lambda: tmp_path)
    group = tmp_path / name
    group.mkdir()
    lock = cgroup._hold(group)
    assert lock is not None
    make_cgroup()
    assert group.exists()
    os.close(lock)
    process = group / "process"
    process.touch()
    make_cgroup()
    assert process.exists()
    process.unlink()
    make_cgroup()
    assert group.exists() == (name != NAME)


def test_one_that_another_agent_is_removing_is_not_taken(tmp_path: Path) -> None:
    assert cgroup._hold(tmp_path / "gone") is None
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert cgroup._hold(tmp_path) is None
    os.close(other)


def test_if_each_is_taken_for_a_leftover_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_own_cgroup", lambda: tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(cgroup, "_hold", lambda path: path.rmdir())
    assert make_cgroup() is None
    assert list(tmp_path.iterdir()) == []
