"""The user's private folder with an entry for each agent."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from holdfast.control.folder import EntryFolder, open_folder
from holdfast.control.jobs import AgentEntry
from holdfast.errors import Refused, UsageError


def entry(token: str) -> AgentEntry:
    return AgentEntry(token=token, run="a", host="vm", pid=1, started_at=2.0, endpoint="h:1")


@pytest.fixture
def folder(tmp_path: Path) -> EntryFolder:
    return open_folder(tmp_path / "state", host="vm")


def test_the_folder_is_private_and_of_this_boot(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "state", host="a/../b", boot_id="b1")
    assert folder.path == tmp_path / "state" / "jobs" / "a_.._b" / "b1"
    for path in (folder.path, *list(folder.path.parents)[:3]):
        assert path.stat().st_mode & 0o777 == 0o700
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert open_folder(tmp_path / "state", host="vm").path.name == boot


def test_entries_come_and_go(folder: EntryFolder) -> None:
    assert folder.entries() == []
    for token in ("t2", "t1"):
        folder.write(entry(token))
    assert folder.entries() == [entry("t1"), entry("t2")]
    folder.remove("t1")
    folder.remove("t1")
    assert folder.entries() == [entry("t2")]
    assert (folder.path / "t2.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[]", "{", '{"run": 3}', "x" * 100_000])
def test_what_is_no_entry_is_left_out(folder: EntryFolder, text: str) -> None:
    (folder.path / "odd.json").write_text(text)
    (folder.path / "odd.txt").write_text("")
    folder.write(entry("t1"))
    assert folder.entries() == [entry("t1")]


def test_what_was_left_before_the_last_boot_is_cleared(tmp_path: Path) -> None:
    old = open_folder(tmp_path, host="vm", boot_id="b1")
    old.write(entry("t1"))
    elsewhere = open_folder(tmp_path, host="other", boot_id="b1")
    elsewhere.write(entry("t3"))
    new = open_folder(tmp_path, host="vm", boot_id="b2")
    new.write(entry("t2"))
    new.clear_earlier_boots()
    assert not old.path.exists()
    assert new.entries() == [entry("t2")]
    assert elsewhere.entries() == [entry("t3")]  # a home that hosts share


def test_a_socket_may_lie_deeper_than_its_address_is_long(tmp_path: Path) -> None:
    deep = open_folder(tmp_path / ("d" * 100) / ("e" * 100), host="vm")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        deep.bind(listener, "t1")
        listener.listen()
        deep.connect(client, "t1")
    deep.remove("t1")
    assert os.listdir(deep.path) == []


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    open_folder(tmp_path, host="vm")
    (tmp_path / "jobs").chmod(0o755)
    with pytest.raises(Refused, match="mode 0755 lets others in; run chmod 700 on it"):
        open_folder(tmp_path, host="vm")


def test_a_link_or_a_file_in_the_folder_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "jobs").symlink_to(tmp_path / "real")
    with pytest.raises(Refused, match="must be a folder, and no link"):
        open_folder(tmp_path, host="vm")
    (tmp_path / "jobs").unlink()
    (tmp_path / "jobs").write_text("")
    with pytest.raises(Refused, match="File exists"):
        open_folder(tmp_path, host="vm")


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_folder(tmp_path, host="vm")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(Refused, match=f"belongs to user {me}, not to you"):
        open_folder(tmp_path, host="vm")


def test_a_user_without_a_home_is_told() -> None:
    with pytest.raises(UsageError, match="set HOME or XDG_STATE_HOME"):
        open_folder(None, host="vm")
