"""A health endpoint that is alive in every phase of the agent's life.

A scheduler asks whether the agent lives, and kills what does not answer. The answer comes from a
thread of its own, so it does not depend on what the agent waits for: a round, its workers, the
other nodes at the end. It is 503 only if the agent's loop itself has stopped to turn.

    GET /          200 {"state": "running", "round": 3, "turned_s_ago": 0.2}
    GET /metrics   200, the metrics as Prometheus reads them, if there are any

Every other path is answered like `/`, since each scheduler has its own favourite.

Guarantees
    HE-1  While the process lives, a request is answered, in every phase of the job.
    HE-2  A port that cannot be had is one warning, and no error.
    HE-3  Nothing can be changed here, and nothing but liveness and metrics is shown: of what the
          agent says of itself only `SHOWN`.
    HE-4  Clients cannot exhaust it: at most `CONNECTIONS_MAX` connections, and an eighth of the
          descriptors; the oldest of the address that has the most is closed, so that a flood from
          one address silences no probe from another one. None lives longer than `REQUEST_S`
          without a whole request of at most `REQUEST_BYTES_MAX`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus

from holdfast.errors import HoldfastError, UsageError
from holdfast.net.address import Address, parse_address
from holdfast.net.descriptors import share_of_descriptors
from holdfast.net.reactor import Reactor, ReactorConnection, Timer
from holdfast.net.unauthenticated import UnauthenticatedConnections
from holdfast.observe.metrics import Metrics
from holdfast.observe.prometheus import CONTENT_TYPE, render_prometheus

__all__ = [
    "CONNECTIONS_MAX",
    "REQUEST_BYTES_MAX",
    "REQUEST_S",
    "SHOWN",
    "STUCK_S",
    "HealthServer",
]

CONNECTIONS_MAX = 256  # more than a reactor accepts at once: a whole request that came is read
REQUEST_BYTES_MAX = 8192
REQUEST_S = 5.0
STUCK_S = 60.0
SHOWN = ("state", "round", "turned_s_ago")
"""What any client may know: no names, and no words of the workers."""

_JSON = "application/json"
_EVERYWHERE = ("0.0.0.0", "::")

_log = logging.getLogger(__name__)


class HealthServer:
    """Answers health checks on a port of all interfaces, or on exactly one `host:port`.

    `status` says how the agent is, with `turned_s_ago` for the seconds since its loop last turned:
    if they are more than `STUCK_S`, it is not alive. It is called on the server's thread, and must
    not block.
    """

    def __init__(
        self,
        where: str,
        status: Callable[[], Mapping[str, object]],
        metrics: Metrics | None = None,
    ) -> None:
        self._where = where
        self._status = status
        self._metrics = metrics
        self._reactor: Reactor | None = None
        # Touched by the reactor's thread only.
        self._requests = UnauthenticatedConnections[_ProbeConnection](
            share_of_descriptors(CONNECTIONS_MAX)
        )
        self.addresses: tuple[Address, ...] = ()
        """Where it answers; nowhere before `start`, and if that had to warn."""

    def start(self) -> None:
        """Begin to answer. What prevents it is a warning."""
        reactor = Reactor("holdfast-health")
        try:
            self.addresses = self._listen(reactor)
        except HoldfastError as error:
            reactor.close()
            _log.warning("health checks are not answered: %s", error)
            return
        self._reactor = reactor
        reactor.start()

    def close(self) -> None:
        """Stop answering. May be called twice."""
        reactor, self._reactor = self._reactor, None
        if reactor is not None:
            reactor.close()

    def _listen(self, reactor: Reactor) -> tuple[Address, ...]:
        accept = partial(self._accept, reactor)
        if ":" in self._where:
            bound = reactor.listen(parse_address(self._where), accept)
            _log.info("health checks are answered on %s", bound)
            return (bound,)
        try:
            port = parse_address(f"0.0.0.0:{self._where}").port
        except UsageError:
            raise UsageError(
                f"health check port {self._where!r:.80}: must be a port or host:port"
            ) from None
        addresses = [reactor.listen(Address(_EVERYWHERE[0], port), accept)]
        port = addresses[0].port
        with contextlib.suppress(UsageError):  # a machine without IPv6
            addresses.append(reactor.listen(Address(_EVERYWHERE[1], port), accept))
        _log.info(
            "health checks are answered on port %d of all interfaces, since probes come from "
            "outside; only liveness and metrics are shown",
            port,
        )
        return tuple(addresses)

    # On the reactor's thread.

    def _accept(self, reactor: Reactor, connection: ReactorConnection) -> _ProbeConnection:
        too_slow = reactor.call_later(REQUEST_S, lambda: connection.close("too slow"))
        request = _ProbeConnection(connection, too_slow, self._answer, self._requests.forget)
        crowded_out = self._requests.admit(request, connection.host)
        if crowded_out is not None:
            crowded_out.end("others wait")
        return request

    def _answer(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Return the status, the kind of content, and the content."""
        if path == "/metrics":
            if self._metrics is None:
                return HTTPStatus.NOT_FOUND, _JSON, '{"error": "there are no metrics"}\n'
            return HTTPStatus.OK, CONTENT_TYPE, render_prometheus(self._metrics.snapshot())
        told = self._status()
        shown = {name: told[name] for name in SHOWN if name in told}
        silent_s = shown.get("turned_s_ago", 0.0)
        alive = isinstance(silent_s, (int, float)) and silent_s <= STUCK_S
        status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
        return status, _JSON, json.dumps(shown) + "\n"


class _ProbeConnection:
    """One connection, and the one request that it may make."""

    def __init__(
        self,
        connection: ReactorConnection,
        too_slow: Timer,
        answer: Callable[[str], tuple[HTTPStatus, str, str]],
        forget: Callable[[_ProbeConnection], None],
    ) -> None:
        self._connection = connection
        self._too_slow = too_slow
        self._answer = answer
        self._forget = forget
        self._data = b""

    def received(self, data: bytes) -> None:
        self._data += data
        if b"\r\n\r\n" in self._data:
            self._reply(self._data.partition(b"\r\n")[0])
        elif len(self._data) > REQUEST_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def closed(self, reason: str) -> None:
        self._too_slow.cancel()
        self._forget(self)

    def end(self, reason: str) -> None:
        """Close the connection."""
        self._connection.close(reason)

    def _reply(self, line: bytes) -> None:
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._refuse(HTTPStatus.BAD_REQUEST)
        elif words[0] not in {b"GET", b"HEAD"}:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            path = words[1].partition(b"?")[0].decode("ascii", "replace")
            try:
                status, kind, text = self._answer(path)
            except Exception:  # HE-1: an agent that cannot answer is not healthy
                _log.exception("the health of the agent cannot be determined")
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
                return
            self._send(status, kind, text, body=words[0] == b"GET")

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(status, _JSON, json.dumps({"error": status.phrase}) + "\n")

    def _send(self, status: HTTPStatus, kind: str, text: str, *, body: bool = True) -> None:
        content = text.encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Type: {kind}\r\n"
            f"Content-Length: {len(content)}\r\n"
            "Allow: GET, HEAD\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n"
            "\r\n"
        )
        self._connection.send(head.encode() + (content if body else b""))
        self._connection.close("answered")
