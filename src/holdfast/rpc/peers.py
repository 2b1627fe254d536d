"""The caller's side of one peer: connections to one incarnation of one worker.

A synchronous call takes an idle link, or opens one, and reads its own answer from it. So as many
links are open as calls were under way at once, and none is shared while it is used.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import HoldfastError, PeerLost, PeerViolation
from holdfast.net.address import Address
from holdfast.net.auth import Key
from holdfast.net.tcp import open_socket, shake_hands
from holdfast.rpc.greeting import Greeting, Purpose, decode_answer
from holdfast.rpc.link import Link
from holdfast.rpc.messages import Message
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.pipe import NEVER, Pipe, Readers, Reply

__all__ = ["Contact", "Peer"]

IDLE_MAX = 64
OPEN_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a worker is: `incarnation` is this life of it, `machine` the host that it runs on."""

    info: WorkerInfo
    incarnation: str
    machine: str
    unix: str
    tcp: str


class Peer:
    """One incarnation of one worker, as its callers see it."""

    def __init__(
        self,
        contact: Contact,
        me: Contact,
        key: Key,
        readers: Readers,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.contact = contact
        self._me = me
        self._key = key
        self._readers = readers
        self._clock = clock
        # Taken and put back without the lock: each is one instruction.
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._pipe: Pipe | None = None
        self._lost: PeerLost | None = None

    def exchange(self, message: Message, at: float = NEVER) -> Message:
        """Send a request and return its answer. Blocks; TimeoutError at that moment."""
        try:
            link = self._idle.pop()
        except IndexError:
            link = self._open(Purpose.DIRECT, at)
        try:
            if at != NEVER:
                link.set_timeout(max(0.0001, at - self._clock.monotonic()))
            link.send(message)
            answer = link.receive()
            if answer.call != message.call:
                raise PeerViolation(f"{self.contact.info}: an answer to another call came")
        except BaseException as error:
            self._discard(link)  # nobody knows what is still on its way
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise self._gone(error) from None
            raise
        if len(self._idle) < IDLE_MAX and self._lost is None:
            self._idle.append(link)
        else:
            self._discard(link)
        return answer

    def post(self, message: Message, reply: Reply, at: float = NEVER) -> Pipe:
        """Send a request whose answer `reply` hears; return the pipe that will bring it."""
        pipe = self._pipe
        if pipe is None or pipe.lost is not None:
            pipe = self._open_pipe(at)
        pipe.post(message, reply, at)
        return pipe

    def note(self, message: Message) -> None:
        """Send a message that is not answered."""
        pipe = self._pipe
        if pipe is not None:
            pipe.note(message)

    def reset(self, why: str) -> None:
        """Break all connections to the peer, which may well be alive; new ones can be opened."""
        with self._lock:
            links, self._links = list(self._links), set()
            pipe, self._pipe = self._pipe, None
        self._idle.clear()
        if pipe is not None:
            info = self.contact.info
            error = PeerLost(f"{info}: {why}", peer=info.name, incarnation=self.contact.incarnation)
            pipe.close(error)
        for link in links:
            link.close()

    @property
    def lost(self) -> PeerLost | None:
        """Why this incarnation is given up; None while it is not."""
        return self._lost

    def lose(self, why: str) -> PeerLost:
        """Give the peer up: whatever waits for it hears so now. Idempotent."""
        info = self.contact.info
        lost = PeerLost(f"{info}: {why}", peer=info.name, incarnation=self.contact.incarnation)
        with self._lock:
            if self._lost is not None:
                return self._lost
            self._lost = lost
            links, self._links = list(self._links), set()
            pipe = self._pipe
        self._idle.clear()
        if pipe is not None:
            pipe.close(lost)
        for link in links:
            link.close()
        return lost

    def _gone(self, error: OSError) -> PeerLost:
        """Return what to raise when a connection broke: the peer's end, if that is what it is."""
        info = self.contact.info
        return self._lost or PeerLost(
            f"{info}: {error}", peer=info.name, incarnation=self.contact.incarnation
        )

    def _discard(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)
        link.close()

    def _open_pipe(self, at: float) -> Pipe:
        link = self._open(Purpose.PIPE, at)
        with self._lock:
            if self._pipe is not None and self._pipe.lost is None:
                pipe = self._pipe  # somebody was faster
            else:
                pipe = self._pipe = Pipe(link, self._readers, self._gone)
                link = None  # type: ignore[assignment]
        if link is not None:
            self._discard(link)
        return pipe

    def _open(self, purpose: Purpose, at: float) -> Link:
        """Open a connection, prove who we are, and say what it is for."""
        if self._lost is not None:
            raise self._lost
        deadline = Deadline(None if at == NEVER else at, self._clock).sooner(OPEN_WITHIN_S)
        contact, me = self.contact, self._me
        try:
            link = self._connect(deadline)
            greeting = Greeting(
                me.info.name, me.info.id, me.incarnation, contact.incarnation, purpose
            )
            link.send(greeting.encode())
            refusal = decode_answer(link.receive())
        except TimeoutError:
            raise
        except (OSError, HoldfastError) as error:
            if at != NEVER and self._clock.monotonic() >= at:
                raise TimeoutError from None  # the caller's time, whatever it was spent on
            raise self._lost or PeerLost(
                f"{contact.info}: Connection closed by peer ({error})",
                peer=contact.info.name,
                incarnation=contact.incarnation,
            ) from None
        if refusal:
            link.close()
            raise PeerLost(
                f"{contact.info}: {refusal}",
                peer=contact.info.name,
                incarnation=contact.incarnation,
            )
        link.set_timeout(None)
        with self._lock:
            if self._lost is None:
                self._links.add(link)
                return link
        link.close()
        raise self._lost

    def _connect(self, deadline: Deadline) -> Link:
        contact = self.contact
        address = Address("unix", 0)
        if contact.unix and contact.machine == self._me.machine:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(deadline.remaining())
                sock.connect(contact.unix)
            except BaseException:
                sock.close()
                raise
        else:
            host, _, port = contact.tcp.rpartition(":")
            address = Address(host.strip("[]"), int(port))
            sock = open_socket(address, deadline)
        try:
            rest = shake_hands(sock, self._key, address, deadline)
            sock.settimeout(deadline.remaining())
            return Link(sock, rest)
        except BaseException:
            sock.close()
            raise


def machine_id() -> str:
    """Return what tells this machine from others, and this boot of it from earlier ones."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        return socket.gethostname()
