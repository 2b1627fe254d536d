"""torch's health check server by ours."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.rendezvous.port import HeldPort
from holdfast.torch_compat.elastic.health import create_healthcheck_server


def ask(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        return int(answer.status)


def test_it_lives_while_the_last_sign_of_life_is_recent() -> None:
    held = HeldPort("127.0.0.1")  # until the end: the server can bind it all the same
    last = [SYSTEM_CLOCK.wall()]
    server = create_healthcheck_server(lambda: int(last[0]), held.port, 300)
    server.start()
    try:
        assert ask(held.port) == 200
        last[0] -= 200  # more than our own servers allow
        assert ask(held.port) == 200
        last[0] -= 200
        with pytest.raises(urllib.error.HTTPError, match="503"):
            ask(held.port)
    finally:
        server.stop()
        server.stop()
    with pytest.raises(urllib.error.URLError):
        ask(held.port)
    held.close()
