"""Workers of RPC in processes of their own, for tests: started, killed, stopped, and started again.

Run as a program it is a worker: it joins, says where it is, and ends when its input does.
"""

from __future__ import annotations

import errno
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from unittest import mock

import holdfast
from holdfast.clock import Deadline
from holdfast.net.auth import derive_key
from holdfast.rpc import agent as agents
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.directory import KEEP_ALIVE_S, Directory
from holdfast.rpc.wire import peer_memory
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.prefix import PrefixStore
from tests.unit.store.tcp_parts import line_of, python

KEY = derive_key(b"a secret that only workers know", "rpc")
SOON = 120.0
MANY = 20


class Way(StrEnum):
    """How messages go from one worker to another."""

    FETCHED = "fetched"
    """On one machine; large buffers are fetched by the receiver."""
    SENT = "sent"
    """On one machine, where no process may read the memory of others."""
    TCP = "tcp"
    """As between machines."""


@contextmanager
def going(way: Way) -> Iterator[str]:
    """Let this process be one whose messages go this way; give the address to listen on."""

    def refused() -> None:
        raise OSError(errno.EPERM, "not here")

    with ExitStack() as stack:
        if way is Way.TCP:
            here = secrets.token_hex(8)
            stack.enter_context(mock.patch.object(agents, "machine_id", return_value=here))
        elif way is Way.SENT:
            stack.enter_context(mock.patch.object(peer_memory, "_readv", refused))
        yield "127.0.0.1" if way is Way.TCP else ""


@contextmanager
def joined(
    name: str,
    number: int,
    endpoint: str,
    size: int = 0,
    way: Way = Way.FETCHED,
    lease_s: float = KEEP_ALIVE_S,
) -> Iterator[Agent]:
    """Be a worker."""
    here: list[Agent] = []

    def gone(contact: Contact) -> None:
        for agent in here:
            agent.lost(contact)

    deadline = Deadline.after(SOON)
    with holdfast.open_store(endpoint) as store, going(way) as host:
        known = Directory(PrefixStore(store, "rpc/"), lost=gone, keep_alive_s=lease_s)
        agent = Agent(WorkerInfo(name, number), known, KEY, timeout_s=SOON)
        try:
            agent.start(host)
            here.append(agent)
            assert agent.contact is not None
            known.join(agent.contact, deadline)
            known.wait_for(size, deadline)
            yield agent
        finally:
            agent.close()
            known.close()


class Workers:
    """Several workers; `me` is the one of this process, "w0"."""

    def __init__(self, endpoint: str, lease_s: float, way: Way = Way.FETCHED) -> None:
        self._endpoint = endpoint
        self._lease_s = lease_s
        self._way = way
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        """Start workers and wait until they are there.

        A name may be several, with commas: then one process starts, and the others come of it,
        which is faster.
        """
        for name in names:
            self._processes[name] = subprocess.Popen(
                [sys.executable, __file__, name, self._endpoint, str(self._lease_s), self._way],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            )
        for name in names:
            out = self._processes[name].stdout
            assert out is not None
            for _ in name.split(","):
                assert out.readline() == b"here\n"

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def end(self, *names: str) -> None:
        """End these, or all."""
        ending = [self._processes.pop(name) for name in names or list(self._processes)]
        for process in ending:
            process.send_signal(signal.SIGCONT)
            if not names:
                assert process.stdin is not None
                process.stdin.close()
            else:
                process.kill()
        for process in ending:
            process.wait(SOON)
            for file in (process.stdin, process.stdout):
                if file is not None:
                    file.close()


STORE = """
import sys
import holdfast
with holdfast.serve_store() as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


@contextmanager
def serving(apart: bool) -> Iterator[str]:
    """Serve a store, here or in a process of its own; give its endpoint."""
    if not apart:
        with holdfast.serve_store() as server:
            yield server.endpoint
        return
    with python(STORE) as process:
        yield line_of(process)


@contextmanager
def workers(
    count: int, lease_s: float = 10.0, way: Way = Way.FETCHED, *, store_apart: bool = False
) -> Iterator[tuple[Agent, Workers]]:
    """Start workers "w1"… in processes, and be "w0"."""
    with serving(store_apart) as endpoint:
        others = Workers(endpoint, lease_s, way)
        try:
            names = [f"w{number}" for number in range(1, count)]
            others.start(*(names if count < 5 else [",".join(names)]))
            with joined("w0", 0, endpoint, count, way, max(lease_s, KEEP_ALIVE_S)) as agent:
                try:
                    yield agent, others
                finally:
                    others.end()
        finally:
            others.end()


def stand_back() -> None:
    """Run at a low priority: so many would leave nothing for the tests beside them."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
    sys.setswitchinterval(0.05)  # threads that wait for the interpreter wake up as often


def main() -> None:
    names, endpoint, lease_s, way = sys.argv[1:]
    name, *others = names.split(",")
    many = len(others) > MANY
    if many:
        stand_back()
    born = []
    for other in others:
        born.append(os.fork())
        if not born[-1]:
            name, born = other, []
            break
    with joined(name, int(name[1:]), endpoint, way=Way(way), lease_s=float(lease_s)) as agent:
        current.set_agent(agent)
        sys.stdout.write("here\n")
        sys.stdout.flush()
        sys.stdin.read()
        if many and not born:
            os._exit(0)  # so many would take long to take leave of each other
        current.reset_agent()
    for process in born:
        os.waitpid(process, 0)


if __name__ == "__main__":
    main()
