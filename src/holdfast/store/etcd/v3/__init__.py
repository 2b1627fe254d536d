"""The store on etcd's v3 API, through its JSON gateway.

Layout, in reading order
    gateway.py   the messages of the v3 API
    lease.py     leases
    writer.py    writes that happen exactly once
    stream.py    the events of the v3 API
    store.py     the store
"""

from __future__ import annotations
