"""The job's secret: where it comes from, and that it shows nowhere.

A launcher makes one for each job. Without a launcher, on one host, a secret for each user is made
on first use in a file that only this user can read: loopback works out of the box, and another
user of the machine is still refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from hmac import compare_digest
from pathlib import Path

from holdfast.errors import HoldfastError, Refused, UsageError
from holdfast.net.auth import Key, derive_key

__all__ = ["SECRET_BYTES_MIN", "Secret", "new_secret", "read_secret_file", "user_secret"]

SECRET_BYTES_MIN = 16
_FILE_BYTES_MAX = 4096


class Secret:
    """Secret bytes that do not show in repr, str, logs or tracebacks, and cannot be pickled."""

    __slots__ = ("_value", "group")

    def __init__(self, value: bytes, group: int | None = None) -> None:
        self._value = value
        self.group = group
        """The number of the group that may hold it, besides this user; None if there is none."""
        del value  # what shows local variables must not find it in a frame that raised
        size = len(self._value)
        if size < SECRET_BYTES_MIN:
            raise UsageError(f"secret of {size} bytes: at least {SECRET_BYTES_MIN} are needed")

    def key(self, context: str) -> Key:
        """Return the key that this secret gives in a context. See `auth.derive_key`."""
        return derive_key(self._value, context, self.group)

    def reveal(self) -> str:
        """Return the secret as text, to hand it on over a file or a descriptor."""
        return self._value.decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def new_secret() -> Secret:
    """Make a secret of 256 random bits."""
    return Secret(os.urandom(32).hex().encode())


def read_secret_file(path: Path) -> Secret:
    """Read a secret from a file that only its owner, and maybe its group, can read.

    A group that can read it may hold it.
    """
    return _read(path, forbidden=stat.S_IRWXO | stat.S_IWGRP, flags=0)


def user_secret(state_dir: Path) -> Secret:
    """Return this user's secret, made in `state_dir` on first use.

    Safe when many processes do this at once: the file appears whole or not at all.
    """
    path = state_dir / "secret"
    if not os.path.lexists(path):
        try:
            _create(path)
        except OSError as error:
            raise Refused(f"secret file {path}: {error.strerror}") from None
    return _read(path, forbidden=stat.S_IRWXG | stat.S_IRWXO, flags=os.O_NOFOLLOW)


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".secret-{os.urandom(8).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(new_secret()._value + b"\n")
            file.flush()
            os.fsync(fd)  # a crash must not leave the name of a file that is empty
        with contextlib.suppress(FileExistsError):  # another process was first: its secret counts
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _read(path: Path, forbidden: int, flags: int) -> Secret:
    # Not waiting: a FIFO in the file's place must not hold us up.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        symlink = error.errno == errno.ELOOP
        why = "must not be a symbolic link" if symlink else error.strerror
        raise Refused(f"secret file {path}: {why}") from None
    try:
        found = os.fstat(fd)
        _check_private(path, found, forbidden)
        data = os.read(fd, _FILE_BYTES_MAX + 1)
    except HoldfastError:
        raise
    except OSError as error:
        raise Refused(f"secret file {path}: {error.strerror}") from None
    finally:
        os.close(fd)
    fits = len(data) <= _FILE_BYTES_MAX and len(data.strip()) >= SECRET_BYTES_MIN
    group = found.st_gid if found.st_mode & stat.S_IRGRP else None
    secret = Secret(data.strip(), group) if fits else None
    del data  # before anything is raised: see Secret
    if secret is None:
        raise Refused(
            f"secret file {path}: must hold {SECRET_BYTES_MIN} to {_FILE_BYTES_MAX} bytes"
        )
    return secret


def _check_private(path: Path, found: os.stat_result, forbidden: int) -> None:
    """Refuse a file that another user could have read or written."""
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"secret file {path}: must be a regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise Refused(f"secret file {path}: belongs to user {found.st_uid}, not to you")
    if found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise Refused(f"secret file {path}: mode {mode:04o} lets others at it; run chmod 600 on it")
