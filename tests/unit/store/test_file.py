"""The file store: its files, its locks, and what a killed or failing writer leaves behind."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.clock import Deadline
from holdfast.errors import (
    Fenced,
    LeaseLost,
    Refused,
    StoreBusy,
    StoreUnavailable,
    TimeoutExpired,
    UsageError,
)
from holdfast.store import file as file_module
from holdfast.store.fenced import FencedStore
from holdfast.store.file import FileStore
from holdfast.store.keyspace import Keyspace
from holdfast.store.ops import AnyOp, Change
from holdfast.testing.clock import ManualClock
from tests.unit.store.test_keyspace import OPS
from tests.waiting import with_more_time

TIMEOUT_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let logs be compacted all the time."""
    monkeypatch.setattr(file_module, "_COMPACT_BYTES_MIN", 500)


# Files.


def test_nothing_is_touched_before_the_first_operation(path: Path) -> None:
    with FileStore(path):
        assert not list(path.parent.iterdir())


def test_files_are_private_whatever_the_umask(path: Path) -> None:
    old = os.umask(0)
    try:
        with FileStore(path) as store:
            store.set("k", b"v")
    finally:
        os.umask(old)
    assert sorted(p.name for p in path.parent.iterdir()) == ["store", "store.lock"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {0o600}


def test_an_endpoint_is_absolute(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with FileStore("store") as store:
        monkeypatch.chdir("/")
        store.set("k", b"v")
        assert store.endpoint == f"file://{path}"
    assert path.exists()


def test_an_empty_file_is_an_empty_store(path: Path) -> None:
    path.touch(mode=0o600)
    with FileStore(path) as store:
        assert store.add("n") == 1


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_bad_path_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="must be the name of a file"):
        FileStore(name)


@pytest.mark.parametrize("which", ["store", "store.lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "fifo"])
def test_what_is_no_regular_file_is_refused(path: Path, kind: str, which: str) -> None:
    wrong = path.parent / which
    match kind:
        case "link":
            (path.parent / "target").touch()
            wrong.symlink_to(path.parent / "target")
        case "dangling link":
            wrong.symlink_to(path.parent / "target")
        case "directory":
            wrong.mkdir()
        case "fifo":
            os.mkfifo(wrong)
    with FileStore(path) as store, pytest.raises(UsageError) as caught:
        store.get("k")
    assert str(caught.value) == f"{wrong}: must be a regular file, and no symbolic link"
    assert not (path.parent / "target").exists() or kind == "link"


def test_a_file_that_others_may_write_is_refused(path: Path) -> None:
    with FileStore(path) as store:
        store.get("k")
    path.chmod(0o620)
    with FileStore(path) as store, pytest.raises(Refused, match=r"others may write it .*0620"):
        store.get("k")


def test_a_file_of_another_user_is_refused(path: Path) -> None:
    if os.geteuid() == 0:
        with FileStore(path) as store:
            store.get("k")
        os.chown(path, 65534, -1)
    else:
        path = Path("/etc/passwd")
    with FileStore(path) as store, pytest.raises(Refused, match=str(path)):
        store.get("k")


def test_a_file_of_another_kind_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("my diary\n" * 100)
    path.chmod(0o600)
    with FileStore(path) as store:
        for _ in range(2):
            with pytest.raises(UsageError, match="is not a holdfast store"):
                store.set("k", b"v")
    assert path.read_text() == "my diary\n" * 100


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    message = f"there is no directory {tmp_path}/no$"
    with (
        FileStore(tmp_path / "no" / "store") as store,
        pytest.raises(StoreUnavailable, match=message),
    ):
        store.get("k")


def test_a_removed_file_is_an_error_and_never_an_empty_store(path: Path) -> None:
    with FileStore(path) as store:
        store.set("k", b"v")
        path.unlink()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="was removed") as caught:
                store.get("k")
            assert caught.value.address == str(path)
        with FileStore(path) as new:
            assert new.get("k") is None
        with pytest.raises(StoreUnavailable, match="was replaced by another store"):
            store.get("k")


def test_a_truncated_file_is_an_error(path: Path) -> None:
    with FileStore(path) as store:
        store.set("k", b"v")
        os.truncate(path, 30)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="not complete"):
                store.get("k")


def test_a_removed_lock_is_made_anew(path: Path) -> None:
    with FileStore(path) as one, FileStore(path) as two:
        one.add("n")
        Path(f"{path}.lock").unlink()
        assert two.add("n") == 2
        assert one.add("n") == 3
        assert os.fstat(one._lock_fd).st_ino == os.fstat(two._lock_fd).st_ino


# A writer that died.


def test_an_unfinished_record_is_cut_off_at_every_byte(path: Path, tmp_path: Path) -> None:
    with FileStore(path) as store:
        store.set("before", b"1")
        begin = path.stat().st_size
        store.multi_set({"last": b"2", "before": b"2"})
        whole = path.read_bytes()
    with FileStore(path) as reader:
        for end in range(begin, len(whole)):
            # What a writer killed within its write leaves, to a process that opens the file then...
            path.write_bytes(whole[:end])
            with FileStore(path) as store:
                assert store.multi_get(["before", "last"]) == [b"1", None]
                assert path.stat().st_size == begin
                # ... and to one that knew the file before.
                path.write_bytes(whole[:end])
                assert store.add("n") == 1
                assert store.multi_get(["before", "last"]) == [b"1", None]
        path.write_bytes(whole)
        assert reader.multi_get(["before", "last"]) == [b"2", b"2"]


def test_every_damaged_byte_is_reported_and_nothing_is_lost(path: Path) -> None:
    with FileStore(path) as store:
        store.set("a", b"1")
        store.set("b", b"2", lease=store.grant_lease(60))
        store.delete("a")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        with FileStore(path) as store, pytest.raises((StoreUnavailable, UsageError)) as caught:
            store.get("b")
        assert str(path) in str(caught.value)
        if at >= 8:
            assert "corrupt at offset" in str(caught.value)
        assert path.stat().st_size == len(whole)


def test_damage_names_the_offset_of_the_record(path: Path) -> None:
    with FileStore(path) as store:
        store.set("a", b"1")
        offset = path.stat().st_size
        store.set("b", b"2")
        store.set("c", b"3")
    data = bytearray(path.read_bytes())
    data[offset + 20] ^= 1
    path.write_bytes(data)
    with FileStore(path) as store, pytest.raises(StoreUnavailable, match=f"offset {offset}:"):
        store.get("a")


# A write that fails.


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let every write beyond this size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_write_changes_nothing_and_is_forgotten_when_there_is_room(path: Path) -> None:
    with FileStore(path) as store, FileStore(path) as other, store.watch("k") as watch:
        revision = store.set("k", b"old")
        assert watch.next(TIMEOUT_S).value == b"old"
        for room in (0, 5, 40):  # nothing, or the beginning of the record
            with file_size_limit(path.stat().st_size + room):
                with pytest.raises(StoreUnavailable, match=str(path)) as caught:
                    store.set("k", bytes(1000))
                if room < 20:
                    with pytest.raises(StoreUnavailable):
                        store.delete("k")
            assert not caught.value.maybe_applied
            assert other.get("k") == store.get("k") == b"old"
        assert other.set("other", b"") == revision + 1
        assert store.delete("k")
        seen = watch.next(TIMEOUT_S)
        while seen.value is not None:  # being told again what one knows is harmless
            assert seen == Change("k", b"old", revision)
            seen = watch.next(TIMEOUT_S)
        assert other.get("k") is None


def test_a_delete_that_failed_and_then_came_from_elsewhere_is_seen(path: Path) -> None:
    with FileStore(path) as store, FileStore(path) as other, store.watch("k") as watch:
        store.set("k", b"old")
        assert watch.next(TIMEOUT_S).value == b"old"
        with file_size_limit(path.stat().st_size), pytest.raises(StoreUnavailable):
            store.delete("k")
        other.delete("k")
        assert watch.next(TIMEOUT_S).value is None


# Compaction.


@pytest.mark.usefixtures("small_logs")
def test_a_log_does_not_grow_for_ever(path: Path) -> None:
    with FileStore(path) as store, FileStore(path) as other:
        lease = store.grant_lease(60)
        store.set("leased", b"", lease=lease)
        for number in range(200):
            assert store.add("n") == number + 1
        assert path.stat().st_size < 1500
        assert other.get("n") == b"200"
        assert other.keep_lease(lease) == 60
        assert store.revoke_lease(lease)
        assert [entry.key for entry in other.list_prefix()] == ["n"]
    with FileStore(path) as again:
        assert again.list_prefix()[0].revision == 201
        assert again.set("k", b"") == 203


@pytest.mark.usefixtures("small_logs")
def test_watches_survive_compactions_that_they_slept_through(path: Path) -> None:
    with FileStore(path) as store, FileStore(path) as other:
        store.multi_set({"p/stays": b"", "p/goes": b"", "p/changes": b""})
        with other.watch("p/", prefix=True) as watch:
            assert {watch.next(TIMEOUT_S).key for _ in range(3)} == {
                "p/stays",
                "p/goes",
                "p/changes",
            }
            store.delete("p/goes")
            for number in range(100):
                store.set("p/changes", b"%d" % number)
            last = store.set("p/new", b"")
            seen: list[Change] = []
            while not seen or seen[-1].key != "p/goes":
                seen.append(watch.next(TIMEOUT_S))
        assert [change[:2] for change in seen] == [
            ("p/changes", b"99"),
            ("p/new", b""),
            ("p/goes", None),
        ]
        assert seen[1].revision == last


@pytest.mark.usefixtures("small_logs")
def test_a_compaction_that_fails_harms_nothing(path: Path) -> None:
    fresh = Path(f"{path}.new")
    with FileStore(path) as store:
        store.get("k")
        fresh.mkdir()
        for _ in range(50):
            store.add("n")
        fresh.rmdir()
        fresh.write_bytes(b"left by a killed process")
        for _ in range(200):
            store.add("n")
        assert not fresh.exists()
    with FileStore(path) as store:
        assert store.get("n") == b"250"


def test_large_values_are_read_in_whole(path: Path) -> None:
    values = {f"{n}": bytes([n]) * (3 * 1024 * 1024) for n in range(3)}
    with FileStore(path) as store, FileStore(path) as other:
        other.get("0")
        store.multi_set(values)
        assert other.multi_get(values) == list(values.values())
        too_much = {f"{n}": bytes(8 * 1024 * 1024) for n in range(4)}
        with pytest.raises(UsageError, match="in one call"):
            store.multi_set(too_much)
        assert store.count() == other.count() == 3


# Locks.


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with open(f"{path}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_lock_held_elsewhere_costs_no_more_than_the_deadline(path: Path) -> None:
    with FileStore(path) as store, FileStore(path) as other:
        store.set("k", b"v")
        with locked(path):
            for timeout in (0, 0.05):
                told = rf"process {os.getpid()} \(.*\) holds its lock"
                with pytest.raises(StoreBusy, match=told) as caught:
                    store.set("k", b"w", timeout=timeout)
                assert caught.value.waiting_for == (f"{path}.lock",)
                assert not caught.value.maybe_applied
            with pytest.raises(TimeoutExpired):
                store.wait(["k"], timeout=0.01)
        assert other.get("k") == b"v"


def test_a_thread_that_waits_for_the_lock_holds_up_others_to_their_deadlines_only(
    path: Path,
) -> None:
    with FileStore(path) as store, ThreadPoolExecutor() as pool:
        store.get("k")
        with locked(path):
            stuck = pool.submit(store.get, "k", timeout=TIMEOUT_S)
            with pytest.raises(TimeoutExpired):
                store.get("k", timeout=0.05)
            assert not stuck.done()
        assert stuck.result(TIMEOUT_S) is None


def test_close_ends_the_waiting_for_a_lock(path: Path) -> None:
    store = FileStore(path)
    store.get("k")
    with ThreadPoolExecutor() as pool, locked(path):
        stuck = [pool.submit(store.get, "k", timeout=None) for _ in range(3)]
        store.close()
        for ended in stuck:
            with pytest.raises(UsageError, match="is closed"):
                ended.result(TIMEOUT_S)


def test_a_wait_names_the_missing_even_if_the_lock_is_taken_at_its_end(path: Path) -> None:
    def wait_in_vain(seconds: float) -> None:
        with FileStore(path) as store, ThreadPoolExecutor(2) as pool:
            store.set("here", b"")
            with store.watch("never") as watch:
                waiting = pool.submit(store.wait, ["here", "gone"], timeout=seconds)
                watching = pool.submit(watch.next, seconds)
                with pytest.raises(TimeoutExpired):
                    store.wait(["gone"], timeout=seconds / 4)  # by then the others have looked
                with locked(path):
                    for ended, missing in ((waiting, "gone"), (watching, "never")):
                        error = ended.exception(TIMEOUT_S)
                        assert isinstance(error, TimeoutExpired)
                        assert error.waiting_for == (missing,)

    with_more_time(wait_in_vain)


# Leases.


def test_leases_run_on_the_boot_clock_for_all_clients(path: Path) -> None:
    clock = ManualClock()
    with FileStore(path, clock) as store, FileStore(path, clock) as other:
        lease = store.grant_lease(10)
        revision = store.set("k", b"", lease=lease)
        clock.advance(9)
        assert other.keep_lease(lease) == 10
        clock.advance(9)
        assert other.count() == store.count() == 1
        clock.advance(1)
        assert other.count() == 0
        assert store.set("k", b"") == other.set("k", b"") - 1 == revision + 2
    with FileStore(path, clock) as again, pytest.raises(LeaseLost):
        again.keep_lease(lease)


def test_a_clock_behind_the_log_does_not_go_back(path: Path) -> None:
    ahead, behind = ManualClock(1000), ManualClock(900)
    with FileStore(path, ahead) as one, FileStore(path, behind) as two:
        lease = one.grant_lease(10)
        assert two.add("n") == 1
        assert one.add("n") == 2
        behind.advance(110)
        with pytest.raises(LeaseLost):
            two.keep_lease(lease)


def test_after_a_start_of_the_machine_all_leases_are_over(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr(file_module, "_BOOT_ID", boot_id)
    boot_id.write_text(f"{uuid.uuid4()}\n")
    with FileStore(path, ManualClock(5000)) as store:
        lease = store.grant_lease(3600)
        store.set("leased", b"", lease=lease)
        store.set("plain", b"")
    boot_id.write_text(f"{uuid.uuid4()}\n")
    clock = ManualClock(10)
    with FileStore(path, clock) as store, FileStore(path, clock) as other:
        assert [entry.key for entry in store.list_prefix()] == ["plain"]
        with pytest.raises(LeaseLost):
            other.keep_lease(lease)
        fresh = other.grant_lease(5)
        assert fresh.id != lease.id
        store.set("leased", b"", lease=fresh)
        clock.advance(5)
        assert other.get("leased") is None


def test_a_machine_that_does_not_name_its_starts(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "_BOOT_ID", tmp_path / "missing")
    with FileStore(path) as store, FileStore(path) as other:
        lease = store.grant_lease(60)
        assert other.keep_lease(lease) == 60


# Fork.

FORK = """
import os, sys
from holdfast.errors import UsageError
from holdfast.store.file import FileStore
store = FileStore(sys.argv[1])
store.set("k", b"v")
pid = os.fork()
if pid == 0:
    try:
        store.get("k")
    except UsageError as error:
        assert "open it again in the child" in str(error), error
        store.close()
        assert not any("store" in os.readlink(f"/proc/self/fd/{fd}") for fd in (3, 4, 5, 6)
                       if os.path.exists(f"/proc/self/fd/{fd}"))
        with FileStore(sys.argv[1]) as mine:
            mine.add("n")
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert store.add("n") == 2
"""


def test_a_forked_child_must_open_the_store_anew(path: Path) -> None:
    done = run(
        [sys.executable, "-c", FORK, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# Against the reference.


def _outcome(action: Callable[[], object]) -> object:
    try:
        return action()
    except (UsageError, LeaseLost, Fenced) as error:
        return str(error)


def test_a_refused_write_leaves_no_doubt(path: Path) -> None:
    """Its refusal changed nothing, so the log need not be read from its start."""
    with FileStore(path) as store:
        store.set("g", b"1")
        with pytest.raises(Fenced):
            FencedStore(store, "g", b"2").set("k", b"")
        assert not store._doubt
        assert store.count() == 1


@given(
    steps=st.lists(
        st.tuples(OPS, st.sampled_from([0.0, 0.0, 0.5, 3.0]), st.integers(0, 2)), max_size=40
    )
)
@settings(max_examples=60, deadline=None)
def test_the_file_agrees_with_the_keyspace(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[AnyOp, float, int]]
) -> None:
    folder = tmp_path_factory.mktemp("agree")
    clock, keyspace = ManualClock(), Keyspace()
    stores = [FileStore(folder / "store", clock) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_module, "_COMPACT_BYTES_MIN", 300)
        for op, seconds, who in steps:
            now = clock.advance(seconds)
            expected = _outcome(lambda: keyspace.apply(op, now))  # noqa: B023  # called here
            found = _outcome(lambda: stores[who]._perform(op, Deadline(None)))  # noqa: B023
            assert found == expected
    entries = [(item.key, item.value, item.revision) for item in keyspace.dump().items]
    for store in [*stores, FileStore(folder / "store", clock)]:
        assert store.list_prefix() == sorted(entries)
        store.close()
    shutil.rmtree(folder)
