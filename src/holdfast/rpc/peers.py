"""The caller's side of one peer: connections to one incarnation of one worker.

A synchronous call takes an idle link, or opens one, and reads its own answer from it. So as many
links are open as calls were under way at once, and none is shared while it is used.

Guarantees
    PE-1  When the peer is given up, everybody who waits for it hears so at once.
    PE-2  A connection on which something failed is closed and never used again; the next call
          opens another one, as long as this incarnation is not given up.
    PE-3  At most LINKS_MAX links are open, and at most IDLE_MAX of them idle; a call that would
          need more is refused with Overloaded.
    PE-4  An attempt to connect that fails or takes too long is made again until the deadline of
          the call, and each has more time than the one before: a peer is lost by its lease, or if
          its system says that nobody listens there, or if it refuses us; never since it is slow.
    PE-5  Nothing is sent to a Unix socket of another user, and our proof opens no other worker.
    PE-6  An exchange ends at its limit, or LATE_S later where signals interrupt the thread that
          waits. The reader of last resort watches over that, while there are exchanges.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    HoldfastError,
    Overloaded,
    PeerLost,
    PeerViolation,
    Refused,
    Unavailable,
)
from holdfast.net.address import Address
from holdfast.net.auth import Key
from holdfast.net.credentials import check_peer
from holdfast.net.reactor import tune
from holdfast.net.tcp import open_socket, shake_hands
from holdfast.rpc.forks import keep_from_children
from holdfast.rpc.future import Driver
from holdfast.rpc.greeting import Greeting, Purpose, decode_answer
from holdfast.rpc.link import NEVER, Link, LinkClosed
from holdfast.rpc.messages import Message
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.opening import Opening
from holdfast.rpc.pipe import Pipe, Reply
from holdfast.rpc.readers import Readers

__all__ = ["Contact", "Directory", "Peer", "Target", "machine_id"]

IDLE_MAX = 64
LINKS_MAX = 512
TRY_S = 5.0
"""How long the first attempt to connect may take, and …"""
AGAIN_S = 0.02
"""… how long to wait after it. Both double with each attempt …"""
LONGER_MAX = 8
"""… up to so many times as long."""
LATE_S = 0.05
_QUIET_ROUNDS = 5

Target: TypeAlias = str | int | WorkerInfo


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a worker is: `incarnation` is this life of it, `machine` the host that it runs on.

    `world_size` is how many workers it waits for; 0 where workers come and go.
    """

    info: WorkerInfo
    incarnation: str
    machine: str
    unix: str
    tcp: str
    world_size: int = 0


class Directory(Protocol):
    """Who is where."""

    def find(self, target: Target) -> Contact:
        """Return where a worker is now; UsageError if nobody of that name is known."""
        ...

    def find_incarnation(self, incarnation: str) -> Contact:
        """Return where this life of a worker is; PeerLost if it is over.

        Another error if that cannot be told now.
        """
        ...


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
        self._key = key.meant_for(contact.incarnation)
        self._readers = readers
        self._clock = clock
        # Taken and put back without the lock: each is one instruction.
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._to_open = 0  # links that are being opened …
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # … and theirs, or older
        self._pipe: Pipe | None = None
        self._pipe_link: Link | None = None
        self._opening: Opening | None = None
        self._lost: PeerLost | None = None
        self._watched = False  # whether the reader of last resort asks for what is late …
        self._quiet = 0  # … and how often it has found no exchange under way
        self._told: dict[Reply, None] = {}  # those who hear of its loss though nothing is sent

    def exchange(self, message: Message, at: float = NEVER) -> Message:
        """Send a request and return its answer. Blocks; TimeoutError at that moment."""
        link = self._send(message, at)
        if not self._watched and at != NEVER:  # after its limit is set: see `expire`
            self._watched = True
            self._readers.time(self)
        try:
            answer = link.receive()
            if answer.call != message.call:
                raise PeerViolation(f"{self.contact.info}: an answer to another call came")
        except BaseException as error:
            self._discard(link)  # nobody knows what is still on its way
            if isinstance(error, PeerViolation):
                error = LinkClosed(f"Connection closed by peer ({error})")
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise self._gone(error) from None
            raise
        self._put_back(link)
        return answer

    def post(self, message: Message, reply: Reply, at: float = NEVER) -> Driver:
        """Send a request whose answer `reply` hears; return what a waiter can drive.

        Does not block, not even for a connection.
        """
        pipe = self._pipe
        if pipe is None or pipe.lost is not None:
            with self._lock:
                pipe = self._pipe  # somebody may have opened it meanwhile
                if pipe is None or pipe.lost is not None:
                    return self._when_open(lambda opening: opening.post(message, reply, at))
        pipe.post(message, reply, at)
        return pipe

    def open(self, at: float) -> None:
        """Open the connection that posts go by, if there is none. Blocks until that moment."""
        if self._pipe is None or self._pipe.lost is not None:
            self._open_pipe(at)

    def note(self, message: Message) -> None:
        """Send a message that is not answered, when there is a connection; waits for none."""
        pipe = self._pipe
        if pipe is None or pipe.lost is not None:
            with self._lock:
                pipe = self._pipe
                if pipe is None or pipe.lost is not None:
                    self._when_open(lambda opening: opening.note(message))
                    return
        pipe.note(message)

    def reset(self, why: str) -> None:
        """Break all connections to the peer, which may well be alive; new ones can be opened."""
        with self._lock:
            links, self._links = list(self._links), set()
            pipe, self._pipe, self._pipe_link = self._pipe, None, None
            opening, self._opening = self._opening, None
        self._idle.clear()
        info = self.contact.info
        error = PeerLost(f"{info}: {why}", peer=info.name, incarnation=self.contact.incarnation)
        if pipe is not None:
            pipe.close(error)
        if opening is not None:
            opening.close(error)
        for link in links:
            link.close()

    @property
    def links(self) -> tuple[Link, ...]:
        """The connections to it."""
        with self._lock:
            return tuple(self._links)

    @property
    def under_way(self) -> int:
        """How many calls to it are not answered yet."""
        with self._lock:
            pipe, pipe_link = self._pipe, self._pipe_link
            direct = len(self._links - {pipe_link}) - len(self._idle)
            waiting = 0 if self._opening is None else self._opening.waiting
        return max(0, direct) + waiting + (0 if pipe is None else pipe.under_way[0])

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
            sockets = list(self._sockets)
            pipe, opening = self._pipe, self._opening
            told, self._told = list(self._told), {}
        self._idle.clear()
        if pipe is not None:
            pipe.close(lost)
        if opening is not None:
            opening.close(lost)
        for link in links:
            link.close()
        for sock in sockets:  # of links that are being opened: who does that hears of it
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for tell in told:
            tell(lost.anew())
        return lost

    def tell_of_loss(self, reply: Reply) -> None:
        """Let this one hear, too, when the peer is given up: now, if it is.

        For who waits without a message under way, such as one that is dropped on purpose.
        """
        with self._lock:
            lost = self._lost
            if lost is None:
                self._told[reply] = None
        if lost is not None:
            reply(lost.anew())

    def tell_no_more(self, reply: Reply) -> None:
        """Let this one hear no more of that."""
        with self._lock:
            self._told.pop(reply, None)

    def expire(self, now: float) -> bool:
        """End exchanges that are late (PE-6); say whether to ask again."""
        with self._lock:
            busy = [link for link in self._links if link.limit != NEVER]
        for link in busy:
            if link.limit <= now - LATE_S:
                link.shut()
        self._quiet = 0 if busy else self._quiet + 1
        if self._quiet >= _QUIET_ROUNDS:
            self._watched = False
            with self._lock:  # again: one may have begun that took itself for watched
                self._watched = any(link.limit != NEVER for link in self._links)
        return self._watched

    def _gone(self, error: OSError) -> PeerLost:
        """Return what to raise when a connection broke: the peer's end, if that is what it is."""
        if self._lost is not None:
            return self._lost.anew()
        info = self.contact.info
        return PeerLost(f"{info}: {error}", peer=info.name, incarnation=self.contact.incarnation)

    def _send(self, message: Message, at: float) -> Link:
        """Send on an idle link, or on a new one; return it.

        Idle links may have ended unseen. A message that could not be sent whole is not run, so it
        is sent again.
        """
        while True:
            try:
                link, new = self._idle.pop(), False
            except IndexError:
                link, new = self._open(Purpose.DIRECT, at), True
            try:
                link.set_limit(at)
                link.send(message)
                return link
            except BaseException as error:
                self._discard(link)
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    raise
                if new:
                    raise self._gone(error) from None

    def _put_back(self, link: Link) -> None:
        link.limit = NEVER
        if len(self._idle) < IDLE_MAX and self._lost is None:
            self._idle.append(link)
        else:
            self._discard(link)

    def _discard(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)
        link.close()

    def _when_open(self, wait: Callable[[Opening], bool]) -> Opening:
        """Let a message wait for the pipe that is being opened; begin to open one if none is.

        With the lock held.
        """
        if self._lost is not None:
            raise self._lost.anew()
        opening = self._opening
        if opening is None or not wait(opening):
            name = f"holdfast-rpc-{self._me.info.name}-open"
            opening = Opening(name, self._open_pipe, self._readers)
            wait(opening)
            try:
                opening.start()
            except RuntimeError as error:
                raise Overloaded(f"{self.contact.info}: {error}") from None
            self._opening = opening
        return opening

    def _open_pipe(self, at: float = NEVER) -> Pipe:
        link = self._open(Purpose.PIPE, at)
        over: Link | None = link
        with self._lock:
            pipe = self._pipe
            if pipe is not None and pipe.lost is None:
                pass  # somebody was faster
            else:
                over = self._pipe_link
                pipe = self._pipe = Pipe(link, self._readers, self._gone, self._clock)
                self._pipe_link = link
            lost = self._lost
        if lost is not None:
            pipe.close(lost)  # without the lock: those who hear of it may call again
        if over is not None:
            self._discard(over)
        return pipe

    def _open(self, purpose: Purpose, at: float) -> Link:
        """Open a connection, prove who we are, and say what it is for."""
        contact, me = self.contact, self._me
        greeting = Greeting(me.info.name, me.info.id, me.incarnation, contact.incarnation, purpose)
        with self._lock:
            if self._lost is not None:
                raise self._lost.anew()
            if len(self._links) + self._to_open >= LINKS_MAX:
                raise Overloaded(f"{contact.info}: {LINKS_MAX} calls to it are under way, the most")
            self._to_open += 1
        try:
            link = self._be_welcomed(greeting, at)
        except BaseException:
            with self._lock:
                self._to_open -= 1
            raise
        with self._lock:
            self._to_open -= 1
            if self._lost is None:
                self._links.add(link)
                link.watched = purpose is Purpose.DIRECT
                return link
        link.close()
        raise self._lost.anew()

    def _be_welcomed(self, greeting: Greeting, at: float) -> Link:
        deadline = Deadline(None if at == NEVER else at, self._clock)
        longer = 1
        while True:
            limit = deadline.sooner(TRY_S * longer)
            try:
                link = self._connect(limit)
                refusal = self._greet(link, greeting, limit)
            except (OSError, HoldfastError) as error:
                if self._lost is not None or deadline.passed() or _is_final(error):
                    raise self._unopened(error, at) from None
                self._clock.sleep(deadline.sooner(AGAIN_S * longer).remaining() or 0.0)
                longer = min(2 * longer, LONGER_MAX)
                continue  # PE-4
            if refusal:
                link.close()
                raise self._unopened(LinkClosed(refusal), at)
            return link

    def _greet(self, link: Link, greeting: Greeting, deadline: Deadline) -> str:
        """Say who we are and what for; return why that is refused, or nothing."""
        try:
            link.set_limit(NEVER if deadline.at is None else deadline.at)
            link.send_all([*link.offer(), greeting.encode()])
            refusal = decode_answer(link.receive())
            link.set_limit(NEVER)
        except BaseException:
            link.close()
            raise
        return refusal

    def _unopened(self, error: Exception, at: float) -> Exception:
        """Return what to raise when no connection could be opened."""
        if self._lost is not None:
            return self._lost.anew()
        if at <= self._clock.monotonic():
            return TimeoutError(f"no connection was opened: {str(error) or 'no answer in time'}")
        info, text = self.contact.info, str(error)
        if _errno(error) in _SHORTAGES:
            return Overloaded(f"{info}: no connection can be opened: {text}")
        if not isinstance(error, LinkClosed):
            text = f"Connection closed by peer ({text})"
        return PeerLost(f"{info}: {text}", peer=info.name, incarnation=self.contact.incarnation)

    def _connect(self, deadline: Deadline) -> Link:
        contact = self.contact
        address = Address("unix", 0)
        if contact.unix and contact.machine == self._me.machine:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._made(sock)
                sock.setblocking(False)
                self._connect_unix(sock, deadline)
                check_peer(sock, self._key.group)  # its name may be another user's by now
            except BaseException:
                sock.close()
                raise
        else:
            host, _, port = contact.tcp.rpartition(":")
            if not port:
                raise _NoWay("it listens for workers of its own host only")
            address = Address(host.strip("[]"), int(port))
            sock = open_socket(address, deadline, self._made)
            tune(sock)
        try:
            return Link(sock, shake_hands(sock, self._key, address, deadline), self._clock)
        except BaseException as error:
            sock.close()
            if isinstance(error, Refused):
                raise Refused(f"{error}, or is another worker than the one that we mean") from None
            raise

    def _made(self, sock: socket.socket) -> None:
        """Take care of a new socket: a process that is forked has no part in it, nor has a loss."""
        keep_from_children(sock)
        with self._lock:
            if self._lost is not None:
                raise self._lost.anew()
            self._sockets.add(sock)

    def _connect_unix(self, sock: socket.socket, deadline: Deadline) -> None:
        """Connect; waits where too many others do, as the system does not if it has a timeout."""
        while self._lost is None:
            try:
                sock.connect(self.contact.unix)
            except BlockingIOError:
                if deadline.passed():
                    raise TimeoutError from None
                SYSTEM_CLOCK.sleep(0.005)
            else:
                return
        raise self._lost.anew()


def _is_final(error: Exception) -> bool:
    """Say whether another attempt to connect would not end otherwise than this one."""
    if isinstance(error, Refused | PeerViolation | _NoWay):
        return True
    return _errno(error) in _NOBODY_THERE | _SHORTAGES


_NOBODY_THERE = {errno.ECONNREFUSED, errno.ENOENT}
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # of this system's


def _errno(error: Exception) -> int | None:
    """Return what the system said, if it was the system."""
    said = error.__cause__ if isinstance(error, Unavailable) else error
    return said.errno if isinstance(said, OSError) else None


class _NoWay(Unavailable):
    """There is no address by which this process could reach the peer."""


def machine_id() -> str:
    """Return what tells this machine from others, and this boot of it from earlier ones."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        return socket.gethostname()
