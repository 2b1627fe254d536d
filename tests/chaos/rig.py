"""The driver's side of chaos: the agents of one job, what they and their workers say, a census.

A rig has a folder with a pipe for its workers' marks, and a port that is held for the store. Every
wait has a limit; what does not come within it is a `Hang`, which shows the stacks of the agents.
Whatever happens, no process that a rig has started outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.clock import Deadline
from holdfast.net.secret import new_secret
from holdfast.rendezvous.port import HeldPort
from tests.chaos.plan import WORKERS, Phase
from tests.chaos.worker import FINISH, MARKS
from tests.waiting import holds_in_time

__all__ = ["AgentProcess", "Hang", "Mark", "Rig", "Traces", "carriers", "strike"]

TIMEOUT_S = 60.0
"""How long anything may take; what takes longer does not come."""
RECONNECT_WITHIN_S = 15.0
"""How long agents look for a store that is gone."""
MARK = "CHAOS_AGENT"
"""The variable by which we find what an agent has started, whatever holdfast does."""

_ROOT = Path(__file__).parents[2]
_PIPE_BYTES = 256 * 1024
_PROC = Path("/proc")
_REAPER = b"holdfast-reaper"

Report = dict[str, Any]


class Hang(Exception):
    """Something did not come in time."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a worker said of itself."""

    mark: str
    rank: int
    world: int
    pid: int
    restarts: int
    alone: bool
    value: int = 0


@dataclass(frozen=True, slots=True)
class Traces:
    """By what everything that belongs to an agent is recognised."""

    token: str
    temporary: Path
    group: str = ""
    cgroup: str = ""
    reaper: int | None = None

    def left(self) -> list[str]:
        """Return what of it is there now."""
        left = [f"process {pid} of the test's mark" for pid in carriers(f"{MARK}={self.token}")]
        if self.group:
            left += [f"process {pid} of the agent's mark" for pid in carriers(self.group)]
        if self.reaper is not None and self.group.encode() in _command(self.reaper):
            left.append(f"reaper {self.reaper}")
        if self.cgroup and os.path.exists(self.cgroup):
            left.append(f"control group {self.cgroup}")
        for folder, _, files in os.walk(self.temporary):
            left += [f"file {folder}/{file}" for file in files]
            left += [f"folder {folder}"] if Path(folder) != self.temporary else []
        return left


class AgentProcess:
    """One agent, and everything that it has said."""

    def __init__(self, wish: dict[str, Any], folder: Path, name: str, secret: Path) -> None:
        self.token = f"{name}-{os.getpid()}-{os.urandom(8).hex()}"
        self.temporary = folder / f"tmp-{name}"
        self.temporary.mkdir()
        self.errors = folder / f"{name}.err"
        self.said: list[Report] = []
        self.code: int | None = None
        self._rest = b""
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.agent", json.dumps(wish)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pipesize=_PIPE_BYTES,
                env={
                    **os.environ,
                    MARK: self.token,
                    "TMPDIR": str(self.temporary),
                    "HOLDFAST_SECRET_FILE": str(secret),
                    "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
                },
            )
        assert self.process.stdout is not None
        self.reports = self.process.stdout.fileno()
        self.traces = Traces(self.token, self.temporary)

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def heard(self, event: str, **fields: object) -> Report | None:
        """Return its latest report of this kind with these fields, if there is one."""
        wanted = {"event": event, **fields}.items()
        return next((said for said in reversed(self.said) if said.items() >= wanted), None)

    def release(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self.process.stdin.fileno(), b".")

    def trace(self) -> None:
        """Note by what its belongings are recognised, while it lives."""
        for path in _PROC.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, IndexError):
                parent = path.read_text().rpartition(")")[2].split()[1]
                words = _command(int(path.parent.name)).split(b"\0")
                if parent == str(self.pid) and _REAPER in words:
                    group, cgroup = words[4].decode(), words[5].decode()
                    self.traces = Traces(
                        self.token, self.temporary, group, cgroup, int(path.parent.name)
                    )

    def read(self) -> list[Report]:
        """Return what it has said since; the end of its reports is its own, and is waited for."""
        data = os.read(self.reports, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        new = [json.loads(line) for line in lines]
        self.said += new
        if not data:
            self.code = self.process.wait(TIMEOUT_S)
        return new

    def stacks(self) -> str:
        """Return what its threads do, and what it wrote last."""
        if self.code is None:
            written = self.errors.stat().st_size
            self.process.send_signal(signal.SIGUSR1)
            holds_in_time(
                lambda: self._dumped(written) or self.process.poll() is not None, TIMEOUT_S
            )
        text = self.errors.read_text(errors="replace")[-6000:]
        said = "\n".join(map(str, self.said[-12:]))
        return f"agent {self.token} (ended: {self.process.poll()})\n{said}\n{text}"

    def _dumped(self, written: int) -> bool:
        """Say whether all stacks are there; the last line is of the outermost frame of `main`."""
        return b"in _run_module_as_main\n" in self.errors.read_bytes()[written:]

    def discard(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@dataclass(slots=True)
class Rig:
    """The agents of one job. A context manager: at its end everything of them is killed."""

    name: str
    timeout_s: float = TIMEOUT_S
    agents: list[AgentProcess] = field(default_factory=list)
    marks: dict[tuple[int, str], Mark] = field(default_factory=dict)
    """What workers have said, by pid and kind."""
    newest: int = 0
    """The latest round of which workers were started."""
    started: dict[int, dict[int, int]] = field(default_factory=dict)
    """The workers of each round: pids by rank."""
    round_of: dict[int, int] = field(default_factory=dict)
    finishing: bool = False
    """Whether workers are told to end well as soon as they are at work."""
    _rest: bytes = b""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _folder: Path = Path()
    _pipe: int = -1
    _port: int = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos_")))
            os.mkfifo(self._folder / MARKS)
            # Open for writing too, so that a worker never waits for a reader.
            self._pipe = os.open(self._folder / MARKS, os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, self._pipe)
            held = HeldPort("127.0.0.1")
            stack.callback(held.close)
            self._port = held.port
            secret = self._folder / "secret"
            secret.touch(mode=0o600)
            secret.write_text(new_secret().reveal())
            stack.callback(self._discard)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _discard(self) -> None:
        for agent in self.agents:
            agent.discard()
        for agent in self.agents:
            holds_in_time(partial(_none_left, agent.token), TIMEOUT_S)  # not our children

    def start(
        self,
        nodes: int,
        *,
        phase: Phase | None = None,
        hold: bool = False,
        stubborn: bool = False,
        join_timeout_s: float = 120.0,
        **config: object,
    ) -> AgentProcess:
        """Start an agent of a job of so many nodes; the first one hosts the store."""
        wish = {
            "config": {
                "min_nodes": nodes,
                "max_nodes": nodes,
                "nproc_per_node": WORKERS,
                "run_id": self.name,
                "rdzv_endpoint": f"127.0.0.1:{self._port}",
                "rdzv_configs": {
                    "is_host": str(not self.agents),
                    "join_timeout": str(join_timeout_s),
                    "last_call_timeout": "0",
                    "close_timeout": "30",
                    # No node counts as lost for being slow: the end of a connection is a death.
                    "keep_alive_interval": "20",
                    "keep_alive_max_attempt": "30",
                },
                "exit_barrier_timeout": 120.0,
                "shutdown_timeout": 1.0 if stubborn else 30.0,
                **config,
            },
            "args": [str(self._folder), *(["stubborn"] if stubborn else [])],
            "phase": phase,
            "hold": hold,
            "reconnect_within_s": RECONNECT_WITHIN_S,
        }
        name = f"agent{len(self.agents)}"
        agent = AgentProcess(wish, self._folder, name, self._folder / "secret")
        self.agents.append(agent)
        return agent

    # Waiting.

    def wait(
        self, done: Callable[[], bool], what: str, *, slice_s: float = 5.0, all_live: bool = True
    ) -> None:
        """Wait until `done()`, taking in what is said; it is asked again every `slice_s`.

        Hang if that takes too long, or if an agent ends meanwhile though all are to live.
        """
        deadline = Deadline.after(self.timeout_s)
        while not done():
            dead = all_live and any(agent.code is not None for agent in self.agents)
            if dead or deadline.passed():
                why = "an agent has ended" if dead else f"it did not come in {self.timeout_s:g} s"
                stacks = "\n".join(agent.stacks() for agent in self.agents)
                raise Hang(f"{self.name}: waited for {what}: {why}\n{stacks}")
            self._take(deadline.sooner(slice_s).remaining())

    def _take(self, timeout_s: float | None) -> None:
        living = {agent.reports: agent for agent in self.agents if agent.code is None}
        ready, _, _ = select.select([*living, self._pipe], [], [], timeout_s)
        for fd in ready:
            if fd == self._pipe:
                self._take_marks()
            else:
                for said in living[fd].read():
                    if said["event"] == "WorkersStarted":
                        self._workers_started(said)

    def _workers_started(self, said: Report) -> None:
        number = said["round"]
        self.newest = max(self.newest, number)
        for rank, pid in zip(said["ranks"], said["pids"], strict=True):
            self.round_of[pid] = number
            self.started.setdefault(number, {})[rank] = pid
            if self.finishing and (pid, "work") in self.marks:
                strike(pid, FINISH)

    def _take_marks(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._pipe, 65536)).split(b"\n")
        for mark in (Mark(**json.loads(line)) for line in lines):
            self.marks[mark.pid, mark.mark] = mark
            if self.finishing and mark.mark == "work":
                strike(mark.pid, FINISH)

    # What is known.

    def workers(self, kind: str, number: int) -> dict[int, Mark]:
        """Return what the workers of a round said when they were here: "work", "done"; by rank."""
        marks = [self.marks[pid, kind] for pid in self.pids(number) if (pid, kind) in self.marks]
        return {mark.rank: mark for mark in marks}

    def pids(self, number: int) -> list[int]:
        """Return the workers of a round."""
        return list(self.started.get(number, {}).values())

    def finish(self) -> None:
        """Let all workers end well: those that are at work, and those that will be."""
        self.finishing = True
        for mark in self.workers("work", self.newest).values():
            strike(mark.pid, FINISH)

    def ended(self) -> bool:
        """Say whether all agents have."""
        return all(agent.code is not None for agent in self.agents)


def _none_left(token: str) -> bool:
    """Kill the processes with this mark; say whether there were none."""
    pids = carriers(f"{MARK}={token}")
    for pid in pids:
        strike(pid, signal.SIGKILL)
    return not pids


def strike(pid: int, number: int) -> bool:
    """Send a signal; False if there is no such process, or it has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def carriers(item: str) -> list[int]:
    """Return the processes whose environment has this; one that has ended has none."""
    return list(_carriers(item.encode()))


def _carriers(item: bytes) -> Iterator[int]:
    for path in _PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if item in path.read_bytes():
                yield int(path.parent.name)


def _command(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
