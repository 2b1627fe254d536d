"""Stores in etcd, on its v3 API and on its v2 keys API.

Layout, in reading order (◦ = pure)
    reply.py ◦   HTTP replies, parsed as they come
    http.py      HTTP with a deadline on every call
    client.py    the way to a cluster: several addresses, retries
    gateway.py   the messages of the v3 API
    writer.py    writes that happen exactly once
    lease.py     leases
    stream.py    the events of the v3 API
    watch.py     watches: events are followed, and never trusted alone
    followers.py what watches and waits have in common, by either API
    store.py     the store on the v3 API
    v2_api.py    the v2 keys API
    v2_ops.py    what operations become in it
    v2.py        the store on the v2 API
    server.py    a real etcd, started and stopped from here
    guard.py     a script: ends that etcd when its owner dies
"""
