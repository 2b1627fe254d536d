"""A small server of HTTP on a reactor's thread: one request for each connection.

Guarantees
    HS-1  Clients cannot exhaust it: at most `connections_max` connections that have not been
          answered, and an eighth of the descriptors; the oldest of the address that has the most
          is closed. None lives longer than `request_s` without a whole request of at most
          REQUEST_BYTES_MAX.
    HS-2  What a request makes go wrong is answered with 503, and harms no other one.
    HS-3  At most `streams_max` replies go on without an end; one whose client leaves
          UNREAD_BYTES_MAX unread is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.net.address import Address
from holdfast.net.descriptors import share_of_descriptors
from holdfast.net.http_messages import (
    REQUEST_BYTES_MAX,
    HttpRefused,
    ServedReply,
    ServedRequest,
    parse_request,
    refusal,
    render_head,
    render_reply,
)
from holdfast.net.reactor import Reactor, ReactorConnection, Timer
from holdfast.net.unauthenticated import UnauthenticatedConnections

__all__ = [
    "CONNECTIONS_MAX",
    "REQUEST_S",
    "UNREAD_BYTES_MAX",
    "HttpExchange",
    "HttpServer",
]

CONNECTIONS_MAX = 256  # more than a reactor accepts at once: a whole request that came is read
REQUEST_S = 5.0
UNREAD_BYTES_MAX = 4 * 1024 * 1024

_log = logging.getLogger("holdfast.net")


class HttpServer:
    """Gives each request to `answer`, on the reactor's thread: it must not block.

    `answer` calls `reply` or `stream` of the exchange, at once or later by the reactor.
    """

    def __init__(
        self,
        name: str,
        answer: Callable[[HttpExchange], None],
        *,
        connections_max: int = CONNECTIONS_MAX,
        request_s: float = REQUEST_S,
        streams_max: int = 0,
    ) -> None:
        self.reactor = Reactor(name)
        self._answer = answer
        self._request_s = request_s
        self._streams_max = streams_max
        # Touched by the reactor's thread only.
        self._open = UnauthenticatedConnections[HttpExchange](share_of_descriptors(connections_max))
        self._streams: set[HttpExchange] = set()

    def listen(self, address: Address) -> Address:
        """Bind an address, before `start`; return the bound one. UsageError if it cannot be."""
        return self.reactor.listen(address, self._accept)

    def start(self) -> None:
        """Begin to answer."""
        self.reactor.start()

    def close(self) -> None:
        """Stop answering, and close every connection. Idempotent."""
        self.reactor.close()

    # On the reactor's thread.

    def _accept(self, connection: ReactorConnection) -> HttpExchange:
        too_slow = self.reactor.call_later(self._request_s, lambda: connection.close("too slow"))
        exchange = HttpExchange(self, connection, too_slow)
        crowded_out = self._open.admit(exchange, connection.host)
        if crowded_out is not None:
            crowded_out.end("others wait")
        return exchange

    def _forget(self, exchange: HttpExchange) -> None:
        self._open.forget(exchange)
        self._streams.discard(exchange)

    def _begin_stream(self, exchange: HttpExchange) -> bool:
        """Count a stream; say whether there was room for it."""
        if len(self._streams) >= self._streams_max:
            return False
        self._open.forget(exchange)
        self._streams.add(exchange)
        return True


class HttpExchange:
    """One connection, its request and the reply. Used on the reactor's thread only."""

    def __init__(self, server: HttpServer, connection: ReactorConnection, too_slow: Timer) -> None:
        self._server = server
        self._connection = connection
        self._too_slow = too_slow
        self._data = b""
        self._method = ""
        self.on_closed: Callable[[], None] = lambda: None
        """Called when the connection is over, whichever side ended it."""

    def received(self, data: bytes) -> None:
        if self._method:
            return  # one request for each connection
        self._data += data
        if b"\r\n\r\n" in self._data:
            self._too_slow.cancel()
            self._hear(self._data.partition(b"\r\n\r\n")[0])
        elif len(self._data) > REQUEST_BYTES_MAX:
            self.reply(refusal(431))

    def closed(self, reason: str) -> None:
        self._too_slow.cancel()
        self._server._forget(self)
        self.on_closed()

    def end(self, reason: str) -> None:
        """Close the connection."""
        self._connection.close(reason)

    def _hear(self, head: bytes) -> None:
        try:
            self.request = request = parse_request(head)
        except HttpRefused as error:
            self.reply(refusal(error.status))
            return
        self._method = request.method
        try:
            self._server._answer(self)
        except Exception:  # HS-2
            _log.exception("a request of HTTP could not be answered")
            self.reply(refusal(503))

    request: ServedRequest
    """What is asked."""

    def reply(self, reply: ServedReply) -> None:
        """Answer, and close the connection."""
        self._connection.send(render_reply(reply, with_content=self._method != "HEAD"))
        self._connection.close("answered")

    def stream(self, *headers: tuple[str, str]) -> bool:
        """Begin a reply without an end; if there are too many, answer so and say False (HS-3)."""
        if not self._server._begin_stream(self):
            self.reply(refusal(503, "too many pages are open"))
            return False
        self._connection.send(render_head(200, *headers))
        return True

    def send(self, data: bytes) -> None:
        """Send a part of a stream."""
        self._connection.send(data)
        if self._connection.unsent() > UNREAD_BYTES_MAX:
            self._connection.close("the client does not read")
