"""Only what an agent of this user left on this kernel is removed, and only when it has ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.process.stop import leftovers
from holdfast.process.stop.leftovers import (
    CANDIDATES_MAX,
    MARKER,
    hold_folder,
    remove_folder,
    remove_leftover_folders,
)


def left(folder: Path) -> Path:
    """Make a private folder as an agent leaves it that was killed."""
    folder.mkdir(parents=True, mode=0o700)
    (folder / "secret").write_text("secret")
    (folder / "attempt_0").mkdir()
    (folder / "attempt_0" / "error.json").touch()
    marker = hold_folder(folder)
    assert marker is not None
    os.close(marker)
    return folder


def test_the_folder_of_an_agent_that_lives_stays_and_goes_when_it_has_ended(tmp_path: Path) -> None:
    """LO-1."""
    folder = tmp_path / "holdfast_run_x"
    folder.mkdir(mode=0o700)
    marker = hold_folder(folder)
    assert marker is not None
    remove_leftover_folders(tmp_path)
    assert [path.name for path in folder.iterdir()] == [MARKER]
    os.close(marker)
    remove_leftover_folders(tmp_path)
    assert not folder.exists()


def test_the_logs_beside_a_private_folder_stay(tmp_path: Path) -> None:
    run = tmp_path / "holdfast_run_x"
    left(run / "private")
    run.chmod(0o700)
    (run / "stdout.log").touch()
    remove_leftover_folders(tmp_path)
    assert [path.name for path in run.iterdir()] == ["stdout.log"]


def another_name(folder: Path) -> None:
    folder.rename(folder.with_name("results"))


def others_may_write(folder: Path) -> None:
    folder.chmod(0o770)


def no_marker(folder: Path) -> None:
    (folder / MARKER).unlink()


def not_named_yet(folder: Path) -> None:
    (folder / MARKER).rename(folder / f"{MARKER}.new")


def another_kernel(folder: Path) -> None:
    (folder / MARKER).write_text("another")


def a_link(folder: Path) -> None:
    real = folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(real)


def a_linked_marker(folder: Path) -> None:
    (folder / MARKER).rename(folder / "real")
    (folder / MARKER).symlink_to(folder / "real")


def a_fifo(folder: Path) -> None:
    (folder / MARKER).unlink()
    os.mkfifo(folder / MARKER)


@pytest.mark.parametrize(
    "spoil",
    [
        *(another_name, others_may_write, no_marker, not_named_yet, another_kernel),
        *(a_link, a_linked_marker, a_fifo),
    ],
)
def test_what_may_be_anything_else_stays(tmp_path: Path, spoil: object) -> None:
    """LO-1."""
    assert callable(spoil)
    spoil(left(tmp_path / "holdfast_run_x"))
    remove_leftover_folders(tmp_path)
    assert list(tmp_path.glob("*/secret"))


def test_the_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LO-1."""
    folder = left(tmp_path / "holdfast_run_x")
    uid = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: uid + 1)
        remove_leftover_folders(tmp_path)
    assert folder.exists()


def test_links_in_a_folder_are_removed_and_not_followed(tmp_path: Path) -> None:
    """LO-1."""
    results = tmp_path / "results"
    results.mkdir()
    (results / "precious").touch()
    folder = left(tmp_path / "holdfast_run_x")
    (folder / "link").symlink_to(results)
    remove_leftover_folders(tmp_path)
    assert not folder.exists()
    assert (results / "precious").exists()


def test_one_search_opens_few_and_the_next_goes_on(tmp_path: Path) -> None:
    """LO-2."""
    for number in range(CANDIDATES_MAX + 1):
        left(tmp_path / f"holdfast_run_{number}")
    remove_leftover_folders(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    remove_leftover_folders(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_search_looks_at_so_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LO-2."""
    monkeypatch.setattr(leftovers, "ENTRIES_MAX", 3)
    for number in range(4):
        left(tmp_path / f"holdfast_run_{number}")
    remove_leftover_folders(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_marked_is_not(tmp_path: Path) -> None:
    assert hold_folder(tmp_path / "gone") is None
    (tmp_path / MARKER).mkdir()
    assert hold_folder(tmp_path) is None
    remove_leftover_folders(tmp_path / "gone")


def test_a_folder_that_is_gone_is_removed(tmp_path: Path) -> None:
    remove_folder(tmp_path / "gone")
