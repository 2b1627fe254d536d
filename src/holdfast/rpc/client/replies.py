"""Those who hear the answers to calls."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.rpc.wire.messages import Message

__all__ = ["NOT_DELIVERED", "Reply", "deliver", "fan_out"]

Reply = Callable[[Message | Exception], None]
"""Hears the answer, or why there will be none."""

NOT_DELIVERED = "an answer to a call could not be told"

_log = logging.getLogger("holdfast.rpc")


def deliver(reply: Reply, answer: Message | Exception) -> None:
    """Tell what comes of a call; what is raised then is logged, since others are to be told too."""
    try:
        reply(answer)
    except Exception:
        _log.exception(NOT_DELIVERED)


def fan_out(first: Reply, second: Reply) -> Reply:
    """Return who tells two."""

    def reply(answer: Message | Exception) -> None:
        first(answer)
        second(answer)

    return reply
