"""The port that Prometheus scrapes: /metrics, and nothing else."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing

import pytest

from holdfast.errors import UsageError
from holdfast.launch.metrics_port import MetricsServer
from holdfast.net.address import Address
from holdfast.observe.metrics import Metrics
from holdfast.observe.prometheus import CONTENT_TYPE

LOCAL = Address("127.0.0.1", 0)
WAIT_S = 60.0


def ask(where: Address, path: str, method: str = "GET") -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection(*where, timeout=WAIT_S)) as connection:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.getheader("Content-Type", ""), reply.read().decode()


def test_metrics_are_there_and_nothing_else() -> None:
    """MP-1."""
    metrics = Metrics()
    metrics.gauge("holdfast_round", "Round", job="j").set(2)
    server = MetricsServer(LOCAL, metrics.snapshot)
    bound = server.start()
    try:
        status, kind, text = ask(bound, "/metrics")
        assert (status, kind) == (200, CONTENT_TYPE)
        assert 'holdfast_round{job="j"} 2.0\n' in text
        for path in ("/", "/metrics/", "/healthz", "/metrics/../a"):
            assert ask(bound, path)[0] == 404
        assert ask(bound, "/metrics", "POST")[0] == 405
    finally:
        server.close()
        server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound, timeout=WAIT_S)


def test_an_address_that_is_taken_is_an_error() -> None:
    first = MetricsServer(LOCAL, Metrics().snapshot)
    bound = first.start()
    try:
        second = MetricsServer(bound, Metrics().snapshot)
        with pytest.raises(UsageError, match=f"cannot listen on {bound}"):
            second.start()
        second.close()
    finally:
        first.close()
