"""Callbacks that receive the replies to calls."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.rpc.wire.messages import Message

__all__ = ["NOT_DELIVERED", "Reply", "deliver"]

Reply = Callable[[Message | Exception], object]
"""Called with the reply, or with the reason why none will come."""

NOT_DELIVERED = "the callback of a reply failed"

_log = logging.getLogger("holdfast.rpc")


def deliver(reply: Reply, answer: Message | Exception) -> None:
    """Call a callback, and log what it raises, so that other callbacks are called too."""
    try:
        reply(answer)
    except Exception:
        _log.exception(NOT_DELIVERED)
