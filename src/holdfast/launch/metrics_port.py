"""`--metrics-port`: the metrics of one agent with labels, as Prometheus scrapes them.

    GET /metrics   200, in Prometheus's text format

Guarantees
    MP-1  Every other path is 404, and nothing can be changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.net.address import Address
from holdfast.net.http_messages import ServedReply, refusal
from holdfast.net.http_server import HttpExchange, HttpServer
from holdfast.observe.metrics import Metric
from holdfast.observe.prometheus import CONTENT_TYPE, render_prometheus

__all__ = ["MetricsServer"]


class MetricsServer:
    """Answers scrapes from `start` until `close`; `snapshot` is called on its own thread."""

    def __init__(self, where: Address, snapshot: Callable[[], Iterable[Metric]]) -> None:
        self._where = where
        self._snapshot = snapshot
        self._server: HttpServer | None = None

    def start(self) -> Address:
        """Begin to answer; return where. UsageError if the address cannot be bound."""
        server = HttpServer("holdfast-metrics", self._answer)
        try:
            bound = server.listen(self._where)
            server.start()
        except BaseException:
            server.close()
            raise
        self._server = server
        return bound

    def close(self) -> None:
        """Stop answering. Idempotent."""
        if self._server is not None:
            self._server.close()

    # On the reactor's thread.

    def _answer(self, exchange: HttpExchange) -> None:
        if exchange.request.path == "/metrics":
            exchange.reply(ServedReply(render_prometheus(self._snapshot()), CONTENT_TYPE))
        else:
            exchange.reply(refusal(404, "only /metrics is here"))
