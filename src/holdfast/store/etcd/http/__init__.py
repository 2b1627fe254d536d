"""Requests to an etcd cluster and its replies, by HTTP with a deadline on every call.

Layout, in reading order (◦ = pure)
    reply.py ◦     HTTP replies, parsed as they come
    connection.py  one connection: a request, a reply, a deadline on every call
    cluster.py     the way to a cluster: several addresses, retries
"""

from __future__ import annotations
