"""Callbacks that receive the replies to calls."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.rpc.wire.messages import Message

__all__ = ["NOT_DELIVERED", "Reply", "deliver", "fan_out"]

Reply = Callable[[Message | Exception], None]
"""Called with the reply, or with the reason why none will come."""

NOT_DELIVERED = "an answer to a call could not be told"

_log = logging.getLogger("holdfast.rpc")


def deliver(reply: Reply, answer: Message | Exception) -> None:
    """Call a callback, and log what it raises, so that other callbacks are called too."""
    try:
        reply(answer)
    except Exception:
        _log.exception(NOT_DELIVERED)


def fan_out(first: Reply, second: Reply) -> Reply:
    """Return a callback that calls both of these."""

    def reply(answer: Message | Exception) -> None:
        first(answer)
        second(answer)

    return reply
