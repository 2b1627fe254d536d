"""A store in a file, for the processes of one host.

All processes that open the same path share one space. Each operation takes a lock on
`PATH.lock`, reads what others appended to the log since, applies itself to the keyspace that
every process keeps in memory, and appends itself in one write. See `filelog.py` for the format.

A process may be killed at any instant: the kernel drops its lock, and the next one cuts off the
unfinished record that it may have left. Nothing is flushed to the disk, so the store survives
processes, and not a loss of power. One that is stopped while it holds the lock lets all others
wait: their operations end with StoreBusy, which names it. When the log has grown to a few times
the size of what it holds, a process that notices writes a new one beside it and renames that into
place.

Waits and watches poll: one `stat` of the file every 20 ms at most, nothing more while no process
writes. Leases are judged by the clock that counts from the machine's start, the same for all
processes; when the machine was started anew they are all over.

Put the file on a local disk or in memory (/dev/shm); over NFS, locks and renames promise less.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    Fenced,
    HoldfastError,
    LeaseLost,
    PeerViolation,
    Refused,
    StoreBusy,
    StoreUnavailable,
    TimeoutExpired,
    UsageError,
)
from holdfast.forks import in_child
from holdfast.store.filelog import (
    HEAD_BYTES,
    MAGIC,
    Boot,
    Image,
    Performed,
    decode_record,
    encode_image,
    encode_record,
    record_size,
)
from holdfast.store.lockholder import holder_of
from holdfast.store.ops import (
    WRITES,
    AnyOp,
    Change,
    Entry,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    Op,
    Wait,
)
from holdfast.store.pending import Pending
from holdfast.store.store import Store, Watch

__all__ = ["FileStore"]

R = TypeVar("R")

_POLL_MIN_S, _POLL_MAX_S = 0.001, 0.02
_LOCK_POLL_MIN_S, _LOCK_POLL_MAX_S = 0.0001, 0.002
_READ_BYTES = 1024 * 1024
_COMPACT_BYTES_MIN = 1024 * 1024
_COMPACT_GROWTH = 4
_LEASE_OPS = (LeaseGrant, LeaseKeep, LeaseRevoke)  # these change no key, and still something
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NOT_A_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)


class FileStore(Store):
    """The store in the file at `path`, made with mode 0600 if it is not there.

    Symbolic links, special files, and files that another user owns or may write are refused.
    After a fork the child must open the store anew.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK) -> None:
        name = os.fspath(path)
        if not isinstance(name, str) or not name or "\0" in name:
            raise UsageError(f"path {name!r:.80}: must be the name of a file")
        self._path = os.path.abspath(name)
        self.endpoint = f"file://{self._path}"
        self._clock = clock
        # Guards everything below; notified at every change that this process sees.
        self._changed = threading.Condition(threading.Lock())
        self._image: Image | None = None
        self._boot_id = b""
        self._lock_fd = self._fd = -1
        self._inode = (0, 0)
        self._end = self._base = 0  # in the log: what was read so far; the end of the snapshot
        # The keyspace may be ahead of the file or behind `_end`: read the file from its start.
        self._doubt = False
        self._news = 0  # counts the changes that waiters have to look at
        self._watches: set[_FileWatch] = set()
        self._closed = ""
        in_child(self, FileStore._forked)

    # The store protocol.

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if isinstance(op, Wait):
            return cast(R, self._wait(op, deadline))
        with self._synced(deadline) as image:
            record = b""
            if isinstance(op, WRITES):
                record = encode_record(Performed(cast(AnyOp, op), image.now))
            before = image.keyspace.revision
            result = image.keyspace.apply(op, image.now)
            if image.keyspace.revision != before or isinstance(op, _LEASE_OPS):
                self._append(record)
                self._publish(image.keyspace.take_changes())
                if self._end > max(_COMPACT_BYTES_MIN, _COMPACT_GROWTH * self._base):
                    self._compact(image)
            return result

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        with self._synced(deadline) as image:
            watch = _FileWatch(self, key, prefix)
            watch.pending.offer(image.keyspace.state_of(key, prefix))
            self._watches.add(watch)
            return watch

    def _close(self) -> None:
        self._closed = self._closed or "is closed"
        with self._changed:  # its holder looks at `_closed` every few milliseconds
            self._drop_files()
            self._changed.notify_all()

    def _wait(self, op: Wait, deadline: Deadline) -> tuple[Entry, ...]:
        missing = op.keys

        def look(image: Image) -> tuple[Entry, ...] | None:
            nonlocal missing
            missing = image.keyspace.missing(op.keys)
            return image.keyspace.ready(op.keys)

        entries = self._first(look, self._check_open, deadline)
        if entries is None:
            raise TimeoutExpired(
                f"wait: still missing {', '.join(map(repr, missing[:10]))}", waiting_for=missing
            )
        return entries

    # Waiting.

    def _first(
        self, look: Callable[[Image], R | None], check: Callable[[], None], deadline: Deadline
    ) -> R | None:
        """Return the first answer of `look`, asked again at each change; None at the deadline.

        `check` raises to end the waiting from outside, and is asked every 20 ms.
        """
        looked = False
        while True:
            check()
            try:
                with self._synced(deadline) as image:
                    found, seen = look(image), self._news
                    expiry = image.keyspace.next_expiry()
                    looked = True
            except TimeoutExpired:
                if looked:
                    return None  # the lock was not free at the last moment
                raise
            if found is not None or deadline.passed():
                return found
            self._pause(seen, expiry, check, deadline)

    def _pause(
        self, seen: int, expiry: float | None, check: Callable[[], None], deadline: Deadline
    ) -> None:
        """Return when there may be something new since `seen`, or at the deadline."""
        delay = _POLL_MIN_S
        while self._news == seen and not deadline.passed() and not self._file_moved():
            check()
            until = deadline.sooner(delay)
            if expiry is not None:
                until = until.sooner(max(0.0, expiry - self._clock.boot()))
                if self._clock.boot() >= expiry:
                    return
            if self._changed.acquire(timeout=delay):
                try:
                    if self._news == seen:
                        self._changed.wait(until.remaining())
                finally:
                    self._changed.release()
            delay = min(2 * delay, _POLL_MAX_S)

    def _file_moved(self) -> bool:
        try:
            info = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return True  # the next look says what is wrong
        return (info.st_dev, info.st_ino, info.st_size) != (*self._inode, self._end)

    # Locking. Below, a method needs the locks unless it takes them.

    @contextmanager
    def _synced(self, deadline: Deadline) -> Iterator[Image]:
        """Hold the store for one operation, caught up with the file and with the clock."""
        left = deadline.remaining()
        if not self._changed.acquire(timeout=-1 if left is None else left):
            raise TimeoutExpired(f"{self.endpoint}: busy in another thread until the deadline")
        try:
            self._check_open()
            with self._file_lock(deadline):
                doubt = True
                try:
                    yield self._catch_up()
                    doubt = False
                except (UsageError, LeaseLost, Fenced):
                    doubt = False  # KS-4: nothing has changed
                    raise
                except PeerViolation as error:
                    raise StoreUnavailable(
                        f"{self._path}: corrupt at offset {self._end}: {error}; "
                        "no process can use it: remove it to begin anew",
                        address=self._path,
                    ) from None
                finally:
                    self._doubt = self._doubt or doubt
        except HoldfastError:
            raise
        except OSError as error:
            raise self._explained(error) from error
        finally:
            self._changed.release()

    @contextmanager
    def _file_lock(self, deadline: Deadline) -> Iterator[None]:
        delay = _LOCK_POLL_MIN_S
        while not self._try_lock():
            if deadline.passed():
                raise StoreBusy(
                    f"{self._path}: {holder_of(self._lock_fd)} holds its lock",
                    waiting_for=(f"{self._path}.lock",),
                )
            self._clock.sleep(delay)
            self._check_open()
            delay = min(2 * delay, _LOCK_POLL_MAX_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _try_lock(self) -> bool:
        if self._lock_fd < 0:
            self._lock_fd = _open_own(f"{self._path}.lock", os.O_CREAT)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.fstat(self._lock_fd).st_nlink:
            return True
        # The lock file was removed: others lock a new one.
        os.close(self._lock_fd)
        self._lock_fd = -1
        return False

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the store {self.endpoint} {self._closed}")

    def _explained(self, error: OSError) -> HoldfastError:
        if isinstance(error, PermissionError):
            return Refused(f"{self._path}: {error.strerror}", address=self._path)
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            folder = os.path.dirname(self._path)
            return StoreUnavailable(
                f"{self._path}: there is no directory {folder}", address=self._path
            )
        return StoreUnavailable(f"{self._path}: {error.strerror or error}", address=self._path)

    # Reading.

    def _catch_up(self) -> Image:
        self._boot_id = self._boot_id or _read_boot_id()
        try:
            info = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            info = None
        image = self._image
        if image is None or info is None or self._doubt or self._is_other(info):
            image = self._load(info)
        else:
            self._replay(image, info.st_size)
        if image.boot_id != self._boot_id:
            boot = Boot(self._boot_id)
            self._append(encode_record(boot))
            image.feed(boot)
        image.now = max(image.now, self._clock.boot())
        image.keyspace.expire(image.now)
        self._publish(image.keyspace.take_changes())
        return image

    def _is_other(self, info: os.stat_result) -> bool:
        """Say whether a file is not the log that was read until now, or not all of it."""
        return (info.st_dev, info.st_ino) != self._inode or info.st_size < self._end

    def _load(self, info: os.stat_result | None) -> Image:
        """Read the log from its start; make it if there is none."""
        older = self._image
        self._doubt = True
        if info is None or (info.st_size == 0 and stat.S_ISREG(info.st_mode)):
            if older is not None:
                raise StoreUnavailable(f"{self._path}: was removed", address=self._path)
            image = Image.empty(uuid.uuid4().bytes, self._boot_id)
            self._write_log(image)
        else:
            image = self._read_log()
            if older is not None and older.store_id != image.store_id:
                raise StoreUnavailable(
                    f"{self._path}: was replaced by another store", address=self._path
                )
        image.keyspace.take_changes()  # told as a whole, not step by step
        if older is not None:
            self._publish(image.keyspace.changes_since(older.keyspace))
        self._image = image
        self._doubt = False
        return image

    def _read_log(self) -> Image:
        fd = _open_own(self._path)
        self._use(fd)
        size = os.fstat(fd).st_size
        self._end = len(MAGIC)
        if os.pread(fd, len(MAGIC), 0) != MAGIC:
            raise UsageError(f"{self._path}: is not a holdfast store")
        image = Image()
        self._replay(image, size)
        if not image.complete:
            raise PeerViolation("the snapshot is not complete")
        return image

    def _replay(self, image: Image, size: int) -> None:
        """Feed the image what stands in the log up to `size`; cut off an unfinished record."""
        need = HEAD_BYTES
        while self._end < size:
            if self._end + need > size:
                os.ftruncate(self._fd, self._end)
                return
            data = os.pread(self._fd, min(max(_READ_BYTES, need), size - self._end), self._end)
            if len(data) < need:
                raise PeerViolation("it became shorter while it was read")
            at = 0
            while at + (need := record_size(data, at)) <= len(data):
                image.feed(decode_record(data, at))
                at += need
                self._end += need
                if not self._base and image.complete:
                    self._base = self._end

    # Writing.

    def _append(self, data: bytes) -> None:
        try:
            if os.pwrite(self._fd, data, self._end) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with suppress(OSError):  # otherwise the next reader cuts it off
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)

    def _compact(self, image: Image) -> None:
        try:
            self._write_log(image)
        except OSError:
            self._base = self._end  # no room: the log stays, and is tried again when much longer

    def _write_log(self, image: Image) -> None:
        """Put a log that holds just the image in the place of the present one."""
        fresh = f"{self._path}.new"
        with suppress(FileNotFoundError):  # left by a process that was killed here
            os.unlink(fresh)
        fd = _open_own(fresh, os.O_CREAT | os.O_EXCL)
        try:
            with open(fd, "wb", closefd=False) as out:
                out.writelines(encode_image(image))
            os.rename(fresh, self._path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                os.unlink(fresh)
            raise
        self._use(fd)
        self._end = self._base = os.fstat(fd).st_size

    def _use(self, fd: int) -> None:
        old, self._fd = self._fd, fd
        if old >= 0:
            os.close(old)
        info = os.fstat(fd)
        self._inode = (info.st_dev, info.st_ino)
        self._end = self._base = 0

    def _publish(self, changes: list[Change]) -> None:
        if changes:
            for watch in tuple(self._watches):
                watch.pending.offer(changes)
            self._news += 1
            self._changed.notify_all()

    def _drop_files(self) -> None:
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1
        self._watches.clear()

    def _forked(self) -> None:
        """Release, in a forked child, a lock that the child would keep held for its parent."""
        self._closed = self._closed or "was opened before a fork: open it again in the child"
        self._changed = threading.Condition(threading.Lock())
        self._drop_files()


class _FileWatch(Watch):
    def __init__(self, store: FileStore, key: str, prefix: bool) -> None:
        self._store = store
        self._key = key
        self.pending = Pending(key, prefix)  # guarded by the store's locks
        self._closed = False

    def _next(self, deadline: Deadline) -> Change:
        change = self._store._first(lambda _: self.pending.take(), self._check_open, deadline)
        if change is None:
            raise TimeoutExpired(
                f"watch: no change of {self._key!r:.80} in time", waiting_for=(self._key,)
            )
        return change

    def _check_open(self) -> None:
        if self._closed or self._store._closed:
            raise UsageError(f"the watch of {self._key!r:.80} is closed")

    def close(self) -> None:
        self._closed = True
        self._store._watches.discard(self)


def _open_own(path: str, flags: int = 0) -> int:
    """Open a regular file of ours; UsageError or Refused if it is something else."""
    try:
        fd = os.open(path, _OPEN_FLAGS | flags, 0o600)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise UsageError(f"{path}: must be a regular file, and no symbolic link") from None
        raise
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise UsageError(f"{path}: must be a regular file, and no symbolic link")
        if info.st_uid != os.geteuid():
            raise Refused(f"{path}: belongs to user {info.st_uid}, not to {os.geteuid()}")
        if info.st_mode & 0o022:
            raise Refused(f"{path}: others may write it (mode {info.st_mode & 0o777:04o})")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read_boot_id() -> bytes:
    """Return what names this start of the machine; zeros where the system does not tell."""
    try:
        return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)
