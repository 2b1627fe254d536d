"""torch's health check server by ours. torch has an interface for one, which does nothing."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.elastic.agent.server.health_check_server import HealthCheckServer

from holdfast.agent import health
from holdfast.clock import SYSTEM_CLOCK

__all__ = ["Health", "create_healthcheck_server"]


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """Make a server that answers whether the agent lives, by torch's name."""
    return Health(alive_callback, port, timeout)


class Health(HealthCheckServer):  # type: ignore[misc]  # it is torch's
    """Answers 200 while the last sign of life is at most `timeout` seconds old, else 503."""

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        super().__init__(alive_callback, port, timeout)
        self._server = health.HealthServer(str(port), self._status)

    @property
    def addresses(self) -> tuple[object, ...]:
        """Where it answers."""
        return self._server.addresses

    def start(self) -> None:
        """Begin to answer. A port that cannot be had is a warning."""
        self._server.start()

    def stop(self) -> None:
        """Stop answering. Idempotent."""
        self._server.close()

    def _status(self) -> dict[str, object]:
        silent_s = max(0.0, SYSTEM_CLOCK.wall() - self._alive_callback())
        # What torch allows is not what our server does: it is told in its own measure.
        alive = silent_s <= self._timeout
        return {
            "state": "running" if alive else "silent",
            "turned_s_ago": min(silent_s, health.STUCK_S) if alive else health.STUCK_S + silent_s,
        }
