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

from holdfast.errors import HoldfastError, UsageError
from holdfast.net.address import Address, parse_address
from holdfast.net.http_messages import JSON, REQUEST_BYTES_MAX, ServedReply, refusal
from holdfast.net.http_server import CONNECTIONS_MAX, REQUEST_S, HttpExchange, HttpServer
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

STUCK_S = 60.0
SHOWN = ("state", "round", "turned_s_ago")
"""What any client may know: no names, and no words of the workers."""

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
        self._server: HttpServer | None = None
        self.addresses: tuple[Address, ...] = ()
        """Where it answers; nowhere before `start`, and if that had to warn."""

    def start(self) -> None:
        """Begin to answer. What prevents it is a warning."""
        server = HttpServer(
            "holdfast-health",
            self._answer,
            connections_max=CONNECTIONS_MAX,
            request_s=REQUEST_S,
        )
        try:
            self.addresses = self._listen(server)
        except HoldfastError as error:
            server.close()
            _log.warning("health checks are not answered: %s", error)
            return
        self._server = server
        server.start()

    def close(self) -> None:
        """Stop answering. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _listen(self, server: HttpServer) -> tuple[Address, ...]:
        if ":" in self._where:
            bound = server.listen(parse_address(self._where))
            _log.info("health checks are answered on %s", bound)
            return (bound,)
        try:
            port = parse_address(f"0.0.0.0:{self._where}").port
        except UsageError:
            raise UsageError(
                f"health check port {self._where!r:.80}: must be a port or host:port"
            ) from None
        addresses = [server.listen(Address(_EVERYWHERE[0], port))]
        port = addresses[0].port
        with contextlib.suppress(UsageError):  # a machine without IPv6
            addresses.append(server.listen(Address(_EVERYWHERE[1], port)))
        _log.info(
            "health checks are answered on port %d of all interfaces, since probes come from "
            "outside; only liveness and metrics are shown",
            port,
        )
        return tuple(addresses)

    # On the reactor's thread.

    def _answer(self, exchange: HttpExchange) -> None:
        try:
            exchange.reply(self._reply(exchange.request.path))
        except Exception:  # HE-1: an agent that cannot answer is not healthy
            _log.exception("the health of the agent cannot be determined")
            exchange.reply(refusal(503))

    def _reply(self, path: str) -> ServedReply:
        if path == "/metrics":
            if self._metrics is None:
                return refusal(404, "there are no metrics")
            return ServedReply(render_prometheus(self._metrics.snapshot()), CONTENT_TYPE)
        told = self._status()
        shown = {name: told[name] for name in SHOWN if name in told}
        silent_s = shown.get("turned_s_ago", 0.0)
        alive = isinstance(silent_s, (int, float)) and silent_s <= STUCK_S
        return ServedReply(json.dumps(shown) + "\n", JSON, 200 if alive else 503)
