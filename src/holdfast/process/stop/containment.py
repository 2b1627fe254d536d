"""Nothing survives: whatever happens to the agent, no process of its workers outlives it for long.

Several nets, each under the one before:

    process groups   Every worker leads its own. Signals go to the group, and its end is the end of
                     the worker: what the worker leaves in it is killed before it is reaped.
    the mark         Workers and what they start have `HOLDFAST_GROUP=<token>` in their environment,
                     by which those are found that left the group (daemons). Between two rounds the
                     kernel names the processes to look at, where it can: those of the control
                     group, or the orphans that we adopted. A look at every process of the host
                     follows a little later, beside the next round.
    a control group  of version 2, where we may make one: nothing leaves it, and all of it can be
                     killed at once. Workers enter it themselves (`procs_path`).
    the reaper       a small shell script in a session of its own that waits for the end of a pipe.
                     Only the agent holds the other end, so the agent's death, by any means, ends
                     it; then the reaper does all of the above, and removes a folder.

    the fence        a process that kills the workers of an agent that does not run when its lease
                     ends (`fence.py`).

(The last is in the workers: the kernel kills them when the thread that started them is gone.)
If the agent and its reaper are both killed, a later agent removes what they left (leftovers.py).

A number of a process or group can be reused as soon as its owner has been reaped. So a group
is signalled only while its leader has not been reaped, and any other process is held by a
descriptor, and then looked at for the mark, before it is killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast import env
from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.forks import in_child
from holdfast.process.stop.cgroup import make_cgroup, remove_cgroup
from holdfast.process.stop.escalation import KILL_WAIT_S
from holdfast.process.stop.fence import Fence
from holdfast.process.stop.handle import still_running
from holdfast.process.stop.leftovers import hold_folder, remove_leftover_folders
from holdfast.process.stop.orphans import adopt_orphans, disown, own, reap_orphans
from holdfast.process.stop.search import (
    Test,
    all_pids,
    can_search,
    descendants,
    environment_of,
    find,
    kill,
    members,
)

__all__ = ["Containment", "outlive_group"]

_log = logging.getLogger("holdfast.process")

_STUCK_WAIT_S = 1.0  # for what is killed after something else was found to be stuck
_REAPER_WAIT_S = 5.0

LOOK_WIDELY_AFTER_S = 1.0
"""When all processes of the host are looked at for what a round left: the next one has begun."""

_SHELL = "/bin/sh"
# $1: what marked processes have in their environment; $2: the control group, or nothing; $3: a
# folder to remove, or nothing. Lines of input: "+<group>", "-<group>", and "." for a good end.
# Groups are killed once and at once, while their numbers are surely theirs; the marked ones until
# two looks in a row have found none, since a process may fork while it is being killed.
_REAPER = """
trap '' TERM INT HUP QUIT
groups=' '
while IFS= read -r line; do
    group=${line#?}
    case $line in
        +*) groups="$groups$group " ;;
        -*) case $groups in
                *" $group "*) groups="${groups%% "$group" *} ${groups#* "$group" }" ;;
            esac ;;
        .) exit 0 ;;
    esac
done
for group in $groups; do kill -KILL "-$group"; done
round=0 quiet=0
while [ $quiet -lt 2 ] && [ $round -lt 50 ]; do
    [ -z "$2" ] || echo 1 > "$2/cgroup.kill"
    quiet=$((quiet + 1)) round=$((round + 1))
    for found in $(grep -lF -e "$1" /proc/[0-9]*/environ); do
        found=${found#/proc/}
        kill -KILL "${found%/environ}" && quiet=0
    done
    sleep 0.1 || sleep 1
done
[ -z "$2" ] || rmdir "$2"/*/*/ "$2"/*/ "$2"
[ -z "$3" ] || rm -rf -- "$3"
"""


class Containment:
    """What holds the worker processes of one agent. `open()`, or a context manager.

    `folder` is removed if the agent dies; an agent that ends well removes it itself. `adopt` is for
    a process that does nothing else: it inherits what workers leave behind. What concerns single
    workers may be called by any thread.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        reaper: bool = True,
        cgroup: bool = True,
        adopt: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._token = os.urandom(16).hex()
        self._folder = None if folder is None else folder.absolute()
        self._with_reaper = reaper
        self._with_cgroup = cgroup
        self._adopts = adopt
        self._clock = clock
        self._open = False
        self._groups = 0
        self._cgroup: Path | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._lock = threading.Lock()  # for the pipe
        self._held: list[int] = []  # locks, which tell later agents that this one lives
        self._fence = Fence(f"{env.GROUP}={self._token}.")
        self._stuck: set[int] = set()
        self._near = all_pids  # returns the processes among which those of the workers are
        self._later: threading.Timer | None = None
        self._later_marks: set[bytes] = set()

    # Lifetime.

    def open(self) -> Self:
        """Start the reaper, and make the control group if we may."""
        self._open = True
        in_child(self, Containment.forget)
        if not can_search():
            _log.warning("no /proc or no pidfd here: daemons of workers may outlive them")
        if self._with_cgroup and (made := make_cgroup()) is not None:
            self._cgroup, lock = made
            self._held.append(lock)
            self._near = partial(members, self._cgroup)
        elif self._adopts and adopt_orphans():
            self._near = partial(descendants, os.getpid())
        remove_leftover_folders(Path(tempfile.gettempdir()))
        if self._folder is not None and (marker := hold_folder(self._folder)) is not None:
            self._held.append(marker)
        if self._with_reaper:
            self._start_reaper()
        return self

    def empty(self) -> tuple[int, ...]:
        """Kill whatever is left, remove the control group, and name what would not die.

        Nothing is started any more; the reaper stays until `close`. Idempotent.
        """
        if not self._open:
            return ()
        self._open = False
        if (later := self._later) is not None:
            later.cancel()
            later.join()
        alive = self._sweep(self._is_ours, all_pids)
        if self._cgroup is not None:
            deadline = Deadline.after(0 if alive else KILL_WAIT_S, self._clock)
            remove_cgroup(self._cgroup, deadline, self._clock)
        return alive

    def close(self) -> tuple[int, ...]:
        """Empty it, end the reaper, and name what would not die. Idempotent.

        The folder is left alone: remove it before this, while the reaper is there for a death
        meanwhile.
        """
        alive = self.empty()
        self._fence.close()
        self._end_reaper()
        self._release()
        return alive

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def forget(self) -> None:
        """Release the reaper, killing nothing: for a fork of the agent, which is not the agent.

        Its copy of the pipe would hide the agent's death from the reaper.
        """
        self._open = False
        self._close_pipe()
        self._fence.forget()
        self._release()

    def _release(self) -> None:
        while self._held:
            os.close(self._held.pop())

    # What a worker needs.

    @property
    def environment(self) -> dict[str, str]:
        """What belongs in the environment of every process that we start for the workers."""
        return {env.GROUP: self._token}

    def group_environment(self) -> dict[str, str]:
        """Return the same for one more group of workers, whose leftovers can be told apart."""
        self._groups += 1
        return {env.GROUP: f"{self._token}.{self._groups}"}

    @property
    def procs_path(self) -> Path | None:
        """The file into which a worker writes its pid to enter the control group, if any."""
        return None if self._cgroup is None else self._cgroup / "cgroup.procs"

    # The life of a worker.

    def entered(self, pid: int) -> None:
        """Note that a worker, the leader of its process group, has been started."""
        self._tell(f"+{pid}")
        self._fence.entered(pid)

    def kill_at(self, moment: float) -> None:
        """Kill all workers at this moment of the monotonic clock, unless it is moved before.

        Holds though this process does not run then.
        """
        self._fence.move(moment)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to the process group of a worker that has not been reaped."""
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            # The group is not there yet: the worker has just been forked.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        except PermissionError:
            _log.debug("process group %d may not be signalled", pid)

    def left(self, pid: int) -> None:
        """Kill what a worker that has ended leaves in its group; call it before reaping."""
        if _is_unreaped_child(pid) or self._is_kept_by_ours(pid):
            self.signal(pid, signal.SIGKILL)
        elif _group_exists(pid):
            # It has been reaped by other code: the number may have been reused by now.
            with find(self._is_ours, all_pids()) as found:
                kill(fd for other, fd in found.items() if _group_of(other) == pid)
        self._tell(f"-{pid}")
        self._fence.left(pid)

    def kill_leftovers(
        self, environment: Mapping[str, str], stuck: Iterable[int] = ()
    ) -> tuple[int, ...]:
        """Kill everything of one group of workers, and return what would not die.

        `environment` is the group's. Waits for what it kills, but not for those that are known to
        be `stuck`.
        """
        mark = f"{env.GROUP}={environment[env.GROUP]}".encode()
        self._stuck.update(stuck)
        left = self._sweep(partial(_bears, {mark}), self._near)
        reap_orphans()
        if self._near is not all_pids:
            self._look_later(mark)
        return left

    def _look_later(self, mark: bytes) -> None:
        """Look at all processes of the host soon, for what is not where it should be."""
        with self._lock:
            self._later_marks.add(mark)
            if self._later is None:
                self._later = threading.Timer(LOOK_WIDELY_AFTER_S, self._look_widely)
                self._later.daemon = True
                try:
                    self._later.start()
                except RuntimeError:  # there is no room for a thread: the next round's look does it
                    self._later = None

    def _look_widely(self) -> None:
        while True:
            with self._lock:
                marks, self._later_marks = self._later_marks, set()
                if not marks:
                    self._later = None
                    return
            self._sweep(partial(_bears, marks), all_pids)
            reap_orphans()

    def _sweep(self, is_meant: Test, near: Callable[[], list[int]]) -> tuple[int, ...]:
        """Kill every process that is meant, wait a while for them, and return what is left."""
        wait_s = _STUCK_WAIT_S if self._stuck else KILL_WAIT_S
        deadline = Deadline.after(wait_s, self._clock)
        while True:  # since a process may fork while it is being killed
            with find(is_meant, near()) as found:
                kill(found.values())
                waited = {fd: pid for pid, fd in found.items() if pid not in self._stuck}
                if not waited or deadline.passed():
                    return tuple(sorted(found))
                stuck = still_running(waited, deadline.remaining() or 0, self._clock)
                self._stuck.update(waited[fd] for fd in stuck)

    def _is_kept_by_ours(self, pid: int) -> bool:
        """Say whether a process of ours, such as a forkserver, has still to reap this one."""
        parent = _parent_of_ended(pid)
        return parent is not None and self._is_ours(environment_of(parent))

    def _is_ours(self, items: list[bytes]) -> bool:
        mark = f"{env.GROUP}={self._token}".encode()
        return any(item.startswith(mark) for item in items)

    # The reaper.

    def _start_reaper(self) -> None:
        read_end, write_end = os.pipe()
        cgroup, folder = self._cgroup or "", self._folder or ""
        mark = f"{env.GROUP}={self._token}"
        try:
            self._reaper = subprocess.Popen(
                [_SHELL, "-c", _REAPER, "holdfast-reaper", mark, str(cgroup), str(folder)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.pathsep.join(os.get_exec_path()), "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            os.close(write_end)
            _log.warning("no reaper: if the agent dies, daemons may outlive it (%s)", error)
            return
        finally:
            os.close(read_end)
        os.set_blocking(write_end, False)
        self._pipe = write_end
        own(self._reaper.pid)

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._pipe is None:
                return
            try:
                os.write(self._pipe, f"{line}\n".encode())  # so short that it is written whole
                return
            except OSError as error:
                if self._reaper is not None:  # if it only hangs, it must not take this for our end
                    self._reaper.kill()
                self._close_pipe()
                why = error
        _log.warning("the reaper is lost: if the agent dies, daemons may outlive it (%s)", why)

    def _end_reaper(self) -> None:
        self._tell(".")
        self._close_pipe()
        if self._reaper is None:
            return
        try:
            self._reaper.wait(_REAPER_WAIT_S)
        except subprocess.TimeoutExpired:
            self._reaper.kill()
            self._reaper.wait(_REAPER_WAIT_S)
        disown(self._reaper.pid)
        self._reaper = None

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def outlive_group(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's environment for a process that serves one group after another."""
    marks = {
        name: mark.partition(".")[0] for name, mark in environment.items() if name == env.GROUP
    }
    return {**environment, **marks}


# Processes.


def _bears(marks: set[bytes], environment: list[bytes]) -> bool:
    return not marks.isdisjoint(environment)


def _is_unreaped_child(pid: int) -> bool:
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _parent_of_ended(pid: int) -> int | None:
    """Return the parent of a process that has ended and has not been reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, parent = stat.rpartition(b")")[2].split()[:2]  # the name before it may hold anything
    return int(parent) if state == b"Z" else None


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists, and belongs to another user
    return True


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
