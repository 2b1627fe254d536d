"""Several agents in one process, which know each other by a plain table."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.errors import PeerLost, UsageError
from holdfast.net.auth import derive_key
from holdfast.rpc.agent import Agent, Target
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.transport import Link, MessageTransport
from holdfast.rpc.wire.messages import Message
from holdfast.rpc.wire.worker_info import WorkerInfo

KEY = derive_key(b"a secret of these tests, 32 bytes", "rpc")


class Table:
    """The addresses of workers, within this process."""

    def __init__(self) -> None:
        self.contacts: list[Contact] = []

    def find(self, target: Target) -> Contact:
        for contact in self.contacts:
            if target in (contact.info, contact.info.name, contact.info.id):
                return contact
        raise UsageError(f"worker {target!r}: unknown")

    def find_incarnation(self, incarnation: str) -> Contact:
        for contact in self.contacts:
            if contact.incarnation == incarnation:
                return contact
        raise PeerLost("Connection closed by peer (it is gone)", incarnation=incarnation)


class Unchanged:
    """A transport that carries all messages as they are, for tests to override."""

    repeats = False

    def check(self, link: Link, message: Message) -> None:
        pass

    def send(self, link: Link, message: Message) -> None:
        link.transmit(message)

    def receive(self, link: Link, message: Message) -> None:
        link.complete(message.call, message)

    def close(self) -> None:
        pass


@contextmanager
def agents(*transports: MessageTransport | None) -> Iterator[list[Agent]]:
    """Give agents `w0`, `w1` …, one for each transport; None for the plain one."""
    table = Table()
    made = [
        Agent(WorkerInfo(f"w{number}", number), table, KEY, timeout_s=20.0, transport=transport)
        for number, transport in enumerate(transports)
    ]
    try:
        for agent in made:
            agent.start()
            assert agent.contact is not None
            table.contacts.append(agent.contact)
        yield made
    finally:
        for agent in made:
            agent.close()


@contextmanager
def forked(work: Callable[[], None]) -> Iterator[None]:
    """Run `work` in a forked child, which must succeed; the child lives until the block is left."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ours.close()
            work()
            theirs.sendall(b".")
            theirs.recv(1)
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    try:
        assert ours.recv(1) == b".", "it failed; see what it has printed"
        yield
    finally:
        ours.close()
        os.waitpid(pid, 0)
