"""The user's private folder with an entry for each agent of this machine.

    <state folder>/jobs/             0700
        <host>/<boot id>/            homes may be shared by hosts, and outlive a boot
            <token>.json             which run, since when, which process
            <token>.sock             where the agent answers

An agent makes the socket first and the entry when it answers, and removes both at its end. What an
agent that was killed has left is removed by the next command that finds no agent behind it; what is
left from before the last boot, by the next agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.control.jobs import AgentEntry, read_entry
from holdfast.errors import HoldfastError, PeerViolation, Refused, UsageError

__all__ = ["EntryFolder", "open_folder"]

ENTRIES_MAX = 4096
ENTRY_BYTES_MAX = 8192
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNIX_PATH_MAX = 107


def open_folder(state_dir: Path | None, *, host: str, boot_id: str | None = None) -> EntryFolder:
    """Return this host's folder of entries since its last boot, made if it is missing.

    UsageError if the user has no state folder, Refused if other users could enter it.
    """
    if state_dir is None:
        raise UsageError("jobs are found by a folder of the user: set HOME or XDG_STATE_HOME")
    top = state_dir / "jobs"
    boots = top / _safe(host)
    path = boots / _safe(boot_id or _this_boot())
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (top, boots, path):
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
    except HoldfastError:
        raise
    except OSError as error:
        raise Refused(f"folder {path}: {error.strerror}") from None
    return EntryFolder(path)


class EntryFolder:
    """The entries of the agents of this machine. For any thread and process of the user."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[AgentEntry]:
        """Return the entries; of agents that have died as well."""
        found = []
        for name in sorted(os.listdir(self.path))[: 2 * ENTRIES_MAX]:
            token, dot, kind = name.partition(".")
            if (dot, kind) != (".", "json"):
                continue
            try:
                with open(self.path / name, "rb") as file:
                    found.append(read_entry(token, json.loads(file.read(ENTRY_BYTES_MAX))))
            except (OSError, PeerViolation, ValueError):
                continue  # removed meanwhile, or no entry
        return found

    def write(self, entry: AgentEntry) -> None:
        """Write an entry, whole or not at all."""
        fields = {
            "run": entry.run,
            "host": entry.host,
            "pid": entry.pid,
            "started_at": entry.started_at,
            "endpoint": entry.endpoint,
        }
        draft = self.path / f"{entry.token}.draft"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(fields))
        os.rename(draft, self.path / f"{entry.token}.json")

    def remove(self, token: str) -> None:
        """Remove an entry, and its socket. Idempotent; never raises."""
        for kind in ("json", "draft", "sock"):
            with contextlib.suppress(OSError):
                os.unlink(self.path / f"{token}.{kind}")

    def clear_earlier_boots(self) -> None:
        """Remove what agents of this host left before it was booted. Never raises."""
        with contextlib.suppress(OSError):
            for other in self.path.parent.iterdir():
                if other != self.path:
                    shutil.rmtree(other, ignore_errors=True)

    @contextmanager
    def socket_address(self, token: str) -> Iterator[str]:
        """Give the address of an entry's socket, also where the folder's path is too long for it.

        It can be used within the context.
        """
        path = str(self.path / f"{token}.sock")
        if len(os.fsencode(path)) <= _UNIX_PATH_MAX:
            yield path
            return
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{token}.sock"
        finally:
            os.close(folder)

    def bind(self, sock: socket.socket, token: str) -> None:
        """Bind a socket beside the entry; OSError if that cannot be."""
        with self.socket_address(token) as address:
            sock.bind(address)

    def connect(self, sock: socket.socket, token: str) -> None:
        """Connect a socket with the agent of an entry; OSError if that cannot be."""
        with self.socket_address(token) as address:
            sock.connect(address)


def _check_private(folder: Path) -> None:
    """Refuse a folder that another user could have put something into."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(f"folder {folder}: must be a folder, and no link")
    if found.st_uid != os.geteuid():
        raise Refused(f"folder {folder}: belongs to user {found.st_uid}, not to you")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(found.st_mode)
        raise Refused(f"folder {folder}: mode {mode:04o} lets others in; run chmod 700 on it")


def _this_boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux: the entries of dead agents are cleared all the same
        return "boot"


def _safe(text: str) -> str:
    return re.sub(r"^\.|[^A-Za-z0-9._-]", "_", text[:100]) or "_"
