"""Leases of etcd's v3 API: each call may be repeated until it is answered.

The client chooses a lease's number, so that a grant whose answer was lost can be recognised.
"""

from __future__ import annotations

import contextlib
import math

from holdfast.clock import Deadline
from holdfast.ids import LeaseId
from holdfast.store.etcd.http.cluster import Lane
from holdfast.store.etcd.http.reply import decoding
from holdfast.store.etcd.v3.gateway import Code, Gateway, GatewayRejected, Message
from holdfast.store.ops import Lease

__all__ = ["end_once", "grant", "is_alive", "keep", "revoke"]

_ID_BITS = 63


def grant(gateway: Gateway, lane: Lane, ttl: float, deadline: Deadline, what: str) -> Lease:
    """Take a lease of at least `ttl` seconds; etcd counts in whole ones."""
    seconds = math.ceil(ttl)
    number = gateway.client.rng.randrange(1, 1 << _ID_BITS)
    body = {"ID": str(number), "TTL": str(seconds)}
    try:
        reply = gateway.ask(
            lane, "/v3/lease/grant", body, deadline, what, Code.FAILED_PRECONDITION, writes=True
        )
    except GatewayRejected:
        # It exists already: it is ours, from an attempt whose answer was lost.
        reply = _look(gateway, lane, number, deadline, what)
        reply["TTL"] = reply.get("grantedTTL", 0)
    with decoding():
        return Lease(LeaseId(number), float(int(reply["TTL"])))


def keep(gateway: Gateway, lane: Lane, lease: int, deadline: Deadline, what: str) -> float:
    """Start the lease's time afresh and return it, 0 if the lease is gone."""
    body = {"ID": str(lease)}
    reply = gateway.ask(lane, "/v3/lease/keepalive", body, deadline, what, writes=True)
    with decoding():
        return float(int(reply.get("TTL", 0)))


def revoke(gateway: Gateway, lane: Lane, lease: int, deadline: Deadline, what: str) -> bool:
    """End a lease and say whether it was alive.

    Looking first makes the answer right even if an attempt's own answer is lost: a lease that
    was alive when we looked, and is gone now, was ended in the course of this call.
    """
    if not is_alive(gateway, lane, lease, deadline, what):
        return False
    body = {"ID": str(lease)}
    with contextlib.suppress(GatewayRejected):  # an earlier attempt ended it, or its time did
        gateway.ask(lane, "/v3/lease/revoke", body, deadline, what, Code.NOT_FOUND, writes=True)
    return True


def end_once(gateway: Gateway, lane: Lane, lease: int, deadline: Deadline) -> None:
    """End a lease if the member that is asked can; NotSent, Lost, or Rejected if it is gone."""
    body = {"ID": str(lease)}
    gateway.call(lane, "/v3/lease/revoke", body, deadline, "closing", expect=Code.NOT_FOUND)


def is_alive(gateway: Gateway, lane: Lane, lease: int, deadline: Deadline, what: str) -> bool:
    """Say whether a lease is alive, by the server's clock."""
    reply = _look(gateway, lane, lease, deadline, what)
    with decoding():
        return int(reply.get("TTL", 0)) >= 0


def _look(gateway: Gateway, lane: Lane, lease: int, deadline: Deadline, what: str) -> Message:
    return gateway.ask(lane, "/v3/lease/timetolive", {"ID": str(lease)}, deadline, what)
