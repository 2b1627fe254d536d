"""Reads what the other nodes of a round report of their workers; blocks, on a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.agent.exchange import decode_report
from holdfast.agent.inputs import PeerTold
from holdfast.clock import Clock
from holdfast.errors import PeerViolation, UsageError
from holdfast.rendezvous.handler import Round
from holdfast.store.store import Watch

__all__ = ["read_reports"]

_log = logging.getLogger("holdfast.agent")


def read_reports(
    run_id: str, here: Round, watch: Watch, post: Callable[[PeerTold], None], clock: Clock
) -> None:
    """Post each report of another node until the watch is closed."""
    try:
        for change in watch:
            node = int(change.key.rpartition("/")[2])
            if node == here.rank or change.value is None:
                continue
            try:
                failures, final = decode_report(change.value, clock.wall())
            except PeerViolation as error:
                _log.warning("run %s: node %d: %s", run_id, node, error)
            else:
                post(PeerTold(here.number, node, failures, final))
    except UsageError:
        pass  # closed, since the attempt is over
